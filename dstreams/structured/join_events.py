"""Event times through a join: a pair has the later one of its two records.

That one is new in its batch, so a pair is never late for what comes after the join, however long
the other record has waited in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dstreams.rdd.worker_gc import settle_worker
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import NarrowExec, Task


@dataclass(frozen=True)
class NestedEventsExec(NarrowExec):
    """Puts the event time into the record as well: ``(time, (time, record))``."""

    def task(self, context: ExecutionContext) -> Task:
        return _nest


@dataclass(frozen=True)
class JoinedEventsExec(NarrowExec):
    """Makes events of what a join puts out for such records.

    Args:
        is_semi: a row is a record alone.
    """

    is_semi: bool

    @property
    def hasEventTime(self) -> bool:
        return True

    def task(self, context: ExecutionContext) -> Task:
        return _events if self.is_semi else _pairs


@dataclass(frozen=True)
class OfNested:
    """Function: of such a record what another function gives of the record itself.

    Args:
        func: ``record -> value``.
    """

    func: Callable[[Any], Any]

    def __call__(self, nested: tuple[int | None, Any]) -> Any:
        return self.func(nested[1])


@dataclass(frozen=True)
class MatchesNested:
    """Function: the same of two such records.

    Args:
        func: ``(left record, right record) -> bool``.
    """

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
