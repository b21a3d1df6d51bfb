"""Groups of rows and their vectorized aggregates.

Least and greatest values are found by integers of the same order, so that all types compare alike.
Floats are in Spark's order: NaN is greater than all others and equals itself, -0.0 equals 0.0.
Strings are in the order of their bytes.

>>> groups = Groups(np.array([0, 1, 0]), 2)
>>> groups.counts().tolist(), groups.int_sums(np.array([1, 2, 3])).tolist()
([2, 1], [4, 2])
>>> ordered = Ordered.of(pa.array(["b", "a"]))
>>> ordered.numbers.tolist(), ordered.values(np.array([1]), np.array([False])).to_pylist()
([1, 0], ['b'])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dstreams.arrow.key_hash import flags_of, is_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


_LOW = 0xFFFFFFFF
_EXACT_IN_FLOATS = 2**53
_DECIMAL_RANGE = 10**38
_LEAST = np.int64(-(2**63))
_FLOATS = {16: np.float16, 32: np.float32, 64: np.float64}
_NAN_BITS = np.float64("nan").view(np.int64)


class SumRangeError(OverflowError):
    """A sum leaves the range of its type.

    Attributes:
        group: the first group whose sum does.
        kind: the type.
    """

    def __init__(self, group: int, kind: Any) -> None:
        super().__init__(f"the sum of group {group} leaves the range of {kind}")
        self.group = group
        self.kind = kind


@dataclass(frozen=True)
class Groups:
    """A division of rows into groups.

    Attributes:
        of_rows: the number of the group of each row.
        count: number of groups.
    """

    of_rows: Ints
    count: int

    def where(self, flags: Flags) -> Groups:
        """Return the same groups with some of the rows."""
        return Groups(self.of_rows[flags], self.count)

    def counts(self) -> Ints:
        """Return the number of rows of each group."""
        return np.bincount(self.of_rows, minlength=self.count).astype(np.int64, copy=False)

    def float_sums(self, numbers: NDArray[Any]) -> Floats:
        """Return the sums of floats, each in the order of its rows."""
        return np.bincount(self.of_rows, weights=numbers, minlength=self.count).astype(
            np.float64, copy=False
        )

    def int_sums(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the sums of 64-bit integers, signed or unsigned.

        Raises:
            SumRangeError: one leaves the range of its type.
        """
        largest = max(int(numbers.max(initial=0)), -int(numbers.min(initial=0))) * len(numbers)
        if largest < _EXACT_IN_FLOATS:
            return self.float_sums(numbers).astype(numbers.dtype)
        if largest < 2**63:
            return self._added(numbers)
        signed = numbers.dtype == np.int64
        high, low = numbers >> numbers.dtype.type(32), numbers & numbers.dtype.type(_LOW)
        highs, lows = self._added(high.astype(np.int64)), self._added(low.astype(np.int64))
        highs += lows >> 32
        least, most = (-(2**31), 2**31 - 1) if signed else (0, _LOW)
        self._require_range((highs < least) | (highs > most), pa.int64() if signed else pa.uint64())
        of_kind = highs.astype(numbers.dtype) << numbers.dtype.type(32)
        return np.asarray(of_kind | (lows & _LOW).astype(numbers.dtype))

    def decimal_sums(self, column: pa.Array, present: Flags) -> pa.Array:
        """Return the sums of decimals of 128 bits without nulls, null where none is *present*.

        Raises:
            SumRangeError: one has more than 38 digits.
        """
        kind = pa.decimal128(38, column.type.scale)
        words = _words(column)
        limbs = [words[:, 0] & _LOW, words[:, 0] >> 32, words[:, 1] & _LOW]
        top = words[:, 1].view(np.int64) >> 32
        sums = [self._added(limb.astype(np.int64)) for limb in limbs]
        sums.append(self._added(top))
        for place in range(3):
            sums[place + 1] += sums[place] >> 32
            sums[place] &= _LOW
        self._require_range(abs(sums[3] + 0.5) > 2**31, kind)  # more than 128 bits
        low = sums[0].view(np.uint64) | sums[1].view(np.uint64) << np.uint64(32)
        high = sums[2] | sums[3] << 32
        near = np.flatnonzero(abs(high.astype(np.float64) * 2.0**64) > 0.99 * _DECIMAL_RANGE)
        wide = [abs((int(high[row]) << 64) + int(low[row])) >= _DECIMAL_RANGE for row in near]
        beyond = np.zeros(self.count, np.bool_)
        beyond[near] = wide
        self._require_range(beyond, kind)
        both = np.column_stack([low, high.view(np.uint64)])
        flags = pa.array(present).buffers()[1]
        return pa.Array.from_buffers(kind, self.count, [flags, pa.py_buffer(both.tobytes())])

    def least(self, numbers: Ints) -> Ints:
        """Return the least number of each group; the greatest there is for one without rows."""
        least = np.full(self.count, np.iinfo(np.int64).max)
        np.minimum.at(least, self.of_rows, numbers)
        return least

    def greatest(self, numbers: Ints) -> Ints:
        """Return the greatest number of each group; the least there is for one without rows."""
        greatest = np.full(self.count, np.iinfo(np.int64).min)
        np.maximum.at(greatest, self.of_rows, numbers)
        return greatest

    def first_rows(self) -> Ints:
        """Return the first row of each group, -1 for one without rows."""
        rows = np.full(self.count, -1)
        rows[self.of_rows[::-1]] = np.arange(len(self.of_rows))[::-1]
        return rows

    def last_rows(self) -> Ints:
        """Return the last row of each group, -1 for one without rows."""
        rows = np.full(self.count, -1)
        rows[self.of_rows] = np.arange(len(self.of_rows))
        return rows

    def _added(self, numbers: NDArray[Any]) -> NDArray[Any]:
        sums = np.zeros(self.count, numbers.dtype)
        np.add.at(sums, self.of_rows, numbers)
        return sums

    def _require_range(self, beyond: Flags, kind: Any) -> None:
        if beyond.any():
            raise SumRangeError(int(beyond.argmax()), kind)


def _words(column: pa.Array) -> NDArray[np.uint64]:
    """Return the low and the high half of each decimal of 128 bits."""
    if not len(column):
        return np.zeros((0, 2), np.uint64)
    words = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
    return words[column.offset : column.offset + len(column)]


def numpy_of(column: pa.Array) -> NDArray[Any]:
    """Return a column of numbers without nulls."""
    return np.asarray(column.to_numpy(zero_copy_only=False))


def valid_rows(groups: Groups, column: pa.Array) -> tuple[Groups, pa.Array]:
    """Return the rows in which a column is not null, and their values."""
    if not column.null_count:
        return groups, column
    flags = flags_of(column.is_valid())
    return groups.where(flags), column.drop_null()


def taken(column: pa.Array, rows: Ints) -> pa.Array:
    """Return the values of some rows, null where the row is -1."""
    return column.take(pa.array(rows, mask=rows < 0))


def is_number(kind: pa.DataType) -> bool:
    """Return whether values are integers, floats or decimals of at most 128 bits."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or is_decimal(kind))


def is_decimal(kind: pa.DataType) -> bool:
    """Return whether values are decimals of at most 128 bits."""
    return bool(pa.types.is_decimal(kind) and not pa.types.is_decimal256(kind))


def sums_of(groups: Groups, column: pa.Array) -> pa.Array:
    """Return the sums of a column, null for a group without a value.

    Integers give int64 (uint64 gives uint64), floats float64, decimals decimal128(38, scale),
    durations durations.

    Raises:
        SumRangeError: a sum leaves the range of its type.
        TypeError: values of its type cannot be summed.
    """
    kind = column.type
    if not (is_number(kind) or pa.types.is_duration(kind)):
        raise TypeError(
            f"values of {kind} cannot be summed; use integers, floats, decimals or durations"
        )
    rows, values = valid_rows(groups, column)
    present = rows.counts() > 0
    if pa.types.is_floating(kind):
        numbers = numpy_of(values).astype(np.float64, copy=False)
        return _masked(rows.float_sums(numbers), ~present)
    if pa.types.is_decimal(kind):
        return rows.decimal_sums(values.cast(pa.decimal128(kind.precision, kind.scale)), present)
    if pa.types.is_duration(kind):
        sums = rows.int_sums(numpy_of(values.view(pa.int64())))
        return _masked(sums, ~present).view(kind)
    wide = np.uint64 if pa.types.is_uint64(kind) else np.int64
    return _masked(rows.int_sums(numpy_of(values).astype(wide, copy=False)), ~present)


def _masked(numbers: NDArray[Any], missing: Flags) -> pa.Array:
    return pa.array(numbers, mask=missing, from_pandas=False)


def lists_of(values: pa.Array, sizes: Ints) -> pa.Array:
    """Return concatenated lists of these sizes as lists."""
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def list_sizes(lists: pa.Array) -> Ints:
    """Return the size of each list, 0 for a null."""
    return numpy_of(pc.list_value_length(lists).fill_null(0)).astype(np.int64)


@dataclass(frozen=True)
class Ordered:
    """The values of a column without nulls as integers of the same order.

    Attributes:
        numbers: an integer for each value.
        values: converts integers back to a column; values with a flag become null.
    """

    numbers: Ints
    values: Callable[[Ints, Flags], pa.Array]

    @classmethod
    def of(cls, column: pa.Array) -> Ordered:
        """Return the order of a column.

        Raises:
            TypeError: values of its type have no order.
        """
        kind = column.type
        types = pa.types
        if types.is_null(kind):
            return cls(np.zeros(0, np.int64), lambda numbers, _: pa.nulls(len(numbers)))
        if types.is_boolean(kind) or types.is_integer(kind):
            return _of_integers(column)
        if types.is_temporal(kind) and kind != pa.month_day_nano_interval():
            bits = pa.int32() if kind.bit_width == 32 else pa.int64()
            inner = cls.of(column.view(bits))
            return cls(inner.numbers, lambda numbers, no: inner.values(numbers, no).view(kind))
        if types.is_floating(kind):
            return _of_floats(column)
        if is_text(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
            return _of_distinct(column)
        raise TypeError(
            f"values of {kind} have no order; use numbers, decimals, texts, bytes or times"
        )


def least_of(groups: Groups, column: pa.Array) -> pa.Array:
    """Return the least value of each group that is not null, null for a group without one."""
    rows, values = valid_rows(groups, column)
    ordered = Ordered.of(values)
    return ordered.values(rows.least(ordered.numbers), rows.counts() == 0)


def greatest_of(groups: Groups, column: pa.Array) -> pa.Array:
    """Return the greatest value of each group that is not null, null for a group without one."""
    rows, values = valid_rows(groups, column)
    ordered = Ordered.of(values)
    return ordered.values(rows.greatest(ordered.numbers), rows.counts() == 0)


def _of_integers(column: pa.Array) -> Ordered:
    kind = column.type
    if pa.types.is_uint64(kind):
        numbers = numpy_of(column).view(np.int64) ^ _LEAST
    else:
        numbers = numpy_of(column).astype(np.int64)

    def values(numbers: Ints, missing: Flags) -> pa.Array:
        if pa.types.is_uint64(kind):
            return pa.array((numbers ^ _LEAST).view(np.uint64), mask=missing)
        return pa.array(numbers, mask=missing).cast(kind)

    return Ordered(numbers, values)


def _of_floats(column: pa.Array) -> Ordered:
    kind = column.type
    floats = numpy_of(column).astype(np.float64) + 0.0  # -0.0 becomes 0.0
    bits = np.where(np.isnan(floats), _NAN_BITS, floats.view(np.int64))

    def values(numbers: Ints, missing: Flags) -> pa.Array:
        floats = _flipped(numbers).view(np.float64).astype(_FLOATS[kind.bit_width])
        return pa.array(floats, kind, mask=missing, from_pandas=False)

    return Ordered(_flipped(bits), values)


def _flipped(bits: NDArray[Any]) -> Ints:
    """Map the bits of floats to integers in the order of their values, and back."""
    return np.asarray(np.where(bits < 0, ~bits ^ _LEAST, bits))


def _of_distinct(column: pa.Array) -> Ordered:
    encoded = column.dictionary_encode()
    distinct = encoded.dictionary
    order = pc.sort_indices(distinct)
    places = np.empty(len(distinct), np.int64)
    places[numpy_of(order)] = np.arange(len(distinct))

    def values(numbers: Ints, missing: Flags) -> pa.Array:
        return distinct.take(order.take(pa.array(numbers, mask=missing)))

    return Ordered(places[numpy_of(encoded.indices)], values)
