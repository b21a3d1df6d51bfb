"""State stores in commit records: the version and the changelog of each partition."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from checkpoint.storage.framing import FileRef
from checkpoint.storage.json_records import Count, JsonRecord, Text

_UID = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True)
class StoreId:
    """One partition of one named store of an operator.

    Args:
        stream_id: id of the stream, the same over all its restarts.
        operator_uid: uid of the stateful operator.
        store: name of the store among those of the operator.
        partition: number of the partition, from 0.
        partition_count: partitions of that state.
    """

    stream_id: str
    operator_uid: str
    store: str
    partition: int
    partition_count: int

    def __post_init__(self) -> None:
        for field in ("stream_id", "operator_uid", "store"):
            if not getattr(self, field):
                raise ValueError(f"{field} of a state store is empty; give it a name")
        if not 0 <= self.partition < self.partition_count:
            raise ValueError(
                f"partition {self.partition} of store {self.store!r} must be 0 to "
                f"{self.partition_count - 1}, as it has {self.partition_count}"
            )


class VersionId(JsonRecord, frozen=True, gc=False):
    """One immutable content of a store.

    Args:
        version: the number of commits that led to it; 0 is the empty store.
        uid: the attempt that committed it, in hexadecimal; empty for version 0.
    """

    version: int
    uid: str

    def __post_init__(self) -> None:
        if self.version < 0:
            raise ValueError(f"version {self.version} of a state store must not be negative")
        if self.uid != "" if self.version == 0 else not _UID.fullmatch(self.uid):
            raise ValueError(
                f"uid {self.uid!r} of version {self.version} must be 8 to 64 hexadecimal digits, "
                "and empty for version 0"
            )


EMPTY = VersionId(0, "")
"""The content of every store before its first commit."""


class PartitionCommit(JsonRecord, frozen=True, gc=False):
    """One partition of a store after a commit, with its number of keys.

    *file* is the changelog, None for the empty store.
    """

    partition: Count
    version_id: VersionId
    file: FileRef | None
    count: Count

    def __post_init__(self) -> None:
        is_empty = self.version_id.version == 0
        if is_empty is not (self.file is None) or (is_empty and self.count):
            raise ValueError(f"version 0 of a store, and only it, is empty without a file: {self}")

    @property
    def size_bytes(self) -> int:
        """Size of the changelog, or 0."""
        return 0 if self.file is None else self.file.size_bytes


class StoreCommit(JsonRecord, frozen=True):
    """The state of one store of an operator after a batch.

    Args:
        operator_uid: uid of the operator.
        store: name of the store among those of the operator.
        partitioner: name of the function that chose the partition of each key.
        partitions: the partitions from 0 to n-1, in order.
    """

    operator_uid: Text
    store: Text
    partitioner: str
    partitions: tuple[PartitionCommit, ...]

    def __post_init__(self) -> None:
        numbers = [stored.partition for stored in self.partitions]
        if numbers != list(range(len(numbers))):
            raise ValueError(
                f"store {self.store!r} of {self.operator_uid!r} must have each partition from 0 "
                f"on once, got {numbers}"
            )
        require_distinct(self.files())

    def files(self) -> Iterator[FileRef]:
        """Yield the changelogs."""
        return (stored.file for stored in self.partitions if stored.file is not None)

    def store_id(self, stream_id: str, partition: int) -> StoreId:
        """Return the id of the store of a partition."""
        count = len(self.partitions)
        return StoreId(stream_id, self.operator_uid, self.store, partition, count)


def require_distinct(files: Iterator[FileRef]) -> None:
    """Raise ValueError if two partitions name one file."""
    names = Counter(ref.name for ref in files)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(f"file {twice[0]} is named for more than one partition")
