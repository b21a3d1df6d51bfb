"""Metrics by the names of Spark. No Spark."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pyspark
import pytest

from dstreams.monitoring.events import PendingBatch
from dstreams.monitoring.metrics.spark_names import spark_metrics
from dstreams.monitoring.totals import Totals
from tests.support.statuses import a_batch, a_status

OF_STREAMS = "app.StreamingMetrics.streaming."
OF_QUERIES = "spark.streaming.app."


def test_a_stream_has_all_that_a_stream_of_spark_has() -> None:
    """Two batches that ran, one of them cancelled, one that runs and one that waits."""
    batches = (a_batch(0), a_batch(1, outcome="cancelled"))
    totals = Totals().with_batch(batches[0]).with_batch(batches[1])
    waiting = PendingBatch(3, 4000, batches[0].inputs[:1], (), 4000)
    assert spark_metrics(a_status(recent=batches, totals=totals, waiting=(waiting,))) == {
        f"{OF_STREAMS}{name}": value
        for name, value in {
            "receivers": 1,
            "totalCompletedBatches": 1,
            "totalReceivedRecords": 300,
            "totalProcessedRecords": 200,
            "unprocessedBatches": 2,
            "waitingBatches": 1,
            "runningBatches": 1,
            "retainedCompletedBatches": 1,
            "lastCompletedBatch_submissionTime": 1000,
            "lastCompletedBatch_processingStartTime": 1020,
            "lastCompletedBatch_processingEndTime": 1320,
            "lastCompletedBatch_processingDelay": 300,
            "lastCompletedBatch_schedulingDelay": 20,
            "lastCompletedBatch_totalDelay": 320,
            "lastReceivedBatch_submissionTime": 4000,
            "lastReceivedBatch_processingStartTime": -1,
            "lastReceivedBatch_processingEndTime": -1,
            "lastReceivedBatch_records": 100,
        }.items()
    }


def test_before_the_first_batch_there_is_none() -> None:
    """Which is -1 of times and delays, and 0 of counts."""
    metrics = spark_metrics(a_status(recent=(), totals=Totals(), waiting=(), running=None))
    assert metrics[f"{OF_STREAMS}lastCompletedBatch_totalDelay"] == -1
    assert metrics[f"{OF_STREAMS}lastReceivedBatch_submissionTime"] == -1
    assert metrics[f"{OF_STREAMS}lastReceivedBatch_records"] == 0
    assert metrics[f"{OF_STREAMS}totalReceivedRecords"] == 0


def test_a_query_has_all_that_a_query_of_spark_has() -> None:
    """Of its newest batch that went well."""
    done = a_batch(0, outcome="succeeded", watermark_ms=700)
    status = a_status(kind="query", recent=(done, a_batch(1)))
    assert spark_metrics(status) == {
        f"{OF_QUERIES}inputRate-total": 100,
        f"{OF_QUERIES}processingRate-total": 250,
        f"{OF_QUERIES}latency": 400,
        f"{OF_QUERIES}eventTime-watermark": 700,
        f"{OF_QUERIES}states-rowsTotal": 40,
        f"{OF_QUERIES}states-usedBytes": 4096,
    }
    assert set(spark_metrics(a_status(kind="query", recent=())).values()) == {0}


@pytest.mark.parametrize(
    ("jar", "member", "kind", "prefix"),
    [
        (
            "spark-streaming_2.1?-*.jar",
            "org/apache/spark/streaming/StreamingSource.class",
            "stream",
            OF_STREAMS,
        ),
        (
            "spark-sql_2.1?-*.jar",
            r"org/apache/spark/sql/execution/streaming/(runtime/)?MetricsReporter.class",
            "query",
            OF_QUERIES,
        ),
    ],
)
def test_names_are_those_in_the_jars_of_spark(
    jar: str, member: str, kind: str, prefix: str
) -> None:
    """Each name stands as a constant in the class that registers it there."""
    [path] = Path(pyspark.__file__).with_name("jars").glob(jar)
    with zipfile.ZipFile(path) as archive:
        [name] = [one for one in archive.namelist() if re.fullmatch(member, one)]
        constants = archive.read(name)
    names = [one.removeprefix(prefix) for one in spark_metrics(a_status(kind=kind))]
    assert [name for name in names if name.encode() not in constants] == []
