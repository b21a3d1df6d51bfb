"""What a receiver stores becomes blocks: whole lists at once, single records by the interval."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from dstreams.common.clock import Clock
from dstreams.common.settings import Settings
from dstreams.errors import StreamLifecycleError
from dstreams.sources.pickled_block import TARGET_BYTES, ReceivedBlock, encode_records
from dstreams.sources.rate_limiter import RateLimiter

MAX_RECORDS = 10_000
"""Single records of a block at most, also when the interval is not over."""


class BlockGenerator:
    """Takes the records of a receiver, at its rate, and stores them in blocks.

    Single records wait in a buffer. When the interval is over, or the buffer is full, a thread
    makes a block of it and stores that. The buffer fills again meanwhile, and when it is full
    :meth:`add` waits: so the memory is bounded, and the sender waits when nobody takes what it
    sends.

    Args:
        name: of the receiver, for the name of the thread and for messages.
        store: returns when a block counts as received; waits while there is no room.
        limiter: lets so many records through in a second.
        clock: tells the interval.
        settings: the interval, and the pause before a block is stored again.
        report: told of single records that cannot be stored, and of a store that fails.

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
        """Store records in blocks of their own; return when they count as received.

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
        """Take no more records; return when all that were taken are stored."""
        with self._changed:
            self._accepting = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._storing == 0)
        self._due.set()
        if self._thread.is_alive():
            self._thread.join()

    def discard(self) -> None:
        """Drop the single records that are not stored and all that come; nobody waits any more."""
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
                f"{self._name} has stopped and takes no more records; a receiver's threads end "
                "when isStopped() says so, and onStop waits for them"
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
            for block in encode_records(records, self._refuse):
                self._store_for_certain(block)

    def _store_for_certain(self, block: ReceivedBlock) -> None:
        """Store a block of single records, however often it has to be tried."""
        failed = False
        while not self._discarding.is_set():
            try:
                self._store(block)
                return
            except Exception as error:
                if not (failed or self._discarding.is_set()):
                    failed = True
                    self._report(
                        f"{block.records} received records could not be stored; trying again "
                        f"every {self._retry_ms} ms",
                        error,
                    )
            self._discarding.wait(self._retry_ms / 1000)

    def _refuse(self, error: Exception) -> None:
        self._report("a received record is left out", error)
