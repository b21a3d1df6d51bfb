"""The tools of checkpoint on what a stream has really written."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import StateSpec, StreamingContext
from dstreams.cli.main import main
from dstreams.testing import ManualClock

BATCHES = [[(f"k{number % 3}", number), ("all", 1)] for number in range(1, 9)]

seen: dict[int, list[Any]] = {}
"""What the output was given, by batch time in seconds."""

windows: list[list[Any]] = []
"""What the output of a window was given."""


def note(time: Any, rdd: RDD[Any]) -> None:
    seen[round(time.timestamp())] = sorted(rdd.collect())


def note_window(rdd: RDD[Any]) -> None:
    windows.append(sorted(rdd.collect()))


def size_of(line: str) -> tuple[str, int]:
    return "lines", 1


def total(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def count(key: str, value: int, state: Any) -> tuple[str, int]:
    state.update((state.getOption or 0) + value)
    return key, state.get


def never() -> StreamingContext:
    raise AssertionError("the set-up function must not be called")


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    seen.clear()
    yield
    active = StreamingContext.getActive()
    if active is not None:
        active.stop(stopSparkContext=False)


@pytest.fixture
def checkpoint(sc: SparkContext, tmp_path: Path) -> Path:
    """A stream with copied and stored state, of six batches, that was stopped."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path / "checkpoint"))
    pairs = ssc.queueStream(BATCHES, replayable=True)
    totals = pairs.updateStateByKey(total, numPartitions=2, uid="totals")
    totals.checkpoint(2)
    totals.foreachRDD(note)
    pairs.mapWithState(StateSpec.function(count).numPartitions(2)).foreachRDD(lambda rdd: None)
    ssc.step(6)
    ssc.stop(stopSparkContext=False)
    return tmp_path / "checkpoint"


def run(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> Any:
    capsys.readouterr()
    found = main(["checkpoint", *map(str, words), "--json"])
    shown = capsys.readouterr()
    assert found == status, shown.err
    if words[0] in ("read", "diff"):
        return [json.loads(line) for line in shown.out.splitlines()]
    return json.loads(shown.out)


def go_on(directory: Path, batches: int) -> None:
    ssc = StreamingContext.getOrCreate(str(directory), never)
    ssc.step(batches)
    ssc.stop(stopSparkContext=False)


def pairs_of(rows: list[Any]) -> list[tuple[str, Any]]:
    return sorted((row["key"], row["value"]) for row in rows)


@pytest.mark.deep
def test_a_stream_is_shown_verified_and_read(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its operators, its progress, and the state that its output has seen."""
    show = partial(run, capsys, "show")(checkpoint)
    assert show["last_batch"]["time_ms"] == 6000
    assert show["operators"][0]["operator"] == "totals"
    assert [store["keys"] for store in show["stores"]] == [4]
    assert {"totals"} < {node["uid"] for node in show["graph"]["description"]["operators"]}
    verified = run(capsys, "verify", checkpoint)
    assert (verified["problems"], verified["notes"]) == ([], [])
    batch = show["operators"][0]["snapshot_ms"] // 1000
    assert pairs_of(run(capsys, "read", checkpoint, "--operator", "totals")) == seen[batch]
    stored = show["stores"][0]["operator"]
    # A mapped state is kept with the time at which its key was last seen.
    rows = run(capsys, "read", checkpoint, "--operator", stored)
    assert [(key, state) for key, (state, _) in pairs_of(rows)] == seen[6]
    one = run(capsys, "read", checkpoint, "--operator", stored, "--key", "all")
    assert one == [{"key": "all", "value": [6, 6000]}]
    changed = run(capsys, "diff", checkpoint, "--operator", stored, "--from", 5000)
    assert {row["key"] for row in changed} == {"all", "k0"}


@pytest.mark.deep
def test_a_stream_goes_back_and_runs_its_batches_again(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same input, and then goes on; the checkpoint is whole all the time."""
    before = dict(seen)
    seen.clear()
    assert run(capsys, "rewind", checkpoint, "--to", 5000)["runs_again_ms"] == [6000]
    go_on(checkpoint, 2)
    assert seen[6] == before[6]
    assert seen[7] == sorted({**dict(before[6]), "k1": 1 + 4 + 7, "all": 7}.items())
    assert run(capsys, "verify", checkpoint)["problems"] == []


@pytest.mark.deep
def test_a_stream_moves_in_one_file(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And goes on in another place, as if nothing had happened."""
    before = dict(seen)
    run(capsys, "export", checkpoint, tmp_path / "save")
    checkpoint.rename(tmp_path / "gone")
    run(capsys, "import", tmp_path / "save", tmp_path / "other")
    seen.clear()
    go_on(tmp_path / "other", 1)
    assert list(seen) == [7]
    assert seen[7] == sorted({**dict(before[6]), "k1": 1 + 4 + 7, "all": 7}.items())
    assert run(capsys, "gc", tmp_path / "other", "--void")["files"] == []
    assert run(capsys, "verify", tmp_path / "other")["problems"] == []


@pytest.mark.deep
def test_a_damaged_state_file_is_named_by_the_tools_and_by_the_restart(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any batch runs with it, or in the batch that reads it."""
    newest = max(checkpoint.glob("stream-*/stores/*/*/p00000/*.changes"))
    newest.write_bytes(newest.read_bytes()[:-9])
    problems = run(capsys, "verify", checkpoint, status=3)["problems"]
    assert str(newest) in problems[0]["file"]


@pytest.mark.deep
def test_files_that_are_needed_no_more_may_be_deleted(
    sc: SparkContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cleaner deletes what ``show`` names, after every batch, and no restart lacks it.

    A file stays as long as a copy of the state lacks it, or a window reaches back to it.
    """
    windows.clear()
    directory, url = tmp_path / "in", str(tmp_path / "checkpoint")
    directory.mkdir()
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(url)
    files = ssc.fileStream(str(directory), newFilesOnly=False, maxFileAge=float("inf"), uid="in")
    pairs = files.map(size_of)
    totals = pairs.updateStateByKey(total, numPartitions=2, uid="totals")
    totals.checkpoint(4)
    totals.foreachRDD(note)
    pairs.reduceByKeyAndWindow(operator.add, None, 2, 1, numPartitions=1).foreachRDD(note_window)
    deleted: list[int] = []
    for batch in range(1, 9):
        for name in f"{batch}-a", f"{batch}-b":
            (directory / name).write_text("line\n")
        ssc.step()
        done = run(capsys, "show", url)["files_needed_no_more"]["in"]
        for path in done:
            Path(path.removeprefix("file://")).unlink(missing_ok=True)
        deleted.append(2 * batch - len(list(directory.iterdir())))
        if batch in (4, 5, 7):
            ssc.stop(stopSparkContext=False)
            ssc = StreamingContext.getOrCreate(url, never)
    ssc.stop(stopSparkContext=False)
    assert deleted == [0, 0, 0, 4, 6, 8, 8, 12]
    assert [dict(state)["lines"] for state in seen.values()] == [2 * n for n in range(1, 9)]
    assert windows == [[("lines", min(2 * n, 4))] for n in range(1, 9)]
    main(["checkpoint", "show", url])
    assert "input in: no restart reads files up to " in capsys.readouterr().out
