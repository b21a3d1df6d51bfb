"""Records the events of a stream or query, and returns its status as plain values.

Events arrive on the threads that run the batches and are only stored; :meth:`Monitor.status`
reads and adds up.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from checkpoint import (
    CheckpointError,
    CommitRecord,
    PartitionCommit,
    RecordId,
    without_secrets,
)
from dstreams.common.clock import Clock
from dstreams.common.redaction import masked
from dstreams.monitoring.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    BatchSubmitted,
    Event,
    InputInfo,
    OutputOperationCompleted,
    OutputOperationStarted,
    PendingBatch,
    ReceiverError,
    ReceiverInfo,
    ReceiverStarted,
    ReceiverStopped,
    StreamingStarted,
)
from dstreams.monitoring.status import (
    CheckpointStatus,
    GraphNode,
    Kind,
    PartitionSize,
    Phase,
    RunningBatch,
    StateStatus,
    StreamStatus,
    Totals,
    disk_space,
)

if TYPE_CHECKING:
    from dstreams.engine.stream_checkpoint import StreamCheckpoint
    from dstreams.monitoring.state_queries import StateQueries

logger = logging.getLogger(__name__)

MOST_FACTS = 250_000
"""Bound on the offsets, lags, ranges and hundreds of characters that all batches have together.

A batch of a topic of 1,000 partitions has 5,000 facts in half a megabyte, so that about 25 MB are
kept of each stream at most. With 50 partitions a thousand batches keep all of theirs.
"""

_ENDED_SHARE = 20
_CHARACTERS = 100
_MOST_TEXT = 500

_MEMORY = "stateMemory"
_MEMORY_BATCHES = 20  # enough for every operator to run once


def no_rate_limits() -> Mapping[str, float]:
    """Return no limits: the default for streams without rate-limited inputs."""
    return {}


@dataclass(frozen=True)
class RunInfo:
    """The facts of a stream or query that no longer change once it can run."""

    id: str  # identity across restarts
    run_id: str  # identity of this run
    graph: tuple[GraphNode, ...] = ()  # its steps, parents first
    log: StreamCheckpoint | None = None  # its records; None without a checkpoint directory
    snapshot_uids: Collection[str] = ()  # operators whose state is durable only in snapshots
    rate_limits: Callable[[], Mapping[str, float]] = no_rate_limits
    """Returns the limit of each named input, in records per second."""
    states: StateQueries | None = None  # queries the state while it runs; None without state
    local_state: str | None = None
    """Directory for copies of stored state on each host; None without any."""


@dataclass
class MonitorState:
    """The recorded facts; a status is made from a copy of them."""

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
    """Records one stream or query from its definition to its end.

    Args:
        kind: stream or query.
        name: a readable name.
        batch_ms: milliseconds from one batch to the next; None if data triggers batches.
        clock: the driver's clock.
        retained: number of finished batches to keep; see :class:`RecentBatches`.
        changed: called after each change, on the thread that made it; must not block.
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
        self._run = RunInfo("", "")
        self._facts = MonitorState()
        self._recent = RecentBatches(retained)
        self._durable: _Durable | None = None
        self._at_end: tuple[tuple[StateStatus, ...], CheckpointStatus | None] = ((), None)

    def starting(self, id: str, run_id: str) -> None:
        """Record the start, before a restart that may take long."""
        with self._lock:
            self._run = RunInfo(id, run_id)
            self._facts.started_ms = self._clock.now_ms()
        self._changed()

    def started(self, run: RunInfo) -> None:
        """Record that it can run."""
        with self._lock:
            self._run = run
            self._facts.phase, self._facts.started_ms = "active", self._clock.now_ms()
        self._changed()

    def ended(self) -> None:
        """Record the end; only the first call counts."""
        with self._lock:
            facts = self._facts
            if facts.ended_ms is None:
                facts.phase = "failed" if facts.has_failed else "stopped"
                facts.ended_ms = self._clock.now_ms()
                facts.running, facts.waiting = None, {}
                # An ended monitor is kept for long and must not keep the engine with its RDDs.
                self._run = replace(self._run, rate_limits=no_rate_limits, states=None)
                self._recent.ended()
        self._release_log()
        self._changed()

    def _release_log(self) -> None:
        """Replace the log by its final status, so that it can be freed."""
        with self._lock:
            facts, run, recent = replace(self._facts), self._run, self._recent.all()
        if run.log is None:
            return
        try:
            at_end = self._durable_status(run, facts, recent)
        except Exception:  # the storage may be gone
            logger.warning("skipped the checkpoint status of %s", self.name, exc_info=True)
            at_end = (), None
        with self._lock:
            self._run, self._durable = replace(self._run, log=None), None
            self._at_end = at_end

    def failed(self, failure: str, *, continues: bool = False) -> None:
        """Record an error; keeps the first one, but a fatal one replaces those it survived."""
        with self._lock:
            facts = self._facts
            if facts.failure is None or (not continues and not facts.has_failed):
                facts.failure = masked(failure)
            facts.has_failed |= not continues
        self._changed()

    def set_message(self, message: str) -> None:
        """Set the current activity without a change event: an idle query does this often."""
        with self._lock:
            self._facts.message = message

    def set_restart_progress(self, message: str) -> None:
        """Set the progress of a restart; empty once it has ended."""
        self.set_message(message)
        self._changed()

    def record(self, event: Event) -> None:
        """Record an event; returns immediately and never raises."""
        try:
            with self._lock:
                self._apply(event)
            self._changed()
        except Exception:  # values from sources and sinks must not fail a batch
            logger.warning("skipped an event of %s: %r", self.name, event, exc_info=True)

    def _apply(self, event: Event) -> None:
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

    @property
    def id(self) -> str:
        """Identity across restarts; empty before the start."""
        return self._run.id

    @property
    def run_id(self) -> str:
        """Identity of this run; empty before the start."""
        return self._run.run_id

    @property
    def graph(self) -> tuple[GraphNode, ...]:
        """Its steps, parents first; empty before it can run."""
        return self._run.graph

    @property
    def states(self) -> StateQueries | None:
        """Queries the state; None without state or after the end."""
        return self._run.states

    def newest(self) -> BatchInfo | None:
        """Return the newest batch that ran; None before the first."""
        with self._lock:
            return self._recent.newest()

    def recent(self) -> tuple[BatchInfo, ...]:
        """Return the newest batches that ran, newest last."""
        with self._lock:
            return self._recent.all()

    def status(self) -> StreamStatus:
        """Return the current status."""
        with self._lock:
            facts, run, recent = replace(self._facts), self._run, self._recent.all()
        states, checkpoint = self._durable_status(run, facts, recent)
        return StreamStatus(
            kind=self.kind,
            id=run.id,
            run_id=run.run_id,
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
            graph=run.graph,
            states=states,
            checkpoint=checkpoint,
            receivers=tuple(receiver for _, receiver in sorted(facts.receivers.items())),
            rate_limits=dict(run.rate_limits()),
            local_state_disk=disk_space(run.local_state),
            failure=facts.failure,
        )

    def _durable_status(
        self, run: RunInfo, facts: MonitorState, recent: Sequence[BatchInfo]
    ) -> tuple[tuple[StateStatus, ...], CheckpointStatus | None]:
        """Return the status of the log; after the end, its final status."""
        if run.log is None:
            return self._at_end
        durable = _Durable.of(run, run.log, self._durable)
        with self._lock:
            if self._run.log is not None:  # if two threads race, either result will do
                self._durable = durable
        return tuple(durable.states(recent)), durable.checkpoint(facts, recent)


@dataclass(frozen=True)
class _Durable:
    """The records that a restart would find, read once per commit rather than once per status.

    *stored* is the state that they name.
    """

    log: StreamCheckpoint
    last: CommitRecord | None
    named: Mapping[str, RecordId | None]
    snapshots: Mapping[str, CommitRecord | None]
    stored: tuple[StateStatus, ...]

    @classmethod
    def of(cls, run: RunInfo, log: StreamCheckpoint, before: _Durable | None) -> _Durable:
        last = log.commits.last
        newest = {} if last is None else last.newest_snapshots
        named = {uid: newest.get(uid) for uid in run.snapshot_uids}
        if before is not None and before.last is last and before.named == named:
            return before
        snapshots = {uid: _record(log, record_id) for uid, record_id in named.items()}
        operations = {node.uid: node.operation for node in run.graph if node.uid}
        return cls(log, last, named, snapshots, tuple(_stored(operations, last, snapshots)))

    def checkpoint(self, facts: MonitorState, recent: Sequence[BatchInfo]) -> CheckpointStatus:
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
        """Return the newest commit up to which all state is durable; None before the first."""
        known = [self.last, *self.snapshots.values()]
        found = [record for record in known if record is not None]
        if len(found) < len(known):
            return None
        return min(found, key=lambda record: record.batch_time_ms)

    def _recomputed(self, durable: CommitRecord | None) -> tuple[int, int] | None:
        """Return the first and last batch whose state a restart recomputes; None for no batch."""
        if self.last is None:
            return None
        oldest = _record(self.log, next(iter(self.log.commits.ids()), None))
        first = durable.batch_id + 1 if durable is not None else (oldest or self.last).batch_id
        return (first, self.last.batch_id) if first <= self.last.batch_id else None

    def states(self, recent: Sequence[BatchInfo]) -> Iterator[StateStatus]:
        """Yield the state of each operator, with its memory if a recent batch reported that."""
        memory = {
            info.uid: info.metrics[_MEMORY]
            for batch in recent[-_MEMORY_BATCHES:]
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
        tuple(PartitionSize(at, keys[at], written_bytes[at]) for at in sorted(keys)),
        has_changelogs,
    )


def _committed_at_ms(record: CommitRecord | None, recent: Sequence[BatchInfo]) -> int | None:
    """Return when a batch was committed; its batch time if this driver did not run it."""
    if record is None:
        return None
    times = (each.completed_ms for each in recent if each.batch_time_ms == record.batch_time_ms)
    return next(times, record.batch_time_ms)


def _record(log: StreamCheckpoint, record_id: RecordId | None) -> CommitRecord | None:
    """Return a commit record; None if it has been deleted since a newer one was written."""
    try:
        return None if record_id is None else log.commits.read_record(record_id)
    except (CheckpointError, FileNotFoundError):
        return None


def _without(batches: Mapping[int, PendingBatch], time_ms: int) -> Mapping[int, PendingBatch]:
    return {at: batch for at, batch in batches.items() if at != time_ms}


class RecentBatches:
    """The newest batches. Once memory runs short, older ones lose their offsets and long texts."""

    def __init__(self, retained: int) -> None:
        self._batches: deque[BatchInfo] = deque()
        self._retained = retained
        self._facts: deque[int] = deque()
        """Facts of each of the newest batches; the batches before them are truncated."""
        self._sum = 0
        self._most = MOST_FACTS

    def append(self, batch: BatchInfo) -> None:
        """Add the newest batch, with secrets in its errors masked."""
        batch = _with_failures(batch, masked)
        self._batches.append(batch)
        facts = _facts_of(batch)
        self._facts.append(facts)
        self._sum += facts
        self._fit()
        if len(self._batches) > self._retained:
            self._batches.popleft()
            if len(self._facts) > len(self._batches):
                self._sum -= self._facts.popleft()

    def ended(self) -> None:
        """Use less memory from now on: the stream has ended, and many ended ones are kept."""
        self._most = MOST_FACTS // _ENDED_SHARE
        self._fit()

    def _fit(self) -> None:
        while self._sum > self._most and len(self._facts) > 1:
            at = len(self._batches) - len(self._facts)
            self._batches[at] = _truncated(self._batches[at])
            self._sum -= self._facts.popleft()

    def newest(self) -> BatchInfo | None:
        """Return the newest batch; None before the first."""
        return self._batches[-1] if self._batches else None

    def all(self) -> tuple[BatchInfo, ...]:
        """Return all batches, newest last."""
        return tuple(self._batches)


def _facts_of(batch: BatchInfo) -> int:
    failures = (batch.failure or "", *(output.failure or "" for output in batch.outputs))
    texts = (*failures, *(given.description for given in batch.inputs))
    return sum(map(_offsets_of, batch.inputs)) + sum(map(len, texts)) // _CHARACTERS


def _offsets_of(given: InputInfo) -> int:
    """Return roughly how many values of partitions an input has."""
    offsets = () if given.offsets is None else given.offsets[:3]
    return sum(map(_parts, (*offsets, *given.metadata.values())))


def _parts(value: Any) -> int:
    if isinstance(value, Mapping) and isinstance(next(iter(value.values()), None), Mapping):
        return sum(map(_parts, value.values()))  # by topic, by partition
    return len(value) if _has_parts(value) else 0


def _has_parts(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes))


def _truncated(batch: BatchInfo) -> BatchInfo:
    return _with_failures(
        replace(batch, inputs=tuple(map(_input_truncated, batch.inputs))), _shortened
    )


def _input_truncated(given: InputInfo) -> InputInfo:
    text = _shortened(given.description)
    if not _offsets_of(given):
        return replace(given, description=text)
    counts = {name: each for name, each in given.metadata.items() if not _has_parts(each)}
    return replace(given, description=text, metadata=counts, offsets=None)


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _with_failures(batch: BatchInfo, change: Callable[[str], str]) -> BatchInfo:
    if batch.failure is None and all(output.failure is None for output in batch.outputs):
        return batch

    def changed(failure: str | None) -> str | None:
        return None if failure is None else change(failure)

    outputs = (replace(output, failure=changed(output.failure)) for output in batch.outputs)
    return replace(batch, failure=changed(batch.failure), outputs=tuple(outputs))
