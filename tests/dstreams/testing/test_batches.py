"""The tools for testing streams, tested."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark import RDD, SparkContext

from dstreams import (
    BatchFailedError,
    InvalidStreamError,
    State,
    StateSpec,
    StreamingContextState,
)
from dstreams.testing import BatchDriver, ManualClock, run_batches
from tests.support.waiting import wait_for


def last_value(key: str, value: int | None, state: State[int]) -> int | None:
    if value is not None:
        state.update(value)
    return value


# The clock -----------------------------------------------------------------------------------


def test_a_manual_clock_stands_still() -> None:
    """It shows the time that was set, and moves only when advanced."""
    clock = ManualClock(start_ms=500)
    assert clock.now_ms() == 500
    clock.advance(250)
    clock.advance(0)
    assert clock.now_ms() == 750
    assert ManualClock().now_ms() == 0


def test_a_manual_clock_goes_back_on_purpose_only() -> None:
    """As the clock of a machine may be set back; a waiting caller reads it again."""
    clock = ManualClock(start_ms=500)
    with pytest.raises(InvalidStreamError, match=r"cannot advance by -1 ms; set_back\(1\)"):
        clock.advance(-1)
    with pytest.raises(InvalidStreamError, match="set back by 1 ms or more, got 0 ms"):
        clock.set_back(0)
    assert clock.now_ms() == 500
    clock.set_back(501)
    assert clock.now_ms() == -1


def test_waiting_for_a_time_that_has_come() -> None:
    """It returns at once; an interruption has precedence."""
    clock, interrupted = ManualClock(start_ms=500), threading.Event()
    assert clock.wait_until(500, interrupted)
    assert clock.wait_until(-1, interrupted)
    interrupted.set()
    assert not clock.wait_until(500, interrupted)


def test_waiting_for_a_time_to_come() -> None:
    """Another thread advances the clock, which ends the wait."""
    clock, answers = ManualClock(), []
    thread = threading.Thread(
        target=lambda: answers.append(clock.wait_until(1000, threading.Event())), daemon=True
    )
    thread.start()
    clock.advance(999)
    assert answers == []
    clock.advance(1)
    thread.join(60)
    assert answers == [True]


def test_waiting_is_interrupted() -> None:
    """A set event ends the wait, although the clock does not move."""
    clock, interrupted, answers = ManualClock(), threading.Event(), []
    thread = threading.Thread(
        target=lambda: answers.append(clock.wait_until(1000, interrupted)), daemon=True
    )
    thread.start()
    interrupted.set()
    thread.join(60)
    assert answers == [False]


# The driver ----------------------------------------------------------------------------------


def test_the_example_of_the_driver(sc: SparkContext) -> None:
    """None is a batch without an RDD, an empty list an empty RDD, in and out."""
    with BatchDriver(sc) as driver:
        numbers = driver.input([[1, 2], None, []])
        doubled = driver.output(numbers.map(lambda x: 2 * x))
        infos = driver.run(3)
        assert doubled == [[2, 4], None, []]
        assert [info.batch_time_ms for info in infos] == [1000, 2000, 3000]
        assert [info.outcome for info in infos] == ["succeeded", "empty", "succeeded"]


def test_batches_after_the_last_one_are_empty(sc: SparkContext) -> None:
    """An input has an RDD in each of them, like a queue."""
    with BatchDriver(sc) as driver:
        seen = driver.output(driver.input([[1]]))
        driver.run(2)
        driver.run(1)
    assert seen == [[1], [], []]


def test_lists_are_split_over_two_partitions(sc: SparkContext) -> None:
    """Lists have two partitions; RDDs are used as they are."""
    with BatchDriver(sc) as driver:
        parts = driver.input([[1, 2, 3, 4], (1, 2), sc.parallelize([1, 2, 3], 3)]).glom()
        seen = driver.output(parts)
        driver.run(3)
    assert seen == [[[1, 2], [3, 4]], [[1], [2]], [[1], [2], [3]]]


def test_several_outputs_and_inputs(sc: SparkContext) -> None:
    """Each output has one entry per batch, independent of other outputs."""
    with BatchDriver(sc, 0.5) as driver:
        a, b = driver.input([[1], None]), driver.input([None, [2]])
        seen = driver.output(a), driver.output(b), driver.output(a.union(b))
        infos = driver.run(2)
    assert seen == ([[1], None], [None, [2]], [[1], [2]])
    assert [info.batch_time_ms for info in infos] == [500, 1000]


def test_a_failed_batch_has_its_place(sc: SparkContext) -> None:
    """Outputs that did not run have None for it, and the next batch has its own entry."""

    def fail_once(rdd: RDD[int]) -> RDD[int]:
        if rdd.first() == 2:
            raise ValueError("two is bad")
        return rdd

    with BatchDriver(sc) as driver:
        numbers = driver.input([[1], [2], [3]])
        seen = driver.output(numbers.transform(fail_once))
        driver.run(1)
        with pytest.raises(BatchFailedError, match="two is bad"):
            driver.run(2)
        driver.run(1)
    assert seen == [[1], None, [3]]


def test_its_scratch_directory_is_gone_afterwards(sc: SparkContext) -> None:
    """It has a temporary directory for state, unless one is given."""
    with BatchDriver(sc) as driver:
        assert driver._scratch is not None
        scratch = Path(driver._scratch.name)
        states = driver.input([[("a", 1)]]).updateStateByKey(lambda values, state: 1)
        driver.output(states.checkpoint(1))
        driver.run(1)
        assert list(scratch.glob("checkpoint/stream-*/commits/*")) != []
    assert not scratch.exists()
    assert driver.context.getState() is StreamingContextState.STOPPED


def test_copies_of_state_are_gone_afterwards(sc: SparkContext) -> None:
    """Local copies of stored state are as temporary as the state, unless a directory was given."""
    with BatchDriver(sc) as driver:
        assert driver._scratch is not None
        counted = driver.input([[("a", 1)]] * 2).mapWithState(StateSpec.function(last_value))
        driver.output(counted)
        driver.run(2)
        copies = Path(driver._scratch.name) / "local"
        assert list(copies.rglob("data.mdb")) != []
    assert not copies.exists()


def test_a_directory_that_was_given_stays(sc: SparkContext, tmp_path: Path) -> None:
    """It belongs to the caller."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        states = driver.input([[("a", 1)]]).updateStateByKey(lambda values, state: 1)
        driver.output(states.checkpoint(1))
        driver.run(1)
    assert list(tmp_path.glob("stream-*/commits/*")) != []


def test_a_driver_that_ran_nothing_stops_too(sc: SparkContext) -> None:
    """The next one can run."""
    with BatchDriver(sc):
        pass
    with BatchDriver(sc) as driver:
        seen = driver.output(driver.input([[1]]))
        driver.run(1)
    assert seen == [[1]]


# The table -----------------------------------------------------------------------------------


def test_the_example_of_run_batches(sc: SparkContext) -> None:
    """Batches in, batches out."""
    assert run_batches(sc, [["a", "b"], ["a"], []], lambda words: words.map(lambda w: (w, 1))) == [
        [("a", 1), ("b", 1)],
        [("a", 1)],
        [],
    ]


def test_run_batches_with_several_inputs(sc: SparkContext) -> None:
    """The longest input sets the number of batches; shorter ones continue with empty RDDs."""
    found = run_batches(
        sc, [[1]], lambda a, b, c: a.union(b).union(c), [[2], None], [[3], [4], [5]]
    )
    assert found == [[1, 2, 3], [4], [5]]


def test_run_batches_a_number_of_times(sc: SparkContext) -> None:
    """More batches than the input has, or fewer."""
    assert run_batches(sc, [[1], [2]], lambda s: s.count(), n=3) == [[1], [1], [0]]
    assert run_batches(sc, [[1], [2]], lambda s: s, n=1) == [[1]]


def test_run_batches_stops_its_context_after_a_failure(
    sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """The next test starts clean, and no error refers to the deleted checkpoint."""

    def fail(rdd: RDD[int]) -> RDD[int]:
        raise ValueError("never works")

    for _ in range(2):
        with pytest.raises(BatchFailedError, match="never works"):
            run_batches(sc, [[0]], lambda s: s.transform(fail))
    assert "rewind" not in caplog.text
    assert "committed without" not in caplog.text


def test_the_example_of_the_clock(sc: SparkContext) -> None:
    """A started context is driven by hand."""
    with BatchDriver(sc) as driver:
        seen = driver.output(driver.input([[1]]))
        driver.context.start()
        driver.clock.advance(1000)
        wait_for(lambda: driver._outputs[0][1])
        assert seen == []
