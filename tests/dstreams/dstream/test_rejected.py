"""Elements whose function fails: skipped and counted, and on request a stream of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import BatchFailedError, DStream, InvalidStreamError
from dstreams.spark.rejected_records import RejectedRecord
from dstreams.testing import BatchDriver, StreamTester

NOT_A_NUMBER = "ValueError: invalid literal for int() with base 10: "


def is_even(text: str) -> bool:
    return int(text) % 2 == 0


def digits(text: str) -> Any:
    """Fail after the first digit, if the second is not one."""
    return (int(sign) for sign in text)


OPERATIONS: dict[str, tuple[Callable[[DStream[Any]], DStream[Any]], list[Any], list[Any]]] = {
    "map": (lambda lines: lines.map(int, onError="skip"), [12, 7, 3], ["1x", ""]),
    "flatMap": (lambda lines: lines.flatMap(digits, onError="skip"), [1, 2, 7, 3], ["1x"]),
    "filter": (lambda lines: lines.filter(is_even, onError="skip"), ["12"], ["1x", ""]),
    "mapValues": (
        lambda lines: lines.map(lambda line: (1, line)).mapValues(int, onError="skip"),
        [(1, 12), (1, 7), (1, 3)],
        [(1, "1x"), (1, "")],
    ),
    "flatMapValues": (
        lambda lines: lines.map(lambda line: (1, line)).flatMapValues(digits, onError="skip"),
        [(1, 1), (1, 2), (1, 7), (1, 3)],
        [(1, "1x")],
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_fails_is_another_stream(sc: SparkContext, name: str) -> None:
    """Each element has its results or is rejected, with operation, reason and batch time."""
    operation, good, bad = OPERATIONS[name]
    with BatchDriver(sc) as driver:
        done = operation(driver.input([sc.parallelize(["12", "1x", "7", "", "3"], 2)]))
        results, rejected = driver.output(done), driver.output(done.rejected())
        driver.run(1)
    assert results == [good]
    assert [one.record for one in rejected[0]] == bad
    first: RejectedRecord = rejected[0][0]
    assert first.operator.startswith(f"{name} at test_rejected.py:")
    assert first.reason.startswith(NOT_A_NUMBER)
    assert (first.batch_time_ms, first.event_time_ms, first.offset) == (1000, None, None)


def test_skipped_elements_are_counted(sc: SparkContext, caplog: pytest.LogCaptureFixture) -> None:
    """They are counted in the inputs of the batch and in the log, whether or not they are kept."""
    with BatchDriver(sc) as driver:
        numbers = driver.input([sc.parallelize(["1", "x", "y"], 2)]).map(int, onError="skip")
        assert driver.output(numbers) == []
        (batch,) = driver.run(1)
    (given,) = batch.inputs
    assert given.metadata["rejected"] == 2
    assert "2 failed and were skipped" in given.description
    assert "2 failed and were skipped, such as function builtins.int of map" in caplog.text


def test_the_function_runs_once(sc: SparkContext) -> None:
    """A function that fails at random decides once where an element is."""
    calls = sc.accumulator(0)

    def fails_at_first(number: int) -> int:
        calls.add(1)
        if number % 2:
            raise ValueError(number)
        return number

    with BatchDriver(sc) as driver:
        done = driver.input([sc.parallelize(range(10), 2)]).map(fails_at_first, onError="skip")
        results, rejected = driver.output(done), driver.output(done.rejected())
        driver.run(1)
    assert calls.value == 10
    assert [len(rows) for rows in (*results, *rejected)] == [5, 5]


def test_without_on_error_a_batch_fails(sc: SparkContext) -> None:
    """As does one whose error no element causes; rejected() needs onError."""
    with BatchDriver(sc) as driver:
        lines = driver.input([sc.parallelize(["x"], 1)])
        with pytest.raises(
            InvalidStreamError, match=r"onError of map at .* is 'ignore'; use one of fail"
        ):
            lines.map(int, onError="ignore")  # type: ignore[arg-type]
        with pytest.raises(InvalidStreamError, match=r"map at .* skips no elements; call rejected"):
            lines.map(int).rejected()
        driver.output(lines.map(int))
        with pytest.raises(
            BatchFailedError, match=r"function builtins.int of map at .* failed for record"
        ):
            driver.run(1)


def follow(key: str, values: Any, state: Any) -> list[Any]:
    return [(key, sorted(values))]


def with_timers(pairs: DStream[Any]) -> DStream[Any]:
    return pairs.flatMapGroupsWithState(
        follow, timeout="eventTime", eventTime=itself, watermark=10, uid="groups"
    )


def itself(time_ms: int) -> int:
    return time_ms


def test_late_pairs(sc: SparkContext) -> None:
    """What a function with state drops as late is a stream, with the name of the state."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 30_000)], [("a", 20_000), ("b", 20_001)], [("c", 1)]])
        groups = with_timers(pairs)
        results, late = driver.output(groups), driver.output(groups.rejected())
        with pytest.raises(InvalidStreamError, match="skips no elements"):
            pairs.flatMapGroupsWithState(follow).rejected()
        batches = driver.run(3)
    assert results == [[("a", [30_000])], [("b", [20_001])], []]
    reason = "late: event time 20000 ms, watermark 20000 ms"
    assert late[1] == [RejectedRecord("groups", reason, ("a", 20_000), 20_000, 2000, None)]
    assert [len(rows or []) for rows in late] == [0, 1, 1]
    dropped = [batch.states[0].metrics["numRowsDroppedByWatermark"] for batch in batches]
    assert dropped == [0, 1, 1]


@pytest.mark.deep
@pytest.mark.parametrize("step", ["state.done", "out.done"])
def test_late_pairs_after_a_kill(sc: SparkContext, tmp_path: Path, step: str) -> None:
    """They are those of the watermark that the batch had, and each is in the output once."""

    def define(ssc: Any, pairs: DStream[Any]) -> DStream[Any]:
        groups = with_timers(pairs)
        groups.rejected().map(lambda one: one.record).saveAsTextFiles(str(tmp_path / "late"))
        return groups

    with StreamTester(sc, define) as tester:
        tester.batch([("a", 30_000)])
        tester.kill([("a", 19_000), ("b", 40_000)], at=step)
        tester.recover()
        tester.batch([("c", 29_000)])
    assert sorted(sc.textFile(f"{tmp_path}/late-*").collect()) == ["('a', 19000)", "('c', 29000)"]


@pytest.mark.deep
@pytest.mark.parametrize("step", ["state.done", "out.done"])
def test_a_window_of_late_pairs_after_a_kill(sc: SparkContext, tmp_path: Path, step: str) -> None:
    """The late pairs of batches before the restart are in the windows after it."""

    def define(ssc: Any, pairs: DStream[Any]) -> DStream[Any]:
        groups = with_timers(pairs)
        late = groups.rejected().map(lambda one: one.record).window(3)
        late.saveAsTextFiles(str(tmp_path / "late"))
        return groups

    with StreamTester(sc, define) as tester:
        tester.batch([("a", 30_000)])
        tester.batch([("a", 19_000), ("b", 40_000)])
        tester.kill([("c", 29_000), ("b", 50_000)], at=step)
        tester.recover()
        tester.batch([("d", 39_000)])
        tester.batch([])
    lines = [sorted(sc.textFile(str(path)).collect()) for path in sorted(tmp_path.glob("late-*"))]
    a, c, d = "('a', 19000)", "('c', 29000)", "('d', 39000)"
    assert lines == [[], [a], [a, c], [a, c, d], [c, d]]


@pytest.mark.deep
@pytest.mark.parametrize("step", ["state.done", "out.done"])
def test_killed(sc: SparkContext, tmp_path: Path, step: str) -> None:
    """After a kill each element is in one of two outputs once."""

    def define(ssc: Any, lines: DStream[Any]) -> DStream[Any]:
        numbers = lines.map(int, onError="skip")
        numbers.map(str).saveAsTextFiles(str(tmp_path / "good"))
        numbers.rejected().map(lambda one: one.record).saveAsTextFiles(str(tmp_path / "bad"))
        return numbers

    with StreamTester(sc, define) as tester:
        tester.batch(["1", "a", "2"])
        tester.kill(["b", "3", "c"], at=step)
        tester.recover()
        tester.batch(["d"])
    lines = {
        kind: sorted(sc.textFile(f"{tmp_path}/{kind}-*").collect()) for kind in ("good", "bad")
    }
    assert lines == {"good": ["1", "2", "3"], "bad": ["a", "b", "c", "d"]}


@pytest.mark.deep
@pytest.mark.parametrize("step", ["state.done", "out.done"])
def test_a_window_of_failed_elements_after_a_kill(
    sc: SparkContext, tmp_path: Path, step: str
) -> None:
    """The failed elements of batches before the restart are in the windows after it."""

    def define(ssc: Any, lines: DStream[Any]) -> DStream[Any]:
        numbers = lines.map(int, onError="skip")
        bad = numbers.rejected().map(lambda one: one.record).window(3)
        bad.saveAsTextFiles(str(tmp_path / "bad"))
        return numbers

    with StreamTester(sc, define) as tester:
        tester.batch(["1", "a"])
        tester.batch(["2", "b"])
        tester.kill(["c", "3"], at=step)
        tester.recover()
        tester.batch(["4", "d"])
        tester.batch([])
    lines = [sorted(sc.textFile(str(path)).collect()) for path in sorted(tmp_path.glob("bad-*"))]
    assert lines == [["a"], ["a", "b"], ["a", "b", "c"], ["b", "c", "d"], ["c", "d"]]
