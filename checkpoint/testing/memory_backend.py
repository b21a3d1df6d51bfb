"""Versions in memory: for tests, and the model that every other implementation is compared with."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from checkpoint.errors import CorruptCheckpointError
from checkpoint.framing import FileRef
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.checksum import pairs_checksum, require_checksum
from checkpoint.state_store.file_names import StoredKind, file_name
from checkpoint.version_records import EMPTY, Reference, StoredPartition, StoreId


@dataclass(frozen=True)
class _Content:
    """Everything that a store holds; never changed."""

    records: Mapping[bytes, bytes]
    index: frozenset[bytes]
    codec: Mapping[str, str]
    checksum: int | None

    @cached_property
    def keys(self) -> list[bytes]:
        return sorted(self.records)

    @cached_property
    def entries(self) -> list[bytes]:
        return sorted(self.index)


_NOTHING = _Content({}, frozenset(), {}, 0)


class MemoryVersion:
    """One version in memory."""

    def __init__(self, reference: Reference, content: _Content) -> None:
        self.reference = reference
        self.codec = content.codec
        self.checksum = content.checksum
        self.get = content.records.get
        self._content = content

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """Return the records of many keys."""
        return list(map(self.get, keys))

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over (key, record) in key order, from *start* up to before *stop*."""
        keys, records = self._content.keys, self._content.records
        end = len(keys) if stop is None else bisect_left(keys, stop)
        for position in range(bisect_left(keys, start), end):
            yield keys[position], records[keys[position]]

    def scan_index(self, stop: bytes | None = None) -> Iterator[bytes]:
        """Iterate over the entries of the timeout index in order, up to before *stop*."""
        entries = self._content.entries
        end = len(entries) if stop is None else bisect_left(entries, stop)
        for position in range(end):
            yield entries[position]

    def count(self) -> int:
        """Return how many keys there are."""
        return len(self._content.records)

    def size_bytes(self) -> int:
        """Return the bytes of all keys, records and entries."""
        pairs = sum(len(key) + len(record) for key, record in self._content.records.items())
        return pairs + sum(map(len, self._content.index))

    def close(self) -> None:
        """Give the version back, which is nothing to do."""


class MemoryBackend:
    """Versions in memory. Every version stays until it is forgotten, and each is a whole copy."""

    def __init__(self) -> None:
        self._contents: dict[tuple[StoreId, Reference], _Content] = {}
        self._attempts = 0

    def open(self, store: StoreId, reference: Reference) -> MemoryVersion:
        """Open one version.

        Raises:
            CorruptCheckpointError: it was never committed, or was forgotten.
        """
        return MemoryVersion(reference, self._content(store, reference))

    def commit(
        self,
        store: StoreId,
        parent: Reference,
        changes: Iterable[Changes],
        codec: Mapping[str, str],
    ) -> StoredPartition:
        """Keep a changed copy of a version under a reference that is new."""
        before = self._content(store, parent)
        records, index = dict(before.records), set(before.index)
        digest = hashlib.blake2b(digest_size=16)
        size_bytes = operations = count = 0
        checksum = None
        for part in changes:
            records.update(part.puts)
            for key in part.removes:
                del records[key]
            index.difference_update(part.index_removes)
            index.update(part.index_puts)
            written = repr((part.puts, part.removes, part.index_puts, part.index_removes))
            digest.update(written.encode())
            size_bytes += len(written)
            operations += part.operation_count
            count, checksum = part.count, part.checksum
        if count != len(records):
            raise ValueError(f"changes of {count} keys make a store of {len(records)} keys")
        require_checksum(checksum, pairs_checksum(records.items()))
        self._attempts += 1
        reference = Reference(parent.version + 1, f"{self._attempts:016x}")
        self._contents[store, reference] = _Content(
            records, frozenset(index), dict(codec), checksum
        )
        name = file_name(store, reference, StoredKind.CHANGES)  # if there were files
        ref = FileRef(name, size_bytes, digest.hexdigest(), operations)
        return StoredPartition(store.partition, reference, ref, count)

    def references(self, store: StoreId) -> list[Reference]:
        """Return the versions of a store that are kept, by version, but the empty one."""
        kept = [reference for owner, reference in self._contents if owner == store]
        return sorted(kept, key=lambda reference: (reference.version, reference.uid))

    def forget(self, store: StoreId, reference: Reference) -> None:
        """Keep a version no longer."""
        self._contents.pop((store, reference), None)

    def _content(self, store: StoreId, reference: Reference) -> _Content:
        if reference == EMPTY:
            return _NOTHING
        found = self._contents.get((store, reference))
        if found is None:
            kept = [kept.version for kept in self.references(store)]
            raise CorruptCheckpointError(
                f"memory of store {store.store!r} of operator {store.operator_uid!r}, partition "
                f"{store.partition}",
                f"does not hold version {reference.version} of attempt {reference.uid}",
                f"one of the versions {kept}",
                "open one that was committed there and not forgotten",
            )
        return found
