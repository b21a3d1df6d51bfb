"""Blocks in the order of their records, for any order of delivery by the shuffle."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import with_origin
from dstreams.spark.blocks import Block, Side, encode_block
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.placed_pairs import in_order
from dstreams.spark.shuffle import shuffle_pairs


def frame(text: str, *origin: int, side: Side = Side.BATCH) -> bytes:
    block = encode_block(side, list(text), [1] * len(text))
    return with_origin(block, *origin) if origin else block


@pytest.mark.parametrize("limit_bytes", [1 << 20, 0, 60])
def test_any_order(limit_bytes: int) -> None:
    """States come first, then blocks by partition and number, in memory or in a file."""
    frames = [
        frame("z", 3, 0, side=Side.STATE),
        frame("a", 0, 0),
        frame("bc", 0, 1),
        frame("d", 2, 0),
        frame("e", 10, 0),
    ]
    for shuffled in itertools.permutations(frames):
        found = [(block.side, block.keys()) for block in in_order(shuffled, limit_bytes)]
        assert found == [
            (Side.STATE, ["z"]),
            (Side.BATCH, ["a"]),
            (Side.BATCH, ["b", "c"]),
            (Side.BATCH, ["d"]),
            (Side.BATCH, ["e"]),
        ]


def test_blocks_without_an_origin_stay_as_they_came() -> None:
    """Data that was not shuffled keeps the order of its partition."""
    frames = [frame("b"), frame("a"), frame("c")]
    assert [block.keys() for block in in_order(iter(frames))] == [["b"], ["a"], ["c"]]
    assert list(in_order([])) == []


def test_an_origin_changes_nothing_else() -> None:
    """Keys, values, side and rows are those of the block."""
    block = Block(frame("ab", 7, 8, side=Side.STATE))
    assert (block.origin, block.side, block.rows) == ((7, 8), Side.STATE, 2)
    assert (block.keys(), block.values()) == (["a", "b"], [1, 1])
    assert Block(frame("ab")).origin == (-1, -1)


def test_a_shuffle_says_where_blocks_come_from(sc: SparkContext) -> None:
    """Sorted, the records of each key are in the order of the RDD."""
    records = [(number % 5, number) for number in range(500)]
    pairs: RDD[Any] = sc.parallelize(records, 4)
    blocks = shuffle_pairs(pairs, StablePartitioner(2), ordered=True)
    for part in blocks.glom().collect():
        found = [
            pair
            for block in in_order(reversed(part))
            for pair in zip(block.keys(), block.values(), strict=True)
        ]
        keys = {key for key, _ in found}
        assert found == [pair for pair in records if pair[0] in keys]
