"""Columns: many bytes objects in one."""

from __future__ import annotations

import pytest

from checkpoint.state_store.change_blocks import Column

ITEMS = [b"a", b"", b"ccc", b"dd", *(bytes(number % 7) for number in range(1000))]
SAME = [b"%03d" % number for number in range(600)]


@pytest.mark.parametrize("items", [ITEMS, SAME, [b"one"], []], ids=["some", "same", "one", "none"])
def test_a_column_is_a_sequence(items: list[bytes]) -> None:
    """Items come back in order, by position and by range, as often as they are asked for."""
    column = Column.of(items)
    assert [list(column), list(column)] == [items, items]
    assert len(column) == len(items)
    assert [column[at] for at in range(-len(items), len(items))] == items * 2
    assert column[1:5] == items[1:5]
    assert column == items
    assert bytes(column.whole()) == b"".join(items)
    assert column.size_bytes == len(b"".join(items))


def test_a_column_in_the_middle_of_bytes() -> None:
    """A column and its parts begin where they are told to."""
    column = Column([1, 3, 2], b"--abbbcc--", at=2)
    assert list(column) == [b"a", b"bbb", b"cc"]
    assert bytes(column.whole()) == b"abbbcc"
    assert list(column.part(1, 3)) == [b"bbb", b"cc"]
    assert bytes(column.part(1, 2).whole()) == b"bbb"
    assert repr(column) == "[b'a', b'bbb', b'cc']"
    assert column != [b"a"]


def test_columns_are_joined() -> None:
    """One column holds what several did, also where these are parts of others."""
    whole = Column.of(ITEMS)
    parts = [whole.part(0, 3), whole.part(3, 400), whole.part(400, len(ITEMS))]
    assert list(Column.joined(parts)) == ITEMS
    assert Column.joined(parts[:1]) is parts[0]


def test_a_column_that_ends_too_early() -> None:
    """Lengths that go beyond the bytes are refused before any item is cut."""
    with pytest.raises(ValueError, match="a column of 2 items is 3 bytes too short"):
        Column([2, 4], b"abc")
