"""The contract of files detects each broken promise."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint import (
    AlreadyExistsError,
    LocalFiles,
    StorageRefusedError,
    StorageUncertainError,
)
from checkpoint.testing import RACING_CREATORS, check_files
from tests.support.faults import FaultyFiles, SimulatedCrash


class Replaces(LocalFiles):
    """Files that replace an existing file, as a rename does."""

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        data = b"".join(chunks)
        self.delete(name)
        return super().create(name, [data])


class ChecksFirst(LocalFiles):
    """Files that check for an existing file, and then write."""

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        path = self._path(name)
        if super().exists(name):
            raise AlreadyExistsError(name)
        data = b"".join(chunks)
        if name.startswith("race"):
            _all_have_looked.wait()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            return file.write(data)


_all_have_looked = threading.Barrier(RACING_CREATORS, timeout=30)


class LeavesTorn(LocalFiles):
    """Files that write under the final name, and leave a partial file on failure."""

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        path = os.path.join(self.root, name)
        try:
            fd = os.open(self._path(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError as error:
            raise AlreadyExistsError(name) from error
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return self.create(name, chunks)
        with open(fd, "wb") as file:
            return sum(file.write(chunk) for chunk in chunks)


class ListsUnsorted(LocalFiles):
    """Files whose lists are unsorted."""

    def list(self, prefix: str) -> Any:
        return super().list(prefix)[::-1]


class ListsDirectories(LocalFiles):
    """Files that list directories instead of prefixes."""

    def list(self, prefix: str) -> Any:
        return [name for name in super().list("") if f"{name}/".startswith(f"{prefix}/")]


class TakesFilesForDirectories(LocalFiles):
    """Files that list everything in a directory as directories."""

    def directories(self, directory: str = "") -> Any:
        return sorted(name.name for name in os.scandir(os.path.join(self.root, directory)))


class MissesDelete(LocalFiles):
    """Files that fail to delete a missing file."""

    def delete(self, name: str) -> None:
        os.unlink(self._path(name))


class ReadsNothing(LocalFiles):
    """Files that read a missing file as empty."""

    def read(self, name: str) -> bytes:
        return super().read(name) if super().exists(name) else b""


class TakesAnyName(LocalFiles):
    """Files that accept any name."""

    def exists(self, name: str) -> bool:
        return os.path.isfile(os.path.join(self.root, name))


class OneChunk(LocalFiles):
    """Files that ignore the chunk size."""

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        yield b"".join(super().read_chunks(name, 1 << 20))


BROKEN = [
    Replaces,
    ChecksFirst,
    LeavesTorn,
    ListsUnsorted,
    ListsDirectories,
    TakesFilesForDirectories,
    MissesDelete,
    ReadsNothing,
    TakesAnyName,
    OneChunk,
]


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_files_that_break_a_promise_do_not_conform(tmp_path: Path, kind: type[LocalFiles]) -> None:
    """Each broken promise of Files is detected."""
    numbers = itertools.count()

    def factory() -> LocalFiles:
        files = kind(str(tmp_path / str(next(numbers))))
        files.make_root()
        return files

    with pytest.raises((AssertionError, FileNotFoundError)):
        check_files(factory)


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(str(tmp_path))


@pytest.mark.parametrize(
    ("effect", "error", "is_done"),
    [
        ("before", StorageRefusedError, False),
        ("before", StorageUncertainError, False),
        ("during", StorageUncertainError, False),
        ("after", StorageUncertainError, True),
        ("before", SimulatedCrash, False),
        ("during", SimulatedCrash, False),
        ("after", SimulatedCrash, True),
    ],
)
def test_effect_and_error_are_independent(
    files: LocalFiles, effect: Any, error: type[BaseException], is_done: bool
) -> None:
    """A failing create has happened or not, whatever the error says."""
    faulty = FaultyFiles(files, 2, effect, error)
    faulty.create("one", [b"x"])
    with pytest.raises(error, match=f"injected fault {effect} operation 2: create two"):
        faulty.create("two", [b"x", b"y"])
    assert faulty.fired
    assert files.exists("two") == is_done
    assert faulty.calls == ["create one", "create two"]


def test_only_a_crash_lasts(files: LocalFiles) -> None:
    """After a crash every operation fails; after any other fault later ones succeed."""
    dead = FaultyFiles(files, 1)
    with pytest.raises(SimulatedCrash):
        dead.exists("one")
    operations: list[Callable[[], object]] = [
        lambda: dead.create("one", [b"x"]),
        lambda: dead.read("one"),
        lambda: dead.read_chunks("one", 10),
        lambda: dead.exists("one"),
        lambda: dead.list(""),
        lambda: dead.delete("one"),
    ]
    for operation in operations:
        with pytest.raises(SimulatedCrash):
            operation()
    assert files.list("") == []
    alive = FaultyFiles(files, 1, "before", StorageRefusedError)
    with pytest.raises(StorageRefusedError):
        alive.exists("one")
    alive.create("one", [b"x"])
    assert alive.read("one") == b"x"


@pytest.mark.parametrize("at", range(1, 7))
def test_every_operation_counts(files: LocalFiles, at: int) -> None:
    """Each method can be the one that fails."""
    faulty = FaultyFiles(files, at, "before", StorageRefusedError)
    operations: list[Callable[[], object]] = [
        lambda: faulty.create("one", [b"x"]),
        lambda: faulty.read("one"),
        lambda: list(faulty.read_chunks("one", 10)),
        lambda: faulty.exists("one"),
        lambda: faulty.list(""),
        lambda: faulty.delete("one"),
    ]
    if at == 1:
        files.create("one", [b"x"])  # for the operations that follow the one that fails
    for number, operation in enumerate(operations, 1):
        if number == at:
            with pytest.raises(StorageRefusedError, match="injected"):
                operation()
        else:
            operation()
    assert faulty.url == files.url


def test_a_refusal_after_the_effect_would_be_a_lie(files: LocalFiles) -> None:
    """Combinations that no storage may show are rejected."""
    with pytest.raises(ValueError, match="use effect 'before'"):
        FaultyFiles(files, 1, "after", StorageRefusedError)
