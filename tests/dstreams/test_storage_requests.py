"""What a batch asks of storage, beside files of state and of rows: little, and always the same."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint import LocalFiles
from dstreams import StreamingContext
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock

BATCH = ["create batches/", "list epochs/", "create commits/", "list epochs/"]
"""Begin, a look for a newer driver before outputs, commit, and a look after it."""

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
