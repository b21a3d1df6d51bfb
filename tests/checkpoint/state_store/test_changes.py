"""Changes of several commits, merged."""

from __future__ import annotations

import pytest

from checkpoint.state_store.base import Changes
from checkpoint.state_store.changes import merge_changes, operation_count
from tests.support.stores import changes, content


def test_the_last_change_of_a_key_counts() -> None:
    """Puts and removes of keys and of index entries replace what came before."""
    older = Changes([(b"a", b"1"), (b"b", b"1")], [b"c"], [b"x", b"y"], [], 5)
    newer = Changes([(b"b", b"2"), (b"c", b"2")], [b"a"], [b"z"], [b"x"], 6)
    merged = merge_changes([older, newer])
    assert merged == Changes([(b"b", b"2"), (b"c", b"2")], [b"a"], [b"y", b"z"], [b"x"], 6)
    assert operation_count(merged) == 6


def test_merged_changes_lead_to_the_same_content() -> None:
    """Applied to the empty store, ten commits as one make the content of version ten."""
    merged = merge_changes(part for version in range(1, 11) for part in changes(version))
    records, index = content(10)
    assert dict(merged.puts) == records
    assert set(merged.index_puts) == index
    assert merged.count == len(records)


def test_nothing_cannot_be_merged() -> None:
    """Without changes there is no count."""
    with pytest.raises(ValueError, match="no changes"):
        merge_changes([])
