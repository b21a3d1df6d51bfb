"""Versions that fail on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from checkpoint.log.version_records import PartitionCommit, StoreId, VersionId
from checkpoint.state_store.backend import Changes, RawVersion, StateBackend
from checkpoint.testing.one_fault import Effect, OneFault, SimulatedCrash

_T = TypeVar("_T")


class FaultyBackend(OneFault):
    """Versions of which one operation fails, number *at* (from 1).

    Operations are opening, each look-up, each step of a scan, counting, and committing; closing
    never fails.

    Args:
        inner: the versions that do the work.
        at: number of the operation that fails, counted over all methods.
        effect: fail before the operation had its effect, after it, or in the middle of the parts of
            a commit (any other operation then fails before).
        error: what is raised: an exception class that takes a message.

    Raises:
        ValueError: a refusal after the effect would be a lie.
    """

    def __init__(
        self,
        inner: StateBackend,
        at: int,
        effect: Effect = "before",
        error: Callable[[str], BaseException] = SimulatedCrash,
    ) -> None:
        super().__init__(at, effect, error)
        self.opened = 0  # versions that are open now
        self._inner = inner

    def open(self, store: StoreId, version_id: VersionId) -> FaultyVersion:
        """Open a version whose operations count as well."""
        version = FaultyVersion(
            self.call("open", lambda: self._inner.open(store, version_id)), self
        )
        self.opened += 1
        return version

    def commit(
        self,
        store: StoreId,
        parent: VersionId,
        changes: Iterable[Changes],
        codec: Mapping[str, str],
    ) -> PartitionCommit:
        """Commit, unless it is this operation that fails."""
        return self.call(
            "commit",
            lambda: self._inner.commit(store, parent, self.torn(changes), codec),
            writes_parts=True,
        )


class FaultyVersion:
    """A version of :class:`FaultyBackend`."""

    def __init__(self, inner: RawVersion, backend: FaultyBackend) -> None:
        self.version_id = inner.version_id
        self.codec = inner.codec
        self.checksum = inner.checksum
        self._inner = inner
        self._backend = backend
        self._is_open = True
        self._call = backend.call

    def get(self, key: bytes, /) -> bytes | None:
        return self._call("get", lambda: self._inner.get(key))

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        return self._call("get_many", lambda: self._inner.get_many(keys))

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._steps("scan", self._inner.scan(start, stop))

    def scan_index(self, stop: bytes | None = None) -> Iterator[bytes]:
        return self._steps("scan_index", self._inner.scan_index(stop))

    def count(self) -> int:
        return self._call("count", self._inner.count)

    def size_bytes(self) -> int:
        return self._call("size_bytes", self._inner.size_bytes)

    def close(self) -> None:
        self._backend.opened -= self._is_open
        self._is_open = False
        self._inner.close()

    def _steps(self, operation: str, steps: Iterator[_T]) -> Iterator[_T]:
        end = object()
        while (step := self._call(operation, lambda: next(steps, end))) is not end:
            yield step  # type: ignore[misc]
