"""What a local copy says of itself, and how far it is from its last snapshot."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass

import lmdb

from checkpoint.json_fields import (
    dump_json,
    int_field,
    list_field,
    load_json,
    object_field,
    text_field,
)
from checkpoint.state_store.environments import DamagedCopyError, Environment
from checkpoint.state_store.reference import EMPTY, Reference, StoreId

LOCAL_LAYOUT = 1

_SELF = b"self"
_STORE = b"store"


@dataclass(frozen=True)
class Progress:
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
    codec: Mapping[str, str] = dataclasses.field(default_factory=dict)
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
        return dataclasses.replace(
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
    data: dict[str, object] = {
        "reference": [progress.reference.version, progress.reference.uid],
        "codec": dict(progress.codec),
        "snapshot": [progress.snapshot.version, progress.snapshot.uid],
        "snapshot_bytes": progress.snapshot_bytes,
        "changelogs": progress.changelogs,
        "changelog_bytes": progress.changelog_bytes,
    }
    if progress.checksum is not None:
        data["checksum"] = progress.checksum
    txn.put(_SELF, dump_json(data), db=environment.meta)


def read_progress(environment: Environment, txn: lmdb.Transaction[bytes]) -> Progress:
    """Read where the copy stands.

    Raises:
        DamagedCopyError: it does not say.
    """
    try:
        return _parse(txn.get(_SELF, db=environment.meta) or b"nothing")
    except ValueError as error:
        raise DamagedCopyError(f"{environment.path} does not say what it holds: {error}") from error


def write_store(environment: Environment, txn: lmdb.Transaction[bytes], store: StoreId) -> None:
    """Say in *txn* whose copy this is."""
    txn.put(_STORE, _store_json(store), db=environment.meta)


def require_store(environment: Environment, txn: lmdb.Transaction[bytes], store: StoreId) -> None:
    """Raise DamagedCopyError if this is the copy of another store, or of another layout."""
    if txn.get(_STORE, db=environment.meta) != _store_json(store):
        raise DamagedCopyError(f"{environment.path} is not the copy of {store}")


@functools.lru_cache(maxsize=256)  # an open reads the same bytes several times
def _parse(value: bytes) -> Progress:
    data = load_json(value)
    codec = object_field(data, "codec")
    return Progress(
        _reference(list_field(data, "reference")),
        {name: text_field(codec, name) for name in codec},
        _reference(list_field(data, "snapshot")),
        int_field(data, "snapshot_bytes"),
        int_field(data, "changelogs"),
        int_field(data, "changelog_bytes"),
        int_field(data, "checksum") if "checksum" in data else None,
    )


@functools.lru_cache(maxsize=256)
def _store_json(store: StoreId) -> bytes:
    return dump_json({"layout": LOCAL_LAYOUT, **dataclasses.asdict(store)})


def _reference(fields: list[object]) -> Reference:
    by_name = dict(zip(("version", "uid"), fields, strict=True))
    return Reference(int_field(by_name, "version"), text_field(by_name, "uid"))
