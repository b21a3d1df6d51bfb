"""Values as integers of the same order, and back: by them any type is compared in one way.

Floats are in Spark's order: NaN is greater than all others and equals itself, -0.0 equals 0.0.
Texts are in the order of their bytes.

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

from dstreams.arrow.groups import Groups, numpy_of, valid_rows
from dstreams.arrow.key_hash import is_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dstreams.arrow.groups import Flags, Ints

_LEAST = np.int64(-(2**63))
_FLOATS = {16: np.float16, 32: np.float32, 64: np.float64}
_NAN_BITS = np.float64("nan").view(np.int64)


@dataclass(frozen=True)
class Ordered:
    """The values of a column without nulls as integers of the same order.

    Attributes:
        numbers: an integer for each value.
        values: makes the column of integers again; null where the flag beside one is set.
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
    """Return bits of floats in the order of their values, and such integers as bits again."""
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
