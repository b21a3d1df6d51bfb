"""Where the keys of blocks belong: a hash of columns that every process agrees on.

It is computed from the values alone, so a key is in the same partition in every process, release
and restart. Integers of all widths hash alike, as texts and large texts do.

>>> import pyarrow as pa
>>> partitions_of(hashes_of([pa.array(["a", "b", None])]), 4).tolist()
[3, 3, 3]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_AT_ONCE = 16_384

BLOCK_HASH_NAME = "block-hash-1"
"""Name of the hash in identities and on disk; another algorithm gets another name."""

_NULL = np.uint64(0x6E756C6C)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class UnplaceableKeyError(TypeError):
    """A key that has no place, because it has no hash or does not equal itself."""


def partitions_of(hashes: Hashes, count: int) -> NDArray[np.int64]:
    """Return the partition of each key, of which there are *count*."""
    return np.asarray(hashes % np.uint64(count), np.int64)


def hashes_of(columns: Sequence[pa.Array]) -> Hashes:
    """Return the hash of each key; *columns* are those of the key, at least one.

    Raises:
        UnplaceableKeyError: a column is of a type that keys cannot have, or has a NaN.
    """
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        hashes = _mixed(hashes * _FIRST ^ _of_column(column))
    return hashes


def _of_column(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _of_column(column.dictionary_decode())
    if pa.types.is_null(kind):
        return np.full(len(column), _NULL)
    if is_text(kind):
        hashes = _of_bytes(column)
    elif pa.types.is_decimal128(kind):
        words = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
        here = words[column.offset : column.offset + len(column)]
        hashes = _mixed(_mixed(here[:, 0].copy()) ^ here[:, 1])
    else:
        hashes = _mixed(_as_words(column).copy())  # may be a view of the column itself
    if column.null_count:
        hashes = np.where(flags_of(column.is_null()), _NULL, hashes)
    return hashes


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type are texts or bytes of any length."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
    )


def _as_words(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_floating(kind):
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        if np.isnan(numbers).any():
            row = int(np.isnan(numbers).argmax())
            raise UnplaceableKeyError(
                f"NaN cannot be a key, because it does not equal itself; row {row} has one"
            )
        return np.asarray(numbers + 0.0).view(np.uint64)  # -0.0 equals 0.0
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif not pa.types.is_integer(kind):
        raise UnplaceableKeyError(
            f"a column of {kind} cannot be a key; use numbers, texts, bytes or times"
        )
    words = column.fill_null(0).to_numpy(zero_copy_only=False)
    wide = np.uint64 if words.dtype == np.uint64 else np.int64
    return np.asarray(words, wide).view(np.uint64)


def _of_bytes(column: pa.Array) -> Hashes:
    """Return the hashes of texts: eight bytes at a time, of all that are so long."""
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)
    ends = ends[column.offset : column.offset + len(column) + 1].astype(np.int64)
    hashes = np.diff(ends).astype(np.uint64)
    hashes *= _STEP
    if data is not None:
        # Slices that stay in the processor's cache are hashed in half the time.
        for start in range(0, len(hashes), _AT_ONCE):
            _add_bytes(hashes[start : start + _AT_ONCE], ends[start : start + _AT_ONCE + 1], data)
    return _mixed(hashes)


def _add_bytes(hashes: Hashes, ends: NDArray[np.int64], data: pa.Buffer) -> None:
    """Mix the bytes of texts, which end and begin at *ends*, into their hashes."""
    first, last = int(ends[0]), int(ends[-1])
    raw = np.zeros(last - first + 8, np.uint8)  # so that the last word ends within it
    raw[: last - first] = np.frombuffer(data, np.uint8, last - first, first)
    words = np.lib.stride_tricks.as_strided(
        np.ndarray((1,), np.dtype("<u8"), raw.data), (len(raw) - 7,), (1,)
    )
    starts, sizes = ends[:-1] - first, np.diff(ends)
    rows: Any = slice(None)
    at = 0
    while True:
        longer = sizes > at
        if not longer.all():
            rows = np.flatnonzero(longer) if isinstance(rows, slice) else rows[longer]
            starts, sizes = starts[longer], sizes[longer]
        if not len(sizes):
            return
        unused = np.minimum(sizes - at, 8)
        np.subtract(8, unused, out=unused)
        unused <<= 3
        word = words[starts + at]
        word <<= unused.view(np.uint64)
        word ^= hashes[rows]
        hashes[rows] = _mixed(word)
        at += 8


def _mixed(words: Any) -> Hashes:
    """Return what splitmix64 makes of each word, in the place of *words*."""
    mixed = np.asarray(words)
    mixed += _STEP
    shifted = mixed >> np.uint64(30)
    mixed ^= shifted
    mixed *= _FIRST
    np.right_shift(mixed, np.uint64(27), out=shifted)
    mixed ^= shifted
    mixed *= _SECOND
    np.right_shift(mixed, np.uint64(31), out=shifted)
    mixed ^= shifted
    return mixed


def flags_of(column: Any) -> NDArray[np.bool_]:
    """Return a column of truth values, none of them null."""
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
