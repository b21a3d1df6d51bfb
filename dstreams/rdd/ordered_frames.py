"""Blocks in the order of the records that they were made of, however the shuffle delivered them.

Spark fetches the blocks of a shuffle in any order, another one in each attempt. What a function
over state emits and keeps may depend on the order of records, and must not change when a task runs
again; so the blocks of a shuffle say where they come from (:func:`~dstreams.rdd.shuffle.
shuffle_pairs` with ``ordered``), and are sorted here before the first of them is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple

from dstreams.rdd.blocks import Block, Side, decode_block

_BUFFER_BYTES = 64 << 20


class _Piece(NamedTuple):
    """A frame that is in a file."""

    file: BinaryIO
    start: int
    size: int

    def read(self) -> bytes:
        self.file.seek(self.start)
        return self.file.read(self.size)


def in_order(frames: Iterable[bytes], limit_bytes: int = _BUFFER_BYTES) -> Iterator[Block]:
    """Return all blocks, states first, then as their records were before the shuffle.

    Blocks that do not say where they come from stay in the order in which they came, before those
    that do. All frames are read at once.

    Args:
        frames: encoded blocks.
        limit_bytes: how much is held in memory; the rest is in a temporary file.
    """
    held: list[tuple[tuple[bool, tuple[int, int], int], bytes | _Piece]] = []
    file: BinaryIO | None = None
    room = limit_bytes
    for number, frame in enumerate(frames):
        block = decode_block(frame)
        room -= len(frame)
        kept: bytes | _Piece = frame
        if room < 0:
            file = file or TemporaryFile()  # noqa: SIM115 - closed in _blocks
            kept = _Piece(file, file.tell(), len(frame))
            file.write(frame)
        held.append(((block.side is not Side.STATE, block.origin, number), kept))
    held.sort(key=itemgetter(0), reverse=True)
    return _blocks([kept for _, kept in held], file)


def _blocks(held: list[bytes | _Piece], file: BinaryIO | None) -> Iterator[Block]:
    """Yield the blocks from the last one on, and give back the memory of each on the way."""
    try:
        while held:
            kept = held.pop()
            yield decode_block(kept.read() if isinstance(kept, _Piece) else kept)
    finally:
        if file is not None:
            file.close()
