"""Restarts after a crash at each step of a batch, and after loss of files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from checkpoint import CorruptCheckpointError
from dstreams.cli.drill import steps as drill
from dstreams.common import faults
from dstreams.errors import RestartError
from dstreams.structured import StreamingDataset, StreamingQuery, StreamSession, window
from dstreams.structured.api.session import MemoryStreamHandle
from dstreams.structured.execution import query_checkpoint
from dstreams.structured.sources.committed_files import committed_lines
from tests.dstreams.structured.runs import QueryRun

STEPS = [step.name for step in drill.STEPS if not (step.function or step.in_restart)]


def die_at(step: str) -> None:
    """Let the next batch that comes to a step die there."""
    faults._faults[step] = faults.Fault(None, "raise")


def seconds(record: int) -> int:
    return record * 1000


def windowed(events: StreamingDataset) -> StreamingDataset:
    marked = events.withWatermark(seconds, "10 seconds")
    counted = marked.groupByKey(window(seconds, "5 seconds")).count()
    return counted.map(lambda row: f"{row[0].start_ms // 1000}:{row[1]}")


class FilesRun:
    """A windowed count into files, restarted at will."""

    def __init__(self, session: StreamSession, directory: Path) -> None:
        self.stream: MemoryStreamHandle = session.memoryStream()
        self._directory = directory

    def start(self) -> StreamingQuery:
        writer = windowed(self.stream.toDS()).writeStream.format("text")
        checkpoint = str(self._directory / "checkpoint")
        return writer.option("checkpointLocation", checkpoint).start(self._directory / "output")

    def add(self, *records: int) -> None:
        """Run a query over some more records."""
        self.stream.addAll(records)
        query = self.start()
        query.processAllAvailable()
        query.stop()

    def crash(self, *records: int) -> None:
        """Run a query that is to die over some more records."""
        self.stream.addAll(records)
        query = self.start()
        with pytest.raises(RuntimeError, match="fault at"):
            query.processAllAvailable()

    def output(self) -> dict[int, list[str]]:
        """Return what counts in the directory, by batch."""
        found = committed_lines(str(self._directory / "output"))
        return {batch: sorted(lines) for batch, lines in found.items() if lines}


@pytest.mark.deep
@pytest.mark.parametrize("step", STEPS)
def test_crash(session: StreamSession, tmp_path: Path, step: str) -> None:
    """Wherever a batch dies, the files are those of a run that was not disturbed."""
    run = FilesRun(session, tmp_path)
    run.add(10, 11, 16)
    die_at(step)
    run.crash(25)
    run.add(26)
    run.add(50)
    assert sorted(line for lines in run.output().values() for line in lines) == [
        "10:2",
        "15:1",
        "25:2",
    ]


@pytest.mark.deep
def test_progress_of_a_batch_that_is_run_again(session: StreamSession, tmp_path: Path) -> None:
    """The newest offset that is known is not older than the end of the batch."""
    run = FilesRun(session, tmp_path)
    run.add(10)
    die_at("state.done")
    run.crash(25)
    query = run.start()
    query.processAllAvailable()
    again = query.recentProgress[0]["sources"][0]
    assert (again["startOffset"], again["endOffset"], again["latestOffset"]) == (1, 2, 2)
    assert query.status["isDataAvailable"] is False
    query.stop()


def test_files_lost(session: StreamSession, tmp_path: Path) -> None:
    """A checkpoint that lacks what a restart needs is refused, and the message says what."""
    run = FilesRun(session, tmp_path)
    run.add(10)
    run.add(12)
    checkpoint, kept = tmp_path / "checkpoint", tmp_path / "kept"
    shutil.copytree(checkpoint, kept)

    def lose(pattern: str) -> None:
        shutil.rmtree(checkpoint)
        shutil.copytree(kept, checkpoint)
        for path in sorted(checkpoint.glob(pattern)):
            path.unlink()

    lose("epochs/*")
    with pytest.raises(RestartError, match=r"epochs.*\.takeover is missing"):
        run.start()
    lose("batches/*")
    with pytest.raises(RestartError, match="batch 2 doesn't exist"):
        run.start()
    lose("stores/**/*.changes")
    shutil.rmtree(tmp_path / "local", ignore_errors=True)
    with pytest.raises(CorruptCheckpointError, match=r"\.changes is missing"):
        run.start()


@pytest.mark.deep
def test_last_commit_lost(session: StreamSession, tmp_path: Path) -> None:
    """The last batch runs again as it was: same records, time and watermark."""
    run = QueryRun(session, windowed, "append", tmp_path / "checkpoint")
    run.add(10, 11, 12, 13, 14, 15)
    assert run.add(25) == ["10:5"]
    run.query.stop()
    commits = sorted((tmp_path / "checkpoint" / "commits").iterdir())
    commits[-1].unlink()
    run.forget()
    run.query = run._start()
    assert run.add(10, 27, 30) == ["10:5", "15:1"]
    repeated = run.query.recentProgress[0]
    assert repeated["batchId"] == len(commits) - 1
    assert repeated["eventTime"]["watermark"] == "1970-01-01T00:00:15.000Z"
    run.restart()
    assert run.add(17) == []
    assert run.add(40) == ["25:2"]


@pytest.mark.deep
def test_several_commits_lost(session: StreamSession, tmp_path: Path) -> None:
    """All batches after the last commit run again, one by one, as they were."""
    run = QueryRun(session, windowed, "update", tmp_path / "checkpoint")
    for second in (10, 11, 12):
        run.add(second)
    run.query.stop()
    for commit in sorted((tmp_path / "checkpoint" / "commits").iterdir())[1:]:
        commit.unlink()
    run.forget()
    run.query = run._start()
    assert run.add(13) == ["10:2", "10:3", "10:4"]


def test_time_of_a_batch_that_runs_again(
    session: StreamSession, tmp_path: Path, clock: Any
) -> None:
    """A batch that runs again has the time that it had."""

    def times(key: Any, values: Any, state: Any) -> Any:
        return [(key, state.getCurrentProcessingTimeMs())]

    def build(words: StreamingDataset) -> StreamingDataset:
        return words.groupByKey(lambda word: word).flatMapGroupsWithState(times, "update")

    run = QueryRun(session, build, "update", tmp_path / "checkpoint")
    assert run.add("a") == [("a", 1000)]
    run.query.stop()
    (commit,) = (tmp_path / "checkpoint" / "commits").iterdir()
    commit.unlink()
    clock.advance(60_000)
    run.forget()
    run.query = run._start()
    assert run.outputs() == [("a", 1000)]
    assert run.add("b") == [("b", 61_000)]


def test_newer_run_wins(
    session: StreamSession, tmp_path: Path, sc: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose checkpoint was taken over stops at its next batch, and writes nothing."""
    run = FilesRun(session, tmp_path)
    run.stream.addAll([10])
    older = run.start()
    older.processAllAvailable()
    other = StreamSession(sc, {"spark.sql.shuffle.partitions": "2"}, clock)
    taking_over = FilesRun(other, tmp_path)
    taking_over.stream.addAll([10])
    monkeypatch.setattr(query_checkpoint, "_active", [])  # what another process would see
    newer = taking_over.start()
    newer.processAllAvailable()
    run.stream.addAll([11])
    with pytest.raises(RuntimeError, match=f"process {os.getpid()} on host .* has taken over"):
        older.processAllAvailable()
    taking_over.stream.addAll([40])
    newer.processAllAvailable()
    other.stop()
    assert list(taking_over.output().values()) == [["10:1"]]
