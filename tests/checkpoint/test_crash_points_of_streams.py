"""Crashes at every step in the life of a stream: no batch is lost, repeated or contradicted.

The model of a stream (:mod:`tests.support.stream_model`) crashes before each step of a simulated
disk, with and without a power loss, once and twice; and it pauses before each operation while
another driver takes over. Then the next driver resumes, and the outputs are compared. The checks
fail if one of the guards is omitted.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from msgspec.structs import replace

import checkpoint.storage.files
import checkpoint.storage.framing
from checkpoint import (
    BeginRecord,
    CheckpointError,
    CommitRecord,
    ConcurrentWriterError,
    CorruptCheckpointError,
    DriverProcess,
    Files,
    OwnedStream,
    take_over,
)
from checkpoint.log import batch_records, recovery
from checkpoint.log.fencing import WriterLease, claim_epoch
from checkpoint.log.lineage import Takeover, write_takeover
from tests.support.faults import SimulatedCrash
from tests.support.simulated_disk import Omission, SimulatedDisk
from tests.support.stream_model import STREAM, Driver, PausedFiles, World, require_right

UPTO_MS = 7000
AFTER_MS = 9000


def steps_of_a_run() -> int:
    disk = SimulatedDisk()
    Driver(disk, World()).run(UPTO_MS)
    return len(disk.steps)


def after_crash(disk: SimulatedDisk, seed: int | None) -> SimulatedDisk:
    """Return the files that the next driver finds: all, or after a power loss the synced ones."""
    return disk.restart() if seed is None else disk.power_loss(random.Random(seed).randrange)


def crash_and_go_on(first: int, second: int, seed: int | None, omit: Omission | None) -> str | None:
    """Crash the first and the second driver at a step; return the errors of the third one."""
    world = World()
    disk = SimulatedDisk(first, omit)
    crashed = []
    for crash_at in (first, second):
        with suppress(SimulatedCrash):
            Driver(disk, world).run(UPTO_MS)
        crashed.append(disk.steps[-1])
        disk = after_crash(disk, seed)
        if second in (0, crash_at):
            break
        disk = rigged(disk, second)
    try:
        driver = Driver(disk, world)
        driver.run(AFTER_MS)
        require_right(world, driver)
    except (AssertionError, CheckpointError, KeyError) as error:
        return f"{crashed}, seed {seed}: {error!r}"
    return None


def rigged(disk: SimulatedDisk, crash_at: int) -> SimulatedDisk:
    disk._crash_at = crash_at
    return disk


def wrong(
    seeds: tuple[int | None, ...], omit: Omission | None = None, stride: int = 1
) -> Iterator[str]:
    """Yield the errors after one crash at each step."""
    for first in range(1, steps_of_a_run() + 1, stride):
        for seed in seeds:
            found = crash_and_go_on(first, 0, seed, omit)
            if found is not None:
                yield found


def test_a_run_without_a_crash_is_right() -> None:
    """The model has no errors without a crash, also if it is stopped and resumed."""
    disk, world = SimulatedDisk(), World()
    for upto_ms in (3000, 4000, UPTO_MS, AFTER_MS):
        driver = Driver(disk, world)
        driver.run(upto_ms)
        require_right(world, driver)
    assert all(len(told) == 1 for told in world.told.values())
    assert len(disk.list("commits/")) <= 5
    assert len(disk.list("state/")) <= 12


@pytest.mark.deep
def test_a_process_that_dies_at_any_step_loses_nothing() -> None:
    """The next driver resumes from the existing files."""
    assert list(wrong((None,))) == []


@pytest.mark.deep
def test_a_power_loss_at_any_step_loses_nothing() -> None:
    """The next driver resumes from the synced files."""
    assert list(wrong((1, 2))) == []


@pytest.mark.deep
@pytest.mark.parametrize("seed", [None, 3])
def test_a_second_crash_at_any_step_of_the_next_driver_loses_nothing(seed: int | None) -> None:
    """A driver may also die during or soon after its takeover."""
    crashes = range(3, steps_of_a_run(), 23)
    found = [
        crash_and_go_on(first, second, seed, None)
        for first in crashes
        for second in (*range(1, 25, 2), *range(30, 150, 17))
    ]
    assert [each for each in found if each is not None] == []


def two_drivers(at: int, first: type[Driver] = Driver, at_once: int = 1) -> tuple[bool, str | None]:
    """Let another driver take over before operation *at* of the first one.

    Returns:
        Whether the first one got as far, and the errors at the end.
    """
    disk, world = SimulatedDisk(), World()
    happened = []

    def meanwhile() -> None:
        happened.append(at)
        Driver(disk, world).run(AFTER_MS - 2000)

    said: Exception | None = None
    try:
        first(PausedFiles(disk, at, meanwhile, at_once), world).run(UPTO_MS)
    except ConcurrentWriterError as error:
        said = error
    except (AssertionError, CheckpointError, FileNotFoundError, ValueError) as error:
        return True, f"operation {at}: the first driver fails with {error!r}"
    try:
        driver = Driver(disk, world)
        driver.run(AFTER_MS)
        require_right(world, driver)
    except (AssertionError, CheckpointError, KeyError) as error:
        return True, f"operation {at}: {error!r}"
    if happened and said is not None and "process" not in str(said):
        return True, f"operation {at}: nobody is named: {said}"
    return bool(happened), None


def operations(first: type[Driver] = Driver, at_once: int = 1) -> int:
    counted = PausedFiles(SimulatedDisk(), 0, lambda: None, at_once)
    first(counted, World()).run(UPTO_MS)
    return counted.count


def test_of_two_drivers_the_newer_wins_wherever_the_older_stands_still() -> None:
    """Writes of the older driver do not count, and its deletions are prevented."""
    outcomes = [two_drivers(at) for at in range(1, operations() + 1)]
    assert [problem for _, problem in outcomes if problem is not None] == []
    assert all(happened for happened, _ in outcomes)


def problems_of_two_drivers(first: type[Driver] = Driver, stride: int = 2) -> list[str]:
    return [
        problem
        for problem in (two_drivers(at, first)[1] for at in range(1, operations(first) + 1, stride))
        if problem is not None
    ]


def test_of_two_drivers_the_newer_wins_also_if_files_are_read_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver that begins with an earlier look at the files notices what changed since then."""
    for module in (checkpoint.storage.files, batch_records):
        monkeypatch.setattr(module, "in_parallel", lambda _, call, items: list(map(call, items)))
    count = operations(at_once=2)
    assert count > operations()
    outcomes = [two_drivers(at, at_once=2) for at in range(1, count + 1)]
    assert [problem for _, problem in outcomes if problem is not None] == []


class ChecksTooEarly(Driver):
    """A driver that checks the fence before the begin record is written, not after it."""

    def begin(self, begun: BeginRecord) -> None:
        self.owned.lease.check()
        self.begins.begin(begun)


class ReportsTooEarly(Driver):
    """A driver that reports a commit before the fence is checked."""

    def commit(self, record: CommitRecord) -> None:
        self.commits.commit(record)
        self.world.report(record.batch_time_ms)


@pytest.mark.parametrize("first", [ChecksTooEarly, ReportsTooEarly])
def test_a_fence_check_starts_after_what_it_is_for(first: type[Driver]) -> None:
    """A check that may have started before the record was written is not enough."""
    assert problems_of_two_drivers(first, stride=1) != []


@pytest.mark.parametrize("omit", ["file sync", "directory sync"])
def test_a_missing_sync_is_noticed(omit: Omission) -> None:
    """Without the sync, a power loss loses committed data."""
    assert any(wrong((1, 2), omit, stride=5))


def forgets_begins(lease: WriterLease, takeover: Takeover) -> None:
    write_takeover(lease, replace(takeover, begins=()))


@pytest.mark.parametrize(
    ("owner", "method", "instead"),
    [
        (WriterLease, "check", lambda self: None),
        (recovery, "write_takeover", forgets_begins),
    ],
    ids=["check of the epoch", "begins that are taken over"],
)
def test_what_keeps_two_drivers_apart_is_needed(
    monkeypatch: pytest.MonkeyPatch, owner: object, method: str, instead: Callable[..., object]
) -> None:
    """Without the guard, a pause of the older driver causes damage."""
    monkeypatch.setattr(owner, method, instead)
    assert problems_of_two_drivers() != []


def test_an_exclusive_create_is_needed() -> None:
    """Without it, two drivers have one epoch and both continue."""
    at_work = []
    for at in range(1, 12):
        disk = SimulatedDisk(omit="exclusive create")
        rival: list[OwnedStream] = []

        def meanwhile(disk: Files = disk, rival: list[OwnedStream] = rival) -> None:
            rival.append(take_over(disk, STREAM, DriverProcess.of_this_process(0)))

        with suppress(CheckpointError, ValueError, IndexError):
            lease = claim_epoch(
                PausedFiles(disk, at, meanwhile), STREAM, DriverProcess.of_this_process(0)
            )
            lease.check()
            at_work.append(lease.epoch == rival[0].epoch)
    assert any(at_work)


def flipped(seed: int) -> str | None:
    """Flip one bit of a file that a restart reads; return the errors that are not rejected."""
    disk, world = SimulatedDisk(), World()
    Driver(disk, world).run(5000)
    names = disk.list("")
    draw = random.Random(seed)
    name = names[draw.randrange(len(names))]
    disk.flip_bit(name, draw.randrange(1 << 30))
    try:
        driver = Driver(disk, world)
        driver.run(UPTO_MS)
        require_right(world, driver)
    except CorruptCheckpointError:
        return None
    except (AssertionError, LookupError, ValueError, TypeError, AttributeError) as error:
        return f"{name}: {error!r}"
    except pickle.UnpicklingError as error:
        return f"{name}: {error!r}"
    return None


def test_a_flipped_bit_is_refused_or_does_not_matter() -> None:
    """A restart never accepts it as the written content."""
    assert [found for seed in range(200) if (found := flipped(seed))] == []


def test_a_missing_checksum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checksum, some flipped bit is accepted."""
    monkeypatch.setattr(checkpoint.storage.framing, "crc32", lambda data, start=0: 7)
    assert any(flipped(seed) for seed in range(200))
