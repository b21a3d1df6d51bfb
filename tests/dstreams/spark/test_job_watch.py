"""Jobs that hang are reported, and workers of tasks that take too long are restarted."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext, TaskContext

from dstreams.spark import jvm
from dstreams.spark.job_labels import doing
from dstreams.spark.job_watch import JobWatch, watched
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock
from tests.dstreams.conftest import MakeContext
from tests.support.cluster import StandaloneCluster
from tests.support.programs import running
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark

LOGGER = "dstreams.spark.job_watch"


def stopping(directory: Path, attempts: int) -> Callable[[int, Any], Any]:
    """A task whose worker process is stopped in partition 1, in so many attempts."""

    def run(partition: int, records: Any) -> Any:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        if partition == 1 and attempt < attempts:
            (directory / f"hangs-{attempt}").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return records

    return run


def wait_until_hangs(spark: SparkContext, directory: Path, attempt: int = 0) -> None:
    """Wait until a task hangs in an attempt, and Spark shows that it alone has not ended."""
    wait_for((directory / f"hangs-{attempt}").exists)
    context: Any = spark._jsc.sc()
    tracker, store = context.statusTracker(), context.statusStore()

    def is_shown() -> bool:
        infos = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        found = [jvm._running_stage(spark, store, 0, one.get()) for one in infos if one.isDefined()]
        shown = [(one.completed, [task.attempt for task in one.running]) for one in found]
        return shown == [(1, [attempt])]

    wait_for(is_shown)


def in_background(run: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """Run something on a thread; the list gets its result, or what it raised."""
    results: list[Any] = []

    def target() -> None:
        try:
            results.append(run())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread, results


def messages(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [m for m in caplog.messages if word in m]


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, LOGGER):
        yield


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each look."""
    seen: list[int] = []
    look = JobWatch.look

    def noted(watch: JobWatch) -> None:
        look(watch)
        seen.append(len(seen))

    monkeypatch.setattr(JobWatch, "look", noted)
    return seen


def advance_until(clock: ManualClock, looks: list[int], condition: Callable[[], object]) -> None:
    """Let the time pass from one look to the next until something has come true."""
    for _ in range(200):
        before = len(looks)
        clock.advance(5_000)
        wait_for(lambda before=before: condition() or len(looks) > before)
        if condition():
            return
    raise AssertionError("did not come true")


@pytest.mark.deep
def test_a_stream_whose_worker_hangs_says_so_and_goes_on_after_the_timeout(
    make_ssc: MakeContext,
    clock: ManualClock,
    looks: list[int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With batch, phase, partition and host; the batch has each record once."""
    ssc = make_ssc(task_timeout_ms=100_000)
    seen: list[Any] = []
    hanging = stopping(tmp_path, 1)
    numbers = ssc.queueStream([ssc.sparkContext.parallelize(range(4), 2)])
    numbers.transform(lambda rdd: rdd.mapPartitionsWithIndex(hanging)).foreachRDD(
        lambda rdd: seen.append(rdd.collect())
    )
    thread, results = in_background(ssc.step)
    wait_until_hangs(ssc.sparkContext, tmp_path)
    assert caplog.messages == []
    advance_until(clock, looks, lambda: messages(caplog, "has been running"))
    (report,) = messages(caplog, "has been running")
    assert report.startswith("batch 0 at 1000 ms ")
    assert "in phase: output operation 0: foreachRDD at test_job_watch.py:" in report
    assert "partition 1 of stage " in report
    assert re.search(r"has been running for (40|45) s on host \S+ \(task \d+, attempt 0\)", report)
    assert report.endswith("1 of 2 tasks have ended")
    advance_until(clock, looks, lambda: messages(caplog, "took longer"))
    (restart,) = messages(caplog, "took longer")
    assert restart.endswith(
        "took longer than spark.dstreams.task.timeout of 100 s in attempt 1 of 4; "
        "its Python worker is restarted"
    )
    thread.join(300)
    assert [info.outcome for info in results[0]] == ["succeeded"]
    assert seen == [[0, 1, 2, 3]]


def test_reports_come_each_minute(
    sc: SparkContext, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of a function on the driver, and only as long as the batch runs."""
    watch = JobWatch(sc, clock)
    with watch.watching():
        with watched("batch 3"):
            doing("output operation 0: foreachRDD")
            for _ in range(40):  # of 5 s each
                clock.advance(5_000)
                watch.look()
        clock.advance(200_000)
        watch.look()
    assert caplog.messages == [
        f"batch 3 has been running for {age} s, in phase: output operation 0: foreachRDD, for "
        f"{age} s; Spark is not running a job for it, so the driver itself is busy or waiting"
        for age in (40, 100, 160)
    ]


def test_what_moves_is_not_reported(
    sc: SparkContext, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch may be long; it hangs only if one thing of it takes long."""
    watch = JobWatch(sc, clock)
    with watch.watching(), watched("batch 3"):
        for number in range(20):
            doing(f"output operation {number}: foreachRDD")
            for _ in range(8):
                clock.advance(5_000)
                watch.look()
    assert caplog.messages == []


@pytest.mark.deep
def test_a_task_that_hangs_in_all_attempts_fails_its_job(
    sc: SparkContext,
    clock: ManualClock,
    looks: list[int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a task that fails in all of them."""
    watch = JobWatch(sc, clock, timeout_ms=60_000)
    hanging = stopping(tmp_path, 4)

    def run() -> object:
        with watch.watching(), watched("batch 3"):
            return sc.parallelize(range(4), 2).mapPartitionsWithIndex(hanging).collect()

    thread, results = in_background(run)
    for attempt in range(4):
        wait_until_hangs(sc, tmp_path, attempt)
        logged = len(messages(caplog, "took longer"))
        advance_until(clock, looks, lambda logged=logged: messages(caplog, "took")[logged:])
    thread.join(300)
    assert messages(caplog, "took longer")[-1].endswith("attempt 4 of 4; its job is cancelled")
    assert "spark.dstreams.task.timeout of 60 s in all 4 attempts" in str(results[0])


def test_jobs_of_others_are_left_alone(
    sc: SparkContext, clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program may run its own jobs in addition to its streams."""

    def wait(records: Any) -> Any:
        (tmp_path / "runs").touch()
        while not (tmp_path / "leave").exists():
            threading.Event().wait(0.05)
        return records

    def run() -> object:
        return sc.parallelize(range(2), 1).mapPartitions(wait).collect()

    thread, results = in_background(run)
    wait_for((tmp_path / "runs").exists)
    watch = JobWatch(sc, clock, timeout_ms=10_000)
    with watch.watching(), watched("batch 3"):
        for _ in range(8):
            clock.advance(5_000)
            watch.look()
    (tmp_path / "leave").touch()
    thread.join(300)
    assert results == [[0, 1]]
    assert caplog.messages == []


@pytest.mark.deep
def test_a_query_whose_worker_hangs_goes_on(
    sc: SparkContext, looks: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the same setting, of its session; each row is there once."""
    clock = ManualClock()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "lines.txt").write_text("a\nb\n")
    hanging = stopping(tmp_path, 1)
    conf = {"spark.dstreams.task.timeout": "60s"}
    session = StreamSession(sc, conf, clock=clock)
    seen: list[Any] = []

    def output(rdd: RDD[Any], batch_id: int) -> None:
        seen.extend(rdd.repartition(2).mapPartitionsWithIndex(hanging).collect())

    query = (
        session.readStream.text(str(tmp_path / "in"))
        .writeStream.queryName("lines")
        .foreachBatch(output)
        .trigger(availableNow=True)
        .start(checkpointLocation=str(tmp_path / "checkpoint"))
    )
    try:
        wait_until_hangs(sc, tmp_path)
        advance_until(clock, looks, lambda: messages(caplog, "its Python worker is restarted"))
        assert query.awaitTermination(300)
    finally:
        query.stop()
    assert sorted(seen) == ["a", "b"]


PROGRAM = """
import logging, os, sys, threading
from dstreams import StreamingContext, tuned_context
from dstreams.testing import ManualClock

class Reported(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), flush=True)
        os._exit(0)

logging.getLogger("dstreams.spark.job_watch").addHandler(Reported())
clock = ManualClock()

def pass_time():
    while not spark.statusTracker().getActiveStageIds():
        threading.Event().wait(0.1)
    while True:
        clock.advance(1000)
        threading.Event().wait(0.02)

spark = tuned_context("waits", sys.argv[1], {"spark.ui.enabled": "false", "spark.cores.max": "4"})
ssc = StreamingContext(spark, 1, clock=clock)
ssc.queueStream([[1]]).pprint()
threading.Thread(target=pass_time, daemon=True).start()
ssc.start()
"""


@pytest.mark.deep
def test_a_cluster_without_executors_is_reported_at_the_start(tmp_path: Path) -> None:
    """By master and cores, instead of waiting for ever without a word."""
    with StandaloneCluster(tmp_path, hosts=()) as cluster:
        with running("-c", PROGRAM, cluster.url) as program:
            assert program.wait() == 0, program.lines
        (report,) = [line for line in program.lines if "has been running" in line]
    assert report.startswith("the start of the streams has been running for ")
    assert re.search(r"stage 0 waits for an executor, 0 of \d tasks have ended; ", report)
    assert (
        f"master {cluster.url}: wanted 4 cores (spark.cores.max), has 0 cores in 0 executors"
        in report
    )
