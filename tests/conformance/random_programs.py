"""Random programs: compositions of operations in which every function gets what it can take.

A stream is drawn together with its kind (numbers, texts or pairs of such), and each operation says
which kinds it takes and gives. What needs an order or a layout is drawn only where Spark defines
one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.conformance.differences import may_differ
from tests.conformance.programs import (
    Apply,
    Node,
    OfContext,
    Program,
    Queue,
    is_ordered,
    operation_of,
    use,
)

BATCHES = 4
_DEPTH = 5


class Kind(Enum):
    """What the elements of a stream are."""

    NUMBERS = "whole numbers"
    TEXTS = "texts"
    PAIRS = "pairs of a key, a number or a text, and a whole number"


NUMBERS, TEXTS, PAIRS = Kind.NUMBERS, Kind.TEXTS, Kind.PAIRS

_ELEMENTS: dict[Kind, st.SearchStrategy[Any]] = {
    NUMBERS: st.integers(-3, 9),
    TEXTS: st.sampled_from(["", "a", "b", "Grüße"]),
    PAIRS: st.tuples(st.one_of(st.sampled_from(["a", "b", ""]), st.just(2)), st.integers(-3, 9)),
}

_PARTITIONS = st.sampled_from([None, 1, 2, 3])
_ADD = use("add")


@dataclass(frozen=True)
class Operation:
    """Something that can be done to a stream.

    Args:
        takes: kind of the stream.
        gives: kind of the result; None: the same.
        apply: from a way to draw and the stream to the result.
        ordered: whether the stream must have an order and a layout.
    """

    takes: Kind | None
    gives: Kind | None
    apply: Callable[[Callable[..., Any], Node], Node]
    ordered: bool = False


def _plain(name: str, *functions: str) -> Callable[[Callable[..., Any], Node], Node]:
    """Return how to apply an operation to one of these functions."""

    def apply(draw: Callable[..., Any], stream: Node) -> Node:
        return Apply(name, stream, (use(draw(st.sampled_from(functions))),))

    return apply


def _by_key(
    name: str, *args: Any, then: str | None = None
) -> Callable[[Callable[..., Any], Node], Node]:
    """Return how to apply an operation that shuffles to a number of partitions."""

    def apply(draw: Callable[..., Any], stream: Node) -> Node:
        made = Apply(name, stream, (*args, draw(_PARTITIONS)))
        return made if then is None else made.mapValues(use(then))

    return apply


def _window(draw: Callable[..., Any], most: int = 3) -> tuple[int, int]:
    return draw(st.integers(1, most)), draw(st.sampled_from([1, 1, 2]))


def _reduced_by_window(draw: Callable[..., Any], stream: Node) -> Node:
    function = use(draw(st.sampled_from(["add", "larger"])))
    return stream.reduceByKeyAndWindow(function, None, *_window(draw))


def _inverse(draw: Callable[..., Any], stream: Node) -> Node:
    keeps = draw(st.sampled_from([None, use("not_zero"), use("above_one")]))
    return stream.reduceByKeyAndWindow(
        _ADD, use("subtract"), *_window(draw, 6), draw(_PARTITIONS), keeps
    )


def _counted(draw: Callable[..., Any], stream: Node) -> Node:
    return stream.countByWindow(*_window(draw, 6))


def _state(draw: Callable[..., Any], stream: Node) -> Node:
    update = use(draw(st.sampled_from(["running_sum", "bounded_list", "idle_batches"])))
    states = stream.updateStateByKey(update, draw(_PARTITIONS))
    return states.mapValues(use("total"))


def _lacking(draw: Callable[..., Any], stream: Node) -> Node:
    batches = draw(st.lists(st.integers(1, BATCHES), min_size=1, max_size=3, unique=True))
    return stream.lacking(*sorted(batches))


ONE_STREAM = (
    Operation(NUMBERS, NUMBERS, _plain("map", "double", "identity")),
    Operation(NUMBERS, NUMBERS, _plain("filter", "is_even", "identity")),
    Operation(NUMBERS, NUMBERS, _plain("flatMap", "up_to")),
    Operation(NUMBERS, NUMBERS, _plain("mapPartitions", "doubled_lazily")),
    Operation(NUMBERS, NUMBERS, _plain("mapPartitions", "sum_of", "backwards"), ordered=True),
    Operation(NUMBERS, NUMBERS, _plain("mapPartitionsWithIndex", "sum_with_index"), ordered=True),
    Operation(NUMBERS, PAIRS, _plain("mapPartitionsWithIndex", "numbered"), ordered=True),
    Operation(NUMBERS, NUMBERS, _plain("reduce", "add", "larger")),
    Operation(NUMBERS, NUMBERS, _plain("transform", "doubled_rdd")),
    Operation(NUMBERS, PAIRS, _plain("transform", "timed_rdd")),
    Operation(NUMBERS, PAIRS, _plain("map", "by_remainder", "by_name", "with_one")),
    Operation(NUMBERS, TEXTS, _plain("map", "text")),
    Operation(NUMBERS, NUMBERS, lambda draw, s: s.glom().flatMap(use("identity")), ordered=True),
    Operation(
        NUMBERS,
        NUMBERS,
        lambda draw, s: s.reduceByWindow(use("larger"), None, *_window(draw)),
    ),
    Operation(
        NUMBERS,
        NUMBERS,
        lambda draw, s: s.reduceByWindow(_ADD, use("subtract"), *_window(draw, 6)),
    ),
    Operation(None, NUMBERS, _counted),
    Operation(TEXTS, PAIRS, _plain("map", "with_one")),
    Operation(TEXTS, TEXTS, _plain("filter", "identity")),
    Operation(TEXTS, TEXTS, _plain("transform", "distinct_rdd")),
    Operation(TEXTS, PAIRS, lambda draw, s: s.countByValue()),
    Operation(NUMBERS, PAIRS, lambda draw, s: s.countByValue()),
    Operation(TEXTS, PAIRS, lambda draw, s: s.countByValueAndWindow(*_window(draw, 6))),
    Operation(PAIRS, NUMBERS, _plain("map", "second")),
    Operation(PAIRS, PAIRS, _plain("mapValues", "plus_ten", "identity")),
    Operation(PAIRS, PAIRS, _plain("flatMapValues", "up_to", "twice")),
    Operation(PAIRS, PAIRS, _by_key("reduceByKey", _ADD)),
    Operation(PAIRS, PAIRS, _by_key("reduceByKey", use("larger"))),
    Operation(
        PAIRS,
        PAIRS,
        _by_key("combineByKey", use("pair_of"), use("into_pair"), use("add_pairs"), then="total"),
    ),
    Operation(PAIRS, PAIRS, _by_key("groupByKey", then="total")),
    Operation(PAIRS, PAIRS, _by_key("groupByKey", then="sizes")),
    Operation(PAIRS, PAIRS, lambda draw, s: s.partitionBy(draw(st.integers(1, 3)))),
    Operation(PAIRS, PAIRS, _reduced_by_window),
    Operation(PAIRS, PAIRS, _inverse),
    Operation(
        PAIRS,
        PAIRS,
        lambda draw, s: s.groupByKeyAndWindow(*_window(draw)).mapValues(use("total")),
    ),
    *[Operation(PAIRS, PAIRS, _state)] * 3,
    Operation(None, NUMBERS, lambda draw, s: s.count()),
    Operation(None, None, lambda draw, s: s.repartition(draw(st.integers(1, 3)))),
    Operation(None, None, lambda draw, s: s.window(*_window(draw))),
    Operation(None, None, lambda draw, s: s.cache()),
    Operation(None, None, _lacking),
)


def slide_of(node: Node) -> int:
    """Seconds from one RDD of a stream to the next."""
    slides = [slide_of(parent) for parent in node.parents]
    if isinstance(node, Apply) and operation_of(node).lower().endswith("window"):
        seconds = [arg for arg in node.args if isinstance(arg, int)]
        return seconds[1]
    return slides[0] if slides else 1


@st.composite
def queues(draw: Callable[..., Any], kind: Kind) -> Node:
    """Draw an input; it may be without an RDD in some batches."""
    some = st.lists(_ELEMENTS[kind], min_size=1, max_size=5)
    records = st.sampled_from([st.just([]), some, some, some]).flatmap(lambda batch: batch)
    queue = Queue(*draw(st.lists(records, min_size=BATCHES, max_size=BATCHES)))
    return _lacking(draw, queue) if draw(st.integers(0, 3)) == 3 else queue


@st.composite
def streams(draw: Callable[..., Any], kind: Kind, depth: int) -> Node:
    """Draw a stream of a kind, made by at most so many operations one after the other."""
    operations = [op for op in ONE_STREAM if op.gives in (kind, None)]
    choice = draw(st.integers(0, len(operations) + 3)) if depth else 0
    if choice == 0:
        return draw(queues(kind))
    if choice > len(operations):
        return draw(_of_two(kind, depth))
    operation = operations[choice - 1]
    stream = draw(streams(operation.takes or kind, depth - 1))
    assume(is_ordered(stream) or not operation.ordered)
    made = operation.apply(draw, stream)
    assume(_windows_fit(made))
    return made


@st.composite
def _of_two(draw: Callable[..., Any], kind: Kind, depth: int) -> Node:
    """Draw a stream made of two of one kind; the second may be the first."""
    one = draw(streams(kind, depth - 1))
    other = one if draw(st.booleans()) else draw(streams(kind, max(depth - 3, 0)))
    assume(slide_of(one) == slide_of(other))
    if kind is PAIRS and draw(st.booleans()):
        joins = ["cogroup", "join", "leftOuterJoin", "rightOuterJoin", "fullOuterJoin"]
        joined = Apply(draw(st.sampled_from(joins)), one, (other, draw(_PARTITIONS)))
        return joined.mapValues(use("total_difference"))
    ways = [
        one.union(other),
        one.transformWith(use("united_rdds"), other),
        OfContext("transform", (one, other), use("all_rdds")),
    ]
    if not any(isinstance(stream, Queue) for stream in (one, other)):
        ways.append(OfContext("union", (one, other)))
    return draw(st.sampled_from(ways))


def _windows_fit(node: Node) -> bool:
    """Whether windows are multiples of what their parents slide by."""
    if not (isinstance(node, Apply) and operation_of(node).lower().endswith("window")):
        return all(_windows_fit(parent) for parent in node.parents)
    seconds = [arg for arg in node.args if isinstance(arg, int)][:2]
    slide = slide_of(node.parents[0])
    return all(second % slide == 0 for second in seconds) and _windows_fit(node.parents[0])


@st.composite
def programs(draw: Callable[..., Any]) -> Program:
    """Draw a program that must do the same on both sides."""
    kind = draw(st.sampled_from([NUMBERS, TEXTS, PAIRS, PAIRS]))
    output = draw(streams(kind, _DEPTH))
    assume(not isinstance(output, Queue))
    program = Program("random", output, BATCHES, reads=True)
    assume(not may_differ(program))
    return program
