"""Durable state: what is committed, that lineage and directory stay small, and what failures do."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import (
    CommitLog,
    CommitRecord,
    CorruptCheckpointError,
    Files,
    LocalFiles,
    StorageRefusedError,
    StorageUncertainError,
    open_files,
    read_state_file,
)
from checkpoint.state_store import StreamRetention
from dstreams import (
    BatchFailedError,
    DurabilityError,
    StateSpec,
    StreamingContext,
    StreamingContextState,
    StreamLifecycleError,
)
from dstreams.common.durations import batch_name
from dstreams.common.faults import watch
from dstreams.spark.blocks import Block
from dstreams.testing import BatchDriver, ManualClock
from tests.support.faults import FaultyFiles
from tests.support.waiting import wait_for

Pairs = list[tuple[Any, Any]]


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def ones(count: int) -> list[Pairs]:
    return [[("a", 1), (f"key {number}", 1)] for number in range(count)]


def expected(batches: int) -> Pairs:
    """Return the state after that many batches of ones()."""
    return sorted([("a", batches), *((f"key {number}", 1) for number in range(batches))])


def run_directory(base: Path) -> Path:
    (directory,) = base.glob("stream-*")
    return directory


def log_of(base: Path) -> CommitLog:
    return CommitLog(LocalFiles(str(run_directory(base))))


def copies_of(base: Path) -> list[int]:
    """Return the times of the batches with a snapshot of any stream."""
    return [record.batch_time_ms for record in log_of(base).records() if record.snapshots]


def state_in(log: CommitLog, record: CommitRecord, uid: str) -> Pairs:
    """Read the state that a record names, checking every file."""
    pairs: Pairs = []
    commit = record.snapshots[uid]
    for ref, wanted in commit.partitions(record.stream_id, uid, record.batch_time_ms):
        blocks = [Block(data) for data in read_state_file(log.files, ref, wanted)]
        assert sum(block.rows for block in blocks) == ref.records
        for block in blocks:
            pairs += zip(block.keys(), block.values(), strict=True)
    return sorted(pairs)


def failing_run(driver: BatchDriver) -> BatchFailedError:
    with pytest.raises(BatchFailedError) as raised:
        driver.run(1)
    return raised.value


# Written files -------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_record_names_the_files_of_the_state(sc: SparkContext, tmp_path: Path) -> None:
    """At each interval; every file verifies, and together they are the state."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        states = driver.input(ones(5)).updateStateByKey(add, 3).checkpoint(2)
        seen = driver.output(states)
        driver.run(5)
    log = log_of(tmp_path)
    assert log.times() == [2000, 3000, 4000, 5000]
    assert copies_of(tmp_path) == [2000, 4000]
    for time_ms in copies_of(tmp_path):
        record = log.read(time_ms)
        assert (record.stream_id, record.batch_id) == (
            run_directory(tmp_path).name,
            time_ms // 1000 - 1,
        )
        (uid,) = record.snapshots
        assert uid == "updateStateByKey-0"
        assert record.snapshots[uid].partitioner == "stable-hash-1"
        assert record.writer["hash"] == "stable-hash-1"
        assert len(record.snapshots[uid].files) == 3
        assert state_in(log, record, uid) == expected(time_ms // 1000)
    assert [sorted(batch or []) for batch in seen] == [expected(n) for n in range(1, 6)]


@pytest.mark.deep
def test_one_record_covers_all_streams_of_a_batch(sc: SparkContext, tmp_path: Path) -> None:
    """State streams and other checkpointed streams are committed together, each when due."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        pairs = driver.input(ones(4))
        first = pairs.updateStateByKey(add).checkpoint(1)
        driver.output(first.updateStateByKey(add, 3).checkpoint(2))
        driver.output(pairs.map(str).checkpoint(4))
        driver.run(4)
    log = log_of(tmp_path)
    records = {time_ms: log.read(time_ms) for time_ms in log.times()}
    assert sorted(records[4000].snapshots) == ["map-0", "updateStateByKey-0", "updateStateByKey-1"]
    assert sorted(records[3000].snapshots) == ["updateStateByKey-0"]
    second = state_in(log, records[4000], "updateStateByKey-1")
    assert second[0] == ("a", 1 + 2 + 3 + 4)


def test_a_stream_without_state_reads_back_what_was_written(
    sc: SparkContext, tmp_path: Path
) -> None:
    """Any checkpointed stream is read from its files after its batch."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        driver.context.remember(9)
        numbers = driver.input([[1, 2], [3]]).map(lambda x: x * x).checkpoint(1)
        seen = driver.output(numbers)
        driver.run(2)
        lose_all_blocks(sc)
        assert [rdd.collect() for rdd in numbers.slice(1, 2)] == seen == [[1, 4], [9]]


def test_the_default_interval_is_ten_seconds(sc: SparkContext, tmp_path: Path) -> None:
    """Batches of 3 s are made durable every 12 s, the first multiple that is 10 s or more."""
    with BatchDriver(sc, 3, checkpoint=str(tmp_path)) as driver:
        driver.input(ones(9)).updateStateByKey(add).foreachRDD(lambda rdd: rdd.count())
        driver.run(9)
    assert copies_of(tmp_path) == [12_000, 24_000]


def test_two_runs_in_one_directory_do_not_meet(sc: SparkContext, tmp_path: Path) -> None:
    """A run neither reads nor deletes files of another run."""
    for _ in range(2):
        with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
            states = driver.input(ones(2)).updateStateByKey(add).checkpoint(1)
            seen = driver.output(states)
            driver.run(2)
            assert sorted(seen[1] or []) == expected(2)
    runs = list(tmp_path.glob("stream-*"))
    assert len(runs) == 2
    for run in runs:
        assert CommitLog(LocalFiles(str(run))).times() == [1000, 2000]


def test_the_directory_of_the_spark_context_will_do(sc: SparkContext, tmp_path: Path) -> None:
    """sc.setCheckpointDir alone is enough, as in Spark."""
    sc.setCheckpointDir(str(tmp_path))
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    try:
        states = ssc.queueStream(ones(1)).updateStateByKey(add).checkpoint(1)
        states.foreachRDD(lambda rdd: rdd.count())
        ssc.step()
    finally:
        ssc.stop(stopSparkContext=False)
    (base,) = tmp_path.iterdir()
    assert log_of(base).times() == [1000]


# Sizes ---------------------------------------------------------------------------------------


@pytest.mark.deep
def test_lineage_is_cut(sc: SparkContext, tmp_path: Path) -> None:
    """Over five intervals the lineage of the state is no deeper than over one interval."""
    depths: list[int] = []

    def look(rdd: RDD[Any]) -> None:
        lineage = rdd.toDebugString()
        assert lineage is not None
        depths.append(len(lineage.splitlines()))
        rdd.count()

    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        states = driver.input([[("a", 1)]] * 25).updateStateByKey(add).checkpoint(5)
        states.foreachRDD(look)
        driver.run(25)
    # It grows from batch to batch, and is as short again after each interval.
    assert depths[5:10] == sorted(set(depths[5:10]))
    assert depths[5:10] * 4 == depths[5:]


@pytest.mark.deep
def test_old_files_are_deleted(sc: SparkContext, tmp_path: Path) -> None:
    """Files of the last two intervals are kept; older and unfinished ones are deleted."""
    counts: list[int] = []
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        states = driver.input([[("a", 1)]] * 20).updateStateByKey(add, 2).checkpoint(1)
        states.foreachRDD(lambda rdd: rdd.count())
        for _ in range(20):
            driver.run(1)
            counts.append(sum(path.is_file() for path in run_directory(tmp_path).rglob("*")))
    # Two state files and two records each; the graph, the claim and the takeover.
    assert counts == [7, 11, *[15] * 18]
    log = log_of(tmp_path)
    assert log.times() == [18_000, 19_000, 20_000]
    named = set().union(*(log.read(time_ms).file_names() for time_ms in log.times()))
    assert set(log.files.list("state/")) == named


# Failed batches ------------------------------------------------------------------------------


@pytest.mark.deep
def test_an_output_that_always_fails_does_not_fill_the_disk(
    sc: SparkContext, tmp_path: Path
) -> None:
    """The state is still committed, so its lineage is cut and old files are deleted."""

    def fail(rdd: RDD[Any]) -> None:
        raise ValueError("always")

    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        states = driver.input(ones(8)).updateStateByKey(add).checkpoint(1)
        states.foreachRDD(fail)
        seen = driver.output(states)
        for _ in range(8):
            assert not isinstance(failing_run(driver), DurabilityError)
    assert log_of(tmp_path).times() == [6000, 7000, 8000]
    assert sum(path.is_file() for path in run_directory(tmp_path).rglob("*")) == 16
    assert sorted(seen[-1] or []) == expected(8)


def test_a_due_state_is_made_and_written_although_no_output_runs(
    sc: SparkContext, tmp_path: Path
) -> None:
    """A failure before the outputs does not postpone durability."""

    def fail_when_due(time: datetime, rdd: RDD[Any]) -> RDD[Any]:
        calls.append(round(time.timestamp()))
        if calls == [1, 2, 3]:
            raise ValueError("once")
        return rdd

    calls: list[int] = []
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        pairs = driver.input(ones(4)).transform(fail_when_due)
        seen = driver.output(pairs.updateStateByKey(add).checkpoint(3))
        driver.run(2)
        failing_run(driver)
        driver.run(1)
    assert copies_of(tmp_path) == [3000]
    assert seen[-2] is None
    assert sorted(seen[-1] or []) == expected(4)


@pytest.mark.deep
def test_a_due_state_that_could_not_be_made_is_written_when_it_is_due_again(
    sc: SparkContext, tmp_path: Path
) -> None:
    """Nothing is lost meanwhile, even if that takes longer than the state is remembered."""
    is_failing = [False]

    def fail(rdd: RDD[Any]) -> RDD[Any]:
        if is_failing[0]:
            raise ValueError("not now")
        return rdd

    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        pairs = driver.input(ones(10)).transform(fail)
        seen = driver.output(pairs.updateStateByKey(add).checkpoint(2))
        driver.run(3)
        is_failing[0] = True
        for _ in range(6):
            failing_run(driver)
        is_failing[0] = False
        driver.run(1)
    assert copies_of(tmp_path) == [2000, 10_000]
    assert sorted(seen[-1] or []) == expected(10)


@pytest.mark.deep
@pytest.mark.parametrize(
    "error", [ConnectionError("refused"), FileNotFoundError("rules.csv"), TimeoutError("late")]
)
@pytest.mark.parametrize("kind", ["copied", "stored"])
def test_an_os_error_of_a_function_above_a_state_is_none_of_the_storage(
    sc: SparkContext, tmp_path: Path, error: OSError, kind: str
) -> None:
    """The batch fails, and the stream continues with all of its input."""
    errors: list[Exception] = []

    def look_up(rdd: RDD[Any]) -> RDD[Any]:
        if errors:
            raise errors[0]
        return rdd

    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        pairs = driver.input(ones(3)).transform(look_up)
        if kind == "copied":
            seen = driver.output(pairs.updateStateByKey(add).checkpoint(2))
        else:
            spec = StateSpec.function(counted)
            seen = driver.output(pairs.mapWithState(spec).stateSnapshots())
        driver.run(1)
        errors.append(error)
        failure = failing_run(driver)
        assert not isinstance(failure, DurabilityError)
        assert failure.__cause__ is error
        errors.clear()
        driver.run(1)
    assert sorted(seen[-1] or []) == expected(3)


def counted(key: str, value: int, state: Any) -> None:
    state.update((state.getOption or 0) + value)


# Failed storage ------------------------------------------------------------------------------


def delete(directory: Path) -> None:
    shutil.rmtree(directory)


def replace_by_a_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.touch()


@pytest.mark.parametrize("damage", [delete, replace_by_a_file])
def test_a_directory_that_is_gone_stops_the_context(
    sc: SparkContext, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Also with on_failure "continue", a stream stops if it cannot be durable."""
    clock = ManualClock()
    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.checkpoint(str(tmp_path))
    seen: list[Pairs] = []
    states = ssc.queueStream(ones(4)).updateStateByKey(add, 1).checkpoint(2)
    states.foreachRDD(lambda rdd: seen.append(sorted(rdd.collect())))
    steps: list[str] = []
    end_watch = watch(steps.append)
    ssc.start()
    try:
        clock.advance(1000)
        directory = run_directory(tmp_path)
        # After its commit record, the driver checks for a newer one.
        wait_for(lambda: "clean.done" in steps)
        damage(directory)
        clock.advance(2000)
        wait_for(lambda: ssc.getState() is StreamingContextState.STOPPED)
        with pytest.raises(DurabilityError) as raised:
            ssc.awaitTermination()
    finally:
        ssc.stop(stopSparkContext=False)
        end_watch()
    message = str(raised.value)
    assert message.startswith(f"{batch_name(2000, 1)} failed in writing its begin record: ")
    assert str(directory) in message
    assert raised.value.batch_time_ms == 2000
    # No output saw a state that is not durable, and no later batch ran.
    assert seen == [expected(1)]


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.chmod(0o600)
    file.write_bytes(data)


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.deep
@pytest.mark.parametrize("damage", [flip_a_byte, cut_off, Path.unlink])
def test_a_damaged_state_file_is_no_failure_of_the_output(
    sc: SparkContext, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """The output that reads it fails, and the error blames the storage and names the file."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        states = driver.input(ones(2)).updateStateByKey(add, 1).checkpoint(1)
        rest = states.updateStateByKey(add, 1).checkpoint(4)
        driver.output(rest)
        driver.run(1)
        (file,) = run_directory(tmp_path).glob("state/*/*.state")
        damage(file)
        error = failing_run(driver)
    assert isinstance(error, DurabilityError)
    assert CorruptCheckpointError.__name__ in str(error)
    assert file.name in str(error)


@pytest.mark.deep
def test_a_state_that_cannot_be_read_in_an_output_stops_the_context(
    sc: SparkContext, tmp_path: Path
) -> None:
    """Batches without a due snapshot notice it too: the first one that reads the files."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        driver.output(driver.input(ones(3)).updateStateByKey(add, 1).checkpoint(2))
        driver.run(2)
        delete(run_directory(tmp_path) / "state")
        error = failing_run(driver)
    assert isinstance(error, DurabilityError)
    assert f"{batch_name(3000, 2)} failed in " in str(error)


class FaultyInTheDriver(FaultyFiles):
    """Faults in the driver only, from a commit on: workers get working files."""

    _is_counting = False

    def call(self, operation: str, run: Callable[[], Any], *, writes_parts: bool = False) -> Any:
        self._is_counting |= operation.startswith("create commits/")
        if not self._is_counting:
            return run()
        return super().call(operation, run, writes_parts=writes_parts)

    def __reduce__(self) -> tuple[Callable[[Files], Files], tuple[Files]]:
        return _itself, (self._inner,)


class FaultyInTasks(FaultyFiles):
    """Faults in writing a state file only."""

    def call(self, operation: str, run: Callable[[], Any], *, writes_parts: bool = False) -> Any:
        if not operation.startswith("create state/"):
            return run()
        return super().call(operation, run, writes_parts=writes_parts)


def _itself(files: Files) -> Files:
    return files


def with_files(driver: BatchDriver, wrap: Callable[[Files], Files]) -> Any:
    """Let the running engine write to other files from now on; return them."""
    engine = driver.context._engine
    assert engine is not None
    committer = engine.committer
    assert committer is not None
    log = committer.checkpoint
    log.files = committer.snapshots.files = files = wrap(log.files)
    lease = replace(log.owned.lease, files=files)
    log.owned = replace(log.owned, lease=lease)
    for records in (log.commits, log._begins):
        records.files, records._lease = files, lease
    return files


@pytest.mark.deep
@pytest.mark.parametrize("error", [StorageRefusedError, StorageUncertainError])
def test_a_commit_that_fails_fails_the_batch_and_stops_the_context(
    sc: SparkContext, tmp_path: Path, error: type[Exception]
) -> None:
    """The outputs saw the state; no batch builds on a state that may not be durable."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        seen = driver.output(driver.input(ones(3)).updateStateByKey(add).checkpoint(2))
        driver.run(1)
        files = with_files(driver, lambda inner: FaultyInTheDriver(inner, 1, error=error))
        failure = failing_run(driver)
        assert files.fired
        assert driver.context.getState() is StreamingContextState.STOPPED
        with pytest.raises(StreamLifecycleError, match="already been stopped"):
            driver.context.step()
    assert isinstance(failure, DurabilityError)
    assert str(failure).startswith(f"{batch_name(2000, 1)} failed in committing its state: ")
    assert isinstance(failure.__cause__, error)
    assert log_of(tmp_path).times() == [1000]
    assert [sorted(batch or []) for batch in seen] == [expected(n) for n in (1, 2)]


def test_a_commit_of_which_only_the_news_was_lost_is_a_commit(
    sc: SparkContext, tmp_path: Path
) -> None:
    """The record exists, whatever the storage reported: reading it back settles the doubt."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        driver.output(driver.input(ones(2)).updateStateByKey(add).checkpoint(2))
        driver.run(1)
        files = with_files(
            driver,
            lambda inner: FaultyInTheDriver(inner, 1, "after", StorageUncertainError),
        )
        assert driver.run(1)[0].outcome == "succeeded"
        assert files.fired
    assert log_of(tmp_path).times() == [2000]


@pytest.mark.deep
def test_a_clean_up_that_fails_fails_nothing(
    sc: SparkContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every operation after the commit may fail: it is logged, and the next clean-up retries it."""
    faults = 0
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        states = driver.input([[("a", 1)]] * 40).updateStateByKey(add, 1).checkpoint(1)
        states.foreachRDD(lambda rdd: rdd.count())
        driver.run(3)
        inner = with_files(driver, lambda files: files)
        # The commit itself and the check for a newer driver come first.
        for at in range(3, 60):
            files = with_files(
                driver,
                lambda _, at=at: FaultyInTheDriver(inner, at, error=StorageRefusedError),
            )
            with caplog.at_level(logging.WARNING, "dstreams"):
                assert driver.run(1)[0].outcome == "succeeded"
            if not files.fired:
                break
            faults += 1
            said = ("cleaning up after the batch at ", "will be retried later")
            assert any(text in caplog.text for text in said)
            caplog.clear()
            with_files(driver, lambda _: inner)
            driver.run(1)
        assert not files.fired
    assert faults >= 3  # a state file, a commit and a begin record
    log = log_of(tmp_path)
    assert len(log.times()) == 3
    assert len(log.files.list("state/")) == 3


def test_a_batch_of_a_started_stream_waits_for_no_clean_up(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batches run during the clean-up, and a stop waits for it."""
    began, may_end = threading.Event(), threading.Event()
    retire = StreamRetention.retire

    def slow(self: StreamRetention, *how: Any) -> list[str]:
        began.set()
        assert may_end.wait(300)
        return retire(self, *how)

    monkeypatch.setattr(StreamRetention, "retire", slow)
    clock = ManualClock()
    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.checkpoint(str(tmp_path))
    seen: list[int] = []
    states = ssc.queueStream(ones(6)).updateStateByKey(add, 1).checkpoint(1)
    states.foreachRDD(lambda rdd: seen.append(rdd.count()))
    ssc.start()
    try:
        clock.advance(1000)
        assert began.wait(300)
        clock.advance(4000)
        wait_for(lambda: len(seen) == 5)
    finally:
        may_end.set()
        ssc.stop(stopSparkContext=False)
    times = log_of(tmp_path).times()
    assert times[-1] == 5000
    assert times[0] > 1000


def test_a_task_that_cannot_write_fails_the_batch(sc: SparkContext, tmp_path: Path) -> None:
    """A write that fails in a worker is a failure of the storage, and no output runs after it."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        seen = driver.output(driver.input(ones(3)).updateStateByKey(add, 1).checkpoint(2))
        driver.run(1)
        with_files(driver, lambda files: FaultyInTasks(files, 1, "during", StorageRefusedError))
        failure = failing_run(driver)
        assert driver.context.getState() is StreamingContextState.STOPPED
    assert isinstance(failure, DurabilityError)
    assert ": create state/" in str(failure)
    assert log_of(tmp_path).times() == [1000]
    assert [batch and sorted(batch) for batch in seen] == [expected(1), None]


@pytest.mark.deep
def test_retention_keeps_what_a_stream_with_a_longer_interval_still_reads(
    sc: SparkContext, tmp_path: Path
) -> None:
    """Snapshots of one stream every second do not retire those of another every six seconds."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        pairs = driver.input(ones(10))
        driver.output(pairs.updateStateByKey(add).checkpoint(1))
        seldom = driver.output(pairs.updateStateByKey(add).checkpoint(6))
        driver.run(10)
        log = log_of(tmp_path)
        assert 6000 in log.times()
        lose_all_blocks(sc)
        driver.run(1)
    assert sorted(seldom[-1] or []) == expected(10)


@pytest.mark.deep
def test_copies_of_a_state_that_cannot_be_computed_do_not_pile_up(
    sc: SparkContext, tmp_path: Path
) -> None:
    """Files that healthy partitions wrote for failed batches are deleted again."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        batches = [[(key, 1) for key in range(8)], *([[(0, "poison")]] * 3)]
        # Two partitions on two cores: the healthy one is written before the job is cancelled.
        driver.output(driver.input(batches).updateStateByKey(add, 2).checkpoint(1))
        driver.run(1)
        for _ in range(3):
            assert "unsupported operand" in str(failing_run(driver))
    log = log_of(tmp_path)
    assert copies_of(tmp_path) == [1000]
    late = set(log.files.list("state/")) - log.read(1000).file_names()
    assert len(late) <= 1, late  # on a busy machine a task may still write after the cancellation


# Lost blocks ---------------------------------------------------------------------------------


def lose_all_blocks(sc: SparkContext) -> None:
    """Lose every cached block of this SparkContext, as when all executors are replaced.

    RDDs that were persisted stay so, and are cached again when they are next computed.
    """
    for rdd in sc._jsc.getPersistentRDDs().values():
        level = rdd.getStorageLevel()
        rdd.unpersist(True)
        rdd.persist(level)


@pytest.mark.deep
def test_lost_blocks_are_computed_again_from_the_committed_files(
    sc: SparkContext, tmp_path: Path
) -> None:
    """The state is the same, and only batches after the last commit are recomputed."""
    calls = tmp_path / "calls"

    def counted(time: datetime, key: str, values: list[int], state: int | None) -> int:
        if key == "a":
            with calls.open("a") as out:
                out.write(f"{round(time.timestamp())} ")
        return add(values, state)

    with BatchDriver(sc, checkpoint=str(tmp_path / "ckpt")) as driver:
        states = driver.input(ones(7)).updateStateByKey(counted, form="keyed").checkpoint(3)
        seen = driver.output(states)
        driver.run(5)
        calls.unlink()
        lose_all_blocks(sc)
        driver.run(1)
        lose_all_blocks(sc)
        driver.run(1)
    assert [sorted(batch or []) for batch in seen] == [expected(n) for n in range(1, 8)]
    # The record of 3 s is the last one for batch 6, that of 6 s for batch 7.
    assert calls.read_text().split() == ["4", "5", "6", "7"]


@pytest.mark.deep
def test_blocks_lost_before_the_first_commit_are_computed_from_the_input(
    sc: SparkContext, tmp_path: Path
) -> None:
    """Without a commit the lineage goes back to the first batch and the initial state."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        pairs = driver.input(ones(4))
        seen = driver.output(pairs.updateStateByKey(add, initialRDD={"z": 9}))
        for _ in range(4):
            driver.run(1)
            lose_all_blocks(sc)
    wanted = [[*expected(n), ("z", 9)] for n in range(1, 5)]
    assert [sorted(batch or []) for batch in seen] == wanted


def test_files_are_where_open_files_finds_them(sc: SparkContext, tmp_path: Path) -> None:
    """A directory may also be given as a URL."""
    with BatchDriver(sc, checkpoint=f"file://{tmp_path}/") as driver:
        driver.output(driver.input(ones(1)).updateStateByKey(add).checkpoint(1))
        driver.run(1)
    log = CommitLog(open_files(f"file://{run_directory(tmp_path)}"))
    assert log.times() == [1000]
