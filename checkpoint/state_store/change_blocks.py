"""Blocks of changelogs and snapshots: columns of lengths and of bytes.

::

    Q keys after these changes | Q checksum after them | column * 5
    column   B bytes of a length | I items | lengths | items, one after the other

The columns are keys and records of the puts, keys of the removes, and entries added to and removed
from the timeout index. The content of a block is not interpreted. A compressed block is its length
and one zstandard frame that must state the same length, so reading never takes more memory than
:data:`MAX_BLOCK_BYTES`.

Columns also save time: small objects that were made long ago have left the processor's caches, and
to join them at once and slice them later is faster than to visit and free each of them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from checkpoint.state_store.backend import Changes, Pairs
from checkpoint.storage.framing import MAX_BLOCK_BYTES

_CUT_ITEMS = 256  # held at once while iterating


class Column(Sequence[bytes]):
    """A sequence of bytes objects, stored as one and created on access."""

    __slots__ = ("_at", "_data", "lengths", "size_bytes")

    def __init__(self, lengths: Sequence[int], data: bytes, at: int = 0) -> None:
        self.lengths = lengths
        self.size_bytes = sum(lengths)
        self._data = data
        self._at = at
        if at + self.size_bytes > len(data):
            missing = at + self.size_bytes - len(data)
            raise ValueError(f"a column of {len(lengths)} items is {missing} bytes too short")

    @classmethod
    def of(cls, items: Sequence[bytes]) -> Column:
        """Return a column of *items*."""
        return cls(list(map(len, items)), b"".join(items))

    @classmethod
    def joined(cls, columns: Sequence[Column]) -> Column:
        """Return one column with the items of all *columns*."""
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
            # struct.unpack_from would cache the format.
            cut = struct.Struct(_format(lengths))
            yield cut.unpack_from(self._data, at)
            at += cut.size


def _format(lengths: Sequence[int]) -> str:
    sizes = set(lengths)
    if len(sizes) == 1:
        return f"{sizes.pop()}s" * len(lengths)
    formats = {size: f"{size}s" for size in sizes}
    return "".join(map(formats.__getitem__, lengths))


MAX_KEY_BYTES = 503
MAX_INDEX_BYTES = 511
MAX_RECORD_BYTES = 32 << 20

BLOCK_BYTES = 1 << 20
BLOCK_OPERATIONS = 1 << 15
MAX_ITEMS = 1 << 16

_HEAD = struct.Struct("<QQ")
_NO_CHECKSUM = (1 << 64) - 1
_COLUMN = struct.Struct("<BI")
_LENGTH = struct.Struct("<I")
_WIDTHS = {2: "H", 4: "I"}
_ZSTD_LEVEL = 1


class Compression(enum.Enum):
    """The compression of blocks."""

    NONE = "none"
    ZSTD = "zstd"


def encode_changes(changes: Changes, compression: Compression) -> Iterator[tuple[bytes, int]]:
    """Yield pairs (bytes of a block, number of changes in it), at least one."""
    puts = changes.puts
    if isinstance(puts, Pairs):
        keys, records = puts.columns()
    else:
        keys, records = [key for key, _ in puts], [record for _, record in puts]
    columns = [
        _column("key", keys, 1, MAX_KEY_BYTES),
        _column("record", records, 0, MAX_RECORD_BYTES),
        _column("key", changes.removes, 1, MAX_KEY_BYTES),
        _column("index entry", changes.index_puts, 1, MAX_INDEX_BYTES),
        _column("index entry", changes.index_removes, 1, MAX_INDEX_BYTES),
    ]
    checksum = _NO_CHECKSUM if changes.checksum is None else changes.checksum
    for block, operations in _encode(_HEAD.pack(changes.count, checksum), columns):
        yield block if compression is Compression.NONE else _compress(block), operations


def _column(what: str, items: Sequence[bytes], least: int, most: int) -> Column:
    column = items if isinstance(items, Column) else Column.of(items)
    lengths = column.lengths
    sizes = set(lengths) or {least}  # usually few
    if not least <= min(sizes) <= max(sizes) <= most:
        wrong = next(length for length in lengths if not least <= length <= most)
        raise ValueError(
            f"{what} of {wrong} bytes in a state store must be {least} to {most} bytes; "
            "store large values outside the state, or split them over several keys"
        )
    return column


def _encode(head: bytes, columns: Sequence[Column]) -> Iterator[tuple[bytes, int]]:
    operations = sum(map(len, columns)) - len(columns[0])  # a key and its record are one
    payload_bytes = sum(column.size_bytes for column in columns)
    if operations > 1 and (operations > BLOCK_OPERATIONS or payload_bytes > BLOCK_BYTES):
        for half in zip(*map(_halves, columns), strict=True):
            yield from _encode(head, half)
        return
    parts: list[bytes | memoryview] = [head]
    for column in columns:
        lengths = column.lengths
        width = 2 if max(set(lengths), default=0) < 1 << 16 else 4
        parts.append(_COLUMN.pack(width, len(lengths)))
        parts.append(struct.pack(f"<{len(lengths)}{_WIDTHS[width]}", *lengths))
        parts.append(column.whole())
    yield b"".join(parts), operations


def _halves(column: Column) -> tuple[Column, Column]:
    middle = (len(column) + 1) // 2
    return column.part(0, middle), column.part(middle, len(column))


def decode_changes(payload: bytes, compression: Compression) -> Changes:
    """Decode a block of :func:`encode_changes`. Raises ValueError."""
    block = payload if compression is Compression.NONE else _decompress(payload)
    try:
        count, checksum = _HEAD.unpack_from(block)
        keys, at = _read_column(block, _HEAD.size)
        records, at = _read_column(block, at)
        removes, at = _read_column(block, at)
        index_puts, at = _read_column(block, at)
        index_removes, at = _read_column(block, at)
    except struct.error as error:
        raise ValueError(f"a column is too short: {error}") from error
    if at != len(block) or len(keys) != len(records):
        raise ValueError(f"{len(block) - at} bytes are left, {len(keys)} keys, {len(records)} puts")
    checksum = None if checksum == _NO_CHECKSUM else checksum
    return Changes(Pairs(keys, records), removes, index_puts, index_removes, count, checksum)


def _read_column(block: bytes, at: int) -> tuple[Column, int]:
    width, items = _COLUMN.unpack_from(block, at)
    at += _COLUMN.size
    if width not in _WIDTHS or items > MAX_ITEMS:
        raise ValueError(f"a column has {items} items with lengths of {width} bytes")
    lengths = struct.unpack_from(f"<{items}{_WIDTHS[width]}", block, at)
    at += width * items
    column = Column(lengths, block, at)
    return column, at + column.size_bytes


def _compress(block: bytes) -> bytes:
    # Imported here, because it takes 9 ms.
    import zstandard  # noqa: PLC0415

    return _LENGTH.pack(len(block)) + zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(block)


def _decompress(payload: bytes) -> bytes:
    import zstandard  # noqa: PLC0415

    frame = payload[_LENGTH.size :]
    try:
        (block_bytes,) = _LENGTH.unpack_from(payload)
        stated = zstandard.get_frame_parameters(frame).content_size
        if stated != block_bytes or block_bytes > MAX_BLOCK_BYTES:
            raise ValueError(f"a block of {block_bytes} bytes states a size of {stated}")
        block = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except (struct.error, zstandard.ZstdError) as error:
        raise ValueError(f"a block cannot be decompressed: {error}") from error
    if len(block) != block_bytes:
        raise ValueError(f"a block has {len(block)} bytes, not {block_bytes}")
    return block
