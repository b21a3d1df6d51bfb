"""Which state store, and which content of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UID = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True)
class StoreId:
    """Which store: one partition of one named state of one operator of one stream.

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


@dataclass(frozen=True)
class Reference:
    """One exact content of a store, for ever.

    Args:
        version: commits that led to it; 0 is the empty store.
        uid: the attempt that committed it, in hexadecimal; empty for version 0.
    """

    version: int
    uid: str

    def __post_init__(self) -> None:
        if self.version < 0:
            raise ValueError(f"version {self.version} of a state store must not be negative")
        if (self.version == 0) != (self.uid == "") or (self.uid and not _UID.fullmatch(self.uid)):
            raise ValueError(
                f"uid {self.uid!r} of version {self.version} must be 8 to 64 hexadecimal digits, "
                "and empty for version 0"
            )


EMPTY = Reference(0, "")
"""The content of every store before its first commit."""
