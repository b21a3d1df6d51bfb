"""Power loss at every step: acknowledged commits survive, and nothing else counts.

On a simulated disk every step of every file can be the last; then unsynced data is kept, dropped,
torn, stale or overtaken, depending on the seed. The same runs without a sync, a checksum or the
exclusive create must fail.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest

import checkpoint.storage.framing
from checkpoint import CheckpointError, CommitLog, CorruptCheckpointError
from checkpoint.log.batch_records import EMPTY, STORE_PREFIX, StoreId, VersionId
from checkpoint.state_store import MemoryBackend
from checkpoint.state_store.backend import RawVersion
from checkpoint.state_store.retention import apply_retention, plan_store_retention
from checkpoint.state_store.store_files import (
    new_uid,
    write_changelog,
    write_state_snapshot,
)
from checkpoint.testing import check_files
from tests.support.faults import SimulatedCrash
from tests.support.simulated_disk import Omission, SimulatedDisk
from tests.support.stores import (
    changes,
    commit_up_to,
    named,
    record,
    require_files,
    store_of,
)

STORES = (store_of(0, 2), store_of(1, 2))
BATCHES = 6


def content_at(store: StoreId, version_id: VersionId) -> RawVersion:
    """Return a version in memory, given its id."""
    backend = MemoryBackend()
    base = backend.open(store, commit_up_to(backend, store, version_id.version)[-1])
    base.version_id = version_id
    return base


def run(disk: SimulatedDisk, acknowledged: list[int]) -> None:
    """Run batches from the newest record on, with a snapshot and retention every second time."""
    log = CommitLog(disk)
    for _ in range(BATCHES):
        latest = log.latest()
        time_ms = 1000 if latest is None else latest.batch_time_ms + 1000
        done = []
        for store, base in named(latest, STORES).items():
            done.append(
                write_changelog(disk, store, base, new_uid(1), changes(base.version + 1), {})
            )
        log.commit(record(time_ms, done))
        acknowledged.append(time_ms)
        if time_ms % 2000 == 0:
            for store, committed in zip(STORES, done, strict=True):
                write_state_snapshot(disk, store, content_at(store, committed.version_id), {})
            records = [log.read(time) for time in log.times()]
            plan = plan_store_retention(records, disk.list(STORE_PREFIX), time_ms - 1000, 1)
            apply_retention(log, plan, 1)


def require_whole(disk: SimulatedDisk, acknowledged: list[int]) -> None:
    """Assert that the newest acknowledged batch exists, and every newer record is complete."""
    log = CommitLog(disk)
    times = log.times()
    newest = max(acknowledged, default=0)
    assert not acknowledged or newest in times
    for time_ms in times:
        if time_ms >= newest:
            for store, version_id in named(log.read(time_ms), STORES).items():
                require_files(disk, store, version_id)


def crash_points() -> int:
    disk = SimulatedDisk()
    run(disk, [])
    return len(disk.steps)


def losses(omit: Omission | None, seeds: int, stride: int = 1) -> Iterator[str]:
    """Yield the errors after a power loss at each step."""
    for at in range(1, crash_points() + 1, stride):
        for seed in range(seeds):
            disk = SimulatedDisk(at, omit)
            acknowledged: list[int] = []
            with contextlib.suppress(SimulatedCrash):
                run(disk, acknowledged)
            after = disk.power_loss(random.Random(at * 1000 + seed).randrange)
            try:
                require_whole(after, acknowledged)
            except (AssertionError, CheckpointError, KeyError) as error:
                yield f"step {at} ({disk.steps[-1]}), seed {seed}: {error!r}"


def test_the_simulated_disk_does_what_files_must() -> None:
    """Without faults it fulfils the contract of Files."""
    check_files(SimulatedDisk)


@pytest.mark.deep
@pytest.mark.parametrize("seeds", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_a_power_loss_at_any_step_loses_nothing(seeds: int) -> None:
    """Acknowledged commits, snapshots and retention survive."""
    assert crash_points() > 100
    assert list(losses(None, seeds)) == []


@pytest.mark.parametrize("omit", ["file sync", "directory sync"])
def test_a_missing_sync_is_noticed(omit: Omission) -> None:
    """Without one of the syncs, some power loss loses an acknowledged batch."""
    assert next(losses(omit, seeds=2, stride=5), None) is not None


@pytest.mark.deep
def test_two_losses_of_power_lose_nothing() -> None:
    """A second loss at any step of the run after the first."""
    for number in range(60):
        rng = random.Random(number)
        disk, acknowledged = SimulatedDisk(rng.randrange(1, 200)), list[int]()
        for _ in range(2):
            with contextlib.suppress(SimulatedCrash):
                run(disk, acknowledged)
            disk = disk.power_loss(rng.randrange)
            require_whole(disk, acknowledged)
        run(disk, acknowledged)
        require_whole(disk, acknowledged)


def flipped(seed: int) -> str | None:
    """Flip one bit of a needed file; return the error if it was not rejected."""
    disk, rng = SimulatedDisk(), random.Random(seed)
    run(disk, [])
    name = rng.choice(disk.list(""))
    disk.flip_bit(name, rng.randrange(8 * len(disk.read(name))))
    try:
        require_whole(disk, [BATCHES * 1000])
    except CorruptCheckpointError:
        return None
    except (AssertionError, KeyError, ValueError) as error:
        return f"{name}: {error!r}"
    return None


@pytest.mark.deep
def test_a_flipped_bit_is_refused_or_not_read() -> None:
    """A damaged file is never accepted."""
    assert [found for seed in range(150) if (found := flipped(seed))] == []


def test_a_missing_checksum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checksum, some flipped bit is accepted."""
    monkeypatch.setattr(checkpoint.storage.framing, "crc32", lambda data, start=0: 7)
    assert any(flipped(seed) for seed in range(150))


def two_drivers(omit: Omission | None) -> list[str]:
    """Let two drivers of one epoch commit the same batch; return who succeeded."""
    disk = SimulatedDisk(omit=omit)
    told = []
    for epoch in (1, 2):
        done = [
            write_changelog(disk, store, EMPTY, new_uid(epoch), changes(1), {}) for store in STORES
        ]
        with contextlib.suppress(CheckpointError):
            CommitLog(disk).commit(record(1000, done))
            told.append(f"driver {epoch}")
    return told


def test_one_of_two_drivers_commits_a_batch() -> None:
    """Without the exclusive create both would succeed."""
    assert two_drivers(None) == ["driver 1"]
    assert two_drivers("exclusive create") == ["driver 1", "driver 2"]
