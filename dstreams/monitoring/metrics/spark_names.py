"""The metrics of a stream or query by the names that Spark's own metrics system gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dstreams.monitoring.events import BatchInfo, InputInfo, PendingBatch
from dstreams.monitoring.progress import stream_progress
from dstreams.monitoring.status import StreamStatus


def spark_metrics(status: StreamStatus) -> Mapping[str, float]:
    """Return the metrics of a stream or query, by Spark's names.

    Of a stream they are those below ``<application>.StreamingMetrics.streaming.``: times are
    milliseconds since the epoch, delays milliseconds, and -1 stands for none. Of a query they are
    those below ``spark.streaming.<name>.``: rows a second, milliseconds, and bytes.

    Semantics: org.apache.spark.streaming.StreamingSource and
    org.apache.spark.sql.execution.streaming.MetricsReporter (4.3). As there a batch that failed
    counts as completed; one that was cancelled does not.
    """
    if status.kind == "query":
        prefix, metrics = f"spark.streaming.{status.name}.", _of_query(status)
    else:
        prefix, metrics = f"{status.name}.StreamingMetrics.streaming.", _of_stream(status)
    return {f"{prefix}{name}": value for name, value in metrics.items()}


def _of_stream(status: StreamStatus) -> Mapping[str, float]:
    completed = [batch for batch in status.recent if batch.outcome != "cancelled"]
    running = [] if status.running is None else [status.running.batch]
    last = completed[-1] if completed else None
    retained: list[BatchInfo | PendingBatch] = [*completed, *running, *status.waiting]
    received = max(retained, key=lambda batch: batch.batch_time_ms, default=None)
    counts = status.totals.batches
    processed = sum(status.totals.records.values())
    return {
        "receivers": len(status.receivers),
        "totalCompletedBatches": sum(counts.values()) - counts.get("cancelled", 0),
        "totalReceivedRecords": processed + sum(_records(batch.inputs) for batch in running),
        "totalProcessedRecords": processed,
        "unprocessedBatches": len(status.waiting) + len(running),
        "waitingBatches": len(status.waiting),
        "runningBatches": len(running),
        "retainedCompletedBatches": len(completed),
        **_times("lastCompletedBatch", last),
        "lastCompletedBatch_processingDelay": -1 if last is None else last.processing_delay_ms,
        "lastCompletedBatch_schedulingDelay": -1 if last is None else last.scheduling_delay_ms,
        "lastCompletedBatch_totalDelay": -1 if last is None else last.total_delay_ms,
        **_times("lastReceivedBatch", received),
        "lastReceivedBatch_records": 0 if received is None else _records(received.inputs),
    }


def _times(prefix: str, batch: BatchInfo | PendingBatch | None) -> Mapping[str, int]:
    times = {
        "submissionTime": None if batch is None else batch.submitted_ms,
        "processingStartTime": None if batch is None else batch.started_ms,
        "processingEndTime": batch.completed_ms if isinstance(batch, BatchInfo) else None,
    }
    return {
        f"{prefix}_{name}": -1 if time_ms is None else time_ms for name, time_ms in times.items()
    }


def _of_query(status: StreamStatus) -> Mapping[str, float]:
    succeeded = (batch for batch in reversed(status.recent) if batch.outcome == "succeeded")
    batch = next(succeeded, None)
    progress = None if batch is None else stream_progress(batch, status.id, status.run_id, None)
    states = [] if progress is None else progress.stateOperators
    return {
        "inputRate-total": 0.0 if progress is None else progress.inputRowsPerSecond,
        "processingRate-total": 0.0 if progress is None else progress.processedRowsPerSecond,
        "latency": 0 if progress is None else progress.durationMs.get("triggerExecution", 0),
        "eventTime-watermark": 0 if batch is None else batch.watermark_ms or 0,
        "states-rowsTotal": sum(state.numRowsTotal for state in states),
        "states-usedBytes": sum(state.memoryUsedBytes for state in states),
    }


def _records(inputs: Iterable[InputInfo]) -> int:
    return sum(given.records or 0 for given in inputs)
