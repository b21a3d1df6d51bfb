"""Stored state as a commit record names it: one content, and its file, for each partition."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from checkpoint.json_fields import (
    list_field,
    plain_fields,
    require_digest,
    require_not_negative,
    require_object,
    text_field,
)
from checkpoint.names import require_name

_UID = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True)
class StoredPartition:
    """One partition of a store after a batch: what a task reported.

    Args:
        partition: number of the partition.
        version: commits that led to the content; 0 if there was none yet.
        uid: uid of the attempt whose commit counts, empty for version 0.
        file: name of its changelog, empty for version 0.
        size_bytes: size of that file.
        digest: its digest (:class:`checkpoint.framing.FrameTotals`), empty for version 0.
        count: keys of the content.
    """

    partition: int
    version: int
    uid: str
    file: str
    size_bytes: int
    digest: str
    count: int

    def __post_init__(self) -> None:
        require_not_negative(f"{self}", self.partition, self.version, self.size_bytes, self.count)
        if self.version == 0:
            if self.uid or self.file or self.digest or self.size_bytes or self.count:
                raise ValueError(f"version 0 of stored state is empty and has no file: {self}")
            return
        require_name(self.file)
        if not _UID.fullmatch(self.uid):
            raise ValueError(
                f"uid {self.uid!r} of {self.file} must be a uid of 8 to 64 hexadecimal digits"
            )
        require_digest(self.digest, self.file)


@dataclass(frozen=True)
class StoreCommit:
    """The state of one store of an operator after a batch.

    Args:
        operator_uid: uid of the operator.
        store: name of the store among those of the operator.
        partitioner: name of the function that chose the partition of each key.
        partitions: one for each of the partitions 0 to n-1, kept in that order.

    Raises:
        ValueError: a partition is missing or there twice, or two of them name one file.
    """

    operator_uid: str
    store: str
    partitioner: str
    partitions: tuple[StoredPartition, ...]

    def __post_init__(self) -> None:
        if not self.operator_uid or not self.store:
            raise ValueError("operator uid and name of a store must not be empty")
        ordered = tuple(sorted(self.partitions, key=lambda stored: stored.partition))
        numbers = [stored.partition for stored in ordered]
        if numbers != list(range(len(numbers))):
            raise ValueError(
                f"store {self.store!r} of {self.operator_uid!r} must have each partition from 0 "
                f"on once, got {numbers}"
            )
        names = Counter(stored.file for stored in ordered if stored.version)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f"changelog {twice[0]} is named for more than one partition")
        object.__setattr__(self, "partitions", ordered)

    def file_names(self) -> frozenset[str]:
        """Names of the changelogs."""
        return frozenset(stored.file for stored in self.partitions if stored.version)

    def to_json(self) -> dict[str, object]:
        """Return these facts as a JSON object."""
        return {
            "operator_uid": self.operator_uid,
            "store": self.store,
            "partitioner": self.partitioner,
            "partitions": [dataclasses.asdict(stored) for stored in self.partitions],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> StoreCommit:
        """Read what :meth:`to_json` returned.

        Raises:
            ValueError: a field is missing, of another type, or impossible.
        """
        stored = (require_object(item, "partition") for item in list_field(data, "partitions"))
        return cls(
            operator_uid=text_field(data, "operator_uid"),
            store=text_field(data, "store"),
            partitioner=text_field(data, "partitioner"),
            partitions=tuple(
                StoredPartition(**plain_fields(StoredPartition, item)) for item in stored
            ),
        )
