"""Values of partitions, encoded separately, so that a task decodes only the value of its own.

A task gets a pickled copy of everything that its function refers to. If it decoded the values of
all partitions, a batch would cost the square of their number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar, overload

from msgspec import msgpack

T = TypeVar("T")


class PerPartition(Sequence[T], Generic[T]):
    """An immutable sequence of values of a type that msgspec encodes; decoded when read."""

    def __init__(self, kind: type[T], values: Iterable[T]) -> None:
        encoded = list(map(msgpack.encode, values))
        self._kind = kind
        self._ends = array("Q", accumulate(map(len, encoded), initial=0))
        self._data = b"".join(encoded)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, partition: int) -> T: ...

    @overload
    def __getitem__(self, partition: slice) -> Sequence[T]: ...

    def __getitem__(self, partition: int | slice) -> T | Sequence[T]:
        if isinstance(partition, slice):
            return [self[each] for each in range(len(self))[partition]]
        at = range(len(self))[partition]
        encoded = self._data[self._ends[at] : self._ends[at + 1]]
        return msgpack.decode(encoded, type=self._kind)
