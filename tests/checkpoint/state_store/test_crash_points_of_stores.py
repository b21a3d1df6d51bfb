"""Crashes at every operation of a batch with stores: the last committed versions always open.

The batch opens the versions of the newest record, commits changes to all stores, commits the
record, takes a snapshot, and deletes obsolete files. It runs with a fault at operation 1, then 2,
and so on, until a run meets no fault; and again with a second fault during recovery.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from checkpoint import (
    CheckpointError,
    CommitLog,
    Files,
    open_files,
)
from checkpoint.log.batch_records import STORE_PREFIX
from checkpoint.state_store import replica_files
from checkpoint.state_store.lmdb_backend import LmdbBackend, LocalSettings
from checkpoint.state_store.maintenance import SnapshotRule, snapshot_if_due
from checkpoint.state_store.retention import apply_retention, plan_store_retention
from tests.support.faults import FAULTS, Effect, FaultyFiles, SimulatedCrash, fault_ids
from tests.support.replicas import close_unused
from tests.support.stores import named, require_open, run_batch, store_of

pytestmark = pytest.mark.usefixtures("no_sync")

STORES = (store_of(0, 2), store_of(1, 2))
BATCHES_BEFORE = 3


def bases_on(files: Files, path: Path, host: str = "host") -> LmdbBackend:
    settings = LocalSettings(first_map_bytes=1 << 20, writes_through_map=False)
    return LmdbBackend(
        files, str(path / host), settings=settings, caches_changelogs=True, boot="boot"
    )


def work(files: Files, backend: LmdbBackend) -> None:
    """Run one batch with everything that belongs to it."""
    log = CommitLog(files)
    for store, version_id in named(log.latest(), STORES).items():
        require_open(backend, store, version_id)
    run_batch(files, backend, STORES)
    for store, version_id in named(log.latest(), STORES).items():
        snapshot_if_due(backend, store, version_id, SnapshotRule(2, 2))
    records = [log.read(time_ms) for time_ms in log.times()]
    needed_ms = records[-1].batch_time_ms - 1000
    plan = plan_store_retention(records, files.list(STORE_PREFIX), needed_ms, epoch=1)
    apply_retention(log, plan, epoch=1)


def require_recovered(files: Files, path: Path, host: str) -> int:
    """Assert that the newest record and the one before open, and return the newest time."""
    log = CommitLog(files)
    backend = bases_on(files, path, host)
    times = log.times()
    for time_ms in times[-2:]:
        for store, version_id in named(log.read(time_ms), STORES).items():
            if version_id.version:
                require_open(backend, store, version_id)
    return times[-1]


def attempt(files: Files, path: Path, at: int, effect: Effect, error: Any) -> bool:
    """Run one batch with a fault, and return whether the fault occurred."""
    faulty = FaultyFiles(files, at, effect, error)
    try:
        work(faulty, bases_on(faulty, path))
    except (SimulatedCrash, CheckpointError):
        assert faulty.fired
    return faulty.fired


def prepared(tmp_path: Path, number: int) -> tuple[Files, Path]:
    path = tmp_path / str(number)
    files = open_files(path / "files")
    for _ in range(BATCHES_BEFORE):
        work(files, bases_on(files, path))
    return files, path


@pytest.fixture(autouse=True)
def few_open() -> Any:
    yield
    close_unused()


@pytest.mark.deep
@pytest.mark.parametrize(("effect", "error"), FAULTS, ids=fault_ids(FAULTS))
def test_a_fault_at_any_operation_loses_nothing(
    tmp_path: Path, effect: Effect, error: type[BaseException]
) -> None:
    """Committed versions open on this host and on a new one, and the next batch runs."""
    last = BATCHES_BEFORE * 1000
    for at in itertools.count(1):
        files, path = prepared(tmp_path, at)
        fired = attempt(files, path, at, effect, error)
        assert require_recovered(files, path, "host") in (last, last + 1000)
        assert require_recovered(files, path, f"new-{at}") in (last, last + 1000)
        work(files, bases_on(files, path))
        require_recovered(files, path, "host")
        if not fired:
            break
    assert at > 15


@pytest.mark.deep
@pytest.mark.parametrize("effects", [("before", "before"), ("during", "after")])
def test_two_crashes_lose_nothing(tmp_path: Path, effects: tuple[Effect, Effect]) -> None:
    """A second fault during recovery from the first, at every eleventh pair."""
    last = BATCHES_BEFORE * 1000
    pairs = [(a, b) for a in range(1, 24) for b in range(1, 24) if (a * 5 + b) % 11 == 0]
    fired = 0
    files, path = prepared(tmp_path, 0)
    for first, second in pairs:
        fired += attempt(files, path, first, effects[0], SimulatedCrash)
        fired += attempt(files, path, second, effects[1], SimulatedCrash)
        newest = require_recovered(files, path, "host")
        assert newest >= last
        last = newest
    assert fired > len(pairs)
    assert last > BATCHES_BEFORE * 1000
    require_recovered(files, path, "another host")


class FaultyLocal:
    """A module of the operating system that fails at its n-th call of some functions."""

    def __init__(self, module: Any, names: tuple[str, ...], counter: list[int]) -> None:
        self._module = module
        self._names = names
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        if name not in self._names:
            return function

        def call(*args: Any, **options: Any) -> Any:
            self._counter[0] -= 1
            if self._counter[0] <= 0:
                raise SimulatedCrash(name)
            return function(*args, **options)

        return call


def test_a_crash_between_any_two_calls_on_the_local_directory_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a generation is built, published or replaced."""
    files, path = prepared(tmp_path, 0)
    newest = named(CommitLog(files).latest(), STORES)
    for at in itertools.count(1):
        backend = bases_on(files, path, f"host-{at}")
        counter = [at]
        with monkeypatch.context() as patch:
            names = ("mkdir", "rename", "open", "write", "unlink", "listdir")
            patch.setattr(replica_files, "os", FaultyLocal(replica_files.os, names, counter))
            try:
                require_open(backend, STORES[0], newest[STORES[0]])
                met = False
            except SimulatedCrash:
                met = True
        require_open(backend, STORES[0], newest[STORES[0]])
        if not met:
            break
    assert at > 10
