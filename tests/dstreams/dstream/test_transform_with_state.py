"""transformWithState of streams, as tables of input batches to output batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor as SparkProcessor
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from checkpoint.cli.main import main
from dstreams import (
    BatchFailedError,
    CheckpointState,
    DStream,
    InvalidStreamError,
    RestartError,
    Settings,
    StatefulProcessor,
    StreamingContext,
)
from dstreams.state.stateful_processor import Columns
from dstreams.testing import BatchDriver, ManualClock, run_batches
from tests.dstreams.state.processors import Commands

Batches = list[list[tuple[Any, ...]]]
A_LIST = ("a", "list", "get")


def appended(number: int) -> tuple[Any, ...]:
    return ("a", "list", "appendValue", (number,))


def results(sc: SparkContext, batches: Batches, *arguments: Any, **options: Any) -> list[Any]:
    """Return the sorted rows of each batch of commands, keyed by their first part."""

    def transformed(pairs: DStream[Any]) -> DStream[Any]:
        return pairs.transformWithState(*(arguments or (Commands(),)), **options)

    pairs = [[(record[0], record) for record in batch] for batch in batches]
    return [sorted(rows or [], key=repr) for rows in run_batches(sc, pairs, transformed)]


def test_states(sc: SparkContext) -> None:
    """Values, lists and maps go on from batch to batch, per key."""
    assert results(
        sc,
        [
            [("a", "value", "update", (1,)), appended(1), appended(2)],
            [("b", "map", "updateValue", ("x",), (7,)), appended(3)],
            [("a", "value", "get"), A_LIST, ("b", "map", "keys"), ("b", "value", "get")],
        ],
    ) == [[], [], [("a", (1,)), ("a", [(1,), (2,), (3,)]), ("b", None), ("b", [("x",)])]]


def test_timers_follow_the_batch_time(sc: SparkContext) -> None:
    """A timer is due in the first batch whose time has reached it, also without records."""
    batches = [[("a", "timers", "registerTimer", 3000)], [("a", "times", "")], [], []]
    assert results(sc, batches, Commands(), timeMode="processingTime") == [
        [],
        [("a", (2000, -1))],
        [("a", "timer", 3000, [3000])],
        [],
    ]


def test_ttl(sc: SparkContext) -> None:
    """A row expires by the batch time."""
    batches = [[appended(1)], [A_LIST, appended(2)], [A_LIST], [A_LIST], [A_LIST]]
    assert results(sc, batches, Commands(ttl_ms=2000), timeMode="processingTime") == [
        [],
        [("a", [(1,)])],
        [("a", [(2,)])],
        [("a", [])],
        [("a", [])],
    ]


class LatestSecond(SparkProcessor):
    """Keeps the largest value of a key, which ends five seconds of event time after it."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.latest = handle.getValueState("latest", "second long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        (latest,) = self.latest.get() or (0,)
        latest = max(latest, *rows, 0)
        self.latest.update((latest,))
        self.handle.registerTimer((latest + 5) * 1000)
        yield Row(key=key[0], second=latest)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        if expiredTimerInfo.getExpiryTimeInMs() == (self.latest.get()[0] + 5) * 1000:
            self.latest.clear()
            yield Row(key=key[0], second=-1)

    def close(self) -> None:
        pass


def test_event_time(sc: SparkContext) -> None:
    """A processor of Spark runs unchanged; late values are dropped, timers follow the watermark."""
    seconds = [[("a", 11), ("a", 15)], [("a", 4), ("b", 32)], [], []]
    outputs = run_batches(
        sc,
        seconds,
        lambda pairs: pairs.transformWithState(
            LatestSecond(),
            "key string, second long",
            "append",
            "eventTime",
            eventTime=lambda second: second * 1000,
            watermark=10,
        ),
    )
    assert outputs == [[("a", 15)], [("b", 32)], [("a", -1)], []]
    assert [row.second for rows in outputs for row in rows or []] == [15, 32, -1]


class Keys(StatefulProcessor):
    """Returns the key and the number of batches that had it."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        (count,) = self.count.get() or (0,)
        self.count.update((count + 1,))
        yield key, count + 1


def test_keys(sc: SparkContext) -> None:
    """A tuple reaches the processor as it is, other keys in a tuple; each has its own state."""
    keys = ["a", ("a",), ("a", 1), 1, None, ()]
    batches = [[(key, 1) for key in keys], [("a", 1), (("a",), 1), (("a",), 1)]]
    outputs = run_batches(
        sc, batches, lambda pairs: pairs.transformWithState(Keys(), numPartitions=1)
    )
    shown = [("a",), ("a",), ("a", 1), (1,), (None,), ()]
    assert sorted(outputs[0] or [], key=repr) == sorted(((key, 1) for key in shown), key=repr)
    assert outputs[1] == [(("a",), 2), (("a",), 2)]


def test_partition_functions(sc: SparkContext) -> None:
    """A user's partition function gets the key of the pair."""

    def by_length(key: str) -> int:
        return len(key)

    batches = [[("a", 1), ("bb", 1), ("ccc", 1)]]
    (parts,) = run_batches(
        sc,
        batches,
        lambda pairs: pairs.transformWithState(
            Keys(), numPartitions=2, partitionFunc=by_length
        ).glom(),
    )
    assert sorted(map(len, parts or [])) == [1, 2]


def test_initial_state(sc: SparkContext) -> None:
    """A key may have several initial rows, which are handled once."""
    options = {"initialState": [("a", 1), ("b", 2), ("a", 3)]}
    assert results(sc, [[A_LIST], [A_LIST, ("b", "list", "get")]], Commands(), **options) == [
        [("a", [(1,), (3,)])],
        [("a", [(1,), (3,)]), ("b", [(2,)])],
    ]


def test_state_can_be_read(sc: SparkContext) -> None:
    """``stateStore`` returns each entry, with its expiry, of any kept batch; ``state`` a key."""
    with BatchDriver(sc) as driver:
        pairs = driver.input(
            [
                [("a", ("a", "list", "appendValue", (5,)))],
                [("a", ("a", "timers", "registerTimer", 9000))],
            ]
        )
        stream = pairs.transformWithState(Commands(ttl_ms=5000), timeMode="processingTime")
        driver.output(stream)
        driver.run(2)
        first = [(("list", "a", 1000, 0), (5,), 6000)]
        timer = (("$timers", "a", 9000), True, 9000)
        assert sorted(stream.stateStore().collect()) == [timer, *first]
        assert stream.stateStore(1).collect() == first
        state = driver.context.state()
        assert (state.get("a"), state.get(("a",))) == ({"list": [(5,)]}, None)


seen: list[list[Any]] = []


def note(rdd: RDD[Any]) -> None:
    seen.append(sorted(rdd.collect(), key=repr))


def setup_of(
    sc: SparkContext,
    directory: Path,
    batches: Batches,
    processor: Any,
    partitions: int = 2,
    output: Callable[[RDD[Any]], None] = note,
    settings: Settings | None = None,
) -> Callable[[], StreamingContext]:
    """Return a setup with replayable batches of commands."""

    def make() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=settings)
        ssc.checkpoint(str(directory))
        pairs = ssc.queueStream(
            [[(record[0], record) for record in batch] for batch in batches],
            replayable=True,
            uid="commands",
        )
        rows = pairs.transformWithState(
            processor, timeMode="processingTime", numPartitions=partitions, uid="states"
        )
        rows.foreachRDD(output)
        return ssc

    return make


def life(
    sc: SparkContext,
    directory: Path,
    batches: Batches,
    count: int,
    processor: Any = None,
    partitions: int = 2,
) -> list[list[Any]]:
    """Restore a stream, run *count* batches and stop; return their rows."""
    seen.clear()
    make = setup_of(sc, directory, batches, processor or Commands(), partitions)
    ssc = StreamingContext.restore(str(directory), make)
    try:
        ssc.step(count)
    finally:
        ssc.stop(stopSparkContext=False)
    return list(seen)


RESTARTED: Batches = [
    [appended(1), ("a", "timers", "registerTimer", 4000), ("b", "value", "update", (1,))],
    [appended(2)],
    [appended(3), A_LIST],
    [("b", "value", "get")],
    [A_LIST],
]
AFTER = [
    [("a", [(1,), (2,), (3,)])],
    [("a", "timer", 4000, [4000]), ("b", (1,))],
    [("a", [(1,), (2,), (3,)])],
]


def test_restart(sc: SparkContext, tmp_path: Path) -> None:
    """State, order of lists and timers go on after a restart, also in other partitions."""
    assert life(sc, tmp_path, RESTARTED, 2) == [[], []]
    assert life(sc, tmp_path, RESTARTED, 1, partitions=3) == AFTER[:1]
    assert life(sc, tmp_path, RESTARTED, 2, partitions=3) == AFTER[1:]


def test_batch_that_runs_again(sc: SparkContext, tmp_path: Path) -> None:
    """A batch whose output failed has the same state and rows when it runs again."""

    def fail_in_the_second(rdd: RDD[Any]) -> None:
        seen.append(sorted(rdd.collect(), key=repr))
        if len(seen) == 3:
            raise OSError("no room")

    seen.clear()
    stopping = Settings(on_failure="stop")
    make = setup_of(sc, tmp_path, RESTARTED, Commands(), 2, fail_in_the_second, stopping)
    ssc = make()
    with pytest.raises(BatchFailedError, match="no room"):
        ssc.step(3)
    ssc.stop(stopSparkContext=False)
    assert seen == [[], [], AFTER[0]]
    assert life(sc, tmp_path, RESTARTED, 3) == AFTER


def with_default(name: str, default: Any) -> StructField:
    return StructField(name, StringType(), metadata={"default": default})


class Growing(StatefulProcessor):
    """Appends to a list, a map and a value, and returns all three; by columns that change."""

    def __init__(self, columns: StructType | str) -> None:
        self._columns = columns

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", self._columns)
        self.list = handle.getListState("list", self._columns)
        self.map = handle.getMapState("map", "key int", self._columns)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        yield self.value.get(), list(self.list.get()), list(self.map.values())
        for row in rows:
            self.value.update(row)
            self.list.appendValue(row)
            self.map.updateValue((int(row[0]),), row)


def grown_life(sc: SparkContext, directory: Path, columns: StructType | str, row: Any) -> Any:
    """Restore a stream whose next batch has one row, for key 1; return what it had before."""
    seen.clear()

    def make() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock())
        ssc.checkpoint(str(directory))
        pairs = ssc.queueStream([[(1, row)]] * 9, replayable=True, uid="rows")
        pairs.transformWithState(Growing(columns), uid="grown").foreachRDD(note)
        return ssc

    ssc = StreamingContext.restore(str(directory), make)
    try:
        ssc.step()
    finally:
        ssc.stop(stopSparkContext=False)
    return seen[-1][0]


def test_columns_that_grow(sc: SparkContext, tmp_path: Path) -> None:
    """Columns that are added have their defaults in old rows, and wider ones have new values."""
    first, second = (1,), (2, "x")
    assert grown_life(sc, tmp_path, "number int", first) == (None, [], [])
    columns = StructType([StructField("number", LongType()), with_default("text", "-")])
    assert grown_life(sc, tmp_path, columns, second) == ((1, "-"), [(1, "-")], [(1, "-")])
    columns = StructType([*columns.fields, StructField("rate", DoubleType())])
    wanted = [(1, "-", None), (2, "x", None)]
    assert grown_life(sc, tmp_path, columns, (3, "y", 0.5)) == (wanted[1], wanted, wanted)
    with pytest.raises(RestartError, match=r"'number' of the state variable 'value' .* was bigint"):
        grown_life(sc, tmp_path, "number string, text string, rate double", ("4", "z", 0.5))
    with pytest.raises(RestartError, match=r"column 'rate' \(double\) of the state variable"):
        grown_life(sc, tmp_path, "number bigint, text string", (4, "z"))


def test_integers_that_become_floats(sc: SparkContext, tmp_path: Path) -> None:
    """Old integers are read as floats."""
    assert grown_life(sc, tmp_path, "number int", (1,)) == (None, [], [])
    value, *_ = found = grown_life(sc, tmp_path, "number double", (0.5,))
    assert found == ((1.0,), [(1.0,)], [(1.0,)])
    assert type(value[0]) is float


def test_defaults_are_checked() -> None:
    """A default that does not fit its column is refused where the stream is defined."""
    columns = StructType([with_default("text", 7)])
    with pytest.raises(InvalidStreamError, match="the default: column 'text' has type string, got"):
        Columns.of(columns, "state 'v'")


def test_checkpoint_tools(
    sc: SparkContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tools list, verify, read and export the state; an import goes on with it."""
    directory, copy = tmp_path / "checkpoint", tmp_path / "copy"
    life(sc, directory, RESTARTED, 2)

    def tool(*arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    assert "states" in tool("show", directory)
    assert "no problems" in tool("verify", "--quiet", directory)
    lines = tool("read", directory, "--operator", "states").splitlines()
    assert len(list(map(json.loads, lines))) == 4
    with CheckpointState(str(directory)) as states:
        assert states.state("states").get("a") == {"list": [(1,), (2,)]}
    tool("export", "--quiet", directory, tmp_path / "saved")
    tool("import", "--quiet", tmp_path / "saved", copy)
    assert life(sc, copy, RESTARTED, 3) == AFTER


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((Commands(), None, "complete"), {}, "outputMode of transformWithState at .* 'complete'"),
        ((Commands(), None, "append", "never"), {}, "UNKNOWN_TIME_MODE.*'never'"),
        (
            (Commands(), None, "append", "eventTime"),
            {},
            "timeMode='eventTime' of .* needs eventTime and watermark",
        ),
        ((object(),), {}, "needs an object with the methods of StatefulProcessor"),
        ((Commands(), 7), {}, "a schema must be a StructType or its DDL text.* got 7"),
        ((Commands(ttl_ms=5),), {}, "cannot have a TTL with time mode 'none'"),
    ],
)
def test_refused_streams(
    sc: SparkContext, arguments: Any, options: dict[str, Any], text: str
) -> None:
    """What cannot run is refused where the stream is defined."""
    with pytest.raises(InvalidStreamError, match=text):
        results(sc, [[]], *arguments, **options)
