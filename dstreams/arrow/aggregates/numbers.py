"""Aggregates that count and add: Count, Sum, Mean and Variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dstreams.arrow.aggregates.aggregate import Aggregate
from dstreams.arrow.groups import Groups, is_decimal, is_number, numpy_of, sums_of, valid_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dstreams.arrow.groups import Floats

_MAX_DIGITS = 38
_MORE_DIGITS = 4  # of a mean of decimals, as in Spark


@dataclass(frozen=True)
class Count(Aggregate):
    """How many rows a key has, or with a *column* how many in which it is not null: int64."""

    part_names: ClassVar[tuple[str, ...]] = ("count",)

    column: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column,)

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        rows = valid_rows(groups, columns[0])[0] if columns else groups
        return [pa.array(rows.counts())]

    def merge(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        return [_counts(groups, parts[0])]

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        return parts[0]


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of a column, null for a key that has nulls alone.

    Integers give int64 (uint64 gives uint64), floats float64, decimals decimal128(38, scale),
    durations durations. A sum that leaves the range of its type is an error that names the key.
    """

    part_names: ClassVar[tuple[str, ...]] = ("sum",)

    column: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [sums_of(groups, columns[0])]

    def merge(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        return [sums_of(groups, parts[0])]

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        return parts[0]


@dataclass(frozen=True)
class Mean(Aggregate):
    """The mean of a column, null for a key that has nulls alone: float64.

    The mean of decimals is exact to four digits more than they have, rounded half up.
    """

    part_names: ClassVar[tuple[str, ...]] = ("sum", "count")

    column: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        column = _number(columns[0], "have no mean")
        return [sums_of(groups, column), pa.array(valid_rows(groups, column)[0].counts())]

    def merge(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        return [sums_of(groups, parts[0]), _counts(groups, parts[1])]

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        sums, counts = parts
        counts = pc.if_else(pc.greater(counts, 0), counts, pa.scalar(None, pa.int64()))
        if pa.types.is_decimal(sums.type):
            return _decimal_means(sums, counts)
        return pc.divide(sums, counts.cast(pa.float64()))


@dataclass(frozen=True)
class Variance(Aggregate):
    """The variance of a column of numbers, which are taken as float64.

    The sum of squares is divided by the number of values less *ddof*: of a sample with 1, of all
    there are with 0. Null for a key with no more values than *ddof*.
    """

    part_names: ClassVar[tuple[str, ...]] = ("count", "mean", "squares")

    column: str
    ddof: int = 1

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof of Variance must be 0 or 1, got {self.ddof!r}")

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        rows, column = valid_rows(groups, _number(columns[0], "have no variance"))
        numbers = numpy_of(column.cast(pa.float64()))
        return _spread(rows, np.ones(len(numbers), np.int64), numbers, np.zeros(len(numbers)))

    def merge(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        counts = numpy_of(parts[0].fill_null(0))
        means, squares = (numpy_of(part.fill_null(0.0)) for part in parts[1:])
        there = counts > 0
        return _spread(groups.where(there), counts[there], means[there], squares[there])

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        counts, _, squares = parts
        divisors = pc.subtract(counts, self.ddof)
        enough = pc.greater(divisors, 0)
        divisors = pc.if_else(enough, divisors, pa.scalar(None, pa.int64()))
        return pc.divide(squares, divisors.cast(pa.float64()))


def _number(column: pa.Array, lack: str) -> pa.Array:
    """Return a column whose sums are decimals or float64."""
    if not is_number(column.type):
        raise TypeError(f"values of {column.type} {lack}; use integers, floats or decimals")
    return column if is_decimal(column.type) else column.cast(pa.float64(), safe=False)


def _counts(groups: Groups, counts: pa.Array) -> pa.Array:
    return pa.array(groups.int_sums(numpy_of(counts.fill_null(0))))


def _decimal_means(sums: pa.Array, counts: pa.Array) -> pa.Array:
    """Return sums divided by counts, rounded half up; what is cut off before decides nothing."""
    scale = sums.type.scale
    kept = min(scale + _MORE_DIGITS, _MAX_DIGITS)
    wide = pc.divide(
        sums.cast(pa.decimal256(_MAX_DIGITS, scale)), counts.cast(pa.decimal256(19, 0))
    )
    rounded = pc.round(wide, kept, round_mode="half_towards_infinity")
    return rounded.cast(pa.decimal128(_MAX_DIGITS, kept))


def _spread(rows: Groups, counts: NDArray[np.int64], means: Floats, squares: Floats) -> list[Any]:
    """Return counts, means and sums of squares about the mean, of those of parts."""
    total = rows.int_sums(counts)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = rows.float_sums(means * counts) / np.maximum(total, 1)
        away = means - mean[rows.of_rows]
        spread = rows.float_sums(squares + away * away * counts)
    return [pa.array(total), pa.array(mean), pa.array(spread)]
