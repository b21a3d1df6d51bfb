"""What a query says of its batches, by the names that Spark gives it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from operator import itemgetter
from time import perf_counter
from typing import Any, NamedTuple, Protocol, runtime_checkable

from dstreams.kernel.source import PlannedInput
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.structured.operators.event_time_stats import EventTimeStats
from dstreams.structured.operators.physical_operator import StatefulOperator

_CYCLE_YEARS = 400  # after which the calendar is as it was
_CYCLE_S = 146_097 * 86_400


class ProgressFields(dict[str, Any]):
    """A dict by Spark's names, whose fields are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}") from None

    @property
    def json(self) -> str:
        """The fields as JSON in one line."""
        return json.dumps(self)

    @property
    def prettyJson(self) -> str:
        """The fields as JSON for people."""
        return json.dumps(self, indent=2)


def _field(name: str) -> Any:
    return property(itemgetter(name))


class StreamingQueryProgress(ProgressFields):
    """The progress of one trigger.

    Semantics: org.apache.spark.sql.streaming.StreamingQueryProgress (4.3).
    """

    id = _field("id")
    runId = _field("runId")
    name = _field("name")
    timestamp = _field("timestamp")
    batchId = _field("batchId")
    batchDuration = _field("batchDuration")
    durationMs = _field("durationMs")
    eventTime = _field("eventTime")
    stateOperators = _field("stateOperators")
    sources = _field("sources")
    sink = _field("sink")
    numInputRows = _field("numInputRows")
    inputRowsPerSecond = _field("inputRowsPerSecond")
    processedRowsPerSecond = _field("processedRowsPerSecond")
    observedMetrics = _field("observedMetrics")


class StateOperatorProgress(ProgressFields):
    """What a stateful operator did in a batch.

    Semantics: org.apache.spark.sql.streaming.StateOperatorProgress (4.3).
    """

    operatorName = _field("operatorName")
    numRowsTotal = _field("numRowsTotal")
    numRowsUpdated = _field("numRowsUpdated")
    numRowsRemoved = _field("numRowsRemoved")
    allUpdatesTimeMs = _field("allUpdatesTimeMs")
    allRemovalsTimeMs = _field("allRemovalsTimeMs")
    commitTimeMs = _field("commitTimeMs")
    memoryUsedBytes = _field("memoryUsedBytes")
    numRowsDroppedByWatermark = _field("numRowsDroppedByWatermark")
    numShufflePartitions = _field("numShufflePartitions")
    numStateStoreInstances = _field("numStateStoreInstances")
    customMetrics = _field("customMetrics")


class SourceProgress(ProgressFields):
    """What a batch read from a source.

    Semantics: org.apache.spark.sql.streaming.SourceProgress (4.3).
    """

    description = _field("description")
    startOffset = _field("startOffset")
    endOffset = _field("endOffset")
    latestOffset = _field("latestOffset")
    numInputRows = _field("numInputRows")
    inputRowsPerSecond = _field("inputRowsPerSecond")
    processedRowsPerSecond = _field("processedRowsPerSecond")
    metrics = _field("metrics")


class SinkProgress(ProgressFields):
    """What a batch gave to the sink; -1 rows where nobody counted.

    Semantics: org.apache.spark.sql.streaming.SinkProgress (4.3).
    """

    description = _field("description")
    numOutputRows = _field("numOutputRows")
    metrics = _field("metrics")


class ToldOffsets(NamedTuple):
    """Offsets of a batch as people know them, where those of the checkpoint say more or less."""

    start: Any
    end: Any
    latest: Any
    metrics: Mapping[str, str]


@runtime_checkable
class TellsOffsets(Protocol):
    """A reader whose offsets are told in other words than they are written."""

    def told(self, planned: PlannedInput) -> ToldOffsets: ...


def told_offsets(reader: object, planned: PlannedInput, latest: Any) -> ToldOffsets:
    """Return what progress says of the offsets of a batch."""
    if isinstance(reader, TellsOffsets):
        return reader.told(planned)
    return ToldOffsets(planned.start, planned.end, latest, {})


@dataclass(frozen=True)
class SourceFacts:
    """What a batch read from a source; *rows* is None where nobody counted."""

    description: str
    offsets: ToldOffsets
    rows: int | None


@dataclass(frozen=True)
class ProgressFacts:
    """What a progress is made of.

    *output_rows* is None where nobody counted, *watermark_ms* where there is none;
    *since_trigger_ms* is the time from the trigger before, None for the first.
    """

    query_id: str
    run_id: str
    name: str | None
    batch_id: int
    timestamp_ms: int
    durations_ms: Mapping[str, int]
    sources: Sequence[SourceFacts]
    sink: str
    output_rows: int | None
    event_time: EventTimeStats | None
    watermark_ms: int | None
    operators: Sequence[StateOperatorProgress]
    since_trigger_ms: int | None = None


class TriggerTimer:
    """Begins with the trigger; its parts are measured one by one, and added up by name."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self._parts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure what runs inside."""
        started = perf_counter()
        try:
            yield
        finally:
            self._parts[name] = self._parts.get(name, 0.0) + perf_counter() - started

    def durations_ms(self) -> dict[str, int]:
        """Return the parts, and the whole so far, in milliseconds."""
        parts = {name: round(seconds * 1000) for name, seconds in self._parts.items()}
        return {**parts, "triggerExecution": round((perf_counter() - self._started) * 1000)}


def make_progress(facts: ProgressFacts) -> StreamingQueryProgress:
    """Return the progress of a trigger."""
    total_ms = facts.durations_ms.get("triggerExecution", 0)
    rows = sum(source.rows or 0 for source in facts.sources)
    return StreamingQueryProgress(
        id=facts.query_id,
        runId=facts.run_id,
        name=facts.name,
        timestamp=iso(facts.timestamp_ms),
        batchId=facts.batch_id,
        batchDuration=total_ms,
        numInputRows=rows,
        inputRowsPerSecond=_rate(rows, facts.since_trigger_ms),
        processedRowsPerSecond=_rate(rows, total_ms),
        durationMs=dict(facts.durations_ms),
        eventTime=_event_time(facts.event_time, facts.watermark_ms),
        stateOperators=list(facts.operators),
        sources=[_source(source, total_ms, facts.since_trigger_ms) for source in facts.sources],
        sink=SinkProgress(
            description=facts.sink,
            numOutputRows=-1 if facts.output_rows is None else facts.output_rows,
            metrics={},
        ),
        observedMetrics={},
    )


def _source(facts: SourceFacts, total_ms: int, since_trigger_ms: int | None) -> SourceProgress:
    rows = facts.rows or 0
    return SourceProgress(
        description=facts.description,
        startOffset=facts.offsets.start,
        endOffset=facts.offsets.end,
        latestOffset=facts.offsets.latest,
        numInputRows=rows,
        inputRowsPerSecond=_rate(rows, since_trigger_ms),
        processedRowsPerSecond=_rate(rows, total_ms),
        metrics=dict(facts.offsets.metrics),
    )


def operator_progress(
    operator: StatefulOperator, metrics: StateMetrics | None
) -> StateOperatorProgress:
    """Return what a stateful operator says of a batch."""
    counts = StateMetrics() if metrics is None else metrics
    info = operator.getStateInfo()
    custom = {name: count for name, count in counts.as_dict().items() if name not in _NOT_CUSTOM}
    return StateOperatorProgress(
        operatorName=operator.shortName,
        **{name: getattr(counts, metric) for name, metric in _METRICS.items()},
        numShufflePartitions=info.numPartitions,
        customMetrics=custom,
    )


_METRICS = {
    "numRowsTotal": "numTotalStateRows",
    "numRowsUpdated": "numUpdatedStateRows",
    "allUpdatesTimeMs": "allUpdatesTimeMs",
    "numRowsRemoved": "numRemovedStateRows",
    "allRemovalsTimeMs": "allRemovalsTimeMs",
    "commitTimeMs": "commitTimeMs",
    "memoryUsedBytes": "stateMemory",
    "numRowsDroppedByWatermark": "numRowsDroppedByWatermark",
    "numStateStoreInstances": "numStateStoreInstances",
}
"""Which metric of an operator each field of its progress has."""

_NOT_CUSTOM = {*_METRICS.values(), "eventTimeMaxMs", "nextTimeoutMs"}


def iso(time_ms: int) -> str:
    """Return a time as Spark writes it: UTC, with milliseconds, of any year.

    >>> iso(1500)
    '1970-01-01T00:00:01.500Z'
    >>> iso(1_600_000_000_000_000)  # microseconds, say, where milliseconds were asked for
    '52671-12-25T12:26:40.000Z'
    """
    cycles, seconds = divmod(time_ms // 1000, _CYCLE_S)
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    year = moment.year + _CYCLE_YEARS * cycles
    return f"{year:04d}-{moment:%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def _event_time(stats: EventTimeStats | None, watermark_ms: int | None) -> dict[str, str]:
    if watermark_ms is None:
        return {}
    seen = {}
    if stats is not None:
        seen = {
            "max": iso(stats.max_ms),
            "min": iso(stats.min_ms),
            "avg": iso(round(stats.avg_ms)),
        }
    return {**seen, "watermark": iso(watermark_ms)}


def _rate(rows: int, time_ms: int | None) -> float:
    return rows * 1000 / time_ms if time_ms else 0.0
