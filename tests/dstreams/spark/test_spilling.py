"""Rows that wait keep their order, and little memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pytest
from pyspark.shuffle import Aggregator

from dstreams.spark import spilling
from dstreams.spark.spilling import GroupsInOrder, Merger, SpillBuffer, reduce_by_key

IN_MEMORY, SPILLED = 1 << 62, 0.001


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 20_000])
@pytest.mark.parametrize("memory_mb", [IN_MEMORY, SPILLED])
def test_rows_come_in_the_order_they_were_added(memory_mb: float, count: int) -> None:
    """In memory and on the disk, for rows of any type."""
    rows: list[Any] = [(number, (None, {"n": number}), [number]) for number in range(count)]
    held = SpillBuffer(memory_mb)
    for row in rows:
        held.add(row)
    assert held.are_in_memory is (memory_mb == IN_MEMORY or count < 1000)
    assert list(held.rows()) == rows


def test_rows_on_the_disk_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded for any number and size of rows."""
    monkeypatch.setattr("dstreams.spark.spilling._BUFFER_BYTES", 1 << 20)
    held = SpillBuffer(SPILLED)
    tracemalloc.start()
    try:
        for number in range(12_000):
            held.add((number, number.to_bytes(4, "big") * 1000))
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for number, row in enumerate(held.rows()):
            assert row == (number, number.to_bytes(4, "big") * 1000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 8 << 20  # of 48 MB
    assert peak_bytes < 16 << 20


@pytest.mark.deep
@pytest.mark.parametrize("keys", [0, 1, 999, 1000])
@pytest.mark.parametrize("grown_mb", [0, 15, 16])
def test_few_keys_of_little_memory_are_not_spilled(
    monkeypatch: pytest.MonkeyPatch, keys: int, grown_mb: int
) -> None:
    """A worker that a program filled has nothing to gain by it; the values are the same."""
    used = chain([4096], repeat(4096 + grown_mb))
    monkeypatch.setattr("pyspark.shuffle.get_used_memory", lambda: next(used))
    merger = Merger(Aggregator(int, max, max), 512)
    merger.mergeValues((key, key) for key in range(keys))
    assert bool(merger.spills) is (keys >= 1000 or grown_mb >= 16)
    assert dict(merger.items()) == {key: key for key in range(keys)}


KEYS = 3000


def records(count: int) -> list[tuple[Any, int]]:
    """Pairs in which equal keys are far apart."""
    numbers = random.Random(1)
    return [((numbers.randrange(KEYS), "key"), number) for number in range(count)]


def expected(pairs: list[tuple[Any, int]]) -> list[tuple[Any, list[int]]]:
    groups: dict[Any, list[int]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return list(groups.items())


@pytest.fixture
def memory_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first looks at the memory find more used than the last, so that each may spill."""
    used = chain((2**n for n in range(1, 12)), repeat(0))
    monkeypatch.setattr("pyspark.shuffle.get_used_memory", lambda: next(used))


@pytest.mark.usefixtures("memory_grows")
@pytest.mark.parametrize("memory_mb", [1 << 62, 1])
def test_groups_come_in_the_order_of_their_keys(memory_mb: float) -> None:
    """In memory, and spilled several times."""
    pairs = records(20_000)
    groups = GroupsInOrder(memory_mb)
    groups.add(pairs)
    assert (groups._merger.spills > 1) is (memory_mb == 1)
    assert [(key, list(values)) for key, values in groups.items()] == expected(pairs)


@pytest.mark.usefixtures("memory_grows")
@pytest.mark.parametrize("memory_mb", [1 << 62, 1])
def test_groups_of_two_sides(memory_mb: float) -> None:
    """A key is where it came first, on whichever side."""
    left, right = records(3000), records(6000)[3000:]
    groups = GroupsInOrder(memory_mb, has_sides=True)
    groups.add((key, (1, value)) for key, value in right)
    groups.add((key, (0, value)) for key, value in left)
    by_key: dict[Any, tuple[list[int], list[int]]] = {}
    for key, value in right:
        by_key.setdefault(key, ([], []))[1].append(value)
    for key, value in left:
        by_key.setdefault(key, ([], []))[0].append(value)
    found = [(key, (list(a), list(b))) for key, (a, b) in groups.items()]
    assert found == list(by_key.items())


@pytest.mark.usefixtures("memory_grows")
def test_spilled_groups_take_little_memory() -> None:
    """Spilled groups are read from the disk one at a time."""
    groups = GroupsInOrder(1)
    for start in range(0, KEYS, 300):
        groups.add((key, bytes(10_000)) for key in range(start, start + 300))
    assert not groups.are_in_memory
    tracemalloc.start()
    try:
        keys = [key for key, _ in groups.items()]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert keys == list(range(KEYS))
    assert peak_bytes < 10 << 20  # of 30 MB


@pytest.mark.usefixtures("memory_grows")
def test_what_is_empty_has_no_groups() -> None:
    """Nothing came."""
    groups = GroupsInOrder(1)
    groups.add([])
    assert list(groups.items()) == []


def floats(count: int) -> list[tuple[str, float]]:
    """Pairs whose sums depend on the order in which they are added."""
    numbers = random.Random(1)
    return [(f"key-{numbers.randrange(3000)}", numbers.uniform(-1e9, 1)) for _ in range(count)]


def rows_of(reduced: dict[Any, Any] | Iterator[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return list(reduced.items() if isinstance(reduced, dict) else reduced)


def expected_sums(pairs: list[tuple[str, float]]) -> list[tuple[str, float]]:
    sums: dict[str, float] = {}
    for key, value in pairs:
        sums[key] = sums[key] + value if key in sums else value
    return list(sums.items())


@pytest.mark.parametrize("memory_mb", [IN_MEMORY, SPILLED])
@pytest.mark.parametrize("count", [0, 1, 1000, 20_000])
def test_order_of_keys_and_of_merging(
    count: int, memory_mb: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are those of the pairs, to the last bit of a sum."""
    made: list[GroupsInOrder] = []

    def groups(memory_mb: float) -> GroupsInOrder:
        made.append(GroupsInOrder(memory_mb))
        return made[-1]

    monkeypatch.setattr(spilling, "GroupsInOrder", groups)
    pairs = floats(count)
    found = rows_of(reduce_by_key(iter(pairs), lambda a, b: a + b, memory_mb))
    assert found == expected_sums(pairs)
    spilled = [group for group in made if not group.are_in_memory]
    assert bool(spilled) is (memory_mb == SPILLED and count > 1000)  # fewer keys are not worth it


@pytest.mark.parametrize("memory_mb", [IN_MEMORY, SPILLED])
def test_an_error_names_its_key(memory_mb: float) -> None:
    """The key that could not be merged, and not the one that was read last; others pass through."""

    def pairs(fails: bool) -> Iterator[tuple[str, Any]]:
        yield "guilty", 1
        yield from ((f"key-{number}", 1) for number in range(2000))
        if fails:
            raise LookupError("reading")
        yield "guilty", None

    def explain(key: Any, error: Exception) -> Exception:
        return ValueError(f"{key}: {type(error).__name__}")

    def add(one: int, other: int) -> int:
        return one + other

    with pytest.raises(ValueError, match=r"^guilty: TypeError$"):
        rows_of(reduce_by_key(pairs(False), add, memory_mb, explain))
    with pytest.raises(TypeError):
        rows_of(reduce_by_key(pairs(False), add, memory_mb))
    with pytest.raises(LookupError, match="reading"):
        rows_of(reduce_by_key(pairs(True), add, memory_mb, explain))
