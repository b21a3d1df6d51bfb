"""The simulated disk: what it keeps, and what it loses in a power failure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from checkpoint import AlreadyExistsError
from tests.support.faults import SimulatedCrash
from tests.support.simulated_disk import SimulatedDisk


def always(number: int) -> Callable[[int], int]:
    return lambda below: min(number, below - 1)


def crashed(at: int) -> SimulatedDisk:
    """A disk that crashed before a step of creating its second file."""
    disk = SimulatedDisk(at)
    with contextlib.suppress(SimulatedCrash):
        disk.create("d/first", [b"1" * 10])
        disk.create("d/second", [b"2" * 10, b"3" * 10])
    return disk


STEPS = ["open", "write", "write", "sync", "link", "sync directory of"]


@pytest.mark.parametrize("at", range(6, 13))
def test_what_was_acknowledged_survives(at: int) -> None:
    """The first file survives every loss; the second is never partial once synced."""
    for fate in range(4):
        after = crashed(at).power_loss(always(fate))
        assert after.read("d/first") == b"1" * 10
        if after.exists("d/second"):
            assert after.read("d/second") == b"2" * 10 + b"3" * 10
    if at == 12:
        assert crashed(at).power_loss(always(1)).exists("d/second")


def test_the_steps_are_those_of_local_files() -> None:
    """A crash is possible at each of them."""
    disk = SimulatedDisk()
    disk.create("d/second", [b"2", b"3"])
    assert disk.steps == [f"{step} d/second" for step in STEPS]
    disk.delete("d/second")
    assert disk.steps[-1] == "unlink d/second"


@pytest.mark.parametrize(
    ("fate", "found"), [(0, b"22223333"), (1, b"\0" * 8), (2, b"22"), (3, b"3333")]
)
def test_without_a_sync_everything_can_be_found(fate: int, found: bytes) -> None:
    """Unsynced writes may be kept, stale, torn or overtaken."""
    disk = SimulatedDisk(omit="file sync")
    disk.create("d/file", [b"2222", b"3333"])
    assert disk.power_loss(always(fate)).read("d/file") == found


def test_deleted_files_may_come_back() -> None:
    """Deletions are not synced, so a power loss can undo them."""
    disk = SimulatedDisk()
    disk.create("d/file", [b"1"])
    disk.delete("d/file")
    assert disk.power_loss(always(1)).exists("d/file")
    assert not disk.power_loss(always(0)).exists("d/file")


def test_when_only_the_process_dies_nothing_is_lost() -> None:
    """The kernel still writes everything, including unsynced names."""
    after = crashed(12).restart()
    assert after.list("") == ["d/first", "d/second"]
    with pytest.raises(AlreadyExistsError):
        after.create("d/first", [b"x"])


def test_a_dead_process_does_nothing() -> None:
    """After its last step every operation raises."""
    disk = crashed(8)
    for call in (
        lambda: disk.create("a", [b"x"]),
        lambda: disk.read("d/first"),
        lambda: disk.list(""),
    ):
        with pytest.raises(SimulatedCrash, match="before step 8"):
            call()
    assert disk.has_crashed
