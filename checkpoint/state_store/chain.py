"""Chains: the way from a version back to something that can be read whole.

::

    empty <- v1 <- v2 <- v3 <- v4 <- v5     each changelog names its parent
                   snapshot   replica

*parent_of* reads the parent of a version out of the header of its changelog. A snapshot that is not
on the chain is never taken, whatever its version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from checkpoint.log.version_records import EMPTY, VersionId

ParentOf = Callable[[VersionId], VersionId]


@dataclass(frozen=True)
class ReplayPlan:
    """How to get a version."""

    start: VersionId
    changelogs: tuple[VersionId, ...]


def walk_back(version_id: VersionId, parent_of: ParentOf) -> Iterator[VersionId]:
    """Yield *version_id*, its parent, and so on; the empty version is the last."""
    while True:
        yield version_id
        if version_id == EMPTY:
            return
        version_id = parent_of(version_id)


def plan_catch_up(
    local: VersionId, version_id: VersionId, parent_of: ParentOf, max_changelogs: int
) -> ReplayPlan | None:
    """Plan how to bring the replica up to *version_id*.

    Returns:
        None if the replica is ahead, on another chain, or more than *max_changelogs* behind.
    """
    if not 0 <= version_id.version - local.version <= max_changelogs:
        return None
    changelogs: list[VersionId] = []
    for passed in walk_back(version_id, parent_of):
        if passed.version <= local.version:
            return ReplayPlan(local, tuple(reversed(changelogs))) if passed == local else None
        changelogs.append(passed)
    return None


def plan_rebuilds(
    version_id: VersionId, snapshots: Set[VersionId], parent_of: ParentOf
) -> Iterator[ReplayPlan]:
    """Yield the ways to build *version_id* from nothing, the shortest first.

    Each begins with an older snapshot of the chain than the one before; the last begins with the
    empty store. Pull the next one only if a snapshot proved to be damaged.
    """
    changelogs: list[VersionId] = []
    for passed in walk_back(version_id, parent_of):
        if passed == EMPTY or passed in snapshots:
            yield ReplayPlan(passed, tuple(reversed(changelogs)))
        changelogs.append(passed)
