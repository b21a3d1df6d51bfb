"""Repartitioned state: restarts that are killed, and restarts without room for the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import RestartError, StateSpec, StreamingContext
from dstreams.engine.committer import BatchCommitter
from dstreams.testing import ManualClock

seen: list[list[tuple[str, int]]] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    seen.clear()
    yield
    seen.clear()
    active = StreamingContext.getActive()
    if active is not None:
        active.stop(stopSparkContext=False)


def count(key: str, value: int, state: Any) -> tuple[str, int]:
    state.update((state.getOption or 0) + value)
    return key, state.get


def note(rdd: RDD[Any]) -> None:
    seen.append(rdd.collect())


def setup(
    sc: SparkContext, directory: Path, partitions: int, seconds: float = 1
) -> Callable[[], StreamingContext]:
    def make() -> StreamingContext:
        ssc = StreamingContext(sc, seconds, clock=ManualClock())
        ssc.checkpoint(str(directory))
        ones = ssc.queueStream([[("a", 1)]] * 20, uid="in", replayable=True)
        spec = StateSpec.function(count).numPartitions(partitions)
        ones.mapWithState(spec, uid="counts").foreachRDD(note)
        return ssc

    return make


def run(ssc: StreamingContext, batches: int) -> None:
    ssc.step(batches)
    ssc.stop(stopSparkContext=False)


def moved_by(directory: Path) -> set[str]:
    """Return the epochs that have moved state into existing stores."""
    names = [path.parts[-3] for path in directory.glob("stream-*/stores/counts/epoch-*/*/*")]
    return {name.split("-")[1] for name in names}


@pytest.mark.deep
def test_a_restart_that_was_killed_leaves_nothing_for_long(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State that a killed restart had moved without a record is deleted by the next restart."""
    run(setup(sc, tmp_path, 2)(), 2)

    def killed(committer: BatchCommitter, batch_id: int, time_ms: int) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(BatchCommitter, "commit_between", killed)
        with pytest.raises(RuntimeError, match="killed"):
            StreamingContext.restore(str(tmp_path), setup(sc, tmp_path, 3)).step()
    assert moved_by(tmp_path) == {"2"}
    ssc = StreamingContext.restore(str(tmp_path), setup(sc, tmp_path, 3))
    run(ssc, 8)
    assert moved_by(tmp_path) == {"3"}
    run(StreamingContext.restore(str(tmp_path), setup(sc, tmp_path, 3)), 10)
    assert moved_by(tmp_path) == {"3"}
    assert seen == [[("a", n)] for n in range(1, 21)]


@pytest.mark.deep
def test_there_must_be_a_moment_for_the_record_of_it(sc: SparkContext, tmp_path: Path) -> None:
    """A record fits between two batches unless they are a millisecond apart."""
    make = partial(setup, sc, tmp_path, seconds=0.001)
    run(make(2)(), 2)
    ssc = StreamingContext.restore(str(tmp_path), make(3))
    with pytest.raises(RestartError, match=r"mapWithState at .* cannot be moved .* the next batch"):
        ssc.step()
    assert moved_by(tmp_path) == set()
    run(StreamingContext.restore(str(tmp_path), make(2)), 1)
    assert seen == [[("a", n)] for n in (1, 2, 3)]
