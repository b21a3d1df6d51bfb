"""Reductions come out the same, whether they were spilled or not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from dstreams.spark import ordered_groups
from dstreams.spark.ordered_groups import GroupsInOrder, reduce_by_key

IN_MEMORY, SPILLED = 1 << 62, 0.001


def floats(count: int) -> list[tuple[str, float]]:
    """Pairs whose sums depend on the order in which they are added."""
    numbers = random.Random(1)
    return [(f"key-{numbers.randrange(3000)}", numbers.uniform(-1e9, 1)) for _ in range(count)]


def rows_of(reduced: dict[Any, Any] | Iterator[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return list(reduced.items() if isinstance(reduced, dict) else reduced)


def expected(pairs: list[tuple[str, float]]) -> list[tuple[str, float]]:
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

    monkeypatch.setattr(ordered_groups, "GroupsInOrder", groups)
    pairs = floats(count)
    found = rows_of(reduce_by_key(iter(pairs), lambda a, b: a + b, memory_mb))
    assert found == expected(pairs)
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
