"""The state of a monitor after each event, without Spark."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from shutil import disk_usage

import pytest

from checkpoint import FileRef, PartitionCommit, StoreCommit, open_files
from checkpoint.state_store import VersionId
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.monitoring.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    BatchSubmitted,
    InputInfo,
    OutputOperationCompleted,
    OutputOperationInfo,
    OutputOperationStarted,
    PendingBatch,
    PlannedOutput,
    ReceiverError,
    ReceiverInfo,
    ReceiverStarted,
    StateOperatorInfo,
)
from dstreams.monitoring.monitor import Monitor, RunInfo
from dstreams.monitoring.registry import StreamRegistry
from dstreams.monitoring.state_queries import StateQueries
from dstreams.monitoring.status import GraphNode, RunningBatch, disk_space
from dstreams.testing import ManualClock

PRINT = PlannedOutput(0, "pprint at app.py:20")


def pending(number: int) -> PendingBatch:
    return PendingBatch(number, 1000 * (number + 1), (), (PRINT,), submitted_ms=0)


def ran(number: int) -> BatchInfo:
    time_ms = 1000 * (number + 1)
    return BatchInfo(number, time_ms, {}, time_ms, time_ms, time_ms + 10, (), "succeeded", None)


def make_monitor(retained: int = 3) -> Monitor:
    return Monitor("stream", "app", 1000, ManualClock(5000), retained)


def test_before_the_start_there_is_nothing_but_a_name() -> None:
    """No identity, no time, no batch."""
    status = make_monitor().status()
    assert (status.phase, status.name, status.id) == ("initialized", "app", "")
    assert (status.started_ms, status.ended_ms, status.checkpoint) == (None, None, None)
    assert (status.waiting, status.running, status.recent, status.states) == ((), None, (), ())


def test_a_batch_waits_runs_and_has_run() -> None:
    """A batch waits, runs its outputs in turn, and ends."""
    monitor = make_monitor()
    monitor.started(RunInfo("stream-1", "run-1", (GraphNode(0, "input", "queue"),)))
    monitor.record(BatchSubmitted(pending(0)))
    monitor.record(BatchSubmitted(pending(1)))
    assert monitor.status().waiting == (pending(0), pending(1))
    monitor.record(BatchStarted(pending(0)))
    assert monitor.status().running == RunningBatch(pending(0))
    assert monitor.status().waiting == (pending(1),)
    monitor.record(OutputOperationStarted(1000, PRINT, 1))
    assert monitor.status().running == RunningBatch(pending(0), PRINT)
    done = OutputOperationInfo(0, PRINT.name, 1, 2, None)
    monitor.record(OutputOperationCompleted(1000, done))
    assert monitor.status().running == RunningBatch(pending(0))
    monitor.record(BatchCompleted(ran(0)))
    status = monitor.status()
    assert (status.running, status.recent) == (None, (ran(0),))
    assert status.totals.batches == {"succeeded": 1}
    assert (status.phase, status.started_ms) == ("active", 5000)


def test_only_the_newest_batches_are_kept_and_all_are_counted() -> None:
    """The batches of a monitor are bounded; totals cover the whole run."""
    monitor = make_monitor(retained=3)
    for number in range(5):
        monitor.record(BatchCompleted(ran(number)))
    assert monitor.recent() == (ran(2), ran(3), ran(4))
    assert monitor.status().totals.batches == {"succeeded": 5}


def test_the_newest_word_of_a_receiver_counts() -> None:
    """A receiver that began and then failed is not active."""
    monitor = make_monitor()
    monitor.record(ReceiverStarted(ReceiverInfo(0, "socket", True, "here", "driver")))
    refused = ReceiverInfo(0, "socket", False, "here", "driver", "refused", "refused", 7)
    monitor.record(ReceiverError(refused))
    assert monitor.status().receivers == (refused,)


def test_the_first_end_and_the_first_error_count() -> None:
    """Later ones follow from them."""
    monitor = make_monitor()
    monitor.started(RunInfo("stream-1", "run-1"))
    monitor.record(BatchSubmitted(pending(0)))
    monitor.failed("no disk")
    monitor.failed("no time")
    assert monitor.status().phase == "active"
    monitor.ended()
    monitor.ended()
    status = monitor.status()
    assert (status.phase, status.failure, status.ended_ms) == ("failed", "no disk", 5000)
    assert status.waiting == ()


def test_an_error_after_which_it_goes_on_does_not_end_it() -> None:
    """It is shown until another one ends the stream, and a stop is a stop."""
    monitor, other = make_monitor(), make_monitor()
    for each in (monitor, other):
        each.started(RunInfo("stream-1", "run-1"))
        each.failed("batch 0 failed", continues=True)
        each.failed("batch 1 failed", continues=True)
    other.failed("no disk")
    other.failed("no time")
    for each in (monitor, other):
        each.ended()
    status = monitor.status()
    assert (status.phase, status.failure) == ("stopped", "batch 0 failed")
    status = other.status()
    assert (status.phase, status.failure) == ("failed", "no disk")


def test_what_it_cannot_understand_fails_no_batch(caplog: pytest.LogCaptureFixture) -> None:
    """A source may report invalid facts; the next batch is still recorded."""
    monitor = make_monitor()
    odd = InputInfo(0, "own source", 1, "", {"rejected": "some"})
    monitor.record(BatchCompleted(replace(ran(0), inputs=(odd,))))
    assert "skipped an event of app" in caplog.text
    monitor.record(BatchCompleted(ran(1)))
    assert monitor.recent()[-1] == ran(1)
    assert monitor.status().totals.batches == {"succeeded": 1}


def test_what_has_ended_lets_go_of_what_ran_it() -> None:
    """It is shown for long, and its RDDs are not kept for that."""
    monitor = make_monitor()
    limits = {"kafka": 5.0}
    monitor.started(
        RunInfo("stream-1", "run-1", rate_limits=lambda: limits, states=StateQueries({}))
    )
    assert (monitor.status().rate_limits, monitor.states) == (limits, StateQueries({}))
    monitor.ended()
    assert (monitor.status().rate_limits, monitor.states) == ({}, None)


def test_what_has_ended_keeps_what_its_records_said(tmp_path: Path) -> None:
    """The state and the checkpoint are those of its end, and the records are let go."""
    log = StreamCheckpoint.take_over(open_files(str(tmp_path)), "stream-1", now_ms=5)
    monitor = make_monitor()
    monitor.started(RunInfo("stream-1", "run-1", (GraphNode(0, "state", "map", "map-0"),), log))
    commit(log, 0, keys=10)
    before = monitor.status()
    known = weakref.ref(log)
    del log
    monitor.ended()
    gc.collect()
    assert known() is None
    after = monitor.status()
    assert before.checkpoint is not None
    assert after.checkpoint is not None
    assert after.checkpoint == replace(before.checkpoint, disk=after.checkpoint.disk)
    assert after.states == before.states
    assert after.states[0].keys == 40


def test_errors_are_told_without_the_secrets_of_urls() -> None:
    """A password in the address of a checkpoint or source reaches no status."""
    monitor = make_monitor()
    monitor.failed("no file s3://me:topsecret@bucket/x")
    refused = ReceiverInfo(0, "r", False, "here", "driver", "ftp://me:topsecret@host", "", 7)
    monitor.record(ReceiverError(refused))
    status = monitor.status()
    assert status.failure == "no file s3://me:***@bucket/x"
    assert status.receivers[0].last_error_message == "ftp://me:***@host"


def test_state_is_added_up_once_for_each_commit(tmp_path: Path) -> None:
    """Repeated statuses between two commits do not add up state again."""
    log = StreamCheckpoint.take_over(open_files(str(tmp_path)), "stream-1", now_ms=5)
    monitor = make_monitor()
    monitor.started(RunInfo("stream-1", "run-1", (GraphNode(0, "state", "map", "map-0"),), log))
    assert monitor.status().states == ()
    commit(log, 0, keys=10)
    [state] = monitor.status().states
    assert (state.keys, state.written_bytes, len(state.partitions)) == (40, 400, 2)
    assert (state.operation, state.has_changelogs, state.memory_bytes) == ("map", True, None)
    [again] = monitor.status().states
    assert again.partitions is state.partitions
    commit(log, 1, keys=20)
    [newer] = monitor.status().states
    assert (newer.keys, newer.batch_time_ms) == (80, 2000)


def commit(log: StreamCheckpoint, number: int, keys: int) -> None:
    """Commit two stores of one operator, each of two partitions."""
    time_ms = 1000 * (number + 1)
    version = VersionId(number + 1, f"{number:032x}")
    stores = [
        StoreCommit(
            "map-0",
            name,
            "stable",
            tuple(
                PartitionCommit(
                    at, version, FileRef(f"stores/{number}-{name}-{at}", 100, "0" * 32, 1), keys
                )
                for at in range(2)
            ),
        )
        for name in ("default", "timers")
    ]
    log.begin(number, time_ms, {})
    log.commit(number, time_ms, stores=stores)


def test_memory_of_a_state_is_that_of_the_newest_batch_that_says_it(tmp_path: Path) -> None:
    """Not of the newest batch: it may have failed before, or the operator had no turn in it."""
    log = StreamCheckpoint.take_over(open_files(str(tmp_path)), "stream-1", now_ms=5)
    monitor = make_monitor()
    monitor.started(RunInfo("stream-1", "run-1", log=log))
    commit(log, 0, keys=10)
    told = StateOperatorInfo("map-0", "map", 2, {"stateMemory": 77})
    monitor.record(BatchCompleted(replace(ran(0), states=(told,))))
    monitor.record(BatchCompleted(ran(1)))
    assert [state.memory_bytes for state in monitor.status().states] == [77]


def test_the_disks_of_a_stream_are_those_of_this_host(tmp_path: Path) -> None:
    """The checkpoint and the replicas have theirs; a bucket, or what is not there, has none."""
    log = StreamCheckpoint.take_over(open_files(str(tmp_path / "x")), "stream-1", now_ms=5)
    monitor = make_monitor()
    monitor.started(RunInfo("stream-1", "run-1", log=log, local_state=str(tmp_path)))
    status = monitor.status()
    assert status.checkpoint is not None
    for disk in (status.checkpoint.disk, status.local_state_disk):
        assert disk is not None
        assert disk.size_bytes == disk_usage(tmp_path).total
        assert 0 < disk.free_bytes <= disk.size_bytes
    assert disk_space(str(tmp_path / "absent")) is None
    assert disk_space("s3://bucket/checkpoint") is None
    assert disk_space(None) is None


def test_an_application_wakes_who_waits_and_keeps_what_has_ended() -> None:
    """All that run are known, and the newest twenty that have ended."""
    registry = StreamRegistry()
    monitors = [
        Monitor("query", f"q{number}", None, ManualClock(0), 1, registry.changed)
        for number in range(30)
    ]
    seen: list[int] = []
    known = registry.wait_for_change(-1, 0)
    waiter = threading.Thread(target=lambda: seen.append(registry.wait_for_change(known, 60)))
    waiter.start()
    registry.add(monitors[0])
    waiter.join(60)
    assert seen
    assert seen[0] > known
    for monitor in monitors[1:]:
        registry.add(monitor)
    for monitor in monitors[:29]:
        registry.ended(monitor)
    names = [status.name for status in registry.statuses()]
    assert names == ["q29", *(f"q{number}" for number in range(28, 8, -1))]
