"""Stores are maintained when there is something to do, which the driver knows from commits."""

from __future__ import annotations

from checkpoint import StoredPartition
from checkpoint.state_store import EMPTY, Progress, Reference, SnapshotRule, StoreId
from dstreams.rdd.state_stores import StoreUpkeep
from dstreams.rdd.stored_version import StoredVersion

RULE = SnapshotRule(min_changelogs=3, max_changelogs=6)


def uid(version: int) -> str:
    return f"{version:08x}"


def made(version: int, *sizes: int) -> StoredVersion:
    """A version whose changelogs have these sizes, a partition each."""
    commits = tuple(
        StoredPartition(number, version, uid(version), f"p{number}/{version}", size, "0" * 32, 1)
        for number, size in enumerate(sizes)
    )
    references = tuple(Reference(version, uid(version)) for _ in sizes)
    store_id = StoreId("stream-1", "counts", "default", 0, len(sizes))
    return StoredVersion(store_id, "stable", references, commits)


def snapshot(version: int, size_bytes: int) -> Progress:
    """Where a copy stands of which a snapshot was just written."""
    reference = Reference(version, uid(version))
    return Progress(reference, {}, reference, size_bytes)


def test_a_new_state_is_due_by_its_changelogs() -> None:
    """The first snapshot once there are enough of them."""
    upkeep = StoreUpkeep(RULE, ask_every=100)
    due = []
    for version in range(1, 5):
        upkeep.made(made(version, 10, 10))
        due.append(upkeep.is_due())
    assert due == [False, False, True, True]


def test_the_next_one_is_due_when_changelogs_are_as_large() -> None:
    """As large as the last snapshot of a partition, or too many."""
    upkeep = StoreUpkeep(RULE, ask_every=100)
    upkeep.made(made(1, 10, 10))
    upkeep.done([snapshot(1, 1000), snapshot(1, 40)])
    due = []
    for version in range(2, 7):
        upkeep.made(made(version, 10, 10))
        due.append(upkeep.is_due())
    assert due == [False, False, False, True, True]
    upkeep.done([snapshot(6, 1000), snapshot(6, 1000)])
    due = []
    for version in range(7, 13):
        upkeep.made(made(version, 10, 10))
        due.append(upkeep.is_due())
    assert due == [False, False, False, False, False, True]


def test_what_an_earlier_run_has_left_is_asked_for() -> None:
    """Until the hosts have said where their copies stand."""
    upkeep = StoreUpkeep(RULE, ask_every=100)
    upkeep.made(made(8, 10, 10))
    assert upkeep.is_due()
    upkeep.done([snapshot(8, 1000), None])
    upkeep.made(made(9, 10, 10))
    assert upkeep.is_due()
    upkeep.done([snapshot(8, 1000).after(Reference(9, uid(9)), {}, 10, None), snapshot(9, 1000)])
    upkeep.made(made(10, 10, 10))
    assert not upkeep.is_due()


def test_a_batch_that_made_nothing_of_what_is_known_is_asked_for() -> None:
    """As after a state that was restored meanwhile."""
    upkeep = StoreUpkeep(RULE, ask_every=100)
    upkeep.made(made(1, 10))
    upkeep.made(made(5, 10))
    assert upkeep.is_due()


def test_hosts_are_asked_now_and_then() -> None:
    """Only they know how large their copies have become."""
    upkeep = StoreUpkeep(RULE, ask_every=4)
    assert Progress(EMPTY).changelogs == 0
    assert [upkeep.is_due() for _ in range(8)] == [False, False, False, True] * 2
