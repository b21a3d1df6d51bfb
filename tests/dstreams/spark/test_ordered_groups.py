"""Groups come in the order of their keys, whatever was spilled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pytest

from dstreams.spark.ordered_groups import GroupsInOrder, _runs

KEYS = 3000


def records(count: int) -> list[tuple[Any, int]]:
    """Pairs of which a key has several, far from each other."""
    numbers = random.Random(1)
    return [((numbers.randrange(KEYS), "key"), number) for number in range(count)]


def expected(pairs: list[tuple[Any, int]]) -> list[tuple[Any, list[int]]]:
    groups: dict[Any, list[int]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return list(groups.items())


@pytest.fixture(autouse=True)
def _memory_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first looks at the memory find more used than the last, so that each may spill."""
    used = chain((2**n for n in range(1, 12)), repeat(0))
    monkeypatch.setattr("pyspark.shuffle.get_used_memory", lambda: next(used))


@pytest.mark.parametrize("memory_mb", [1 << 62, 1])
def test_groups_come_in_the_order_of_their_keys(memory_mb: float) -> None:
    """In memory, and spilled several times."""
    pairs = records(20_000)
    groups = GroupsInOrder(memory_mb)
    groups.add(pairs)
    assert (groups._merger.spills > 1) is (memory_mb == 1)
    assert [(key, list(values)) for key, values in groups.items()] == expected(pairs)


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


def test_large_groups_are_sorted_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of groups that spilled no more are in memory at once than there is room for."""
    pairs = records(20_000)
    groups = GroupsInOrder(1)
    groups.add(pairs)
    monkeypatch.setattr("dstreams.spark.ordered_groups._RUN_BYTES", 1000)
    runs: list[int] = []

    def counted(found: Iterator[Any]) -> Iterator[Any]:
        for run in _runs(found):
            runs.append(sum(len(record) for _, record in run))
            yield run

    monkeypatch.setattr("dstreams.spark.ordered_groups._runs", counted)
    assert not groups.are_in_memory
    assert [(key, list(values)) for key, values in groups.items()] == expected(pairs)
    assert len(runs) > 100
    assert max(runs) < 2000


def test_what_is_empty_has_no_groups() -> None:
    """Nothing came."""
    groups = GroupsInOrder(1)
    groups.add([])
    assert list(groups.items()) == []
