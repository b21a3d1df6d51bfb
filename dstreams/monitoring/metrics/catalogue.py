"""Which metrics there are, what they mean, and how they are read from a status.

Names are those of Prometheus without ``dstreams_`` and ``_total``. Labels are names that programs
gave or places in them, never keys or values, and each list of names makes a bounded number of
series (:data:`SERIES`, :data:`PARTITIONS`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from checkpoint import without_secrets
from dstreams.monitoring.disk import DiskSpace
from dstreams.monitoring.events import Outcome
from dstreams.monitoring.status import CheckpointStatus, StateStatus, StreamStatus
from dstreams.monitoring.totals import Histogram

Number: TypeAlias = int | float
Sample: TypeAlias = tuple[tuple[str, ...], Number | Histogram]
"""The values of the labels of a metric, and what is so for them."""

Read: TypeAlias = Callable[[StreamStatus], Iterator[Sample]]
MetricKind = Literal["counter", "gauge", "histogram"]

SERIES = 100
"""How many sources, outputs or uids of a stream have a series of their own in a metric.

The first ones do, in the order in which the stream has come to know them. The rest is added up as
:data:`OTHER`, so that a sum over all is right.
"""

PARTITIONS = 100
"""How many partitions of a source of Kafka have a series of their own.

Those of the first topics, by name, with the lowest numbers do: unlike the ones with the largest lag
they are the same in every scrape. The rest is added up as :data:`OTHER`.
"""

OTHER = "other"


@dataclass(frozen=True)
class Metric:
    """Something that is measured of each stream and query.

    Args:
        name: in the words of Prometheus, with the unit at its end where there is one.
        kind: a counter only grows while a stream runs; a gauge is as it is now.
        unit: the base unit, empty for a plain count.
        meaning: for people, in one sentence.
        read: yields the samples of a status.
        labels: their names, beside that of the stream.
        of_ended: whether a gauge says something of a stream that has ended; counts always do.
    """

    name: str
    kind: MetricKind
    unit: str
    meaning: str
    read: Read
    labels: tuple[str, ...] = ()
    of_ended: bool = False

    def samples(self, status: StreamStatus) -> Iterable[Sample]:
        """Return what there is to say of a status."""
        is_told = _runs(status) or self.of_ended or self.kind != "gauge"
        return self.read(status) if is_told else ()


def labelled(statuses: Sequence[StreamStatus]) -> list[tuple[str, StreamStatus]]:
    """Return the statuses that are told, each with the label of its stream: its name.

    Of those with the same name one that runs is told, or else the newest. Where several of them run
    they are told apart by their ids.

    Args:
        statuses: those that run, then those that have ended, the newest first.
    """
    running = Counter(status.name for status in statuses if _runs(status))
    told: dict[str, StreamStatus] = {}
    for status in statuses:
        name = status.name
        if _runs(status) and running[name] > 1:
            name = f"{name} {status.id}"
        elif not _runs(status) and running[name]:
            continue
        told.setdefault(_label(name), status)
    return list(told.items())


def _runs(status: StreamStatus) -> bool:
    """Whether it has not ended; a restart may take long before its first batch."""
    return status.phase in ("initialized", "active")


@lru_cache(maxsize=10_000)  # names come again in each scrape
def _label(name: str) -> str:
    """Return a name as the value of a label: without secrets, and such that it can be sent."""
    return without_secrets(name).encode(errors="replace").decode()


# How samples are made ----------------------------------------------------------------------------


def _value(read: Callable[[StreamStatus], Number | Histogram | None]) -> Read:
    """Return what yields the one value of a stream, where it has one."""

    def samples(status: StreamStatus) -> Iterator[Sample]:
        value = read(status)
        if value is not None:
            yield (), value

    return samples


def _of_checkpoint(read: Callable[[CheckpointStatus], Number | None]) -> Read:
    return _value(lambda status: None if status.checkpoint is None else read(status.checkpoint))


def _by_name(read: Callable[[StreamStatus], Mapping[str, Number]]) -> Read:
    """Return what yields a value for each name; those of names that look alike are added up."""

    def samples(status: StreamStatus) -> Iterator[Sample]:
        told: dict[str, Number] = {}
        for name, value in read(status).items():
            label = _label(name)
            at = label if label in told or len(told) < SERIES else OTHER
            told[at] = told.get(at, 0) + value
        for at, value in told.items():
            yield (at,), value

    return samples


def _of_states(read: Callable[[StateStatus], int | None]) -> Read:
    def values(status: StreamStatus) -> Mapping[str, int]:
        known = ((state.uid, read(state)) for state in status.states)
        return {uid: value for uid, value in known if value is not None}

    return _by_name(values)


# What is read ------------------------------------------------------------------------------------


def _info(status: StreamStatus) -> Iterator[Sample]:
    yield (status.kind, status.id, status.run_id), 1


def _running_s(status: StreamStatus) -> float:
    started_ms = None if status.running is None else status.running.batch.started_ms
    return 0 if started_ms is None else max(0, status.now_ms - started_ms) / 1000


def _last_completed_s(status: StreamStatus) -> float | None:
    return status.recent[-1].completed_ms / 1000 if status.recent else None


def _output_failures(status: StreamStatus) -> Mapping[str, int]:
    """Return the failures of each output, also before the first one: so that it is an increase."""
    outputs = (node.operation for node in status.graph if node.kind == "output")
    return {**dict.fromkeys(outputs, 0), **status.totals.output_failures}


def _receivers_active(status: StreamStatus) -> Mapping[str, int]:
    active: Counter[str] = Counter()
    for receiver in status.receivers:
        active[receiver.name] += int(receiver.active)
    return active


def _lag(status: StreamStatus) -> Iterator[Sample]:
    """Yield the lag of each partition."""
    for given in status.lags:
        lags = sorted((*one, lag) for one, lag in given.partitions.items())
        for topic, partition, lag in lags[:PARTITIONS]:
            yield (_label(given.name), _label(topic), str(partition)), lag
        if len(lags) > PARTITIONS:
            rest = sum(lag for _, _, lag in lags[PARTITIONS:])
            yield (_label(given.name), OTHER, OTHER), rest


def _lag_in_batches(status: StreamStatus) -> Mapping[str, int]:
    told: Counter[str] = Counter()
    for given in status.lags:
        told[given.name] += given.in_batches
    return told


def _state_bytes(state: StateStatus) -> int | None:
    """Return what all keys take; changelogs, which have the newest changes alone, say nothing."""
    written_bytes = None if state.has_changelogs else state.written_bytes
    return written_bytes if state.memory_bytes is None else state.memory_bytes


def _watermark_lag_s(status: StreamStatus) -> float | None:
    """Return how far the slowest watermark is behind; None as long as no event time was seen."""
    batch = status.recent[-1] if status.recent else None
    of_states = () if batch is None else (state.watermark_ms for state in batch.states)
    times = [None if batch is None else batch.watermark_ms, *of_states]
    known = [time_ms for time_ms in times if time_ms is not None and time_ms > 0]
    return (status.now_ms - min(known)) / 1000 if known else None


def _checkpoint_age_s(status: StreamStatus) -> float | None:
    if status.checkpoint is None or status.started_ms is None:
        return None
    durable_ms = status.checkpoint.durable_state_at_ms
    since_ms = status.started_ms if durable_ms is None else durable_ms
    return max(0, status.now_ms - since_ms) / 1000


def _recomputed(checkpoint: CheckpointStatus) -> int:
    first, last = checkpoint.recomputed or (0, -1)
    return last - first + 1


def _free(disk: DiskSpace | None) -> int | None:
    return None if disk is None else disk.free_bytes


def _size(disk: DiskSpace | None) -> int | None:
    return None if disk is None else disk.size_bytes


def _seconds(time_ms: int | None) -> float | None:
    return None if time_ms is None else time_ms / 1000


METRICS = (
    Metric(
        "stream_info",
        "gauge",
        "",
        "Always 1; the labels say what has this name, and which run of it this is.",
        _info,
        ("kind", "id", "run_id"),
    ),
    Metric(
        "stream_active",
        "gauge",
        "",
        "Whether the stream or query runs: 1, or 0 once it has ended.",
        _value(lambda status: int(_runs(status))),
        of_ended=True,
    ),
    Metric(
        "stream_failed",
        "gauge",
        "",
        "Whether the stream or query has ended with an error: 1 or 0.",
        _value(lambda status: int(status.phase == "failed")),
        of_ended=True,
    ),
    Metric(
        "stream_started_timestamp_seconds",
        "gauge",
        "seconds",
        "When this run began, in seconds since 1970.",
        _value(lambda status: _seconds(status.started_ms)),
        of_ended=True,
    ),
    Metric(
        "batch_interval_seconds",
        "gauge",
        "seconds",
        "Time from one batch of a stream to the next; queries, which data drives, have none.",
        _value(lambda status: _seconds(status.batch_ms) if status.kind == "stream" else None),
    ),
    Metric(
        "batches",
        "counter",
        "",
        "Batches that ended, by outcome: succeeded, failed, empty (no output was due), cancelled.",
        _by_name(lambda status: {**dict.fromkeys(get_args(Outcome), 0), **status.totals.batches}),
        ("outcome",),
    ),
    Metric(
        "batches_waiting",
        "gauge",
        "",
        "Batches that are planned and do not run yet.",
        _value(lambda status: len(status.waiting)),
    ),
    Metric(
        "batch_running_seconds",
        "gauge",
        "seconds",
        "How long the running batch has run; 0 between batches.",
        _value(_running_s),
    ),
    Metric(
        "batch_last_completed_timestamp_seconds",
        "gauge",
        "seconds",
        "When the last batch ended, well or not, in seconds since 1970.",
        _value(_last_completed_s),
        of_ended=True,
    ),
    Metric(
        "batch_processing_seconds",
        "histogram",
        "seconds",
        "How long batches ran.",
        _value(lambda status: status.totals.processing),
    ),
    Metric(
        "batch_scheduling_delay_seconds",
        "histogram",
        "seconds",
        "How long batches waited for earlier ones before they ran.",
        _value(lambda status: status.totals.scheduling_delay),
    ),
    Metric(
        "records",
        "counter",
        "",
        "Records that batches read.",
        _by_name(lambda status: status.totals.records),
        ("source",),
    ),
    Metric(
        "rejected_records",
        "counter",
        "",
        "Records that could not be decoded and were left out.",
        _by_name(lambda status: status.totals.rejected),
        ("source",),
    ),
    Metric(
        "source_lag_records",
        "gauge",
        "records",
        "Records of a partition of Kafka that no committed batch has read, up to its newest end.",
        _lag,
        ("source", "topic", "partition"),
    ),
    Metric(
        "source_lag_in_batches_records",
        "gauge",
        "records",
        "How many of these are in batches that are planned and have not ended.",
        _by_name(_lag_in_batches),
        ("source",),
    ),
    Metric(
        "input_rate_limit",
        "gauge",
        "",
        "Records a second that batches may read, where that is limited.",
        _by_name(lambda status: status.rate_limits),
        ("source",),
    ),
    Metric(
        "receivers_active",
        "gauge",
        "",
        "Receivers of a source that receive.",
        _by_name(_receivers_active),
        ("source",),
    ),
    Metric(
        "output_failures",
        "counter",
        "",
        "Batches in which an output failed.",
        _by_name(_output_failures),
        ("output",),
    ),
    Metric(
        "state_keys",
        "gauge",
        "",
        "Keys in the durable state of an operator.",
        _of_states(lambda state: state.keys),
        ("uid",),
    ),
    Metric(
        "state_largest_partition_keys",
        "gauge",
        "",
        "Keys in the largest partition of the durable state of an operator.",
        _of_states(lambda state: max((part.keys for part in state.partitions), default=0)),
        ("uid",),
    ),
    Metric(
        "state_bytes",
        "gauge",
        "bytes",
        "Size of the state of an operator: where it is kept, or in its newest snapshot.",
        _of_states(_state_bytes),
        ("uid",),
    ),
    Metric(
        "state_commit_seconds",
        "counter",
        "seconds",
        "Time that tasks took to make state durable, those of all partitions together.",
        _by_name(lambda status: status.totals.state_commit_s),
        ("uid",),
    ),
    Metric(
        "keys_removed",
        "counter",
        "",
        "Keys that left the state of an operator: timed out, behind the watermark, or removed.",
        _by_name(lambda status: status.totals.keys_removed),
        ("uid",),
    ),
    Metric(
        "late_records_dropped",
        "counter",
        "",
        "Records behind the watermark that an operator left out.",
        _by_name(lambda status: status.totals.late_records),
        ("uid",),
    ),
    Metric(
        "watermark_lag_seconds",
        "gauge",
        "seconds",
        "How far the slowest watermark of the last batch is behind the clock.",
        _value(_watermark_lag_s),
    ),
    Metric(
        "checkpoint_age_seconds",
        "gauge",
        "seconds",
        "Time since the newest commit with which all state is durable, or else since the start.",
        _value(_checkpoint_age_s),
    ),
    Metric(
        "checkpoint_epoch",
        "gauge",
        "",
        "Number of this driver among those that had the stream: each start takes the next one.",
        _of_checkpoint(lambda checkpoint: checkpoint.epoch),
    ),
    Metric(
        "checkpoint_recomputed_batches",
        "gauge",
        "",
        "Committed batches whose state a restart would compute again.",
        _of_checkpoint(_recomputed),
    ),
    Metric(
        "checkpoint_snapshot_bytes",
        "gauge",
        "bytes",
        "Size of the newest snapshots and changelogs of all state.",
        _of_checkpoint(lambda checkpoint: checkpoint.snapshot_bytes),
    ),
    Metric(
        "checkpoint_free_bytes",
        "gauge",
        "bytes",
        "What may still be written to the disk of the checkpoint, where that is one of this host.",
        _of_checkpoint(lambda checkpoint: _free(checkpoint.disk)),
    ),
    Metric(
        "checkpoint_size_bytes",
        "gauge",
        "bytes",
        "Size of the disk of the checkpoint, where that is one of this host.",
        _of_checkpoint(lambda checkpoint: _size(checkpoint.disk)),
    ),
    Metric(
        "local_state_free_bytes",
        "gauge",
        "bytes",
        "What may still be written to the disk where this host keeps copies of stored state.",
        _value(lambda status: _free(status.local_state_disk)),
    ),
    Metric(
        "local_state_size_bytes",
        "gauge",
        "bytes",
        "Size of the disk where this host keeps copies of stored state.",
        _value(lambda status: _size(status.local_state_disk)),
    ),
)
"""All metrics, in the order in which they are told."""
