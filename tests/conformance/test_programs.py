"""Differential tests: programs written by hand, here and in the real pyspark.streaming."""

from __future__ import annotations

import pytest
from pyspark import SparkContext

from dstreams import DStream
from tests.conformance.comparison import Compared, compare_all, compare_alone
from tests.conformance.programs import Node, OfContext, Program, Queue, operation_of, use
from tests.conformance.recording import Recording
from tests.conformance.runs import Failed
from tests.conformance.window_programs import WINDOWS

NUMBERS = Queue([1, 2, 3, 4], [], [5, 6, 7, -8, 9], [0])
OTHERS = Queue([3], [4, 4, 10], [], [11, 12])
WORDS = Queue(["a", "", "a", "Grüße"], [], ["b", "a"], [""])
MIXED = Queue([1, 2.5, "a", None], [(1, "x"), ()], [True, 2**70], [b"bytes", -0.0])
PAIRS = Queue([("a", 1), ("b", 2), ("a", 3)], [], [("", 4), ("b", 5)], [("a", -1)])
OTHER_PAIRS = Queue([("a", 7), ("c", 8), ("a", 9)], [("b", 1)], [("b", 2), ("b", 3)], [])
KEYS = Queue(
    [(None, 1), (1.5, 2), ((), 3), (("a", 1), 4)],
    [(2**40, 1), (-7, 2), (b"k", 3), (None, 4)],
    [(("a", 1), 1), (("a", None), 2), (1.5, 3)],
)
EQUAL_KEYS = Queue([(1, 1), (1.0, 2), (True, 3)], [(1.0, 4)], [(True, 5), (1, 6)])
LISTS = Queue([["a", 1], ["b", 2], ["a", 3]], [("a", 1)], [])
MORE_KEYS = Queue(
    [(frozenset([1, 2]), 1), (frozenset([2, 1]), 2), (complex(1, 2), 3), (1e300, 4)],
    [(-1, 1), (-2, 2), (2**61 - 1, 3), (2**61, 4), (0, 5)],
)
STATES = {
    "running_sum": [("a", 5), ("z", 0)],
    "bounded_list": [("a", [5]), ("z", [])],
    "idle_batches": [("a", (5, 0)), ("z", (1, 2))],
    "last_text": [("a", ""), ("z", "xx")],
}

EACH_ELEMENT: dict[str, Node] = {
    "map": NUMBERS.map(use("double")),
    "map that keeps partitioning": NUMBERS.map(use("double"), True),
    "map to None": NUMBERS.map(use("nothing")),
    "map of elements of all types": MIXED.map(use("text")),
    "elements of all types": MIXED.map(use("identity")),
    "flatMap": NUMBERS.flatMap(use("up_to")),
    "filter": NUMBERS.filter(use("is_even")),
    "filter by truth": MIXED.filter(use("identity")),
    "mapPartitions": NUMBERS.mapPartitions(use("sum_of")),
    "mapPartitions backwards": NUMBERS.mapPartitions(use("backwards")),
    "mapPartitions of a generator": NUMBERS.mapPartitions(use("doubled_lazily")),
    "mapPartitionsWithIndex": NUMBERS.mapPartitionsWithIndex(use("numbered")),
    "mapPartitionsWithIndex of empty ones": NUMBERS.mapPartitionsWithIndex(use("sum_with_index")),
    "glom": NUMBERS.glom(),
    "repartition": NUMBERS.repartition(3),
    "repartition to one": NUMBERS.repartition(1).map(use("double")),
    "size of repartition": NUMBERS.repartition(3).mapPartitions(use("sum_of")).count(),
    "reduce": NUMBERS.reduce(use("add")),
    "reduce with a missing RDD": NUMBERS.lacking(2).reduce(use("larger")),
    "count": NUMBERS.count(),
    "count with a missing RDD": NUMBERS.lacking(2).count(),
    "countByValue": WORDS.countByValue(),
    "countByValue of all types": MIXED.countByValue(),
    "transform": NUMBERS.transform(use("doubled_rdd")),
    "transform with time": NUMBERS.transform(use("timed_rdd")),
    "transform with a shuffle": WORDS.transform(use("distinct_rdd")),
    "transform of a transform": NUMBERS.transform(use("timed_rdd")).transform(use("timed_rdd")),
    "transform to no RDD": NUMBERS.transform(use("without_rdd", 1)),
    "each of them": NUMBERS.flatMap(use("up_to")).filter(use("is_even")).map(use("double")).glom(),
    "a missing RDD": NUMBERS.lacking(1, 2).flatMap(use("up_to")).map(use("text")).glom(),
}

TWO_STREAMS: dict[str, Node] = {
    "union": NUMBERS.union(OTHERS),
    "union with itself": NUMBERS.union(NUMBERS),
    "union of types": NUMBERS.map(use("double")).union(WORDS),
    "union with a missing RDD": NUMBERS.lacking(1, 3).union(OTHERS.lacking(2, 3)),
    "ssc.union": OfContext("union", (NUMBERS.map(use("double")), OTHERS.map(use("text")))),
    "ssc.union of one": OfContext("union", (NUMBERS,)),
    "ssc.union of three": OfContext(
        "union", tuple(s.map(use("double")) for s in (NUMBERS, OTHERS, NUMBERS))
    ),
    "ssc.transform": OfContext("transform", (NUMBERS, OTHERS, WORDS), use("all_rdds")),
    "ssc.transform of one": OfContext("transform", (NUMBERS,), use("all_rdds")),
    "ssc.transform with jobs": OfContext("transform", (NUMBERS, OTHERS), use("sizes_rdds")),
    "transformWith": PAIRS.transformWith(use("joined_rdds"), OTHER_PAIRS),
    "transformWith and time": NUMBERS.transformWith(use("timed_union_rdds"), WORDS),
    "transformWith keepSerializer": NUMBERS.transformWith(use("united_rdds"), OTHERS, True),
    "transformWith a missing RDD": NUMBERS.lacking(1).transformWith(
        use("timed_union_rdds"), OTHERS.lacking(2, 3)
    ),
    "transformWith to no RDD": NUMBERS.transformWith(use("without_rdds", 1, 3), OTHERS),
    "cogroup": PAIRS.cogroup(OTHER_PAIRS),
    "cogroup in order": PAIRS.cogroup(OTHER_PAIRS, 3).mapValues(use("both_in_order")),
    "cogroup of all keys": KEYS.cogroup(PAIRS),
    "cogroup with itself": PAIRS.cogroup(PAIRS, 1),
    "cogroup with a missing RDD": PAIRS.lacking(1, 3).cogroup(OTHER_PAIRS.lacking(2, 3)),
    "join": PAIRS.join(OTHER_PAIRS),
    "join with itself": KEYS.join(KEYS, 3),
    "join with a missing RDD": PAIRS.join(OTHER_PAIRS.lacking(3)),
    "leftOuterJoin": PAIRS.leftOuterJoin(OTHER_PAIRS),
    "leftOuterJoin with a missing RDD": PAIRS.leftOuterJoin(OTHER_PAIRS.lacking(1), 3),
    "rightOuterJoin": PAIRS.rightOuterJoin(OTHER_PAIRS),
    "rightOuterJoin with a missing RDD": PAIRS.lacking(1).rightOuterJoin(OTHER_PAIRS),
    "fullOuterJoin": PAIRS.fullOuterJoin(OTHER_PAIRS),
    "fullOuterJoin of a reduced stream": PAIRS.reduceByKey(use("add")).fullOuterJoin(PAIRS),
    "join of None": WORDS.map(use("with_none")).fullOuterJoin(PAIRS),
}

EACH_KEY: dict[str, Node] = {
    "mapValues": PAIRS.mapValues(use("plus_ten")),
    "flatMapValues": PAIRS.flatMapValues(use("up_to")),
    "values of a missing RDD": PAIRS.lacking(1).flatMapValues(use("twice")).mapValues(use("text")),
    "reduceByKey": PAIRS.reduceByKey(use("add")),
    "reduceByKey to one partition": PAIRS.reduceByKey(use("larger"), 1).mapValues(use("plus_ten")),
    "reduceByKey of all keys": KEYS.reduceByKey(use("add"), 3),
    "reduceByKey, numPartitions named": PAIRS.reduceByKey(use("add"), numPartitions=3),
    "reduceByKey with a missing RDD": PAIRS.lacking(1).reduceByKey(use("add")),
    "combineByKey": PAIRS.combineByKey(use("pair_of"), use("into_pair"), use("add_pairs")),
    "combineByKey to 3": KEYS.combineByKey(
        use("pair_of"), use("into_pair"), use("add_pairs"), 3
    ).mapValues(use("total")),
    "groupByKey": PAIRS.groupByKey(),
    "groupByKey of all keys": KEYS.groupByKey(3),
    "sizes of groups": PAIRS.groupByKey(1).mapValues(use("sizes")),
    "values of groups": PAIRS.groupByKey().flatMapValues(use("in_order")),
    "partitionBy": PAIRS.partitionBy(3),
    "partitionBy a function": NUMBERS.map(use("with_one"))
    .partitionBy(3, use("remainder_of_key"))
    .glom()
    .map(use("in_order")),
    "partitionBy, then values": PAIRS.partitionBy(2).mapValues(use("plus_ten")).groupByKey(2),
    "reduceByKey twice": PAIRS.reduceByKey(use("add")).map(use("swapped")).reduceByKey(use("add")),
}

KEYS_IN_PLACE: dict[str, Node] = {
    "keys that are equal": EQUAL_KEYS.reduceByKey(use("add")),
    "groups of keys that are equal": EQUAL_KEYS.groupByKey(3),
    "state of keys that are equal": EQUAL_KEYS.updateStateByKey(use("running_sum")),
    "join of keys that are equal": EQUAL_KEYS.join(EQUAL_KEYS),
    "values that are equal": Queue([1, 1.0, True], [True, 1], [0.0, -0.0, 0]).countByValue(),
    "keys of more types": MORE_KEYS.reduceByKey(use("add"), 3),
    "state of keys of more types": MORE_KEYS.updateStateByKey(use("running_sum")),
    "pairs that are lists": LISTS.reduceByKey(use("add")),
    "values of pairs that are lists": LISTS.mapValues(use("plus_ten")).flatMapValues(use("twice")),
    "join of pairs that are lists": LISTS.fullOuterJoin(LISTS),
    "a filter keeps the place": PAIRS.reduceByKey(use("add"), 2)
    .filter(use("not_zero"))
    .join(PAIRS, 2),
    "a map that says it keeps the place": PAIRS.reduceByKey(use("add"), 2)
    .map(use("swapped"), True)
    .groupByKey(2),
    "places of a window": PAIRS.reduceByKey(use("add"), 2)
    .window(2)
    .updateStateByKey(use("running_sum"), 2)
    .reduceByKey(use("add"), 2)
    .join(OTHER_PAIRS, 2),
    "places after repartition": PAIRS.updateStateByKey(use("running_sum"), 2)
    .repartition(3)
    .updateStateByKey(use("running_sum"), 3)
    .cogroup(OTHER_PAIRS, 2),
    "places in a union": PAIRS.reduceByKey(use("add"), 2)
    .union(OTHER_PAIRS.partitionBy(2))
    .reduceByKey(use("add"), 2)
    .union(PAIRS.reduceByKey(use("add"), 2))
    .join(OTHER_PAIRS.partitionBy(2), 2),
    "places behind transformWith": PAIRS.reduceByKey(use("add")).transformWith(
        use("joined_rdds"), OTHER_PAIRS.groupByKey().mapValues(use("sizes"))
    ),
    "places behind transform": PAIRS.reduceByKey(use("add")).transform(use("distinct_rdd")),
}

STATE: dict[str, Node] = {
    **{f"state: {name}": PAIRS.updateStateByKey(use(name)) for name in STATES},
    **{
        f"state: {name}, with one to begin with": PAIRS.updateStateByKey(use(name), 3, initial)
        for name, initial in STATES.items()
    },
    "state of all keys": KEYS.updateStateByKey(use("running_sum"), 3),
    "state, initialRDD named": PAIRS.updateStateByKey(
        use("running_sum"), initialRDD=[("b", -2)], numPartitions=1
    ),
    "state of a state": PAIRS.updateStateByKey(use("running_sum")).updateStateByKey(
        use("running_sum")
    ),
    "state with a missing RDD at first": PAIRS.lacking(1, 2).updateStateByKey(use("idle_batches")),
    "state with an initial one, missing at first": PAIRS.lacking(1, 2).updateStateByKey(
        use("running_sum"), 2, [("z", 1)]
    ),
    "state with a missing RDD, where no values change nothing": PAIRS.lacking(
        3, 4
    ).updateStateByKey(use("running_sum")),
    "state joined with the batch": PAIRS.updateStateByKey(use("running_sum")).join(PAIRS),
    "state, then values": PAIRS.updateStateByKey(use("running_sum"))
    .mapValues(use("plus_ten"))
    .reduceByKey(use("add")),
    "state of reduced pairs": PAIRS.reduceByKey(use("add"), 2).updateStateByKey(
        use("bounded_list"), 2
    ),
}

PLACED: dict[str, Node] = {
    "cache": NUMBERS.map(use("double")).cache().filter(use("is_even")),
    "persist": PAIRS.reduceByKey(use("add")).persist(use("MEMORY_AND_DISK")).map(use("swapped")),
    "cache of an input": NUMBERS.cache().map(use("double")).union(NUMBERS),
    "checkpoint": PAIRS.updateStateByKey(use("running_sum")).checkpoint(2).map(use("swapped")),
    "checkpoint of a stream without state": NUMBERS.map(use("double")).checkpoint(1).glom(),
    "checkpoint between states": PAIRS.updateStateByKey(use("running_sum"))
    .checkpoint(1)
    .updateStateByKey(use("idle_batches")),
}

QUEUES: dict[str, Node] = {
    "queue at once": Queue([1, 2], [3], [], [4], oneAtATime=False).map(use("double")),
    "queue with a default": Queue([1], default=[7, 8]).map(use("double")),
    "queue at once with a default": Queue([1], [2], oneAtATime=False, default=[7]).map(use("text")),
    "queue that ends": Queue([1, 2]).map(use("double")),
    "pairs of a queue that ends": Queue([("a", 1)]).reduceByKey(use("add")),
    "count of a queue that ends": Queue([1, 2]).count(),
    "queue of empty batches": Queue([], []).map(use("double")).count(),
}

BY_BATCHES: dict[int, dict[str, Node]] = {
    3: {**EACH_ELEMENT, **TWO_STREAMS, **EACH_KEY, **KEYS_IN_PLACE},
    4: {**STATE, **PLACED, **QUEUES},
}

SLICES = [
    Program("slices", NUMBERS.map(use("double")), 4, ((0, 1), (2, 3), (1, 4), (0, 4), (4, 4))),
    Program("slices of a state", PAIRS.updateStateByKey(use("running_sum")), 4, ((1, 4), (2, 2))),
    Program("slices with missing RDDs", NUMBERS.lacking(2, 4).map(use("text")), 4, ((1, 4),)),
]

PROGRAMS = [
    *(Program(name, node, n) for n, nodes in BY_BATCHES.items() for name, node in nodes.items()),
    *SLICES,
    *WINDOWS,
]


@pytest.fixture(scope="module")
def compared(sc: SparkContext, recording: Recording) -> dict[str, Compared]:
    """All programs, run."""
    return {found.program.name: found for found in compare_all(sc, recording, PROGRAMS)}


@pytest.mark.deep
@pytest.mark.parametrize("name", [program.name for program in PROGRAMS])
def test_program(compared: dict[str, Compared], name: str) -> None:
    """Every batch and slice is that of pyspark.streaming, and none failed."""
    found = compared[name]
    found.require_equal()
    assert not found.ours.failed, found.report()
    assert any(found.ours.batches), "nothing came out: nothing was compared"


FAILING: dict[str, Node] = {
    "an element in the first batch": NUMBERS.map(use("refusing_3")),
    "a value in the second batch": Queue([(1, 1)], [(1, 3)], [(1, 2)]).flatMapValues(
        use("refusing_3")
    ),
    "a state in the second batch": Queue(
        [("a", 1)], [("a", 3)], [("b", 1)], [("b", 1)]
    ).updateStateByKey(use("refusing_state_4")),
    "a record that is no pair": Queue([1], [("a", 1)]).reduceByKey(use("add")),
    "a key that cannot be looked up": Queue([([], 1)], [("a", 1)]).groupByKey(),
    "an RDD of the second batch": NUMBERS.transform(use("refusing_rdd", 2)),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", FAILING)
def test_failing_program(sc: SparkContext, recording: Recording, name: str) -> None:
    """The same batches fail on both sides: as many as cannot be computed, and no others."""
    found = compare_alone(sc, recording, Program(name, FAILING[name]))
    failed = [
        [isinstance(batch, Failed) for batch in run.batches] for run in (found.theirs, found.ours)
    ]
    assert failed[0] == failed[1], found.report()
    assert any(failed[1])
    good = [
        [b for b in run.batches if not isinstance(b, Failed)] for run in (found.theirs, found.ours)
    ]
    assert good[0] == good[1], found.report()


def test_every_operation_has_a_program() -> None:
    """What is public and makes a stream is compared."""
    ours = {name for name in vars_of(DStream) if name not in NOT_COMPARED}
    assert ours - {operation for program in PROGRAMS for operation in program.operations()} == set()


NOT_COMPARED = frozenset(
    [
        "context",
        "foreachRDD",
        "pprint",
        "saveAsTextFiles",
        "slice",  # programs have slices
        # Not in pyspark.streaming:
        "flatMapGroupsWithState",
        "latest",
        "mapGroupsWithState",
        "mapStateBlocks",
        "mapWithState",
        "rejected",
        "saveToKafka",
        "show",
        "toBlocks",
        "transformWithState",
    ]
)


def vars_of(kind: type) -> set[str]:
    """Return the names of all public methods."""
    return {
        name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))
    }


@pytest.mark.deep
def test_a_program_prints_as_python() -> None:
    """What is printed is what runs, with each stream named once."""
    evens = NUMBERS.lacking(2).filter(use("is_even"))
    program = Program("shown", evens.union(evens), 3, ((1, 2),))
    assert str(program) == "\n".join(
        [
            "from tests.conformance.functions import is_even, without_rdd",
            "s1 = ssc.queueStream([[1, 2, 3, 4], [], [5, 6, 7, -8, 9], [0]])",
            "s2 = s1.transform(without_rdd(2))",
            "s3 = s2.cache()",
            "s4 = s3.filter(is_even)",
            "s5 = s4.union(s4)",
            "output(s5)",
            "slices(s5, 1, 2)",
        ]
    )
    assert operation_of(evens) == "filter"
