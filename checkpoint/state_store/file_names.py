"""Names of the files of state stores, and uids of who writes them."""

from __future__ import annotations

import enum
import re
import secrets  # noqa: TID251

from checkpoint.log.version_records import StoreId, VersionId
from checkpoint.storage.files import uid_part

STORE_PREFIX = "stores/"

_FILE_NAME = re.compile(
    r"(stores/[^/]+/[^/]+/p\d{5,}/)(\d{16,})-([0-9a-f]{8,64})\.(changes|snapshot)"
)


# The uid of an attempt: epoch of the driver it works for, then 64 random bits.
_EPOCH_DIGITS = 8
_UID_DIGITS = 24


def new_uid(epoch: int) -> str:
    """Return the uid of a new attempt that works for the driver of *epoch*."""
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


def file_name(store: StoreId, version_id: VersionId, kind: StoredKind) -> str:
    """Return the name of the file that holds *version_id*, or the changes that led to it.

    The name follows from the version alone, so a chain of versions is a chain of files.
    """
    return f"{directory_of(store)}{version_id.version:016d}-{version_id.uid}.{kind.value}"


def parse_file_name(name: str) -> tuple[str, VersionId, StoredKind] | None:
    """Return (directory, version, kind) of the file of a store; None for any other name."""
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        return None
    try:
        version_id = VersionId(int(match[2]), match[3])
    except ValueError:
        return None
    return match[1], version_id, StoredKind(match[4])
