"""The alerts of the documentation, evaluated by Prometheus on series scraped from monitors.

Each case is 40 minutes of a stream with batches of ten seconds: the events of each minute, and the
alert that fires. No Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from checkpoint import open_files
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.kafka.offsets import TopicPartition
from dstreams.monitoring import monitor as monitor_module
from dstreams.monitoring.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    BatchSubmitted,
    InputInfo,
    OutputOperationInfo,
    PendingBatch,
    ReceiverError,
    ReceiverInfo,
    ReceiverStarted,
)
from dstreams.monitoring.monitor import Monitor, RunInfo
from dstreams.monitoring.status import DiskSpace, GraphNode, Kind
from dstreams.testing import ManualClock
from tests.support.promtool import Scrapes, firing, promtool

RULES = Path(__file__).parents[3] / "docs" / "monitoring" / "alerts.yml"
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))
MINUTES, BATCH_MS, SAVE = 40, 10_000, "foreachRDD at app.py:20"
SOCKET = ReceiverInfo(1, "socketTextStream(localhost:9999)", True, "here", "driver")
CLICKS = "kafka(clicks)"


@dataclass
class Driver:
    """A driver whose stream runs six batches a minute; a test sets its fault.

    Attributes:
        hangs: whether the next batch starts and never ends.
        is_idle: whether no batch is due.
        late_ms: waiting time of batches.
        lag: of each of two partitions.
        ran: further fields of the batches.
        has_snapshots: whether state is in snapshots, which are never written.
        space: the disks, ``checkpoint`` and ``local``; half of them is free if they are not here.
    """

    directory: Path
    kind: Kind = "stream"
    clock: ManualClock = field(default_factory=ManualClock)
    hangs: bool = False
    late_ms: int = 10
    ran: dict[str, Any] = field(default_factory=dict)
    rejected: int = 0
    lag: int = 5
    is_up: bool = True
    is_idle: bool = False
    has_snapshots: bool = False
    batch_id: int = 0
    space: dict[str, DiskSpace] = field(default_factory=dict)
    scrapes: Scrapes = field(default_factory=Scrapes)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start the stream, or start it again."""
        files = open_files(str(self.directory / "checkpoint"))
        log = StreamCheckpoint.take_over(files, "stream-1", self.clock.now_ms())
        self.log = log
        self.monitor = Monitor(self.kind, "app", BATCH_MS, self.clock, retained=100)
        snapshots = ("counts",) if self.has_snapshots else ()
        output = GraphNode(0, "output", SAVE)
        opened = RunInfo("stream-1", "run", (output,), log, snapshots, local_state="/local")
        self.monitor.started(opened)
        self.monitor.record(ReceiverStarted(SOCKET))

    def run_minute(self) -> None:
        """Let Prometheus scrape, and run the batches of a minute."""
        self.scrapes.scrape([self.monitor.status()], is_up=self.is_up)
        for _ in range(60_000 // BATCH_MS):
            self.clock.advance(BATCH_MS)
            if self.monitor.status().phase == "active" and self.is_up and not self.is_idle:
                self.run_batch()

    def run_batch(self) -> None:
        status, now_ms = self.monitor.status(), self.clock.now_ms()
        lag = {TopicPartition("clicks", 0): self.lag, TopicPartition("clicks", 1): self.lag}
        clicks = InputInfo(0, CLICKS, 10, "", {"lag": lag, "rejected": self.rejected})
        pending = PendingBatch(self.batch_id, now_ms, (clicks,), (), now_ms)
        self.batch_id += 1
        if self.kind == "stream" or status.running is None:
            self.monitor.record(BatchSubmitted(pending))
        if status.running is not None:
            return
        started_ms = now_ms + self.late_ms
        self.monitor.record(BatchStarted(replace(pending, started_ms=started_ms)))
        if self.hangs:
            return
        done = OutputOperationInfo(0, SAVE, started_ms, started_ms + 100, None)
        batch = BatchInfo(
            batch_id=pending.batch_id,
            batch_time_ms=now_ms,
            records={},
            submitted_ms=now_ms,
            started_ms=started_ms,
            completed_ms=started_ms + 100,
            outputs=(done,),
            outcome="succeeded",
            failure=None,
            inputs=(clicks,),
        )
        self.log.begin(batch.batch_id, now_ms, {})
        self.log.commit(batch.batch_id, now_ms)
        self.monitor.record(BatchCompleted(replace(batch, **self.ran)))


@contextmanager
def disks(driver: Driver) -> Iterator[None]:
    """Let the monitor see the disks of a driver instead of those that are there."""

    def space(directory: str | None) -> DiskSpace:
        of = "local" if directory == "/local" else "checkpoint"
        return driver.space.get(of, DiskSpace(500, 1000))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor_module, "disk_space", space)
        yield


@dataclass(frozen=True)
class Case:
    """A fault from minute 10 on, and the alert that it raises."""

    alert: str
    goes_wrong: Callable[[Driver], None]
    fires_at: int
    kind: Kind = "stream"
    has_snapshots: bool = False


def goes_down(driver: Driver) -> None:
    driver.is_up = False


def ends(driver: Driver) -> None:
    driver.monitor.failed("no disk")
    driver.monitor.ended()


def starts_again(driver: Driver) -> None:
    driver.begin()


def hangs(driver: Driver) -> None:
    driver.hangs = True


def is_late(driver: Driver) -> None:
    driver.late_ms = 15_000


def fails_to_write(driver: Driver) -> None:
    failed = OutputOperationInfo(0, SAVE, 0, 1, "no disk")
    driver.ran = {"outputs": (failed,), "outcome": "failed", "failure": "no disk"}


def rejects(driver: Driver) -> None:
    driver.rejected = 3


def falls_back(driver: Driver) -> None:
    driver.lag += 100


def loses_its_receiver(driver: Driver) -> None:
    driver.monitor.record(ReceiverError(replace(SOCKET, active=False)))


def fills_its_disk(driver: Driver) -> None:
    driver.space["checkpoint"] = DiskSpace(99, 1000)


def fills_its_local_disk(driver: Driver) -> None:
    driver.space["local"] = DiskSpace(99, 1000)


def nothing(driver: Driver) -> None:
    pass


CASES = (
    Case("DStreamsDriverDown", goes_down, 12),
    Case("DStreamsStreamFailed", ends, 10),
    Case("DStreamsStreamFailed", ends, 10, "query"),
    Case("DStreamsRestartsOften", starts_again, 13),
    Case("DStreamsNoBatch", hangs, 14),
    Case("DStreamsNoBatch", hangs, 22, "query"),
    Case("DStreamsBatchLate", is_late, 19),
    Case("DStreamsOutputFailing", fails_to_write, 11),
    Case("DStreamsRecordsRejected", rejects, 11),
    Case("DStreamsLagGrowing", falls_back, 30),
    Case("DStreamsReceiverDown", loses_its_receiver, 15),
    Case("DStreamsCheckpointOld", nothing, 21, has_snapshots=True),
    Case("DStreamsCheckpointDiskNearlyFull", fills_its_disk, 15),
    Case("DStreamsLocalStateDiskNearlyFull", fills_its_local_disk, 15),
)


@pytest.mark.deep
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}-{case.kind}")
def test_an_alert_fires_and_no_other_one(case: Case, tmp_path: Path) -> None:
    """From its minute on, not before, and alone."""
    driver = Driver(tmp_path, case.kind, has_snapshots=case.has_snapshots)
    with disks(driver):
        for minute in range(MINUTES):
            if minute >= 10:
                case.goes_wrong(driver)
            driver.run_minute()
    before = [firing(minute) for minute in range(case.fires_at)]
    after = [firing(minute, case.alert) for minute in range(case.fires_at, MINUTES)]
    driver.scrapes.check([*before, *after], tmp_path, RULES)


@pytest.mark.parametrize("kind", ["stream", "query"])
def test_nothing_fires_as_long_as_all_is_well(kind: Kind, tmp_path: Path) -> None:
    """No alert fires for a healthy stream, or for a query without data."""
    driver = Driver(tmp_path, kind)
    with disks(driver):
        for minute in range(MINUTES):
            driver.is_idle = kind == "query" and minute >= 10
            driver.run_minute()
    driver.scrapes.check([firing(minute) for minute in range(MINUTES)], tmp_path, RULES)


def test_each_alert_is_fired_by_a_case() -> None:
    """No rule is there that was never seen to fire."""
    assert {case.alert for case in CASES} == set(ALERTS)


def test_the_rules_are_whole() -> None:
    """The rules and templates are valid, and each has a remedy."""
    text = RULES.read_text(encoding="utf-8")
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", str(RULES))
    for part in ("severity:", "summary:", "description:"):
        assert text.count(part) == len(ALERTS)
