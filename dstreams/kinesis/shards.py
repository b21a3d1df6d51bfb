"""Read the shards of a Kinesis stream, each on a thread of the driver.

The position of a shard is the sequence number of the last record read, :data:`TRIM_HORIZON`, the
time from which to read, or :data:`CLOSED` at the end of the shard. The children of a split or merge
are read once their parents are read to the end, so the records of a partition key keep their order.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from time import monotonic

from dstreams.common.clock import Clock
from dstreams.errors import SourceError
from dstreams.kinesis.kinesis_client import (
    CLOSED,
    LATEST,
    TRIM_HORIZON,
    ExpiredIteratorError,
    Fetched,
    HashRange,
    KinesisBusyError,
    KinesisClient,
    Shard,
    producer_records,
    time_position,
)
from dstreams.sources.rate_limit import RepeatedWarning

logger = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0
_READS_AT_ONCE = 8  # each may exceed the buffer by 10 MiB

# Kinesis allows five reads of a shard per second, shared by all readers.
_IDLE_MS = 1000
_BEHIND_MS = 250
_BACKOFF_MS, _LONGEST_BACKOFF_MS = 1000, 30_000


@dataclass(frozen=True)
class Arrival:
    """A record of Kinesis, or a position without a record.

    Args:
        shard: name of the shard.
        position: position after it; None for a shard that Kinesis has deleted.
        records: the producers' records in it; None without a record.
    """

    shard: str
    position: str | None
    records: tuple[bytes, ...] | None = None

    @property
    def count(self) -> int:
        """Number of producers' records."""
        return len(self.records or ())

    @property
    def size(self) -> int:
        """Size of these records in bytes."""
        return sum(map(len, self.records or ()))


@dataclass
class Cursor:
    """The progress of the thread that reads a shard."""

    shard: Shard
    position: str
    iterator: str | None = None
    failures: int = 0


class ShardReceiver:
    """Reads shards ahead of the batches, into a bounded buffer in order of arrival.

    ``_changed`` guards what the threads share; they wait on it for room.

    Args:
        name: name of the input, for messages.
        client: client of the stream.
        clock: the driver's clock.
        max_bytes: size of the buffer; responses that are under way may exceed it.
        report_error: called with the error that stops a shard's thread.
    """

    def __init__(
        self,
        name: str,
        client: KinesisClient,
        clock: Clock,
        max_bytes: int,
        report_error: Callable[[Exception], None],
    ) -> None:
        self._name = name
        self._client = client
        self._clock = clock
        self._max_bytes = max_bytes
        self._report_error = report_error
        self._changed = threading.Condition()
        self._reads = threading.BoundedSemaphore(_READS_AT_ONCE)
        self._stopping = threading.Event()
        self._arrived: deque[Arrival] = deque()
        self._waiting_bytes = 0
        self._taken_bytes: dict[int, int] = {}  # by the time of the batch
        self._shards: Mapping[str, Shard] = {}
        self._begun: set[str] = set()
        self._read: set[str] = set()  # to their ends
        self._threads: list[threading.Thread] = []  # noqa: TID251
        self._in_outage = False
        self._throttled = RepeatedWarning(
            logger,
            clock,
            "%s: Kinesis throttles this and other readers of the stream; retried reads: %d",
            name,
        )

    def start(self, positions: Mapping[str, str] | None, initial: str) -> None:
        """Start to read.

        Args:
            positions: positions of an earlier run; None for a new stream.
            initial: position of a new stream: TRIM_HORIZON, or LATEST for new records.

        Raises:
            SourceError: the stream does not exist, or a shard with unread records was deleted.
        """
        self._shards = self._client.shards()
        cursors: list[Cursor] = []
        for name, position in (positions or {}).items():
            cursors += self._resumed(name, position)
        if positions is None and initial == LATEST:
            for shard in self._shards.values():
                cursors += self._at_tip(shard)
        for cursor in cursors:
            self._start_shard(cursor)
        self._start_children()
        for name in self._read - self._parents():
            self._run(f"children of {name}", partial(self._find_children, name))

    def hashes(self, shard: str) -> HashRange | None:
        """Return the hash keys of a shard, None if it was deleted."""
        listed = self._shards.get(shard)
        return None if listed is None else listed.hashes

    def take(self, time_ms: int, most: int | None) -> list[Arrival]:
        """Take arrivals for the batch of a time, at most *most* producers' records if given.

        A record of Kinesis is not divided. Bytes count until :meth:`make_room` is called.
        """
        with self._changed:
            taken = list(takewhile(_Credit(most), self._arrived))
            for _ in taken:
                self._arrived.popleft()
            size = sum(arrival.size for arrival in taken)
            self._waiting_bytes -= size
            self._taken_bytes[time_ms] = size
        return taken

    def put_back(self, time_ms: int, arrivals: Iterable[Arrival]) -> None:
        """Return the arrivals of a batch that was not begun."""
        with self._changed:
            returned = list(arrivals)
            self._arrived.extendleft(reversed(returned))
            self._waiting_bytes += sum(arrival.size for arrival in returned)
            self._taken_bytes.pop(time_ms, None)

    def make_room(self, upto_ms: int) -> None:
        """Stop counting batches up to a time: their bytes are in Spark or no longer needed."""
        with self._changed:
            for time_ms in [time_ms for time_ms in self._taken_bytes if time_ms <= upto_ms]:
                del self._taken_bytes[time_ms]
            self._changed.notify_all()

    def waiting_records(self) -> int:
        """Return the number of records that are in no batch."""
        with self._changed:
            return sum(arrival.count for arrival in self._arrived)

    def stop(self) -> None:
        """Stop reading; arrivals can still be taken."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
            threads = tuple(self._threads)
        until = monotonic() + _JOIN_SECONDS
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - monotonic()))
        self._throttled.flush()

    def close(self) -> None:
        """Stop reading and drop arrivals."""
        self.stop()
        with self._changed:
            self._arrived.clear()

    def _resumed(self, name: str, position: str) -> list[Cursor]:
        """Return the cursor of a shard that an earlier run has read; none at its end."""
        shard = self._shards.get(name)
        if position == CLOSED:
            if shard is None:
                self._arrived.append(Arrival(name, None))
            else:
                self._read.add(name)
            return []
        if shard is None:
            raise SourceError(
                f"{self._name} cannot resume: Kinesis has deleted {name}, which was read up to "
                f"{position}; later records are lost: raise the retention period of the stream, "
                "and start with a new checkpoint"
            )
        return [Cursor(shard, position)]

    def _at_tip(self, shard: Shard) -> list[Cursor]:
        """Return the cursor of new records; a restart before the first one starts at this time."""
        if not shard.is_open:
            self._read.add(shard.name)
            self._arrived.append(Arrival(shard.name, CLOSED))
            return []
        iterator, now_ms = self._client.latest(shard.name)
        self._arrived.append(Arrival(shard.name, time_position(now_ms)))
        return [Cursor(shard, time_position(now_ms), iterator)]

    def _start_shard(self, cursor: Cursor) -> None:
        self._begun.add(cursor.shard.name)
        self._run(cursor.shard.name, partial(self._read_shard, cursor))

    def _run(self, task: str, target: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                target()
            except Exception as error:
                failure = SourceError(f"{self._name} stopped reading: {error}; restart the context")
                failure.__cause__ = error
                self._report_error(failure)

        thread = threading.Thread(target=guarded, name=f"{self._name} {task}", daemon=True)  # noqa: TID251
        self._threads.append(thread)
        thread.start()

    def _parents(self) -> set[str]:
        return {parent for shard in self._shards.values() for parent in shard.parents}

    def _start_children(self) -> None:
        """Start to read new shards whose parents are read to the end."""
        for shard in self._shards.values():
            parents = [parent for parent in shard.parents if parent in self._shards]
            is_new = shard.name not in self._begun and shard.name not in self._read
            if is_new and self._read.issuperset(parents):
                self._start_shard(Cursor(shard, TRIM_HORIZON))

    def _find_children(self, name: str) -> None:
        """List the shards until the children of a closed shard appear."""
        waiting = Cursor(self._shards[name], CLOSED)
        while not self._stopping.is_set():
            try:
                shards = self._client.shards()
            except KinesisBusyError as error:
                self._wait(self._backoff_ms(waiting, error))
                continue
            with self._changed:
                self._shards = shards
                if name not in shards or name in self._parents():
                    if not self._stopping.is_set():
                        self._start_children()
                    return
            self._wait(_IDLE_MS)

    def _read_shard(self, cursor: Cursor) -> None:
        """Read a shard to its end, and then its children."""
        while self._wait_for_room():
            pause_ms = self._read_once(cursor)
            if pause_ms is None:
                with self._changed:
                    self._read.add(cursor.shard.name)
                self._find_children(cursor.shard.name)
                return
            self._wait(pause_ms)

    def _wait_for_room(self) -> bool:
        """Wait for room in the buffer; return False to stop."""

        def may_read() -> bool:
            # Planned batches count too, so that a slow stream leaves records in Kinesis.
            waiting = self._waiting_bytes + sum(self._taken_bytes.values())
            return waiting < self._max_bytes or self._stopping.is_set()

        with self._changed:
            self._changed.wait_for(may_read)
        return not self._stopping.is_set()

    def _wait(self, pause_ms: int) -> None:
        if pause_ms:
            self._clock.wait_until(self._clock.now_ms() + pause_ms, self._stopping)

    def _read_once(self, cursor: Cursor) -> int | None:
        """Read once; return the pause before the next read, None at the end of the shard."""
        with self._reads:
            try:
                fetched = self._fetch(cursor)
            except ExpiredIteratorError:
                cursor.iterator = None
                return 0
            except KinesisBusyError as error:
                return self._backoff_ms(cursor, error)
            self._note_response(cursor)
            self._add(cursor.shard, fetched)
        if fetched.records:
            cursor.position = fetched.records[-1][0]
        cursor.iterator = fetched.next_iterator
        if fetched.next_iterator is None:
            return None
        return _BEHIND_MS if fetched.behind_ms else _IDLE_MS

    def _fetch(self, cursor: Cursor) -> Fetched:
        if cursor.iterator is None:
            cursor.iterator = self._client.iterator(cursor.shard.name, cursor.position)
        return self._client.fetch(cursor.iterator)

    def _add(self, shard: Shard, fetched: Fetched) -> None:
        arrivals = [
            Arrival(shard.name, number, tuple(producer_records(data, shard.hashes)))
            for number, data in fetched.records
        ]
        if fetched.next_iterator is None:
            arrivals.append(Arrival(shard.name, CLOSED))
        with self._changed:
            self._arrived.extend(arrivals)
            self._waiting_bytes += sum(arrival.size for arrival in arrivals)

    def _backoff_ms(self, cursor: Cursor, failure: KinesisBusyError) -> int:
        """Log a failed request, and return the pause before the next one."""
        backoff_ms = min(_BACKOFF_MS << cursor.failures, _LONGEST_BACKOFF_MS)
        cursor.failures += 1
        with self._changed:
            if failure.throttled:
                self._throttled.add(1)
            elif not self._in_outage:
                self._in_outage = True
                logger.warning(
                    "%s: %s; retrying at least every %d ms",
                    self._name,
                    failure,
                    _LONGEST_BACKOFF_MS,
                )
        return backoff_ms

    def _note_response(self, cursor: Cursor) -> None:
        if not cursor.failures:
            return
        cursor.failures = 0
        with self._changed:
            if self._in_outage:
                self._in_outage = False
                logger.warning("%s: Kinesis is available again", self._name)


class _Credit:
    """Accepts arrivals up to the rate limit of a batch."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._count = 0

    def __call__(self, arrival: Arrival) -> bool:
        count = self._count + arrival.count
        # A record of Kinesis above the limit is accepted if it is the first.
        if self._most is not None and count > self._most and (self._count or not self._most):
            return False
        self._count = count
        return True
