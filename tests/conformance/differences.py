"""The deliberate differences between pyspark.streaming and dstreams: one table.

Each row has a program in which the difference shows, with what comes out of it on either side. What
differs and is in no row is a bug.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.conformance.programs import (
    Apply,
    OfContext,
    Program,
    Queue,
    functions_of,
    is_ordered,
    may_lack_partitions,
    may_lack_rdd,
    operation_of,
    use,
)
from tests.conformance.runs import Failed


@dataclass(frozen=True)
class Difference:
    """A row of the table.

    Args:
        name: what it is called in reports.
        theirs: what pyspark.streaming does.
        ours: what dstreams does.
        why: the reason.
        covers: whether it may show in a program.
        example: a program in which it shows.
        their_batches: what comes out of the example there: a failed batch is the last.
        our_batches: what comes out of it here.
        slices: whether the batches above are those of the example's only slice.
    """

    name: str
    theirs: str
    ours: str
    why: str
    covers: Callable[[Program], bool]
    example: Program
    their_batches: list[Any]
    our_batches: list[Any]
    slices: bool = False


INDIFFERENT = frozenset(["running_sum"])
"""Update functions that change no state where there are no new values."""

_LAYOUT = frozenset(["glom", "mapPartitions", "mapPartitionsWithIndex"])
_NO_PLAIN_FUNCTIONS = frozenset(["doubling_object", "doubling_method", "builtin_first"])

NUMBERS = Queue([1, 2], [3], [4])
PAIRS = Queue([("a", 1)], [("b", 1)], [("a", 1)], [])


def _state_without_rdd(program: Program) -> bool:
    return any(
        operation_of(node) == "updateStateByKey"
        and may_lack_rdd(node.parents[0])
        and not INDIFFERENT & {function.name for function in functions_of(node)}
        for node in program.streams()
    )


def _count_without_partitions(program: Program) -> bool:
    return any(
        operation_of(node) == "count" and may_lack_partitions(node.parents[0], program.batches)
        for node in program.streams()
    )


def _layout_of_queue_end(program: Program) -> bool:
    ends = any(
        isinstance(node, Queue) and may_lack_partitions(node, program.batches)
        for node in program.streams()
    )
    return ends and bool(_LAYOUT & program.operations())


def _places_of_keys(program: Program) -> bool:
    return any(
        operation_of(node) in _LAYOUT and not is_ordered(node.parents[0])
        for node in program.streams()
    )


def _of_context_without_rdd(program: Program) -> bool:
    return any(
        isinstance(node, OfContext) and any(map(may_lack_rdd, node.streams))
        for node in program.streams()
    )


def _transform_of_none(program: Program) -> bool:
    return any(
        isinstance(node, Apply)
        and operation_of(node) not in ("cache", "persist", "checkpoint")
        and any(function.name == "without_rdd" for function in functions_of(node.stream))
        for node in program.streams()
    )


def _union_of_serializers(program: Program) -> bool:
    return any(
        operation_of(node) == "ssc.union" and any(isinstance(p, Queue) for p in node.parents)
        for node in program.streams()
    )


def _no_plain_function(program: Program) -> bool:
    used = {function.name for node in program.streams() for function in functions_of(node)}
    return bool(used & _NO_PLAIN_FUNCTIONS)


def _key_twice_at_first(program: Program) -> bool:
    return any(
        isinstance(node, Apply)
        and operation_of(node) == "updateStateByKey"
        and any(_has_key_twice(arg) for arg in (*node.args, *dict(node.keywords).values()))
        for node in program.streams()
    )


def _has_key_twice(initial: Any) -> bool:
    return isinstance(initial, list) and len({key for key, _ in initial}) < len(initial)


def _slice_ahead(program: Program) -> bool:
    return any(end > program.batches for _, end in program.slices)


def _window_gap(program: Program) -> bool:
    """Whether a window slides by more than it covers, over a queue that nothing else reads."""
    return not program.reads and any(
        isinstance(node, Apply) and _has_gap(node) for node in program.streams()
    )


def _has_gap(node: Apply) -> bool:
    if not operation_of(node).lower().endswith("window"):
        return False
    seconds = [arg for arg in node.args if isinstance(arg, int)]
    return len(seconds) > 1 and seconds[1] > seconds[0]


def _group_of_five_slides(program: Program) -> bool:
    return any(
        isinstance(node, Apply)
        and operation_of(node) == "groupByKeyAndWindow"
        and node.args[0] >= 5 * node.args[1]
        for node in program.streams()
    )


def _queue_of_nothing(program: Program) -> bool:
    return any(
        isinstance(node, Queue)
        and (not node.batches or any(b is None or isinstance(b, str) for b in node.batches))
        for node in program.streams()
    )


DIFFERENCES = (
    Difference(
        name="a state whose parent has no RDD",
        theirs="the state stays as it is",
        ours="the update function is called for every key, with no new values",
        why="the rule of Scala: a timeout in the function works in every batch",
        covers=_state_without_rdd,
        example=Program("idle", PAIRS.lacking(2, 3).updateStateByKey(use("idle_batches"))),
        their_batches=[[("a", (1, 0))], [("a", (1, 0))], [("a", (1, 0))], [("a", (1, 1))]],
        our_batches=[[("a", (1, 0))], [("a", (1, 1))], [("a", (1, 2))], []],
    ),
    Difference(
        name="count of an RDD without partitions",
        theirs="no element",
        ours="0",
        why="the rule of Scala, and that of every other empty RDD",
        covers=_count_without_partitions,
        example=Program("count", NUMBERS.lacking(2).union(NUMBERS.lacking(2)).count(), 3),
        their_batches=[[4], [], [2]],
        our_batches=[[4], [0], [2]],
    ),
    Difference(
        name="the end of a queue",
        theirs="empty RDDs with one partition",
        ours="empty RDDs without partitions",
        why="they cost no task",
        covers=_layout_of_queue_end,
        example=Program("glom", NUMBERS.glom(), 4),
        their_batches=[[[1], [2]], [[], [3]], [[], [4]], [[]]],
        our_batches=[[[1], [2]], [[], [3]], [[], [4]], []],
    ),
    Difference(
        name="ssc.union where a stream has no RDD",
        theirs="the batch fails, and all that is in it",
        ours="the others, as in union of two streams",
        why="one rule for all operations of several streams",
        covers=_of_context_without_rdd,
        example=Program("union", OfContext("union", (NUMBERS.lacking(2), NUMBERS.lacking(3))), 3),
        their_batches=[[1, 2, 1, 2], Failed("Py4JJavaError")],
        our_batches=[[1, 2, 1, 2], [3], [4]],
    ),
    Difference(
        name="ssc.transform where a stream has no RDD",
        theirs="the batch fails, and all that is in it",
        ours="the function gets an empty RDD for it, as in transformWith",
        why="one rule for all operations of several streams",
        covers=_of_context_without_rdd,
        example=Program(
            "transform",
            OfContext("transform", (NUMBERS, NUMBERS.lacking(2)), use("all_rdds")),
            3,
        ),
        their_batches=[[1, 2, 1, 2], Failed("Py4JJavaError")],
        our_batches=[[1, 2, 1, 2], [3], [4, 4]],
    ),
    Difference(
        name="an operation behind a transform that returned None",
        theirs="is called with None and the batch fails, unless the stream between is cached",
        ours="has no RDD either",
        why="caching changes no result",
        covers=_transform_of_none,
        example=Program("map", NUMBERS.transform(use("without_rdd", 2)).map(use("double")), 3),
        their_batches=[[2, 4], Failed("Py4JJavaError")],
        our_batches=[[2, 4], None, [8]],
    ),
    Difference(
        name="ssc.union of an input and a stream made from it",
        theirs="refused: their RDDs have different serializers",
        ours="works, as union of two streams does",
        why="how an RDD is serialized is no business of its user",
        covers=_union_of_serializers,
        example=Program("union", OfContext("union", (NUMBERS, NUMBERS.map(use("double")))), 2),
        their_batches=[Failed("ValueError")],
        our_batches=[[1, 2, 2, 4], [3, 6]],
    ),
    Difference(
        name="callable objects in transform",
        theirs="refused with an AttributeError: arguments are counted in the function's code",
        ours="work, as every callable: arguments are those of the signature",
        why="partials and objects are functions, too",
        covers=_no_plain_function,
        example=Program("object", NUMBERS.transform(use("doubling_object")), 2),
        their_batches=[Failed("AttributeError")],
        our_batches=[[2, 4], [6]],
    ),
    Difference(
        name="bound methods in transform",
        theirs="are taken for functions of one argument more, and fail in each batch",
        ours="work",
        why="partials and objects are functions, too",
        covers=_no_plain_function,
        example=Program("method", NUMBERS.transform(use("doubling_method")), 2),
        their_batches=[Failed("Py4JJavaError")],
        our_batches=[[2, 4], [6]],
    ),
    Difference(
        name="a key twice in initialRDD",
        theirs="one of its states is used, the others vanish",
        ours="refused",
        why="nothing says which",
        covers=_key_twice_at_first,
        example=Program(
            "twice", PAIRS.updateStateByKey(use("running_sum"), 1, [("a", 5), ("a", 5)]), 1
        ),
        their_batches=[[("a", 6)]],
        our_batches=[Failed("InvalidStreamError")],
    ),
    Difference(
        name="a slice of batches that did not run",
        theirs="they are computed, and what they take from a queue later batches miss",
        ours="the batches that ran and are remembered",
        why="asking changes nothing",
        covers=_slice_ahead,
        example=Program("slice", NUMBERS.map(use("double")), 2, ((2, 3),)),
        their_batches=[[6], [8]],
        our_batches=[[6]],
        slices=True,
    ),
    Difference(
        name="a window with gaps over a queue that nothing else reads",
        theirs="a batch that nothing asks for takes no item from the queue",
        ours="every batch takes the next item",
        why="what a batch reads is fixed when it begins",
        covers=_window_gap,
        example=Program("gaps", NUMBERS.window(1, 2), 4),
        their_batches=[None, [1, 2], None, [3]],
        our_batches=[None, [3], None, []],
    ),
    Difference(
        name="a key of which all values left a groupByKeyAndWindow of five slides or more",
        theirs="stays for ever, with no values",
        ours="is not in the result, as in a shorter window",
        why="who groups wants the keys of the window, and the result grows without bound otherwise",
        covers=_group_of_five_slides,
        example=Program("group", PAIRS.groupByKeyAndWindow(5, 1), 7),
        their_batches=[
            [("a", ["group", 1])],
            [("a", ["group", 1]), ("b", ["group", 1])],
            [("a", ["group", 1, 1]), ("b", ["group", 1])],
            [("a", ["group", 1, 1]), ("b", ["group", 1])],
            [("a", ["group", 1, 1]), ("b", ["group", 1])],
            [("a", ["group", 1]), ("b", ["group", 1])],
            [("a", ["group", 1]), ("b", ["group"])],
        ],
        our_batches=[
            [("a", ["group", 1])],
            [("a", ["group", 1]), ("b", ["group", 1])],
            [("a", ["group", 1, 1]), ("b", ["group", 1])],
            [("a", ["group", 1, 1]), ("b", ["group", 1])],
            [("a", ["group", 1, 1]), ("b", ["group", 1])],
            [("a", ["group", 1]), ("b", ["group", 1])],
            [("a", ["group", 1])],
        ],
    ),
    Difference(
        name="an empty queue",
        theirs="refused with an IndexError",
        ours="a stream of empty RDDs",
        why="a test of no input is a test",
        covers=_queue_of_nothing,
        example=Program("empty", Queue().map(use("double")), 2),
        their_batches=[Failed("IndexError")],
        our_batches=[[], []],
    ),
    Difference(
        name="the default of an empty queue",
        theirs="the first batch is empty",
        ours="the first batch has it, as every other",
        why="a queue without items is at its end from the beginning",
        covers=_queue_of_nothing,
        example=Program("default", Queue(default=[7]).map(use("double")), 2),
        their_batches=[[], [14]],
        our_batches=[[14], [14]],
    ),
    Difference(
        name="a text as a batch in a queue",
        theirs="its letters are the records",
        ours="refused, with what to write for a batch of one record",
        why="who gives a list of texts means one record for each",
        covers=_queue_of_nothing,
        example=Program("text", Queue("ab").map(use("text")), 1),
        their_batches=[["a", "b"]],
        our_batches=[Failed("InvalidStreamError")],
    ),
    Difference(
        name="None in a queue",
        theirs="refused with a TypeError",
        ours="a batch without an RDD",
        why="tests of streams without an RDD need an input",
        covers=_queue_of_nothing,
        example=Program("none", Queue([1], None, [2]).map(use("double")), 3),
        their_batches=[Failed("TypeError")],
        our_batches=[[2], None, [4]],
    ),
    Difference(
        name="a StopIteration raised by a function",
        theirs="ends the partition: its other elements are lost",
        ours="the batch fails",
        why="it is a mistake, and no result shows it",
        covers=lambda program: any(
            function.name == "stopping_at_3"
            for node in program.streams()
            for function in functions_of(node)
        ),
        example=Program("stop", Queue([1, 2, 3, 4]).map(use("stopping_at_3")), 1),
        their_batches=[[1, 2]],
        our_batches=[Failed("Py4JJavaError")],
    ),
    Difference(
        name="in which partition a key is",
        theirs="portable_hash, which depends on PYTHONHASHSEED and the version of Python",
        ours="stable_hash, the same in every process",
        why="a state that was written finds its keys again",
        covers=_places_of_keys,
        example=Program(
            "places",
            Queue([((1, 2), 1), ((3, 4), 2), ((5,), 3), (None, 4), (7, 5)])
            .partitionBy(3)
            .glom()
            .map(use("in_order")),
            1,
        ),
        their_batches=[[[((1, 2), 1), (None, 4)], [((5,), 3), (7, 5)], [((3, 4), 2)]]],
        our_batches=[[[((5,), 3), (None, 4)], [((1, 2), 1), ((3, 4), 2), (7, 5)], []]],
    ),
    Difference(
        name="records that are no pairs",
        theirs="what is behind the first two is dropped, by some operations",
        ours="the batch fails, with the record and the operation",
        why="it is a mistake, and no result shows it",
        covers=lambda program: any(
            isinstance(node, Queue)
            and any(type(x) is tuple and len(x) > 2 for b in node.batches for x in b or ())
            for node in program.streams()
        ),
        example=Program("no pair", Queue([("a", 1, 2)]).mapValues(use("plus_ten")), 1),
        their_batches=[[("a", 11)]],
        our_batches=[Failed("Py4JJavaError")],
    ),
    Difference(
        name="a text of two letters as a pair",
        theirs="its first letter is the key, its second the value",
        ours="the batch fails, with the record and the operation",
        why="a text is one value; words of other lengths fail there, too",
        covers=lambda program: any(
            isinstance(node, Queue)
            and any(isinstance(x, str) and len(x) == 2 for b in node.batches for x in b or ())
            for node in program.streams()
        ),
        example=Program("letters", Queue(["ab"]).mapValues(use("text")), 1),
        their_batches=[[("a", "b")]],
        our_batches=[Failed("Py4JJavaError")],
    ),
)


def may_differ(program: Program) -> bool:
    """Whether a row of the table may show in a program."""
    return any(row.covers(program) for row in DIFFERENCES)
