"""Event times through a join: a pair has the later one of its two records.

The later record is new in its batch, so a pair is never late for the next operator, however long
the other record has waited in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dstreams.spark.worker_gc import settle_worker
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import NarrowExec, Task


@dataclass(frozen=True)
class NestedEventsExec(NarrowExec):
    """Puts the event time into the record as well: ``(time, (time, record))``."""

    def task(self, context: ExecutionContext) -> Task:
        return _nest


@dataclass(frozen=True)
class JoinedEventsExec(NarrowExec):
    """Makes events of what a join puts out for nested events: pairs, or records of a semi join."""

    is_semi: bool

    @property
    def hasEventTime(self) -> bool:
        return True

    def task(self, context: ExecutionContext) -> Task:
        return _events if self.is_semi else _pairs


@dataclass(frozen=True)
class OfNested:
    """Function: the value of *func* for the record of a nested event."""

    func: Callable[[Any], Any]

    def __call__(self, nested: tuple[int | None, Any]) -> Any:
        return self.func(nested[1])


@dataclass(frozen=True)
class MatchesNested:
    """Function: the value of *func* for the records of two nested events."""

    func: Callable[[Any, Any], bool]

    def __call__(self, left: tuple[int | None, Any], right: tuple[int | None, Any]) -> bool:
        return self.func(left[1], right[1])


def _nest(_: int, events: Iterable[Any]) -> Iterator[Any]:
    settle_worker()
    return ((event[0], event) for event in events)


def _events(_: int, rows: Iterable[Any]) -> Iterator[Any]:
    return iter(rows)


def _pairs(_: int, rows: Iterable[Any]) -> Iterator[Any]:
    settle_worker()
    for left, right in rows:
        times = [side[0] for side in (left, right) if side is not None and side[0] is not None]
        pair = (None if left is None else left[1], None if right is None else right[1])
        yield max(times, default=None), pair
