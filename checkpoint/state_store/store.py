"""The state store: keys and values of Python over any :class:`Bases`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpoint.state_store.base import Base, Bases
from checkpoint.state_store.keys import KEYS_NAME
from checkpoint.state_store.overlay import Overlay
from checkpoint.state_store.reader import CodecMismatchError, StateReader
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.values import DataValues, ValueCodec
from checkpoint.state_store.writer import StateWriter
from checkpoint.stored_state import Reference, StoreId

SPILL_BYTES = 64 << 20


@dataclass(frozen=True)
class StateStore:
    """State of a stream, by key: opened at one content, changed by one attempt at a time.

    >>> from checkpoint.testing import MemoryBases
    >>> from checkpoint.stored_state import EMPTY
    >>> store = StateStore(MemoryBases())
    >>> counts = StoreId("stream-1", "counts", "default", partition=0, partition_count=1)
    >>> with store.writer(counts, EMPTY) as writer:
    ...     writer.put("spark", 1)
    ...     committed = writer.commit()
    >>> with store.reader(counts, committed.reference) as reader:
    ...     reader.get("spark"), reader.count()
    (1, 1)

    Args:
        bases: where contents are.
        values: codec of the values.
        spill_bytes: changes of one writer above about this are held on disk, not in memory.
        spill_directory: where, on a local disk. None: where the system has temporary files.
        schema: what the values are, in words of the caller; kept beside the changes.
        checksums: carry a checksum of all records from version to version, at about 0.15 us for
            each record that changes. It is compared before a snapshot is published and when a copy
            is built, so that a damaged local copy is found before it becomes the truth.
    """

    bases: Bases
    values: ValueCodec = field(default_factory=DataValues)
    spill_bytes: int = SPILL_BYTES
    spill_directory: str | None = None
    schema: str = ""
    checksums: bool = False

    @property
    def codec(self) -> Mapping[str, str]:
        """What is written beside changes, about how they are encoded."""
        codec = {"keys": KEYS_NAME, "values": self.values.name}
        return {**codec, "schema": self.schema} if self.schema else codec

    def reader(self, store: StoreId, reference: Reference) -> StateReader:
        """Open one content for reading.

        Raises:
            CheckpointError: it cannot be had.
            CodecMismatchError: it was written by another codec or with another schema.
        """
        base = self._open(store, reference)
        return StateReader(store, base, self.values, Shapes(base.codec))

    def writer(self, store: StoreId, reference: Reference) -> StateWriter:
        """Open one content for an attempt to make the next one.

        Raises:
            CheckpointError: it cannot be had.
            CodecMismatchError: it was written by another codec or with another schema.
        """
        base = self._open(store, reference)
        try:
            shapes = Shapes(base.codec)
            overlay = Overlay(
                base, self.values, shapes, self.spill_bytes, self.spill_directory, self.checksums
            )
            return StateWriter(
                store,
                self.values,
                shapes,
                overlay,
                lambda changes: self.bases.commit(
                    store, reference, changes, {**self.codec, **shapes.to_codec()}
                ),
            )
        except BaseException:
            base.close()
            raise

    def _open(self, store: StoreId, reference: Reference) -> Base:
        base = self.bases.open(store, reference)
        try:
            self._require_codec(store, base)
        except BaseException:
            base.close()
            raise
        return base

    def _require_codec(self, store: StoreId, base: Base) -> None:
        for what, wanted in self.codec.items():
            found = base.codec.get(what, wanted)
            # The classes that plain data may hold follow its name, and may become more.
            if found != wanted and (what != "values" or found.split()[0] != wanted.split()[0]):
                raise CodecMismatchError(
                    f"{what} of store {store.store!r} of operator {store.operator_uid!r}, "
                    f"partition {store.partition}, version {base.reference.version}, written as "
                    f"{found!r} must be opened so, got {wanted!r}; open it as it was written, or "
                    "begin a new store"
                )
