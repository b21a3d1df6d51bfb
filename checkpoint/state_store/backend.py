"""The interface below the state store: versions of bytes in key order.

:class:`StateStore` converts Python keys and values; a :class:`StateBackend` stores bytes.
``checkpoint.testing.check_backend`` verifies an implementation.

**Checksums.** The checksum of a version is a sum over its records, in any order, so a writer
updates it without reading unchanged records. It is compared when a whole version is read anyway:
before a snapshot is published, and after a replica was built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar, overload
from zlib import crc32

from checkpoint.log.batch_records import PartitionCommit, StoreId, VersionId

_T = TypeVar("_T")


class Pairs(Sequence[tuple[bytes, bytes]]):
    """Pairs (key, record), created on access from two columns."""

    __slots__ = ("_keys", "_records")

    def __init__(self, keys: Sequence[bytes], records: Sequence[bytes]) -> None:
        self._keys = keys  # not keys: dict.update would take this for a mapping
        self._records = records

    def columns(self) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Return all keys, and all records."""
        return self._keys, self._records

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return zip(self._keys, self._records)  # noqa: B905 (as long as each other)

    @overload
    def __getitem__(self, at: int) -> tuple[bytes, bytes]: ...

    @overload
    def __getitem__(self, at: slice) -> Pairs: ...

    def __getitem__(self, at: int | slice) -> tuple[bytes, bytes] | Pairs:
        if isinstance(at, slice):
            return Pairs(self._keys[at], self._records[at])
        return self._keys[at], self._records[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass(frozen=True)
class Changes:
    """A commit's changes, or a part of them; lists are in key order, without duplicates.

    Args:
        puts: pairs (key, record).
        removes: keys that the parent version contains.
        index_puts: entries for the timeout index, eight bytes of time and a key; some may be in it
            already.
        index_removes: entries that leave the timeout index; some may be missing from it.
        count: number of keys after all changes of the commit.
        checksum: checksum of the version after the commit; None if unknown.
    """

    puts: Sequence[tuple[bytes, bytes]]
    removes: Sequence[bytes]
    index_puts: Sequence[bytes]
    index_removes: Sequence[bytes]
    count: int
    checksum: int | None = None

    @property
    def operation_count(self) -> int:
        """The number of changed keys and index entries."""
        parts = (self.puts, self.removes, self.index_puts, self.index_removes)
        return sum(map(len, parts))


class RawVersion(Protocol):
    """One version of a store, immutable while it is open: bytes in, bytes out.

    Iterators that were obtained before :meth:`close` must not be pulled after it.
    """

    @property
    def version_id(self) -> VersionId:
        """The id of this version."""
        ...

    @property
    def codec(self) -> Mapping[str, str]:
        """The encoding of keys and records, from the last commit; empty before the first."""
        ...

    @property
    def checksum(self) -> int | None:
        """The checksum from the last commit; 0 before the first."""
        ...

    def get(self, key: bytes, /) -> bytes | None:
        """Return the record of *key*, None if it is missing."""
        ...

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """Return the records of many keys, in their order."""
        ...

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over (key, record) in key order, from *start* up to before *stop*."""
        ...

    def scan_index(self, stop: bytes | None = None) -> Iterator[bytes]:
        """Iterate over the entries of the timeout index in order, up to before *stop*."""
        ...

    def count(self) -> int:
        """Return the number of keys, without a scan."""
        ...

    def size_bytes(self) -> int:
        """Return the approximate size of this version."""
        ...

    def close(self) -> None:
        """Release the version. May be called again."""
        ...


class StateBackend(Protocol):
    """All versions of all stores."""

    def open(self, store: StoreId, version_id: VersionId) -> RawVersion:
        """Open one version, which does not change until it is closed.

        Raises:
            CheckpointError: it was never committed, has been deleted, or is damaged.
        """
        ...

    def commit(
        self,
        store: StoreId,
        parent: VersionId,
        changes: Iterable[Changes],
        codec: Mapping[str, str],
    ) -> PartitionCommit:
        """Write the changes of one attempt, durably, under a name that is never reused.

        Any number of attempts may commit on one parent without affecting each other or *parent*;
        the commit record decides which one counts.

        Args:
            changes: at least one part, in key order overall; iterated once.
            codec: the encoding of keys and values, stored with the changes.

        Raises:
            CheckpointError: the changes were not, or possibly not, written.
        """
        ...


_CHUNK_PAIRS = 4096
_LIMIT = 1 << 64  # room for 2**32 records, more than a store can hold


class ChecksumMismatchError(Exception):
    """A version does not have the checksum that its history states."""


def records_checksum(keys: Iterable[bytes], records: Iterable[bytes]) -> int:
    """Return the checksum of records and their keys."""
    return sum(map(crc32, records, map(crc32, keys)))


def pairs_checksum(pairs: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the checksum of all pairs of a scan."""
    return sum(records_checksum(*zip(*chunk, strict=True)) for chunk in chunks(pairs, _CHUNK_PAIRS))


def first_checksum(version: RawVersion) -> int:
    """Return the checksum of a version; if it has none, compute it by reading all records."""
    checksum = version.checksum
    return pairs_checksum(version.scan()) if checksum is None else checksum


def moved_checksum(
    checksum: int,
    keys: Sequence[bytes],
    before: Sequence[bytes | None],
    after: Sequence[bytes | None],
) -> int:
    """Return a checksum after the records of some keys changed; None means no record."""
    changed = _present_checksum(keys, after) - _present_checksum(keys, before)
    return (checksum + changed) % _LIMIT  # negative if a damaged replica returned other records


def require_checksum(checksum: int | None, found: int) -> None:
    """Raise ChecksumMismatchError if checksums differ; None means unknown."""
    if checksum is not None and checksum != found:
        raise ChecksumMismatchError(f"the checksum of its records is {found}, not {checksum}")


def _present_checksum(keys: Sequence[bytes], records: Sequence[bytes | None]) -> int:
    if None in records:
        pairs = zip(keys, records, strict=True)
        return pairs_checksum((key, record) for key, record in pairs if record is not None)
    return records_checksum(keys, records)  # type: ignore[arg-type]


def chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield lists of at most *size* items."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
