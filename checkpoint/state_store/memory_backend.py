"""A backend in memory: the model that other implementations are compared with in tests.

It also serves stores that end with their task, whose writer never commits.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from checkpoint.errors import CorruptCheckpointError, Damage
from checkpoint.log.batch_records import EMPTY, PartitionCommit, StoreId, VersionId
from checkpoint.state_store.backend import Changes, pairs_checksum, require_checksum
from checkpoint.state_store.store_files import StoredKind, file_name
from checkpoint.storage.framing import FileRef


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

    def __init__(self, version_id: VersionId, content: _Content) -> None:
        self.version_id = version_id
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
        self._contents: dict[tuple[StoreId, VersionId], _Content] = {}
        self._attempts = 0

    def open(self, store: StoreId, version_id: VersionId) -> MemoryVersion:
        """Open one version.

        Raises:
            CorruptCheckpointError: it was never committed, or was forgotten.
        """
        return MemoryVersion(version_id, self._content(store, version_id))

    def commit(
        self,
        store: StoreId,
        parent: VersionId,
        changes: Iterable[Changes],
        codec: Mapping[str, str],
    ) -> PartitionCommit:
        """Keep a changed copy of a version under a version that is new."""
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
        version_id = VersionId(parent.version + 1, f"{self._attempts:016x}")
        self._contents[store, version_id] = _Content(
            records, frozenset(index), dict(codec), checksum
        )
        name = file_name(store, version_id, StoredKind.CHANGES)  # if there were files
        ref = FileRef(name, size_bytes, digest.hexdigest(), operations)
        return PartitionCommit(store.partition, version_id, ref, count)

    def version_ids(self, store: StoreId) -> list[VersionId]:
        """Return the versions of a store that are kept, by version, but the empty one."""
        kept = [version_id for owner, version_id in self._contents if owner == store]
        return sorted(kept, key=lambda version_id: (version_id.version, version_id.uid))

    def forget(self, store: StoreId, version_id: VersionId) -> None:
        """Keep a version no longer."""
        self._contents.pop((store, version_id), None)

    def _content(self, store: StoreId, version_id: VersionId) -> _Content:
        if version_id == EMPTY:
            return _NOTHING
        found = self._contents.get((store, version_id))
        if found is None:
            kept = [kept.version for kept in self.version_ids(store)]
            raise CorruptCheckpointError(
                f"memory of store {store.store!r} of operator {store.operator_uid!r}, partition "
                f"{store.partition}",
                f"does not hold version {version_id.version} of attempt {version_id.uid}",
                f"one of the versions {kept}",
                "open one that was committed there and not forgotten",
                Damage.MISSING,
            )
        return found
