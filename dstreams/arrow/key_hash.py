"""A hash of key columns that is stable across processes, releases and restarts.

It depends on values only, so a key is always in the same partition. Integers of all widths have the
same hash; so have strings and large strings.

The hash also divides rows into buckets. The keys of a bucket fit the processor's cache if those of
a partition do not, which cuts the time of a look-up to a third. The metadata of a block in bucket
order has the sizes of its buckets; small blocks and blocks of earlier releases have none.

>>> import pyarrow as pa
>>> partitions_of(hashes_of([pa.array(["a", "b", None])]), 4).tolist()
[3, 3, 3]
>>> block, sizes = in_buckets(pa.record_batch({"word": ["a", "b", "c", "a"]}), ["word"])
>>> block.column("word").to_pylist(), sizes.tolist()[:4]
(['a', 'a', 'b', 'c'], [0, 2, 2, 0])
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Sizes = NDArray[np.int64]


_AT_ONCE = 16_384

BLOCK_HASH_NAME = "block-hash-1"
"""Name of the hash on disk; another algorithm needs another name."""

_NULL = np.uint64(0x6E756C6C)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

BUCKETS = 16
"""Number of buckets."""

WORTH_ROWS = 16_384
"""Smaller blocks fit the cache as a whole."""

_SIZES = b"dstreams.buckets"
_SHIFT = np.uint64(60)


class UnplaceableKeyError(TypeError):
    """A key without a hash, or one that does not equal itself."""


def partitions_of(hashes: Hashes, count: int) -> NDArray[np.int64]:
    """Return the partition of each key among *count* partitions."""
    return np.asarray(hashes % np.uint64(count), np.int64)


def hashes_of(columns: Sequence[pa.Array]) -> Hashes:
    """Return the hash of each key, given one or more columns.

    Raises:
        UnplaceableKeyError: a column has a type without hash, or has a NaN.
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
        hashes = _mixed(_as_words(column).copy())  # copied, because it may be a view of the column
    if column.null_count:
        hashes = np.where(flags_of(column.is_null()), _NULL, hashes)
    return hashes


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type are strings or bytes of variable length."""
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
    """Return the hashes of strings, eight bytes of all strings at a time."""
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)
    ends = ends[column.offset : column.offset + len(column) + 1].astype(np.int64)
    hashes = np.diff(ends).astype(np.uint64)
    hashes *= _STEP
    if data is not None:
        # Hashing slices that fit the processor's cache takes half the time.
        for start in range(0, len(hashes), _AT_ONCE):
            _add_bytes(hashes[start : start + _AT_ONCE], ends[start : start + _AT_ONCE + 1], data)
    return _mixed(hashes)


def _add_bytes(hashes: Hashes, ends: NDArray[np.int64], data: pa.Buffer) -> None:
    """Mix the bytes of strings with these offsets into their hashes."""
    first, last = int(ends[0]), int(ends[-1])
    raw = np.zeros(last - first + 8, np.uint8)  # padded for the last word
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
    """Apply splitmix64 to *words* in place."""
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
    """Return a boolean column without nulls."""
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)


def buckets_of(hashes: Hashes) -> NDArray[np.uint8]:
    """Return the bucket of each key, from bits of its hash that do not select its partition."""
    return np.asarray(hashes >> _SHIFT, np.uint8)


def sizes_of(block: pa.RecordBatch) -> Sizes | None:
    """Return the sizes of the buckets of a block, None if it is not in bucket order."""
    sizes = (block.schema.metadata or {}).get(_SIZES)
    return None if sizes is None else np.array(json.loads(sizes), np.int64)


def with_sizes(block: pa.RecordBatch, sizes: Sizes) -> pa.RecordBatch:
    """Add the sizes of buckets to the metadata of a block."""
    metadata = {**(block.schema.metadata or {}), _SIZES: json.dumps(sizes.tolist()).encode()}
    return block.replace_schema_metadata(metadata)


def in_buckets(block: pa.RecordBatch, keys: Sequence[str]) -> tuple[pa.RecordBatch, Sizes]:
    """Sort the rows of a block stably by bucket; return it with the sizes of the buckets."""
    sizes = sizes_of(block)
    if sizes is None:
        places = buckets_of(hashes_of([block.column(name) for name in keys]))
        block = block.take(pa.array(np.argsort(places, kind="stable")))
        sizes = np.bincount(places, minlength=BUCKETS)
    return block, sizes


def rows_of(block: pa.RecordBatch, start: int, count: int) -> pa.RecordBatch:
    """Return a slice of a block with the sizes of its buckets."""
    part = block.slice(start, count)
    sizes = sizes_of(block)
    if sizes is None or part.num_rows == block.num_rows:
        return part
    ends = np.clip(np.cumsum(sizes) - start, 0, part.num_rows)
    return with_sizes(part, np.diff(ends, prepend=0))


def filtered(block: pa.RecordBatch, is_kept: NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the selected rows of a block with the sizes of their buckets."""
    part = block.filter(pa.array(is_kept))
    sizes = sizes_of(block)
    if sizes is None:
        return part
    of_rows = np.repeat(np.arange(BUCKETS), sizes)
    return with_sizes(part, np.bincount(of_rows[is_kept], minlength=BUCKETS))


def by_bucket(blocks: Sequence[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], Sizes] | None:
    """Return slices of blocks in bucket order, None if a block is not in bucket order."""
    found = []
    for block in blocks:
        sizes = sizes_of(block)
        if sizes is None:
            return None
        found.append(sizes)
    starts = [np.cumsum(sizes) - sizes for sizes in found]
    parts = [
        block.slice(int(first[bucket]), int(sizes[bucket]))
        for bucket in range(BUCKETS)
        for block, first, sizes in zip(blocks, starts, found, strict=True)
        if sizes[bucket]
    ]
    return parts, np.sum(found, axis=0)


def ranges(sizes: Sizes) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of each bucket."""
    start = 0
    for size in sizes.tolist():
        yield start, size
        start += size
