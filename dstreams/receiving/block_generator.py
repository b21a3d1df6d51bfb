"""Single records become blocks: collected for an interval, queued, stored one block at a time."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from dstreams.clock import Clock
from dstreams.errors import StreamLifecycleError
from dstreams.receiving.blocks import (
    TARGET_BYTES,
    BlocksRefusedError,
    BlockStore,
    encode_what_can_be,
)

logger = logging.getLogger(__name__)

MAX_RECORDS = 10_000
"""Records of a block at most, also when the interval is not over."""


class BlockGenerator:
    """Collects records in a buffer; every interval, or when it is large, the buffer is a block.

    Two threads: one that knows the interval, one that stores. Blocks wait for the second in a
    bounded queue; when it is full, and the buffer too, :meth:`add` waits. So the memory is bounded,
    and the sender waits when nobody takes what it sends.

    Args:
        name: of the receiver, for the names of the threads and for messages.
        store: takes the blocks. One that fails is tried again after the pause.
        clock: tells the interval.
        interval_ms: milliseconds that a block collects.
        max_blocks: blocks that wait to be stored.
        retry_ms: pause after a failed try to store.
        report: told of records that cannot be stored and of a store that fails.

    Semantics: BlockGenerator of Spark Streaming (4.3).
    """

    def __init__(
        self,
        name: str,
        store: BlockStore,
        clock: Clock,
        *,
        interval_ms: int,
        max_blocks: int,
        retry_ms: int,
        report: Callable[[str, Exception], None],
    ) -> None:
        self._name = name
        self._store = store
        self._clock = clock
        self._interval_ms = interval_ms
        self._max_blocks = max_blocks
        self._retry_ms = retry_ms
        self._report = report
        self._changed = threading.Condition()
        self._buffer: list[Any] = []
        self._buffer_bytes = 0
        self._waiting: deque[list[Any]] = deque()
        self._accepting = True
        self._ending = False
        self._discarding = threading.Event()
        self._stop_timer = threading.Event()
        self._timer = threading.Thread(target=self._tick_on, name=f"{name} blocks", daemon=True)
        self._pusher = threading.Thread(target=self._push_on, name=f"{name} store", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._timer.start()
        self._pusher.start()

    def add(self, record: Any) -> None:
        """Add a record to the buffer.

        Raises:
            StreamLifecycleError: the generator was stopped.
        """
        with self._changed:
            while self._is_full() and self._accepting and not self._discarding.is_set():
                self._changed.wait()
            if self._discarding.is_set():
                return
            if not self._accepting:
                raise StreamLifecycleError(
                    f"{self._name} has stopped and takes no more records; end the threads of a "
                    "receiver in onStop, and wait for them there"
                )
            self._buffer.append(record)
            self._buffer_bytes += sys.getsizeof(record)
            if self._is_large():
                self._cut()

    def tick(self) -> None:
        """End the interval: what was collected is a block, if there is anything and room for it."""
        with self._changed:
            self._cut()

    def stop(self) -> None:
        """Take no more records, make the last block, and return when all blocks are stored."""
        with self._changed:
            self._accepting = False
            self._changed.notify_all()
        self._stop_timer.set()
        if self._timer.is_alive():
            self._timer.join()
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._pusher.is_alive():
            self._pusher.join()

    def discard(self) -> None:
        """Drop what was not stored and all that comes; nobody waits here any more."""
        self._discarding.set()
        self._stop_timer.set()
        with self._changed:
            self._buffer, self._buffer_bytes = [], 0
            self._waiting.clear()
            self._changed.notify_all()

    def _is_large(self) -> bool:
        return len(self._buffer) >= MAX_RECORDS or self._buffer_bytes >= TARGET_BYTES

    def _is_full(self) -> bool:
        return self._is_large() and len(self._waiting) >= self._max_blocks

    def _cut(self) -> None:
        if self._buffer and len(self._waiting) < self._max_blocks:
            self._waiting.append(self._buffer)
            self._buffer, self._buffer_bytes = [], 0
            self._changed.notify_all()

    def _tick_on(self) -> None:
        interval_ms = self._interval_ms
        next_ms = (self._clock.now_ms() // interval_ms + 1) * interval_ms
        while self._clock.wait_until(next_ms, self._stop_timer):
            self.tick()
            next_ms = (self._clock.now_ms() // interval_ms + 1) * interval_ms

    def _push_on(self) -> None:
        try:
            while (records := self._next()) is not None:
                for block in encode_what_can_be(records, self._refused):
                    self._push(block)
        except BlocksRefusedError as error:
            if not self._discarding.is_set():
                logger.warning("%s: received records are lost: %s", self._name, error)
            self.discard()

    def _next(self) -> list[Any] | None:
        with self._changed:
            while not self._waiting and not self._ending and not self._discarding.is_set():
                self._changed.wait()
            if self._waiting:
                records = self._waiting.popleft()
            else:
                records, self._buffer, self._buffer_bytes = self._buffer, [], 0
            if self._is_large():
                self._cut()
            self._changed.notify_all()
        return records or None

    def _push(self, block: Any) -> None:
        """Store a block; one that is refused for now stays the first in the queue."""
        failed = False
        while not self._discarding.is_set():
            try:
                self._store.put(block)
                return
            except BlocksRefusedError:
                raise
            except Exception as error:
                if not failed:
                    failed = True
                    self._report(
                        f"{block.records} received records could not be stored; trying again "
                        f"every {self._retry_ms} ms",
                        error,
                    )
            self._discarding.wait(self._retry_ms / 1000)

    def _refused(self, error: Exception) -> None:
        self._report("a received record is left out", error)
