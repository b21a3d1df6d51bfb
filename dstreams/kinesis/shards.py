"""Reading the shards of a Kinesis stream, each on a thread of the driver.

A position says how far a shard has been read: a sequence number, :data:`TRIM_HORIZON`, a time of
which nothing was read yet, or :data:`CLOSED` for a shard that is read to its end. A shard that came
of a split or a merge is read from its beginning, once its parents are read to their ends; so the
records of one partition key keep their order.
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
from dstreams.kinesis.aggregation import HashRange, producer_records
from dstreams.kinesis.client import (
    CLOSED,
    LATEST,
    TRIM_HORIZON,
    ExpiredIteratorError,
    Fetched,
    KinesisBusyError,
    KinesisClient,
    Shard,
    time_position,
)
from dstreams.sources.repeated_warning import RepeatedWarning

logger = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0
_READS_AT_ONCE = 8  # each may be 10 MiB above what is to wait at most

# Kinesis allows five reads of a shard a second, for all who read it.
_IDLE_MS = 1000
_BEHIND_MS = 250
_BACKOFF_MS, _LONGEST_BACKOFF_MS = 1000, 30_000


@dataclass(frozen=True)
class Arrival:
    """A step in reading a shard: a record of Kinesis, or a position without one.

    Args:
        shard: name of the shard.
        position: how far it is read with this; None for a shard that Kinesis has forgotten.
        records: what producers have put into the record; None for no record.
    """

    shard: str
    position: str | None
    records: tuple[bytes, ...] | None = None

    @property
    def count(self) -> int:
        """How many records of producers this is."""
        return len(self.records or ())

    @property
    def size(self) -> int:
        """Bytes of these."""
        return sum(map(len, self.records or ()))


@dataclass
class Cursor:
    """Where the reading of a shard stands; its thread alone has it."""

    shard: Shard
    position: str
    iterator: str | None = None
    failures: int = 0


class ShardReceiver:
    """Reads shards ahead of the batches, as far as there is room in memory.

    What was read waits in the order in which it came. What the threads share belongs to
    ``_changed``; they wait on it for room.

    Args:
        name: of the input, for messages.
        client: reads the stream.
        clock: the driver's clock.
        max_bytes: bytes that wait at most, but for what is being read when they are reached.
        report_error: told of what ends the reading.
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
            "%s: more is read than the stream may give, by this and other programs; reads that "
            "wait and are made again: %d",
            name,
        )

    def start(self, positions: Mapping[str, str] | None, initial: str) -> None:
        """Begin to read, after what was read before.

        Args:
            positions: how far each shard was read; None for a stream that begins.
            initial: where a stream begins: TRIM_HORIZON, or LATEST for what comes from now on.

        Raises:
            SourceError: there is no such stream, or a shard with unread records is gone.
        """
        self._shards = self._client.shards()
        cursors: list[Cursor] = []
        for name, position in (positions or {}).items():
            cursors += self._going_on(name, position)
        if positions is None and initial == LATEST:
            for shard in self._shards.values():
                cursors += self._at_tip(shard)
        for cursor in cursors:
            self._begin(cursor)
        self._begin_children()
        for name in self._read - self._parents():
            self._run(f"children of {name}", partial(self._find_children, name))

    def hashes(self, shard: str) -> HashRange | None:
        """Return the hash keys of a shard, None of one that is gone."""
        listed = self._shards.get(shard)
        return None if listed is None else listed.hashes

    def take(self, time_ms: int, most: int | None) -> list[Arrival]:
        """Take what has arrived, for the batch of a time.

        Args:
            time_ms: of the batch; the bytes count until :meth:`make_room` is told it.
            most: how many records of producers at most; None for all. One record of Kinesis is
                taken whole.
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
        """Let the next batch have what was taken for one that did not begin."""
        with self._changed:
            given_back = list(arrivals)
            self._arrived.extendleft(reversed(given_back))
            self._waiting_bytes += sum(arrival.size for arrival in given_back)
            self._taken_bytes.pop(time_ms, None)

    def make_room(self, upto_ms: int) -> None:
        """Stop counting what batches up to a time took: it is in Spark, or not needed."""
        with self._changed:
            for time_ms in [time_ms for time_ms in self._taken_bytes if time_ms <= upto_ms]:
                del self._taken_bytes[time_ms]
            self._changed.notify_all()

    def waiting_records(self) -> int:
        """Records that were read and not taken."""
        with self._changed:
            return sum(arrival.count for arrival in self._arrived)

    def stop(self) -> None:
        """Read nothing more; what was read can be taken."""
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
        """Read nothing more, and drop what was read."""
        self.stop()
        with self._changed:
            self._arrived.clear()

    def _going_on(self, name: str, position: str) -> list[Cursor]:
        """Read a shard on, from where an earlier run left it."""
        shard = self._shards.get(name)
        if position == CLOSED:
            if shard is None:
                self._arrived.append(Arrival(name, None))
            else:
                self._read.add(name)
            return []
        if shard is None:
            raise SourceError(
                f"{self._name} cannot go on: Kinesis has forgotten {name}, which was read up to "
                f"{position}; what came after that is lost: raise the retention period of the "
                "stream, and begin a new checkpoint"
            )
        return [Cursor(shard, position)]

    def _at_tip(self, shard: Shard) -> list[Cursor]:
        """Read what comes from now on; a restart that has read none of it begins at this time."""
        if not shard.is_open:
            self._read.add(shard.name)
            self._arrived.append(Arrival(shard.name, CLOSED))
            return []
        iterator, now_ms = self._client.latest(shard.name)
        self._arrived.append(Arrival(shard.name, time_position(now_ms)))
        return [Cursor(shard, time_position(now_ms), iterator)]

    def _begin(self, cursor: Cursor) -> None:
        self._begun.add(cursor.shard.name)
        self._run(cursor.shard.name, partial(self._read_shard, cursor))

    def _run(self, what: str, target: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                target()
            except Exception as error:
                failure = SourceError(f"{self._name} stopped reading for good: {error}")
                failure.__cause__ = error
                self._report_error(failure)

        thread = threading.Thread(target=guarded, name=f"{self._name} {what}", daemon=True)  # noqa: TID251
        self._threads.append(thread)
        thread.start()

    def _parents(self) -> set[str]:
        return {parent for shard in self._shards.values() for parent in shard.parents}

    def _begin_children(self) -> None:
        """Begin with shards that nobody reads, and whose parents are read to their ends."""
        for shard in self._shards.values():
            parents = [parent for parent in shard.parents if parent in self._shards]
            is_new = shard.name not in self._begun and shard.name not in self._read
            if is_new and self._read.issuperset(parents):
                self._begin(Cursor(shard, TRIM_HORIZON))

    def _find_children(self, name: str) -> None:
        """List the shards until those that a shard was split or merged into are there."""
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
                        self._begin_children()
                    return
            self._wait(_IDLE_MS)

    def _read_shard(self, cursor: Cursor) -> None:
        """Read a shard to its end, and then see to its children."""
        while self._wait_for_room():
            pause_ms = self._read_on(cursor)
            if pause_ms is None:
                with self._changed:
                    self._read.add(cursor.shard.name)
                self._find_children(cursor.shard.name)
                return
            self._wait(pause_ms)

    def _wait_for_room(self) -> bool:
        """Wait until more may be read; False when the reading has to end."""

        def may_go_on() -> bool:
            # Batches that wait for their turn count too: a slow stream leaves records in Kinesis.
            waiting = self._waiting_bytes + sum(self._taken_bytes.values())
            return waiting < self._max_bytes or self._stopping.is_set()

        with self._changed:
            self._changed.wait_for(may_go_on)
        return not self._stopping.is_set()

    def _wait(self, pause_ms: int) -> None:
        if pause_ms:
            self._clock.wait_until(self._clock.now_ms() + pause_ms, self._stopping)

    def _read_on(self, cursor: Cursor) -> int | None:
        """Read once, and return how long to wait before the next time; None at the end."""
        with self._reads:
            try:
                fetched = self._fetch(cursor)
            except ExpiredIteratorError:
                cursor.iterator = None
                return 0
            except KinesisBusyError as error:
                return self._backoff_ms(cursor, error)
            self._note_answer(cursor)
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

    def _backoff_ms(self, cursor: Cursor, trouble: KinesisBusyError) -> int:
        """Say that Kinesis does not answer, and return how long to wait."""
        backoff_ms = min(_BACKOFF_MS << cursor.failures, _LONGEST_BACKOFF_MS)
        cursor.failures += 1
        with self._changed:
            if trouble.throttled:
                self._throttled.add(1)
            elif not self._in_outage:
                self._in_outage = True
                logger.warning(
                    "%s: %s; trying again, at most %d ms apart",
                    self._name,
                    trouble,
                    _LONGEST_BACKOFF_MS,
                )
        return backoff_ms

    def _note_answer(self, cursor: Cursor) -> None:
        if not cursor.failures:
            return
        cursor.failures = 0
        with self._changed:
            if self._in_outage:
                self._in_outage = False
                logger.warning("%s: Kinesis answers again", self._name)


class _Credit:
    """Lets arrivals pass until they are as many records as a batch may have."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._count = 0

    def __call__(self, arrival: Arrival) -> bool:
        count = self._count + arrival.count
        # A record of Kinesis that is larger than a batch may be comes alone.
        if self._most is not None and count > self._most and (self._count or not self._most):
            return False
        self._count = count
        return True
