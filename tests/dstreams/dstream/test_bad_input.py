"""Bad input: each error says what was wrong, where, and what to do, as early as it can be known.

*Where* is the operation with the file and line of its call, and the user's function with its module
and line, where there is one.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import SparkContext, StorageLevel

from dstreams import (
    BatchFailedError,
    DStream,
    EnvironmentNotReadyError,
    InvalidStreamError,
    SourceError,
    StreamingContext,
    StreamingContextState,
)
from dstreams.common.durations import batch_name
from dstreams.graph.plan import NO_STORAGE
from dstreams.testing import BatchDriver, ManualClock
from tests.support.waiting import wait_for

HERE = "test_bad_input.py"


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def line_of(function: Callable[..., Any]) -> int:
    return inspect.getsourcelines(function)[1]


def named(function: Callable[..., Any]) -> str:
    """Return the name that messages give a function of this module."""
    return f"{function.__module__}.{function.__qualname__}:{line_of(function)}"


def message_of_batch(
    sc: SparkContext, records: list[Any], operation: Callable[[DStream], DStream]
) -> str:
    """Run one batch that fails, and return what its error says."""
    with BatchDriver(sc) as driver:
        driver.output(operation(driver.input([sc.parallelize(records, 1)])))
        with pytest.raises(BatchFailedError) as raised:
            driver.run(1)
    message = str(raised.value)
    assert message.startswith(f"{batch_name(1000, 0)} failed in foreachRDD at ")
    assert "\n" not in message
    return message


def message_of_definition(sc: SparkContext, operation: Callable[[DStream], object]) -> str:
    """Define a stream that is refused, and return what its error says."""
    with BatchDriver(sc) as driver:
        stream = driver.input([])
        with pytest.raises(InvalidStreamError) as raised:
            operation(stream)
    return str(raised.value)


# Records -------------------------------------------------------------------------------------

PAIR_OPERATIONS: dict[str, Callable[[DStream], DStream]] = {
    "updateStateByKey": lambda s: s.updateStateByKey(add),
    "mapValues": lambda s: s.mapValues(str),
    "flatMapValues": lambda s: s.flatMapValues(str),
    "reduceByKey": lambda s: s.reduceByKey(max),
    "combineByKey": lambda s: s.combineByKey(str, max, max),
    "groupByKey": lambda s: s.groupByKey(),
    "partitionBy": lambda s: s.partitionBy(2),
    "join": lambda s: s.join(s.context().queueStream([])),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", PAIR_OPERATIONS)
def test_records_that_are_no_pairs(sc: SparkContext, name: str) -> None:
    """The record, its type, the operation that needs pairs, and how to get them."""
    message = message_of_batch(sc, ["ab"], PAIR_OPERATIONS[name])
    assert re.search(
        rf"{name} at {HERE}:\d+: expected \(key, value\) pairs, got 'ab' \(str\)", message
    )
    assert message.endswith(
        "; map the stream to pairs first, for example stream.map(lambda x: (x, 1))"
    )


@pytest.mark.deep
@pytest.mark.parametrize("name", ["updateStateByKey", "reduceByKey", "groupByKey", "join"])
def test_unhashable_keys(sc: SparkContext, name: str) -> None:
    """The error has the key, the reason, and valid kinds of keys."""
    message = message_of_batch(sc, [(["k"], 1)], PAIR_OPERATIONS[name])
    assert re.search(
        rf"TypeError: {name} at {HERE}:\d+: the key \['k'\] cannot be placed: ", message
    )
    assert "unhashable" in message
    assert message.endswith("for example tuple(key) for a list or frozenset(key) for a set")


def test_pairs_may_be_lists_of_two(sc: SparkContext) -> None:
    """Everything that pyspark accepts as a pair is accepted."""
    with BatchDriver(sc) as driver:
        seen = driver.output(driver.input([[["a", 1], ["a", 2]]]).reduceByKey(max))
        driver.run(1)
    assert seen == [[("a", 2)]]


# Update functions ----------------------------------------------------------------------------


def one_argument(values: list[int]) -> int:
    return 1


def fails_for_b(time: Any, key: str, values: list[int], state: int | None) -> int:
    if key == "b":
        raise KeyError("no such thing")
    return 1


def returns_none(entries: Iterator[Any]) -> None:
    return None


def returns_keys(entries: Iterator[Any]) -> list[str]:
    return [key for key, _, _ in entries]


def returns_a_lock(values: list[int], state: Any) -> Any:
    return threading.Lock()


@pytest.mark.parametrize(
    ("form", "shape", "count"),
    [("values", "f(values, state)", 2), ("keyed", "f(time, key, values, state)", 4)],
)
def test_an_update_function_of_the_wrong_arity(
    sc: SparkContext, form: str, shape: str, count: int
) -> None:
    """The error has the arguments of the call, those of the function, and the fix."""
    message = message_of_definition(sc, lambda s: s.updateStateByKey(one_argument, form=form))
    told = (
        f" calls {shape} -> new state, or None to drop the key, but {named(one_argument)} takes "
        f"(values); let it take {count} positional arguments"
    )
    assert re.fullmatch(rf"updateStateByKey at {HERE}:\d+{re.escape(told)}", message)


def test_an_unknown_form(sc: SparkContext) -> None:
    """The message lists those that there are."""
    message = message_of_definition(sc, lambda s: s.updateStateByKey(add, form="value"))
    assert re.fullmatch(
        rf"form of updateStateByKey at {HERE}:\d+ must be 'values', 'keyed' or 'iterator', got "
        r"'value'; for functions over blocks write toBlocks\(schema\)\.updateStateByKey\(\.\.\.\)",
        message,
    )


@pytest.mark.deep
@pytest.mark.parametrize(
    ("function", "form", "told"),
    [
        (returns_none, "iterator", "must return an iterator of (key, state), got NoneType"),
        (returns_keys, "iterator", "must return pairs of key and state, got 'a' (str)"),
        (returns_a_lock, "values", "the value of type lock of key 'a' cannot be pickled"),
    ],
    ids=["no iterator", "no pairs", "no data"],
)
def test_an_update_function_that_returns_no_state(
    sc: SparkContext, function: Callable[..., Any], form: str, told: str
) -> None:
    """The error has the expected and the returned type, and the key if there is one."""
    message = message_of_batch(sc, [("a", 1)], lambda s: s.updateStateByKey(function, form=form))
    where = rf"update function {re.escape(named(function))} of updateStateByKey at {HERE}:\d+:? "
    assert re.search(where + re.escape(told), message), message


def test_an_update_function_that_fails(sc: SparkContext) -> None:
    """The key for which it did, and its own exception."""
    message = message_of_batch(
        sc, [("a", 1), ("b", 1)], lambda s: s.updateStateByKey(fails_for_b, form="keyed")
    )
    assert f"update function {named(fails_for_b)} of updateStateByKey at {HERE}:" in message
    line = fails_for_b.__code__.co_firstlineno + 2
    where = rf"\({HERE}:{line} in fails_for_b\)"
    assert re.search(rf"failed for key 'b': KeyError: 'no such thing' {where}$", message)


@pytest.mark.parametrize("wrong", [5, None, "add"])
def test_an_update_function_that_is_none(sc: SparkContext, wrong: Any) -> None:
    """The message has what was given instead."""
    message = message_of_definition(sc, lambda s: s.updateStateByKey(wrong))
    assert "needs a function f(values, state)" in message
    assert message.endswith(f"got {wrong!r} ({type(wrong).__name__})")


INITIAL_STATES: dict[str, tuple[Any, str]] = {
    "no collection": (
        5,
        "initialRDD of updateStateByKey at {} must be an RDD or a collection of (key, state) "
        "pairs, got int",
    ),
    "text": (
        "ab",
        "initialRDD of updateStateByKey at {} must be an RDD or a collection of (key, state) "
        "pairs, got str",
    ),
    "no pairs": (
        [("a", 1), "ab"],
        "initialRDD of updateStateByKey at {} must hold (key, state) pairs, got 'ab' (str)",
    ),
    "an unhashable key": (
        [([1], 1)],
        "initialRDD of updateStateByKey at {}: the key [1] cannot be placed: unhashable type: "
        "'list'; use an immutable value, for example tuple(key) for a list or frozenset(key) for "
        "a set",
    ),
    "a key twice": (
        [("a", 1), ("a", 2)],
        "initialRDD of updateStateByKey at {} has the key 'a' twice; a key has one state, so "
        "reduce the pairs by key first",
    ),
}


@pytest.mark.parametrize("case", INITIAL_STATES)
def test_an_initial_state_that_is_none(sc: SparkContext, case: str) -> None:
    """A collection is checked where it is given, before any batch."""
    initial, told = INITIAL_STATES[case]
    message = message_of_definition(sc, lambda s: s.updateStateByKey(add, initialRDD=initial))
    assert re.fullmatch(re.escape(told).replace(r"\{\}", rf"{HERE}:\d+"), message), message


# Functions -----------------------------------------------------------------------------------


def using_a_lock() -> Callable[[Any], Any]:
    lock = threading.Lock()

    def use(x: Any) -> Any:
        return lock, x

    return use


OPERATIONS: dict[str, Callable[[DStream, Callable[[Any], Any]], object]] = {
    "map": lambda s, f: s.map(f),
    "flatMap": lambda s, f: s.flatMap(f),
    "filter": lambda s, f: s.filter(f),
    "mapPartitions": lambda s, f: s.mapPartitions(f),
    "mapValues": lambda s, f: s.mapValues(f),
    "updateStateByKey": lambda s, f: s.updateStateByKey(f, form="iterator"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_functions_that_cannot_be_sent(sc: SparkContext, name: str) -> None:
    """Refused at definition: which variable it is, of what type, and what to do instead."""
    use = using_a_lock()
    message = message_of_definition(sc, lambda s: OPERATIONS[name](s, use))
    assert re.match(rf"{name} at {HERE}:\d+ cannot send ", message)
    assert f"{named(use)} to the workers, because it uses 'lock', of type " in message
    assert "_thread.lock, which cannot be pickled; create it inside the function" in message


@pytest.mark.parametrize("name", OPERATIONS)
def test_functions_that_captured_a_stream(sc: SparkContext, name: str) -> None:
    """The message names the variable, and how streams are combined."""
    message = message_of_definition(sc, lambda stream: OPERATIONS[name](stream, lambda x: stream))
    assert re.match(rf"{name} at {HERE}:\d+ cannot send \S+<lambda>:\d+ to the workers, ", message)
    assert "because it uses 'stream', a DStream, which exists only in the driver; " in message
    assert message.endswith(
        "combine streams with join, union or transformWith, or use plain values"
    )


class Program:
    """Holds its context, as programs do."""

    def __init__(self, ssc: StreamingContext, sc: SparkContext) -> None:
        self.ssc = ssc
        self.sc = sc

    def update(self, values: list[int], state: int | None) -> int:
        return add(values, state)


def test_functions_that_captured_a_context(sc: SparkContext) -> None:
    """A method carries its object along: the message has the way to the context."""

    def define(stream: DStream) -> None:
        stream.updateStateByKey(Program(stream.context(), sc).update)

    message = message_of_definition(sc, define)
    assert f"cannot send {named(Program.update)} to the workers, because it uses 'self." in message
    assert "a StreamingContext, which exists only in the driver; copy the plain values" in message


@pytest.mark.parametrize(
    ("define", "told"),
    [
        (lambda s: s.map(lambda: 1), "map at {} calls f(x) -> y, but {} takes no arguments; let "),
        (lambda s: s.reduce(lambda x: x), "reduce at {} calls f(x, y) -> z, but {} takes (x); let"),
        (
            lambda s: s.foreachRDD(lambda a, b, c, d: None),
            "foreachRDD at {} calls f(rdd), f(time, rdd) or f(time, rdd, batchId), but {} takes "
            "(a, b, c, d); let",
        ),
        (
            lambda s: s.transform(lambda: None),
            "transform at {} calls f(rdd) -> RDD or f(time, rdd) -> RDD, but {} takes no arg",
        ),
        (
            lambda s: s.transformWith(lambda a: None, s),
            "transformWith at {} calls f(rdd, rdd) -> RDD or f(time, rdd, rdd) -> RDD, but {}",
        ),
    ],
    ids=["map", "reduce", "foreachRDD", "transform", "transformWith"],
)
def test_functions_of_the_wrong_arity(
    sc: SparkContext, define: Callable[[DStream], object], told: str
) -> None:
    """Refused at definition, for outputs as well."""
    message = message_of_definition(sc, define)
    pattern = re.escape(told).replace(r"\{\}", r"\S+")
    assert re.match(pattern, message), message
    assert f"{HERE}:" in message


def test_a_transform_that_returns_no_rdd(sc: SparkContext) -> None:
    """The batch fails with the operation and the type it got."""
    with BatchDriver(sc) as driver:
        driver.output(driver.input([[1]]).transform(lambda rdd: rdd.count()))  # type: ignore[arg-type,return-value]
        with pytest.raises(BatchFailedError) as raised:
            driver.run(1)
    assert re.search(
        rf"transform at {HERE}:\d+ must return an RDD or None, got int$", str(raised.value)
    )


# Numbers -------------------------------------------------------------------------------------

PARTITIONED: dict[str, Callable[[DStream, Any], object]] = {
    "updateStateByKey": lambda s, n: s.updateStateByKey(add, n),
    "reduceByKey": lambda s, n: s.reduceByKey(max, n),
    "groupByKey": lambda s, n: s.groupByKey(n),
    "combineByKey": lambda s, n: s.combineByKey(str, max, max, n),
    "partitionBy": lambda s, n: s.partitionBy(n),
    "repartition": lambda s, n: s.repartition(n),
    "cogroup": lambda s, n: s.cogroup(s, n),
    "join": lambda s, n: s.join(s, n),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", PARTITIONED)
@pytest.mark.parametrize("wrong", [0, "2", True])
def test_numbers_of_partitions(sc: SparkContext, name: str, wrong: Any) -> None:
    """An invalid number of partitions is refused when the stream is defined."""
    message = message_of_definition(sc, lambda s: PARTITIONED[name](s, wrong))
    assert re.fullmatch(
        rf"numPartitions of {name} at {HERE}:\d+ is {wrong!r}; use a whole number of at least 1",
        message,
    )


@pytest.mark.parametrize("call", ["checkpoint", "remember"])
@pytest.mark.parametrize("wrong", [0, -1, "1", float("nan"), None])
def test_durations(sc: SparkContext, call: str, wrong: Any) -> None:
    """A duration is a positive number of seconds; the message has the parameter and the value."""
    with BatchDriver(sc) as driver:
        target: Any = driver.input([]) if call == "checkpoint" else driver.context
        with pytest.raises(ValueError, match=re.escape(repr(wrong))) as raised:
            getattr(target, call)(wrong)
    parameter = {"checkpoint": "interval", "remember": "duration"}[call]
    assert str(raised.value).startswith(f"{parameter} must be a")


# At start ------------------------------------------------------------------------------------


@pytest.fixture
def ssc(sc: SparkContext) -> Iterator[StreamingContext]:
    context = StreamingContext(sc, 1, clock=ManualClock())
    yield context
    context.stop(stopSparkContext=False)


def refused_start(ssc: StreamingContext) -> str:
    with pytest.raises(InvalidStreamError) as raised:
        ssc.start()
    assert ssc.getState() is StreamingContextState.INITIALIZED  # and can be started again
    return str(raised.value)


def test_no_output(ssc: StreamingContext) -> None:
    """The message says what an output is."""
    ssc.queueStream([]).map(str)
    assert refused_start(ssc) == (
        "no output operations registered, so nothing to execute; end a stream with an output such "
        "as pprint(), foreachRDD(f) or saveAsTextFiles(prefix)"
    )


@pytest.mark.usefixtures("no_checkpoint_directory")
@pytest.mark.parametrize("stateful", [True, False])
def test_no_checkpoint_directory(ssc: StreamingContext, stateful: bool) -> None:
    """Stateful streams need one, others when they are checkpointed; the message says how."""
    pairs = ssc.queueStream([])
    stream = pairs.updateStateByKey(add) if stateful else pairs.map(str).checkpoint(2)
    stream.pprint()
    name = "updateStateByKey" if stateful else "map"
    assert re.fullmatch(
        rf"{name} at {HERE}:\d+ makes its state durable, but the checkpoint directory has not been "
        r"set; set it with StreamingContext.checkpoint\(directory\)",
        refused_start(ssc),
    )


@pytest.mark.usefixtures("no_checkpoint_directory")
def test_a_stream_that_no_output_uses_needs_no_directory(ssc: StreamingContext) -> None:
    """Streams that never run are not checked."""
    pairs = ssc.queueStream([])
    pairs.updateStateByKey(add)
    pairs.pprint()
    ssc.start()
    assert ssc.getState() is StreamingContextState.ACTIVE


@pytest.mark.parametrize(
    ("interval", "told"),
    [
        (0.5, "is 500 ms, lower than its slide of 1000 ms; set it to at least 1000 ms"),
        (1.5, "is 1500 ms, which is not a multiple of its slide of 1000 ms; set it to 2000 ms"),
    ],
)
def test_checkpoint_intervals(
    ssc: StreamingContext, tmp_path: Path, interval: float, told: str
) -> None:
    """An interval is a multiple of the slide; the message has the next one that is."""
    ssc.checkpoint(str(tmp_path))
    ssc.queueStream([]).updateStateByKey(add).checkpoint(interval).pprint()
    message = refused_start(ssc)
    assert re.match(rf"the checkpoint interval of updateStateByKey at {HERE}:\d+ is ", message)
    assert message.endswith(told)


def test_a_state_that_is_not_stored(ssc: StreamingContext, tmp_path: Path) -> None:
    """A storage level that keeps nothing would compute the whole past in every batch."""
    ssc.checkpoint(str(tmp_path))
    assert StorageLevel(False, False, False, False) == NO_STORAGE
    ssc.queueStream([]).updateStateByKey(add).persist(NO_STORAGE).pprint()
    assert re.fullmatch(
        rf"updateStateByKey at {HERE}:\d+ is checkpointed, but its storage level keeps nothing; "
        r"choose one with persist\(level\) that does",
        refused_start(ssc),
    )


def test_a_directory_that_is_none(ssc: StreamingContext, tmp_path: Path) -> None:
    """A text file stream over a file is refused at start, with the path."""
    path = tmp_path / "file"
    path.touch()
    ssc.textFileStream(str(path)).pprint()
    with pytest.raises(SourceError, match=re.escape(repr(str(path)))):
        ssc.start()
    assert ssc.getState() is StreamingContextState.STOPPED


def test_a_directory_that_becomes_unreadable(sc: SparkContext, tmp_path: Path) -> None:
    """The batch fails and says which directory; files that come later are read in their batch."""
    directory = tmp_path / "in"
    directory.mkdir()
    clock = ManualClock()
    ssc = StreamingContext(sc, 1, clock=clock)
    seen: list[list[str]] = []
    ssc.textFileStream(str(directory)).foreachRDD(lambda rdd: seen.append(rdd.collect()))
    try:
        ssc.step()
        directory.rmdir()
        directory.touch()
        with pytest.raises(BatchFailedError) as raised:
            ssc.step()
        directory.unlink()
        directory.mkdir()
        (directory / "a.txt").write_text("line\n")
        os.utime(directory / "a.txt", (2.5, 2.5))
        ssc.step()
    finally:
        ssc.stop(stopSparkContext=False)
    where = rf"reading the input of textFileStream at {HERE}:\d+"
    assert re.match(
        rf"batch \d+ at 2000 ms \(.*?\) failed in {where}: SourceError: ", str(raised.value)
    )
    assert repr(str(directory)) in str(raised.value)
    assert isinstance(raised.value.__cause__, SourceError)
    assert seen == [[], ["line"]]


def test_a_dead_socket(ssc: StreamingContext, caplog: pytest.LogCaptureFixture) -> None:
    """If no server listens, the streams run with empty batches, and a warning has the address."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    seen: list[list[str]] = []
    ssc.socketTextStream("127.0.0.1", port).foreachRDD(lambda rdd: seen.append(rdd.collect()))
    with caplog.at_level(logging.WARNING, "dstreams"):
        ssc.step()
        wait_for(lambda: "no connection" in caplog.text)
    assert re.search(
        rf"socketTextStream\(127.0.0.1:{port}\): no connection: .*; trying again every 2000 ms",
        caplog.text,
    )
    assert seen == [[]]
    assert ssc.getState() is StreamingContextState.ACTIVE


@pytest.mark.parametrize("version", ["3.4.4", "5.0.0"])
def test_another_spark(sc: SparkContext, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Too old or too new: refused at construction, with the command that installs the right one."""
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(EnvironmentNotReadyError) as raised:
        StreamingContext(sc, 1)
    assert str(raised.value).startswith(
        f"pyspark {version} is installed, but dstreams needs 3.5 or"
    )
    assert str(raised.value).endswith("run: python -m pip install 'pyspark>=3.5,<5'")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("print", "; use pprint()"),
        ("sortBy", "; use transform(f) for operations of RDDs"),
        ("x", ""),
    ],
)
def test_missing_methods(ssc: StreamingContext, name: str, remedy: str) -> None:
    """The error of a method of Scala or of RDDs names its counterpart."""
    stream = ssc.queueStream([[1]])
    assert not hasattr(stream, name)
    with pytest.raises(AttributeError, match=re.escape(f"no attribute {name!r}{remedy}") + "$"):
        getattr(stream, name)
