"""Aggregate functions: a buffer to begin with, records into it, two buffers into one, a result.

>>> from dstreams.structured.operators.aggregate_functions import Average, aggregate
>>> aggregate(Average(), [1, 2, None, 6])
3.0

What is not a value (None) is left out, as in SQL. Any object with the four methods is one, also a
user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

from dstreams.structured.operators.copied_records import copies, may_change_records
from dstreams.structured.operators.sql_values import (
    add,
    all_normalized,
    is_before,
    mean,
    normalized,
)
from dstreams.structured.selectors import Spec, selector


class AggregateFunction(Protocol):
    """Makes one result of many records, in any order of merging.

    A buffer is a value that the state store takes. *reduce* and *merge* may change their first
    argument and return it, and the record may become the buffer. A function that leaves records as
    they are can say so by ``changesRecords = False``, which saves copies where a record is in
    several windows.
    """

    def zero(self) -> Any:
        """Return a new buffer of no records."""
        ...

    def reduce(self, buffer: Any, record: Any) -> Any:
        """Return the buffer with one record more."""
        ...

    def merge(self, first: Any, second: Any) -> Any:
        """Return the buffer of both."""
        ...

    def finish(self, buffer: Any) -> Any:
        """Return the result."""
        ...


def aggregate(function: AggregateFunction, records: Iterable[Any]) -> Any:
    """Return the result for some records: what a query must come to, whatever its batches are."""
    buffer = function.zero()
    for record in records:
        buffer = function.reduce(buffer, record)
    return function.finish(buffer)


@dataclass(frozen=True)
class UserAggregator:
    """Four functions as an aggregate function.

    Args:
        zero: ``() -> buffer``.
        reduce: ``(buffer, record) -> buffer``.
        merge: ``(buffer, buffer) -> buffer``.
        finish: ``buffer -> result``.
    """

    zero: Callable[[], Any]
    reduce: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]


@dataclass(frozen=True)
class _OfColumn:
    """A function of one value of each record.

    Args:
        of: name of a field, or ``record -> value``; None for the record itself.

    Raises:
        InvalidStreamError: *of* is neither.
    """

    changesRecords: ClassVar[bool] = False

    of: Spec | None = None

    def __post_init__(self) -> None:
        self._select("of")

    def _select(self, name: str) -> None:
        """Put a function in the place of the name of a field."""
        spec = getattr(self, name)
        if spec is not None:
            where = f"{name} of {type(self).__name__}"
            object.__setattr__(self, name, selector(spec, where))

    def _value(self, record: Any) -> Any:
        return record if self.of is None else self.of(record)  # type: ignore[operator]

    def zero(self) -> Any:
        return None

    def reduce(self, buffer: Any, record: Any) -> Any:
        value = record if self.of is None else self.of(record)  # type: ignore[operator]
        return buffer if value is None else self._add(buffer, value)

    def merge(self, first: Any, second: Any) -> Any:
        if first is None or second is None:
            return second if first is None else first
        return self._merge(first, second)

    def finish(self, buffer: Any) -> Any:
        return buffer

    def _add(self, buffer: Any, value: Any) -> Any:
        return value if buffer is None else self._merge(buffer, value)

    def _merge(self, first: Any, second: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Count(_OfColumn):
    """How many records there are; with *of*, how many values."""

    def zero(self) -> int:
        return 0

    def reduce(self, buffer: Any, record: Any) -> Any:
        return buffer if self.of is not None and self._value(record) is None else buffer + 1

    def merge(self, first: Any, second: Any) -> Any:
        return first + second


def is_count_of_records(function: AggregateFunction) -> bool:
    """Whether a function counts records, and nothing else: then nobody has to call it for each."""
    return type(function) is Count and function.of is None


def is_finished(function: AggregateFunction) -> bool:
    """Whether buffers are results."""
    return getattr(type(function), "finish", None) is _OfColumn.finish


@dataclass(frozen=True)
class Sum(_OfColumn):
    """The sum of the values, None of none.

    Numbers of NumPy are added as Python's, decimals to 38 digits.
    """

    def _add(self, buffer: Any, value: Any) -> Any:
        return add(buffer, value)

    def _merge(self, first: Any, second: Any) -> Any:
        return add(first, second)


@dataclass(frozen=True)
class Min(_OfColumn):
    """The least value, None of none; NaN only if there is no other value, as in Spark."""

    def _add(self, buffer: Any, value: Any) -> Any:
        return value if buffer is None or is_before(value, buffer) else buffer

    def _merge(self, first: Any, second: Any) -> Any:
        return second if is_before(second, first) else first


@dataclass(frozen=True)
class Max(_OfColumn):
    """The greatest value, None of none; NaN if any value is NaN, as in Spark."""

    def _add(self, buffer: Any, value: Any) -> Any:
        return value if buffer is None or is_before(buffer, value) else buffer

    def _merge(self, first: Any, second: Any) -> Any:
        return second if is_before(first, second) else first


@dataclass(frozen=True)
class Average(_OfColumn):
    """The mean of the values, None of none. Its buffer is (sum, count)."""

    def finish(self, buffer: Any) -> Any:
        return None if buffer is None else mean(*buffer)

    def _add(self, buffer: Any, value: Any) -> Any:
        return (add(None, value), 1) if buffer is None else (add(buffer[0], value), buffer[1] + 1)

    def _merge(self, first: Any, second: Any) -> Any:
        return (add(first[0], second[0]), first[1] + second[1])


@dataclass(frozen=True)
class First(_OfColumn):
    """The first value in the order of arrival, which a shuffle does not keep; None is none.

    Its buffer is a tuple of the value, so that it can be None.

    Args:
        ignore_none: leave out None instead of taking it for a value.
    """

    ignore_none: bool = False

    def reduce(self, buffer: Any, record: Any) -> Any:
        value = self._value(record)
        if value is None and self.ignore_none:
            return buffer
        return self.merge(buffer, (value,))

    def finish(self, buffer: Any) -> Any:
        return None if buffer is None else buffer[0]

    def _merge(self, first: Any, second: Any) -> Any:
        return first


@dataclass(frozen=True)
class Last(First):
    """The last value, otherwise as :class:`First`."""

    def _merge(self, first: Any, second: Any) -> Any:
        return second


@dataclass(frozen=True)
class CollectList(_OfColumn):
    """All values, in the order of arrival, which a shuffle does not keep."""

    def finish(self, buffer: Any) -> Any:
        return [] if buffer is None else buffer

    def _add(self, buffer: Any, value: Any) -> Any:
        return self._merge([] if buffer is None else buffer, (value,))

    def _merge(self, first: Any, second: Any) -> Any:
        first.extend(second)
        return first


@dataclass(frozen=True)
class CollectSet(_OfColumn):
    """The different values; they have to be hashable. All NaN are one value, as in Spark."""

    def finish(self, buffer: Any) -> Any:
        return set() if buffer is None else buffer

    def _add(self, buffer: Any, value: Any) -> Any:
        values = set() if buffer is None else buffer
        values.add(normalized(value))
        return values

    def _merge(self, first: Any, second: Any) -> Any:
        first.update(second)
        return all_normalized(first)


@dataclass(frozen=True)
class CountDistinct(CollectSet):
    """How many different values there are, exactly: the state keeps each of them."""

    def finish(self, buffer: Any) -> int:
        return 0 if buffer is None else len(buffer)


@dataclass(frozen=True)
class MinBy(_OfColumn):
    """The value of the record with the least order, of the first one where there are several.

    Records without an order are left out; None of none. Its buffer is (order, value).

    Args:
        by: name of a field, or ``record -> order``; None for the record itself.
    """

    by: Spec | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._select("by")

    def reduce(self, buffer: Any, record: Any) -> Any:
        order = record if self.by is None else self.by(record)  # type: ignore[operator]
        return buffer if order is None else self.merge(buffer, (order, self._value(record)))

    def finish(self, buffer: Any) -> Any:
        return None if buffer is None else buffer[1]

    def _merge(self, first: Any, second: Any) -> Any:
        return second if is_before(second[0], first[0]) else first


@dataclass(frozen=True)
class MaxBy(MinBy):
    """The value of the record with the greatest order, otherwise as :class:`MinBy`."""

    def _merge(self, first: Any, second: Any) -> Any:
        return second if is_before(first[0], second[0]) else first


@dataclass(frozen=True)
class Reduce(_OfColumn):
    """One value made of all by a function of two, None of none.

    Args:
        func: ``(value, value) -> value``, associative and commutative; it may change the first and
            return it.
    """

    changesRecords: ClassVar[bool] = True

    func: Callable[[Any, Any], Any] = max

    def _merge(self, first: Any, second: Any) -> Any:
        return self.func(first, second)


@dataclass(frozen=True)
class Several:
    """Several aggregate functions at once: buffers in a list, results in a tuple."""

    changesRecords: ClassVar[bool] = False

    functions: tuple[AggregateFunction, ...]

    @cached_property
    def _changing(self) -> frozenset[int]:
        """Indices of the functions that may change a record: each gets a copy of its own."""
        places = range(len(self.functions))
        return frozenset(place for place in places if may_change_records(self.functions[place]))

    def zero(self) -> list[Any]:
        return [function.zero() for function in self.functions]

    def reduce(self, buffer: list[Any], record: Any) -> list[Any]:
        changing = self._changing
        copy = copies(record) if changing else None
        for place, function in enumerate(self.functions):
            own = record if copy is None or place not in changing else copy()
            buffer[place] = function.reduce(buffer[place], own)
        return buffer

    def merge(self, first: list[Any], second: list[Any]) -> list[Any]:
        for place, function in enumerate(self.functions):
            first[place] = function.merge(first[place], second[place])
        return first

    def finish(self, buffer: list[Any]) -> tuple[Any, ...]:
        results = zip(self.functions, buffer, strict=True)
        return tuple(function.finish(part) for function, part in results)
