"""Ctrl-C in a step: its job is cancelled, its batch is reported, and no state is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import StreamingContext
from tests.dstreams.conftest import MakeContext
from tests.support.waiting import wait_for


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def very_slow(pair: Any) -> Any:
    time.sleep(300)
    return pair


def active_jobs(sc: SparkContext) -> bool:
    return bool(sc.statusTracker().getActiveJobsIds())


@pytest.fixture
def press() -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Return a function that presses Ctrl-C once a condition holds, as in a notebook."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press_when(condition: Callable[[], bool]) -> None:
        def run() -> None:
            wait_for(condition)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=run, daemon=True).start()

    yield press_when
    signal.signal(signal.SIGINT, previous)


def test_a_job_is_cancelled_and_the_state_goes_on(
    make_ssc: MakeContext,
    sc: SparkContext,
    tmp_path: Path,
    press: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The batch is in the table; its input is in the state after the next batch, and a restart."""
    seen: list[Any] = []
    slow = [False]

    def output(rdd: RDD[Any]) -> None:
        seen.append((rdd.map(very_slow) if slow[0] else rdd).collect())

    def setup() -> StreamingContext:
        ssc = make_ssc()
        batches = [[("a", 1)], [("a", 10)], [("a", 100)], [("a", 1000)]]
        states = ssc.queueStream(batches, replayable=True).updateStateByKey(add)
        states.foreachRDD(output)
        return ssc

    ssc = StreamingContext.restore(str(tmp_path), setup)
    ssc.step()
    slow[0] = True
    press(lambda: active_jobs(sc))
    with pytest.raises(KeyboardInterrupt, match="was cut off by an interrupt"):
        ssc.step(2)
    slow[0] = False
    wait_for(lambda: not active_jobs(sc))
    assert "sending command" not in caplog.text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [batch.outcome for batch in ssc.status().recent] == ["succeeded", "cancelled"]
    ssc.step()
    assert seen == [[("a", 1)], [("a", 111)]]
    ssc.stop(stopSparkContext=False)
    again = StreamingContext.restore(str(tmp_path), setup)
    again.step()
    assert seen[2:] == [[("a", 1111)]]


def test_a_function_that_waits_is_interrupted(
    ssc: StreamingContext, sc: SparkContext, press: Any
) -> None:
    """Without a running job nothing is waited for, even if the previous one was cancelled."""
    waiting, never = threading.Event(), threading.Event()

    def output(rdd: RDD[Any]) -> None:
        record = rdd.first()
        if record == 2:
            with suppress(Exception):
                rdd.map(very_slow).collect()
        if record < 3:
            waiting.set()
            never.wait(100)

    ssc.queueStream([[1], [2], [3]]).foreachRDD(output)
    for condition in (waiting.is_set, lambda: active_jobs(sc) and waiting.is_set()):
        press(condition)
        with pytest.raises(KeyboardInterrupt, match=r"batch .* was cut off by an interrupt"):
            ssc.step()
    assert [batch.outcome for batch in ssc.step()] == ["succeeded"]


def test_a_handler_of_the_program_stays(ssc: StreamingContext, press: Any) -> None:
    """It is called as usual."""
    called = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: called.set())
    ssc.queueStream([[1]]).foreachRDD(lambda rdd: called.wait(60))
    press(lambda: StreamingContext.getActive() is ssc)
    assert [batch.outcome for batch in ssc.step()] == ["succeeded"]
    assert called.is_set()
