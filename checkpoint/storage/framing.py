"""Frames: the bytes on disk of every file of a checkpoint.

A file is a header, blocks, and a footer, all integers little-endian::

    preamble   8s magic | H format | 4s kind | I header length | I crc of these
    header     JSON     | I crc of it
    block      4s BLCK  | I payload length | I records | I crc of payload | I crc of these | payload
    ...
    footer     4s FOOT  | Q blocks | Q records | I crc of these | 8s end mark

The crcs of the heads form a chain: each begins with the value of the one before. So a block that
is verified is *this* block of *this* file: blocks that were dropped, doubled, swapped or taken from
another file are detected before they are returned. A length is used only after its crc is checked,
so a damaged one never allocates memory.

Nothing is compressed: checking a block takes as long as its crc32 (2.5 GB/s where the disk had 1),
and a few microseconds of Python, so blocks of about 100 kB are efficient.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

import msgspec

from checkpoint.errors import (
    RESTORE,
    UPGRADE,
    CorruptCheckpointError,
    Damage,
    UntrustedFileError,
)
from checkpoint.storage.files import Name
from checkpoint.storage.json_records import Count, JsonRecord, decode, encode

FORMAT = 1
MAX_HEADER_BYTES = 1 << 20
MAX_BLOCK_BYTES = 64 << 20
MAX_BLOCK_RECORDS = (1 << 32) - 1

# As in PNG: a byte above 127 and both line ends show what text-mode copies do to a file.
_MAGIC = b"\x89DSC\r\n\x1a\n"
SIGNED_MAGIC = b"\x89DSG\r\n\x1a\n"
_END = b"\r\nDSCEND"
_BLOCK_MARK = b"BLCK"
_FOOTER_MARK = b"FOOT"
_PREAMBLE = struct.Struct("<8sH4sI")
_BLOCK = struct.Struct("<4sIII")
_FOOTER = struct.Struct("<4sQQ")
_CRC = struct.Struct("<I")
_BLOCK_HEAD_BYTES = _BLOCK.size + _CRC.size
_FOOTER_BYTES = _FOOTER.size + _CRC.size + len(_END)


class FileKind(enum.Enum):
    """The kind of a file."""

    STATE = b"STAT"
    COMMIT = b"COMM"
    RECEIVED = b"RECV"
    CHANGES = b"CHNG"
    SNAPSHOT = b"SNAP"
    CLAIM = b"CLAM"
    TAKEOVER = b"BASE"
    BEGIN = b"BEGN"
    GRAPH = b"GRPH"
    EXPORT = b"EXPT"
    INPUTS = b"INPS"


def damaged(
    file: str, found: str, expected: str, damage: Damage = Damage.DAMAGED
) -> CorruptCheckpointError:
    """Return the error for a file whose bytes are not those that were written."""
    return CorruptCheckpointError(file, found, expected, RESTORE, damage)


class FileBytes:
    """Reads exact numbers of bytes from chunks of any size.

    *error* makes the exception for a file that is too short or too long.
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
        """Return the next *count* bytes, part of *what*; never buffers more than the file has."""
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
        """Raise if bytes are left."""
        if len(self._rest) or next(self._chunks, b""):
            raise self._error(
                self.file, f"continues after {self._taken_bytes} bytes", "its end there"
            )


class FrameTotals:
    """Totals of a file, complete after all of its frames were written or read.

    The digest is blake2b over the heads of all frames, which contain the crc of every payload;
    hashing the payloads would take three times as long as the rest. It detects files that were
    mixed up or damaged, not forged ones.
    """

    def __init__(self) -> None:
        self.blocks = 0
        self.records = 0
        self.size_bytes = 0
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """The digest so far, in hexadecimal."""
        return self._digest.hexdigest()

    def add_head(self, head: bytes) -> bytes:
        """Count the head of a frame and return it."""
        self.size_bytes += len(head)
        self._digest.update(head)
        return head

    def add_payload(self, payload_bytes: int, records: int) -> None:
        """Count the payload of a block."""
        self.blocks += 1
        self.records += records
        self.size_bytes += payload_bytes


class FileRef(JsonRecord, frozen=True, gc=False):
    """A reference to a complete file, with its totals; records contain it."""

    name: Name
    size_bytes: Count
    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    records: Count

    @classmethod
    def of(cls, name: str, totals: FrameTotals) -> FileRef:
        """Return the reference of a file that was written or read to its end."""
        return cls(name, totals.size_bytes, totals.digest, totals.records)

    def require(self, totals: FrameTotals, file: str) -> None:
        """Raise CorruptCheckpointError unless *totals* are those of this file."""
        found = self.of(self.name, totals)
        for what, has, wanted in (
            ("bytes", found.size_bytes, self.size_bytes),
            ("records", found.records, self.records),
            ("as its digest", found.digest, self.digest),
        ):
            if has != wanted:
                raise damaged(
                    file, f"has {has} {what}", f"{wanted}, as the record says", Damage.REPLACED
                )


@dataclass(frozen=True)
class Frames:
    """A file that is being read."""

    header: Mapping[str, object]
    blocks: Iterator[tuple[bytes, int]]
    totals: FrameTotals


def write_frames(
    kind: FileKind,
    header: JsonRecord | Mapping[str, object],
    blocks: Iterable[tuple[bytes | memoryview, int]],
    totals: FrameTotals | None = None,
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file as *blocks*, pairs of payload and number of records, are pulled.

    *totals* are filled on the way. Raises ValueError.
    """
    totals = FrameTotals() if totals is None else totals
    encoded = encode(header)
    _require_at_most(len(encoded), MAX_HEADER_BYTES, "header", "bytes")
    preamble = _PREAMBLE.pack(_MAGIC, FORMAT, kind.value, len(encoded))
    chain = crc32(preamble)
    head = preamble + _CRC.pack(chain) + encoded
    chain = crc32(encoded, chain)
    yield totals.add_head(head + _CRC.pack(chain))
    for payload, records in blocks:
        payload_bytes = memoryview(payload).nbytes
        _require_at_most(payload_bytes, MAX_BLOCK_BYTES, "block", "bytes")
        _require_at_most(records, MAX_BLOCK_RECORDS, "block", "records")
        fields = _BLOCK.pack(_BLOCK_MARK, payload_bytes, records, crc32(payload))
        chain = crc32(fields, chain)
        yield totals.add_head(fields + _CRC.pack(chain))
        totals.add_payload(payload_bytes, records)
        yield payload
    fields = _FOOTER.pack(_FOOTER_MARK, totals.blocks, totals.records)
    yield totals.add_head(fields + _CRC.pack(crc32(fields, chain)) + _END)


def read_frames(chunks: Iterable[bytes], kind: FileKind, file: str) -> Frames:
    """Read the header of a file now, and its blocks as they are pulled."""
    source = FileBytes(chunks, file)
    totals = FrameTotals()
    preamble = source.take(_PREAMBLE.size + _CRC.size, "the preamble")
    magic, file_format, kind_found, header_bytes = _PREAMBLE.unpack_from(preamble)
    if magic == SIGNED_MAGIC:
        remedy = "give the key in CHECKPOINT_KEY_FILE or CHECKPOINT_KEY"
        raise UntrustedFileError(
            file, "is signed, and there is no key", "a key", remedy, Damage.NO_KEY
        )
    if magic != _MAGIC:
        raise damaged(file, f"begins with {magic!r}", f"{_MAGIC!r}")
    chain = source.require_crc(preamble, crc32(preamble[: _PREAMBLE.size]), "the preamble")
    if file_format != FORMAT:
        found = f"is written in format {file_format}"
        raise CorruptCheckpointError(file, found, f"format {FORMAT}", UPGRADE, Damage.FORMAT)
    if kind_found != kind.value:
        raise damaged(file, f"is of kind {kind_found!r}", f"kind {kind.value!r}", Damage.MISPLACED)
    if header_bytes > MAX_HEADER_BYTES:
        raise damaged(file, f"has a header of {header_bytes} bytes", f"<= {MAX_HEADER_BYTES}")
    encoded = source.take(header_bytes + _CRC.size, "the header")
    json_bytes = encoded[:header_bytes]
    chain = source.require_crc(encoded, crc32(json_bytes, chain), "the header")
    header = decode(json_bytes, dict[str, object], file, "a header")
    totals.add_head(preamble + encoded)
    return Frames(header, _read_blocks(source, chain, totals), totals)


def _read_blocks(source: FileBytes, chain: int, totals: FrameTotals) -> Iterator[tuple[bytes, int]]:
    what = "the head of block 0"
    head = source.take(_BLOCK_HEAD_BYTES, what)
    while head.startswith(_BLOCK_MARK):
        _, payload_bytes, records, payload_crc = _BLOCK.unpack_from(head)
        chain = source.require_crc(head, crc32(head[: _BLOCK.size], chain), what)
        if payload_bytes > MAX_BLOCK_BYTES:
            found = f"has a block of {payload_bytes} bytes"
            raise damaged(source.file, found, f"<= {MAX_BLOCK_BYTES}")
        what = f"block {totals.blocks}"
        payload = source.take(payload_bytes, what)
        if crc32(payload) != payload_crc:
            raise damaged(source.file, f"is damaged in {what}", f"crc {payload_crc:08x}")
        totals.add_head(head)
        totals.add_payload(payload_bytes, records)
        yield payload, records
        what = f"the head of block {totals.blocks}"
        head = source.take(_BLOCK_HEAD_BYTES, what)
    footer = head + source.take(_FOOTER_BYTES - _BLOCK_HEAD_BYTES, "the footer")
    _require_footer(source, footer, chain, totals)
    totals.add_head(footer)
    source.require_end()


def _require_footer(source: FileBytes, footer: bytes, chain: int, totals: FrameTotals) -> None:
    mark, blocks, records = _FOOTER.unpack_from(footer)
    if mark != _FOOTER_MARK:
        expected = f"{_BLOCK_MARK!r} or {_FOOTER_MARK!r}"
        raise damaged(source.file, f"is damaged after block {totals.blocks - 1}", expected)
    checked = footer[: -len(_END)]
    source.require_crc(checked, crc32(footer[: _FOOTER.size], chain), "the footer")
    if not footer.endswith(_END):
        raise damaged(source.file, "is damaged in its last bytes", f"{_END!r}")
    if (blocks, records) != (totals.blocks, totals.records):
        found = f"holds {totals.blocks} blocks and {totals.records} records"
        raise damaged(source.file, found, f"{blocks} and {records} as in its footer")


def _require_at_most(value: int, limit: int, what: str, unit: str) -> None:
    if not 0 <= value <= limit:
        raise ValueError(
            f"{what} of {value} {unit} must be 0 to {limit} {unit}; write smaller ones"
        )
