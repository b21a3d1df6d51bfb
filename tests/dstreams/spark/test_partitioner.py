"""Partitions of keys, and the equality of partitioners."""

# ruff: noqa: DTZ001 - moments without a zone are keys too

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from pyspark.rdd import Partitioner as PySparkPartitioner
from pyspark.rdd import portable_hash

from dstreams.errors import InvalidStreamError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.stable_hash import STABLE_HASH_NAME, stable_hash
from tests.dstreams.spark.sample_keys import EAST, User

FAMILIES: dict[str, Callable[[int], Any]] = {
    "int": lambda number: number,
    "text": lambda number: f"user-{number}",
    "bytes": lambda number: f"{number:08d}".encode(),
    "float": lambda number: number / 10,
    "tuple": lambda number: ("click", number),
    "round numbers": lambda number: (number * 3600, number * 1000),
    "frozenset": lambda number: frozenset({number, "x"}),
    "uuid": lambda number: UUID(int=number * 0x9E37_79B9_7F4A_7C15),
    "minutes": lambda number: datetime(2024, 1, 1) + timedelta(minutes=number),
    "minutes in a zone": lambda number: (
        datetime(2024, 1, 1, tzinfo=EAST) + timedelta(minutes=number)
    ),
    "durations": lambda number: timedelta(minutes=number),
    "dataclass": lambda number: User(f"user-{number}", 0),
}


@pytest.mark.deep
@pytest.mark.parametrize("partitions", [2, 7, 8])
@pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES)
def test_keys_are_spread_evenly(make: Callable[[int], Any], partitions: int) -> None:
    """No partition has a quarter more or less than its share of 10,000 keys."""
    place = StablePartitioner(partitions)
    counts = Counter(place(make(number)) for number in range(10_000))
    share = 10_000 / partitions
    assert sorted(counts) == list(range(partitions))
    assert all(0.75 * share < count < 1.25 * share for count in counts.values()), counts


def test_place_is_within_the_partitions() -> None:
    """Negative hashes and hashes larger than the number of partitions are places too."""
    place = StablePartitioner(3, lambda key: key)
    assert [place(key) for key in (-4, -1, 0, 2, 3, 10**30)] == [2, 2, 0, 2, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "numPartitions must be at least 1, got 0"),
        ((-2,), "numPartitions must be at least 1, got -2"),
        ((True,), "numPartitions must be an integer, got True"),
        ((2.0,), r"numPartitions must be an integer, got 2\.0"),
        (("2",), "numPartitions must be an integer, got '2'"),
        ((2, 5), "partitionFunc must be callable, got 5"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    """The number of partitions is a positive integer, the function can be called."""
    with pytest.raises(InvalidStreamError, match=message):
        StablePartitioner(*arguments)


def test_equality() -> None:
    """Equal are partitioners with equal numbers of partitions and equal names."""
    partitioner = StablePartitioner(4)
    assert partitioner == StablePartitioner(4)
    assert hash(partitioner) == hash(StablePartitioner(4))
    assert partitioner.name == StablePartitioner(4, stable_hash).name == STABLE_HASH_NAME
    assert repr(partitioner) == "StablePartitioner(4, stable-hash-1)"
    for other in (
        StablePartitioner(5),
        StablePartitioner(4, len),
        StablePartitioner(4, name="mine"),
        PySparkPartitioner(4, stable_hash),
        PySparkPartitioner(4, portable_hash),
        None,
    ):
        assert partitioner != other
        assert other != partitioner


def test_own_name_is_kept() -> None:
    """A given name is the identity of any function."""
    one = StablePartitioner(2, lambda key: key, name="by shard")
    other = StablePartitioner(2, lambda key: key + 1, name="by shard")
    assert one == other
    assert one.jvm_id == other.jvm_id


def test_jvm_id_is_a_positive_long() -> None:
    """The id fits the JVM's signed 64 bits, and differs where the name does."""
    ids = {StablePartitioner(2, name=f"name {number}").jvm_id for number in range(1000)}
    assert len(ids) == 1000
    assert all(0 <= number < 1 << 63 for number in ids)
    assert StablePartitioner(2).jvm_id == StablePartitioner(9).jvm_id
