"""A batch that is cut off at each operation on the file system, and then runs again."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext

from dstreams.sinks import hadoop_directory
from dstreams.sinks.hadoop_directory import HadoopDirectory
from dstreams.sinks.manifest import Manifest
from tests.support.batches import batch_at

BATCH = batch_at(1000)
MOST_OPERATIONS = 60


class KilledError(BaseException):
    """The process is gone."""


class Fatal:
    """Lets a process die at one of its operations, before or after that has taken effect.

    Args:
        at: number of the operation, from 1 on.
        when: before or after.
    """

    def __init__(self, at: int, when: str) -> None:
        self.at = at
        self.when = when
        self.operations = 0

    def call(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        self.operations += 1
        if self.operations > self.at:
            raise Py4JError("a dead process does nothing")  # what clean-up code would try
        if self.operations == self.at and self.when == "before":
            raise KilledError
        result = operation(*arguments)
        if self.operations == self.at:
            raise KilledError
        return result


class FatalFiles:
    """A file system of Hadoop's, for a process that dies."""

    def __init__(self, files: Any, fatal: Fatal) -> None:
        self._files = files
        self._fatal = fatal

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._files, name)
        return lambda *arguments: self._fatal.call(operation, *arguments)


def lines(target: Path) -> list[str]:
    return sorted(line for part in target.glob("part-*") for line in part.read_text().splitlines())


def is_complete(target: Path) -> bool:
    return (target / "_SUCCESS").exists()


def write_until_killed(
    sc: SparkContext, target: Path, rdd: RDD[Any], fatal: Fatal, patch: pytest.MonkeyPatch
) -> bool:
    """Write a batch, and return whether the process died."""
    hadoop_directory._swept.clear()  # a new process
    directory = HadoopDirectory(sc, str(target))
    directory._files = FatalFiles(directory._files, fatal)
    with patch.context() as patched:
        rename = os.rename
        patched.setattr(os, "rename", lambda *paths: fatal.call(rename, *paths))
        try:
            directory.write(BATCH, rdd)
        except KilledError:
            return True
    return False


@pytest.fixture
def rdd(sc: SparkContext) -> RDD[Any]:
    return sc.parallelize(range(4), 2)


@pytest.mark.parametrize(
    ("at_once", "replaces"),
    [
        (True, True),
        pytest.param(True, False, marks=pytest.mark.slow),
        (False, False),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
def test_a_batch_that_is_cut_off_anywhere(
    sc: SparkContext,
    rdd: RDD[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
    replaces: bool,
) -> None:
    """A reader finds the whole batch, what was there before it, or nothing complete; a run after
    that leaves the whole batch and nothing else.
    """
    if not at_once:
        monkeypatch.setattr(hadoop_directory, "RENAME_AT_ONCE", set())
    survived = 0
    for number in range(1, 2 * MOST_OPERATIONS):
        folder = tmp_path / str(number)
        target = folder / "out-1000"
        folder.mkdir()
        if replaces:
            HadoopDirectory(sc, str(target)).write(batch_at(1000, "stream-other"), sc.range(9, 10))
        fatal = Fatal((number + 1) // 2, "before" if number % 2 else "after")
        killed = write_until_killed(sc, target, rdd, fatal, monkeypatch)
        if is_complete(target):
            assert lines(target) in (["0", "1", "2", "3"], ["9"])
        elif at_once:
            assert not target.exists()
        survived += not killed
        hadoop_directory._swept.clear()
        HadoopDirectory(sc, str(target)).write(BATCH, rdd)
        assert lines(target) == ["0", "1", "2", "3"]
        manifest = Manifest.of_text((target / "_SUCCESS").read_text())
        assert manifest is not None
        assert manifest.is_of(BATCH)
        assert [path.name for path in folder.iterdir()] == ["out-1000"]
        if survived == 2:
            break
    assert survived == 2, "there were more operations than expected"
    assert number > 2 * 5


class Interrupted(Fatal):
    """Lets another driver write at one of the operations of this one, just before it."""

    def __init__(self, at: int, write: Callable[[], Any]) -> None:
        super().__init__(at, "before")
        self.write = write

    def call(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        self.operations += 1
        if self.operations == self.at:
            self.write()
        return operation(*arguments)


def test_a_driver_that_was_replaced_while_it_wrote(
    sc: SparkContext, rdd: RDD[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stood while the newer one wrote the batch: that one's output stays, unmixed."""
    monkeypatch.setattr(hadoop_directory, "RENAME_AT_ONCE", set())
    other = sc.parallelize(range(4), 3)
    refused: list[str] = []
    for number in range(1, MOST_OPERATIONS):
        folder = tmp_path / str(number)
        target = folder / "out-1000"
        folder.mkdir()
        newer = HadoopDirectory(sc, str(target))
        interrupted = Interrupted(number, partial(newer.write, BATCH, other))
        older = HadoopDirectory(sc, str(target))
        older._files = FatalFiles(older._files, interrupted)  # type: ignore[assignment]
        try:
            older.write(BATCH, rdd)
        except OSError as error:
            refused.append(str(error))
        assert is_complete(target)
        assert lines(target) == ["0", "1", "2", "3"]
        manifest = Manifest.of_text((target / "_SUCCESS").read_text())
        assert manifest is not None
        assert manifest.is_of(BATCH)
        if interrupted.operations < number:
            break
    assert refused
    assert all("another driver writes the same batch" in message for message in refused)
    assert interrupted.operations < number, "there were more operations than expected"


@pytest.mark.parametrize("at_once", [True, False])
def test_files_that_a_newer_driver_has_swept_away(
    sc: SparkContext, rdd: RDD[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Nothing is published in their place: an output without its records would count as one."""
    if not at_once:
        monkeypatch.setattr(hadoop_directory, "RENAME_AT_ONCE", set())
    target = tmp_path / "out-1000"
    older, save = HadoopDirectory(sc, str(target)), RDD.saveAsTextFile

    def save_and_lose(saved: RDD[Any], path: str) -> None:
        save(saved, path)
        hadoop_directory._swept.clear()  # another process
        HadoopDirectory(sc, str(target))._sweep(BATCH.stream_id)

    with monkeypatch.context() as patched:
        patched.setattr(RDD, "saveAsTextFile", save_and_lose)
        with pytest.raises(OSError, match="another driver writes the same batch"):
            older.write(BATCH, rdd)
    assert not is_complete(target)
    assert HadoopDirectory(sc, str(target)).write(BATCH, rdd)
    assert lines(target) == ["0", "1", "2", "3"]
