"""Records: the bytes of a value, and behind them what else belongs to its key.

A record without extras is the pickle of its value and ends with a dot. One with extras is::

    pickle | whole key | original key | I its length | I its length | Q timeout | Q indexed | flags

of which only the parts are there that the flags name. Unpickling stops at the end of the pickle, so
the extras cost nothing where nobody asks for them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from checkpoint.errors import CheckpointError

PLAIN_END = 0x2E  # the dot that ends every pickle

_TIMEOUT, _WHOLE, _ORIGINAL = 1, 2, 4
_KNOWN = _TIMEOUT | _WHOLE | _ORIGINAL
_TIMES = struct.Struct("<QQ")
_LENGTH = struct.Struct("<I")
_TIMED_END = bytes((_TIMEOUT,))
_TIMED_BYTES = 1 + _TIMES.size + 1  # from the end of the value to that of the record
_SMALL_BYTES = 1000
_ONE_DOT, _ONE_TIMEOUT = {PLAIN_END}, {_TIMEOUT}
_pack_times = struct.Struct("<QQB").pack
_last = itemgetter(-1)


class DamagedRecordError(CheckpointError, ValueError):
    """Bytes that are no record."""


class Extras(NamedTuple):
    """What a record holds beside its value.

    Args:
        timeout_ms: when the key is due, None for never.
        indexed_ms: the time at which the timeout index names it, at most *timeout_ms*.
        whole: encoding of the key, where that is cut in the key itself.
        original: the key as it was put, encoded as a value, where decoding gives only an equal one.
    """

    timeout_ms: int | None = None
    indexed_ms: int | None = None
    whole: bytes | None = None
    original: bytes | None = None


NO_EXTRAS = Extras()


def timed_record(value: bytes, timeout_ms: int, indexed_ms: int) -> bytes:
    """Return :func:`with_extras` of a timeout and nothing else, in less time."""
    return value + _TIMES.pack(timeout_ms, indexed_ms) + _TIMED_END


def timed_records(values: Iterable[bytes], timeouts_ms: Iterable[int]) -> list[bytes]:
    """Return records of values whose keys the timeout index names at the time they are due."""
    pack = _pack_times
    return [
        value + pack(timeout_ms, timeout_ms, _TIMEOUT)
        for value, timeout_ms in zip(values, timeouts_ms, strict=True)
    ]


def is_timed(record: bytes) -> bool:
    """Whether a record holds a timeout beside its value, and nothing else."""
    if record[-1] != _TIMEOUT or len(record) <= _TIMED_BYTES:
        return False
    return record[-_TIMED_BYTES] == PLAIN_END


def are_plain_records(records: Iterable[bytes]) -> bool:
    """Whether records hold their values and nothing else."""
    return set(map(_last, records)) <= _ONE_DOT


def times_of(record: bytes) -> tuple[int | None, int | None]:
    """Return when the key of a record is due, and at which time the timeout index names it."""
    if is_timed(record):
        return _TIMES.unpack_from(record, len(record) - 1 - _TIMES.size)
    extras = extras_of(record)
    return extras.timeout_ms, extras.indexed_ms


def times_of_all(
    records: Sequence[bytes | None],
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return :func:`times_of` of all, in columns; None unless all are timed, small, of one size."""
    there = [record for record in records if record is not None]
    sizes = set(map(len, there))
    size = sizes.pop() if len(sizes) == 1 else 0
    if len(there) < len(records) or not _TIMED_BYTES < size <= _SMALL_BYTES:
        return None
    dots, timeouts, indexed, flags = zip(*_timed_layout(size)(b"".join(there)), strict=True)
    if set(dots) != _ONE_DOT or set(flags) != _ONE_TIMEOUT:
        return None
    return timeouts, indexed


@lru_cache(maxsize=64)
def _timed_layout(size: int) -> Callable[[bytes], Iterator[tuple[int, ...]]]:
    """Return what reads the dot, the times and the flags of records of a size."""
    return struct.Struct(f"<{size - _TIMED_BYTES}xBQQB").iter_unpack


def indexed_ms_of(record: bytes) -> int | None:
    """Return at which time the timeout index names the key of a record, None if it does not."""
    return times_of(record)[1]


def with_extras(value: bytes, extras: Extras) -> bytes:
    """Return a record of an encoded value."""
    flags = 0
    parts, lengths = [value], []
    for part, flag in ((extras.whole, _WHOLE), (extras.original, _ORIGINAL)):
        if part is not None:
            flags |= flag
            parts.append(part)
            lengths.append(_LENGTH.pack(len(part)))
    parts += lengths
    if extras.timeout_ms is not None and extras.indexed_ms is not None:
        flags |= _TIMEOUT
        parts.append(_TIMES.pack(extras.timeout_ms, extras.indexed_ms))
    if not flags:
        return value
    parts.append(bytes((flags,)))
    return b"".join(parts)


def extras_of(record: bytes) -> Extras:
    """Return what a record holds beside its value. Raises DamagedRecordError."""
    return NO_EXTRAS if record[-1:] == b"." else split_record(record)[1]


def split_record(record: bytes) -> tuple[bytes, Extras]:
    """Return the encoded value of a record, and the extras."""
    if record[-1:] == b".":
        return record, NO_EXTRAS
    try:
        return _split(record)
    except (struct.error, IndexError) as error:
        raise DamagedRecordError(f"a record of {len(record)} bytes is damaged: {error}") from error


def _split(record: bytes) -> tuple[bytes, Extras]:
    flags, end = record[-1], len(record) - 1
    if not flags or flags & ~_KNOWN:
        raise struct.error(f"it ends with flags {flags:#x}")
    timeout_ms = indexed_ms = whole = original = None
    if flags & _TIMEOUT:
        end -= _TIMES.size
        timeout_ms, indexed_ms = _TIMES.unpack_from(record, _at(end))
    lengths = []
    for flag in (_ORIGINAL, _WHOLE):
        if flags & flag:
            end -= _LENGTH.size
            lengths.append(_LENGTH.unpack_from(record, _at(end))[0])
    if flags & _ORIGINAL:
        original = record[_at(end - lengths[0]) : end]
        end -= lengths[0]
    if flags & _WHOLE:
        whole = record[_at(end - lengths[-1]) : end]
        end -= lengths[-1]
    if record[end - 1] != PLAIN_END:
        raise struct.error(f"no value ends after {end} bytes")
    return record[:end], Extras(timeout_ms, indexed_ms, whole, original)


def _at(position: int) -> int:
    # Positions count from the end of a record elsewhere; here a negative one is past its beginning.
    if position <= 0:
        raise IndexError(f"extras are longer than the record by {1 - position} bytes")
    return position
