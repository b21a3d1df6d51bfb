"""The bytes of a file, in exact amounts."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from checkpoint.errors import RESTORE, CorruptCheckpointError, Damage

_CRC = struct.Struct("<I")


def damaged(
    file: str, found: str, expected: str, damage: Damage = Damage.DAMAGED
) -> CorruptCheckpointError:
    """Return the error that tells of a file whose bytes are not those that were written."""
    return CorruptCheckpointError(file, found, expected, RESTORE, damage)


class FileBytes:
    """The bytes of a file, taken in exact amounts out of chunks of any size.

    *error* makes what is raised where the file is not as it should be.
    """

    def __init__(
        self,
        chunks: Iterable[bytes],
        file: str,
        error: Callable[[str, str, str], CorruptCheckpointError] = damaged,
    ) -> None:
        self.file = file
        self._error = error
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")
        self._taken_bytes = 0

    def take(self, count: int, what: str) -> bytes:
        """Take the next *count* bytes, which are *what*; never holds more than the file has."""
        parts = [self._rest[:count]]
        missing = count - len(parts[0])
        self._rest = self._rest[count:]
        while missing:
            chunk = memoryview(next(self._chunks, b""))
            if not chunk:
                found = f"ends after {self._taken_bytes + count - missing} bytes, inside {what}"
                raise self._error(self.file, found, f"{missing} more bytes")
            parts.append(chunk[:missing])
            self._rest = chunk[missing:]
            missing -= len(parts[-1])
        self._taken_bytes += count
        return b"".join(parts) if len(parts) > 1 else bytes(parts[0])

    def require_crc(self, head: bytes, crc: int, what: str) -> int:
        """Return *crc* if *head* ends with it."""
        (stored,) = _CRC.unpack_from(head, len(head) - _CRC.size)
        if crc == stored:
            return crc
        raise self._error(self.file, f"is damaged in {what}", f"crc {crc:08x}, not {stored:08x}")

    def require_end(self) -> None:
        """Raise if there are bytes left."""
        if len(self._rest) or next(self._chunks, b""):
            raise self._error(
                self.file, f"goes on after {self._taken_bytes} bytes", "its end there"
            )
