"""Pair blocks: how keys and values lie in a block, for who writes them and for who shows them.

======== ===========================================================================================
bytes    what
======== ===========================================================================================
1        side: what the values are; 0 for values of a batch, 1 for states
1        form of the value column
4, 4     rows, and length of the key column; unsigned, little endian
...      the key column, a pickled list
...      the value column
4, 4     where the highest bit of the side is set: number of the partition before the shuffle, and
         that of the block among those of it
======== ===========================================================================================

Of the form ``COMMON`` the value column is a pickled list. Of ``SEPARATE`` it is a pickled list of
pickles, one for each row. Of ``FIELDS`` it is a pickled tuple of the columns of the fields of the
values, which are tuples; each column is a list, or again such a tuple. Nothing is unpickled here.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, Final

_HEADER: Final = struct.Struct("<BBII")
_ORIGIN: Final = struct.Struct("<II")
_HAS_ORIGIN = 0x80


class PairForm(IntEnum):
    """What the value column of a block is."""

    COMMON = 0
    SEPARATE = 1
    FIELDS = 2


class PairBlock:
    """A view of the parts of a block.

    Attributes:
        rows: how many rows it has.
        side_number: what its values are.
        form: what its value column is.
        origin: where it comes from: partition before the shuffle, number of the block there; twice
            -1 if it does not say.
    """

    __slots__ = ("_data", "_keys_end", "form", "origin", "rows", "side_number")

    def __init__(self, data: bytes | memoryview) -> None:
        if len(data) < _HEADER.size:
            raise ValueError(f"a block has {_HEADER.size} bytes or more, not {len(data)}")
        side, form, self.rows, key_bytes = _HEADER.unpack_from(data)
        self._data = memoryview(data)
        self.origin: tuple[int, int] = (-1, -1)
        if side & _HAS_ORIGIN:
            side -= _HAS_ORIGIN
            self.origin = _ORIGIN.unpack_from(data, len(data) - _ORIGIN.size)
        self.side_number: int = side
        self.form = PairForm(form)
        self._keys_end = _HEADER.size + key_bytes
        if side > 1 or self._keys_end > len(data):
            raise ValueError(f"a block cannot be of side {side} with keys of {key_bytes} bytes")

    @property
    def size(self) -> int:
        """Bytes of the block."""
        return len(self._data)

    @property
    def data(self) -> bytes:
        """The block."""
        return bytes(self._data)

    @property
    def key_column(self) -> memoryview:
        """The pickled keys, to be reused as they are."""
        return self._data[_HEADER.size : self._keys_end]

    @property
    def value_column(self) -> memoryview:
        """The pickled values, with whatever follows them."""
        return self._data[self._keys_end :]


def pair_header(side: int, form: PairForm, rows: int, key_bytes: int) -> bytes:
    """Return what stands before the columns of a block."""
    return _HEADER.pack(side, form, rows, key_bytes)


def with_origin(block: bytes, partition: int, number: int) -> bytes:
    """Return *block* with where it comes from: a partition, and its number there."""
    side = bytes((block[0] | _HAS_ORIGIN,))
    return b"".join((side, memoryview(block)[1:], _ORIGIN.pack(partition, number)))


def rows_of_fields(column: Any) -> list[Any]:
    """Return the rows of the columns of fields, as a value column of that form has them."""
    if isinstance(column, list):
        return column
    return list(zip(*map(rows_of_fields, column), strict=True))
