"""Pairs in columns: read by the pair or by the column, and moved as the same blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.spark.blocks import Block, Side
from dstreams.spark.pair_columns import Columns, PairColumns, columns_of, two_columns
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import Route

KEYS = st.text(max_size=3) | st.integers(-3, 3)
PLAIN = st.integers() | st.text(max_size=3) | st.none() | st.tuples(st.integers(), st.text())
RECORDS = PLAIN | st.lists(st.integers(), max_size=2)
EVENTS = st.lists(st.tuples(KEYS, st.none() | st.integers(), RECORDS), max_size=30)


def in_columns(events: list[Any], at_once: int = 4) -> PairColumns:
    """Return (key, time, record) as pairs of key and event."""

    def columns() -> Iterator[Columns]:
        for start in range(0, len(events), at_once):
            keys, times, records = map(list, zip(*events[start : start + at_once], strict=True))
            yield keys, (times, records)

    return PairColumns(columns())


def moved(records: Any, partitions: int) -> dict[int, list[Any]]:
    """Return which pairs come to which partition."""
    frames = list(Route(StablePartitioner(partitions), Side.BATCH, "test")(0, records))
    found = defaultdict(list)
    for target, frame in zip(frames[::2], frames[1::2], strict=True):
        block = Block(frame)
        assert list(PairColumns([(block.keys(), block.column())])) == list(
            zip(block.keys(), block.values(), strict=True)
        )
        found[int.from_bytes(target, "big")] += zip(block.keys(), block.values(), strict=True)
    return found


@given(EVENTS, st.sampled_from([1, 2, 20]))
def test_columns_move_as_pairs_do(events: list[Any], partitions: int) -> None:
    """To the same partitions, in the same order, whatever records are."""
    pairs = [(key, (time_us, record)) for key, time_us, record in events]
    assert list(in_columns(events)) == pairs
    assert moved(in_columns(events), partitions) == moved(iter(pairs), partitions)


def test_values_in_one_column_move_too() -> None:
    """Buffers of an aggregation have no fields."""
    columns = [(["a", "b"], [1, 2]), (["c"], [3])]
    assert moved(PairColumns(columns), 2) == moved([("a", 1), ("b", 2), ("c", 3)], 2)


def test_a_record_in_two_places_comes_out_twice() -> None:
    """What is one list before the shuffle is two behind it, as with pairs."""
    shared = [1]
    columns = PairColumns([(["a", "b"], ([1, 2], [shared, shared]))])
    ((_, (_, first)), (_, (_, second))) = moved(columns, 1)[0]
    assert first == second == shared
    assert first is not second


def test_large_records_make_small_blocks() -> None:
    """Not all rows of a column have to be in one block."""
    columns = PairColumns([(list(range(60)), ([0] * 60, ["x" * 1_000_000] * 30 + ["y"] * 30))])
    assert [key for key, _ in moved(columns, 1)[0]] == list(range(60))


def test_a_key_that_cannot_be_placed_is_named() -> None:
    """As for pairs."""
    columns = PairColumns([([["a"]], [1])])
    with pytest.raises(TypeError, match=r"test: the key \['a'\] cannot be placed"):
        moved(columns, 2)


def test_what_was_read_is_gone() -> None:
    """Pairs that were taken do not come again in columns, nor the other way round."""
    pairs = PairColumns([(["a"], [1]), (["b"], [2]), (["c"], [3])])
    assert next(pairs) == ("a", 1)
    assert next(columns_of(pairs)) == (["b"], [2])
    assert list(pairs) == [("c", 3)]


def test_fields_of_pairs() -> None:
    """Of rows and of columns, also of none."""
    assert two_columns([(1, "a"), (2, "b")]) == ([1, 2], ["a", "b"])
    assert two_columns(([1], (["a"], [2]))) == ([1], (["a"], [2]))
    assert two_columns([]) == ([], [])
