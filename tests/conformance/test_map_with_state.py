"""mapWithState as the Scala suites of Spark say it is.

The cases that are batches run on real RDDs through the public API; those that are one call run on
a store in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import Settings, State, StateSpec, StreamingContext
from dstreams.graph.node import OutputOperation
from dstreams.state.map_with_state import MappingFunction, MapRecords, RecordProcessor
from dstreams.testing import BatchDriver, ManualClock
from tests.conformance.tables import Table
from tests.dstreams.state.stores import DictStore


def letters(cell: list[str] | None) -> list[tuple[str, int]] | None:
    return None if cell is None else [(letter, 1) for letter in cell]


def count(key: str, value: int | None, state: State[int]) -> tuple[str, int]:
    state.update((state.getOption or 0) + 1)
    return key, state.get


def twice(time: datetime, key: str, value: int | None, state: State[int]) -> str | None:
    state.update((state.getOption or 0) + 1)
    return key + key


def silent(time: datetime, key: str, value: int | None, state: State[int]) -> None:
    state.update((state.getOption or 0) + (value or 0))


def toggle(time: datetime, key: str, value: int | None, state: State[int]) -> str | None:
    if state.exists:
        state.remove()
        return key
    state.update(1)
    return None


def last_word(time: datetime, key: str, value: int | None, state: State[int]) -> str | None:
    if state.isTimingOut:
        return key
    state.update(1)
    return None


TABLES: dict[str, tuple[StateSpec, str]] = {
    "counts go out and are the state": (
        StateSpec.function(count),
        """
        in     | [] | a   | a b     | a b c       | a b         | a           | []
        out    | [] | a=1 | a=2 b=1 | a=3 b=2 c=1 | a=4 b=3     | a=5         | []
        states | [] | a=1 | a=2 b=1 | a=3 b=2 c=1 | a=4 b=3 c=1 | a=5 b=3 c=1 | a=5 b=3 c=1
        """,
    ),
    "what goes out need not be the state": (
        StateSpec.function(twice),
        """
        in     | [] | a   | a b     | a b c       | a b         | a           | []
        out    | [] | aa  | aa bb   | aa bb cc    | aa bb       | aa          | []
        states | [] | a=1 | a=2 b=1 | a=3 b=2 c=1 | a=4 b=3 c=1 | a=5 b=3 c=1 | a=5 b=3 c=1
        """,
    ),
    "initial states, and nothing goes out": (
        StateSpec.function(silent).initialState([("a", 5), ("b", 10), ("c", -20), ("d", 0)]),
        """
        in     | []                | a                 | a b               | a b c
        out    | []                | []                | []                | []
        states | a=5 b=10 c=-20 d=0 | a=6 b=10 c=-20 d=0 | a=7 b=11 c=-20 d=0 | a=8 b=12 c=-19 d=0
        """,
    ),
    "removed and begun anew": (
        StateSpec.function(toggle),
        """
        in     | [] | a   | a b | a b c   | a b c | a b | a  | []
        out    | [] | []  | a   | b       | a c   | b   | a  | []
        states | [] | a=1 | b=1 | a=1 c=1 | b=1   | a=1 | [] | []
        """,
    ),
    "a call for each record": (
        StateSpec.function(count),
        """
        in     | b   | a a a       | a           | []
        out    | b=1 | a=1 a=2 a=3 | a=4         | []
        states | b=1 | a=3 b=1     | a=4 b=1     | a=4 b=1
        """,
    ),
    "parent without an RDD": (
        StateSpec.function(count),
        """
        in     | a   | -   | -   | a
        out    | a=1 | []  | []  | a=2
        states | a=1 | a=1 | a=1 | a=2
        """,
    ),
    "timeouts are exact": (
        StateSpec.function(last_word).timeout(3),
        """
        in     | a   | b       | []      | -       | []  | [] | []
        out    | []  | []      | []      | []      | a   | b  | []
        states | a=1 | a=1 b=1 | a=1 b=1 | a=1 b=1 | b=1 | [] | []
        """,
    ),
}


def check(spark: SparkContext, spec: StateSpec, text: str) -> None:
    table = Table.parse(text)
    batches = [letters(cell) for cell in table.rows["in"]]
    with BatchDriver(spark) as driver:
        stream = driver.input(batches).mapWithState(spec)
        out, states = driver.output(stream), driver.output(stream.stateSnapshots())
        driver.run(len(batches))
    table.compare(out)
    table.compare(states, row="states")


@pytest.mark.deep
@pytest.mark.parametrize("case", TABLES)
def test_batches(sc: SparkContext, case: str) -> None:
    """Outputs and states of each batch are those of the table."""
    check(sc, *TABLES[case])


@pytest.mark.deep
@pytest.mark.parametrize(
    ("interval", "times_s"), [(None, [10, 10]), (2, [6, 6]), (1, [5, 6])], ids=str
)
def test_timeouts_at_checkpoints(
    sc: SparkContext, interval: int | None, times_s: list[int]
) -> None:
    """With Spark's rule, keys of 1 s and 2 s end at a multiple of the interval."""
    settings = Settings(map_with_state_timeouts="checkpoint")
    with BatchDriver(sc, settings=settings) as driver:
        stream = driver.input([[("a", 1)], [("b", 1)]]).mapWithState(
            StateSpec.function(last_word).timeout(3)
        )
        if interval is not None:
            stream.checkpoint(interval)
        out = driver.output(stream)
        driver.run(times_s[-1] + 1)
    ended = {key: second for second, rows in enumerate(out, 1) for key in rows or []}
    assert [ended["a"], ended["b"]] == times_s


@pytest.mark.deep
def test_initial_states_time_out_at_the_first_checkpoint(sc: SparkContext) -> None:
    """Their time is that of the first batch: with 5 s they end at 10 s by Spark's rule."""
    settings = Settings(map_with_state_timeouts="checkpoint")
    spec = StateSpec.function(last_word).timeout(5).initialState([("z", 1)])
    with BatchDriver(sc, settings=settings) as driver:
        out = driver.output(driver.input([]).mapWithState(spec))
        driver.run(10)
    assert out == [*([[]] * 9), ["z"]]


@pytest.mark.parametrize(
    ("batch_s", "chosen_s", "interval_ms"),
    [
        (0.1, None, 1000),
        (1, None, 10_000),
        (10, None, 100_000),
        (0.1, 2, 2000),
        (1, 2, 2000),
        (10, 20, 20_000),
    ],
)
def test_checkpoint_intervals(
    sc: SparkContext, batch_s: float, chosen_s: float | None, interval_ms: int
) -> None:
    """Ten slides unless it is chosen; and no copies are made of what the stream emits."""
    ssc = StreamingContext(sc, batch_s, clock=ManualClock())
    stream = ssc.queueStream([]).mapWithState(StateSpec.function(count))
    if chosen_s is not None:
        stream.checkpoint(chosen_s)
    graph = ssc._graph
    graph.outputs.append(OutputOperation(stream._node, lambda time_ms, rdd: None, "out"))
    plan = graph.freeze(0, has_checkpoint_directory=True)
    assert plan.nodes[stream._node].checkpoint_ms == interval_ms
    assert plan.nodes[stream._node].storage_level is None
    assert plan.checkpointed() == ()


def test_creation_from_pairs(sc: SparkContext) -> None:
    """An initial state in ten partitions is all there, as of the first batch."""
    initial = sc.parallelize([(number, str(number)) for number in range(50)], 3)
    spec = StateSpec.function(silent).initialState(initial).numPartitions(10).timeout(7)
    with BatchDriver(sc) as driver:
        stream = driver.input([]).mapWithState(spec)
        out = driver.output(stream)
        driver.run(1)
        states = stream.stateStore()
        assert states.getNumPartitions() == 10
        assert sorted(states.collect()) == [(number, str(number), 8000) for number in range(50)]
    assert out == [[]]


def test_an_empty_state(sc: SparkContext) -> None:
    """The state before anything came can be read."""
    with BatchDriver(sc) as driver:
        stream = driver.input([]).mapWithState(StateSpec.function(count))
        snapshots = driver.output(stream.stateSnapshots())
        driver.run(1)
        assert stream.stateStore().collect() == []
    assert snapshots == [[]]


@pytest.mark.deep
def test_lineage_does_not_grow(sc: SparkContext) -> None:
    """The RDD of a batch does not depend on those of the batches before."""
    depths: list[int] = []

    def note(rdd: Any) -> None:
        depths.append(len((rdd.toDebugString() or b"").splitlines()))

    with BatchDriver(sc) as driver:
        stream = driver.input([letters(["a"])] * 8).mapWithState(StateSpec.function(count))
        stream.foreachRDD(note)
        driver.run(8)
    assert len(set(depths[1:])) == 1


# One call ---------------------------------------------------------------------------------------

SECOND_MS = 1000
"""When the state of the cases was touched; the batch that is run is one second later."""


def nothing(state: State[Any]) -> Any:
    return None


def get(state: State[Any]) -> Any:
    return state.get if state.exists else -1


def update(state: State[Any]) -> Any:
    state.update(0 if not state.exists else 1)


def remove(state: State[Any]) -> Any:
    state.remove()


Row = tuple[Any, int] | None
"""State, and when it was touched; None for none."""

CALLS: dict[str, tuple[Callable[[State[Any]], Any], Row, int | None, Row, list[Any]]] = {
    "noop, no state": (nothing, None, None, None, []),
    "noop, a state": (nothing, (5, 1000), None, (5, 1000), []),
    "get, no state": (get, None, None, None, [-1]),
    "get, a state": (get, (123, 1000), None, (123, 1000), [123]),
    "update, no state": (update, None, None, (0, 2000), []),
    "update, a state": (update, (0, 1000), None, (1, 2000), []),
    "remove": (remove, (345, 1000), None, None, []),
    "noop keeps a key alive": (nothing, (123, 1000), 999, (123, 2000), []),
    "removed, no timeout after": (remove, (345, 1000), 999, None, []),
    "nothing comes of nothing": (nothing, None, 999, None, []),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call(case: str) -> None:
    """A record of a key at 2 s: what is stored, with its time, and what is emitted."""
    act, before, idle_ms, after, emitted = CALLS[case]
    store = DictStore()
    calls: list[tuple[int | None, bool]] = []
    if before is not None:
        due_ms = None if idle_ms is None else before[1] + idle_ms
        store.put("key", before, due_ms)

    def func(time: datetime, key: str, value: int | None, state: State[Any]) -> Any:
        calls.append((value, state.isTimingOut))
        return act(state)

    work = RecordProcessor(
        store, MapRecords(MappingFunction(func, True, "f"), 2 * SECOND_MS, idle_ms)
    )
    rows = list(work.process_new_data([("key", 7)])) + list(work.process_timed_out_state())
    assert (store.rows.get("key"), rows, calls) == (after, emitted, [(7, False)])


def test_a_timeout_call() -> None:
    """No record, and touched before the threshold: called once more, and removed."""
    store = DictStore()
    store.put("key", (5, 1000), 1999)
    store.put("other", (6, 1000), 2000)
    calls: list[Any] = []

    def func(key: str, value: int | None, state: State[Any]) -> str:
        calls.append((key, value, state.get, state.isTimingOut))
        return key

    work = RecordProcessor(store, MapRecords(MappingFunction(func, False, "f"), 2 * SECOND_MS, 999))
    assert list(work.process_timed_out_state()) == ["key"]
    assert calls == [("key", None, 5, True)]
    assert list(store.rows) == ["other"]
