"""What a query says of its batches, by the names that Spark gives it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from dstreams.rdd.state_metrics import StateMetrics
from dstreams.structured.operators.event_time_stats import EventTimeStats
from dstreams.structured.operators.physical_operator import StatefulOperator


class StreamingQueryProgress(dict[str, Any]):
    """The progress of one trigger: a dict by Spark's names, whose fields are attributes as well.

    Semantics: org.apache.spark.sql.streaming.StreamingQueryProgress (4.3).
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def json(self) -> str:
        """The progress as JSON in one line."""
        return json.dumps(self)

    @property
    def prettyJson(self) -> str:
        """The progress as JSON for people."""
        return json.dumps(self, indent=2)


@dataclass(frozen=True)
class SourceProgress:
    """What a batch read from a source.

    Args:
        description: name of the source.
        start: offset before.
        end: offset after.
        latest: how far the source had come.
        rows: how many records; None where nobody counted.
    """

    description: str
    start: Any
    end: Any
    latest: Any
    rows: int | None

    def to_dict(self, seconds: float) -> dict[str, Any]:
        """Return Spark's fields of it."""
        return {
            "description": self.description,
            "startOffset": self.start,
            "endOffset": self.end,
            "latestOffset": self.latest,
            "numInputRows": self.rows or 0,
            "inputRowsPerSecond": _rate(self.rows or 0, seconds),
            "processedRowsPerSecond": _rate(self.rows or 0, seconds),
            "metrics": {},
        }


@dataclass(frozen=True)
class ProgressFacts:
    """What a progress is made of.

    Args:
        query_id: identity of the query.
        run_id: identity of the run.
        name: what the user calls the query, or None.
        batch_id: number of the batch.
        timestamp_ms: its time.
        durations_ms: how long each of its parts took.
        sources: what was read.
        sink: name of the sink.
        output_rows: how many rows went out, None where nobody counted.
        event_time: of the batch's records, None without any.
        watermark_ms: the watermark that the batch went by, None where there is none.
        operators: what the stateful operators say.
    """

    query_id: str
    run_id: str
    name: str | None
    batch_id: int
    timestamp_ms: int
    durations_ms: Mapping[str, int]
    sources: Sequence[SourceProgress]
    sink: str
    output_rows: int | None
    event_time: EventTimeStats | None
    watermark_ms: int | None
    operators: Sequence[Mapping[str, Any]]


def make_progress(facts: ProgressFacts) -> StreamingQueryProgress:
    """Return the progress of a trigger."""
    total_ms = facts.durations_ms.get("triggerExecution", 0)
    seconds = total_ms / 1000
    rows = sum(source.rows or 0 for source in facts.sources)
    return StreamingQueryProgress(
        id=facts.query_id,
        runId=facts.run_id,
        name=facts.name,
        timestamp=iso(facts.timestamp_ms),
        batchId=facts.batch_id,
        batchDuration=total_ms,
        numInputRows=rows,
        inputRowsPerSecond=_rate(rows, seconds),
        processedRowsPerSecond=_rate(rows, seconds),
        durationMs=dict(facts.durations_ms),
        eventTime=_event_time(facts.event_time, facts.watermark_ms),
        stateOperators=[dict(operator) for operator in facts.operators],
        sources=[source.to_dict(seconds) for source in facts.sources],
        sink={
            "description": facts.sink,
            "numOutputRows": -1 if facts.output_rows is None else facts.output_rows,
            "metrics": {},
        },
        observedMetrics={},
    )


def operator_progress(operator: StatefulOperator, metrics: StateMetrics | None) -> dict[str, Any]:
    """Return what a stateful operator says of a batch."""
    counts = StateMetrics() if metrics is None else metrics
    info = operator.getStateInfo()
    custom = {name: count for name, count in counts.as_dict().items() if name not in _NAMED_METRICS}
    return {
        "operatorName": operator.shortName,
        "numRowsTotal": counts.numTotalStateRows,
        "numRowsUpdated": counts.numUpdatedStateRows,
        "allUpdatesTimeMs": counts.allUpdatesTimeMs,
        "numRowsRemoved": counts.numRemovedStateRows,
        "allRemovalsTimeMs": counts.allRemovalsTimeMs,
        "commitTimeMs": counts.commitTimeMs,
        "memoryUsedBytes": counts.stateMemory,
        "numRowsDroppedByWatermark": counts.numRowsDroppedByWatermark,
        "numShufflePartitions": info.numPartitions,
        "numStateStoreInstances": counts.numStateStoreInstances,
        "customMetrics": custom,
    }


_NAMED_METRICS = {
    "numTotalStateRows",
    "numUpdatedStateRows",
    "allUpdatesTimeMs",
    "numRemovedStateRows",
    "allRemovalsTimeMs",
    "commitTimeMs",
    "stateMemory",
    "numRowsDroppedByWatermark",
    "numStateStoreInstances",
    "eventTimeMaxMs",
    "nextTimeoutMs",
}


def iso(time_ms: int) -> str:
    """Return a time as Spark writes it: UTC, with milliseconds.

    >>> iso(1500)
    '1970-01-01T00:00:01.500Z'
    """
    moment = datetime.fromtimestamp(time_ms // 1000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


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


def _rate(rows: int, seconds: float) -> float:
    return rows / seconds if seconds > 0 else 0.0
