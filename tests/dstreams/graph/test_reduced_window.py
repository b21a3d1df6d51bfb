"""The node that makes the reduction of a window from that of the window before."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from pyspark import SparkContext

from dstreams.graph import windowed
from dstreams.graph.generated_rdds import GeneratedRdds
from dstreams.graph.node import MEMORY_ONLY_SER, STATE_STORAGE, Node, OutputOperation
from dstreams.graph.plan import StreamGraph
from dstreams.graph.transformed import ReducedDStream
from dstreams.graph.windowed import ReducedWindowedDStream, WindowTimes
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.reduction import Reduction, UserFunction
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.spark.window_step import WindowFunctions
from tests.dstreams.graph.given import PARENT, Given, compute
from tests.dstreams.spark.lineage import bytes_shuffled
from tests.support.jobs import count_jobs

PLUS = Reduction(operator.add, "plus")
FUNCTIONS = WindowFunctions(PLUS, UserFunction(operator.sub, "minus"))
OPERATION = "reduceByKeyAndWindow at a.py:2"
REDUCED = ReducedDStream(PARENT, PLUS, StablePartitioner(2), OPERATION)


def window_of(window_ms: int, slide_ms: int) -> ReducedWindowedDStream:
    times = WindowTimes.of(window_ms / 1000, slide_ms / 1000, REDUCED.slide_ms, OPERATION)
    return ReducedWindowedDStream(REDUCED, FUNCTIONS, times, OPERATION)


def rdds_over(sc: SparkContext, node: ReducedWindowedDStream) -> GeneratedRdds:
    graph = StreamGraph(1000)
    graph.outputs.append(OutputOperation(node, lambda time_ms, rdd: None, "pprint at a.py:4"))
    return GeneratedRdds(graph.freeze(0, has_checkpoint_directory=True), sc)


def test_what_it_is() -> None:
    """It depends on its own previous RDD, so it is persisted and must be checkpointed."""
    node = window_of(4000, 2000)
    assert node.parents == (REDUCED,)
    assert node.slide_ms == 2000
    assert node.parents_remember_ms(3000) == 7000
    assert node.must_checkpoint
    assert node.is_stateful
    assert node.default_storage == STATE_STORAGE


@pytest.mark.parametrize(
    ("window_ms", "slide_ms", "asked"),
    [
        (3000, 1000, [8000, 6000, 9000]),
        (2000, 2000, [6000, 5000, 6000, 7000, 8000]),
        (4000, 2000, [6000, 3000, 4000, 7000, 8000]),
        (1000, 3000, [6000, 6000, 9000]),
    ],
)
def test_it_asks_for_what_left_and_what_entered(
    sc: SparkContext, window_ms: int, slide_ms: int, asked: list[int]
) -> None:
    """And its own RDD of one slide before; nothing in the middle of the window."""
    node = window_of(window_ms, slide_ms)
    given = Given(sc)
    pairs = compute(REDUCED, 0, Given(sc, {(PARENT, 0): sc.parallelize([("a", 1)])}))
    assert pairs is not None
    time_ms = 9000 if slide_ms != 2000 else 8000
    given.rdds[node, time_ms - slide_ms] = pairs
    compute(node, time_ms, given)
    assert given.asked == asked


def test_the_first_window_asks_for_all_of_it(sc: SparkContext) -> None:
    """Without a previous window nothing leaves; without any batch there is no RDD."""
    node = window_of(3000, 1000)
    given = Given(sc)
    assert compute(node, 1000, given) is None
    assert given.asked == [0, 1000]


def test_by_scalas_rule_nothing_at_all_is_an_empty_rdd(sc: SparkContext) -> None:
    """A window always has an RDD."""
    functions = replace(FUNCTIONS, is_scala=True)
    node = replace(window_of(3000, 1000), functions=functions)
    made = compute(node, 1000, Given(sc))
    assert made is not None
    assert made.collect() == []


def run(
    sc: SparkContext, node: ReducedWindowedDStream, batches: list[Any], rdds: GeneratedRdds
) -> list[Any]:
    found: list[Any] = []
    for number, batch in enumerate(batches, 1):
        rdd = None if batch is None else sc.parallelize(batch, 2)
        rdds.put(PARENT, number * 1000, rdd)
        made = rdds.at(node, number * 1000)
        found.append(None if made is None else dict(made.collect()))
        rdds.evict(number * 1000)
    return found


def test_batches_without_an_rdd(sc: SparkContext) -> None:
    """Nothing enters with them, and nothing leaves; known values stay."""
    node = window_of(2000, 1000)
    batches = [None, [("a", 1)], None, None, [("b", 1)], [], []]
    found = run(sc, node, batches, rdds_over(sc, node))
    assert found == [
        None,
        {"a": 1},
        {"a": 1},
        {"a": 0},
        {"a": 0, "b": 1},
        {"a": 0, "b": 1},
        {"a": 0, "b": 0},
    ]


def test_a_batch_is_shuffled_once(sc: SparkContext) -> None:
    """When it enters; the result and the values that leave stay in place."""
    node = window_of(3000, 1000)
    rdds = rdds_over(sc, node)
    run(sc, node, [[(n, 1) for n in range(5000)]] * 3, rdds)
    rdds.put(PARENT, 4000, sc.parallelize([(1, 1)], 2))
    made = rdds.at(node, 4000)
    assert isinstance(made, BlockPairsRDD)
    assert made.partitioner == StablePartitioner(2)
    assert bytes_shuffled(sc, made.count) < 1000


def test_making_the_rdd_runs_no_job(sc: SparkContext) -> None:
    """No job runs before an action."""
    node = window_of(5000, 1000)
    rdds = rdds_over(sc, node)
    run(sc, node, [[("a", 1)]] * 3, rdds)
    rdds.put(PARENT, 4000, sc.parallelize([("a", 1)]))
    assert count_jobs(sc, lambda: rdds.at(node, 4000)) == 0


def test_what_it_remembers(sc: SparkContext) -> None:
    """Two checkpoint intervals of its own RDDs, and a window more of the batches."""
    graph = StreamGraph(1000)
    node = window_of(4000, 2000)
    graph.outputs.append(OutputOperation(node, lambda time_ms, rdd: None, "pprint at a.py:4"))
    graph.options_of(node).checkpoint_ms = 6000
    plan = graph.freeze(0, has_checkpoint_directory=True)
    assert [plan.nodes[some].remember_ms for some in (node, REDUCED, PARENT)] == [
        12_000,
        16_000,
        16_000,
    ]
    assert plan.nodes[REDUCED].storage_level == MEMORY_ONLY_SER
    assert plan.checkpointed() == (node,)


class Blocks(BlockPairsRDD):
    """A stand-in for an RDD: only its lineage matters."""

    def __init__(self, blocks: Any, side: Any = None) -> None:
        self.blocks = blocks


@dataclass
class Batches:
    """The batches so far, instead of RDDs: 1 is the reduction of the batch at one second.

    Args:
        reduced: the seconds of these batches.
        node: the window over them, which reads its own previous RDD.
    """

    reduced: set[int]
    node: ReducedWindowedDStream
    spark: Any = None

    def at(self, node: Node, time_ms: int) -> Any:
        if node in (REDUCED, PARENT):
            return Blocks(time_ms // 1000) if time_ms // 1000 in self.reduced else None
        return None if time_ms <= 0 else self.node.compute(time_ms, (), cast(Any, self))

    get = at

    def before(self, node: Node, time_ms: int) -> Any:
        return self.at(node, time_ms - node.slide_ms)


def in_window(
    functions: WindowFunctions, previous: Any, *, left: list[int], entered: list[int]
) -> list[int]:
    """Slide a list of batches instead of blocks."""
    rest = list(previous or [])
    for batch in left:
        rest.remove(batch)
    return sorted([*rest, *entered])


@pytest.mark.parametrize("window_s", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("slide_s", [1, 2, 3])
def test_a_gap_loses_nothing_that_came_before_it(
    monkeypatch: pytest.MonkeyPatch, window_s: int, slide_s: int
) -> None:
    """Also values after the last window before the gap, which then has one batch more."""
    monkeypatch.setattr(windowed, "slide_window", in_window)
    monkeypatch.setattr(windowed, "BlockPairsRDD", Blocks)
    node = window_of(1000 * window_s, 1000 * slide_s)
    for after in (4, 5, 6):
        given = Batches(set(range(1, after + 1)), node)
        made_ms = 1000 * -(-after // slide_s) * slide_s
        for before_ms in range(made_ms, 11_000, node.slide_ms):
            made: Any = node.over_gap(made_ms, before_ms, given.at)
            window = {ms // 1000 for ms in node.times.current(before_ms)}
            assert isinstance(made, Blocks)
            assert made.blocks == sorted(window & given.reduced)
