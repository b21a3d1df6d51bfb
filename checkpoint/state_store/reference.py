"""Which state store, and which content of it."""

from __future__ import annotations

import enum
import re
import secrets
from dataclasses import dataclass

from checkpoint.names import uid_part

STORE_PREFIX = "stores/"

_UID = re.compile(r"[0-9a-f]{8,64}")
_FILE_NAME = re.compile(
    r"(stores/[^/]+/[^/]+/p\d{5,}/)(\d{16,})-([0-9a-f]{8,64})\.(changes|snapshot)"
)


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

# The uid of an attempt: epoch of the driver it works for, then 64 random bits.
_EPOCH_DIGITS = 8
_UID_DIGITS = 24


def new_uid(epoch: int) -> str:
    """Return the uid of a new attempt that works for the driver of *epoch*.

    Raises:
        ValueError: the epoch is negative, or more than 8 hexadecimal digits.
    """
    if not 0 <= epoch < 16**_EPOCH_DIGITS:
        raise ValueError(f"epoch {epoch} must be 0 to {16**_EPOCH_DIGITS - 1}")
    return f"{epoch:0{_EPOCH_DIGITS}x}{new_suffix()}"


def new_suffix() -> str:
    """Return 64 random bits in hexadecimal, never seen before."""
    return secrets.token_hex((_UID_DIGITS - _EPOCH_DIGITS) // 2)


def epoch_of(uid: str) -> int | None:
    """Return the epoch of an attempt; None if the uid does not say."""
    return int(uid[:_EPOCH_DIGITS], 16) if len(uid) == _UID_DIGITS else None


class StoredKind(enum.Enum):
    """What a file of a store holds; the value ends its name."""

    CHANGES = "changes"
    SNAPSHOT = "snapshot"


def directory_of(store: StoreId) -> str:
    """Return where the files of a store are: ``stores/<operator>/<store>/p<partition>/``."""
    parts = (uid_part(store.operator_uid), uid_part(store.store), f"p{store.partition:05d}")
    return f"{STORE_PREFIX}{'/'.join(parts)}/"


def file_name(store: StoreId, reference: Reference, kind: StoredKind) -> str:
    """Return the name of the file that holds *reference*, or the changes that led to it.

    It follows from the reference alone, so a chain of references is a chain of files.
    """
    return f"{directory_of(store)}{reference.version:016d}-{reference.uid}.{kind.value}"


def parse_file_name(name: str) -> tuple[str, Reference, StoredKind] | None:
    """Return (directory, reference, kind) of the file of a store; None for any other name."""
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        return None
    try:
        reference = Reference(int(match[2]), match[3])
    except ValueError:
        return None
    return match[1], reference, StoredKind(match[4])
