"""A buffer of received bytes, which returns whole lines.

Lines stay bytes that end in ``\\n``, many in one block: the driver neither splits nor decodes them.
"""

from __future__ import annotations

from typing import NamedTuple


class LineFaults(NamedTuple):
    """Numbers of lines that were skipped as too long, and of lines that are not valid UTF-8."""

    too_long: int = 0
    not_utf8: int = 0

    def since(self, before: LineFaults) -> LineFaults:
        """Return the faults since *before*."""
        return LineFaults(self.too_long - before.too_long, self.not_utf8 - before.not_utf8)


class TakenBlocks(NamedTuple):
    """Blocks of whole lines for a batch, and the faults since the previous batch."""

    blocks: list[bytes]
    faults: LineFaults


class LineBuffer:
    """Splits a stream of bytes at ``\\n`` in bounded memory; not safe between threads.

    A line longer than *max_line_bytes* (without its end) is counted and skipped. At most the limit
    and the bytes of one ``add`` are held of it.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._unfinished = bytearray()
        self._skipping = False
        self._blocks: list[bytes] = []
        self._too_long = 0
        self._not_utf8 = 0
        self._reported = LineFaults()
        self._complete_bytes = 0

    @property
    def complete_bytes(self) -> int:
        """Bytes of whole lines in the buffer."""
        return self._complete_bytes

    @property
    def complete_lines(self) -> int:
        """Number of whole lines in the buffer."""
        return sum(block.count(b"\n") for block in self._blocks)

    @property
    def faults(self) -> LineFaults:
        """Faults of all lines so far."""
        return LineFaults(self._too_long, self._not_utf8)

    def add(self, data: bytes) -> None:
        """Append received bytes."""
        if self._skipping:
            _, newline, data = data.partition(b"\n")
            self._skipping = not newline
        end = data.rfind(b"\n") + 1
        if end:
            self._add_block(bytes(self._unfinished) + data[:end])
            self._unfinished.clear()
        self._unfinished += data[end:]
        if len(self._unfinished) > self._max_line_bytes:
            self._unfinished.clear()
            self._too_long += 1
            self._skipping = True

    def end_stream(self) -> None:
        """Complete the unfinished line: the stream has ended."""
        if self._unfinished:
            self._add_block(bytes(self._unfinished) + b"\n")
        self.drop_unfinished()

    def drop_unfinished(self) -> int:
        """Drop the unfinished line and return its size in bytes."""
        dropped = len(self._unfinished)
        self._unfinished.clear()
        self._skipping = False
        return dropped

    def take(self, most: int | None = None) -> TakenBlocks:
        """Remove and return whole lines, the oldest first; at most *most* if given."""
        blocks, rest = (self._blocks, []) if most is None else _split(self._blocks, most)
        taken = TakenBlocks(blocks, self.faults.since(self._reported))
        self._blocks, self._reported = rest, self.faults
        self._complete_bytes -= sum(map(len, blocks))
        return taken

    def _add_block(self, block: bytes) -> None:
        if len(block) > self._max_line_bytes + 1:
            block = self._without_long_lines(block)
        if block:
            self._not_utf8 += _not_utf8(block)
            self._blocks.append(block)
            self._complete_bytes += len(block)

    def _without_long_lines(self, block: bytes) -> bytes:
        lines = block.split(b"\n")[:-1]
        kept = [line + b"\n" for line in lines if len(line) <= self._max_line_bytes]
        self._too_long += len(lines) - len(kept)
        return b"".join(kept)


def _not_utf8(block: bytes) -> int:
    """Count the lines that are not valid UTF-8; the usual case, none, takes one check."""
    if block.isascii() or _is_utf8(block):
        return 0
    return sum(not _is_utf8(line) for line in block.split(b"\n"))


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _split(blocks: list[bytes], most: int) -> tuple[list[bytes], list[bytes]]:
    """Split blocks of whole lines after *most* lines."""
    left = most
    for number, block in enumerate(blocks):
        count = block.count(b"\n")
        if count > left:
            end = 0
            for _ in range(left):
                end = block.index(b"\n", end) + 1
            taken = [*blocks[:number], block[:end]] if end else blocks[:number]
            return taken, [block[end:], *blocks[number + 1 :]]
        left -= count
    return blocks, []
