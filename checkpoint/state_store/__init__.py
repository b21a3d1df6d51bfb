"""Versioned key-value state, one store for each partition of an operator."""

from __future__ import annotations

from checkpoint.log.batch_records import EMPTY, STORE_PREFIX, StoreId, VersionId
from checkpoint.state_store.backend import StateBackend
from checkpoint.state_store.classes import (
    Classes,
    OldFields,
    StoredClassError,
    is_class_of_data,
)
from checkpoint.state_store.keys import is_between
from checkpoint.state_store.lmdb_backend import (
    LmdbBackend,
    LocalSettings,
    ReplicaIsAheadError,
)
from checkpoint.state_store.maintenance import (
    SnapshotRule,
    delete_local,
    maintain_store,
    sweep_local_once,
)
from checkpoint.state_store.memory_backend import MemoryBackend, MemoryVersion
from checkpoint.state_store.plain_pickles import NotPlainError
from checkpoint.state_store.preflight import class_problems, require_rdds, require_stored_state
from checkpoint.state_store.replica_builder import ReplicaMeta
from checkpoint.state_store.retention import StreamRetention
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.static_files import STATIC, delete_static, read_static, write_static
from checkpoint.state_store.store import StateReader, StateStore, StateStoreUseError, StateWriter
from checkpoint.state_store.values import DataValues, PickleValues, ValueCodec

__all__ = [
    "EMPTY",
    "STATIC",
    "STORE_PREFIX",
    "Classes",
    "DataValues",
    "LmdbBackend",
    "LocalSettings",
    "MemoryBackend",
    "MemoryVersion",
    "NotPlainError",
    "OldFields",
    "PickleValues",
    "ReplicaIsAheadError",
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
    "class_problems",
    "delete_local",
    "delete_static",
    "is_between",
    "is_class_of_data",
    "maintain_store",
    "read_static",
    "require_rdds",
    "require_stored_state",
    "sweep_local_once",
    "write_static",
]
