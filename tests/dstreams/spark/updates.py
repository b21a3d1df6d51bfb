"""Update functions, in a module that workers import quickly: the tests' own import pytest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class SumColumns:
    """The update function over columns of the docstring of ``dstreams.spark.cogroup``."""

    where = "running sum"
    needs_keys = False

    def __call__(
        self,
        keys: Iterable[Any],
        values: Iterable[list[Any]],
        states: Iterable[Any],
        into: list[Any],
    ) -> None:
        into.extend(sum(v) + (s or 0) for v, s in zip(values, states, strict=False))


def add(values: list[int], state: int | None) -> int:
    """Update a running sum."""
    return sum(values) + (state or 0)


def append(values: list[Any], state: list[Any] | None) -> list[Any]:
    """Append all items of all values, in a new list."""
    return [*(state or []), *(item for value in values for item in value)]


def collect_in_place(values: list[Any], state: Any) -> Any:
    """Change both arguments in place; drop the key when five values are together."""
    state = [] if state is None else state
    state.extend(values)
    values.append("mine to change")
    return None if len(state) >= 5 else state


def collect_keyed(time: Any, key: Any, values: list[Any], state: Any) -> Any:
    return collect_in_place(values, state)


def collect_all(entries: Iterator[Any]) -> Iterator[Any]:
    for key, values, state in entries:
        new = collect_in_place(values, state)
        if new is not None:
            yield key, new


def count_all(entries: Iterator[Any]) -> Iterator[Any]:
    for key, values, state in entries:
        yield key, len(values) + (state or 0)


def count_some(entries: Iterator[Any]) -> Iterator[Any]:
    """Stop after three keys."""
    for number, (key, values, state) in enumerate(entries):
        if number == 3:
            return
        yield key, len(values) + (state or 0)


def count_none(entries: Iterator[Any]) -> list[Any]:
    """Do not even look."""
    return []


def grow_keys(entries: Iterator[Any]) -> Iterator[Any]:
    """Move every key to another name."""
    for key, values, state in entries:
        yield f"{key}x", len(values) + (state or 0)
