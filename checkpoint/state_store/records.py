"""Records: the encoded value of a key, followed by its timeout and further parts of its key.

A record without extras is the encoded value and ends with a dot. One with extras is::

    value | whole key | original key | I its length | I its length | Q timeout | Q indexed | flags

The flags name the parts that are present. Decoding stops at the end of the value, so extras cost
nothing where they are not needed.

**The timeout index** finds due keys without a scan. An entry is eight bytes of time and the key. A
key enters the index only if it is not in it, or is due earlier than its entry: a key that is
touched repeatedly is not moved each time. So an entry may be too early and never too late; the
reader of the index checks the record, and moves a key that is not due yet.
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
    """Bytes that are not a record."""


class Extras(NamedTuple):
    """The parts of a record after its value.

    Args:
        timeout_ms: when the key is due; None if never.
        indexed_ms: the time of its entry in the timeout index, at most *timeout_ms*.
        whole: the encoded key, if the stored key is shortened.
        original: the key, encoded as a value, if decoding it gives only an equal one.
    """

    timeout_ms: int | None = None
    indexed_ms: int | None = None
    whole: bytes | None = None
    original: bytes | None = None


NO_EXTRAS = Extras()


def timed_record(value: bytes, timeout_ms: int, indexed_ms: int) -> bytes:
    """Return a record whose only extra is a timeout; faster than :func:`with_extras`."""
    return value + _TIMES.pack(timeout_ms, indexed_ms) + _TIMED_END


def timed_records(values: Iterable[bytes], timeouts_ms: Iterable[int]) -> list[bytes]:
    """Return records whose index entries have the time of the timeout."""
    pack = _pack_times
    return [
        value + pack(timeout_ms, timeout_ms, _TIMEOUT)
        for value, timeout_ms in zip(values, timeouts_ms, strict=True)
    ]


def is_timed(record: bytes) -> bool:
    """Return whether the only extra of a record is a timeout."""
    if record[-1] != _TIMEOUT or len(record) <= _TIMED_BYTES:
        return False
    return record[-_TIMED_BYTES] == PLAIN_END


def are_plain_records(records: Iterable[bytes]) -> bool:
    """Return whether records have no extras."""
    return set(map(_last, records)) <= _ONE_DOT


def times_of(record: bytes) -> tuple[int | None, int | None]:
    """Return when the key of a record is due, and the time of its index entry."""
    if is_timed(record):
        return _TIMES.unpack_from(record, len(record) - 1 - _TIMES.size)
    extras = extras_of(record)
    return extras.timeout_ms, extras.indexed_ms


def times_of_all(
    records: Sequence[bytes | None],
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return :func:`times_of` of all, in columns; None unless all are timed and of one size."""
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
    """Return a reader of the dot, the times and the flags of records of one size."""
    return struct.Struct(f"<{size - _TIMED_BYTES}xBQQB").iter_unpack


def indexed_ms_of(record: bytes) -> int | None:
    """Return the time of the index entry of a record, None if it has no entry."""
    return times_of(record)[1]


def with_extras(value: bytes, extras: Extras) -> bytes:
    """Return a record with an encoded value and extras."""
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
    """Return the extras of a record. Raises DamagedRecordError."""
    return NO_EXTRAS if record[-1:] == b"." else split_record(record)[1]


def split_record(record: bytes) -> tuple[bytes, Extras]:
    """Return the encoded value and the extras of a record."""
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
    # Python would count a negative position from the end.
    if position <= 0:
        raise IndexError(f"extras are longer than the record by {1 - position} bytes")
    return position


_TIME = struct.Struct(">Q")
TIME_BYTES = _TIME.size
MAX_TIME_MS = (1 << 63) - 1


def index_entry(time_ms: int, key: bytes) -> bytes:
    """Return the entry of an encoded key."""
    return _TIME.pack(time_ms) + key


def index_entries(times_ms: Iterable[int], keys: Iterable[bytes]) -> list[bytes]:
    """Return :func:`index_entry` of each key."""
    pack = _TIME.pack
    return [pack(time_ms) + key for time_ms, key in zip(times_ms, keys, strict=True)]


def index_entries_of(keys: Sequence[bytes], records: Sequence[bytes]) -> list[bytes]:
    """Return the index entries of the records that have a timeout."""
    if are_plain_records(records):
        return []
    times = zip(keys, map(indexed_ms_of, records), strict=True)
    return [index_entry(time_ms, key) for key, time_ms in times if time_ms is not None]


def index_stop(until_ms: int) -> bytes:
    """Return the end of the entries before a time."""
    return _TIME.pack(min(max(until_ms, 0), MAX_TIME_MS))


def split_entry(entry: bytes) -> tuple[int, bytes]:
    """Return time and encoded key of an entry."""
    return _TIME.unpack_from(entry)[0], entry[TIME_BYTES:]


def require_timeout_ms(timeout_ms: int) -> int:
    """Return *timeout_ms* if a key can be due then. Raises ValueError."""
    if type(timeout_ms) is int and 0 <= timeout_ms <= MAX_TIME_MS:
        return timeout_ms
    raise ValueError(
        f"timeout of {timeout_ms!r} ms must be an int from 0 to {MAX_TIME_MS}, or None"
    )


def require_timeouts_ms(timeouts_ms: Sequence[int]) -> None:
    """Raise as :func:`require_timeout_ms` does if one of *timeouts_ms* is wrong."""
    are_ints = set(map(type, timeouts_ms)) <= {int}
    if not are_ints or not 0 <= min(timeouts_ms, default=0) <= max(timeouts_ms, default=0):
        for timeout_ms in timeouts_ms:
            require_timeout_ms(timeout_ms)
    require_timeout_ms(max(timeouts_ms, default=0))


class DueRecords(NamedTuple):
    """Due keys, in columns."""

    entries: list[bytes]
    raws: list[bytes]
    records: list[bytes]
    timeouts_ms: list[int]


def due_records(
    entries: list[bytes],
    records_of: Callable[[list[bytes]], list[bytes | None]],
    until_ms: int,
) -> tuple[DueRecords, list[tuple[bytes, bytes]]]:
    """Return the due keys, and pairs (key, record) whose index entry is too early."""
    raws = [entry[TIME_BYTES:] for entry in entries]
    records = records_of(raws)
    named = [entry[:TIME_BYTES] for entry in entries]
    times = times_of_all(records)
    if times is not None:
        timeouts_ms, indexed = times
        if list(map(_TIME.pack, indexed)) == named and max(timeouts_ms) < until_ms:
            found = DueRecords(entries, raws, records, list(timeouts_ms))  # type: ignore[arg-type]
            return found, []
    due, too_early = DueRecords([], [], [], []), []
    for entry, raw, record in zip(entries, raws, records, strict=True):
        named_ms, _ = split_entry(entry)
        if record is None:
            continue
        timeout_ms, indexed_ms = times_of(record)
        if timeout_ms is None or indexed_ms != named_ms:
            continue  # put again after the entries were listed
        if timeout_ms >= until_ms:
            too_early.append((raw, record))
            continue
        due.entries.append(entry)
        due.raws.append(raw)
        due.records.append(record)
        due.timeouts_ms.append(timeout_ms)
    return due, too_early
