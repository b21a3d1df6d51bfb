"""The progress of batches under Spark's names, as dicts and JSON, and the timer of their phases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from operator import itemgetter
from time import perf_counter
from typing import Any, TypeVar

from dstreams.monitoring.display import Rendered
from dstreams.monitoring.events import BatchInfo, InputInfo, OutputOperationInfo, StateOperatorInfo

TOTAL = "triggerExecution"

_CYCLE_YEARS = 400  # after which the calendar repeats
_CYCLE_S = 146_097 * 86_400


class PhaseTimer:
    """Measures the phases of a batch and adds up phases of the same name.

    Args:
        before_ms: phases that were measured earlier, such as those of planning.
    """

    def __init__(self, before_ms: Mapping[str, int] | None = None) -> None:
        self._started = perf_counter()
        self._before_ms = dict(before_ms or {})
        self._phases: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the body, even if it fails."""
        started = perf_counter()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + perf_counter() - started

    def phases_ms(self) -> dict[str, int]:
        """Return the phases so far, in milliseconds."""
        measured = {name: round(seconds * 1000) for name, seconds in self._phases.items()}
        return {**self._before_ms, **measured}

    def durations_ms(self) -> dict[str, int]:
        """Return the phases and the total time since the timer was created, in milliseconds."""
        total_ms = round((perf_counter() - self._started) * 1000)
        return {**self.phases_ms(), TOTAL: total_ms + sum(self._before_ms.values())}


class ProgressFields(dict[str, Any]):
    """A dict under Spark's names whose fields are attributes as well."""

    def __init_subclass__(cls, fields: str = "") -> None:
        for name in fields.split():
            setattr(cls, name, property(itemgetter(name)))

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}") from None

    @property
    def json(self) -> str:
        """The fields as JSON on one line."""
        return json.dumps(self, default=str)

    @property
    def prettyJson(self) -> str:
        """The fields as indented JSON."""
        return json.dumps(self, indent=2, default=str)


P = TypeVar("P", bound=ProgressFields)


class RecentProgress(Rendered, list[P]):
    """Progress, oldest first; displayed as a table of the newest batches."""


class BatchProgress(
    ProgressFields,
    fields="id runId name timestamp batchId batchDuration durationMs eventTime stateOperators "
    "sources numInputRows inputRowsPerSecond processedRowsPerSecond",
):
    """The fields common to a batch of a stream and one of a query."""


class StreamingQueryProgress(BatchProgress, fields="sink observedMetrics"):
    """The progress of one trigger.

    ``observedMetrics`` has the metrics of each ``observe``, by its name.

    Semantics: org.apache.spark.sql.streaming.StreamingQueryProgress (4.3).
    """


class ObservedMetrics(ProgressFields):
    """The metrics of an ``observe``, as items and attributes.

    Semantics: the Row in ``observedMetrics`` of PySpark.
    """


class StateOperatorProgress(
    ProgressFields,
    fields="operatorName numRowsTotal numRowsUpdated numRowsRemoved allUpdatesTimeMs "
    "allRemovalsTimeMs commitTimeMs memoryUsedBytes numRowsDroppedByWatermark "
    "numShufflePartitions numStateStoreInstances customMetrics",
):
    """The metrics of a stateful operator in a batch.

    Semantics: org.apache.spark.sql.streaming.StateOperatorProgress (4.3).
    """


class SourceProgress(
    ProgressFields,
    fields="description startOffset endOffset latestOffset numInputRows inputRowsPerSecond "
    "processedRowsPerSecond metrics",
):
    """The input of a batch from one source.

    Semantics: org.apache.spark.sql.streaming.SourceProgress (4.3).
    """


class SinkProgress(ProgressFields, fields="description numOutputRows metrics"):
    """The output of a batch to the sink; -1 rows if they were not counted.

    Semantics: org.apache.spark.sql.streaming.SinkProgress (4.3).
    """


class StreamingProgress(BatchProgress, fields="outputs schedulingDelayMs outcome failure"):
    """The progress of one batch of a stream.

    The fields have the names and units of :class:`StreamingQueryProgress`. As a stream has several
    outputs, ``outputs`` replaces ``sink``: a list with ``id``, ``description``, ``durationMs`` and
    ``failure`` of each. In addition there are ``outcome``, ``failure`` (None if it succeeded) and
    ``schedulingDelayMs``.
    """


def query_progress(
    batch: BatchInfo, query_id: str, run_id: str, name: str | None
) -> StreamingQueryProgress:
    """Return the progress of a trigger of a query."""
    sink, *others = batch.outputs  # the others get late records and records that failed
    return StreamingQueryProgress(
        **_progress(batch, query_id, run_id, name),
        sink=SinkProgress(
            description=sink.name,
            numOutputRows=-1 if sink.rows is None else sink.rows,
            metrics={each.name: str(each.rows) for each in others if each.rows is not None},
        ),
        observedMetrics={
            name: ObservedMetrics(metrics) for name, metrics in batch.observed.items()
        },
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
    total_ms = batch.durations_ms.get(TOTAL, batch.processing_delay_ms)
    rows = sum(given.records or 0 for given in batch.inputs)
    return {
        "id": stream_id,
        "runId": run_id,
        "name": name,
        "timestamp": spark_time(batch.batch_time_ms),
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
"""The metric that each field of :class:`StateOperatorProgress` is read from."""

_NOT_CUSTOM = {*_METRICS.values(), "eventTimeMaxMs", "nextTimeoutMs"}


def spark_time(time_ms: int) -> str:
    """Return a time as Spark writes it: in UTC, with milliseconds, for any year.

    >>> spark_time(1500)
    '1970-01-01T00:00:01.500Z'
    >>> spark_time(1_600_000_000_000_000)  # microseconds by mistake, for example
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
        seen = {
            "max": spark_time(times.max_ms),
            "min": spark_time(times.min_ms),
            "avg": spark_time(round(times.avg_ms)),
        }
    return {**seen, "watermark": spark_time(batch.watermark_ms)}


def _rate(rows: int, time_ms: int | None) -> float:
    return rows * 1000 / time_ms if time_ms else 0.0
