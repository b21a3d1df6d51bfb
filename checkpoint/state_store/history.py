"""What happened to a store between two contents."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from checkpoint.files import Files
from checkpoint.state_store.base import Changes
from checkpoint.state_store.chain import plan_catch_up
from checkpoint.state_store.changelog import read_base, read_changelog
from checkpoint.stored_state import Reference, StoreId


def changes_between(
    files: Files, store: StoreId, older: Reference, newer: Reference
) -> Iterator[tuple[Reference, Changes]]:
    """Yield (content, changes that led to it), oldest first; large changes in several parts.

    Args:
        files: where the changelogs are.
        store: the store.
        older: a content; its own changes are not among them.
        newer: a later content of the same chain.

    Raises:
        ValueError: *newer* does not follow from *older*.
        CorruptCheckpointError: a changelog is missing or damaged.
    """
    plan = plan_catch_up(older, newer, lambda ref: read_base(files, store, ref), sys.maxsize)
    if plan is None:
        raise ValueError(
            f"version {newer.version} ({newer.uid}) of store {store.store!r} does not follow from "
            f"version {older.version} ({older.uid}); take two versions of one history, older first"
        )
    for reference in plan.changelogs:
        for part in read_changelog(files, store, reference).parts:
            yield reference, part
