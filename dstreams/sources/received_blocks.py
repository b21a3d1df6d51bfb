"""Blocks of received records: pickled on receipt, queued for their batch, unpickled by workers.

Pickling at once keeps the input of a batch fixed even if the receiver changes its objects later.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from pyspark import cloudpickle

from checkpoint import MAX_BLOCK_BYTES, FileRef
from dstreams.common.clock import Clock
from dstreams.common.settings import Settings
from dstreams.errors import InvalidStreamError, StreamLifecycleError
from dstreams.sources.rate_limit import RateLimiter

TARGET_BYTES = 4 << 20
"""Largest size of a block of several records."""

MAX_RECORDS = 10_000
"""Largest number of single records in a block."""

MAX_PAYLOAD_BYTES = MAX_BLOCK_BYTES
"""Largest size of a block of one record: the limit of a file of the write-ahead log."""


@dataclass(frozen=True)
class ReceivedBlock:
    """Received records.

    Args:
        payload: the records, as a pickled list.
        records: number of records.
        ref: their file in the write-ahead log; None without one.
    """

    payload: bytes
    records: int
    ref: FileRef | None = None


def _refuse(error: InvalidStreamError) -> None:
    raise error


def encode_records(
    records: Sequence[Any], refused: Callable[[InvalidStreamError], None] = _refuse
) -> list[ReceivedBlock]:
    """Pickle records into as few blocks as their size allows, in order.

    Args:
        records: the records.
        refused: called with the error for each record that cannot be pickled or is too large; the
            default raises it.

    Raises:
        InvalidStreamError: a record is refused, and *refused* is not given.
    """
    return list(_encode(records, refused))


def decode_records(payloads: Iterable[bytes]) -> Iterator[Any]:
    """Unpickle the blocks of a partition; all input is read so that Spark reuses the worker."""
    return chain.from_iterable(map(pickle.loads, list(payloads)))


def _encode(
    records: Sequence[Any], refused: Callable[[InvalidStreamError], None]
) -> Iterator[ReceivedBlock]:
    if not records:
        return
    failure: Exception | None = None
    payload = b""
    try:
        # Pickles classes of the driver's __main__ by value, as PySpark does.
        payload = cloudpickle.dumps(list(records), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        failure = error
    if failure is None and (len(payload) <= TARGET_BYTES or len(records) == 1):
        if len(payload) <= MAX_PAYLOAD_BYTES:
            yield ReceivedBlock(payload, len(records))
        else:
            refused(
                InvalidStreamError(
                    f"a received record of type {type(records[0]).__name__} takes {len(payload)} "
                    f"bytes when pickled, at most {MAX_PAYLOAD_BYTES} are allowed; store less at "
                    "once"
                )
            )
    elif len(records) == 1:
        unpicklable = InvalidStreamError(
            f"a received record of type {type(records[0]).__name__} cannot be pickled ({failure}); "
            "store plain data"
        )
        unpicklable.__cause__ = failure
        refused(unpicklable)
    else:
        middle = len(records) // 2
        yield from _encode(records[:middle], refused)
        yield from _encode(records[middle:], refused)


class BlockGenerator:
    """Collects the records of a receiver into blocks, at its rate, and stores the blocks.

    Single records wait in a buffer. After each block interval, or once the buffer is full, a thread
    stores them as a block while the buffer fills again. :meth:`add` waits while the buffer is full,
    which bounds memory and slows the sender down.

    Args:
        name: name of the receiver.
        store: waits for room, stores a block and returns once the block counts as received.
        limiter: limits the records per second.
        clock: the driver's clock.
        settings: the block interval and the delay between attempts to store a block.
        report: called with a message and the error if a record or a block cannot be stored.

    Semantics: BlockGenerator of Spark Streaming (4.3), without its queue.
    """

    def __init__(
        self,
        name: str,
        store: Callable[[ReceivedBlock], None],
        limiter: RateLimiter,
        clock: Clock,
        settings: Settings,
        report: Callable[[str, Exception], None],
    ) -> None:
        self._name = name
        self._store = store
        self._limiter = limiter
        self._clock = clock
        self._interval_ms = settings.block_interval_ms
        self._retry_ms = settings.receiver_restart_delay_ms
        self._report = report
        self._changed = threading.Condition()
        self._buffer: list[Any] = []
        self._buffer_bytes = 0
        self._storing = 0
        self._accepting = True
        self._due = threading.Event()
        self._discarding = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name} blocks", daemon=True)  # noqa: TID251

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, record: Any) -> None:
        """Add a record to the buffer.

        Raises:
            StreamLifecycleError: the generator was stopped.
        """
        self._limiter.acquire()
        with self._changed:
            while self._is_full() and self._accepting:
                self._changed.wait()
            if self._discarding.is_set():
                return
            self._require_accepting()
            self._buffer.append(record)
            self._buffer_bytes += sys.getsizeof(record)
            if self._is_full():
                self._due.set()

    def add_all(self, records: Iterable[Any]) -> None:
        """Store records in blocks of their own; return once they count as received.

        Raises:
            InvalidStreamError: a record cannot be pickled, or is too large; none is stored.
            StreamLifecycleError: the generator was stopped.
        """
        kept = list(records)
        blocks = encode_records(kept)
        with self._changed:
            self._require_accepting()
            self._storing += 1
        try:
            self._limiter.acquire(len(kept))
            for block in blocks:
                self._store(block)
        finally:
            with self._changed:
                self._storing -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """Reject further records; return once all accepted records are stored."""
        with self._changed:
            self._accepting = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._storing == 0)
        self._due.set()
        if self._thread.is_alive():
            self._thread.join()

    def discard(self) -> None:
        """Drop single records that are not stored, and release all waiting callers."""
        self._discarding.set()
        self._due.set()
        with self._changed:
            self._accepting = False
            self._buffer, self._buffer_bytes = [], 0
            self._changed.notify_all()

    def _is_full(self) -> bool:
        return len(self._buffer) >= MAX_RECORDS or self._buffer_bytes >= TARGET_BYTES

    def _require_accepting(self) -> None:
        if not self._accepting:
            raise StreamLifecycleError(
                f"{self._name} has stopped and accepts no more records; end the receiver's threads "
                "once isStopped() is true, and wait for them in onStop"
            )

    def _run(self) -> None:
        is_last = False
        while not (is_last or self._discarding.is_set()):
            interval_ms = self._interval_ms
            next_ms = (self._clock.now_ms() // interval_ms + 1) * interval_ms
            self._clock.wait_until(next_ms, self._due)
            with self._changed:
                is_last = not self._accepting
                if not is_last:
                    self._due.clear()
                records, self._buffer, self._buffer_bytes = self._buffer, [], 0
                self._changed.notify_all()
            for block in encode_records(records, self._skip):
                self._store_with_retries(block)

    def _store_with_retries(self, block: ReceivedBlock) -> None:
        """Store a block of single records; retry until the receiver is discarded."""
        failed = False
        while not self._discarding.is_set():
            try:
                self._store(block)
                return
            except Exception as error:
                if not (failed or self._discarding.is_set()):
                    failed = True
                    self._report(
                        f"failed to store {block.records} received records; retrying every "
                        f"{self._retry_ms} ms",
                        error,
                    )
            self._discarding.wait(self._retry_ms / 1000)

    def _skip(self, error: Exception) -> None:
        self._report("skipped a received record", error)


class BlockQueue:
    """Holds the blocks of a receiver until a batch takes them.

    :meth:`put` waits while the blocks without a batch and the batches without an RDD have
    *max_bytes*. With a write-ahead log, a block is written before a batch can take it.

    Args:
        name: name of the receiver, for messages.
        max_bytes: bytes of blocks to hold.
        write: writes a block durably, given its number, payload and number of records; None without
            a write-ahead log.
    """

    def __init__(
        self, name: str, max_bytes: int, write: Callable[[int, bytes, int], FileRef] | None = None
    ) -> None:
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
        """Wait for room and store *block*.

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
        """Add the blocks that an earlier run has written, before all others."""
        with self._changed:
            for block in blocks:
                self._blocks.append(block)
                self._waiting_bytes += len(block.payload)

    def peek(self, records: float | None = None) -> list[ReceivedBlock]:
        """Return the blocks for a batch without removing them.

        Args:
            records: add no further block once this number of records is reached; None for all.
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
        """Remove the blocks that :meth:`peek` returned, for a batch; *number* grows per batch."""
        size = sum(len(block.payload) for block in blocks)
        with self._changed:
            for _ in blocks:
                self._blocks.popleft()
            self._waiting_bytes -= size
            self._planned_bytes[number] = self._planned_bytes.get(number, 0) + size

    def make_room(self, upto: int) -> None:
        """Stop counting batches up to a number: their bytes are in Spark or no longer needed."""
        with self._changed:
            for number in [number for number in self._planned_bytes if number <= upto]:
                del self._planned_bytes[number]
            self._changed.notify_all()

    def drain(self) -> None:
        """Accept the remaining blocks of a receiver that ends, regardless of room."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def close(self) -> None:
        """Reject further blocks, and drop those in the queue."""
        with self._changed:
            self._closed = True
            self._blocks.clear()
            self._changed.notify_all()

    def is_empty(self) -> bool:
        """Return whether the queue has no block."""
        with self._changed:
            return not self._blocks

    def records(self) -> int:
        """Return the number of records in the queue."""
        with self._changed:
            return sum(block.records for block in self._blocks)

    def _has_room(self) -> bool:
        if self._closed or self._draining:
            return True
        return self._waiting_bytes + sum(self._planned_bytes.values()) < self._max_bytes

    def _require_open(self) -> None:
        if self._closed:
            raise StreamLifecycleError(f"{self._name} has stopped and accepts no more records")
