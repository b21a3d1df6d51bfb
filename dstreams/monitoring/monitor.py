"""The monitor of a stream or query: it is told of every step, and answers with plain values.

It is told by who runs the batches, on their threads, and only takes note; whatever has to be
looked up or added up is done for who asks.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from checkpoint import (
    CheckpointError,
    CommitRecord,
    PartitionCommit,
    RecordId,
    without_secrets,
)
from dstreams.common.clock import Clock
from dstreams.common.redaction import masked
from dstreams.monitoring.disk import disk_space
from dstreams.monitoring.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    BatchSubmitted,
    Event,
    OutputOperationCompleted,
    OutputOperationStarted,
    PendingBatch,
    ReceiverError,
    ReceiverInfo,
    ReceiverStarted,
    ReceiverStopped,
    StreamingStarted,
)
from dstreams.monitoring.recent import RecentBatches
from dstreams.monitoring.state_access import StateAccess
from dstreams.monitoring.status import (
    CheckpointStatus,
    GraphNode,
    Kind,
    Phase,
    RunningBatch,
    StatePartition,
    StateStatus,
    StreamStatus,
)
from dstreams.monitoring.totals import Totals

if TYPE_CHECKING:
    from dstreams.engine.stream_checkpoint import StreamCheckpoint

logger = logging.getLogger(__name__)

_MEMORY = "stateMemory"
_LOOKED_AT = 20  # batches in which an operator has its turn, whatever it slides by


def no_rates() -> Mapping[str, float]:
    """Return the limits of a stream of which no input is limited."""
    return {}


@dataclass(frozen=True)
class Opened:
    """What is known of a stream or query once it can run.

    Args:
        id: identity over all restarts.
        run_id: identity of this run.
        graph: its steps, parents first.
        log: its records; None without a checkpoint directory.
        snapshot_uids: operators whose state is durable in snapshots alone.
        rate_limits: returns how many records a second each input may give, by its name.
        states: looks into the state while it runs; None where there is none.
        local_state: path where each host keeps copies of stored state; None where there is none.
    """

    id: str
    run_id: str
    graph: tuple[GraphNode, ...] = ()
    log: StreamCheckpoint | None = None
    snapshot_uids: Collection[str] = ()
    rate_limits: Callable[[], Mapping[str, float]] = no_rates
    states: StateAccess | None = None
    local_state: str | None = None


@dataclass
class _Facts:
    """What was noted so far; a copy of it is what answers are made of."""

    phase: Phase = "initialized"
    message: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    failure: str | None = None
    has_failed: bool = False
    totals: Totals = field(default_factory=Totals)
    waiting: Mapping[int, PendingBatch] = field(default_factory=dict)
    running: RunningBatch | None = None
    receivers: Mapping[int, ReceiverInfo] = field(default_factory=dict)


class Monitor:
    """What is known of one stream or query, from its definition to its end.

    Args:
        kind: which of the two.
        name: for people.
        batch_ms: milliseconds from one batch to the next; None where data decides.
        clock: the driver's clock.
        retained: how many batches that ran are kept; see :class:`RecentBatches`.
        changed: called after each change, on the thread that made it; must return at once.
    """

    def __init__(
        self,
        kind: Kind,
        name: str,
        batch_ms: int | None,
        clock: Clock,
        retained: int,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.kind = kind
        self.name = name
        self._batch_ms = batch_ms
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._opened = Opened("", "")
        self._facts = _Facts()
        self._recent = RecentBatches(retained)
        self._durable: _Durable | None = None
        self._at_end: tuple[tuple[StateStatus, ...], CheckpointStatus | None] = ((), None)

    # Told ------------------------------------------------------------------------------------

    def opening(self, id: str, run_id: str) -> None:
        """Take note that it is started, and cannot run yet: a restart may take long."""
        with self._lock:
            self._opened = Opened(id, run_id)
            self._facts.started_ms = self._clock.now_ms()
        self._changed()

    def opened(self, opened: Opened) -> None:
        """Take note that it can run."""
        with self._lock:
            self._opened = opened
            self._facts.phase, self._facts.started_ms = "active", self._clock.now_ms()
        self._changed()

    def ended(self) -> None:
        """Take note of the end; only the first one counts."""
        with self._lock:
            facts = self._facts
            if facts.ended_ms is None:
                facts.phase = "failed" if facts.has_failed else "stopped"
                facts.ended_ms = self._clock.now_ms()
                facts.running, facts.waiting = None, {}
                # It is remembered for long; what ran it, with its RDDs, is not.
                self._opened = replace(self._opened, rate_limits=no_rates, states=None)
                self._recent.ended()
        self._let_go_of_log()
        self._changed()

    def _let_go_of_log(self) -> None:
        """Keep what the records say as of now in the place of them."""
        with self._lock:
            facts, opened, recent = replace(self._facts), self._opened, self._recent.all()
        if opened.log is None:
            return
        try:
            at_end = self._what_is_durable(opened, facts, recent)
        except Exception:  # the storage may be gone, and the end is an end
            logger.warning("what is durable of %s is not shown", self.name, exc_info=True)
            at_end = (), None
        with self._lock:
            self._opened, self._durable = replace(self._opened, log=None), None
            self._at_end = at_end

    def failed(self, failure: str, *, goes_on: bool = False) -> None:
        """Take note of an error; the first one counts, before those after which it goes on."""
        with self._lock:
            facts = self._facts
            if facts.failure is None or (not goes_on and not facts.has_failed):
                facts.failure = masked(failure)
            facts.has_failed |= not goes_on
        self._changed()

    def says(self, message: str) -> None:
        """Take note of what it does now; nobody is woken, as an idle query says this often."""
        with self._lock:
            self._facts.message = message

    def restarts(self, message: str) -> None:
        """Take note of how far a restart is; empty once it has ended."""
        self.says(message)
        self._changed()

    def tell(self, event: Event) -> None:
        """Take note of a step; returns at once, and never raises."""
        try:
            with self._lock:
                self._note(event)
            self._changed()
        except Exception:  # of what sources and sinks tell; no batch fails because of it
            logger.warning("a step of %s is not shown: %r", self.name, event, exc_info=True)

    def _note(self, event: Event) -> None:
        facts = self._facts
        match event:
            case BatchSubmitted(batch):
                facts.waiting = {**facts.waiting, batch.batch_time_ms: batch}
            case BatchStarted(batch):
                facts.waiting = _without(facts.waiting, batch.batch_time_ms)
                facts.running = RunningBatch(batch)
            case OutputOperationStarted(output=output) if facts.running is not None:
                facts.running = replace(facts.running, output=output)
            case OutputOperationCompleted() if facts.running is not None:
                facts.running = replace(facts.running, output=None)
            case BatchCompleted(info):
                facts.running = None
                self._recent.append(info)
                facts.totals = facts.totals.with_batch(info)
            case ReceiverStarted(receiver) | ReceiverError(receiver) | ReceiverStopped(receiver):
                seen = replace(
                    receiver,
                    last_error_message=masked(receiver.last_error_message),
                    last_error=masked(receiver.last_error),
                )
                facts.receivers = {**facts.receivers, receiver.stream_id: seen}
            case StreamingStarted() | OutputOperationStarted() | OutputOperationCompleted():
                pass

    # Asked -----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Identity over all restarts; empty before the start."""
        return self._opened.id

    @property
    def run_id(self) -> str:
        """Identity of this run; empty before the start."""
        return self._opened.run_id

    @property
    def states(self) -> StateAccess | None:
        """What looks into the state; None where there is none, or nothing runs any more."""
        return self._opened.states

    def newest(self) -> BatchInfo | None:
        """Return the newest batch that ran, None before the first."""
        with self._lock:
            return self._recent.newest()

    def recent(self) -> tuple[BatchInfo, ...]:
        """Return the newest batches that ran, the newest last."""
        with self._lock:
            return self._recent.all()

    def status(self) -> StreamStatus:
        """Return how it does."""
        with self._lock:
            facts, opened, recent = replace(self._facts), self._opened, self._recent.all()
        states, checkpoint = self._what_is_durable(opened, facts, recent)
        return StreamStatus(
            kind=self.kind,
            id=opened.id,
            run_id=opened.run_id,
            name=self.name,
            phase=facts.phase,
            message=facts.message,
            started_ms=facts.started_ms,
            ended_ms=facts.ended_ms,
            now_ms=self._clock.now_ms(),
            batch_ms=self._batch_ms,
            totals=facts.totals,
            waiting=tuple(batch for _, batch in sorted(facts.waiting.items())),
            running=facts.running,
            recent=recent,
            graph=opened.graph,
            states=states,
            checkpoint=checkpoint,
            receivers=tuple(receiver for _, receiver in sorted(facts.receivers.items())),
            rate_limits=dict(opened.rate_limits()),
            local_state_disk=disk_space(opened.local_state),
            failure=facts.failure,
        )

    def _what_is_durable(
        self, opened: Opened, facts: _Facts, recent: Sequence[BatchInfo]
    ) -> tuple[tuple[StateStatus, ...], CheckpointStatus | None]:
        """Return what the records say; after the end, what they said then."""
        if opened.log is None:
            return self._at_end
        durable = _Durable.of(opened, opened.log, self._durable)
        with self._lock:
            if self._opened.log is not None:  # of two that ask at once either result serves
                self._durable = durable
        return tuple(durable.states(recent)), durable.checkpoint(facts, recent)


@dataclass(frozen=True)
class _Durable:
    """The records of a stream, as far as they say what a restart would find.

    *stored* is the state that they name. The records are read, and that is added up, once for each
    commit and not for each who asks: storage is far away, and there may be many partitions.
    """

    log: StreamCheckpoint
    last: CommitRecord | None
    named: Mapping[str, RecordId | None]
    snapshots: Mapping[str, CommitRecord | None]
    stored: tuple[StateStatus, ...]

    @classmethod
    def of(cls, opened: Opened, log: StreamCheckpoint, before: _Durable | None) -> _Durable:
        last = log.commits.last
        newest = {} if last is None else last.newest_snapshots
        named = {uid: newest.get(uid) for uid in opened.snapshot_uids}
        if before is not None and before.last is last and before.named == named:
            return before
        snapshots = {uid: _record(log, record_id) for uid, record_id in named.items()}
        operations = {node.uid: node.operation for node in opened.graph if node.uid}
        return cls(log, last, named, snapshots, tuple(_stored(operations, last, snapshots)))

    def checkpoint(self, facts: _Facts, recent: Sequence[BatchInfo]) -> CheckpointStatus:
        last, log, durable = self.last, self.log, self._durable_state()
        begun = [*facts.waiting.values()]
        if facts.running is not None:
            begun.append(facts.running.batch)
        return CheckpointStatus(
            url=without_secrets(log.files.url),
            epoch=log.epoch,
            holder=f"process {os.getpid()} on host {socket.gethostname()}",
            committed_batch_id=None if last is None else last.batch_id,
            committed_ms=None if last is None else last.batch_time_ms,
            durable_state_ms=None if durable is None else durable.batch_time_ms,
            recomputed=self._recomputed(durable),
            rerun=tuple(sorted(batch.batch_id for batch in begun)),
            snapshot_bytes=sum(state.written_bytes for state in self.stored),
            disk=disk_space(log.files.url),
            committed_at_ms=_committed_at_ms(last, recent),
            durable_state_at_ms=_committed_at_ms(durable, recent),
        )

    def _durable_state(self) -> CommitRecord | None:
        """Return the newest commit with which all state is durable; None for none."""
        known = [self.last, *self.snapshots.values()]
        found = [record for record in known if record is not None]
        if len(found) < len(known):
            return None
        return min(found, key=lambda record: record.batch_time_ms)

    def _recomputed(self, durable: CommitRecord | None) -> tuple[int, int] | None:
        """Return the first and last batch whose state a restart computes again; None for none."""
        if self.last is None:
            return None
        oldest = _record(self.log, next(iter(self.log.commits.ids()), None))
        first = durable.batch_id + 1 if durable is not None else (oldest or self.last).batch_id
        return (first, self.last.batch_id) if first <= self.last.batch_id else None

    def states(self, recent: Sequence[BatchInfo]) -> Iterator[StateStatus]:
        """Yield what is durable of each operator, in the newest batch that wrote it."""
        memory = {
            info.uid: info.metrics[_MEMORY]
            for batch in recent[-_LOOKED_AT:]
            for info in batch.states
            if _MEMORY in info.metrics
        }
        for state in self.stored:
            known = state.has_changelogs and state.uid in memory
            yield replace(state, memory_bytes=memory[state.uid]) if known else state


def _stored(
    operations: Mapping[str, str],
    last: CommitRecord | None,
    snapshots: Mapping[str, CommitRecord | None],
) -> Iterator[StateStatus]:
    for uid, record in snapshots.items():
        if record is not None and uid in record.snapshots:
            files = record.snapshots[uid].files
            parts = ((at, ref.records, ref.size_bytes) for at, ref in enumerate(files))
            yield _state(uid, operations, record, parts, has_changelogs=False)
    by_uid: dict[str, list[PartitionCommit]] = {}
    if last is None:
        return
    for store in last.stores:
        by_uid.setdefault(store.operator_uid, []).extend(store.partitions)
    for uid, commits in by_uid.items():
        parts = ((each.partition, each.count, each.size_bytes) for each in commits)
        yield _state(uid, operations, last, parts, has_changelogs=True)


def _state(
    uid: str,
    operations: Mapping[str, str],
    record: CommitRecord,
    parts: Iterable[tuple[int, int, int]],
    *,
    has_changelogs: bool,
) -> StateStatus:
    keys: Counter[int] = Counter()
    written_bytes: Counter[int] = Counter()
    for partition, count, size_bytes in parts:
        keys[partition] += count
        written_bytes[partition] += size_bytes
    return StateStatus(
        uid,
        operations.get(uid, uid),
        record.batch_time_ms,
        keys.total(),
        None,
        written_bytes.total(),
        tuple(StatePartition(at, keys[at], written_bytes[at]) for at in sorted(keys)),
        has_changelogs,
    )


def _committed_at_ms(record: CommitRecord | None, recent: Sequence[BatchInfo]) -> int | None:
    """Return when a batch was committed; its batch time if no run batch of this driver has it."""
    if record is None:
        return None
    times = (each.completed_ms for each in recent if each.batch_time_ms == record.batch_time_ms)
    return next(times, record.batch_time_ms)


def _record(log: StreamCheckpoint, record_id: RecordId | None) -> CommitRecord | None:
    """Return a commit record that is needed as long as it is the newest; None where it is gone."""
    try:
        return None if record_id is None else log.commits.read_record(record_id)
    except (CheckpointError, FileNotFoundError):  # a newer one took its place in this moment
        return None


def _without(batches: Mapping[int, PendingBatch], time_ms: int) -> Mapping[int, PendingBatch]:
    return {at: batch for at, batch in batches.items() if at != time_ms}
