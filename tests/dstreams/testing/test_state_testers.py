"""The testers of functions with state and of processors, as tables of calls and results."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql.types import LongType, Row, StructField, StructType

from dstreams import GroupState, GroupStateTimeout, State, StateSpec
from dstreams.errors import InvalidStreamError
from dstreams.spark.failures import UserFunctionError
from dstreams.structured import StatefulProcessor
from dstreams.testing import (
    FlatMapGroupsWithStateTester,
    MapGroupsWithStateTester,
    MapWithStateTester,
    TransformWithStateTester,
)
from tests.dstreams.state.processors import Commands
from tests.support.group_functions import INITIAL, counting, mapped_count, ten_seconds

Call = tuple[str, tuple[Any, ...], Any]
"""A method, its arguments, and what it returns."""


@dataclass(frozen=True)
class Visit:
    """A state of its own class."""

    page: str
    count: int


def running(key: str, value: int | None, state: State[int]) -> Any:
    """The sum; the last one when the key is idle."""
    if state.isTimingOut:
        return key, "idle", state.get
    state.update((state.getOption or 0) + (value or 0))
    return key, state.get


def at_time(time: datetime, key: str, value: int | None, state: State[int]) -> Any:
    """The batch time of odd values; no row for the others."""
    state.update(value or 0)
    return (int(time.timestamp() * 1000), value) if value and value % 2 else None


def latest(key: str, times: Iterator[int], state: GroupState[int]) -> list[Any]:
    """The latest event time; ends five milliseconds of event time after it."""
    if state.hasTimedOut:
        ended = state.get
        state.remove()
        return [(key, "ended", ended)]
    state.update(max([*times, state.getOption or 0]))
    state.setTimeoutTimestamp(state.get + 5)
    return [(key, state.get)]


def visited(key: str, pages: Iterator[str], state: GroupState[Visit]) -> list[Any]:
    """Count visits in a class of data."""
    before = state.getOption or Visit("", 0)
    for page in pages:
        before = Visit(page, before.count + 1)
    state.update(before)
    return [before]


class TimedValue(StatefulProcessor):
    """Returns a Row for each record, with its number of records so far, and for each timer."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            n = (self._count.get() or (0,))[0] + 1
            self._count.update((n,))
            self._handle.registerTimer(row.time + 10)
            yield {"key": key[0], "time": row.time, "n": n}

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(key=key[0], time=expiredTimerInfo.getExpiryTimeInMs(), n=-1)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self._count.update((initialState,))


def timed_value(**arguments: Any) -> TransformWithStateTester:
    return TransformWithStateTester(
        TimedValue(),
        timeMode="EventTime",
        outputStructType="key string, time long, n long",
        eventTimeExtractor=lambda row: row["time"],
        **arguments,
    )


def commands(**arguments: Any) -> TransformWithStateTester:
    return TransformWithStateTester(Commands(**arguments), timeMode="ProcessingTime")


def do(*command: Any) -> list[Any]:
    return [("a", *command)]


CASES: dict[str, tuple[Callable[[], Any], list[Call]]] = {
    "states of every kind": (
        commands,
        [
            ("test", ("a", do("value", "update", (1,))), []),
            ("test", ("a", do("list", "appendValue", (1,))), []),
            ("test", ("a", do("map", "updateValue", ("x",), (1,))), []),
            ("peekValueState", ("value", "a"), (1,)),
            ("peekListState", ("list", "a"), [(1,)]),
            ("peekMapState", ("map", "a"), {("x",): (1,)}),
            ("peekValueState", ("value", "b"), None),
            ("peekListState", ("list", "b"), []),
            ("peekMapState", ("map", "b"), {}),
            ("updateValueState", ("value", "b", (2,)), None),
            ("updateListState", ("list", "a", [(3,), (4,)]), None),
            ("test", ("a", do("list", "appendValue", (5,))), []),
            ("test", ("a", do("list", "get")), [("a", [(3,), (4,), (5,)])]),
            ("updateMapState", ("map", "a", {("y",): (2,), ("z",): (3,)}), None),
            ("test", ("a", do("map", "keys")), [("a", [("y",), ("z",)])]),
            ("test", ("b", [("b", "value", "get")]), [("b", (2,))]),
            ("deleteState", ("value", "b"), None),
            ("deleteState", ("list", "a"), None),
            ("deleteState", ("map", "a"), None),
            ("peekValueState", ("value", "b"), None),
            ("peekListState", ("list", "a"), []),
            ("peekMapState", ("map", "a"), {}),
        ],
    ),
    "timers in processing time": (
        commands,
        [
            ("test", ("a", do("timers", "registerTimer", 50)), []),
            ("test", (("a",), do("timers", "registerTimer", 20)), []),
            ("peekTimers", ("a",), [20, 50]),
            ("setProcessingTime", (19,), []),
            ("setProcessingTime", (20,), [("a", "timer", 20, [20, 50])]),
            ("peekTimers", ("a",), [50]),
            ("test", ("a", do("times", "")), [("a", (20, -1))]),
            ("test", ("a", do("timers", "registerTimer", 10)), [("a", "timer", 10, [10, 50])]),
        ],
    ),
    "time to live": (
        lambda: commands(ttl_ms=100),
        [
            ("test", ("a", do("value", "update", (1,))), []),
            ("setProcessingTime", (99,), []),
            ("peekValueState", ("value", "a"), (1,)),
            ("setProcessingTime", (100,), []),
            ("peekValueState", ("value", "a"), None),
        ],
    ),
    "timers in event time, late records and named rows": (
        timed_value,
        [
            ("test", ("a", [Row(time=0), Row(time=5)]), [Row(key="a", time=5, n=1)]),
            ("setWatermark", (14,), []),
            ("test", ("a", [Row(time=14), Row(time=20)]), [Row(key="a", time=20, n=2)]),
            ("peekTimers", ("a",), [15, 30]),
            ("setWatermark", (15,), [Row(key="a", time=15, n=-1)]),
            ("peekValueState", ("count", "a"), (2,)),
        ],
    ),
    "rows with event times, initial states and keys of several parts": (
        lambda: timed_value(eventTimeColumnName="time", initialStateRow=[("a", 5), (("b", 1), 7)]),
        [
            ("peekValueState", ("count", "a"), (5,)),
            ("test", ("a", [{"time": 5}]), [Row(key="a", time=5, n=6)]),
            ("test", (("b", 1), [{"time": 5}]), [Row(key="b", time=5, n=8)]),
        ],
    ),
    "a function of groups, with a timeout of processing time": (
        lambda: FlatMapGroupsWithStateTester(ten_seconds, "processingTime"),
        [
            ("test", ("a", ["x", "y"]), [("a", 2)]),
            ("peekState", ("a",), 2),
            ("peekTimeout", ("a",), 10_000),
            ("setProcessingTime", (10_000,), []),
            ("setProcessingTime", (10_001,), [("a", -1)]),
            ("peekState", ("a",), None),
            ("peekTimeout", ("a",), None),
        ],
    ),
    "a function of groups, with a timeout of event time": (
        lambda: FlatMapGroupsWithStateTester(
            latest,
            GroupStateTimeout.EventTimeTimeout,
            eventTimeExtractor=lambda ms: datetime.fromtimestamp(ms / 1000, timezone.utc),
        ),
        [
            ("test", ("a", [3, 1]), [("a", 3)]),
            ("setWatermark", (8,), []),
            ("test", ("a", [8]), []),
            ("setWatermark", (9,), [("a", "ended", 3)]),
            ("test", ("a", [9, 10]), [("a", 10)]),
        ],
    ),
    "initial states of a function of groups": (
        lambda: FlatMapGroupsWithStateTester(counting, initialState=INITIAL),
        [
            ("peekState", ("S2",), 2),
            ("test", ("S1", ["x"]), [("S1", ["x"], 2)]),
            ("test", ("NoUpdate", ["x"]), [("NoUpdate", ["x"], 3)]),
            ("peekState", ("NoUpdate",), 2),
            ("updateState", ("S1", 10), None),
            ("test", ("S1", ["x"]), [("S1", ["x"], 11)]),
            ("deleteState", ("S1",), None),
            ("peekState", ("S1",), None),
        ],
    ),
    "a function of groups with one row": (
        lambda: MapGroupsWithStateTester(mapped_count),
        [
            ("test", ("a", ["x", "y"]), [("a", 2)]),
            ("test", ("a", ["x"]), [("a", -1)]),
            ("peekState", ("a",), None),
        ],
    ),
    "a class of data as state": (
        lambda: FlatMapGroupsWithStateTester(visited),
        [
            ("test", ("a", ["/", "/shop"]), [Visit("/shop", 2)]),
            ("peekState", ("a",), Visit("/shop", 2)),
        ],
    ),
    "a function of records, with a timeout": (
        lambda: MapWithStateTester(StateSpec.function(running).timeout(10).initialState({"b": 5})),
        [
            ("test", ("a", [3, 4]), [("a", 3), ("a", 7)]),
            ("peekTimeout", ("a",), 10_000),
            ("setProcessingTime", (5_000,), []),
            ("test", ("b", [1]), [("b", 6)]),
            ("setProcessingTime", (10_001,), [("a", "idle", 7)]),
            ("peekState", ("a",), None),
            ("peekTimeout", ("b",), 15_000),
            ("updateState", ("b", 100), None),
            ("setProcessingTime", (20_001,), []),
            ("setProcessingTime", (20_002,), [("b", "idle", 100)]),
        ],
    ),
    "a function of records and the batch time": (
        lambda: MapWithStateTester(at_time),
        [
            ("setProcessingTime", (7_000,), []),
            ("test", ("a", [3, 4]), [(7_000, 3)]),
            ("deleteState", ("a",), None),
            ("peekState", ("a",), None),
        ],
    ),
}


@pytest.mark.parametrize(("make", "calls"), CASES.values(), ids=CASES.keys())
def test_calls(make: Callable[[], Any], calls: list[Call]) -> None:
    """Each call returns what the operator returns for such a batch, or the state after it."""
    tester = make()
    for method, arguments, expected in calls:
        assert getattr(tester, method)(*arguments) == expected, (method, arguments)


class Attributes(StatefulProcessor):
    """Keeps a number where it is lost."""

    def __init__(self) -> None:
        self.seen = 0

    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.seen += len(list(rows))
        yield self.seen


def stores(value: Any) -> Callable[..., Any]:
    """Return a function that stores a value, and returns the records of the key."""

    def store(key: Any, values: Iterator[Any], state: GroupState[Any]) -> list[Any]:
        state.update(value())
        return list(values)

    return store


def rows_of(value: Callable[[], Any]) -> Callable[..., Any]:
    def rows(key: Any, values: Iterator[Any], state: GroupState[Any]) -> list[Any]:
        return [value()]

    return rows


class Opaque:
    """Not a class of data."""


ERRORS: dict[str, tuple[Callable[[], Any], type[BaseException], str]] = {
    "a state that is not plain data": (
        lambda: FlatMapGroupsWithStateTester(stores(Opaque)).test("a", [1]),
        TypeError,
        r"the state of key 'a' cannot be stored: it holds a .*Opaque.* make it a dataclass",
    ),
    "a state that cannot be pickled": (
        lambda: FlatMapGroupsWithStateTester(
            stores(threading.Lock), conf={"spark.dstreams.state.values": "pickle"}
        ).test("a", [1]),
        TypeError,
        "the state of key 'a' cannot be stored: cannot pickle",
    ),
    "a row that cannot be pickled": (
        lambda: FlatMapGroupsWithStateTester(rows_of(threading.Lock)).test("a", [1]),
        TypeError,
        "cannot be pickled",
    ),
    "a record that cannot be pickled": (
        lambda: MapWithStateTester(running).test("a", [threading.Lock()]),
        TypeError,
        "the value of type lock of key 'a' cannot be pickled",
    ),
    "a key that cannot be a key": (
        lambda: MapWithStateTester(running).test(["a"], [1]),
        InvalidStreamError,
        r"the key \['a'\] cannot be placed",
    ),
    "a function that fails": (
        lambda: MapWithStateTester(running).test("a", ["text"]),
        UserFunctionError,
        r"mapping function .*running:\d+ failed for key 'a': TypeError",
    ),
    "a row of another schema": (
        lambda: commands().test("a", do("value", "update", ("text",))),
        UserFunctionError,
        "column 'number' has type bigint, got 'text'",
    ),
    "an unknown state variable": (
        lambda: commands().peekValueState("sum", "a"),
        InvalidStreamError,
        "the processor defines no state 'sum'; its state variables: list, map, value",
    ),
    "a state variable of another kind": (
        lambda: commands().peekValueState("list", "a"),
        InvalidStreamError,
        "state 'list' is a list state",
    ),
    "a timer without a time mode": (
        lambda: TransformWithStateTester(Commands()).test("a", do("timers", "registerTimer", 1)),
        UserFunctionError,
        "register_timer is not possible with time mode 'none'",
    ),
    "an unknown time mode": (
        lambda: TransformWithStateTester(Commands(), timeMode="late"),
        InvalidStreamError,
        "unknown time mode 'late'",
    ),
    "event time without the times of records": (
        lambda: TransformWithStateTester(Commands(), timeMode="EventTime"),
        InvalidStreamError,
        "needs eventTimeExtractor",
    ),
    "event time of groups without the times of records": (
        lambda: FlatMapGroupsWithStateTester(latest, "eventTime"),
        InvalidStreamError,
        "call withWatermark",
    ),
    "a watermark without the times of records": (
        lambda: commands().setWatermark(1),
        InvalidStreamError,
        "setWatermark needs the event times of records",
    ),
    "a clock that stands still": (
        lambda: commands().setProcessingTime(0),
        InvalidStreamError,
        "the processing time must be a whole number of milliseconds after 0, got 0",
    ),
    "a watermark that goes back": (
        lambda: [timed_value().setWatermark(time_ms) for time_ms in (-1,)],
        InvalidStreamError,
        "the watermark must be a whole number of milliseconds after 0, got -1",
    ),
    "an unknown output mode": (
        lambda: TransformWithStateTester(Commands(), outputMode="sometimes"),
        InvalidStreamError,
        "outputMode must be append or update, got 'sometimes'",
    ),
    "initial states that are no pairs": (
        lambda: MapWithStateTester(StateSpec.function(running).initialState([1])),
        InvalidStreamError,
        r"initialState must be pairs of key and state, got \[1\]",
    ),
    "a state of None": (
        lambda: MapWithStateTester(running).updateState("a", None),
        InvalidStreamError,
        "a state must not be None; use deleteState",
    ),
    "something else than a processor": (
        lambda: TransformWithStateTester(object()),
        InvalidStreamError,
        "needs an object with the methods of StatefulProcessor",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_errors(call: Callable[[], Any], error: type[BaseException], message: str) -> None:
    """What a stream refuses, the test refuses, with the same message."""
    with pytest.raises(error, match=message):
        call()


def test_a_batch_that_fails_changes_nothing() -> None:
    """Its writes are dropped, as those of a task that fails."""
    tester = MapWithStateTester(running)
    tester.test("a", [1])
    with pytest.raises(UserFunctionError):
        tester.test("a", [2, "text"])
    assert tester.peekState("a") == 1


def test_attributes_are_lost() -> None:
    """A copy of the processor runs each batch, as in a query."""
    processor = Attributes()
    tester = TransformWithStateTester(processor)
    assert [tester.test("a", [1, 2]), tester.test("a", [3])] == [[2], [1]]
    assert processor.seen == 0


def test_metrics_are_those_of_spark() -> None:
    """Late records, expired timers and states are counted by Spark's names."""
    tester = timed_value()
    tester.test("a", [Row(time=5), Row(time=0)])
    assert tester.metrics["numRowsDroppedByWatermark"] == 1
    assert tester.metrics["numRegisteredTimers"] == 1
    assert tester.metrics["numTotalStateRows"] == 2
    tester.setWatermark(15)
    assert tester.metrics["numExpiredTimers"] == 1


def test_rows_of_initial_states() -> None:
    """The function is called for the keys of the initial states before the first records."""
    tester = FlatMapGroupsWithStateTester(counting, initialState={"a": 1})
    assert tester.initialRows == [("a", [], 1)]


def test_schemas_may_be_types() -> None:
    """A schema is a StructType or DDL text."""
    schema = StructType([StructField("n", LongType())])
    tester = TransformWithStateTester(Commands(), outputStructType=schema)
    with pytest.raises(UserFunctionError, match="an output row must be a tuple of 1 values"):
        tester.test("a", do("value", "exists"))


PROGRAM = """
from pyspark import SparkContext
from tests.dstreams.testing.test_state_testers import CASES

for make, calls in CASES.values():
    tester = make()
    for method, arguments, expected in calls:
        assert getattr(tester, method)(*arguments) == expected
assert SparkContext._gateway is None
assert SparkContext._active_spark_context is None
"""


@pytest.mark.deep
def test_no_jvm_is_started() -> None:
    """All the cases run in a process that starts no gateway to a JVM."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
