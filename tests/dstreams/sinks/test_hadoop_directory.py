"""A batch that is cut off at each operation on the file system, and then runs again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext

from dstreams.errors import OutputConflictError
from dstreams.sinks import hadoop_directory
from dstreams.sinks.committed_directory import Manifest
from dstreams.sinks.hadoop_directory import HadoopDirectory
from dstreams.sinks.output_batch import OutputBatch
from tests.support.batches import batch_at

BATCH = batch_at(1000, beginning="aa")
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


def manifest_of(target: Path) -> Manifest:
    found = Manifest.of_text((target / "_SUCCESS").read_text())
    assert found is not None
    return found


def is_complete(target: Path) -> bool:
    return (target / "_SUCCESS").exists()


class Lines:
    """As much of an RDD as the writer uses: lines of two partitions, written without Spark."""

    def __init__(self, line: str) -> None:
        self.line = line

    def getNumPartitions(self) -> int:
        return 2

    def saveAsTextFile(self, path: str) -> None:
        directory = Path(path.removeprefix("file:"))
        directory.mkdir(parents=True)
        for part in range(2):
            (directory / f"part-0000{part}").write_text(f"{self.line}\n")


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


@pytest.mark.deep
@pytest.mark.parametrize("at_once", [True, False])
def test_a_batch_that_is_cut_off_anywhere(
    sc: SparkContext,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
) -> None:
    """A reader finds the whole batch or nothing complete; a run after that leaves the whole batch
    and nothing else.
    """
    if not at_once:
        monkeypatch.setattr(hadoop_directory, "RENAME_AT_ONCE", set())
    survived, rdd = 0, cast(RDD[Any], Lines("line"))
    for number in range(1, 2 * MOST_OPERATIONS):
        folder = tmp_path / str(number)
        target = folder / "out-1000"
        folder.mkdir()
        fatal = Fatal((number + 1) // 2, "before" if number % 2 else "after")
        killed = write_until_killed(sc, target, rdd, fatal, monkeypatch)
        if is_complete(target):
            assert lines(target) == ["line", "line"]
        elif at_once:
            assert not target.exists()
        survived += not killed
        hadoop_directory._swept.clear()
        HadoopDirectory(sc, str(target)).write(BATCH, rdd)
        assert lines(target) == ["line", "line"]
        assert manifest_of(target).beginning == BATCH.batch_token
        assert [path.name for path in folder.iterdir()] == ["out-1000"]
        if survived == 2:
            break
    assert survived == 2, "there were more operations than expected"
    assert number > 2 * 5


class Driver(threading.Thread):
    """A driver that writes a batch, a given number of operations at a time.

    Args:
        sc: the context.
        target: the directory.
        batch: the batch.
    """

    def __init__(self, sc: SparkContext, target: Path, batch: OutputBatch) -> None:
        super().__init__(daemon=True)
        self.batch = batch
        self.directory = HadoopDirectory(sc, str(target))
        self.directory._files = FatalFiles(self.directory._files, self)
        self.written: bool | None = None
        self.error: BaseException | None = None
        self._changed = threading.Condition()
        self._permits, self._is_killed, self._is_waiting, self._has_ended = 0.0, False, False, False
        self.start()

    def run(self) -> None:
        try:
            line = cast(RDD[Any], Lines(f"{self.batch.batch_token} {self.ident}"))
            self.written = self.directory.write(self.batch, line)
        except BaseException as error:
            self.error = error
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def call(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        with self._changed:
            self._is_waiting = True
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._permits > 0 or self._is_killed, 300)
            self._is_waiting = False
            self._permits -= 1
            if self._is_killed:
                raise Py4JError("a dead process does nothing")
        return operation(*arguments)

    def go(self, operations: float = float("inf")) -> bool:
        """Let it continue, and return whether it has ended."""
        with self._changed:
            self._permits = operations
            self._changed.notify_all()
            assert self._changed.wait_for(
                lambda: self._has_ended or (self._is_waiting and not self._permits), 300
            )
            return self._has_ended

    def kill(self) -> None:
        """Let it do nothing any more."""
        with self._changed:
            self._is_killed = True
            self._changed.notify_all()
        self.join(300)


def rename_of(rename: Callable[..., None]) -> Callable[..., None]:
    """The rename of the process, as an operation of the driver that calls it."""

    def renamed(*paths: Any) -> None:
        thread = threading.current_thread()
        if isinstance(thread, Driver):
            thread.call(rename, *paths)
        else:
            rename(*paths)

    return renamed


def require_one(target: Path, drivers: list[Driver]) -> None:
    """Assert that a complete output is of one driver, and of the history that it says."""
    ended = [driver for driver in drivers if driver.written is not None]
    for driver in drivers:
        assert driver.error is None or isinstance(
            driver.error, (OSError, OutputConflictError, Py4JError)
        )
    if not ended and not is_complete(target):
        return
    found = manifest_of(target)
    there = sorted(path.name for path in target.glob("part-*"))
    if not ended and not set(found.files) <= set(there):
        return  # of one that has lost its turn, and has failed
    assert len(lines(target)) == len(there) == 2
    assert len(set(lines(target))) == 1
    assert lines(target)[0].split()[0] == found.beginning
    assert {driver.batch.batch_token for driver in ended} <= {found.beginning}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("at_once", "stride"),
    [
        pytest.param(True, 1, id="at once"),
        pytest.param(False, 9, id="by files, some"),
        pytest.param(False, 1, id="by files, all", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("is_copy", [False, True], ids=["one checkpoint", "a copy"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["both go on", "one is killed"])
def test_two_drivers_on_one_batch(
    sc: SparkContext,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
    stride: int,
    is_copy: bool,
    is_killed: bool,
) -> None:
    """At any point where one continues or dies: the driver that has published the batch keeps
    it, complete and unmixed; another history fails; and a restart leaves the complete batch.
    """
    if not at_once:
        monkeypatch.setattr(hadoop_directory, "RENAME_AT_ONCE", set())
    monkeypatch.setattr(os, "rename", rename_of(os.rename))
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    other = batch_at(1000, beginning="bb") if is_copy else BATCH
    outcomes: set[str] = set()
    for i in range(stride, MOST_OPERATIONS, stride):
        for j in range(1 + i % stride, MOST_OPERATIONS, stride):
            target = tmp_path / f"{i}-{j}" / "out-1000"
            target.parent.mkdir()
            first, second = Driver(sc, target, BATCH), Driver(sc, target, other)
            is_first_over, is_second_over = first.go(i), second.go(j)
            if is_killed:
                first.kill()
            else:
                first.go()
            second.go()
            require_one(target, [first, second])
            outcomes |= {type(driver.error).__name__ for driver in (first, second)}
            hadoop_directory._swept.clear()
            last = Driver(sc, target, BATCH)
            last.go()
            require_one(target, [last, second] if is_killed else [first, second, last])
            assert isinstance(last.error, OutputConflictError) or last.written is not None
            if is_second_over:
                break
        if is_first_over:
            break
    else:
        raise AssertionError("there were more operations than expected")
    assert ("OutputConflictError" in outcomes) is is_copy


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
        HadoopDirectory(sc, str(target))._sweep(BATCH)

    with monkeypatch.context() as patched:
        patched.setattr(RDD, "saveAsTextFile", save_and_lose)
        with pytest.raises(OSError, match="another driver has started to write the same batch"):
            older.write(BATCH, rdd)
    assert not is_complete(target)
    assert HadoopDirectory(sc, str(target)).write(BATCH, rdd)
    assert lines(target) == ["0", "1", "2", "3"]
