"""Tasks that call a user's function for one element at a time.

An error names the function, its operation and the record; a ``try`` costs nothing if nothing fails.
A StopIteration of the function is an error too; with ``map`` it would end the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dstreams.spark.failures import calling, failed, function_of
from dstreams.spark.shuffle import require_pair


@dataclass(frozen=True)
class Map:
    """Task: x -> func(x)."""

    func: Callable[[Any], Any]
    where: str = "the function"

    def __call__(self, _: int, elements: Iterable[Any]) -> Iterator[Any]:
        func = self.func
        for element in elements:
            try:
                mapped = func(element)
            except Exception as error:
                raise failed(self.where, element, error, "record") from error
            yield mapped


@dataclass(frozen=True)
class FlatMap:
    """Task: x -> each y of func(x)."""

    func: Callable[[Any], Iterable[Any]]
    where: str = "the function"

    def __call__(self, _: int, elements: Iterable[Any]) -> Iterator[Any]:
        return chain.from_iterable(self._rows(elements))

    def _rows(self, elements: Iterable[Any]) -> Iterator[Iterable[Any]]:
        func = self.func
        for element in elements:
            try:
                rows = func(element)
            except Exception as error:
                raise failed(self.where, element, error, "record") from error
            if rows.__class__ is list or rows.__class__ in _PLAIN:
                yield rows
            else:
                yield self._iterated(element, rows)

    def _iterated(self, element: Any, rows: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from rows
        except Exception as error:
            raise failed(self.where, element, error, "record") from error


@dataclass(frozen=True)
class Filter:
    """Task: x -> x where func(x) is true."""

    func: Callable[[Any], Any]
    where: str = "the function"

    def __call__(self, _: int, elements: Iterable[Any]) -> Iterator[Any]:
        func = self.func
        for element in elements:
            try:
                is_kept = func(element)
            except Exception as error:
                raise failed(self.where, element, error, "record") from error
            if is_kept:
                yield element


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
            try:
                mapped = func(value)
            except Exception as error:
                raise failed(function_of(func, operation), key, error) from error
            yield key, mapped


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
            try:
                for each in func(value):
                    yield key, each
            except Exception as error:
                raise failed(function_of(func, operation), key, error) from error


@dataclass(frozen=True)
class MapPartitions:
    """Task: the elements of a partition -> func(an iterator over them), or func(number, it)."""

    func: Callable[..., Iterable[Any]]
    operation: str
    with_index: bool = False

    def __call__(self, split: int, elements: Iterable[Any]) -> Iterator[Any]:
        return guarded(self.operation, self.func, *((split,) if self.with_index else ()), elements)


def guarded(operation: str, func: Callable[..., Iterable[Any]], *args: Any) -> Iterator[Any]:
    """Iterate over the result of *func*; an error names *func*."""
    with calling(operation, func):
        yield from func(*args)


_PLAIN = frozenset({tuple, str, set, frozenset, dict, range})
"""Types whose iteration cannot fail."""


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
    """Function for ``mapPartitions``: (None, number of elements), nothing if it is empty."""
    number = sum(1 for _ in elements)
    return [(None, number)] if number else []


def is_counted(pair: tuple[Any, int]) -> bool:
    """Function for :class:`Filter`: (x, n) -> whether n is more than 0."""
    return pair[1] > 0
