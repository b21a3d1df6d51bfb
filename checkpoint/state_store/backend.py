"""Where values meet bytes: what a state store needs of what lies below it, and nothing else.

Above are keys and values of Python (:mod:`checkpoint.state_store.store`), below are bytes in key
order, in memory or in files. Whatever provides :class:`StateBackend` can hold a state store;
``checkpoint.testing.check_backend`` proves that it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, overload
from zlib import crc32

from checkpoint.log.version_records import PartitionCommit, StoreId, VersionId


class Pairs(Sequence[tuple[bytes, bytes]]):
    """Pairs (key, record) that are made when they are asked for, out of two columns."""

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
    """Changes of one commit, or a part of them; every list is in key order, no key is there twice.

    Args:
        puts: pairs (key, record).
        removes: keys; each of them was in the parent version.
        index_puts: entries for the timeout index, eight bytes of time and a key; some of them may
            be there already.
        index_removes: entries that leave the timeout index; some may not be there.
        count: keys of the store after all changes of the commit.
        checksum: checksum of the version after them; None: whoever made them does not know.
    """

    puts: Sequence[tuple[bytes, bytes]]
    removes: Sequence[bytes]
    index_puts: Sequence[bytes]
    index_removes: Sequence[bytes]
    count: int
    checksum: int | None = None

    @property
    def operation_count(self) -> int:
        """How many keys and index entries are changed."""
        parts = (self.puts, self.removes, self.index_puts, self.index_removes)
        return sum(map(len, parts))


class RawVersion(Protocol):
    """One version of a store, immutable while it is open: bytes in, bytes out.

    Iterators that were obtained before :meth:`close` must not be pulled after it.
    """

    @property
    def version_id(self) -> VersionId:
        """The version that this is."""
        ...

    @property
    def codec(self) -> Mapping[str, str]:
        """How keys and records are encoded, as the last commit said; empty before the first."""
        ...

    @property
    def checksum(self) -> int | None:
        """The checksum that the last commit said; 0 before the first."""
        ...

    def get(self, key: bytes, /) -> bytes | None:
        """Return the record of *key*, None if there is none."""
        ...

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """Return the records of many keys, in their order, in less time than one by one."""
        ...

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over (key, record) in key order, from *start* up to before *stop*."""
        ...

    def scan_index(self, stop: bytes | None = None) -> Iterator[bytes]:
        """Iterate over the entries of the timeout index in order, up to before *stop*."""
        ...

    def count(self) -> int:
        """Return how many keys there are, without counting them."""
        ...

    def size_bytes(self) -> int:
        """Return about how much room this version takes."""
        ...

    def close(self) -> None:
        """Give the version back; again is fine."""
        ...


class StateBackend(Protocol):
    """All versions of all stores."""

    def open(self, store: StoreId, version_id: VersionId) -> RawVersion:
        """Open one version, which stays as it is until it is closed.

        Raises:
            CheckpointError: it cannot be had: never committed, no longer kept, or damaged.
        """
        ...

    def commit(
        self,
        store: StoreId,
        parent: VersionId,
        changes: Iterable[Changes],
        codec: Mapping[str, str],
    ) -> PartitionCommit:
        """Write the changes of one attempt, durably, under a name that is new for ever.

        Any number of attempts may commit on one parent; none of them disturbs another, and which of
        them counts is decided by who writes the commit record. Nothing of *parent* changes.

        Args:
            changes: at least one part, in key order overall; pulled once.
            codec: how keys and values are encoded; kept beside the changes.

        Raises:
            CheckpointError: it was not, or perhaps not, written.
        """
        ...


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
