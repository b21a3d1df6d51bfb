"""The contracts of stores and backends detect each broken promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from checkpoint import PartitionCommit
from checkpoint.state_store import (
    EMPTY,
    MemoryBackend,
    MemoryVersion,
    StateStore,
    StoreId,
    VersionId,
)
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.store import StateReader, StateWriter
from checkpoint.testing import check_backend
from tests.support.store_checks import check_state_store

ID = StoreId("stream-1", "counts", "default", 0, 1)


class UnsortedBase(MemoryVersion):
    """A version that scans in insertion order."""

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        found = self._content.records.items()
        return iter([p for p in found if start <= p[0] and (stop is None or p[0] < stop)][::-1])


class InclusiveBase(MemoryVersion):
    """A version whose scans include the stop."""

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return super().scan(start, None if stop is None else stop + b"\0")


class Unsorted(MemoryBackend):
    def open(self, store: StoreId, version_id: VersionId) -> MemoryVersion:
        return UnsortedBase(version_id, self._content(store, version_id))


class Inclusive(MemoryBackend):
    def open(self, store: StoreId, version_id: VersionId) -> MemoryVersion:
        return InclusiveBase(version_id, self._content(store, version_id))


class OneUid(MemoryBackend):
    """A backend that gives all attempts on a version the same uid."""

    def commit(
        self, store: StoreId, base: VersionId, changes: Iterable[Changes], codec: Mapping[str, str]
    ) -> PartitionCommit:
        self._attempts = 0
        return super().commit(store, base, changes, codec)


class OneStore(MemoryBackend):
    """A backend that keeps all partitions in one store."""

    def _content(self, store: StoreId, version_id: VersionId) -> Any:
        found = [c for (_, known), c in self._contents.items() if known == version_id]
        return found[0] if found else super()._content(store, version_id)


class KeepsRemoved(MemoryBackend):
    """A backend that ignores removals."""

    def commit(
        self, store: StoreId, base: VersionId, changes: Iterable[Changes], codec: Mapping[str, str]
    ) -> PartitionCommit:
        count = len(self._content(store, base).records)
        kept = []
        for part in changes:
            count += len(part.puts)
            kept.append(Changes(part.puts, [], part.index_puts, part.index_removes, count))
        return super().commit(store, base, kept, codec)


@pytest.mark.parametrize("make_backend", [Unsorted, Inclusive, OneUid, OneStore, KeepsRemoved])
def test_contents_that_break_a_promise(make_backend: Callable[[], MemoryBackend]) -> None:
    """Each broken promise of a backend is detected."""
    with pytest.raises((AssertionError, ValueError)):
        check_backend(make_backend)


def forgets_index(writer: StateWriter) -> None:
    writer._buffer._move = lambda raw, from_ms, to_ms: None  # type: ignore[method-assign]


def counts_puts(writer: StateWriter) -> None:
    writer._buffer._below = lambda raw: None


def shares_values(writer: StateWriter) -> None:
    kept: dict[Any, Any] = {}
    put, get = writer.put, writer.get

    def keep(key: Any, value: Any, timeout_ms: int | None = None) -> None:
        put(key, value, timeout_ms)
        if isinstance(value, list):
            kept[key] = value

    writer.put = keep  # type: ignore[method-assign]
    writer.get = lambda key: kept.get(key, get(key))  # type: ignore[method-assign]


def lives_on(writer: StateWriter) -> None:
    writer._require_open = lambda: None  # type: ignore[method-assign]


def scans_what_is_now(writer: StateWriter) -> None:
    scan = writer._scan
    writer._scan = lambda wanted: (  # type: ignore[method-assign]
        (key, value) for key, value in scan(wanted) if writer.get(key) is not None
    )


def forgets_removes(writer: StateWriter) -> None:
    writer._buffer.remove = lambda raw, before: None  # type: ignore[method-assign]


def fires_late(writer: StateWriter) -> None:
    due = writer._due
    writer._due = lambda until_ms: due(until_ms - 1)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "spoil",
    [
        forgets_index, counts_puts, shares_values, lives_on, scans_what_is_now, forgets_removes,
        fires_late,
    ],
)  # fmt: skip
def test_stores_that_break_a_promise(spoil: Callable[[StateWriter], None]) -> None:
    """Each broken promise of a store is detected."""

    class Spoilt(StateStore):
        def writer(self, store: StoreId, version_id: VersionId) -> StateWriter:
            writer = super().writer(store, version_id)
            spoil(writer)
            return writer

    with pytest.raises(Exception) as caught:  # noqa: PT011 - some trip over themselves
        check_state_store(lambda: Spoilt(MemoryBackend()))
    assert isinstance(caught.value, (AssertionError, ValueError))


class Everything(StateStore):
    """A reader that misses one key."""

    def reader(self, store: StoreId, version_id: VersionId) -> StateReader:
        reader = super().reader(store, version_id)
        items = reader.items
        reader.items = lambda: iter(list(items())[1:])  # type: ignore[method-assign]
        return reader


def test_reader_that_breaks_a_promise() -> None:
    """Readers are checked as well."""
    with pytest.raises(AssertionError, match="number of items of a reader"):
        check_state_store(lambda: Everything(MemoryBackend()))


def test_memory_forgets_only_what_it_is_told() -> None:
    """The model keeps every version until it is deleted, and lists its versions."""
    backend = MemoryBackend()
    store = StateStore(backend)
    with store.writer(ID, EMPTY) as writer:
        first = writer.commit().version_id
    with store.writer(ID, first) as writer:
        second = writer.commit().version_id
    assert backend.version_ids(ID) == [first, second]
    backend.forget(ID, first)
    with pytest.raises(Exception, match=r"does not hold version 1 .* one of the versions \[2\]"):
        backend.open(ID, first)
    refused: Sequence[Any] = [Changes([], [], [], [], 5)]
    with pytest.raises(ValueError, match="changes of 5 keys make a store of 0 keys"):
        backend.commit(ID, EMPTY, refused, {})
