"""What a local copy says of itself, and how far it is from its last snapshot."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import lmdb
from msgspec import field
from msgspec.structs import replace

from checkpoint.errors import CorruptCheckpointError
from checkpoint.json_records import JsonRecord, decode, encode
from checkpoint.state_store.environments import DamagedCopyError, Environment
from checkpoint.stored_state import EMPTY, Reference, StoreId

LOCAL_LAYOUT = 1

_SELF = b"self"
_STORE = b"store"


class Progress(JsonRecord, frozen=True):
    """Where a local copy stands.

    Args:
        reference: the content that it holds.
        codec: how keys and records are encoded, as the last changelog said.
        checksum: checksum of the content, as the last changelog said; None if it did not.
        snapshot: the content of the last snapshot before it, the empty one if there is none.
        snapshot_bytes: size of that snapshot.
        changelogs: changelogs since that snapshot.
        changelog_bytes: their size.
    """

    reference: Reference
    codec: Mapping[str, str] = field(default_factory=dict)
    snapshot: Reference = EMPTY
    snapshot_bytes: int = 0
    changelogs: int = 0
    changelog_bytes: int = 0
    checksum: int | None = 0

    def after(
        self,
        reference: Reference,
        codec: Mapping[str, str],
        size_bytes: int,
        checksum: int | None,
    ) -> Progress:
        """Return where the copy stands when one more changelog was applied."""
        return replace(
            self,
            reference=reference,
            codec=codec,
            changelogs=self.changelogs + 1,
            changelog_bytes=self.changelog_bytes + size_bytes,
            checksum=checksum,
        )


def write_progress(
    environment: Environment, txn: lmdb.Transaction[bytes], progress: Progress
) -> None:
    """Say in *txn* where the copy stands."""
    txn.put(_SELF, encode(progress), db=environment.meta)


def read_progress(environment: Environment, txn: lmdb.Transaction[bytes]) -> Progress:
    """Read where the copy stands.

    Raises:
        DamagedCopyError: it does not say.
    """
    try:
        return _parse(txn.get(_SELF, db=environment.meta) or b"nothing", environment.path)
    except CorruptCheckpointError as error:
        raise DamagedCopyError(f"{environment.path} does not say what it holds: {error}") from error


def write_store(environment: Environment, txn: lmdb.Transaction[bytes], store: StoreId) -> None:
    """Say in *txn* whose copy this is."""
    txn.put(_STORE, _store_json(store), db=environment.meta)


def require_store(environment: Environment, txn: lmdb.Transaction[bytes], store: StoreId) -> None:
    """Raise DamagedCopyError if this is the copy of another store, or of another layout."""
    if txn.get(_STORE, db=environment.meta) != _store_json(store):
        raise DamagedCopyError(f"{environment.path} is not the copy of {store}")


@functools.lru_cache(maxsize=256)  # an open reads the same bytes several times
def _parse(value: bytes, path: str) -> Progress:
    return decode(value, Progress, path, "what a local copy holds")


@functools.lru_cache(maxsize=256)
def _store_json(store: StoreId) -> bytes:
    return encode({"layout": LOCAL_LAYOUT, **dataclasses.asdict(store)})
