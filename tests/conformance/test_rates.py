"""The ticks of the timer, how much a batch may have, and backpressure."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import DStream, Settings, StreamingContext
from dstreams.testing import ManualClock
from tests.support.waiting import wait_for

MakeContext = Callable[..., StreamingContext]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_ms=1_234)


@pytest.fixture
def make_ssc(sc: SparkContext, clock: ManualClock) -> Iterator[MakeContext]:
    """Make contexts driven by *clock*, and stop them when the test ends."""
    contexts: list[StreamingContext] = []

    def make(batch_duration: float, **settings: Any) -> StreamingContext:
        ssc = StreamingContext(sc, batch_duration, clock=clock, settings=Settings(**settings))
        contexts.append(ssc)
        return ssc

    yield make
    for ssc in contexts:
        ssc.stop(stopSparkContext=False)


def collect_times(stream: DStream[Any]) -> list[int]:
    """Collect the batch times, in milliseconds."""
    times: list[int] = []

    def note(time: datetime, rdd: RDD[Any]) -> None:
        times.append(round(time.timestamp() * 1000))

    stream.foreachRDD(note)
    return times


def test_ticks_are_aligned(make_ssc: MakeContext, clock: ManualClock) -> None:
    """At multiples of the batch duration, whenever the start was; none before its time."""
    ssc = make_ssc(0.1)
    times = collect_times(ssc.queueStream([]))
    ssc.start()
    for now_ms, due in [(65, []), (1, [1300]), (99, [1300]), (1, [1300, 1400])]:
        clock.advance(now_ms)
        wait_for(lambda due=due: len(times) >= len(due))  # type: ignore[misc]
        assert times == due
    ssc.stop(stopSparkContext=False)
    assert times == [1300, 1400]


def test_late_ticks_are_all_delivered(make_ssc: MakeContext, clock: ManualClock) -> None:
    """One after another, each with its own time."""
    ssc = make_ssc(0.1)
    times = collect_times(ssc.queueStream([]))
    ssc.start()
    clock.advance(66 + 500)
    wait_for(lambda: len(times) == 6)
    assert times == [1300, 1400, 1500, 1600, 1700, 1800]


def test_a_graceful_stop_delivers_what_is_due(make_ssc: MakeContext, clock: ManualClock) -> None:
    """All ticks up to now and, where Spark has one or two more, none after it."""
    ssc = make_ssc(0.1, stop_batch_timeout_ms=20_000)
    entered, leave = threading.Event(), threading.Event()
    stream = ssc.queueStream([])
    times = collect_times(stream)

    def hold(rdd: RDD[Any]) -> None:
        entered.set()
        assert leave.wait(300)

    stream.foreachRDD(hold)
    ssc.start()
    clock.advance(66 + 200)
    assert entered.wait(300)
    engine = ssc._engine
    assert engine is not None
    wait_for(lambda: engine.planner.next_time_ms == 1600)
    stopping = threading.Thread(
        target=lambda: ssc.stop(stopSparkContext=False, stopGraceFully=True), daemon=True
    )
    stopping.start()
    leave.set()
    stopping.join(300)
    assert times == [1300, 1400, 1500]


def test_the_highest_rate_holds_from_the_first_batch_on(
    make_ssc: MakeContext, clock: ManualClock
) -> None:
    """Batches of 0.5 s at 6 records a second have 3; a graceful stop leaves none behind."""
    ssc = make_ssc(0.5, receiver_max_rate=6, stop_batch_timeout_ms=20_000)
    seen: list[list[str]] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(300)
        lines = ssc.socketTextStream("127.0.0.1", server.getsockname()[1])
        lines.foreachRDD(lambda rdd: seen.append(rdd.collect()))
        ssc.start()
        with server.accept()[0] as connection:
            connection.sendall(b"".join(b"%d\n" % number for number in range(10)))
            assert ssc._engine is not None
            (reader,) = ssc._engine.readers.values()
            wait_for(lambda: reader.waiting_records() == 10)
            clock.advance(500)
            wait_for(lambda: len(seen) == 1)
            ssc.stop(stopSparkContext=False, stopGraceFully=True)
    assert seen == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"], ["9"]]


def speed(clock: ManualClock, records_per_second: int) -> Callable[[RDD[Any]], None]:
    """An output that takes its time, by the clock, for each record."""

    def process(rdd: RDD[Any]) -> None:
        clock.advance(rdd.count() * 1000 // records_per_second)

    return process


@pytest.mark.deep
@pytest.mark.parametrize(
    ("settings", "records"),
    [
        ({}, [1000, 1000, 1000, 1000]),
        ({"receiver_max_rate": 300}, [300, 300, 300, 300]),
        # The first batch gives something to compare with, the second sets the first rate.
        ({"backpressure": True}, [1000, 1000, 500, 500]),
        ({"backpressure": True, "backpressure_initial_rate": 200}, [200, 200, 500, 500]),
        ({"backpressure": True, "receiver_max_rate": 300}, [300, 300, 300, 300]),
        ({"backpressure": True, "pid_minimum": 700.0}, [1000, 1000, 700, 700]),
    ],
    ids=["free", "maxRate", "backpressure", "initialRate", "backpressure and maxRate", "minRate"],
)
def test_batches_shrink_to_what_can_be_processed(
    make_ssc: MakeContext, clock: ManualClock, settings: dict[str, Any], records: list[int]
) -> None:
    """1000 rows a second come, and 500 can be processed; no batch waits for another here."""
    ssc = make_ssc(1, **settings)
    ssc.rateStream(1000).foreachRDD(speed(clock, 500))
    infos = ssc.step(4)
    assert [info.inputs[0].records for info in infos] == records
