"""Crashes at every operation: the newest commit is complete, and the previous one intact.

A batch writes all state files of all operators, commits the record that names them, and reads them
back. It runs with a fault at operation 1, then 2, and so on, until a run meets no fault; and again
with faults at single system calls.
"""

from __future__ import annotations

import errno
import itertools
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint import CheckpointError, CommitLog, Files, open_files
from checkpoint.state_store.retention import apply_retention, plan_retention
from tests.support.faults import FAULTS, Effect, FaultyFiles, SimulatedCrash, fault_ids

pytestmark = pytest.mark.usefixtures("no_sync")


def require_recoverable(batches: Any, files: Files, committed: bool) -> int:
    """Assert that a new driver finds complete commits, and return the newest time."""
    log = CommitLog(files)
    latest = log.latest()
    assert latest is not None
    assert latest.batch_time_ms in ((2000,) if committed else (1000, 2000))
    for time_ms in log.times():
        batches.require_whole(files, log.read(time_ms))
    batches.require_whole(files, log.read(1000))
    return latest.batch_time_ms


def require_progress(batches: Any, files: Files) -> None:
    """Assert that the next driver runs the lost batch again, and the next one."""
    log = CommitLog(files)
    for time_ms in (2000, 3000):
        if time_ms not in log.times():
            batches.commit(files, time_ms, epoch=2)
    assert log.times() == [1000, 2000, 3000]
    for time_ms in log.times():
        batches.require_whole(files, log.read(time_ms))


@pytest.mark.deep
@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize(("effect", "error"), FAULTS, ids=fault_ids(FAULTS))
def test_a_fault_at_any_operation_of_a_batch_loses_nothing(
    tmp_path: Path, batches: Any, place: str, effect: Effect, error: type[BaseException]
) -> None:
    """After any fault the previous commit is intact, and the batch is committed or not."""
    results = set()
    for at in itertools.count(1):
        location = tmp_path if place == "local" else f"memory://{uuid.uuid4()}"
        files = open_files(f"{location}/{at}")
        batches.commit(files, 1000, epoch=1)
        faulty = FaultyFiles(files, at, effect, error)
        committed = False
        try:
            record = batches.commit(faulty, 2000, epoch=1)
            committed = True
            batches.require_whole(faulty, record)
        except (SimulatedCrash, CheckpointError):
            assert faulty.fired
        results.add(require_recoverable(batches, files, committed))
        require_progress(batches, files)
        if not faulty.fired:
            break
    assert at > 9  # four state files, the record, four reads
    assert results == {1000, 2000}


@pytest.mark.deep
@pytest.mark.parametrize(
    "error",
    [SimulatedCrash(), OSError(errno.EIO, "I/O error"), OSError(errno.ENOSPC, "disk full")],
    ids=["crash", "EIO", "ENOSPC"],
)
def test_a_fault_at_any_system_call_of_a_batch_loses_nothing(
    tmp_path: Path, batches: Any, faulty_os: Callable[..., Any], error: BaseException
) -> None:
    """The same if the process dies or the disk fails between system calls."""
    results = set()
    for at in itertools.count(1):
        files = open_files(tmp_path / str(at))
        batches.commit(files, 1000, epoch=1)
        faulty = faulty_os(at, error)
        committed = False
        try:
            batches.commit(files, 2000, epoch=1)
            committed = True
        except (SimulatedCrash, CheckpointError):
            assert faulty.fired
        faulty_os(0, SimulatedCrash())
        results.add(require_recoverable(batches, files, committed))
        require_progress(batches, files)
        if not faulty.fired:
            break
    assert at > 50
    assert results == {1000, 2000}


@pytest.mark.parametrize("effect", ["before", "after"])
def test_a_crash_anywhere_in_retention_is_finished_by_the_next(
    tmp_path: Path, batches: Any, effect: Effect
) -> None:
    """Kept files are complete at every moment, and a second run leaves no orphan."""
    for at in itertools.count(1):
        files = open_files(tmp_path / str(at))
        for time_ms in (1000, 2000, 3000, 4000):
            batches.commit(files, time_ms, epoch=1)
        faulty = FaultyFiles(files, at, effect)
        with_fault, without = CommitLog(faulty), CommitLog(files)
        records = [without.read(time_ms) for time_ms in without.times()]
        try:
            apply_retention(with_fault, plan_retention(records, 3500), epoch=1)
        except SimulatedCrash:
            assert faulty.fired
        for time_ms in (3000, 4000):
            batches.require_whole(files, without.read(time_ms))
        left = [without.read(time_ms) for time_ms in without.times()]
        apply_retention(without, plan_retention(left, 3500), epoch=1)
        assert without.times() == [3000, 4000]
        named = sorted(name for record in left[-2:] for name in record.file_names())
        assert files.list("state/") == named
        if not faulty.fired:
            break
    assert at > 10


def test_a_task_of_a_dead_driver_changes_nothing(tmp_path: Path, batches: Any) -> None:
    """Files that an old attempt writes after the commit do not count."""
    files = open_files(tmp_path)
    record = batches.commit(files, 1000, epoch=2)
    zombie = batches.record(files, 1000, epoch=1)
    assert not zombie.file_names() & record.file_names()
    assert CommitLog(files).latest() == record
    batches.require_whole(files, record)
    assert len(files.list("state/")) == 2 * len(record.file_names())
    assert os.listdir(tmp_path / "commits") == ["0000000000001000-e2.commit"]
