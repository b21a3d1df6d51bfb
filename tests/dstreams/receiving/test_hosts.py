"""Where receivers run: on an executor, in a job that ends when it should and comes back if not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import Receiver, Settings, StreamingContext, StreamingListener, tuned_context
from dstreams.receiving.hosts import ExecutorHost
from dstreams.receiving.supervisor import Notice
from tests.support.receiving import SETTINGS, Acknowledging, Store
from tests.support.waiting import wait_for


class Hosted:
    """A receiver on an executor, and what is told of it."""

    def __init__(self, spark: SparkContext, receiver: Receiver) -> None:
        self.store = Store()
        self.notices: list[Notice] = []
        self.host = ExecutorHost(
            receiver, "numbers", self.store, self.notices.append, spark, SETTINGS
        )

    @property
    def kinds(self) -> list[str]:
        return [notice.kind for notice in self.notices]


class Once(Receiver):
    """Stores one record."""

    def onStart(self) -> None:
        self.storeAll(["record"])

    def onStop(self) -> None:
        pass


class Frail(Once):
    """Cannot be unpickled the first five times: more often than Spark tries a task."""

    def __init__(self, tries: Path) -> None:
        super().__init__()
        self.tries = tries

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        with self.tries.open("a") as file:
            file.write(".")
        if self.tries.stat().st_size <= 5:
            raise ValueError("no such library here")


@pytest.fixture
def hosted(sc: SparkContext) -> Iterator[Hosted]:
    made = Hosted(sc, Once())
    yield made
    made.host.request_stop()
    made.host.abandon()
    assert made.host.wait(60)


def jobs_of(sc: SparkContext, host: ExecutorHost) -> int:
    """How many jobs of a receiver run."""
    running = set(sc.statusTracker().getActiveJobsIds())
    return len(running & set(sc.statusTracker().getJobIdsForGroup(host._group)))


def test_a_job_of_its_own(sc: SparkContext, hosted: Hosted) -> None:
    """One job in one group, which ends when the receiver is asked to stop."""
    hosted.host.start()
    wait_for(lambda: hosted.store.records == ["record"], 60)
    assert jobs_of(sc, hosted.host) == 1
    assert hosted.host.place.executor_id == "driver"
    assert hosted.host.place.host
    hosted.host.request_stop()
    assert hosted.host.wait(60)
    wait_for(lambda: jobs_of(sc, hosted.host) == 0)
    assert hosted.kinds == ["started", "stopped"]


def test_a_stop_before_it_has_begun(hosted: Hosted) -> None:
    """The job is not waited for."""
    hosted.host.start()
    hosted.host.request_stop()
    assert hosted.host.wait(30)


def test_never_started(sc: SparkContext) -> None:
    """There is nothing to wait for, and no core to give back."""
    host = Hosted(sc, Once()).host
    host.request_stop()
    assert host.wait(0)
    host.abandon()


def test_a_job_that_fails_is_run_again(sc: SparkContext, tmp_path: Path) -> None:
    """Spark tries the task four times; after that it is a new job, and listeners are told."""
    hosted = Hosted(sc, Frail(tmp_path / "tries"))
    hosted.host.start()
    wait_for(lambda: hosted.store.records == ["record"], 90)
    hosted.host.request_stop()
    assert hosted.host.wait(60)
    hosted.host.abandon()
    failed = [notice for notice in hosted.notices if notice.kind == "error"]
    assert "its task failed: " in failed[0].message
    assert "ValueError: no such library here" in failed[0].message
    assert failed[0].message.endswith("starting again in 1 ms")


class Places(StreamingListener):
    """Notes where receivers were started."""

    def __init__(self) -> None:
        self.executors: list[str] = []

    def onReceiverStarted(self, receiverStarted: Any) -> None:
        self.executors.append(receiverStarted.receiverInfo().executorId())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def lose_an_executor(directory: Path) -> None:
    """Run a stream on a cluster of two executors, and kill the one that has the receiver."""
    path = str(directory / "acknowledged")
    conf = {"spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path)}
    sc = tuned_context(
        "executors", "local-cluster[2,1,512]", {"spark.executor.memory": "512m", **conf}
    )
    ssc = StreamingContext(sc, 0.5, settings=Settings(receiver_restart_delay_ms=100))
    seen: list[tuple[int, int]] = []
    ssc.receiverStream(Acknowledging(path)).foreachRDD(lambda rdd: seen.extend(rdd.collect()))
    places = Places()
    ssc.addStreamingListener(places)
    ssc.start()
    wait_for(lambda: len(seen) > 50, 120)
    worker = seen[0][0]
    os.kill(parent_of(parent_of(worker)), signal.SIGKILL)
    wait_for(lambda: any(pid != worker for pid, _ in list(seen)), 120)
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    sc.stop()
    lines = Path(path).read_text(encoding="ascii").splitlines()
    lost = Counter(tuple(map(int, line.split())) for line in lines) - Counter(seen)
    assert not lost, lost
    assert max(Counter(seen).values()) == 1
    assert len(set(places.executors)) == 2, places.executors


@pytest.mark.slow
def test_an_executor_that_is_lost(tmp_path: Path) -> None:
    """Another one gets the receiver, and nothing that was acknowledged is lost."""
    script = (
        "from pathlib import Path\n"
        "from tests.dstreams.receiving.test_hosts import lose_an_executor\n"
        f"lose_an_executor(Path({str(tmp_path)!r}))\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
