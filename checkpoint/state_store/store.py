"""The state store: Python keys and values over any :class:`StateBackend`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpoint.log.version_records import StoreId, VersionId
from checkpoint.state_store.backend import RawVersion, StateBackend
from checkpoint.state_store.keys import KEYS_NAME
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.store_reader import CodecMismatchError, StateReader
from checkpoint.state_store.store_writer import StateWriter
from checkpoint.state_store.values import DataValues, ValueCodec
from checkpoint.state_store.write_buffer import WriteBuffer

SPILL_BYTES = 64 << 20


@dataclass(frozen=True)
class StateStore:
    """The keyed state of a stream; readers and writers open one version of it.

    >>> from checkpoint.log.version_records import EMPTY
    >>> with store.writer(store_id, EMPTY) as writer:
    ...     writer.put("spark", 1)
    ...     committed = writer.commit()
    >>> with store.reader(store_id, committed.version_id) as reader:
    ...     reader.get("spark"), reader.count()
    (1, 1)

    Args:
        backend: storage of the versions.
        values: codec of the values.
        spill_bytes: approximate memory limit of a writer's changes; more go to disk.
        spill_directory: a directory on a local disk; None for the system's temporary directory.
        schema: the caller's description of the values, stored with the changes.
        checksums: maintain a checksum of all records, at about 0.15 us per changed record. It is
            compared before a snapshot is published and when a replica is built, so a damaged
            replica is detected before it spreads.
    """

    backend: StateBackend
    values: ValueCodec = field(default_factory=DataValues)
    spill_bytes: int = SPILL_BYTES
    spill_directory: str | None = None
    schema: str = ""
    checksums: bool = False

    @property
    def codec(self) -> Mapping[str, str]:
        """The encoding of keys and values, stored with the changes."""
        codec = {"keys": KEYS_NAME, "values": self.values.name}
        return {**codec, "schema": self.schema} if self.schema else codec

    def reader(self, store: StoreId, version_id: VersionId) -> StateReader:
        """Open one version for reading.

        Raises:
            CheckpointError: it is missing or damaged.
            CodecMismatchError: it was written by another codec or with another schema.
        """
        version = self._open(store, version_id)
        return StateReader(store, version, self.values, Shapes(version.codec))

    def writer(self, store: StoreId, version_id: VersionId) -> StateWriter:
        """Open one version for an attempt to create the next one.

        Raises:
            CheckpointError: it is missing or damaged.
            CodecMismatchError: it was written by another codec or with another schema.
        """
        version = self._open(store, version_id)
        try:
            shapes = Shapes(version.codec)
            buffer = WriteBuffer(
                version, self.values, shapes, self.spill_bytes, self.spill_directory, self.checksums
            )
            return StateWriter(
                store,
                self.values,
                shapes,
                buffer,
                lambda changes: self.backend.commit(
                    store, version_id, changes, {**self.codec, **shapes.to_codec()}
                ),
            )
        except BaseException:
            version.close()
            raise

    def _open(self, store: StoreId, version_id: VersionId) -> RawVersion:
        version = self.backend.open(store, version_id)
        try:
            self._require_codec(store, version)
        except BaseException:
            version.close()
            raise
        return version

    def _require_codec(self, store: StoreId, version: RawVersion) -> None:
        for what, wanted in self.codec.items():
            found = version.codec.get(what, wanted)
            # A list of classes may follow the name of the codec.
            if found != wanted and (what != "values" or found.split()[0] != wanted.split()[0]):
                raise CodecMismatchError(
                    f"{what} of store {store.store!r} of operator {store.operator_uid!r}, "
                    f"partition {store.partition}, version {version.version_id.version}, were "
                    f"written as {found!r}, got {wanted!r}; open it as it was written, or start a "
                    "new store"
                )
