"""Blocks in the order of the records that they were made of, however the shuffle delivered them.

Spark fetches the blocks of a shuffle in another order in each attempt. What a function over state
emits must not change when a task runs again, so blocks name their origin
(:func:`~dstreams.spark.shuffle.shuffle_pairs` with ``ordered``) and are sorted here first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple

from dstreams.spark.blocks import Block, Side

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
    """Return all blocks, states first, then in the order of their records before the shuffle.

    Blocks without an origin keep the order in which they came, before those with one. All frames
    are read at once; those beyond *limit_bytes* wait in a temporary file.
    """
    waiting: list[tuple[tuple[bool, tuple[int, int], int], bytes | _Piece]] = []
    file: BinaryIO | None = None
    room = limit_bytes
    for number, frame in enumerate(frames):
        block = Block(frame)
        room -= len(frame)
        stored: bytes | _Piece = frame
        if room < 0:
            file = file or TemporaryFile()  # noqa: SIM115 - closed in _blocks
            stored = _Piece(file, file.tell(), len(frame))
            file.write(frame)
        waiting.append(((block.side is not Side.STATE, block.origin, number), stored))
    waiting.sort(key=itemgetter(0), reverse=True)
    return _blocks([stored for _, stored in waiting], file)


def _blocks(waiting: list[bytes | _Piece], file: BinaryIO | None) -> Iterator[Block]:
    """Yield the blocks from the last one on, and give the memory of each back on the way."""
    try:
        while waiting:
            stored = waiting.pop()
            yield Block(stored.read() if isinstance(stored, _Piece) else stored)
    finally:
        if file is not None:
            file.close()
