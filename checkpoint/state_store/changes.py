"""Changes of one commit, merged with others."""

from __future__ import annotations

from collections.abc import Iterable

from checkpoint.state_store.base import Changes


def merge_changes(parts: Iterable[Changes]) -> Changes:
    """Return one set of changes that does what *parts*, oldest first, do one after the other.

    A key that was put and removed stays in the removes: whether it was there before is not known.

    Raises:
        ValueError: there are no parts.
    """
    records: dict[bytes, bytes | None] = {}
    index: dict[bytes, bool] = {}
    count = checksum = None
    for part in parts:
        records.update(part.puts)
        records.update(dict.fromkeys(part.removes))
        index.update(dict.fromkeys(part.index_puts, True))
        index.update(dict.fromkeys(part.index_removes, False))
        count, checksum = part.count, part.checksum
    if count is None:
        raise ValueError("there are no changes to merge")
    ordered = sorted(records.items(), key=lambda item: item[0])
    entries = sorted(index)
    return Changes(
        puts=[(key, record) for key, record in ordered if record is not None],
        removes=[key for key, record in ordered if record is None],
        index_puts=[entry for entry in entries if index[entry]],
        index_removes=[entry for entry in entries if not index[entry]],
        count=count,
        checksum=checksum,
    )


def operation_count(changes: Changes) -> int:
    """Return how many keys and index entries are changed."""
    return (
        len(changes.puts)
        + len(changes.removes)
        + len(changes.index_puts)
        + len(changes.index_removes)
    )
