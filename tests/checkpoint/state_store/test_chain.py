"""Chains: which way leads to a content."""

from __future__ import annotations

import itertools

import pytest

from checkpoint.log.version_records import EMPTY, VersionId
from checkpoint.state_store.store_files import ReplayPlan, plan_catch_up, plan_rebuilds, walk_back

CHAIN = [EMPTY, *(VersionId(version, f"{version:08x}") for version in range(1, 9))]
OTHER = [*CHAIN[:4], *(VersionId(version, f"{version:08x}aa") for version in range(4, 7))]
BASES = {newer: older for chain in (CHAIN, OTHER) for older, newer in itertools.pairwise(chain)}


def base_of(version_id: VersionId) -> VersionId:
    return BASES[version_id]


def test_a_walk_ends_with_the_empty_content() -> None:
    """Every reference of the chain, newest first."""
    assert list(walk_back(CHAIN[3], base_of)) == [CHAIN[3], CHAIN[2], CHAIN[1], EMPTY]
    assert list(walk_back(EMPTY, base_of)) == [EMPTY]


@pytest.mark.parametrize(
    ("local", "wanted", "most", "plan"),
    [
        (CHAIN[5], CHAIN[5], 0, ReplayPlan(CHAIN[5], ())),
        (CHAIN[4], CHAIN[5], 1, ReplayPlan(CHAIN[4], (CHAIN[5],))),
        (CHAIN[2], CHAIN[5], 9, ReplayPlan(CHAIN[2], tuple(CHAIN[3:6]))),
        (EMPTY, CHAIN[2], 9, ReplayPlan(EMPTY, tuple(CHAIN[1:3]))),
        (CHAIN[2], CHAIN[5], 2, None),  # too far behind
        (CHAIN[6], CHAIN[5], 9, None),  # ahead
        (OTHER[4], CHAIN[5], 9, None),  # on another chain
        (OTHER[5], CHAIN[5], 9, None),  # the same version of another chain
        (OTHER[3], CHAIN[5], 9, ReplayPlan(CHAIN[3], tuple(CHAIN[4:6]))),  # before they part
    ],
)
def test_a_replica_catches_up_only_along_its_own_chain(
    local: VersionId, wanted: VersionId, most: int, plan: ReplayPlan | None
) -> None:
    """Changelogs from the replica to the content, or no way."""
    assert plan_catch_up(local, wanted, base_of, most) == plan


def test_rebuilds_begin_with_the_newest_snapshot_of_the_chain() -> None:
    """Each further plan goes back to an older one, the last to the beginning."""
    snapshots = frozenset({CHAIN[2], CHAIN[5], OTHER[6], CHAIN[8]})
    assert list(plan_rebuilds(CHAIN[7], snapshots, base_of)) == [
        ReplayPlan(CHAIN[5], tuple(CHAIN[6:8])),
        ReplayPlan(CHAIN[2], tuple(CHAIN[3:8])),
        ReplayPlan(EMPTY, tuple(CHAIN[1:8])),
    ]


def test_a_snapshot_of_the_content_itself_needs_no_changelog() -> None:
    """Nothing of the chain before it is read."""
    plans = plan_rebuilds(CHAIN[8], frozenset({CHAIN[8]}), {}.__getitem__)
    assert next(plans) == ReplayPlan(CHAIN[8], ())
