"""A batch that crashed or failed: what runs again, and what is committed without it."""

from __future__ import annotations

import json
from functools import partial
from operator import add as plus
from operator import sub as minus
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import CommitLog, LocalFiles
from checkpoint.cli.main import main
from dstreams import (
    BatchFailedError,
    DStream,
    Settings,
    SourceError,
    StateSpec,
    StreamingContext,
    StreamingContextState,
)
from dstreams.sources.file_stream import NewFilesReader
from dstreams.testing import ManualClock
from tests.conformance.restarts import (
    begin,
    count,
    crash,
    crash_in,
    failing,
    over_files,
    recover,
    seen,
    stream_of,
    times_of,
    to_a,
    total,
    values_of,
    watch,
    with_one,
    write,
)
from tests.recovery.feeding import define as define_fed
from tests.recovery.feeding import feed, late

pytestmark = pytest.mark.usefixtures("notebook")

STEPS = (
    "plan.start",
    "begin.start",
    "begin.done",
    "job.submit",
    "state.start",
    "state.done",
    "out.start",
    "out.done",
    "commit.start",
    "commit.done",
    "clean.start",
    "clean.done",
)


@pytest.mark.deep
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_each_step(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Batch 3 crashes there: its output runs, once more at most, with the same records."""

    def define(words: DStream[Any]) -> None:
        pairs = words.map(with_one)
        joined = (
            pairs.updateStateByKey(total)
            .checkpoint(2)
            .join(pairs.reduceByKeyAndWindow(plus, minus, 5).checkpoint(3))
        )
        watch(joined.join(pairs.mapWithState(StateSpec.function(count))))

    ssc = begin(sc, tmp_path, [["a"]] * 6, define)
    ssc.step(3)
    crash_in(ssc, monkeypatch, step, 3)
    recover(tmp_path).step(2 if step in ("commit.done", "clean.start", "clean.done") else 3)
    times = [1, 2, 3, 4, 5, 6]
    if step in ("out.done", "commit.start"):
        times.insert(3, 4)
    assert times_of() == times
    assert dict(zip(times_of(), values_of(), strict=True)) == {
        n: [("a", ((n, min(n, 5)), n))] for n in range(1, 7)
    }


def test_a_save_of_the_program_is_written_again(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies between the save and the end of the batch; the batch that repeats saves."""

    def define(words: DStream[Any]) -> None:
        watch(words)
        words.foreachRDD(partial(_save_below, str(tmp_path / "out")))

    ssc = begin(sc, tmp_path / "ck", [["a"], ["b"], ["c"]], define)
    ssc.step()
    crash_in(ssc, monkeypatch, "commit.start", 1)
    recover(tmp_path / "ck").step(2)
    assert times_of() == [1, 2, 2, 3]
    saved = sorted((tmp_path / "out").iterdir())
    assert [(path.name, sc.textFile(str(path)).collect()) for path in saved] == [
        ("1", ["a"]),
        ("2", ["b"]),
        ("3", ["c"]),
    ]


def _save_below(directory: str, time: Any, rdd: RDD[Any]) -> None:
    rdd.saveAsTextFile(f"{directory}/{round(time.timestamp())}")


@pytest.mark.deep
@pytest.mark.parametrize("step", ["state.done", "commit.start"])
def test_blocks_are_kept_until_their_batch_is_committed(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Those that come while a batch runs, or while its copy is written, are in the next one."""
    monkeypatch.setitem(late, 1, [2])
    ssc = define_fed(str(tmp_path), sc)
    ssc.step()
    feed([1])
    crash_in(ssc, monkeypatch, step, 1)
    blocks = list(stream_of(tmp_path / "checkpoint").glob("received/*/*"))
    assert len(blocks) == (1 if step == "state.done" else 2)
    ssc = recover(tmp_path / "checkpoint")
    ssc.step(3)
    crash(ssc)
    lines = (tmp_path / "ledger").read_text().splitlines()
    rows = {(line["output"], line["batch"]): line["rows"] for line in map(json.loads, lines)}
    assert [rows["numbers", batch_id] for batch_id in (0, 1, 2)] == [[], [1], [2]]
    assert rows["sums", 2] == [[0, 2], [1, 1]]


def two_outputs(words: DStream[Any]) -> None:
    sums = words.map(with_one).updateStateByKey(total).checkpoint(20)
    watch(sums, "first")
    watch(sums, "second")
    watch(words.map(with_one).mapWithState(StateSpec.function(count)), "stored")


def fail_in(ssc: StreamingContext, *outputs: str) -> None:
    """Run a batch in which outputs fail."""
    failing.update(outputs)
    with pytest.raises(BatchFailedError):
        ssc.step(1)
    failing.clear()


@pytest.mark.deep
def test_the_output_that_failed_does_not_run_again_by_itself(
    sc: SparkContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is committed; Spark says so nowhere, here record, log and ``show`` do."""
    ssc = begin(sc, tmp_path, [["a"]] * 6, two_outputs)
    ssc.step(1)
    fail_in(ssc, "first")
    ssc.step(1)
    crash(ssc)
    recover(tmp_path).step(1)
    assert times_of("first") == [1, 3, 4]
    assert times_of("second") == times_of("stored") == [1, 2, 3, 4]
    assert values_of("first")[-1] == [("a", 4)]
    log = CommitLog(LocalFiles(str(stream_of(tmp_path))))
    assert log.read(2000).failed_outputs == ("foreachRDD-0",)
    (said,) = (message for message in caplog.messages if "committed without" in message)
    assert said.startswith("outputs foreachRDD-0 of the batch at 2000 ms failed")


def test_a_failed_output_runs_again_after_a_rewind(
    sc: SparkContext,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the log says: with the same input, and so do the other outputs and later batches."""
    ssc, inputs, lines = over_files(sc, tmp_path)
    watch(lines, "first")
    watch(lines.map(int).map(to_a).updateStateByKey(total).checkpoint(20), "second")
    for number in (1, 2, 3):
        write(inputs, str(number), number)
    ssc.step(1)
    fail_in(ssc, "first")
    ssc.step(1)
    crash(ssc)
    assert main(["show", str(tmp_path / "ck")]) == 0
    shown = capsys.readouterr().out
    assert "failed at 1970-01-01T00:00:02Z: foreachRDD-0; to repeat it: rewind --to" in shown
    (said,) = (message for message in caplog.messages if "committed without" in message)
    command = said.partition("dstreams checkpoint ")[2].partition(",")[0].split()
    assert main(command) == 0
    seen.clear()
    write(inputs, "20", 2)  # which comes too late for the batch at 2 s
    recover(tmp_path / "ck").step(3)
    assert [(time, records) for name, time, records in seen if name == "first"] == [
        (2, ["2"]),
        (3, ["3"]),
        (4, ["20"]),
    ]
    assert values_of("second") == [[("a", 3)], [("a", 6)], [("a", 26)]]


@pytest.mark.deep
def test_a_batch_that_failed_under_stop_runs_again_whole(
    sc: SparkContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither it nor its state is committed: a restart has it with the same input, all outputs."""
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(on_failure="stop"))
    ssc.checkpoint(str(tmp_path))
    two_outputs(ssc.queueStream([["a"]] * 6, replayable=True))
    ssc.step(1)
    fail_in(ssc, "second")
    assert ssc.getState() is StreamingContextState.STOPPED
    assert CommitLog(LocalFiles(str(stream_of(tmp_path)))).times() == [1000]
    assert "committed without" not in caplog.text
    ssc = recover(tmp_path)
    fail_in(ssc, "second")  # as often as it fails
    recover(tmp_path).step(2)
    # What stands behind the output that failed was not begun.
    assert times_of("first") == [1, 2, 2, 2, 3]
    assert times_of("second") == times_of("stored") == [1, 2, 3]
    for name in ("first", "second", "stored"):
        by_time = {time: records for known, time, records in seen if known == name}
        assert by_time == {n: [("a", n)] for n in (1, 2, 3)}


@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_an_input_that_could_not_be_read_is_not_lost(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_failure: Any
) -> None:
    """The batch has none of it, also when it runs again, and the next one has the files."""
    settings = Settings(on_failure=on_failure)
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=settings)
    ssc.checkpoint(str(tmp_path / "ck"))
    inputs = tmp_path / "in"
    inputs.mkdir()
    watch(ssc.textFileStream(str(inputs)).map(int).map(to_a).updateStateByKey(total))
    write(inputs, "1", 1)
    ssc.step(1)
    write(inputs, "2", 2)
    with monkeypatch.context() as patch:
        patch.setattr(NewFilesReader, "plan", _refused)
        with pytest.raises(BatchFailedError, match="not today"):
            ssc.step(1)
    if on_failure == "stop":
        ssc = recover(tmp_path / "ck")
    again = [2] if on_failure == "stop" else []
    ssc.step(len(again) + 1)
    assert times_of() == [1, *again, 3]
    assert values_of() == [[("a", 1)]] * (len(again) + 1) + [[("a", 3)]]


def _refused(reader: NewFilesReader, start: Any, time_ms: int) -> Any:
    raise OSError("not today")


def test_files_that_only_a_failed_output_would_read_may_be_gone(
    sc: SparkContext, tmp_path: Path
) -> None:
    """A restart asks for no more than the batches to come do."""
    ssc, inputs, lines = over_files(sc, tmp_path)
    watch(lines, "lines")
    watch(lines.window(2), "windows")
    for number in range(1, 6):
        write(inputs, str(number), number)
    for batches in (1, 2):
        ssc.step(batches)
        fail_in(ssc, "lines", "windows")
    crash(ssc)
    seen.clear()
    (inputs / "2").unlink()
    recover(tmp_path / "ck").step(1)
    assert seen == [("lines", 6, []), ("windows", 6, ["5"])]


@pytest.mark.deep
def test_a_file_that_was_gone_when_its_batch_ran(sc: SparkContext, tmp_path: Path) -> None:
    """The state waits for it, over a restart too, and has all of it when it is there again."""
    ssc, inputs, lines = over_files(sc, tmp_path)
    both = lines.union(ssc.queueStream([["10"]] * 9, replayable=True))
    watch(both.map(int).map(to_a).updateStateByKey(total, 1).checkpoint(20))
    write(inputs, "1", 1)
    write(inputs, "2", 2)
    ssc.step(1)
    engine = ssc._engine
    assert engine is not None
    batch = engine.planner.plan_batch()
    (inputs / "2").unlink()
    assert isinstance(engine.runner.run(batch).error, BatchFailedError)
    write(inputs, "3", 3)
    with pytest.raises(BatchFailedError, match="in/2"):
        ssc.step(1)
    crash(ssc)
    with pytest.raises(SourceError, match=r"in/2.* put it back, or continue without"):
        recover(tmp_path / "ck").step(1)
    write(inputs, "2", 2)
    for _ in range(2):
        ssc = recover(tmp_path / "ck")
        ssc.step(1)
        crash(ssc)
    assert values_of() == [[("a", n)] for n in (11, 46, 56)]
