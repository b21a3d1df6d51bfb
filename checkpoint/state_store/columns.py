"""Columns: many bytes objects as one.

Small objects that were made a while ago are not near the processor: to look at them again, and to
free them, takes longer than to join them at once and to cut out what is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

_CUT_ITEMS = 256  # as many as are held at once by who iterates


class Column(Sequence[bytes]):
    """Bytes objects that lie one after the other, and are made when they are asked for."""

    __slots__ = ("_at", "_data", "lengths", "size_bytes")

    def __init__(self, lengths: Sequence[int], data: bytes, at: int = 0) -> None:
        self.lengths = lengths
        self.size_bytes = sum(lengths)
        self._data = data
        self._at = at
        if at + self.size_bytes > len(data):
            missing = at + self.size_bytes - len(data)
            raise ValueError(f"a column of {len(lengths)} items ends {missing} bytes too early")

    @classmethod
    def of(cls, items: Sequence[bytes]) -> Column:
        """Return a column of *items*."""
        return cls(list(map(len, items)), b"".join(items))

    @classmethod
    def joined(cls, columns: Sequence[Column]) -> Column:
        """Return the items of all *columns*, in one."""
        if len(columns) == 1:
            return columns[0]
        lengths: list[int] = []
        for column in columns:
            lengths += column.lengths
        return cls(lengths, b"".join([column.whole() for column in columns]))

    def whole(self) -> bytes | memoryview:
        """Return all items as one."""
        if self.size_bytes == len(self._data):
            return self._data
        return memoryview(self._data)[self._at : self._at + self.size_bytes]

    def part(self, first: int, last: int) -> Column:
        """Return the items from *first* up to before *last*."""
        return Column(self.lengths[first:last], self._data, self._at + sum(self.lengths[:first]))

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._cuts())

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(at, slice):
            return list(self)[at]
        place = range(len(self))[at]
        start = self._at + sum(self.lengths[:place])
        return self._data[start : start + self.lengths[place]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def _cuts(self) -> Iterator[tuple[bytes, ...]]:
        at = self._at
        for start in range(0, len(self.lengths), _CUT_ITEMS):
            lengths = self.lengths[start : start + _CUT_ITEMS]
            # Not struct.unpack_from, which would keep the format for the next call.
            cut = struct.Struct(_format(lengths))
            yield cut.unpack_from(self._data, at)
            at += cut.size


def _format(lengths: Sequence[int]) -> str:
    sizes = set(lengths)
    if len(sizes) == 1:
        return f"{sizes.pop()}s" * len(lengths)
    formats = {size: f"{size}s" for size in sizes}
    return "".join(map(formats.__getitem__, lengths))
