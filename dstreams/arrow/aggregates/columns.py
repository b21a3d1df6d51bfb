"""The columns that aggregates of blocks are computed from: counts, means, chosen values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dstreams.arrow.groups import (
    Groups,
    Ordered,
    greatest_of,
    is_decimal,
    is_number,
    least_of,
    numpy_of,
    sums_of,
    taken,
    valid_rows,
)
from dstreams.arrow.key_hash import flags_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dstreams.arrow.groups import Floats

_MAX_DIGITS = 38
_MORE_DIGITS = 4  # of a mean of decimals, as in Spark


def counts_of(groups: Groups, columns: Sequence[pa.Array]) -> pa.Array:
    """Return the number of rows of each group, or of values if there is a column."""
    rows = valid_rows(groups, columns[0])[0] if columns else groups
    return pa.array(rows.counts())


def added(groups: Groups, counts: pa.Array) -> pa.Array:
    """Return the sums of counts; null is 0."""
    return pa.array(groups.int_sums(numpy_of(counts.fill_null(0))))


def sums(groups: Groups, column: pa.Array) -> pa.Array:
    """Return the sum of the values of each group."""
    return sums_of(groups, column)


def sums_and_counts(groups: Groups, column: pa.Array) -> list[pa.Array]:
    """Return the sum and the number of the values of each group."""
    column = number(column, "have no mean")
    return [sums_of(groups, column), counts_of(groups, [column])]


def number(column: pa.Array, lack: str) -> pa.Array:
    """Return a column whose sums are decimals or float64."""
    if not is_number(column.type):
        raise TypeError(f"values of {column.type} {lack}; use integers, floats or decimals")
    return column if is_decimal(column.type) else column.cast(pa.float64(), safe=False)


def means_of(sums: pa.Array, counts: pa.Array) -> pa.Array:
    """Return sums divided by counts, null for a count of 0; decimals are rounded half up."""
    counts = pc.if_else(pc.greater(counts, 0), counts, pa.scalar(None, pa.int64()))
    if not pa.types.is_decimal(sums.type):
        return pc.divide(sums, counts.cast(pa.float64()))
    # Division to more digits than are kept, so that only the rounding decides.
    scale = sums.type.scale
    kept = min(scale + _MORE_DIGITS, _MAX_DIGITS)
    wide = pc.divide(
        sums.cast(pa.decimal256(_MAX_DIGITS, scale)), counts.cast(pa.decimal256(19, 0))
    )
    rounded = pc.round(wide, kept, round_mode="half_towards_infinity")
    return rounded.cast(pa.decimal128(_MAX_DIGITS, kept))


def moments(groups: Groups, column: pa.Array) -> list[pa.Array]:
    """Return the count, the mean and the sum of squares about the mean of each group."""
    rows, column = valid_rows(groups, number(column, "have no variance"))
    numbers = numpy_of(column.cast(pa.float64()))
    return _merged_moments(rows, np.ones(len(numbers), np.int64), numbers, np.zeros(len(numbers)))


def merged_moments(groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
    """Return the moments of each group from those of its parts."""
    counts = numpy_of(parts[0].fill_null(0))
    means, squares = (numpy_of(part.fill_null(0.0)) for part in parts[1:])
    there = counts > 0
    return _merged_moments(groups.where(there), counts[there], means[there], squares[there])


def _merged_moments(
    rows: Groups, counts: NDArray[np.int64], means: Floats, squares: Floats
) -> list[Any]:
    total = rows.int_sums(counts)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = rows.float_sums(means * counts) / np.maximum(total, 1)
        away = means - mean[rows.of_rows]
        squared = rows.float_sums(squares + away * away * counts)
    return [pa.array(total), pa.array(mean), pa.array(squared)]


def variances_of(counts: pa.Array, squares: pa.Array, ddof: int) -> pa.Array:
    """Return sums of squares divided by counts less *ddof*, null if that is not positive."""
    divisors = pc.subtract(counts, ddof)
    enough = pc.greater(divisors, 0)
    divisors = pc.if_else(enough, divisors, pa.scalar(None, pa.int64()))
    return pc.divide(squares, divisors.cast(pa.float64()))


def roots_of(column: pa.Array) -> pa.Array:
    """Return the square roots of a column."""
    return pc.sqrt(column)


def extremes(groups: Groups, column: pa.Array, *, greatest: bool) -> pa.Array:
    """Return the least or the greatest value of each group."""
    return (greatest_of if greatest else least_of)(groups, column)


def always(column: pa.Array) -> pa.Array:
    """Return a column of True, as long as another one."""
    return pa.array(np.ones(len(column), np.bool_))


def chosen(
    groups: Groups,
    parts: Sequence[pa.Array],
    *,
    is_last: bool,
    has_order: bool,
    ignores_nulls: bool,
) -> list[pa.Array]:
    """Return value and order of the first or last row of each group; rows without order never."""
    value, by = parts
    there = pc.and_(by.is_valid(), value.is_valid()) if ignores_nulls else by.is_valid()
    kept = np.flatnonzero(flags_of(there))
    rows = Groups(groups.of_rows[kept], groups.count)
    if has_order:
        numbers = Ordered.of(by.take(pa.array(kept))).numbers
        best = numbers == (rows.greatest if is_last else rows.least)(numbers)[rows.of_rows]
        kept, rows = kept[best], rows.where(best)
    found = rows.last_rows() if is_last else rows.first_rows()
    if len(kept):
        found = np.where(found < 0, -1, kept[found])
    return [taken(value, found), taken(by, found)]
