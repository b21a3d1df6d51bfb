"""What a batch asks of the JVM: each call is a tenth of a millisecond; a batch has few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import ClientServerConnection
from pyspark import SparkContext

from dstreams import DStream, StateSpec, StreamingContext
from dstreams.spark import jvm
from dstreams.spark.job_labels import labelled_jobs
from dstreams.testing import ManualClock

LET_GO = "m\n"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the JVM from here on, those apart that let an object go."""
    seen: list[str] = []
    send = ClientServerConnection.send_command

    def seeing(self: ClientServerConnection, command: str) -> Any:
        if not command.startswith(LET_GO):
            seen.append(command)
        return send(self, command)

    monkeypatch.setattr(ClientServerConnection, "send_command", seeing)
    return seen


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def add_one(key: str, value: int, state: Any) -> tuple[str, int]:
    state.update((state.getOption or 0) + value)
    return key, state.get


def all_state(pairs: DStream[Any]) -> DStream[Any]:
    return pairs.updateStateByKey(add, 2)


def stored_state(pairs: DStream[Any]) -> DStream[Any]:
    return pairs.mapWithState(StateSpec.function(add_one).numPartitions(2))


@pytest.fixture
def thread_of_batches(sc: SparkContext) -> Iterator[None]:
    """What the thread of a stream has around all of its batches."""
    with ExitStack() as around:
        around.enter_context(jvm.rewriting_outputs(sc))
        around.enter_context(labelled_jobs(sc))
        yield


@pytest.mark.deep
@pytest.mark.usefixtures("thread_of_batches")
@pytest.mark.parametrize(("operation", "most"), [(all_state, 45), (stored_state, 58)])
def test_a_batch_with_state_makes_few_calls(
    sc: SparkContext,
    tmp_path: Path,
    calls: list[str],
    operation: Callable[[DStream[Any]], DStream[Any]],
    most: int,
) -> None:
    """The state, and an output that counts; it was 84 and 80 when each was made anew.

    Four of the calls start and end the watch over the jobs of a step, which streams that were
    started have once, and one asks before the commit whether Spark is alive.
    """
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path / "checkpoint"))
    batch = sc.parallelize([("a", 1), ("b", 2)], 2)
    operation(ssc.queueStream([batch] * 5)).checkpoint(10).foreachRDD(lambda rdd: rdd.count())
    for _ in range(4):
        ssc.step(1)
    calls.clear()
    ssc.step(1)
    made = [call.replace("\n", " ")[:60] for call in calls]
    ssc.stop(stopSparkContext=False)
    assert len(made) <= most, made
