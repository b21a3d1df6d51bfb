"""The timeout index: keys by the time at which they are due, so that no scan looks for them.

An entry is eight bytes of time and the key. A key enters the index only if it is not there, or is
due earlier than it is there: so a key that is touched again and again is not moved each time. An
entry may stand too early and never too late; who walks the index looks into the record, and moves
what is not due yet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from checkpoint.state_store.records import (
    are_plain_records,
    indexed_ms_of,
    times_of,
    times_of_all,
)

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
    """Return the entries of the keys of some records: of those that have a timeout."""
    if are_plain_records(records):
        return []
    times = zip(keys, map(indexed_ms_of, records), strict=True)
    return [index_entry(time_ms, key) for key, time_ms in times if time_ms is not None]


def index_stop(until_ms: int) -> bytes:
    """Return where the entries before a time end."""
    return _TIME.pack(min(max(until_ms, 0), MAX_TIME_MS))


def split_entry(entry: bytes) -> tuple[int, bytes]:
    """Return time and encoded key of an entry."""
    return _TIME.unpack_from(entry)[0], entry[TIME_BYTES:]


def require_timeout_ms(timeout_ms: int) -> int:
    """Return *timeout_ms* if a key can be due then. Raises ValueError."""
    if type(timeout_ms) is int and 0 <= timeout_ms <= MAX_TIME_MS:
        return timeout_ms
    raise ValueError(
        f"timeout of {timeout_ms!r} ms must be an int from 0 to {MAX_TIME_MS}; None is no timeout"
    )


def require_timeouts_ms(timeouts_ms: Sequence[int]) -> None:
    """Raise as :func:`require_timeout_ms` does if one of *timeouts_ms* is wrong."""
    are_ints = set(map(type, timeouts_ms)) <= {int}
    if not are_ints or not 0 <= min(timeouts_ms, default=0) <= max(timeouts_ms, default=0):
        for timeout_ms in timeouts_ms:
            require_timeout_ms(timeout_ms)
    require_timeout_ms(max(timeouts_ms, default=0))


class DueRecords(NamedTuple):
    """Keys that are due, in columns."""

    entries: list[bytes]
    raws: list[bytes]
    records: list[bytes]
    timeouts_ms: list[int]


def due_records(
    entries: list[bytes],
    records_of: Callable[[list[bytes]], list[bytes | None]],
    until_ms: int,
) -> tuple[DueRecords, list[tuple[bytes, bytes]]]:
    """Return the keys that are due, and those (key, record) that the index names too early."""
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
            continue  # put anew since the entries were listed
        if timeout_ms >= until_ms:
            too_early.append((raw, record))
            continue
        due.entries.append(entry)
        due.raws.append(raw)
        due.records.append(record)
        due.timeouts_ms.append(timeout_ms)
    return due, too_early
