"""Rows that wait in memory while there is room, and on the local disk after that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import shuffle

from dstreams.rdd.blocks import Block, BlockBuilder, Side
from dstreams.rdd.output_rows import FrameBuffer

_FIRST_LOOK_ROWS = 1000
_LOOK_GROWTH = 1.5


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


class SpillBuffer:
    """Rows in the order in which they were added; they go to the disk beyond *memory_mb* MiB."""

    def __init__(self, memory_mb: float) -> None:
        self._limit = MemoryLimit(memory_mb)
        self._rows: list[Any] = []
        self._spilled: _Spilled | None = None

    @property
    def are_in_memory(self) -> bool:
        return self._spilled is None

    def add(self, row: Any) -> None:
        if self._spilled is not None:
            self._spilled.add(row)
            return
        self._rows.append(row)
        if self._limit.is_reached(len(self._rows)):
            self._spilled = _Spilled()
            for each in self._rows:
                self._spilled.add(each)
            self._rows.clear()

    def rows(self) -> Iterator[Any]:
        """Iterate over the rows once, and free them."""
        if self._spilled is not None:
            yield from self._spilled.rows()
        yield from self._rows
        self._rows.clear()


class _Spilled:
    """Rows in blocks."""

    def __init__(self) -> None:
        self._builder = BlockBuilder(Side.BATCH)
        self._frames = FrameBuffer()

    def add(self, row: Any) -> None:
        block = self._builder.add(None, row)
        if block is not None:
            self._frames.add(block)

    def rows(self) -> Iterator[Any]:
        for block in self._builder.flush():
            self._frames.add(block)
        for frame in self._frames.frames():
            yield from Block(frame).values()
