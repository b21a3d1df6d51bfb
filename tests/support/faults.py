"""Files and state backends that fail at one chosen operation, and the cases to enumerate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

from checkpoint import (
    AlreadyExistsError,
    Files,
    PartitionCommit,
    StorageRefusedError,
    StorageUncertainError,
)
from checkpoint.state_store import StoreId, VersionId
from checkpoint.state_store.backend import Changes, RawVersion, StateBackend
from checkpoint.storage.files import Names

_T = TypeVar("_T")

Effect = Literal["before", "during", "after"]


class SimulatedCrash(BaseException):
    """The process died here. Not an ``Exception``: nothing may catch it and go on."""


class OneFault:
    """Counts operations, and lets number *at* (from 1) fail.

    Make *at* larger until ``fired`` stays False: then the code was hit at every operation. After a
    crash every operation raises it again: dead processes do nothing.
    """

    def __init__(self, at: int, effect: Effect, error: Callable[[str], BaseException]) -> None:
        if effect == "after" and error in (StorageRefusedError, AlreadyExistsError):
            raise ValueError(f"{error} says that nothing happened; use effect 'before' with it")
        self.calls: list[str] = []
        self.fired = False
        self._at = at
        self._effect = effect
        self._error = error
        self._dead: SimulatedCrash | None = None

    def call(self, operation: str, run: Callable[[], _T], *, writes_parts: bool = False) -> _T:
        """Run an operation, or fail."""
        if self._dead is not None:
            raise self._dead
        self.calls.append(operation)
        if len(self.calls) != self._at:
            return run()
        if self._effect == "during" and writes_parts:
            return run()  # its parts raise
        if self._effect == "after":
            run()
        raise self._fault()

    def torn(self, parts: Iterable[_T]) -> Iterator[_T]:
        """Iterate over *parts*; fail after the first if it is their operation that fails."""
        is_torn = self._effect == "during" and len(self.calls) == self._at
        for part in parts:
            yield part
            if is_torn:
                raise self._fault()

    def _fault(self) -> BaseException:
        self.fired = True
        error = self._error(f"injected fault {self._effect} operation {self._at}: {self.calls[-1]}")
        if isinstance(error, SimulatedCrash):
            self._dead = error
        return error


class FaultyFiles(OneFault):
    """Files that fail once, at operation number *at* (from 1).

    Four cases matter: refused (before), uncertain and not done (before), uncertain and done
    (after), and a crash (all three).

    Args:
        inner: the files that do the work.
        at: number of the operation that fails, counted over all methods.
        effect: fail before the operation had its effect, after it, or in the middle of the chunks
            of a create (any other operation then fails before).
        error: what is raised: an exception class that takes a message.

    Raises:
        ValueError: a refusal after the effect would be a lie.
    """

    def __init__(
        self,
        inner: Files,
        at: int,
        effect: Effect = "before",
        error: Callable[[str], BaseException] = SimulatedCrash,
    ) -> None:
        super().__init__(at, effect, error)
        self._inner = inner

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def at_once(self) -> int:
        return 1  # operations are counted one after another

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        return self.call(
            f"create {name}",
            lambda: self._inner.create(name, self.torn(chunks)),
            writes_parts=True,
        )

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        return self.call(f"read {name}", lambda: self._inner.read_chunks(name, chunk_bytes))

    def read(self, name: str) -> bytes:
        return self.call(f"read {name}", lambda: self._inner.read(name))

    def exists(self, name: str) -> bool:
        return self.call(f"exists {name}", lambda: self._inner.exists(name))

    def list(self, prefix: str) -> Names:
        return self.call(f"list {prefix}", lambda: self._inner.list(prefix))

    def directories(self, directory: str = "") -> Names:
        return self.call(f"directories {directory}", lambda: self._inner.directories(directory))

    def delete(self, name: str) -> None:
        return self.call(f"delete {name}", lambda: self._inner.delete(name))


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


FAULTS: list[tuple[Effect, type[BaseException]]] = [
    ("before", SimulatedCrash),
    ("during", SimulatedCrash),
    ("after", SimulatedCrash),
    ("before", StorageRefusedError),
    ("before", StorageUncertainError),
    ("during", StorageUncertainError),
    ("after", StorageUncertainError),
]


def fault_ids(faults: list[tuple[Effect, type[BaseException]]]) -> list[str]:
    """Names of the cases."""
    return [f"{error.__name__} {effect}" for effect, error in faults]


class Interrupted(FaultyFiles):
    """Files that let something else happen before operation number *at*."""

    def __init__(self, inner: Files, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(inner, at=-1)
        self._when, self._meanwhile = at, meanwhile

    def call(self, operation, run, *, writes_parts=False):  # type: ignore[no-untyped-def]
        if len(self.calls) + 1 == self._when:
            self.fired = True
            self._meanwhile()
        return super().call(operation, run, writes_parts=writes_parts)
