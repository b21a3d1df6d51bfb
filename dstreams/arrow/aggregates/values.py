"""Aggregates that choose among values: Min, Max, First, Last and TopK."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dstreams.arrow.aggregates.aggregate import Aggregate
from dstreams.arrow.groups import Groups, list_sizes, lists_of, taken
from dstreams.arrow.key_hash import flags_of
from dstreams.arrow.orders import Ordered, greatest_of, least_of

if TYPE_CHECKING:
    from dstreams.arrow.groups import Ints


@dataclass(frozen=True)
class _Extreme(Aggregate):
    """A value of each key that no other one exceeds in an order."""

    part_names: ClassVar[tuple[str, ...]] = ("value",)

    column: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    def merge(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        return self.partial(groups, parts)

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        return parts[0]


@dataclass(frozen=True)
class Min(_Extreme):
    """The least value of a column, in its type; NaN where a key has no other, as in Spark."""

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [least_of(groups, columns[0])]


@dataclass(frozen=True)
class Max(_Extreme):
    """The greatest value of a column, in its type; NaN where a key has one, as in Spark."""

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [greatest_of(groups, columns[0])]


@dataclass(frozen=True)
class _Chosen(Aggregate):
    """The value of one row of each key."""

    part_names: ClassVar[tuple[str, ...]] = ("value", "by")
    is_ordered: ClassVar[bool] = True

    column: str
    by: str | None = None
    ignoreNulls: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,) if self.by is None else (self.column, self.by)

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        value = columns[0]
        if self.by is None:
            return self.merge(groups, [value, pa.array(np.ones(len(value), np.bool_))])
        return self.merge(groups, columns)

    def merge(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        value, by = parts
        there = pc.and_(by.is_valid(), value.is_valid()) if self.ignoreNulls else by.is_valid()
        kept = np.flatnonzero(flags_of(there))
        rows = Groups(groups.of_rows[kept], groups.count)
        if self.by is not None:
            numbers = Ordered.of(by.take(pa.array(kept))).numbers
            best = numbers == self._best(rows, numbers)[rows.of_rows]
            kept, rows = kept[best], rows.where(best)
        chosen = self._row(rows)
        if len(kept):
            chosen = np.where(chosen < 0, -1, kept[chosen])
        return [taken(value, chosen), taken(by, chosen)]

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        return parts[0]

    def _best(self, rows: Groups, numbers: Ints) -> Ints:
        raise NotImplementedError

    def _row(self, rows: Groups) -> Ints:
        raise NotImplementedError


@dataclass(frozen=True)
class First(_Chosen):
    """The value of the row that came first, or of that with the least *by*.

    Rows come in the order of their batches, in a batch in that of its partitions, in a partition as
    they lie there. Rows whose *by* is null are passed over; of those with an equal one the row that
    came first counts. With *ignoreNulls* nulls are passed over, too.
    """

    def _best(self, rows: Groups, numbers: Ints) -> Ints:
        return rows.least(numbers)

    def _row(self, rows: Groups) -> Ints:
        return rows.first_rows()


@dataclass(frozen=True)
class Last(_Chosen):
    """The value of the row that came last, or of that with the greatest *by*.

    As :class:`First`; of rows with an equal *by* the row that came last counts.
    """

    def _best(self, rows: Groups, numbers: Ints) -> Ints:
        return rows.greatest(numbers)

    def _row(self, rows: Groups) -> Ints:
        return rows.last_rows()


@dataclass(frozen=True)
class TopK(Aggregate):
    """The *k* rows of a key with the greatest *by*, greatest first, as a list.

    Elements are structs of *column* and *by*; without a *by* they are the greatest values of
    *column*. Rows whose *by* is null are passed over; of those with an equal one the row that came
    first stands first. It does not count: for what is most frequent see the how-to.
    """

    part_names: ClassVar[tuple[str, ...]] = ("top",)
    is_ordered: ClassVar[bool] = True

    column: str
    k: int
    by: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ValueError(f"k of TopK must be a positive integer, got {self.k!r}")

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,) if self._by == self.column else (self.column, self._by)

    @property
    def _by(self) -> str:
        return self.column if self.by is None else self.by

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        if len(columns) == 1:
            values = columns[0]
        else:
            values = pa.StructArray.from_arrays(columns, names=list(self.inputs))
        flags = flags_of(columns[-1].is_valid())
        return [self._top(groups.where(flags), values.filter(pa.array(flags)))]

    def merge(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        sizes = list_sizes(parts[0])
        rows = Groups(np.repeat(groups.of_rows, sizes), groups.count)
        return [self._top(rows, parts[0].flatten())]

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        return parts[0]

    def _top(self, rows: Groups, values: pa.Array) -> pa.Array:
        by = pc.struct_field(values, [1]) if len(self.inputs) == 2 else values
        order = np.lexsort((~Ordered.of(by).numbers, rows.of_rows))
        groups = rows.of_rows[order]
        sizes = rows.counts()
        rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept = rank < self.k
        sizes = Groups(groups[kept], rows.count).counts()
        return lists_of(values.take(pa.array(order[kept])), sizes)
