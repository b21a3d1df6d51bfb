"""What a replica says of itself, and how far it is from its last snapshot."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import lmdb
from msgspec import field
from msgspec.structs import replace

from checkpoint.errors import CorruptCheckpointError
from checkpoint.log.version_records import EMPTY, StoreId, VersionId
from checkpoint.state_store.environments import DamagedReplicaError, Environment
from checkpoint.storage.json_records import JsonRecord, decode, encode

LOCAL_LAYOUT = 1

_SELF = b"self"
_STORE = b"store"


class ReplicaMeta(JsonRecord, frozen=True):
    """Where a replica stands.

    Args:
        version_id: the version that it holds.
        codec: how keys and records are encoded, as the last changelog said.
        checksum: checksum of the version, as the last changelog said; None if it did not.
        snapshot: the version of the last snapshot before it, the empty one if there is none.
        snapshot_bytes: size of that snapshot.
        changelogs: changelogs since that snapshot.
        changelog_bytes: their size.
    """

    version_id: VersionId
    codec: Mapping[str, str] = field(default_factory=dict)
    snapshot: VersionId = EMPTY
    snapshot_bytes: int = 0
    changelogs: int = 0
    changelog_bytes: int = 0
    checksum: int | None = 0

    def after(
        self,
        version_id: VersionId,
        codec: Mapping[str, str],
        size_bytes: int,
        checksum: int | None,
    ) -> ReplicaMeta:
        """Return where the replica stands when one more changelog was applied."""
        return replace(
            self,
            version_id=version_id,
            codec=codec,
            changelogs=self.changelogs + 1,
            changelog_bytes=self.changelog_bytes + size_bytes,
            checksum=checksum,
        )


def write_meta(environment: Environment, txn: lmdb.Transaction[bytes], meta: ReplicaMeta) -> None:
    """Say in *txn* where the replica stands."""
    txn.put(_SELF, encode(meta), db=environment.meta)


def read_meta(environment: Environment, txn: lmdb.Transaction[bytes]) -> ReplicaMeta:
    """Read where the replica stands. Raises DamagedReplicaError."""
    try:
        return _parse(txn.get(_SELF, db=environment.meta) or b"nothing", environment.path)
    except CorruptCheckpointError as error:
        raise DamagedReplicaError(
            f"{environment.path} does not say what it holds: {error}"
        ) from error


def write_store(environment: Environment, txn: lmdb.Transaction[bytes], store: StoreId) -> None:
    """Say in *txn* whose replica this is."""
    txn.put(_STORE, _store_json(store), db=environment.meta)


def require_store(environment: Environment, txn: lmdb.Transaction[bytes], store: StoreId) -> None:
    """Raise DamagedReplicaError if this is the replica of another store, or of another layout."""
    if txn.get(_STORE, db=environment.meta) != _store_json(store):
        raise DamagedReplicaError(f"{environment.path} is not the replica of {store}")


@functools.lru_cache(maxsize=256)  # an open reads the same bytes several times
def _parse(value: bytes, path: str) -> ReplicaMeta:
    return decode(value, ReplicaMeta, path, "what a replica holds")


@functools.lru_cache(maxsize=256)
def _store_json(store: StoreId) -> bytes:
    return encode({"layout": LOCAL_LAYOUT, **dataclasses.asdict(store)})
