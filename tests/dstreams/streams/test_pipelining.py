"""Map sides that run early: the same states and outputs, in the same order, and nothing lost."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark import RDD, Accumulator, SparkContext

from dstreams import DStream, Settings, State, StateSpec, StreamingContext
from dstreams.aggregates import Sum
from dstreams.rdd import job_labels, jvm
from dstreams.streams import runner
from dstreams.streams.pipelining import Pipelining
from dstreams.testing import ManualClock
from tests.support.waiting import wait_for

BATCHES = 4
EARLY_ONES = BATCHES - 2
"""Batches of a backlog that are early: the first begins before the second is planned, as a rule."""

Define = Callable[..., DStream[Any]]
Batches = Sequence[list[Any]]


class Early:
    """What ran early, and which batches took what was made early."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.stages: list[jvm.MapStage] = []
        self.taken: list[int] = []
        submit, hand_over = jvm.MapStage.__init__, Pipelining.hand_over

        def submitting(stage: jvm.MapStage, spark: SparkContext, shuffle: Any) -> None:
            submit(stage, spark, shuffle)
            self.stages.append(stage)

        def handing(pipelining: Pipelining, batch: Any) -> None:
            hand_over(pipelining, batch)
            if pipelining._history._early_frames:
                self.taken.append(batch.time_ms)

        patch.setattr(jvm.MapStage, "__init__", submitting)
        patch.setattr(Pipelining, "hand_over", handing)

    def wait(self, number: int) -> None:
        """Wait until the map side of the batch after one was begun, if it has to be early."""
        if 0 < number < BATCHES - 1:
            wait_for(lambda: len(self.stages) >= number)


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> Early:
    return Early(monkeypatch)


class Run:
    """A stream with a backlog: all batches are planned before the first one ends."""

    def __init__(
        self, sc: SparkContext, directory: Path, *, is_early: bool = True, **settings: Any
    ) -> None:
        self.clock = ManualClock()
        self.ssc = StreamingContext(
            sc, 1, clock=self.clock, settings=Settings(pipelining=is_early, **settings)
        )
        self.ssc.checkpoint(str(directory))
        self.seen: list[tuple[int, list[Any]]] = []
        self.infos: list[Any] = []
        self.ssc.addStreamingListener(self)
        self.before_output: Callable[[int], object] = lambda number: None
        self.after_output: Callable[[int], object] = lambda number: None

    def __reduce__(self) -> Any:
        return str, ()  # the graph is pickled, with the output; nobody reads it

    def onBatchCompleted(self, completed: Any) -> None:
        self.infos.append(completed.batchInfo())

    def output(self, stream: DStream[Any]) -> None:
        stream.foreachRDD(self._see)

    def _see(self, rdd: RDD[Any], *, batchId: int) -> None:
        if batchId == 0:
            scheduler = self.ssc._life.scheduler
            assert scheduler is not None
            wait_for(lambda: len(scheduler.unfinished) == BATCHES)
        self.before_output(batchId)
        self.seen.append((batchId, sorted(rdd.collect(), key=repr)))
        self.after_output(batchId)

    def start(self) -> None:
        self.ssc.start()
        self.clock.advance(1000 * BATCHES)

    def to_end(self) -> list[tuple[int, list[Any]]]:
        self.start()
        try:
            wait_for(lambda: len(self.infos) == BATCHES)
        finally:
            self.ssc.stop(stopSparkContext=False)
        return self.seen


def total(values: list[int], state: int | None) -> int | None:
    return (sum(values) + (state or 0)) % 97 or None


def add(key: int, value: int | None, state: State[int]) -> tuple[int, int]:
    state.update((state.getOption or 0) + (value or 0))
    return key, state.get


COUNT = StateSpec.function(add).numPartitions(3)

PIPELINED: dict[str, Define] = {
    "update": lambda a, b: a.updateStateByKey(total, 2),
    "stored": lambda a, b: a.map(lambda pair: pair).mapWithState(COUNT),
    "reduced": lambda a, b: a.reduceByKey(operator.add, 3).updateStateByKey(total, 2),
    "reduced in place": lambda a, b: (
        a.reduceByKey(operator.add, 2).mapValues(abs).updateStateByKey(total, 2)
    ),
    "joined": lambda a, b: a.join(b, 2).mapValues(sum).updateStateByKey(total, 3),
    "united": lambda a, b: a.union(b).filter(lambda pair: pair[1] > 3).mapWithState(COUNT),
    "two states": lambda a, b: a.updateStateByKey(total, 2).join(b.union(a).mapWithState(COUNT), 2),
    "state of a state": lambda a, b: a.mapWithState(COUNT).updateStateByKey(total, 2),
    "blocks": lambda a, b: (
        a.toBlocks({"key": int, "value": int})
        .aggregateStateByKey("key", total=Sum("value"))
        .toRows()
    ),
}
IN_ITS_TURN: dict[str, Define] = {
    "function of RDDs": lambda a, b: a.transform(lambda rdd: rdd).updateStateByKey(total, 2),
    "function of two": lambda a, b: a.transformWith(lambda x, y: x.union(y), b).updateStateByKey(
        total, 2
    ),
    "kept": lambda a, b: a.mapValues(abs).cache().updateStateByKey(total, 2),
    "window": lambda a, b: a.window(2).updateStateByKey(total, 2),
    "none": lambda a, b: a.reduceByKey(operator.add, 2),
}


def pairs(seed: int) -> list[list[tuple[int, int]]]:
    """Random batches, some of them empty."""
    random = Random(seed)
    sizes = [random.choice([0, 1, 40]) for _ in range(BATCHES)]
    return [[(random.randrange(9), random.randrange(20)) for _ in range(size)] for size in sizes]


@pytest.mark.parametrize("name", [*PIPELINED, *IN_ITS_TURN])
def test_the_same_outputs_in_the_same_order(
    sc: SparkContext, tmp_path: Path, early: Early, name: str
) -> None:
    """For programs that are pipelined, and for those that are not."""
    define = {**PIPELINED, **IN_ITS_TURN}[name]
    seen = []
    for is_early in (False, True):
        run = Run(sc, tmp_path / str(is_early), is_early=is_early)
        given = [run.ssc.queueStream(pairs(seed)) for seed in (7, 8)]
        run.output(define(*given))
        seen.append(run.to_end())
        assert [info.outcome() for info in run.infos] == ["succeeded"] * BATCHES
        assert is_early or not early.taken
    assert seen[1] == seen[0]
    assert [number for number, _ in seen[1]] == list(range(BATCHES))
    assert len(early.taken) >= (EARLY_ONES if name in PIPELINED else 0)
    assert name in PIPELINED or not early.taken


STEPS: list[Define] = [
    lambda a, b: a.map(lambda pair: (pair[0] % 7, pair[1])),
    lambda a, b: a.filter(lambda pair: pair[1] % 5),
    lambda a, b: a.flatMapValues(range),
    lambda a, b: a.reduceByKey(operator.add, 3),
    lambda a, b: a.join(b, 2).mapValues(sum),
    lambda a, b: a.union(b),
    lambda a, b: a.repartition(3),
    lambda a, b: a.mapValues(abs).cache(),
    lambda a, b: a.transform(lambda rdd: rdd.mapValues(abs)),
]
STATES: list[Define] = [
    lambda a: a.updateStateByKey(total, 2),
    lambda a: a.mapWithState(COUNT).stateSnapshots(),
]


def test_random_programs_have_the_same_outputs(
    sc: SparkContext, tmp_path: Path, early: Early
) -> None:
    """Several in one graph: the states of some run early, beside others that do not."""
    seen: list[list[tuple[int, list[Any]]]] = []
    for is_early in (False, True):
        random = Random(11)
        run = Run(sc, tmp_path / str(is_early), is_early=is_early)
        a, b = (run.ssc.queueStream(pairs(seed)) for seed in (3, 4))
        for _ in range(8):
            stream: DStream[Any] = random.choice([a, b])
            for step in random.choices(STEPS, k=random.randrange(1, 4)):
                stream = step(stream, b)
            run.output(random.choice(STATES)(stream))
        seen.append(run.to_end())
    assert seen[1] == seen[0]
    assert len(seen[1]) == 8 * BATCHES
    assert len(early.taken) >= EARLY_ONES


def test_jobs_of_an_output_are_its_own(
    sc: SparkContext, tmp_path: Path, early: Early, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs early meanwhile is not among them."""
    own: list[tuple[int, ...]] = []

    def jobs_since(spark: SparkContext, first: int | None) -> tuple[int, ...]:
        own.append(job_labels.jobs_since(spark, first))
        return own[-1]

    monkeypatch.setattr(runner, "jobs_since", jobs_since)
    run = Run(sc, tmp_path)
    run.output(run.ssc.queueStream(pairs(1)).updateStateByKey(total, 2))
    run.after_output = early.wait
    run.to_end()
    early_jobs = {stage._job.jobIds().head() for stage in early.stages}
    assert len(early_jobs) >= EARLY_ONES
    assert len(own) == BATCHES
    assert all(len(jobs) == 1 and early_jobs.isdisjoint(jobs) for jobs in own)


def test_a_function_that_an_output_changes_is_called_as_it_is_then(
    sc: SparkContext, tmp_path: Path, early: Early
) -> None:
    """What was made by the one before is not taken."""
    seen = []
    for is_early in (False, True):
        factors = [1]
        run = Run(sc, tmp_path / str(is_early), is_early=is_early)
        given = run.ssc.queueStream(pairs(2))
        run.output(given.map(partial(multiplied, factors)).updateStateByKey(total, 2))
        run.after_output = partial(increase, factors, early.wait if is_early else None)
        seen.append(run.to_end())
    assert seen[1] == seen[0]
    assert len(early.stages) >= EARLY_ONES
    assert not early.taken


def test_what_counts_in_the_order_of_batches_does_not_run_early(
    sc: SparkContext, tmp_path: Path, early: Early
) -> None:
    """An output sees in an accumulator what its batch and those before it have added."""
    counted = []
    for is_early in (False, True):
        records = sc.accumulator(0)
        run = Run(sc, tmp_path / str(is_early), is_early=is_early)
        given = run.ssc.queueStream([[(1, 1)] * (1 + number) for number in range(BATCHES)])
        run.output(given.filter(partial(counts, records)).updateStateByKey(total, 2))
        values: list[int] = []
        run.after_output = lambda _, of=values, records=records: of.append(records.value)
        run.to_end()
        counted.append(values)
    assert counted == [[1, 3, 6, 10]] * 2
    assert not early.stages


def test_a_function_that_fails_fails_its_own_batch(
    sc: SparkContext, tmp_path: Path, early: Early
) -> None:
    """Also where it ran early: batches before it, and what is said of it, are as without."""
    seen, failures = [], []
    for is_early in (False, True):
        run = Run(sc, tmp_path / str(is_early), is_early=is_early)
        given = run.ssc.queueStream([[(0, 1)], [(1, 1)], [(2, 1)], [(3, 1)]])
        run.output(given.map(refused).updateStateByKey(total, 2))
        if is_early:
            run.after_output = early.wait
        seen.append(run.to_end())
        failures.append([info.failureReason() for info in run.infos])
    assert early.stages
    assert seen[1] == seen[0]
    assert [number for number, _ in seen[1]] == [0, 1]
    assert failures[1] == failures[0]
    assert [failure is None for failure in failures[1]] == [True, True, False, False]
    assert "no 2 here" in failures[1][2]


def test_a_stop_at_once_ends_what_runs_early(
    sc: SparkContext, tmp_path: Path, early: Early
) -> None:
    """The batch that runs comes to its end, and no job is left."""
    has_begun, is_over = tmp_path / "begun", tmp_path / "over"
    is_in_output, may_leave = threading.Event(), threading.Event()
    run = Run(sc, tmp_path / "checkpoint")
    given = run.ssc.queueStream([[(0, 1)], [(1, 1)], [(2, 1)], [(3, 1)]])
    run.output(given.map(partial(held, has_begun, is_over)).updateStateByKey(total, 2))

    def stay(number: int) -> None:
        if number == 1:
            wait_for(has_begun.exists)
            is_in_output.set()
            assert may_leave.wait(60)

    run.after_output = stay
    run.start()
    try:
        assert is_in_output.wait(60)
        scheduler = run.ssc._life.scheduler
        assert scheduler is not None
        stopping = threading.Thread(target=lambda: run.ssc.stop(stopSparkContext=False))
        stopping.start()
        wait_for(scheduler._abandoned.is_set)
        may_leave.set()
        stopping.join(60)
        wait_for(lambda: not sc.statusTracker().getActiveJobsIds(), 20)
        assert not stopping.is_alive()
    finally:
        may_leave.set()
        is_over.touch()
    assert [number for number, _ in run.seen] == [0, 1]


def counts(records: Accumulator[int], _: object) -> bool:
    records.add(1)
    return True


def multiplied(factors: list[int], pair: tuple[int, int]) -> tuple[int, int]:
    return pair[0], pair[1] * factors[0]


def increase(factors: list[int], wait: Callable[[int], None] | None, number: int) -> None:
    if wait is not None:
        wait(number)
    factors[0] += 1


def refused(pair: tuple[int, int]) -> tuple[int, int]:
    if pair[0] == 2:
        raise ValueError("no 2 here")
    return pair


def held(has_begun: Path, is_over: Path, pair: tuple[int, int]) -> tuple[int, int]:
    if pair[0] == 2:
        has_begun.touch()
        wait_for(is_over.exists)
    return pair
