"""Blocks that wait for their batch, in bounded memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from checkpoint import FileRef
from dstreams.errors import StreamLifecycleError
from dstreams.sources.pickled_block import ReceivedBlock

WriteBlock = Callable[[int, bytes, int], FileRef]


class BlockQueue:
    """Keeps the blocks of a receiver until a batch has them.

    :meth:`put` waits while *max_bytes* are there, in blocks without a batch and in batches without
    an RDD. With a write-ahead log a block is written before it can be in a batch.

    Args:
        name: of the receiver, for messages.
        max_bytes: bytes of blocks to hold.
        write: writes a block durably, by its number, payload and records. None: nothing is written.
    """

    def __init__(self, name: str, max_bytes: int, write: WriteBlock | None = None) -> None:
        self._name = name
        self._max_bytes = max_bytes
        self._write = write
        self._changed = threading.Condition()
        self._blocks: deque[ReceivedBlock] = deque()
        self._waiting_bytes = 0
        self._planned_bytes: dict[int, int] = {}
        self._sequence = 0
        self._draining = False
        self._closed = False

    def put(self, block: ReceivedBlock) -> None:
        """Return when *block* is stored; waits while there is no room.

        Raises:
            StreamLifecycleError: the queue is closed.
            CheckpointError: the block could not be written.
        """
        size = len(block.payload)
        with self._changed:
            self._changed.wait_for(self._has_room)
            self._require_open()
            sequence = self._sequence
            self._sequence += 1
            self._waiting_bytes += size
        try:
            if self._write is not None:
                block = replace(block, ref=self._write(sequence, block.payload, block.records))
            with self._changed:
                self._require_open()
                self._blocks.append(block)
        except BaseException:
            with self._changed:
                self._waiting_bytes -= size
                self._changed.notify_all()
            raise

    def restore(self, blocks: Iterable[ReceivedBlock]) -> None:
        """Take blocks that an earlier run has written, before all others."""
        with self._changed:
            for block in blocks:
                self._blocks.append(block)
                self._waiting_bytes += len(block.payload)

    def peek(self, records: float | None = None) -> list[ReceivedBlock]:
        """Return the blocks for a batch, and leave them; :meth:`take` removes them.

        Args:
            records: take no further block once that many are reached. None: all blocks.
        """
        with self._changed:
            if records is None:
                return list(self._blocks)
            count, reached = 0, 0.0
            for block in self._blocks:
                if reached >= records:
                    break
                reached += block.records
                count += 1
            return list(islice(self._blocks, count))

    def take(self, blocks: Sequence[ReceivedBlock], number: int) -> None:
        """Remove the first blocks, which :meth:`peek` returned: a batch has them, of that number.

        Numbers grow from batch to batch.
        """
        size = sum(len(block.payload) for block in blocks)
        with self._changed:
            for _ in blocks:
                self._blocks.popleft()
            self._waiting_bytes -= size
            self._planned_bytes[number] = self._planned_bytes.get(number, 0) + size

    def make_room(self, upto: int) -> None:
        """Stop counting batches up to a number: their bytes are in Spark, or not needed."""
        with self._changed:
            for number in [number for number in self._planned_bytes if number <= upto]:
                del self._planned_bytes[number]
            self._changed.notify_all()

    def drain(self) -> None:
        """Take what is left of a receiver that ends, whatever room there is."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more blocks, and drop those that wait."""
        with self._changed:
            self._closed = True
            self._blocks.clear()
            self._changed.notify_all()

    def is_empty(self) -> bool:
        """Whether no block waits."""
        with self._changed:
            return not self._blocks

    def records(self) -> int:
        """How many records wait."""
        with self._changed:
            return sum(block.records for block in self._blocks)

    def _has_room(self) -> bool:
        if self._closed or self._draining:
            return True
        return self._waiting_bytes + sum(self._planned_bytes.values()) < self._max_bytes

    def _require_open(self) -> None:
        if self._closed:
            raise StreamLifecycleError(f"{self._name} has stopped and takes no more records")
