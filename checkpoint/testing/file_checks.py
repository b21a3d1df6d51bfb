"""Conformance of :class:`Files`, and files that fail on demand."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from checkpoint.errors import AlreadyExistsError
from checkpoint.storage.files import Files, Names
from checkpoint.testing.claims import require, require_raises
from checkpoint.testing.one_fault import Effect, OneFault, SimulatedCrash

RACING_CREATORS = 8

_BAD_NAMES = (
    "", "/a", "a/", "a//b", "..", "a/../b", "./a", ".hidden", "a b", "a\n", "\u00e9", "a\\b",
)  # fmt: skip


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


def check_files(factory: Callable[[], Files]) -> None:
    """Check that files do what :class:`Files` promises.

    Args:
        factory: returns new, empty, writable files at each call.

    Raises:
        AssertionError: a promise is broken; the message says which.
    """
    for check in _CHECKS:
        check(factory())


def _check_round_trip(files: Files) -> None:
    big = bytes(range(256)) * 4096
    cases: list[tuple[str, list[bytes | memoryview]]] = [
        ("empty", []),
        ("one", [b"abc"]),
        ("a/b/c.d-e_f=1", [b"ab", b"", memoryview(b"cd")]),
        ("big", [big, memoryview(big)[7:]]),
    ]
    for name, chunks in cases:
        data = b"".join(chunks)
        require(not files.exists(name), f"{name} exists before it is created")
        require(files.create(name, iter(chunks)) == len(data), f"create({name}) must return size")
        require(files.exists(name), f"{name} does not exist after create")
        require(files.read(name) == data, f"read({name}) is not what was created")
        for chunk_bytes in (100_003, 1 << 22):
            parts = list(files.read_chunks(name, chunk_bytes))
            require(b"".join(parts) == data, f"read_chunks({name}) is not what was created")
            lengths_ok = all(0 < len(part) <= chunk_bytes for part in parts)
            require(lengths_ok, f"read_chunks({name}) has a chunk that is empty or too long")


def _check_create_once(files: Files) -> None:
    files.create("a/once", [b"first"])
    for content in (b"second", b"first", b""):
        again = functools.partial(files.create, "a/once", [content])
        require_raises(AlreadyExistsError, again)
        require(files.read("a/once") == b"first", "a second create has changed the file")


def _check_failed_create_leaves_nothing(files: Files) -> None:
    def chunks(error: BaseException) -> Iterator[bytes]:
        yield b"x" * 100_000
        raise error

    for error in (LookupError("user code"), OSError("user code"), SimulatedCrash()):
        try:
            files.create("a/torn", chunks(error))
        except BaseException as raised:
            require(raised is error, f"create must pass on {error!r}, got {raised!r}")
        else:
            require(False, f"create must pass on {error!r}")
        require(not files.exists("a/torn"), "a create that failed has left a file")
        require(files.list("") == [], "a create that failed is listed")
    files.create("a/torn", [b"whole"])
    require(files.read("a/torn") == b"whole", "the name is spoilt after a create that failed")


def _check_one_creator_wins(files: Files) -> None:
    start = threading.Barrier(RACING_CREATORS, timeout=60)

    def create(name: str, number: int) -> bool:
        start.wait()
        try:
            files.create(name, [bytes([number]) * 50_000] * 3)
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(RACING_CREATORS) as threads:
        for name in ("race/1", "race/2", "race/3"):
            creators = range(RACING_CREATORS)
            won = list(threads.map(create, [name] * RACING_CREATORS, creators))
            require(sum(won) == 1, f"of creates that race for one name {sum(won)} succeed, 1 must")
            winner = bytes([won.index(True)]) * 150_000
            require(files.read(name) == winner, "the file is not that of the creator who won")


def _check_list(files: Files) -> None:
    require(files.list("") == [], "new files must list nothing")
    names = ["a/b/1", "a/b/10", "a/b/2", "a/bc", "a0", "b"]
    for name in reversed(names):
        files.create(name, [b"."])
    for prefix in ("", "a", "a/", "a/b", "a/b/", "a/b/1", "b", "c", "c/d/", "b/"):
        expected = sorted(name for name in names if name.startswith(prefix))
        found = files.list(prefix)
        require(found == expected, f"list({prefix!r}) must be {expected}, got {found}")


def _check_directories(files: Files) -> None:
    require(files.directories() == [], "directories() of nothing is not empty")
    for name in ("b/1", "b/c/2", "a/3", "d"):
        files.create(name, [b"x"])
    require(files.directories() == ["a", "b"], "directories() must be those in the root, sorted")
    require(files.directories("b") == ["c"], "directories(b) must be those in b")
    for name in ("a", "d", "e"):
        require(files.directories(name) == [], f"directories({name}) of none is not empty")


def _check_delete(files: Files) -> None:
    files.create("a/gone", [b"1"])
    files.create("a/kept", [b"2"])
    files.delete("a/gone")
    files.delete("a/gone")
    files.delete("never/there")
    require(not files.exists("a/gone"), "a deleted file exists")
    require(files.list("") == ["a/kept"], "delete must delete one file and no other")
    files.create("a/gone", [b"new"])
    require(files.read("a/gone") == b"new", "a deleted name must be free again")


def _check_missing(files: Files) -> None:
    for name in ("missing", "no/such/file"):
        require_raises(FileNotFoundError, functools.partial(files.read, name))
        require_raises(FileNotFoundError, functools.partial(_read_in_chunks, files, name))
        require(not files.exists(name), f"{name} exists and was never created")


def _check_names(files: Files) -> None:
    for name in _BAD_NAMES:
        require_raises(ValueError, functools.partial(files.create, name, [b"x"]))
        for call in (files.read, files.exists, files.delete):
            require_raises(ValueError, functools.partial(call, name))
    for prefix in ("/", "../", "a//", "."):
        require_raises(ValueError, functools.partial(files.list, prefix))
    require(files.list("") == [], "a refused name has left a file")


_CHECKS: tuple[Callable[[Files], None], ...] = (
    _check_round_trip, _check_create_once, _check_failed_create_leaves_nothing,
    _check_one_creator_wins, _check_list, _check_directories, _check_delete, _check_missing,
    _check_names,
)  # fmt: skip


def _read_in_chunks(files: Files, name: str) -> bytes:
    return b"".join(files.read_chunks(name, 10))
