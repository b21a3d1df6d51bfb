"""Outputs and the histories of a checkpoint: a batch is written, already there, or refused.

Lines of files are written to a database and to directories of text. Whatever the checkpoint does,
each line is in both once, or the stream stops and says why.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint.cli.main import SUCCEEDED, main
from dstreams import DurabilityError, OutputConflictError, Settings, StreamingContext
from dstreams.common import faults
from dstreams.common.faults import Fault, FaultError
from dstreams.sinks import TransactionalSink, committed_directory, hadoop_directory
from dstreams.testing import ManualClock

pytestmark = pytest.mark.usefixtures("active_stopped")


def as_row(line: str) -> tuple[str]:
    return (line,)


class Lines:
    """A stream of the lines of files into both kinds of output, at second after second.

    Args:
        sc: the context.
        root: where all of it is.
        missed: what becomes of the batches that were missed.
    """

    def __init__(self, sc: SparkContext, root: Path, missed: Any = "all") -> None:
        self.sc, self.root = sc, root
        self.settings = Settings(catch_up=missed)
        self.checkpoint = root / "ck"
        self.inputs = root / "in"
        self.inputs.mkdir()
        (root / "more").mkdir()
        self.change("CREATE TABLE lines (line TEXT)")

    def change(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.root / "out.db")) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()

    def put(self, *seconds: int, into: str = "in") -> None:
        """Put files there, each with its second as its line and modification time."""
        for second in seconds:
            hidden = self.root / into / f".{second}"
            hidden.write_text(f"{second}")
            os.utime(hidden, (second, second))
            hidden.rename(hidden.with_name(f"{second}"))

    def define(self, more: str | None = None) -> StreamingContext:
        ssc = StreamingContext(self.sc, 1, clock=ManualClock(), settings=self.settings)
        ssc.checkpoint(str(self.checkpoint))
        lines = ssc.textFileStream(str(self.inputs), uid="lines")
        if more == "files":
            lines = lines.union(ssc.textFileStream(str(self.root / "more"), uid="more"))
        if more == "queue":
            lines = lines.union(ssc.queueStream([["20"]], uid="more", replayable=True))
        sink = TransactionalSink(self.root / "out.db", "INSERT INTO lines VALUES (?)")
        lines.map(as_row).foreachRDD(sink)
        lines.saveAsTextFiles(f"{self.root}/out")
        return ssc

    def run(self, batches: int, *, clock: int = 0, more: str | None = None) -> None:
        """Run some batches, and crash.

        Args:
            batches: how many.
            clock: the second at which the driver starts, if that is later than its last batch.
            more: of what kind another input is that the code of now has as well.
        """
        hadoop_directory._swept.clear()  # a new process
        committed_directory._compared.clear()
        make = StreamingContext.restore if more else StreamingContext.getOrCreate
        ssc = make(str(self.checkpoint), lambda: self.define(more))
        ssc._clock = ManualClock(1000 * clock)
        try:
            ssc.step(batches)
        finally:
            ssc.stop(stopSparkContext=False)

    def crash_in(self, monkeypatch: pytest.MonkeyPatch, step: str, batch_id: int) -> None:
        """Run up to a step of a batch, and crash there."""
        monkeypatch.setitem(faults._faults, step, Fault(batch_id, "raise"))
        with pytest.raises((FaultError, DurabilityError), match="fault at"):
            self.run(batch_id + 1)

    def backup(self) -> None:
        shutil.copytree(self.checkpoint, self.root / "backup")

    def put_back(self) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(self.root / "backup", self.checkpoint)

    def refuse(self, batches: int, message: str, **how: Any) -> None:
        """Require that the stream stops, with nothing committed and nothing written."""
        before = self.found()
        for _ in range(2):  # a restart changes nothing
            with pytest.raises(DurabilityError, match=message) as stopped:
                self.run(batches, **how)
            assert isinstance(stopped.value.__cause__, OutputConflictError)
            assert self.found() == before

    def found(self) -> tuple[list[str], list[str]]:
        with closing(sqlite3.connect(self.root / "out.db")) as database:
            rows = sorted(line for (line,) in database.execute("SELECT line FROM lines"))
        parts = [path.read_text().split() for path in self.root.glob("out-*/part-*")]
        return rows, sorted(line for part in parts for line in part)

    def require(self, *seconds: int) -> None:
        """Require each line once in both outputs."""
        wanted = sorted(map(str, seconds))
        assert self.found() == (wanted, wanted)

    def remove_from(self, second: int) -> None:
        """Apply the remedy of the errors: remove the outputs of a batch and of all after it."""
        batch = second - 1
        self.change(
            f"DELETE FROM lines WHERE CAST(line AS INT) >= {second}",  # noqa: S608
            f"DELETE FROM dstreams_batches WHERE batch_id >= {batch}",  # noqa: S608
        )
        for path in self.root.glob("out-*"):
            if int(path.name.partition("-")[2]) >= 1000 * second:
                shutil.rmtree(path)


@pytest.mark.deep
@pytest.mark.parametrize("step", ["out.start", "out.done", "commit.start"])
def test_a_batch_that_a_crash_cut_off(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It keeps its begin record: outputs of the dead driver are accepted, the rest is written."""
    stream = Lines(sc, tmp_path)
    stream.put(1, 2, 3)
    stream.crash_in(monkeypatch, step, 1)
    stream.put(4)
    stream.run(3)
    stream.require(1, 2, 3, 4)


@pytest.mark.deep
def test_an_older_copy_that_is_put_back(sc: SparkContext, tmp_path: Path) -> None:
    """Its batches are others than those that are there under their numbers, also with one input.

    Once the outputs are as old as the checkpoint, it continues without loss or duplicates.
    """
    stream = Lines(sc, tmp_path)
    stream.put(1, 2, 3)
    stream.run(2)
    stream.backup()
    stream.run(2)
    stream.put_back()
    stream.put(4)
    stream.refuse(1, r"has batch 2 of stream-.*DELETE FROM dstreams_batches WHERE .* batch_id >= 2")
    stream.change("DELETE FROM dstreams_batches WHERE batch_id >= 2", "DELETE FROM lines")
    stream.change("INSERT INTO lines VALUES (1), (2)")
    with pytest.raises(
        DurabilityError, match=r"remove file:\S+/out-3000 and the directories of la"
    ):
        stream.run(1)
    stream.remove_from(3)
    stream.run(3)
    stream.require(1, 2, 3, 4)


@pytest.mark.deep
def test_an_older_copy_that_leaves_out_batches(sc: SparkContext, tmp_path: Path) -> None:
    """Existing outputs of the batches between would be overwritten: the next batch detects it."""
    stream = Lines(sc, tmp_path, missed="merge")
    stream.put(1, 2, 3)
    stream.run(2)
    stream.backup()
    stream.run(2)
    stream.put_back()
    stream.put(4)
    stream.refuse(1, "has batch 2 of stream-.*; this is batch 7 with token", clock=8)
    stream.change(
        "DELETE FROM lines WHERE CAST(line AS INT) >= 3",
        "DELETE FROM dstreams_batches WHERE batch_id >= 2",
    )
    for name, batch in ("out-3000", 2), ("out-4000", 3):  # the oldest is named
        refusal = rf"{name} has batch {batch} of .*; this is batch 7 with token"
        with pytest.raises(DurabilityError, match=refusal):
            stream.run(1, clock=8)
        shutil.rmtree(tmp_path / name)
    stream.run(1, clock=8)
    stream.require(1, 2, 3, 4)


@pytest.mark.deep
def test_a_copy_of_a_running_batch(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Original and import share their past; after it, the second one to write is refused."""
    stream = Lines(sc, tmp_path)
    stream.put(1, 2, 3)
    stream.crash_in(monkeypatch, "out.start", 1)
    assert main(["export", str(stream.checkpoint), str(tmp_path / "file")]) == SUCCEEDED
    stream.run(1)
    stream.checkpoint = tmp_path / "other"
    assert main(["import", str(tmp_path / "file"), str(stream.checkpoint)]) == SUCCEEDED
    stream.run(2)
    stream.require(1, 2, 3)
    stream.checkpoint = tmp_path / "ck"
    stream.refuse(1, "has batch 2 of")


@pytest.mark.deep
def test_a_stream_that_was_rewound(sc: SparkContext, tmp_path: Path) -> None:
    """Its later batches run again as they were begun, so what is there of them is believed.

    Removed outputs are written again: this is how to regenerate outputs.
    """
    stream = Lines(sc, tmp_path)
    stream.put(1, 2, 3)
    stream.run(3)
    for removed in (False, True):
        assert main(["rewind", str(stream.checkpoint), "--to", "1000"]) == SUCCEEDED
        if removed:
            stream.remove_from(2)
        stream.run(2)
        stream.require(1, 2, 3)
    stream.put(4)
    stream.run(1)
    stream.require(1, 2, 3, 4)


@pytest.mark.deep
@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_a_batch_of_which_an_output_failed(
    sc: SparkContext, tmp_path: Path, on_failure: Any
) -> None:
    """It runs again by itself where the stream stopped, else after a rewind.

    It has the beginning of before: what went well is believed, and what failed is written once.
    """
    stream = Lines(sc, tmp_path)
    stream.settings = Settings(on_failure=on_failure)
    stream.put(1, 2, 3)
    (tmp_path / "out-2000").touch()
    for _ in range(2 if on_failure == "stop" else 1):
        with pytest.raises(Exception, match="remove the directory"):
            stream.run(2)
    if on_failure == "continue":
        stream.run(1)
        assert stream.found() == (["1", "2", "3"], ["1", "3"])
        assert main(["rewind", str(stream.checkpoint), "--to", "1000"]) == SUCCEEDED
    assert stream.found()[0][:2] == ["1", "2"]
    (tmp_path / "out-2000").unlink()
    stream.run(2)
    stream.require(1, 2, 3)


@pytest.mark.deep
@pytest.mark.parametrize("more", ["files", "queue"])
def test_an_input_that_is_added_to_a_batch_in_flight(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Any
) -> None:
    """The batch reads again its original input; the next one reads the new input."""
    stream = Lines(sc, tmp_path)
    stream.put(1, 2)
    stream.crash_in(monkeypatch, "commit.start", 1)
    stream.put(20, into="more")
    os.utime(tmp_path / "more" / "20", (2, 2))
    stream.run(1, more=more)
    stream.require(1, 2)
    stream.run(1, more=more)
    stream.require(1, 2, 20)
