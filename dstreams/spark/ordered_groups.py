"""Values grouped by key, the groups in the order in which their keys came, also when they spill.

PySpark spills by the hash of keys with another seed in each attempt of a task, when the worker's
memory is short. What a function over state emits must depend on neither.

>>> from dstreams.spark.ordered_groups import GroupsInOrder
>>> groups = GroupsInOrder(memory_mb=512)
>>> groups.add([("b", 1), ("a", 2), ("b", 3)])
>>> [(key, list(values)) for key, values in groups.items()]
[('b', [1, 3]), ('a', [2])]
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import count
from operator import itemgetter
from struct import Struct
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeVar

from pyspark.shuffle import Aggregator

from checkpoint import rows_of_fields
from dstreams.spark.pair_columns import PairColumns, columns_of
from dstreams.spark.spill_buffer import MemoryLimit, Merger

Merge = Callable[[Any, Any], Any]
Explain = Callable[[Any, Exception], Exception]

_RUN_GROUPS = 1000
_RUN_BYTES = 16 << 20
_LENGTH = Struct("<Q")

SidesT = TypeVar("SidesT", bound=Sequence[list[Any]])
"""The values of a key, a list for each side."""


class _NumberedValues(list[Any]):
    """The values of a key, and its number among the keys."""

    __slots__ = ("number",)
    number: int


class _NumberedSides(list[list[Any]]):
    """The values of a key, a list for each side, and its number among the keys."""

    __slots__ = ("number",)
    number: int


class GroupsInOrder:
    """Groups pairs, and spills them when the worker uses more than *memory_mb* MiB.

    With *has_sides* values are pairs of a side, 0 or 1, and a value; each side has a list.
    """

    def __init__(self, memory_mb: float, *, has_sides: bool = False) -> None:
        self._next_number = count().__next__
        aggregator = (
            Aggregator(self._sides, append_to_side, extend_sides)
            if has_sides
            else Aggregator(self._values, _append, _extend)
        )
        self._merger = Merger(aggregator, memory_mb)

    def add(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self._merger.mergeValues(pairs)

    @property
    def are_in_memory(self) -> bool:
        return not self._merger.spills

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return (key, list of its values), or (key, two such lists), in the order of keys."""
        groups = iter(self._merger.items())
        return groups if self.are_in_memory else _in_order(groups)

    def _values(self, value: Any) -> _NumberedValues:
        values = _NumberedValues((value,))
        values.number = self._next_number()
        return values

    def _sides(self, value: tuple[int, Any]) -> _NumberedSides:
        sides = _NumberedSides(([], []))
        sides.number = self._next_number()
        return append_to_side(sides, value)


def _append(values: _NumberedValues, value: Any) -> _NumberedValues:
    values.append(value)
    return values


def _extend(values: _NumberedValues, later: _NumberedValues) -> _NumberedValues:
    values.extend(later)
    return values


def append_to_side(sides: SidesT, value: tuple[int, Any]) -> SidesT:
    """Append a value to the list of its side, 0 or 1."""
    sides[value[0]].append(value[1])
    return sides


def extend_sides(sides: SidesT, later: SidesT) -> SidesT:
    """Append the later values of both sides."""
    sides[0].extend(later[0])
    sides[1].extend(later[1])
    return sides


def _in_order(groups: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Sort groups by their number: sorted runs go to a file, and are merged from there."""
    with TemporaryFile() as file:
        runs = []
        for run in _runs(groups):
            run.sort(key=itemgetter(0))
            start = file.tell()
            for _, record in run:
                file.write(_LENGTH.pack(len(record)))
                file.write(record)
            runs.append((start, file.tell()))
        for _, key, values in merge(*(_read(file, *run) for run in runs), key=itemgetter(0)):
            yield key, values


def _runs(groups: Iterator[tuple[Any, Any]]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the groups with their numbers, as bytes, as many at a time as memory is for."""
    run: list[tuple[int, bytes]] = []
    size_bytes = 0
    for key, values in groups:
        record = pickle.dumps((values.number, key, list(values)))
        run.append((values.number, record))
        size_bytes += len(record)
        if len(run) >= _RUN_GROUPS or size_bytes >= _RUN_BYTES:
            yield run
            run, size_bytes = [], 0
    if run:
        yield run


def _read(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, Any, list[Any]]]:
    """Read a run; others are read in between."""
    while start < end:
        file.seek(start)
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        start += _LENGTH.size + length
        yield pickle.loads(file.read(length))


def reduce_by_key(
    pairs: Iterable[tuple[Any, Any]],
    merge: Merge,
    memory_mb: float,
    explain: Explain | None = None,
) -> dict[Any, Any] | Iterator[tuple[Any, Any]]:
    """Return the values of each key, merged one after the other, in the order of keys.

    In a dict, or as pairs where they do not fit into memory. The order in which values are merged
    must not depend on the memory that is left: the sum of floats does. So they are merged as they
    come while there is memory, and then grouped first.

    *merge* may change its first argument; *explain* makes the error to raise of (key, error of
    merge).
    """
    limit = MemoryLimit(memory_mb)
    rest = pairs if isinstance(pairs, PairColumns) else iter(pairs)
    total: dict[Any, Any] = {}
    number = 0
    for keys, column in columns_of(rest):
        values = rows_of_fields(column)
        _reduce_into(total, keys, values, merge, explain)
        number += len(keys)
        if limit.is_reached(number):
            groups = GroupsInOrder(memory_mb)
            groups.add((each, total.pop(each)) for each in list(total))
            groups.add(rest)
            return _reduced(groups, merge, explain)
    return total


def _reduce_into(
    total: dict[Any, Any],
    keys: list[Any],
    values: list[Any],
    merge: Merge,
    explain: Explain | None,
) -> None:
    new = dict(zip(keys, values, strict=True))
    if len(new) == len(keys) and total.keys().isdisjoint(new):
        total |= new
        return
    for key, value in zip(keys, values, strict=True):
        if key not in total:
            total[key] = value
            continue
        try:
            total[key] = merge(total[key], value)
        except Exception as error:
            if explain is None:
                raise
            raise explain(key, error) from error


def _reduced(
    groups: GroupsInOrder, merge: Merge, explain: Explain | None
) -> Iterator[tuple[Any, Any]]:
    for key, values in groups.items():
        merged = values[0]
        try:
            for value in values[1:]:
                merged = merge(merged, value)
        except Exception as error:
            if explain is None:
                raise
            raise explain(key, error) from error
        yield key, merged
