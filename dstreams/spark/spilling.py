"""Buffers and groups in memory that spill to the local disk.

PySpark spills if the worker's memory is short, and partitions spilled keys by a hash whose seed
differs between task attempts. The output of a function over state must not depend on either, so
groups are in the order in which their keys arrived.

>>> from dstreams.spark.spilling import GroupsInOrder
>>> groups = GroupsInOrder(memory_mb=512)
>>> groups.add([("b", 1), ("a", 2), ("b", 3)])
>>> [(key, list(values)) for key, values in groups.items()]
[('b', [1, 3]), ('a', [2])]
"""

from __future__ import annotations

import pickle
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import count
from tempfile import SpooledTemporaryFile, TemporaryFile
from typing import Any, TypeVar

from pyspark import shuffle
from pyspark.shuffle import Aggregator, ExternalMerger

from checkpoint import rows_of_fields
from dstreams.spark.blocks import Block, BlockBuilder, PairColumns, Side, columns_of

Merge = Callable[[Any, Any], Any]
Explain = Callable[[Any, Exception], Exception]

ListT = TypeVar("ListT", bound=list[Any])
SidesT = TypeVar("SidesT", bound=Sequence[list[Any]])

_LENGTH = struct.Struct("<Q")
_BUFFER_BYTES = 64 << 20
_DIGEST_BYTES = 16
_FIRST_LOOK_ROWS = 1000
_LOOK_GROWTH = 1.5
_FEW_KEYS = 1000
_LITTLE_MB = 16


class MemoryLimit:
    """Checks whether the worker exceeds its memory limit; rarely, because a check is expensive."""

    def __init__(self, memory_mb: float) -> None:
        self._memory_mb = memory_mb
        self._next_look: float = _FIRST_LOOK_ROWS
        self._between: float = _FIRST_LOOK_ROWS

    def is_reached(self, rows: int) -> bool:
        if rows < self._next_look:
            return False
        self._between *= _LOOK_GROWTH
        self._next_look += self._between
        return shuffle.get_used_memory() >= self._memory_mb


class Merger(ExternalMerger):  # type: ignore[type-arg]  # no class to subscript in PySpark 3.5
    """Merges pairs by key, and spills if the worker uses more than *memory_mb* MiB.

    PySpark's merger spills whenever the worker exceeds the limit. If the loaded program alone
    exceeds it, each partition of each batch would write 59 files and run a full garbage collection
    without freeing memory. So a few keys that use little memory are not spilled.
    """

    def __init__(self, aggregator: Aggregator[Any, Any], memory_mb: float) -> None:
        super().__init__(aggregator, memory_mb)
        self._before_mb = shuffle.get_used_memory()

    def _spill(self) -> None:
        grown_mb = shuffle.get_used_memory() - self._before_mb
        if self.pdata or len(self.data) >= _FEW_KEYS or grown_mb >= _LITTLE_MB:
            super()._spill()


class FrameBuffer:
    """A buffer of frames, in memory or, beyond 64 MiB, on the local disk."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(_BUFFER_BYTES)  # noqa: SIM115 - closed in frames
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self._count = 0

    def add(self, frame: bytes) -> None:
        length = _LENGTH.pack(len(frame))
        self._file.write(length)
        self._file.write(frame)
        self._digest.update(length)
        self._digest.update(frame)
        self._count += 1

    def digest(self) -> bytes:
        return self._digest.digest()

    def frames(self) -> Iterator[bytes]:
        """Yield the frames once, and free them."""
        with self._file:
            self._file.seek(0)
            for _ in range(self._count):
                (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
                yield self._file.read(length)


class SpillBuffer:
    """A buffer of rows, which spills if the worker uses more than *memory_mb* MiB."""

    def __init__(self, memory_mb: float) -> None:
        self._limit = MemoryLimit(memory_mb)
        self._rows: list[Any] = []
        self._builder = BlockBuilder(Side.BATCH)
        self._frames: FrameBuffer | None = None

    @property
    def are_in_memory(self) -> bool:
        return self._frames is None

    def add(self, row: Any) -> None:
        if self._frames is not None:
            self._spill(self._frames, row)
            return
        self._rows.append(row)
        if self._limit.is_reached(len(self._rows)):
            self._frames = FrameBuffer()
            for each in self._rows:
                self._spill(self._frames, each)
            self._rows.clear()

    def _spill(self, frames: FrameBuffer, row: Any) -> None:
        block = self._builder.add(None, row)
        if block is not None:
            frames.add(block)

    def rows(self) -> Iterator[Any]:
        """Yield the rows once, in the order in which they were added, and free them."""
        if self._frames is not None:
            for block in self._builder.flush():
                self._frames.add(block)
            for frame in self._frames.frames():
                yield from Block(frame).values()
        yield from self._rows
        self._rows.clear()


class _Group(list[Any]):
    """The values of a key, or two lists of values, with the position of the key among all keys."""

    __slots__ = ("number",)
    number: int


class GroupsInOrder:
    """Groups pairs by key, and spills them if the worker uses more than *memory_mb* MiB.

    With *has_sides*, each value is a pair (0 or 1, value), and each side has its own list.
    """

    def __init__(self, memory_mb: float, *, has_sides: bool = False) -> None:
        self._next_number = count().__next__
        aggregator = (
            Aggregator(self._sides, append_to_side, extend_sides)
            if has_sides
            else Aggregator(self._values, append, extend)
        )
        self._merger = Merger(aggregator, memory_mb)

    def add(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self._merger.mergeValues(pairs)

    @property
    def are_in_memory(self) -> bool:
        return not self._merger.spills

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return (key, values), or (key, [values of side 0, of side 1]), ordered by first use."""
        groups = iter(self._merger.items())
        return groups if self.are_in_memory else _in_order(groups)

    def _values(self, value: Any) -> _Group:
        values = _Group((value,))
        values.number = self._next_number()
        return values

    def _sides(self, value: tuple[int, Any]) -> _Group:
        sides = _Group(([], []))
        sides.number = self._next_number()
        return append_to_side(sides, value)


def append(values: ListT, value: Any) -> ListT:
    """Append a value, and return the list."""
    values.append(value)
    return values


def extend(values: ListT, later: ListT) -> ListT:
    """Append the later values, and return the list."""
    values.extend(later)
    return values


def append_to_side(sides: SidesT, value: tuple[int, Any]) -> SidesT:
    """Append the value of a pair (side, value) to the list of its side."""
    sides[value[0]].append(value[1])
    return sides


def extend_sides(sides: SidesT, later: SidesT) -> SidesT:
    """Append the later values of both sides."""
    sides[0].extend(later[0])
    sides[1].extend(later[1])
    return sides


def _in_order(groups: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Sort groups by their number; groups are in a temporary file, only positions in memory."""
    with TemporaryFile() as file:
        positions = array("q")
        for key, values in groups:
            missing = values.number + 1 - len(positions)
            positions.extend([-1] * missing)
            positions[values.number] = file.tell()
            pickle.dump((key, list(values)), file)
        for position in positions:
            if position >= 0:
                file.seek(position)
                yield pickle.load(file)


def reduce_by_key(
    pairs: Iterable[tuple[Any, Any]], merge: Merge, memory_mb: float, explain: Explain | None = None
) -> dict[Any, Any] | Iterator[tuple[Any, Any]]:
    """Merge the values of each key in order; return a dict, or pairs if memory is short.

    The result is ordered by the first use of each key. The order in which floats are added must not
    depend on free memory: values are merged as they arrive while memory lasts, then grouped first.

    *merge* may change its first argument; *explain* maps (key, error of *merge*) to the error to
    raise.
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
    total: dict[Any, Any], keys: list[Any], values: list[Any], merge: Merge, explain: Explain | None
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
