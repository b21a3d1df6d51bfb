"""What batches and restarts ask of storage: little, always the same, and what they wait for."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint import LocalFiles
from dstreams import StateSpec, StreamingContext
from dstreams.common import faults
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock
from tests.support.request_clock import RequestClock, counting_requests

BATCH = ["create batches/", "list epochs/", "create commits/", "list epochs/"]
"""Begin, a fence check before outputs, commit, and a fence check after it."""

KEPT_BATCHES = 100

Step = Callable[[], object]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the driver asks of directories, in order; of files only where they are."""
    seen: list[str] = []

    def recorded(name: str) -> Callable[..., Any]:
        method = getattr(LocalFiles, name)

        def call(self: LocalFiles, file: str, *rest: object) -> Any:
            seen.append(f"{name} {file.partition('/')[0]}/")
            return method(self, file, *rest)

        return call

    for name in ("create", "read", "read_chunks", "exists", "list", "delete"):
        monkeypatch.setattr(LocalFiles, name, recorded(name))
    yield seen
    monkeypatch.undo()


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def stream(sc: SparkContext, directory: Path) -> Iterator[Step]:
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(directory / "checkpoint"))
    counts = ssc.queueStream([[("a", 1)]] * 9).updateStateByKey(add, 1).checkpoint(5)
    counts.foreachRDD(lambda rdd: rdd.count())
    yield lambda: ssc.step(1)
    ssc.stop(stopSparkContext=False)


def file_stream(sc: SparkContext, directory: Path) -> Iterator[Step]:
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(directory / "checkpoint"))
    (directory / "in").mkdir()
    ssc.textFileStream(f"file://{directory}/in").foreachRDD(lambda rdd: rdd.count())
    times = itertools.count()

    def step() -> None:
        time_s = next(times)
        file = directory / "in" / f"file{time_s}"
        file.write_text("a line")
        os.utime(file, (time_s, time_s))
        ssc.step(1)

    yield step
    ssc.stop(stopSparkContext=False)


def query(sc: SparkContext, directory: Path) -> Iterator[Step]:
    session = StreamSession(sc, clock=ManualClock())
    numbers = session.memoryStream()
    rows = numbers.toDS().groupByKey(lambda number: number % 2).count()
    writer = rows.writeStream.outputMode("update").foreachBatch(lambda rdd, batch: rdd.count())
    started = writer.option("checkpointLocation", str(directory / "checkpoint")).start()

    def step() -> None:
        numbers.addAll([1, 2, 3])
        started.processAllAvailable()

    yield step
    started.stop()


@pytest.mark.deep
@pytest.mark.parametrize(
    "program", [stream, file_stream, query], ids=["stream", "file stream", "query"]
)
def test_a_batch_asks_four_times(
    sc: SparkContext,
    tmp_path: Path,
    requests: list[str],
    program: Callable[[SparkContext, Path], Iterator[Step]],
) -> None:
    """Once it has begun: nothing is looked for, listed or read again that is known."""
    steps = program(sc, tmp_path)
    step = next(steps)
    try:
        step()
        for _ in range(2):
            requests.clear()
            step()
            assert requests == BATCH
    finally:
        assert next(steps, None) is None


class Batches:
    """Notes when batches begin and end, by the clock of requests; a job takes as long as one."""

    def __init__(self, clock: RequestClock) -> None:
        self._clock = clock
        self.begun: list[int] = []
        self.committed: list[int] = []

    def reach(self, step: str) -> None:
        if step == "begin.start":
            self.begun.append(self._clock.now)
        if step == "state.done":
            self._clock.pass_time()
        if step == "commit.done":
            self.committed.append(self._clock.now)


@pytest.fixture
def batches() -> Iterator[Batches]:
    """The batches that run while requests are counted."""
    with counting_requests(at_once=128) as clock:
        seen = Batches(clock)
        end = faults.watch(seen.reach)
        yield seen
        end()


def waits(since: int, until: int) -> int:
    """Return the requests in a row that a batch waits for, beside its job."""
    return until - since - 1


def count(key: str, value: int, state: Any) -> int:
    state.update(value + (state.getOption or 0))
    return value


def stored_stream(sc: SparkContext, directory: Path) -> StreamingContext:
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(directory / "checkpoint"))
    pairs = ssc.queueStream([[("a", 1)]] * 9, replayable=True)
    pairs.mapWithState(StateSpec.function(count).numPartitions(2)).foreachRDD(lambda rdd: None)
    return ssc


@pytest.mark.deep
def test_a_batch_of_a_stream_waits_for_two_requests(
    sc: SparkContext, tmp_path: Path, batches: Batches
) -> None:
    """For its begin record and its commit record, beside its state."""
    ssc = stored_stream(sc, tmp_path)
    try:
        ssc.step(4)
    finally:
        ssc.stop(stopSparkContext=False)
    times = zip(batches.begun, batches.committed, strict=True)
    assert [waits(*each) for each in times] == [2] * 4


@pytest.mark.deep
def test_a_batch_of_a_query_waits_for_two_requests(
    sc: SparkContext, tmp_path: Path, batches: Batches
) -> None:
    """Also if batches follow each other without a pause, from one commit to the next."""
    session = StreamSession(sc, clock=ManualClock())
    (tmp_path / "in").mkdir()
    for number in range(5):
        (tmp_path / "in" / f"{number}.txt").write_text("a\n")
    lines = session.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    rows = lines.groupByKey(lambda line: line).count()
    writer = rows.writeStream.outputMode("update").foreachBatch(lambda rdd, batch: rdd.count())
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    started = writer.trigger(availableNow=True).start()
    assert started.awaitTermination(300)
    assert started.exception() is None
    assert len(batches.committed) == 5
    assert [waits(*each) for each in itertools.pairwise(batches.committed)] == [2] * 4


@pytest.mark.deep
def test_a_restart_of_a_stream_makes_ten_requests_in_a_row(
    sc: SparkContext, tmp_path: Path
) -> None:
    """With 100 batches that are kept, from the look for a stream to its first new batch."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path / "checkpoint"))
    pairs = ssc.queueStream([[("a", 1)]] * (KEPT_BATCHES + 1), replayable=True)
    pairs.updateStateByKey(add, 1).checkpoint(200).foreachRDD(lambda rdd: None)
    ssc.step(KEPT_BATCHES)
    ssc.stop(stopSparkContext=False)
    kept = sum(1 for _ in tmp_path.glob("checkpoint/*/batches/*"))
    with counting_requests(at_once=128) as clock:
        again = StreamingContext.getOrCreate(str(tmp_path / "checkpoint"), lambda: ssc)
        begun: list[int] = []
        end = faults.watch(lambda step: begun.append(clock.now) if step == "begin.start" else None)
        again.step(1)
        end()
        again.stop(stopSparkContext=False)
    assert kept == KEPT_BATCHES
    assert begun[0] <= 10, begun
