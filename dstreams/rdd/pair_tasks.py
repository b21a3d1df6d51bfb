"""Tasks over records that have to be pairs, checked in the pass that uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dstreams.rdd.shuffle import require_pair


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
