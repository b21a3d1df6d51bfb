"""Aggregates of rows and of blocks: one class for each, with a row form and a column form.

>>> from dstreams.arrow.aggregates.functions import Average, aggregate
>>> aggregate(Average(), [1, 2, None, 6])
3.0

Queries reduce records to a buffer (:class:`AggregateFunction`), blocks reduce columns to partial
columns (:class:`ColumnAggregate`). Both skip None (null), as SQL does. This module does not import
pyarrow: the column forms load it.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dstreams.common.sql_values import (
    add,
    all_normalized,
    is_before,
    mean,
    normalized,
    sort_key,
)
from dstreams.spark.blocks import is_immutable
from dstreams.spark.failures import failed
from dstreams.spark.selectors import Spec, selector

if TYPE_CHECKING:
    import pyarrow as pa

    from dstreams.arrow.groups import Groups


class AggregateFunction(Protocol):
    """The row form of an aggregate: reduces records to a buffer, and a buffer to a result.

    A buffer is a value that the state store takes; buffers are merged in any order. *reduce* and
    *merge* may change their first argument and return it, and the record may become the buffer. A
    function that never changes a record can set ``changesRecords = False``, which saves copies
    of records that are in several windows.
    """

    def zero(self) -> Any:
        """Return a new buffer of no records."""
        ...

    def reduce(self, buffer: Any, record: Any) -> Any:
        """Return the buffer with one more record."""
        ...

    def merge(self, first: Any, second: Any) -> Any:
        """Return the buffer of both."""
        ...

    def finish(self, buffer: Any) -> Any:
        """Return the result."""
        ...


class ColumnAggregate(ABC):
    """The column form of an aggregate: reduces columns to partial columns, a row for each group.

    The types of the partial columns and of the result follow from those of the inputs: they are
    the types that come of no rows. An input that cannot be used is a TypeError, also without rows.
    The result does not depend on how rows are cut into parts, except for the last digits of sums
    of floats.
    """

    part_names: ClassVar[tuple[str, ...]]
    """The names of the partial columns."""

    is_ordered: ClassVar[bool] = False
    """True if the result depends on the order of rows."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The columns that it reads; a TypeError if one is given as a function."""

    @abstractmethod
    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the partial columns of rows of the input columns."""

    @abstractmethod
    def merge_parts(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the partial columns of rows of partial columns.

        Rows are in the order of the records that they come from. A row whose parts are null is of
        no records: it was stored before the aggregate was added.
        """

    @abstractmethod
    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        """Return the result of each row of the partial columns."""


def column_name(of: object, name: str = "of") -> str:
    """Return the name of a column, or raise TypeError for anything else."""
    if not isinstance(of, str):
        raise TypeError(f"{name} must be the name of a column of the blocks, got {of!r}")
    return of


def aggregate(function: AggregateFunction, records: Iterable[Any]) -> Any:
    """Return the result for some records, which does not depend on how a query batches them."""
    buffer = function.zero()
    for record in records:
        buffer = function.reduce(buffer, record)
    return function.finish(buffer)


def _columns() -> Any:
    from dstreams.arrow.aggregates import columns  # noqa: PLC0415 - needs pyarrow

    return columns


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
class _OfValue:
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
        """Set the function that gets the value of the parameter *name*, None for the record."""
        spec = getattr(self, name)
        get = None if spec is None else selector(spec, f"{name} of {type(self).__name__}")
        object.__setattr__(self, f"_get_{name}", get)

    def _value(self, record: Any) -> Any:
        get = self._get_of  # type: ignore[attr-defined]
        return record if get is None else get(record)

    def zero(self) -> Any:
        return None

    def reduce(self, buffer: Any, record: Any) -> Any:
        get = self._get_of  # type: ignore[attr-defined]
        value = record if get is None else get(record)
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
class _OfColumn(_OfValue, ColumnAggregate):
    """A function of one value of each record, or of one column of blocks."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return (column_name(self.of),)

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        return parts[0]


@dataclass(frozen=True)
class Count(_OfColumn):
    """The number of records, or of values other than None if *of* is given; int64 in blocks."""

    part_names: ClassVar[tuple[str, ...]] = ("count",)

    def zero(self) -> int:
        return 0

    def reduce(self, buffer: Any, record: Any) -> Any:
        return buffer if self.of is not None and self._value(record) is None else buffer + 1

    def merge(self, first: Any, second: Any) -> Any:
        return first + second

    @property
    def inputs(self) -> tuple[str, ...]:
        return () if self.of is None else super().inputs

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [_columns().counts_of(groups, columns)]

    def merge_parts(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        return [_columns().added(groups, parts[0])]


def is_count_of_records(function: AggregateFunction) -> bool:
    """Return whether a function only counts records, so that it need not be called for each."""
    return type(function) is Count and function.of is None


def is_finished(function: AggregateFunction) -> bool:
    """Return whether buffers are results."""
    return getattr(type(function), "finish", None) is _OfValue.finish


@dataclass(frozen=True)
class Sum(_OfColumn):
    """The sum of the values, None without values.

    Of rows: integers of any size, decimals to 38 digits, numbers of NumPy as Python's. Of blocks:
    integers give int64 (uint64 gives uint64), floats float64, decimals decimal128(38, scale),
    durations durations; a sum that leaves the range of its type is an error that names the key.
    """

    part_names: ClassVar[tuple[str, ...]] = ("sum",)

    def _add(self, buffer: Any, value: Any) -> Any:
        return add(buffer, value)

    def _merge(self, first: Any, second: Any) -> Any:
        return add(first, second)

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [_columns().sums(groups, columns[0])]

    def merge_parts(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        return self.partial(groups, parts)


@dataclass(frozen=True)
class Min(_OfColumn):
    """The least value, None without values; NaN only if there is no other value, as in Spark."""

    part_names: ClassVar[tuple[str, ...]] = ("value",)

    def _add(self, buffer: Any, value: Any) -> Any:
        return value if buffer is None or is_before(value, buffer) else buffer

    def _merge(self, first: Any, second: Any) -> Any:
        return second if is_before(second, first) else first

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [_columns().extremes(groups, columns[0], greatest=False)]

    def merge_parts(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        return self.partial(groups, parts)


@dataclass(frozen=True)
class Max(Min):
    """The greatest value, None without values; NaN if any value is NaN, as in Spark."""

    def _add(self, buffer: Any, value: Any) -> Any:
        return value if buffer is None or is_before(buffer, value) else buffer

    def _merge(self, first: Any, second: Any) -> Any:
        return second if is_before(first, second) else first

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [_columns().extremes(groups, columns[0], greatest=True)]


@dataclass(frozen=True)
class Average(_OfColumn):
    """The mean of the values, None without values; also named ``Mean``.

    Of rows: decimals to 38 digits. Of blocks: float64; the mean of decimals has four digits more
    than they have, rounded half up.
    """

    part_names: ClassVar[tuple[str, ...]] = ("sum", "count")

    def finish(self, buffer: Any) -> Any:
        return None if buffer is None else mean(*buffer)

    def _add(self, buffer: Any, value: Any) -> Any:
        return (add(None, value), 1) if buffer is None else (add(buffer[0], value), buffer[1] + 1)

    def _merge(self, first: Any, second: Any) -> Any:
        return (add(first[0], second[0]), first[1] + second[1])

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        made: list[pa.Array] = _columns().sums_and_counts(groups, columns[0])
        return made

    def merge_parts(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        return [_columns().sums(groups, parts[0]), _columns().added(groups, parts[1])]

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        return _columns().means_of(*parts)


Mean = Average


@dataclass(frozen=True)
class Variance(_OfColumn):
    """The variance of numbers, which are taken as floats.

    The sum of squares is divided by the number of values less *ddof*: 1 for the variance of a
    sample, 0 for that of a population. None with no more values than *ddof*.
    """

    part_names: ClassVar[tuple[str, ...]] = ("count", "mean", "squares")

    ddof: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ddof not in (0, 1):
            name = type(self).__name__
            raise ValueError(f"ddof of {name} must be 0 or 1, got {self.ddof!r}")

    def finish(self, buffer: Any) -> Any:
        if buffer is None or buffer[0] <= self.ddof:
            return None
        return buffer[2] / (buffer[0] - self.ddof)

    def _add(self, buffer: Any, value: Any) -> Any:
        moments = (1, float(value), 0.0)
        return moments if buffer is None else self._merge(buffer, moments)

    def _merge(self, first: Any, second: Any) -> Any:
        count = first[0] + second[0]
        away = second[1] - first[1]
        mean = first[1] + away * second[0] / count
        return count, mean, first[2] + second[2] + away * away * first[0] * second[0] / count

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        made: list[pa.Array] = _columns().moments(groups, columns[0])
        return made

    def merge_parts(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        merged: list[pa.Array] = _columns().merged_moments(groups, parts)
        return merged

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        return _columns().variances_of(parts[0], parts[2], self.ddof)


@dataclass(frozen=True)
class StdDev(Variance):
    """The standard deviation of numbers: the square root of :class:`Variance`."""

    def finish(self, buffer: Any) -> Any:
        variance = super().finish(buffer)
        return None if variance is None else sqrt(variance)

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        return _columns().roots_of(super().result(parts))


@dataclass(frozen=True)
class First(_OfColumn):
    """The value of the first record, or of the one with the least *by*; None may be a value.

    Records whose *by* is None are skipped; of equal ones the first counts. The order of rows is
    that of arrival, which a shuffle does not keep. Blocks keep it: by batch, then by partition,
    then by row. Buffers are (value,) or (value, order).

    Args:
        by: name of a field, or ``record -> order``; None for the order of arrival.
        ignoreNulls: skip records whose value is None.
    """

    part_names: ClassVar[tuple[str, ...]] = ("value", "by")
    is_ordered: ClassVar[bool] = True
    _is_last: ClassVar[bool] = False

    by: Spec | None = None
    ignoreNulls: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._select("by")

    def reduce(self, buffer: Any, record: Any) -> Any:
        value = self._value(record)
        if value is None and self.ignoreNulls:
            return buffer
        if self.by is None:
            return (value,) if buffer is None else self._merge(buffer, (value,))
        order = self._get_by(record)  # type: ignore[attr-defined]
        return buffer if order is None else self.merge(buffer, (value, order))

    def finish(self, buffer: Any) -> Any:
        return None if buffer is None else buffer[0]

    def _merge(self, first: Any, second: Any) -> Any:
        return second if self.by is not None and is_before(second[1], first[1]) else first

    @property
    def inputs(self) -> tuple[str, ...]:
        by = () if self.by is None else (column_name(self.by, "by"),)
        return (*super().inputs, *by)

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        parts = columns if self.by is not None else [columns[0], _columns().always(columns[0])]
        return self.merge_parts(groups, parts)

    def merge_parts(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        made: list[pa.Array] = _columns().chosen(
            groups,
            parts,
            is_last=self._is_last,
            has_order=self.by is not None,
            ignores_nulls=self.ignoreNulls,
        )
        return made


@dataclass(frozen=True)
class Last(First):
    """The value of the last record, or of the one with the greatest *by*; else as :class:`First`.

    Of records with an equal *by* the last counts.
    """

    _is_last: ClassVar[bool] = True

    def _merge(self, first: Any, second: Any) -> Any:
        return first if self.by is not None and is_before(second[1], first[1]) else second


@dataclass(frozen=True)
class CollectList(_OfValue):
    """All values, in the order of arrival, which a shuffle does not keep."""

    def finish(self, buffer: Any) -> Any:
        return [] if buffer is None else buffer

    def _add(self, buffer: Any, value: Any) -> Any:
        return self._merge([] if buffer is None else buffer, (value,))

    def _merge(self, first: Any, second: Any) -> Any:
        first.extend(second)
        return first


@dataclass(frozen=True)
class CollectSet(_OfValue):
    """The distinct values, which must be hashable. All NaN are one value, as in Spark."""

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
    """The exact number of distinct values; the state keeps each of them."""

    def finish(self, buffer: Any) -> int:
        return 0 if buffer is None else len(buffer)


@dataclass(frozen=True)
class MinBy(_OfValue):
    """The value of the record with the least order; of equal ones the first counts.

    Records whose order is None are skipped; None without records. Buffers are (order, value).

    Args:
        by: name of a field, or ``record -> order``; None for the record itself.
    """

    by: Spec | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._select("by")

    def reduce(self, buffer: Any, record: Any) -> Any:
        order = record if self.by is None else self._get_by(record)  # type: ignore[attr-defined]
        return buffer if order is None else self.merge(buffer, (order, self._value(record)))

    def finish(self, buffer: Any) -> Any:
        return None if buffer is None else buffer[1]

    def _merge(self, first: Any, second: Any) -> Any:
        return second if is_before(second[0], first[0]) else first


@dataclass(frozen=True)
class MaxBy(MinBy):
    """The value of the record with the greatest order; else as :class:`MinBy`."""

    def _merge(self, first: Any, second: Any) -> Any:
        return second if is_before(first[0], second[0]) else first


@dataclass(frozen=True)
class Reduce(_OfValue):
    """All values reduced to one by a function of two, None without values.

    Args:
        func: ``(value, value) -> value``, associative and commutative; it may change the first and
            return it.
    """

    changesRecords: ClassVar[bool] = True

    func: Callable[[Any, Any], Any] = max

    def _merge(self, first: Any, second: Any) -> Any:
        return self.func(first, second)


@dataclass(frozen=True)
class PercentileApprox(_OfValue):
    """Values at percentages of the sorted values; None without values.

    Exact for up to *accuracy* values. Of more values n, the rank of a result is wrong by at most
    ``n * ceil(log2(n / accuracy)) / accuracy``: by 700 for a million values and the default, but
    usually by far less. A buffer has at most ``accuracy * (log2(n / accuracy) + 1)`` values. Values
    must have an order; NaN is the greatest.

    Semantics: pyspark.sql.functions.percentile_approx, with other, also deterministic, estimates.

    Args:
        percentage: from 0 to 1, or a tuple of those for a list of results.
        accuracy: at least 1.

    Raises:
        ValueError: a parameter is out of its range.
    """

    percentage: float | tuple[float, ...] = 0.5
    accuracy: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= each <= 1 for each in self._percentages):
            raise ValueError(
                f"percentage of PercentileApprox must be from 0 to 1, got {self.percentage!r}"
            )
        if self.accuracy < 1:
            raise ValueError(
                f"accuracy of PercentileApprox must be at least 1, got {self.accuracy!r}"
            )

    @property
    def _percentages(self) -> Sequence[float]:
        one = self.percentage
        return one if isinstance(one, (tuple, list)) else (one,)

    def finish(self, buffer: Any) -> Any:
        if buffer is None:
            return None
        weighted = [(value, 1 << level) for level, part in enumerate(buffer) for value in part]
        weighted.sort(key=lambda pair: sort_key(pair[0]))
        ranks = list(accumulate(weight for _, weight in weighted))
        found = [
            weighted[bisect_left(ranks, max(1, ceil(each * ranks[-1])))][0]
            for each in self._percentages
        ]
        return found if isinstance(self.percentage, (tuple, list)) else found[0]

    def _add(self, buffer: Any, value: Any) -> Any:
        if buffer is None:
            return [[value]]
        buffer[0].append(value)
        return self._compacted(buffer) if len(buffer[0]) > self._most else buffer

    def _merge(self, first: Any, second: Any) -> Any:
        for level, part in enumerate(second):
            if level == len(first):
                first.append([])
            first[level] += part
        return self._compacted(first)

    @property
    def _most(self) -> int:
        """The most values of a level, an even number."""
        return self.accuracy + self.accuracy % 2

    def _compacted(self, buffer: list[list[Any]]) -> list[list[Any]]:
        """Replace pairs of neighbours in full levels by one of the two, with twice the weight."""
        level = 0
        while level < len(buffer):
            values = buffer[level]
            if len(values) > self._most:
                values.sort(key=sort_key)
                pairs = len(values) - len(values) % 2
                if level + 1 == len(buffer):
                    buffer.append([])
                above = buffer[level + 1]
                above += values[len(above) % 2 : pairs : 2]  # in turn the lesser and the greater
                buffer[level] = values[pairs:]
            level += 1
        return buffer


@dataclass(frozen=True)
class Several:
    """Several aggregate functions at once: buffers in a list, results in a tuple."""

    changesRecords: ClassVar[bool] = False

    functions: tuple[AggregateFunction, ...]

    @cached_property
    def _changing(self) -> frozenset[int]:
        """Indices of the functions that may change a record; each gets its own copy."""
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


def may_change_records(function: object) -> bool:
    """Return whether a function may change a record: user functions, unless they rule it out."""
    return bool(getattr(function, "changesRecords", True))


def copies(record: Any) -> Callable[[], Any]:
    """Return the function that returns a new copy of a record, as it is now, at each call."""
    if is_immutable(record):
        return lambda: record
    try:
        raw = pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
    except Exception:  # of a class that cannot be imported, for example
        kept = deepcopy(record)
        return lambda: deepcopy(kept)
    return partial(pickle.loads, raw)


def private_records(pairs: Iterable[tuple[Any, Any]], where: str) -> Iterator[tuple[Any, Any]]:
    """Iterate over pairs of key and record, with a copy for each pair that shares its record.

    Pairs that share a record are adjacent.
    """
    last: Any = None
    copy: Callable[[], Any] | None = None
    for key, record in pairs:
        if copy is None or record is not last:
            try:
                last, copy = record, copies(record)
            except Exception as error:
                raise failed(where, record, error, "record") from error
        yield key, copy()
