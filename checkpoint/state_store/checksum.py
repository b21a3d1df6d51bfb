"""The checksum of a version: what its records add up to, in any order.

A writer carries it from version to version without looking at records that it does not change. So
it knows what a version must be, whatever became of a replica. It is compared where a whole version
is read anyway: before a snapshot is published, and after a replica was built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from zlib import crc32

from checkpoint.state_store.backend import RawVersion

_CHUNK_PAIRS = 4096
_LIMIT = 1 << 64  # of 2**32 records, and more than there can be


class ChecksumMismatchError(Exception):
    """A version is not what its history says."""


def records_checksum(keys: Iterable[bytes], records: Iterable[bytes]) -> int:
    """Return what records of these keys add up to."""
    return sum(map(crc32, records, map(crc32, keys)))


def pairs_checksum(pairs: Iterable[tuple[bytes, bytes]]) -> int:
    """Return what all records of a scan add up to."""
    return sum(records_checksum(*zip(*chunk, strict=True)) for chunk in _chunks(pairs))


def first_checksum(version: RawVersion) -> int:
    """Return the checksum of a version, that of one without by reading all of it, once."""
    checksum = version.checksum
    return pairs_checksum(version.scan()) if checksum is None else checksum


def moved_checksum(
    checksum: int,
    keys: Sequence[bytes],
    before: Sequence[bytes | None],
    after: Sequence[bytes | None],
) -> int:
    """Return what a checksum becomes when the records of some keys change; None is no record."""
    changed = _present_checksum(keys, after) - _present_checksum(keys, before)
    return (checksum + changed) % _LIMIT  # negative where something was read that is not in it


def require_checksum(checksum: int | None, found: int) -> None:
    """Raise ChecksumMismatchError if a version is not what its history says (None: nothing)."""
    if checksum is not None and checksum != found:
        raise ChecksumMismatchError(f"its records add up to {found}, and must to {checksum}")


def _present_checksum(keys: Sequence[bytes], records: Sequence[bytes | None]) -> int:
    if None in records:
        pairs = zip(keys, records, strict=True)
        return pairs_checksum((key, record) for key, record in pairs if record is not None)
    return records_checksum(keys, records)  # type: ignore[arg-type]


def _chunks(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    rest = iter(pairs)
    while chunk := list(islice(rest, _CHUNK_PAIRS)):
        yield chunk
