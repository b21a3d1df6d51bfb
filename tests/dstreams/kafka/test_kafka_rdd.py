"""RDDs of ranges: how these are cut into partitions, and what is read of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.kafka.kafka_rdd import split
from dstreams.kafka.offsets import OffsetRange

sizes = st.lists(st.integers(0, 10**6), min_size=1, max_size=8)


def ranges_of(counts: list[int]) -> list[OffsetRange]:
    return [OffsetRange("t", number, 10, 10 + count) for number, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("rule", "counts", "least", "pieces"),
    [
        ("enough", [5, 5], 2, [5, 5]),
        ("one is cut", [10], 3, [3, 3, 4]),
        ("each by its size", [9, 3], 4, [3, 3, 3, 3]),
        ("small ones stay whole, the others are cut", [100, 1, 1], 4, [50, 50, 1, 1]),
        ("half a piece is one", [5, 3], 4, [1, 2, 2, 1, 2]),
        ("never more than there are offsets", [2], 5, [1, 1]),
        ("without records nothing is cut", [0, 0], 4, [0, 0]),
        ("those without records come last", [0, 8], 2, [4, 4, 0]),
    ],
)
def test_pieces(rule: str, counts: list[int], least: int, pieces: list[int]) -> None:
    """As Spark's KafkaOffsetRangeCalculator cuts for minPartitions."""
    assert [one.count() for one in split(ranges_of(counts), least)] == pieces, rule


@given(sizes, st.integers(1, 200))
def test_pieces_are_the_ranges(counts: list[int], least: int) -> None:
    """All offsets, once and in order, in pieces that differ by one offset within a partition."""
    ranges = ranges_of(counts)
    pieces = split(ranges, least)
    for one in ranges:
        own = [piece for piece in pieces if piece.partition == one.partition]
        assert own[0].fromOffset == one.fromOffset
        assert own[-1].untilOffset == one.untilOffset
        assert all(a.untilOffset == b.fromOffset for a, b in itertools.pairwise(own))
        found = {piece.count() for piece in own}
        assert max(found) - min(found) <= 1
    assert len(pieces) >= min(least, sum(counts), len(pieces))
