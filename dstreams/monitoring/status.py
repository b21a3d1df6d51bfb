"""The values that say how a stream or query does: frozen, made on demand, safe to keep.

Times are milliseconds since the epoch by the driver's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dstreams.monitoring.disk import DiskSpace
from dstreams.monitoring.events import BatchInfo, PendingBatch, PlannedOutput, ReceiverInfo
from dstreams.monitoring.lag import SourceLag, lags_of
from dstreams.monitoring.pictures.statuses import state_html, state_text, status_html, status_text
from dstreams.monitoring.totals import Totals

Kind = Literal["stream", "query"]
Phase = Literal["initialized", "active", "stopped", "failed"]
NodeKind = Literal["input", "step", "state", "output"]

DURABLE_INPUT = "what each batch reads"
DURABLE_STORE = "changes of each batch, and snapshots"
"""What is durable of inputs, and of state in the state store, in the words of a node."""


@dataclass(frozen=True)
class GraphNode:
    """One step of a stream or query.

    Args:
        number: 0, 1, 2, ...; parents have lower ones.
        kind: ``input``, ``state`` for one that stands on the batch before, ``output``, or ``step``.
        operation: what it is and where the program says so: ``map at app.py:12``.
        uid: its identity on disk, empty where nothing of it is durable.
        parents: numbers of the steps that it takes records from.
        durable: what of it survives the driver, and when, in a few words; empty for nothing. Of an
            output what it promises: ``exactly once``, ``at least once`` or ``at most once``.
    """

    number: int
    kind: NodeKind
    operation: str
    uid: str = ""
    parents: tuple[int, ...] = ()
    durable: str = ""


@dataclass(frozen=True)
class StatePartition:
    """What the newest durable state has in one partition.

    Args:
        partition: 0, 1, 2, ...
        keys: how many.
        written_bytes: size of the file that was written for it: of all its keys where state is
            written as snapshots, of the last batch's changes where it has changelogs.
    """

    partition: int
    keys: int
    written_bytes: int


@dataclass(frozen=True)
class StateStatus:
    """The state of one operator, as it is durable.

    Args:
        uid: identity of the operator.
        operation: what it is and where the program says so.
        batch_time_ms: the batch after which the state was so.
        keys: of all partitions.
        memory_bytes: what it takes where it is kept; None where nobody knows.
        written_bytes: of all partitions.
        partitions: one by one; some states are in several stores, whose keys are added up.
        has_changelogs: whether what was written last are changes, and not all keys.
    """

    uid: str
    operation: str
    batch_time_ms: int
    keys: int
    memory_bytes: int | None
    written_bytes: int
    partitions: tuple[StatePartition, ...]
    has_changelogs: bool = False

    def __repr__(self) -> str:
        return state_text(self)

    def _repr_html_(self) -> str:
        return state_html(self)


@dataclass(frozen=True)
class CheckpointStatus:
    """What of a stream is durable, and who has it.

    Args:
        url: directory of the stream, without secrets.
        epoch: number of this driver among those that had the stream.
        holder: the process that has it, for people.
        committed_batch_id: the newest committed batch; None for none yet.
        committed_ms: its batch time.
        committed_at_ms: when it was committed; its batch time if an earlier run committed it.
        durable_state_ms: the batch time up to which all state is durable; a restart computes that
            of later committed batches again, from their input. None where some state is in no
            snapshot yet.
        durable_state_at_ms: when that batch was committed; as *committed_at_ms*.
        recomputed: numbers of the first and last of these batches; None for none.
        rerun: numbers of the batches that were begun and are not committed: a restart runs them
            again with the same input, outputs included.
        snapshot_bytes: size of the newest snapshots and changelogs together.
        disk: where the directory is; None where that is no disk of this host.
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
    """The batch that runs, and the output in which it is; None between outputs."""

    batch: PendingBatch
    output: PlannedOutput | None = None


@dataclass(frozen=True)
class StreamStatus:
    """How one stream or query does.

    Args:
        kind: ``stream`` for a StreamingContext, ``query`` for a structured query.
        id: identity over all restarts; empty before the start.
        run_id: identity of this run.
        name: of the application or query, for people.
        phase: where it is in its life: ``failed`` where an error has ended it, ``stopped`` after
            any other end, also where batches had failed and it went on.
        message: what it does now, of queries; how far a restart is, of streams.
        started_ms: clock at the start, None before; once it is ``active``, when that began.
        ended_ms: clock at the end, None before.
        now_ms: clock when this was made.
        batch_ms: milliseconds from one batch to the next; None where data decides.
        totals: counts since the start of this run.
        waiting: batches that are planned and do not run yet, oldest first.
        running: the batch that runs.
        recent: batches that ran, the newest last; a bounded number of them. Of topics with very
            many partitions the older ones have no offsets any more.
        graph: its steps, parents first.
        states: the durable state of each operator that has some.
        checkpoint: None without a checkpoint directory.
        receivers: what receives beside the batches.
        rate_limits: records a second that each input may give, by its name, where that is limited.
        local_state_disk: where this host keeps copies of stored state; None where it has none.
        failure: what it failed with, None when it did not. Of a stream that goes on after a batch
            failed, what that did.
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
        """How far it is behind each source now, as far as the source knows its end."""
        return tuple(lags_of(self.recent, self.pending))

    def __repr__(self) -> str:
        return status_text(self)

    def _repr_html_(self) -> str:
        return status_html(self)
