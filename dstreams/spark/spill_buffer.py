"""Rows that wait in memory while there is room, and on the local disk after that."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from tempfile import SpooledTemporaryFile
from typing import Any

from pyspark import shuffle
from pyspark.shuffle import Aggregator, ExternalMerger

from dstreams.spark.blocks import Block, BlockBuilder, Side

_LENGTH = struct.Struct("<Q")
_BUFFER_BYTES = 64 << 20
_DIGEST_BYTES = 16
_FIRST_LOOK_ROWS = 1000
_LOOK_GROWTH = 1.5
_FEW_KEYS = 1000
_LITTLE_MB = 16


class MemoryLimit:
    """Says when a worker uses more memory than it may; it looks rarely, because looking costs."""

    def __init__(self, memory_mb: float) -> None:
        self._memory_mb = memory_mb
        self._next_look: float = _FIRST_LOOK_ROWS
        self._between: float = _FIRST_LOOK_ROWS

    def is_reached(self, rows: int) -> bool:
        if rows < self._next_look:
            return False
        self._between *= _LOOK_GROWTH
        self._next_look += self._between
        return shuffle.get_used_memory() >= self._memory_mb


class Merger(ExternalMerger):  # type: ignore[type-arg]  # no class to subscript in PySpark 3.5
    """Merges pairs by key, and spills beyond *memory_mb* MiB what is worth it.

    PySpark's own spills whenever the worker is beyond the limit. In a worker that is there by what
    a program loaded, it would write 59 files and run a full garbage collection for a few rows of
    each partition of each batch, and free nothing. So few keys that took little memory stay.
    """

    def __init__(self, aggregator: Aggregator[Any, Any], memory_mb: float) -> None:
        super().__init__(aggregator, memory_mb)
        self._before_mb = shuffle.get_used_memory()

    def _spill(self) -> None:
        grown_mb = shuffle.get_used_memory() - self._before_mb
        if self.pdata or len(self.data) >= _FEW_KEYS or grown_mb >= _LITTLE_MB:
            super()._spill()


class FrameBuffer:
    """Frames that wait for the commit: in memory, and on the local disk when they are many."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(_BUFFER_BYTES)  # noqa: SIM115 - closed in frames
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self._count = 0

    def add(self, frame: bytes) -> None:
        length = _LENGTH.pack(len(frame))
        self._file.write(length)
        self._file.write(frame)
        self._digest.update(length)
        self._digest.update(frame)
        self._count += 1

    def digest(self) -> bytes:
        return self._digest.digest()

    def frames(self) -> Iterator[bytes]:
        """Iterate over the frames once, and free them."""
        with self._file:
            self._file.seek(0)
            for _ in range(self._count):
                (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
                yield self._file.read(length)


class SpillBuffer:
    """Rows in the order in which they were added; they go to the disk beyond *memory_mb* MiB."""

    def __init__(self, memory_mb: float) -> None:
        self._limit = MemoryLimit(memory_mb)
        self._rows: list[Any] = []
        self._builder = BlockBuilder(Side.BATCH)
        self._frames: FrameBuffer | None = None

    @property
    def are_in_memory(self) -> bool:
        return self._frames is None

    def add(self, row: Any) -> None:
        if self._frames is not None:
            self._spill(self._frames, row)
            return
        self._rows.append(row)
        if self._limit.is_reached(len(self._rows)):
            self._frames = FrameBuffer()
            for each in self._rows:
                self._spill(self._frames, each)
            self._rows.clear()

    def _spill(self, frames: FrameBuffer, row: Any) -> None:
        block = self._builder.add(None, row)
        if block is not None:
            frames.add(block)

    def rows(self) -> Iterator[Any]:
        """Iterate over the rows once, and free them."""
        if self._frames is not None:
            for block in self._builder.flush():
                self._frames.add(block)
            for frame in self._frames.frames():
                yield from Block(frame).values()
        yield from self._rows
        self._rows.clear()
