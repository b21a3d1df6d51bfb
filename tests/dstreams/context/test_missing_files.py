"""Input files that are missing when their batch, or a state, reads them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import BatchFailedError, SourceError, StreamingContext
from dstreams.common.settings import UNLIMITED_MS
from dstreams.sources.file_reader import FileReader
from dstreams.sources.source import PlannedInput
from tests.dstreams.conftest import MakeContext

REMEDY = "put it back, or continue without its records with spark.sql.files.ignoreMissingFiles=true"


def update(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def size_of(record: Any) -> tuple[str, int]:
    """Return one element per file for any format: each file has one record."""
    return "files", 1


class Files:
    """A directory from which batches read two files each, and the outputs of a stream over it."""

    def __init__(self, ssc: StreamingContext, directory: Path, read: Any = "textFile") -> None:
        directory.mkdir()
        self.ssc, self.directory = ssc, directory
        self.records: list[int] = []
        self.states: list[list[Any]] = []
        self.in_batch: Callable[[], None] = lambda: None
        if read == "records":
            stream = ssc.binaryRecordsStream(str(directory), 4)
        else:
            stream = ssc.fileStream(str(directory), read=read, newFilesOnly=False)
        stream.foreachRDD(lambda _: self.in_batch())
        stream.foreachRDD(lambda rdd: self.records.append(rdd.count()))
        state = stream.map(size_of).updateStateByKey(update)
        state.foreachRDD(lambda rdd: self.states.append(rdd.collect()))

    def write(self, *names: str) -> None:
        for name in names:
            (self.directory / name).write_text("abc\n")

    def delete(self, name: str) -> None:
        (self.directory / name).unlink()

    def step(self, *names: str) -> Any:
        self.write(*names)
        return self.ssc.step()[0]

    def fail(self, *names: str) -> str:
        self.write(*names)
        with pytest.raises(BatchFailedError) as failure:
            self.ssc.step()
        return str(failure.value)


@pytest.fixture
def vanish(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Delete a file after its batch was planned, and before anything reads it."""
    doomed: list[Path] = []
    read = FileReader.read

    def read_late(reader: FileReader, planned: PlannedInput) -> Any:
        while doomed:
            doomed.pop().unlink()
        return read(reader, planned)

    monkeypatch.setattr(FileReader, "read", read_late)
    return doomed.append


def started(
    make_ssc: MakeContext, tmp_path: Path, read: Any = "textFile", **settings: Any
) -> Files:
    ssc = make_ssc(file_max_age_ms=UNLIMITED_MS, **settings)
    ssc.checkpoint(str(tmp_path / "checkpoint"))
    return Files(ssc, tmp_path / "in", read)


def test_a_state_waits_for_a_file_that_is_missing(
    make_ssc: MakeContext, tmp_path: Path, vanish: Callable[[Path], None]
) -> None:
    """It loses no record of the batch; what needs no state fails in that batch alone.

    Each later batch names the file and the remedy, and the state is whole once the file is back.
    """
    files = started(make_ssc, tmp_path)
    files.step("a1", "a2")
    vanish(files.directory / "b1")
    first = files.fail("b1", "b2")
    second = files.fail("c1")
    for message in first, second:
        assert "in/b1" in message
        assert REMEDY in message
    assert files.records == [2, 1]
    assert files.states == [[("files", 2)]]
    files.write("b1")
    assert files.step("d1").outcome == "succeeded"
    assert files.records == [2, 1, 1]
    assert files.states[-1] == [("files", 6)]


@pytest.mark.deep
@pytest.mark.parametrize("read", ["textFile", "wholeTextFiles", "binaryFiles", "records"])
def test_a_file_that_vanishes_while_its_batch_runs_is_named(
    make_ssc: MakeContext, tmp_path: Path, read: str
) -> None:
    """Also if Spark only reports that a Python worker crashed."""
    files = started(make_ssc, tmp_path, read)
    files.step("a1")
    files.write("b1", "b2")
    files.in_batch = lambda: files.delete("b1") if (files.directory / "b1").exists() else None
    for message in files.fail(), files.fail("c1"):
        assert re.search(r"FileNotFoundException: .*/in/b1", message)
        assert "in/b1 is input of the batch at " in message
        assert REMEDY in message


@pytest.mark.deep
@pytest.mark.parametrize("read", ["textFile", "wholeTextFiles", "binaryFiles", "records"])
def test_with_a_setting_batches_go_on_without_files_that_are_missing(
    make_ssc: MakeContext,
    tmp_path: Path,
    vanish: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
    read: str,
) -> None:
    """The other files of the batch are read; the log and the batch list the skipped ones."""
    files = started(make_ssc, tmp_path, read, ignore_missing_files=True)
    vanish(files.directory / "b1")
    info = files.step("b1", "b2", "b3")
    assert info.inputs[0].description == "new files: b1, b2, b3; skipped 1 that are missing: b1"
    assert files.records == [2]
    assert files.states == [[("files", 2)]]
    assert "skipped 1 missing files of the batch at" in caplog.text
    assert files.step("c1").inputs[0].description == "new files: c1"
    assert files.states[-1] == [("files", 3)]


def test_with_a_setting_a_file_may_vanish_while_its_batch_runs(
    make_ssc: MakeContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks skip that file only, and the batch reports that it vanished."""
    files = started(make_ssc, tmp_path, ignore_missing_files=True)
    files.write("b1", "b2")
    files.in_batch = lambda: files.delete("b1") if (files.directory / "b1").exists() else None
    info = files.step()
    assert info.inputs[0].description == "new files: b1, b2; 1 vanished while the batch ran: b1"
    assert files.records == [1]
    assert files.states == [[("files", 1)]]
    assert "1 files of the batch at" in caplog.text


def test_files_that_all_vanish_while_they_are_opened_are_looked_for_again(
    make_ssc: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark then skips the existing files too; the next batch reads these."""
    files = started(make_ssc, tmp_path, ignore_missing_files=True)
    files.write("b1", "b2")
    there = FileReader._there

    def late(reader: FileReader, planned: PlannedInput) -> Any:
        found = there(reader, planned)
        (files.directory / "b1").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(FileReader, "_there", late)
    assert "vanished while they were opened" in files.fail()
    assert files.step("c1").outcome == "succeeded"
    assert files.states == [[("files", 2)]]


def test_a_restart_needs_the_files_of_its_state_unless_a_setting_says_otherwise(
    sc: SparkContext, make_ssc: MakeContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the file and the remedy; with the setting the state lacks its records."""
    files = started(make_ssc, tmp_path)
    files.step("a1", "a2")
    files.step("b1")
    files.ssc.stop(stopSparkContext=False)
    files.delete("a1")
    states: list[list[Any]] = []

    def again(**settings: Any) -> StreamingContext:
        def setup() -> StreamingContext:
            ssc = make_ssc(file_max_age_ms=UNLIMITED_MS, **settings)
            stream = ssc.fileStream(str(files.directory), newFilesOnly=False)
            state = stream.map(size_of).updateStateByKey(update)
            state.foreachRDD(lambda rdd: states.append(rdd.collect()))
            return ssc

        return StreamingContext.restore(str(tmp_path / "checkpoint"), setup)

    with pytest.raises(SourceError, match="in/a1") as refusal:
        again().step()
    assert REMEDY in str(refusal.value)
    (files.directory / "c1").write_text("abc\n")
    again(ignore_missing_files=True).step()
    assert states[-1] == [("files", 3)]
    assert "skipped 1 missing files" in caplog.text
