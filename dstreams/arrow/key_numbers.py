"""Group the records of blocks by key.

>>> import pyarrow as pa
>>> records = pa.record_batch({"word": ["b", "a", "b"], "number": [1, 2, 3]})
>>> numbers = number_keys([pa.array(["a"])], [records.column("word")])
>>> numbers.known, numbers.of_rows.tolist(), numbers.new_rows.tolist()
(1, [1, 0, 1], [0])
>>> groups = GroupedValues(records, numbers.of_rows, 2)
>>> groups.sum("number").to_pylist(), groups.count().to_pylist()
([2, 4], [1, 2])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dstreams.arrow.groups import Groups, SumRangeError, greatest_of, least_of, sums_of, taken
from dstreams.arrow.key_hash import flags_of, ranges
from dstreams.errors import InvalidStreamError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dstreams.arrow.key_hash import Sizes


@dataclass(frozen=True)
class KeyNumbers:
    """A number for each key: first the keys of the state in their order, then new keys.

    Attributes:
        known: number of keys in the state.
        of_rows: the number of the key of each record.
        new_rows: the first record of each new key, in the order of their numbers.
        new_sizes: number of new keys in each bucket; one number without buckets.
    """

    known: int
    of_rows: NDArray[np.int64]
    new_rows: NDArray[np.int64]
    new_sizes: Sizes

    @property
    def count(self) -> int:
        """Number of keys."""
        return self.known + len(self.new_rows)


class DuplicateStateKeyError(ValueError):
    """A state has a duplicate key."""


def number_keys(
    state: Sequence[pa.Array],
    records: Sequence[pa.Array],
    *,
    unique: bool = True,
    sizes: tuple[Sizes, Sizes] | None = None,
) -> KeyNumbers:
    """Number the keys of a state and of records.

    Args:
        state: key columns of the state; empty without a state.
        records: key columns of the records.
        unique: whether the state is known to have each key once.
        sizes: sizes of the buckets of the state and of the records, if both are in bucket order.

    Raises:
        DuplicateStateKeyError: the state has a duplicate key.
    """
    known = len(state[0]) if state else 0
    if sizes is None:
        sizes = np.array([known]), np.array([len(records[0])])
    of_rows, new_rows = np.empty(len(records[0]), np.int64), []
    next_new = known
    for (first_key, keys), (first, count) in zip(*map(ranges, sizes), strict=True):
        of_bucket, new = _numbered(
            [column.slice(first_key, keys) for column in state],
            [column.slice(first, count) for column in records],
            None if unique else first_key,
        )
        # Numbers are rows of the bucket's keys, or follow them.
        shifts = np.where(of_bucket < keys, first_key, next_new - keys)
        np.add(of_bucket, shifts, out=of_rows[first : first + count])
        new_rows.append(new + first)
        next_new += len(new)
    new_sizes = np.array([len(new) for new in new_rows])
    return KeyNumbers(known, of_rows, np.concatenate(new_rows), new_sizes)


def _numbered(
    state: Sequence[pa.Array], records: Sequence[pa.Array], first_row: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of the key of each record, and the first record of each new key.

    With a *first_row*, which is for messages, the keys of the state are checked for duplicates.
    """
    known = len(state[0]) if state else 0
    codes = _codes([_column(pair) for pair in _pairs(state, records)])
    if first_row is not None:
        _require_unique(codes[:known], first_row)
    # Keys are numbered in order of appearance, so keys of the state have the numbers of their rows.
    of_rows = codes[known:]
    if not len(of_rows) or int(of_rows.max()) < known:
        return of_rows, np.empty(0, np.int64)
    # For the same reason, a new key has a greater number than all keys before it.
    before = np.empty_like(of_rows)
    before[0] = known - 1
    before[1:] = of_rows[:-1]
    np.maximum.accumulate(before, out=before)
    np.maximum(before, known - 1, out=before)
    return of_rows, np.flatnonzero(of_rows > before)


def _pairs(state: Sequence[pa.Array], records: Sequence[pa.Array]) -> list[list[pa.Array]]:
    if not state:
        return [[column] for column in records]
    return [list(pair) for pair in zip(state, records, strict=True)]


def _column(parts: list[pa.Array]) -> pa.Array:
    """Concatenate the parts of a key column; -0.0 becomes 0.0."""
    filled = [_decoded(part) for part in parts if len(part)] or [_decoded(parts[0])]
    column = pa.concat_arrays(filled) if len(filled) > 1 else filled[0]
    if pa.types.is_floating(column.type):
        return pc.add(column, pa.scalar(0.0, column.type))
    return column


def _decoded(column: pa.Array) -> pa.Array:
    """Decode a dictionary column, and widen 16-bit floats."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return column.cast(pa.float32()) if pa.types.is_float16(column.type) else column


def _codes(columns: list[pa.Array]) -> NDArray[np.int64]:
    """Return the number of the key of each row, in order of appearance."""
    codes = _encoded(columns[0])
    for column in columns[1:]:
        others = _encoded(column)
        width = int(others.max(initial=0)) + 1
        codes = _encoded(pa.array(codes * width + others))
    return codes


def _encoded(column: pa.Array) -> NDArray[np.int64]:
    indices = pc.dictionary_encode(column, null_encoding="encode").indices
    return np.asarray(indices.to_numpy(zero_copy_only=False), np.int64)


def _require_unique(codes: NDArray[np.int64], first_row: int) -> None:
    if len(codes) and int(codes.max()) + 1 < len(codes):
        row = int(np.flatnonzero(codes != np.arange(len(codes)))[0])
        raise DuplicateStateKeyError(
            f"row {first_row + row} of the state has the key of row {first_row + int(codes[row])}; "
            "keys must be unique"
        )


class GroupedValues:
    """The records of a batch grouped by key.

    Each method returns one value per key, in the order of the keys, and null (a count of 0) for a
    key without records. Null values are ignored, as in SQL.

    Attributes:
        records: the records in order of arrival, with all columns.
        keys: for each record, the row of its key in the keys and in the state.
    """

    def __init__(self, records: pa.RecordBatch, keys: NDArray[np.int64], key_count: int) -> None:
        self.records = records
        self.keys = keys
        self._key_count = key_count

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._key_count

    def count(self, column: str | None = None) -> pa.Array:
        """Return the number of records of each key, or of those with a value in *column*."""
        if column is None or not self._of(column).null_count:
            return pa.array(self._counts)
        keys = self.keys[flags_of(pc.is_valid(self._of(column)))]
        return pa.array(np.bincount(keys, minlength=self._key_count))

    def sum(self, column: str) -> pa.Array:
        """Return the sum of the values of a column of numbers: int64, float64 or decimal.

        Raises:
            OverflowError: a sum leaves the range of its type.
        """
        try:
            return sums_of(Groups(self.keys, self._key_count), self._of(column))
        except SumRangeError as error:
            raise OverflowError(
                f"the sum of the column {column!r} leaves the range of {error.kind} for the key in "
                f"row {error.group} of the keys"
            ) from error

    def min(self, column: str) -> pa.Array:
        """Return the least value of a column; NaN if a key has no other value, as in Spark."""
        return least_of(Groups(self.keys, self._key_count), _decoded(self._of(column)))

    def max(self, column: str) -> pa.Array:
        """Return the greatest value of a column; NaN if any value is NaN, as in Spark."""
        return greatest_of(Groups(self.keys, self._key_count), _decoded(self._of(column)))

    def mean(self, column: str) -> pa.Array:
        """Return the mean of the values of a column of numbers."""
        table = pa.table({"key": self.keys, "value": self._of(column)})
        grouped = table.group_by("key", use_threads=False).aggregate([("value", "mean")])
        made = grouped.column("value_mean").combine_chunks()
        places = np.full(self._key_count, -1, np.int64)
        places[grouped.column("key").to_numpy()] = np.arange(len(grouped))
        return taken(made, places)

    def first(self, column: str) -> pa.Array:
        """Return the value of the first record, which may be null."""
        return self._of(column).take(self._rows_or_null(self._offsets))

    def last(self, column: str) -> pa.Array:
        """Return the value of the last record, which may be null."""
        return self._of(column).take(self._rows_or_null(self._offsets + self._counts - 1))

    def lists(self, column: str) -> pa.Array:
        """Return the list of all values, including nulls, in order of arrival."""
        offsets = pa.array(np.append(self._offsets, len(self.keys)).astype(np.int32))
        return pa.ListArray.from_arrays(offsets, self._of(column).take(pa.array(self._order)))

    def _of(self, column: str) -> pa.Array:
        try:
            return self.records.column(column)
        except KeyError:
            names = ", ".join(self.records.schema.names)
            raise InvalidStreamError(
                f"the records have no column {column!r}; they have {names}"
            ) from None

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        return np.bincount(self.keys, minlength=self._key_count)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """The rows in order of their keys, then of arrival."""
        return np.argsort(self.keys, kind="stable")

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        """The index of the first record of each key in that order."""
        return np.cumsum(self._counts) - self._counts

    def _rows_or_null(self, places: NDArray[np.int64]) -> pa.Array:
        lacks = self._counts == 0
        rows = self._order[np.where(lacks, 0, places)] if len(self.keys) else places
        return pa.array(rows, mask=lacks)
