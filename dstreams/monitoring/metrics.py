"""Metrics of streams and queries for Prometheus, read from their statuses at each scrape.

Names are those of Prometheus without ``dstreams_`` and ``_total``. Labels are names from programs,
never keys or values, and each makes a bounded number of series (:data:`SERIES`,
:data:`PARTITIONS`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from checkpoint import without_secrets
from dstreams.monitoring.events import Outcome
from dstreams.monitoring.registry import registry
from dstreams.monitoring.status import (
    BUCKETS_S,
    CheckpointStatus,
    DiskSpace,
    Histogram,
    StateStatus,
    StreamStatus,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

logger = logging.getLogger(__name__)

Number: TypeAlias = int | float
Sample: TypeAlias = tuple[tuple[str, ...], Number | Histogram]
"""The values of the labels of a metric, and its value for them."""

Read: TypeAlias = Callable[[StreamStatus], Iterator[Sample]]
MetricKind = Literal["counter", "gauge", "histogram"]

PREFIX = "dstreams_"
SERIES = 100
"""Sources, outputs or uids of a stream that have a series of their own in a metric.

The first ones that the stream had; the rest is added up as :data:`OTHER`, so that sums are right.
"""

PARTITIONS = 100
"""Partitions of a Kafka source that have a series of their own.

Ordered by topic and number, so that they are the same in every scrape; those with the largest lag
would not be. The rest is added up as :data:`OTHER`.
"""

OTHER = "other"
_BOUNDS = (*(str(bound) for bound in BUCKETS_S), "+Inf")
_unreadable: set[str] = set()


@dataclass(frozen=True)
class Metric:
    """A metric of every stream and query."""

    name: str  # its name, which ends in the unit if it has one
    kind: MetricKind  # a counter grows while a stream runs; a gauge is a current value
    meaning: str  # a sentence that explains it
    read: Read  # yields the samples of a status
    labels: tuple[str, ...] = ()  # names of labels, in addition to that of the stream
    of_ended: bool = False
    """Whether a gauge has a value once the stream has ended; counters always have."""

    @property
    def unit(self) -> str:
        """The base unit; empty for a plain count."""
        word = self.name.rpartition("_")[2]
        return word if word in ("seconds", "bytes") else ""

    def samples(self, status: StreamStatus) -> Iterable[Sample]:
        """Return the samples of a status."""
        has_value = _runs(status) or self.of_ended or self.kind != "gauge"
        return self.read(status) if has_value else ()


def render_metrics(accept: str | None = None) -> tuple[str, bytes]:
    """Return content type and body of the metrics of all streams and queries of this process.

    Args:
        accept: the ``Accept`` header of the request: OpenMetrics if that accepts it, else the text
            format of Prometheus.

    Semantics: the exposition formats of Prometheus (text 0.0.4) and OpenMetrics (1.0.0).
    """
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - takes time to load

    encode, content_type = choose_encoder(accept or "")
    return content_type, encode(StreamCollector())


class StreamCollector:
    """Collects the metrics of all streams and queries of this process.

    A program with metrics of its own registers it with them:
    ``prometheus_client.REGISTRY.register(StreamCollector())``.
    """

    def collect(self) -> Iterator[Family]:
        """Yield a family for each metric that has samples."""
        return families(registry().statuses())

    def describe(self) -> Iterator[Family]:
        """Yield the families without samples, for a registry to learn their names."""
        return (_family(metric, ()) for metric in METRICS)


def families(statuses: Sequence[StreamStatus]) -> Iterator[Family]:
    """Yield a family for each metric that has a sample of one of the statuses."""
    streams = labelled(statuses)
    for metric in METRICS:
        try:
            family = _family(metric, streams)
        except Exception:  # the other metrics are served
            level = logging.DEBUG if metric.name in _unreadable else logging.WARNING
            _unreadable.add(metric.name)
            logger.log(level, "skipped metric %s%s in /metrics", PREFIX, metric.name, exc_info=True)
            continue
        if family.samples:
            yield family


def _family(metric: Metric, streams: Iterable[tuple[str, StreamStatus]]) -> Family:
    from prometheus_client.metrics_core import Metric as Family  # noqa: PLC0415 - the same

    family = Family(PREFIX + metric.name, metric.meaning, metric.kind, metric.unit)
    suffix = "_total" if metric.kind == "counter" else ""
    for stream, status in streams:
        for values, value in metric.samples(status):
            labels = dict(zip(("stream", *metric.labels), (stream, *values), strict=True))
            if isinstance(value, Histogram):
                _add_histogram(family, labels, value)
            else:
                family.add_sample(family.name + suffix, labels, value)
    return family


def _add_histogram(family: Family, labels: dict[str, str], histogram: Histogram) -> None:
    counts = list(accumulate(histogram.counts))
    for bound, count in zip(_BOUNDS, counts, strict=True):
        family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
    family.add_sample(f"{family.name}_count", labels, counts[-1])
    family.add_sample(f"{family.name}_sum", labels, histogram.sum_s)


def labelled(statuses: Sequence[StreamStatus]) -> list[tuple[str, StreamStatus]]:
    """Return the statuses to serve, each with the label of its stream: the name.

    Of several with one name an active one is served, or else the newest; if several are active
    their labels have the ids as well. *statuses* has active ones first, then ended ones, newest
    first.
    """
    running = Counter(status.name for status in statuses if _runs(status))
    served: dict[str, StreamStatus] = {}
    for status in statuses:
        name = status.name
        if _runs(status) and running[name] > 1:
            name = f"{name} {status.id}"
        elif not _runs(status) and running[name]:
            continue
        served.setdefault(_label(name), status)
    return list(served.items())


def _runs(status: StreamStatus) -> bool:
    """Return whether it has not ended; a restart may take long before the first batch."""
    return status.phase in ("initialized", "active")


@lru_cache(maxsize=10_000)  # names are the same in each scrape
def _label(name: str) -> str:
    """Return a name as the value of a label: encodable, and without secrets."""
    return without_secrets(name).encode(errors="replace").decode()


# Readers


def _value(read: Callable[[StreamStatus], Number | Histogram | None]) -> Read:
    """Return a reader of one value per stream."""

    def samples(status: StreamStatus) -> Iterator[Sample]:
        value = read(status)
        if value is not None:
            yield (), value

    return samples


def _of_checkpoint(read: Callable[[CheckpointStatus], Number | None]) -> Read:
    return _value(lambda status: None if status.checkpoint is None else read(status.checkpoint))


def _by_name(read: Callable[[StreamStatus], Mapping[str, Number]]) -> Read:
    """Return a reader of one value per name; values of names with the same label are added up."""

    def samples(status: StreamStatus) -> Iterator[Sample]:
        sums: dict[str, Number] = {}
        for name, value in read(status).items():
            label = _label(name)
            at = label if label in sums or len(sums) < SERIES else OTHER
            sums[at] = sums.get(at, 0) + value
        for at, value in sums.items():
            yield (at,), value

    return samples


def _of_states(read: Callable[[StateStatus], int | None]) -> Read:
    def values(status: StreamStatus) -> Mapping[str, int]:
        known = ((state.uid, read(state)) for state in status.states)
        return {uid: value for uid, value in known if value is not None}

    return _by_name(values)


def _info(status: StreamStatus) -> Iterator[Sample]:
    yield (status.kind, status.id, status.run_id), 1


def _running_s(status: StreamStatus) -> float:
    started_ms = None if status.running is None else status.running.batch.started_ms
    return 0 if started_ms is None else max(0, status.now_ms - started_ms) / 1000


def _last_completed_s(status: StreamStatus) -> float | None:
    return status.recent[-1].completed_ms / 1000 if status.recent else None


def _output_failures(status: StreamStatus) -> Mapping[str, int]:
    """Return the failures of each output, starting at 0: so that the first is an increase."""
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
    lags: Counter[str] = Counter()
    for given in status.lags:
        lags[given.name] += given.in_batches
    return lags


def _state_bytes(state: StateStatus) -> int | None:
    """Return the size of all keys; None if only the newest changes were written."""
    written_bytes = None if state.has_changelogs else state.written_bytes
    return written_bytes if state.memory_bytes is None else state.memory_bytes


def _watermark_lag_s(status: StreamStatus) -> float | None:
    """Return the lag of the slowest watermark; None before the first event time."""
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


def _counter(name: str, meaning: str, read: Read, *labels: str) -> Metric:
    return Metric(name, "counter", meaning, read, labels)


def _gauge(name: str, meaning: str, read: Read, *labels: str, of_ended: bool = False) -> Metric:
    return Metric(name, "gauge", meaning, read, labels, of_ended)


def _histogram(name: str, meaning: str, read: Read) -> Metric:
    return Metric(name, "histogram", meaning, read)


METRICS = (
    _gauge(
        "stream_info",
        "Always 1; the labels identify the stream or query and its current run.",
        _info,
        "kind",
        "id",
        "run_id",
    ),
    _gauge(
        "stream_active",
        "1 while the stream or query runs, 0 once it has ended.",
        _value(lambda status: int(_runs(status))),
        of_ended=True,
    ),
    _gauge(
        "stream_failed",
        "1 if the stream or query ended with an error, otherwise 0.",
        _value(lambda status: int(status.phase == "failed")),
        of_ended=True,
    ),
    _gauge(
        "stream_started_timestamp_seconds",
        "Start of this run, in seconds since 1970.",
        _value(lambda status: _seconds(status.started_ms)),
        of_ended=True,
    ),
    _gauge(
        "batch_interval_seconds",
        "Time from one batch of a stream to the next; not present for queries.",
        _value(lambda status: _seconds(status.batch_ms) if status.kind == "stream" else None),
    ),
    _counter(
        "batches",
        "Batches that ended, by outcome: succeeded, failed, empty (no output was due), cancelled.",
        _by_name(lambda status: {**dict.fromkeys(get_args(Outcome), 0), **status.totals.batches}),
        "outcome",
    ),
    _gauge(
        "batches_waiting",
        "Batches that are planned and not running yet.",
        _value(lambda status: len(status.waiting)),
    ),
    _gauge(
        "batch_running_seconds",
        "Running time of the current batch so far; 0 between batches.",
        _value(_running_s),
    ),
    _gauge(
        "batch_last_completed_timestamp_seconds",
        "End of the last batch, with any outcome, in seconds since 1970.",
        _value(_last_completed_s),
        of_ended=True,
    ),
    _histogram(
        "batch_processing_seconds",
        "Processing times of batches.",
        _value(lambda status: status.totals.processing),
    ),
    _histogram(
        "batch_scheduling_delay_seconds",
        "Times that batches waited for earlier ones.",
        _value(lambda status: status.totals.scheduling_delay),
    ),
    _counter(
        "records",
        "Records read by batches.",
        _by_name(lambda status: status.totals.records),
        "source",
    ),
    _counter(
        "rejected_records",
        "Records skipped because they could not be decoded, or because their function failed.",
        _by_name(lambda status: status.totals.rejected),
        "source",
    ),
    _gauge(
        "source_lag_records",
        "Records of a Kafka partition up to its newest known end that no committed batch read.",
        _lag,
        "source",
        "topic",
        "partition",
    ),
    _gauge(
        "source_lag_in_batches_records",
        "The part of the lag that is in batches which are planned and have not ended.",
        _by_name(_lag_in_batches),
        "source",
    ),
    _gauge(
        "input_rate_limit",
        "Records per second that batches may read, if that is limited.",
        _by_name(lambda status: status.rate_limits),
        "source",
    ),
    _gauge(
        "receivers_active",
        "Receivers of a source that are active.",
        _by_name(_receivers_active),
        "source",
    ),
    _counter(
        "output_failures",
        "Batches in which an output failed.",
        _by_name(_output_failures),
        "output",
    ),
    _gauge(
        "state_keys",
        "Keys in the durable state of an operator.",
        _of_states(lambda state: state.keys),
        "uid",
    ),
    _gauge(
        "state_largest_partition_keys",
        "Keys in the largest partition of the durable state of an operator.",
        _of_states(lambda state: max((part.keys for part in state.partitions), default=0)),
        "uid",
    ),
    _gauge(
        "state_bytes",
        "Size of the state of an operator: in memory if known, else in its newest snapshot.",
        _of_states(_state_bytes),
        "uid",
    ),
    _counter(
        "state_commit_seconds",
        "Time that tasks spent making state durable, summed over partitions.",
        _by_name(lambda status: status.totals.state_commit_s),
        "uid",
    ),
    _counter(
        "keys_removed",
        "Keys removed from the state of an operator: timed out, late, or by the program.",
        _by_name(lambda status: status.totals.keys_removed),
        "uid",
    ),
    _counter(
        "late_records_dropped",
        "Records that an operator dropped because they were behind the watermark.",
        _by_name(lambda status: status.totals.late_records),
        "uid",
    ),
    _gauge(
        "watermark_lag_seconds",
        "Distance of the slowest watermark of the last batch from the clock.",
        _value(_watermark_lag_s),
    ),
    _gauge(
        "checkpoint_age_seconds",
        "Time since the newest commit up to which all state is durable, or since the start.",
        _value(_checkpoint_age_s),
    ),
    _gauge(
        "checkpoint_epoch",
        "Number of this driver in the sequence of drivers of the stream; each start increments it.",
        _of_checkpoint(lambda checkpoint: checkpoint.epoch),
    ),
    _gauge(
        "checkpoint_recomputed_batches",
        "Committed batches whose state a restart would recompute.",
        _of_checkpoint(_recomputed),
    ),
    _gauge(
        "checkpoint_snapshot_bytes",
        "Size of the newest snapshots and changelogs of all state.",
        _of_checkpoint(lambda checkpoint: checkpoint.snapshot_bytes),
    ),
    _gauge(
        "checkpoint_free_bytes",
        "Free space on the disk of the checkpoint, if it is on this host.",
        _of_checkpoint(lambda checkpoint: _free(checkpoint.disk)),
    ),
    _gauge(
        "checkpoint_size_bytes",
        "Size of the disk of the checkpoint, if it is on this host.",
        _of_checkpoint(lambda checkpoint: _size(checkpoint.disk)),
    ),
    _gauge(
        "local_state_free_bytes",
        "Free space on the disk where this host keeps copies of stored state.",
        _value(lambda status: _free(status.local_state_disk)),
    ),
    _gauge(
        "local_state_size_bytes",
        "Size of the disk where this host keeps copies of stored state.",
        _value(lambda status: _size(status.local_state_disk)),
    ),
)
"""All metrics, in the order in which they are served."""
