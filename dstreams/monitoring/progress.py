"""What is said of batches by the names that Spark gives it: dicts, and JSON of them."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from operator import itemgetter
from typing import Any, TypeVar

from dstreams.monitoring.events import BatchInfo, InputInfo, OutputOperationInfo, StateOperatorInfo
from dstreams.monitoring.pictures.batches import progress_html, progress_text

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


P = TypeVar("P", bound=ProgressFields)


class RecentProgress(list[P]):
    """Progress, oldest first: a list that shows itself as a table, of many the newest."""

    def __repr__(self) -> str:
        return progress_text(self)

    def _repr_html_(self) -> str:
        return progress_html(self)


class BatchProgress(ProgressFields):
    """The fields that a batch of a stream and one of a query share."""

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
    numInputRows = _field("numInputRows")
    inputRowsPerSecond = _field("inputRowsPerSecond")
    processedRowsPerSecond = _field("processedRowsPerSecond")


class StreamingQueryProgress(BatchProgress):
    """The progress of one trigger.

    Semantics: org.apache.spark.sql.streaming.StreamingQueryProgress (4.3).
    """

    sink = _field("sink")
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


class StreamingProgress(BatchProgress):
    """What one batch of a stream did.

    The fields have the names and units of :class:`StreamingQueryProgress`. ``sink`` is left out, as
    a stream has several outputs; in its place are ``outputs``, one by one with ``id``,
    ``description``, ``durationMs`` and ``failure``, and besides ``outcome``, ``failure`` (None for
    none) and ``schedulingDelayMs``.
    """

    outputs = _field("outputs")
    schedulingDelayMs = _field("schedulingDelayMs")
    outcome = _field("outcome")
    failure = _field("failure")


def query_progress(
    batch: BatchInfo, query_id: str, run_id: str, name: str | None
) -> StreamingQueryProgress:
    """Return the progress of a trigger of a query."""
    [sink] = batch.outputs
    return StreamingQueryProgress(
        **_progress(batch, query_id, run_id, name),
        sink=SinkProgress(
            description=sink.name,
            numOutputRows=-1 if sink.rows is None else sink.rows,
            metrics={},
        ),
        observedMetrics={},
    )


def stream_progress(
    batch: BatchInfo, stream_id: str, run_id: str, name: str | None
) -> StreamingProgress:
    """Return the progress of a batch of a stream."""
    return StreamingProgress(
        **_progress(batch, stream_id, run_id, name),
        outputs=[_output(output) for output in batch.outputs],
        schedulingDelayMs=batch.scheduling_delay_ms,
        outcome=batch.outcome,
        failure=batch.failure,
    )


def _progress(batch: BatchInfo, stream_id: str, run_id: str, name: str | None) -> dict[str, Any]:
    total_ms = batch.durations_ms.get("triggerExecution", batch.processing_delay_ms)
    rows = sum(given.records or 0 for given in batch.inputs)
    return {
        "id": stream_id,
        "runId": run_id,
        "name": name,
        "timestamp": iso(batch.batch_time_ms),
        "batchId": batch.batch_id,
        "batchDuration": total_ms,
        "numInputRows": rows,
        "inputRowsPerSecond": _rate(rows, batch.since_ms),
        "processedRowsPerSecond": _rate(rows, total_ms),
        "durationMs": dict(batch.durations_ms),
        "eventTime": _event_time(batch),
        "stateOperators": [_operator(state) for state in batch.states],
        "sources": [_source(given, total_ms, batch.since_ms) for given in batch.inputs],
    }


def _source(given: InputInfo, total_ms: int, since_ms: int | None) -> SourceProgress:
    rows, offsets = given.records or 0, given.offsets
    return SourceProgress(
        description=given.name,
        startOffset=None if offsets is None else offsets.start,
        endOffset=None if offsets is None else offsets.end,
        latestOffset=None if offsets is None else offsets.latest,
        numInputRows=rows,
        inputRowsPerSecond=_rate(rows, since_ms),
        processedRowsPerSecond=_rate(rows, total_ms),
        metrics={} if offsets is None else dict(offsets.metrics),
    )


def _output(output: OutputOperationInfo) -> ProgressFields:
    return ProgressFields(
        id=output.output_id,
        description=output.name,
        durationMs=output.completed_ms - output.started_ms,
        failure=output.failure,
    )


def _operator(state: StateOperatorInfo) -> StateOperatorProgress:
    metrics = state.metrics
    return StateOperatorProgress(
        operatorName=state.name,
        **{name: metrics.get(metric, 0) for name, metric in _METRICS.items()},
        numShufflePartitions=state.partitions,
        customMetrics={name: count for name, count in metrics.items() if name not in _NOT_CUSTOM},
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


def _event_time(batch: BatchInfo) -> dict[str, str]:
    if batch.watermark_ms is None:
        return {}
    seen, times = {}, batch.event_times
    if times is not None:
        seen = {"max": iso(times.max_ms), "min": iso(times.min_ms), "avg": iso(round(times.avg_ms))}
    return {**seen, "watermark": iso(batch.watermark_ms)}


def _rate(rows: int, time_ms: int | None) -> float:
    return rows * 1000 / time_ms if time_ms else 0.0
