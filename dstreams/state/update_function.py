"""The user's update function: its three forms, and the task that applies each to a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, ClassVar

from dstreams.common.callables import describe, require_arity
from dstreams.common.durations import batch_datetime
from dstreams.errors import InvalidStreamError
from dstreams.spark.cogroup import ColumnStep, IteratorStep, StateTask
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import PAIR_FRAMES, FrameLayout


class UpdateForm(str, Enum):
    """The form in which an update function is called."""

    VALUES = "values"
    KEYED = "keyed"
    ITERATOR = "iterator"


_SHAPES: dict[UpdateForm, tuple[int, str]] = {
    UpdateForm.VALUES: (2, "f(values, state) -> new state, or None to drop the key"),
    UpdateForm.KEYED: (4, "f(time, key, values, state) -> new state, or None to drop the key"),
    UpdateForm.ITERATOR: (
        1,
        "f(iterator of (key, values, state)) -> iterator of (key, new state)",
    ),
}


@dataclass(frozen=True)
class UpdateFunction:
    """An update function that was checked when the stream was defined."""

    func: Callable[..., Any]
    form: UpdateForm
    operation: str
    layout: ClassVar[FrameLayout] = PAIR_FRAMES

    @classmethod
    def checked(cls, func: Any, form: str, operation: str) -> UpdateFunction:
        try:
            known = UpdateForm(form)
        except ValueError:
            raise InvalidStreamError(
                f"form of {operation} must be 'values', 'keyed' or 'iterator', got {form!r}; for "
                "functions over blocks write toBlocks(schema).updateStateByKey(...)"
            ) from None
        count, shape = _SHAPES[known]
        require_arity(func, (count,), operation, shape)
        return cls(func, known, operation)

    def task(self, time_ms: int, unique: bool, partitioner: StablePartitioner | None) -> StateTask:
        """Return the task that updates one partition of the state at a batch time.

        The previous state holds each key once if it is *unique*; the new one claims *partitioner*.
        """
        where = f"update function {describe(self.func)} of {self.operation}"
        if self.form is UpdateForm.ITERATOR:
            update = _UpdateByIterator(self.func, where)
            return IteratorStep(update, unique=unique, partitioner=partitioner)
        time = batch_datetime(time_ms) if self.form is UpdateForm.KEYED else None
        return ColumnStep(_UpdateByColumns(self.func, where, time), unique=unique)


@dataclass(frozen=True)
class _UpdateByColumns:
    """Calls the function with values and state and, if *time* is set, with time and key."""

    func: Callable[..., Any]
    where: str
    time: datetime | None = None

    @property
    def needs_keys(self) -> bool:
        return self.time is not None

    def __call__(
        self,
        keys: Iterable[Any],
        values: Iterable[list[Any]],
        states: Iterable[Any],
        into: list[Any],
    ) -> None:
        if self.time is None:
            into.extend(map(self.func, values, states))
        else:
            into.extend(map(partial(self.func, self.time), keys, values, states))


@dataclass(frozen=True)
class _UpdateByIterator:
    func: Callable[[Iterator[tuple[Any, list[Any], Any]]], Iterable[tuple[Any, Any]]]
    where: str

    def __call__(self, entries: Iterator[tuple[Any, list[Any], Any]]) -> Iterable[tuple[Any, Any]]:
        result = self.func(entries)
        if not isinstance(result, Iterable):
            raise UserFunctionError(
                f"{self.where} must return an iterator of (key, state), got {type(result).__name__}"
            )
        return result
