"""Live look-ups of states, from the program that runs the batches: values, versions and errors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import InvalidStreamError, State, StateSpec, StreamingContext, StreamLifecycleError
from dstreams.common.faults import watch
from dstreams.monitoring.state_queries import LiveState
from dstreams.structured import StatefulProcessor, StreamSession, window
from dstreams.testing import ManualClock
from tests.support.jobs import count_jobs

pytestmark = pytest.mark.usefixtures("active_stopped")


def add_up(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def running(key: Any, value: int | None, state: State[int]) -> Any:
    state.update((state.getOption or 0) + (value or 0))
    return key, state.get


class Pages(StatefulProcessor):
    """Keeps what a user visited in each kind of state variable, and a timer."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")
        self._pages = handle.getListState("pages", "page string", ttlDurationMs=60_000)
        self._times = handle.getMapState("times", "page string", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for _, page in rows:
            self._count.update(((self._count.get() or (0,))[0] + 1,))
            self._pages.appendValue((page,))
            self._times.updateValue((page,), (1,))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 5)
        return iter(())


@pytest.fixture
def ssc_with_states(ssc: StreamingContext, tmp_path: Path) -> StreamingContext:
    """A stream with both kinds of state, three batches of which exist."""
    ssc.checkpoint(str(tmp_path / "checkpoint"))
    batches = [[("a", 1), ("b", 2)], [("a", 10), (("c", 1), 5)], [("a", 100)]]
    pairs = ssc.queueStream(batches)
    pairs.mapWithState(StateSpec.function(running).timeout(60), uid="stored").foreachRDD(ignore)
    pairs.updateStateByKey(add_up, uid="totals").foreachRDD(ignore)
    return ssc


def ignore(rdd: Any) -> None: ...


@pytest.mark.parametrize("uid", ["stored", "totals"])
def test_states_of_a_stream(ssc_with_states: StreamingContext, uid: str) -> None:
    """Each look-up is as of the last batch, by key or by range."""
    ssc = ssc_with_states
    ssc.step(2)
    state = ssc.state(uid)
    assert (state.get("a"), state.get(("c", 1)), state.get("z"), state.get("z", 0)) == (
        11,
        5,
        None,
        0,
    )
    found = state.look_up("a")
    assert (found.batch_time_ms, found.is_there) == (2000, True)
    assert (found.timeout_ms is not None) == (uid == "stored")
    assert state.range("a", "c") == [("a", 11), ("b", 2)]
    assert state.range("b", None) == [("b", 2)]
    assert state.range(limit=1) in ([("a", 11)], [(("c", 1), 5)])
    assert dict(state.range()) == {"a": 11, "b": 2, ("c", 1): 5}
    ssc.step()
    assert (state.get("a"), state.look_up("a").batch_time_ms) == (111, 3000)


def test_stored_state_needs_no_job(ssc_with_states: StreamingContext) -> None:
    """Keys and ranges of stored state are read in the driver; other states in a job."""
    ssc = ssc_with_states
    ssc.step()
    stored, totals, spark = ssc.state("stored"), ssc.state("totals"), ssc.sparkContext
    assert count_jobs(spark, lambda: (stored.get("a"), stored.range())) == 0
    assert count_jobs(spark, lambda: totals.get("a")) == 1


def test_look_ups_while_batches_run(ssc_with_states: StreamingContext) -> None:
    """Threads that look up all the time see each version whole, and none goes back."""
    ssc = ssc_with_states
    ssc.step()
    seen: list[tuple[int, int]] = []
    is_over = False

    def look() -> list[tuple[int, int]]:
        own = []
        while not is_over:
            found = ssc.state("stored").look_up("a")
            own.append((found.batch_time_ms, found.value))
        return own

    with ThreadPoolExecutor(2) as threads:
        lookers = [threads.submit(look) for _ in range(2)]
        ssc.step(4)
        is_over = True
        for looker in lookers:
            own = looker.result(60)
            assert own == sorted(own)
            seen += own
    values = {1000: 1, 2000: 11, 3000: 111, 4000: 111, 5000: 111}
    assert all(values[time_ms] == value for time_ms, value in seen)
    assert ssc.state("stored").look_up("a").batch_time_ms == 5000


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda ssc: ssc.state("other"), "no stateful operator has the uid 'other'; known uids: "),
        (lambda ssc: ssc.state(), "several operators have state; .*: stored, totals"),
        (lambda ssc: ssc.state("stored").get({"a": 1}), r"stored: \{'a': 1\} cannot be a key"),
        (lambda ssc: ssc.state("totals").get({"a": 1}), r"totals: \{'a': 1\} cannot be a key"),
        (lambda ssc: ssc.state("stored").range(1, "b"), "stored: no range from 1 to 'b'"),
        (lambda ssc: ssc.state("stored").range(limit=0), "limit of a range must be at least 1"),
    ],
)
def test_errors(ssc_with_states: StreamingContext, ask: Any, message: str) -> None:
    """A wrong uid, key or range is named, with the uids."""
    ssc_with_states.step()
    with pytest.raises(InvalidStreamError, match=message):
        ask(ssc_with_states)


def test_before_the_start_and_after_the_end(ssc_with_states: StreamingContext) -> None:
    """Then there is nothing to look up; the error says what reads a checkpoint."""
    ssc = ssc_with_states
    with pytest.raises(StreamLifecycleError, match="the streams do not run"):
        ssc.state("stored")
    ssc.step()
    ssc.stop(stopSparkContext=False)
    with pytest.raises(StreamLifecycleError, match=r"CheckpointState\(directory\)"):
        ssc.state("stored")


@pytest.fixture
def session(sc: SparkContext) -> Iterator[StreamSession]:
    session = StreamSession(sc, clock=ManualClock(10_000))
    yield session
    session.stop()


def test_batches_that_are_not_committed_are_not_seen(session: StreamSession) -> None:
    """At each step of a batch the answer is that of the batch before, until its commit record."""
    source = session.memoryStream("visits")
    writer = BUILD["groups"](source.toDS()).writeStream.format("memory").queryName("q")
    query = writer.start()
    source.addData(("ann", "/"))
    query.processAllAvailable()
    seen: dict[str, Any] = {}
    end = watch(lambda step: seen.setdefault(step, query.state().get("ann")))
    try:
        source.addData(("ann", "/shop"))
        query.processAllAvailable()
    finally:
        end()
    assert {step: seen[step] for step in ("state.done", "out.done", "commit.start")} == {
        "state.done": 1,
        "out.done": 1,
        "commit.start": 1,
    }
    assert (seen["clean.start"], query.state().get("ann")) == (2, 2)


@pytest.mark.parametrize(("kind", "jobs"), [("windows", 0), ("duplicates", 0), ("event times", 1)])
def test_jobs_of_look_ups_by_time(session: StreamSession, kind: str, jobs: int) -> None:
    """A key with a time determines its stored key, unless that has a time that the key lacks."""
    source = session.memoryStream("visits")
    mode = "update" if kind in UPDATES else "append"
    writer = BUILD[kind](source.toDS()).writeStream.format("memory").queryName("q")
    query = writer.outputMode(mode).start()
    source.addData(("ann", "/"))
    query.processAllAvailable()
    state, key = query.state(), next(iter(EXPECTED[kind]))
    assert count_jobs(session.sparkContext, lambda: state.get(key)) == jobs


def visits(key: str, pages: Iterator[Any], state: Any) -> list[Any]:
    state.update((state.getOption or 0) + len(list(pages)))
    return []


BUILD = {
    "groups": lambda visits_: visits_.groupByKey(user).flatMapGroupsWithState(visits, "append"),
    "processor": lambda visits_: visits_.groupByKey(user).transformWithState(
        Pages(), timeMode="processingTime"
    ),
    "windows": lambda visits_: (
        visits_.withWatermark(length, "1 minute")
        .groupByKey(window(length, "10 milliseconds"), user)
        .count()
    ),
    "windows alone": lambda visits_: (
        visits_.withWatermark(length, "1 minute")
        .groupByKey(window(length, "10 milliseconds"))
        .count()
    ),
    "numbers by window": lambda visits_: (
        visits_.withWatermark(length, "1 minute")
        .groupByKey(window(length, "3 milliseconds"), length)
        .count()
    ),
    "event times": lambda visits_: (
        visits_.withWatermark(length, "1 minute").groupByKey(length).count()
    ),
    "duplicates": lambda visits_: visits_.withWatermark(length, "1 minute").dropDuplicates(
        [length, user]
    ),
}
EXPECTED: dict[str, dict[Any, Any]] = {
    "groups": {"ann": 2, "bob": 1},
    "processor": {
        "ann": {
            "count": (2,),
            "pages": [("/",), ("/shop",)],
            "times": {("/",): (1,), ("/shop",): (1,)},
        },
        "bob": {"count": (1,), "pages": [("/",)], "times": {("/",): (1,)}},
    },
    "windows": {(10, "ann"): 2, (10, "bob"): 1},
    "windows alone": {10: 3},
    "numbers by window": {(3, 1): 2, (6, 5): 1},
    "event times": {1: 2, 5: 1},
    "duplicates": {(1000, "ann"): True, (5000, "ann"): True, (1000, "bob"): True},
}
UPDATES = ("windows", "windows alone", "numbers by window", "event times")
"""Queries in update mode."""


def user(visit: Any) -> str:
    name: str = visit[0]
    return name


def length(visit: Any) -> int:
    return len(visit[1])


@pytest.mark.parametrize("kind", BUILD)
def test_states_of_a_query(session: StreamSession, kind: str) -> None:
    """Keys and states are those that people know, as of the last commit."""
    source = session.memoryStream("visits")
    mode = "update" if kind in UPDATES else "append"
    query = (
        BUILD[kind](source.toDS())
        .writeStream.format("memory")
        .queryName("q")
        .outputMode(mode)
        .start()
    )
    with pytest.raises(InvalidStreamError, match="has no state yet"):
        query.state().get("ann")
    source.addData(("ann", "/"), ("ann", "/shop"), ("bob", "/"))
    query.processAllAvailable()
    state: LiveState = query.state()
    assert {key: state.get(key) for key in EXPECTED[kind]} == EXPECTED[kind]
    assert state.get("nobody") is None
    assert state.look_up(next(iter(EXPECTED[kind]))).batch_time_ms >= 10_000
    if kind == "processor":
        assert state.look_up("ann").timeout_ms == 10_005
        with pytest.raises(InvalidStreamError, match="has several entries for a key"):
            state.range()
    else:
        assert dict(state.range()) == EXPECTED[kind]
    query.stop()
    with pytest.raises(StreamLifecycleError, match="has ended, or has no state"):
        query.state()
