"""Whole streams under the tester, over kills at every step."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import (
    BatchFailedError,
    DStream,
    InvalidStreamError,
    RestartError,
    State,
    StateSpec,
    StreamingContext,
    StreamLifecycleError,
)
from dstreams.testing import StreamTester

STEPS = (
    "plan.start",
    "begin.start",
    "begin.done",
    "state.start",
    "state.done",
    "out.start",
    "out.done",
    "commit.start",
    "commit.done",
)


def add_up(new: list[int], total: int | None) -> int:
    return sum(new) + (total or 0)


def running(key: str, value: int | None, state: State[int]) -> tuple[str, int]:
    state.update((state.getOption or 0) + (value or 0))
    return key, state.get


def one_state(ssc: StreamingContext, numbers: DStream[Any]) -> DStream[Any]:
    return numbers.updateStateByKey(add_up, uid="totals")


def two_states(ssc: StreamingContext, left: DStream[Any], right: DStream[Any]) -> Any:
    """Sums of both inputs in snapshots, and of the first in the store."""
    totals = left.union(right).updateStateByKey(add_up, uid="totals")
    stored = left.mapWithState(StateSpec.function(running), uid="stored")
    return {"totals": totals, "stored": stored}


def test_batches_and_states(sc: SparkContext) -> None:
    """Outputs of a batch are returned, by name if there are several; states are those after it."""
    with StreamTester(sc, two_states, inputs=2) as tester:
        found = tester.batch([("a", 1), ("b", 2)], [("a", 10)])
        assert {name: sorted(rows) for name, rows in found.items()} == {
            "totals": [("a", 11), ("b", 2)],
            "stored": [("a", 1), ("b", 2)],
        }
        found = tester.batch(None, [("b", 5)])
        assert (sorted(found["totals"]), found["stored"]) == ([("a", 11), ("b", 7)], [])
        assert tester.batch()["stored"] == []
        assert tester.state("totals") == {"a": 11, "b": 7}
        assert tester.state("stored") == {"a": 1, "b": 2}
    assert not os.path.exists(tester.checkpoint)
    assert StreamingContext.getActive() is None


def test_kill_between_batches(sc: SparkContext) -> None:
    """A restart has the state, and runs nothing again."""
    with StreamTester(sc, one_state) as tester:
        tester.batch([("a", 1)])
        tester.kill()
        with pytest.raises(StreamLifecycleError, match="the driver was killed"):
            tester.batch([("a", 1)])
        assert tester.recover() == []
        with pytest.raises(StreamLifecycleError, match="the driver is running"):
            tester.recover()
        assert tester.batch([("a", 2)]) == [("a", 3)]


@pytest.mark.deep
@pytest.mark.parametrize("step", STEPS)
def test_kill_at_a_step(sc: SparkContext, step: str) -> None:
    """No record is lost or counted twice, in either kind of state."""
    expected: dict[str, int] = {}

    def count(*pairs: tuple[str, int]) -> list[tuple[str, int]]:
        for key, number in pairs:
            expected[key] = expected.get(key, 0) + number
        return list(pairs)

    with StreamTester(sc, two_states, inputs=2) as tester:
        tester.batch(count(("a", 1), ("b", 2)))
        tester.batch(count(("b", 3)))
        tester.kill(count(("a", 4), ("c", 5)), at=step)
        again = tester.recover()
        has_begun, has_ended = step not in STEPS[:2], step == STEPS[-1]
        assert len(again) == (has_begun and not has_ended)
        for found in again:
            assert dict(found["totals"]) == expected
            assert sorted(found["stored"]) == [("a", 5), ("c", 5)]
        found = tester.batch(count(("a", 6)))
        assert dict(found["totals"]) == expected
        assert tester.state("stored") == tester.state("totals") == expected


def test_recover_changed_code(sc: SparkContext) -> None:
    """Another setup gets the state by uid, or is refused.

    It computes the batches since the newest snapshot again, as after any crash.
    """

    def doubled(ssc: StreamingContext, numbers: DStream[Any]) -> DStream[Any]:
        return one_state(ssc, numbers.mapValues(lambda number: 2 * number))

    def renamed(ssc: StreamingContext, numbers: DStream[Any]) -> DStream[Any]:
        return numbers.updateStateByKey(add_up, uid="sums")

    with StreamTester(sc, one_state) as tester:
        tester.batch([("a", 1)])
        tester.kill()
        with pytest.raises(RestartError, match="totals"):
            tester.recover(renamed)
        tester.recover(doubled)
        assert tester.batch([("a", 2)]) == [("a", 6)]


def test_failed_batch(sc: SparkContext) -> None:
    """The error is that of the stream, and the next batch runs."""

    def inverse(ssc: StreamingContext, numbers: DStream[Any]) -> DStream[Any]:
        return numbers.map(lambda number: 1 / number)

    with StreamTester(sc, inverse) as tester:
        with pytest.raises(BatchFailedError, match="division by zero"):
            tester.batch([0])
        assert tester.batch([2]) == [0.5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda sc: StreamTester(sc, lambda ssc, numbers: 1), "must return a DStream, or a dict"),
        (lambda sc: in_tester(sc, lambda tester: tester.batch([1], [2])), "1 inputs, got .* for 2"),
        (lambda sc: in_tester(sc, lambda tester: tester.kill(at="late")), "no step 'late'"),
        (lambda sc: in_tester(sc, lambda tester: tester.state("no")), "known uids: totals"),
    ],
)
def test_errors(sc: SparkContext, call: Any, message: str) -> None:
    """Mistakes in a test are named."""
    with pytest.raises(InvalidStreamError, match=message):
        call(sc)


def in_tester(sc: SparkContext, call: Any) -> None:
    with StreamTester(sc, one_state) as tester:
        tester.batch([("a", 1)])
        call(tester)
