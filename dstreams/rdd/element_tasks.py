"""Tasks that call a user's function for one element at a time.

Each is a generator expression: it costs what ``map`` costs, and makes an error of a StopIteration
that the user's function raises, which ``map`` would take for the end of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dstreams.rdd.shuffle import require_pair


@dataclass(frozen=True)
class Map:
    """Task: x -> func(x)."""

    func: Callable[[Any], Any]

    def __call__(self, _: int, elements: Iterable[Any]) -> Iterator[Any]:
        func = self.func
        return (func(element) for element in elements)


@dataclass(frozen=True)
class FlatMap:
    """Task: x -> each y of func(x)."""

    func: Callable[[Any], Iterable[Any]]

    def __call__(self, _: int, elements: Iterable[Any]) -> Iterator[Any]:
        func = self.func
        return chain.from_iterable(func(element) for element in elements)


@dataclass(frozen=True)
class Filter:
    """Task: x -> x where func(x) is true."""

    func: Callable[[Any], Any]

    def __call__(self, _: int, elements: Iterable[Any]) -> Iterator[Any]:
        func = self.func
        return (element for element in elements if func(element))


@dataclass(frozen=True)
class MapValues:
    """Task: (k, v) -> (k, func(v))."""

    func: Callable[[Any], Any]
    operation: str

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        func, operation = self.func, self.operation
        for record in records:
            if record.__class__ is not tuple or len(record) != 2:
                require_pair(record, operation)
            key, value = record
            yield key, func(value)


@dataclass(frozen=True)
class FlatMapValues:
    """Task: (k, v) -> (k, w) for each w of func(v)."""

    func: Callable[[Any], Iterable[Any]]
    operation: str

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        func, operation = self.func, self.operation
        for record in records:
            if record.__class__ is not tuple or len(record) != 2:
                require_pair(record, operation)
            key, value = record
            for each in func(value):
                yield key, each


def with_ones(_: int, elements: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Task: x -> (x, 1)."""
    return ((element, 1) for element in elements)


def pair_with_one(element: Any) -> tuple[Any, int]:
    """Function for :class:`Map`: x -> (x, 1)."""
    return element, 1


def with_no_key(element: Any) -> tuple[None, Any]:
    """Function for :class:`Map`: x -> (None, x)."""
    return None, element


def as_list(element: Any) -> list[Any]:
    """Function for :class:`Map`: x -> [x]."""
    return [element]


def number_of(elements: Iterable[Any]) -> list[tuple[None, int]]:
    """Function for ``mapPartitions``: (None, how many there are), nothing of none."""
    number = sum(1 for _ in elements)
    return [(None, number)] if number else []


def is_counted(pair: tuple[Any, int]) -> bool:
    """Function for :class:`Filter`: (x, n) -> whether n is more than 0."""
    return pair[1] > 0
