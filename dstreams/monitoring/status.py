"""The status of a stream or query: frozen values, made on demand and safe to keep.

Times are milliseconds since the epoch by the driver's clock.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from dstreams.monitoring.display import Rendered
from dstreams.monitoring.events import (
    BatchInfo,
    InputInfo,
    PendingBatch,
    PlannedOutput,
    ReceiverInfo,
)

Kind = Literal["stream", "query"]
Phase = Literal["initialized", "active", "stopped", "failed"]
NodeKind = Literal["input", "step", "state", "output"]

DURABLE_INPUT = "what each batch reads"
DURABLE_STORE = "changes of each batch, and snapshots"
"""The text of :attr:`GraphNode.durable` for inputs, and for state in the state store."""

BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of a histogram, in seconds; one more bucket has no bound."""

_REJECTED = "rejected"
_REMOVED, _LATE, _COMMIT = "numRemovedStateRows", "numRowsDroppedByWatermark", "commitTimeMs"
_N = TypeVar("_N", int, float)


@dataclass(frozen=True)
class GraphNode:
    """One step of a stream or query.

    Args:
        number: 0, 1, 2, ...; higher than those of its parents.
        kind: ``input``, ``state`` if it depends on the previous batch, ``output``, or ``step``.
        operation: operation and call site: ``map at app.py:12``.
        uid: its identity on disk; empty if nothing of it is durable.
        parents: numbers of the steps that it reads from.
        durable: a short description of what survives the driver; empty for nothing. The delivery
            guarantee of an output: ``exactly once``, ``at least once`` or ``at most once``.
    """

    number: int
    kind: NodeKind
    operation: str
    uid: str = ""
    parents: tuple[int, ...] = ()
    durable: str = ""


@dataclass(frozen=True)
class PartitionSize:
    """The size of one partition of the newest durable state.

    Args:
        partition: 0, 1, 2, ...
        keys: number of keys.
        written_bytes: size of its newest file: all keys if state is written as snapshots, the
            changes of the last batch if it has changelogs.
    """

    partition: int
    keys: int
    written_bytes: int


@dataclass(frozen=True, repr=False)
class StateStatus(Rendered):
    """The durable state of one operator.

    Args:
        uid: identity of the operator.
        operation: operation and call site.
        batch_time_ms: the batch after which the state was written.
        keys: number of keys in all partitions.
        memory_bytes: memory that the state takes; None if unknown.
        written_bytes: size of the newest files of all partitions.
        partitions: the size of each partition, added up over the stores of the operator.
        has_changelogs: whether the newest files hold the changes of a batch, not all keys.
    """

    uid: str
    operation: str
    batch_time_ms: int
    keys: int
    memory_bytes: int | None
    written_bytes: int
    partitions: tuple[PartitionSize, ...]
    has_changelogs: bool = False


@dataclass(frozen=True)
class DiskSpace:
    """Free space for this user, and the size, of a file system."""

    free_bytes: int
    size_bytes: int


def disk_space(directory: str | None) -> DiskSpace | None:
    """Return the space at a path or ``file:`` URL; None for any other URL or if it is missing."""
    path = (directory or "").removeprefix("file://")
    if not path.startswith("/"):
        return None
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


@dataclass(frozen=True)
class CheckpointStatus:
    """The durable part of a stream, and the driver that holds it.

    Args:
        url: directory of the stream, without secrets.
        epoch: number of this driver in the sequence of drivers of the stream.
        holder: a readable name of the driver process.
        committed_batch_id: the newest committed batch; None before the first.
        committed_ms: its batch time.
        committed_at_ms: when it was committed; its batch time if an earlier run committed it.
        durable_state_ms: the batch time up to which all state is durable; a restart recomputes the
            state of later committed batches from their input. None if some state has no snapshot.
        durable_state_at_ms: when that batch was committed; like *committed_at_ms*.
        recomputed: ids of the first and last of these batches; None for no batch.
        rerun: ids of batches that started and are not committed: a restart runs them again with
            the same input, including their outputs.
        snapshot_bytes: total size of the newest snapshots and changelogs.
        disk: the file system of the directory; None if it is not on this host.
    """

    url: str
    epoch: int
    holder: str
    committed_batch_id: int | None
    committed_ms: int | None
    durable_state_ms: int | None
    recomputed: tuple[int, int] | None
    rerun: tuple[int, ...]
    snapshot_bytes: int
    disk: DiskSpace | None = None
    committed_at_ms: int | None = None
    durable_state_at_ms: int | None = None


@dataclass(frozen=True)
class RunningBatch:
    """The running batch and its current output, None between outputs."""

    batch: PendingBatch
    output: PlannedOutput | None = None


@dataclass(frozen=True)
class SourceLag:
    """The offsets of a source that no committed batch has read.

    Args:
        stream_id: number of the input.
        name: name of the source.
        partitions: offsets of each partition, including those with none.
        in_batches: number of them in batches that are planned and have not ended.
    """

    stream_id: int
    name: str
    partitions: Mapping[Any, int]
    in_batches: int


@dataclass(frozen=True)
class Histogram:
    """A histogram of durations: counts per bucket of :data:`BUCKETS_S`, and their sum."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    sum_s: float = 0.0

    def with_time(self, seconds: float) -> Histogram:
        """Return the histogram with one more duration; buckets include their upper bound."""
        at = bisect_left(BUCKETS_S, seconds)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Histogram(counts, self.sum_s + seconds)


@dataclass(frozen=True)
class Totals:
    """Counts over all batches of a run; they only grow.

    Args:
        batches: batches that ended, by outcome.
        records: counted records of each source.
        rejected: records of each source skipped because they could not be decoded, or because their
            function failed.
        output_failures: failures of each output.
        processing: processing times.
        scheduling_delay: times spent waiting for earlier batches.
        keys_removed: states that timed out or were removed, by uid of the operator.
        late_records: records dropped behind the watermark, by uid.
        state_commit_s: seconds spent making state durable, summed over partitions, by uid.
    """

    batches: Mapping[str, int] = field(default_factory=dict)
    records: Mapping[str, int] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    output_failures: Mapping[str, int] = field(default_factory=dict)
    processing: Histogram = Histogram()
    scheduling_delay: Histogram = Histogram()
    keys_removed: Mapping[str, int] = field(default_factory=dict)
    late_records: Mapping[str, int] = field(default_factory=dict)
    state_commit_s: Mapping[str, float] = field(default_factory=dict)

    def with_batch(self, batch: BatchInfo) -> Totals:
        """Return the totals with one more batch."""
        commit_s = {uid: ms / 1000 for uid, ms in _of_states(batch, _COMMIT).items()}
        failed = {info.name: 1 for info in batch.outputs if info.failure is not None}
        return Totals(
            _sum(self.batches, {batch.outcome: 1}),
            _sum(self.records, _of_inputs(batch, lambda given: given.records or 0)),
            _sum(self.rejected, _of_inputs(batch, lambda given: given.metadata.get(_REJECTED, 0))),
            _sum(self.output_failures, failed),
            self.processing.with_time(batch.processing_delay_ms / 1000),
            self.scheduling_delay.with_time(batch.scheduling_delay_ms / 1000),
            _sum(self.keys_removed, _of_states(batch, _REMOVED)),
            _sum(self.late_records, _of_states(batch, _LATE)),
            _sum(self.state_commit_s, commit_s),
        )


def _of_inputs(batch: BatchInfo, count: Callable[[InputInfo], int]) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for given in batch.inputs:
        counts[given.name] += count(given)
    return counts


def _of_states(batch: BatchInfo, metric: str) -> Mapping[str, int]:
    return {state.uid: state.metrics.get(metric, 0) for state in batch.states}


def _sum(before: Mapping[str, _N], more: Mapping[str, _N]) -> Mapping[str, _N]:
    return {**before, **{name: before.get(name, 0) + count for name, count in more.items()}}


@dataclass(frozen=True, repr=False)
class StreamStatus(Rendered):
    """The status of one stream or query.

    Args:
        kind: ``stream`` for a StreamingContext, ``query`` for a structured query.
        id: identity across restarts; empty before the start.
        run_id: identity of this run.
        name: name of the application or query.
        phase: ``failed`` if an error ended it, ``stopped`` after any other end, even if batches
            had failed before.
        message: current activity of a query, or progress of the restart of a stream.
        started_ms: when it was started, or became ``active`` once it has; None before.
        ended_ms: when it ended; None if it has not.
        now_ms: when this status was made.
        batch_ms: milliseconds from one batch to the next; None if data triggers batches.
        totals: counts since the start of this run.
        waiting: batches that are planned and do not run yet, oldest first.
        running: the running batch.
        recent: the newest batches that ran, newest last. With very many partitions, older batches
            no longer have their offsets.
        graph: its steps, parents first.
        states: the durable state of each stateful operator.
        checkpoint: None without a checkpoint directory.
        receivers: the receivers of its sources.
        rate_limits: limit of each rate-limited input, in records per second.
        local_state_disk: file system with this host's copies of stored state; None without any.
        failure: the error that ended it, or that of a batch if the stream continued; None if
            nothing failed.
    """

    kind: Kind
    id: str
    run_id: str
    name: str
    phase: Phase
    message: str
    started_ms: int | None
    ended_ms: int | None
    now_ms: int
    batch_ms: int | None
    totals: Totals
    waiting: tuple[PendingBatch, ...] = ()
    running: RunningBatch | None = None
    recent: tuple[BatchInfo, ...] = ()
    graph: tuple[GraphNode, ...] = ()
    states: tuple[StateStatus, ...] = ()
    checkpoint: CheckpointStatus | None = None
    receivers: tuple[ReceiverInfo, ...] = ()
    rate_limits: Mapping[str, float] = field(default_factory=dict)
    local_state_disk: DiskSpace | None = None
    failure: str | None = None

    @property
    def pending(self) -> tuple[PendingBatch, ...]:
        """Batches that are planned and have not ended, the oldest first."""
        running = () if self.running is None else (self.running.batch,)
        return (*running, *self.waiting)

    @property
    def lags(self) -> tuple[SourceLag, ...]:
        """The lag of each source that knows the end of its data."""
        return tuple(lags_of(self.recent, self.pending))


def lags_of(recent: Sequence[BatchInfo], pending: Sequence[PendingBatch]) -> Iterator[SourceLag]:
    """Yield the lag of each source, by the newest batch that knows it; batches are oldest first."""
    for place in reversed(range(len(pending))):
        known = _with_lag(pending[place])
        if known:
            yield from (_lag_of(given, pending[: place + 1]) for given in known)
            return
    known = next(filter(None, map(_with_lag, reversed(recent))), [])
    yield from (_lag_of(given, ()) for given in known)


def _with_lag(batch: BatchInfo | PendingBatch) -> list[InputInfo]:
    return [given for given in batch.inputs if "lag" in given.metadata]


def _lag_of(newest: InputInfo, pending: Iterable[PendingBatch]) -> SourceLag:
    """Return the lag after the newest batch plus the offsets that *pending* has still to read."""
    partitions = dict(newest.metadata["lag"])
    in_batches = 0
    for batch in pending:
        for given in batch.inputs:
            if given.stream_id == newest.stream_id:
                for offsets in given.metadata.get("offsets", ()):
                    place, planned = offsets.topicPartition(), offsets.count()
                    partitions[place] = partitions.get(place, 0) + planned
                    in_batches += planned
    return SourceLag(newest.stream_id, newest.name, partitions, in_batches)
