"""The tables themselves: what a cell means, and that a difference is shown where it is."""

from __future__ import annotations

import pytest

from tests.conformance.tables import Table, words


def test_cells() -> None:
    """No RDD, an empty one, text, numbers, quoted text, pairs."""
    table = Table.parse("""
        in  | - | [] | a 1 '' '1' | a=1 ''=(1,'x') k=[0,1] 2=None
        out | - | -  | -          | -
    """)
    assert table.rows["in"] == [
        None,
        [],
        ["a", 1, "", "1"],
        [("a", 1), ("", (1, "x")), ("k", [0, 1]), (2, None)],
    ]
    assert words("a b=1") == ["a", ("b", 1)]


@pytest.mark.parametrize("text", ["in | a\nout | a | b", "in | a\nin | b"])
def test_a_crooked_table_is_refused(text: str) -> None:
    """Rows have one cell for each batch and a name of their own."""
    with pytest.raises(ValueError, match="rows"):
        Table.parse(text)


def test_order_counts_only_where_it_is_promised() -> None:
    """Without *ordered* a batch is a multiset: order is free, how often a record comes is not."""
    table = Table.parse("out | a b b")
    table.compare([["b", "a", "b"]])
    with pytest.raises(AssertionError):
        table.compare([["b", "a", "b"]], ordered=True)
    with pytest.raises(AssertionError):
        table.compare([["a", "a", "b"]])


def test_a_difference_is_shown_under_its_batch() -> None:
    """The message has the table, an arrow, and both values; None is not an empty batch."""
    table = Table.parse("in  | a   | b   \nout | a=1 | -")
    with pytest.raises(AssertionError) as raised:
        table.compare([[("a", 1)], []])
    assert str(raised.value).splitlines()[1:] == [
        "in  | a   | b",
        "out | a=1 | -",
        "batch 2 ----^",
        "expected None",
        "found    []",
    ]


def test_a_batch_too_few_is_noticed() -> None:
    """A run with fewer batches than the table does not pass."""
    with pytest.raises(ValueError, match="shorter"):
        Table.parse("out | a | b").compare([["a"]])
