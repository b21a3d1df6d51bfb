"""Versioned key-value state, one store for each partition of an operator."""

from __future__ import annotations

from checkpoint.log.version_records import EMPTY, StoreId, VersionId
from checkpoint.state_store.backend import StateBackend
from checkpoint.state_store.classes import Classes, StoredClassError, is_class_of_data
from checkpoint.state_store.lmdb_backend import LmdbBackend
from checkpoint.state_store.maintenance import (
    SnapshotRule,
    delete_local,
    maintain_store,
    sweep_local_once,
)
from checkpoint.state_store.plain_pickles import NotPlainError
from checkpoint.state_store.preflight import require_rdds, require_stored_state
from checkpoint.state_store.replica import LocalSettings
from checkpoint.state_store.replica_builder import ReplicaMeta
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.store import StateStore
from checkpoint.state_store.store_files import STORE_PREFIX
from checkpoint.state_store.store_reader import StateReader, StateStoreUseError
from checkpoint.state_store.store_retention import StreamRetention
from checkpoint.state_store.store_writer import StateWriter
from checkpoint.state_store.values import DataValues, PickleValues, ValueCodec

__all__ = [
    "EMPTY",
    "STORE_PREFIX",
    "Classes",
    "DataValues",
    "LmdbBackend",
    "LocalSettings",
    "NotPlainError",
    "PickleValues",
    "ReplicaMeta",
    "Shapes",
    "SnapshotRule",
    "StateBackend",
    "StateReader",
    "StateStore",
    "StateStoreUseError",
    "StateWriter",
    "StoreId",
    "StoredClassError",
    "StreamRetention",
    "ValueCodec",
    "VersionId",
    "delete_local",
    "is_class_of_data",
    "maintain_store",
    "require_rdds",
    "require_stored_state",
    "sweep_local_once",
]
