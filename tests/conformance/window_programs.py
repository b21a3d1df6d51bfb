"""Programs of windows, written by hand."""

from __future__ import annotations

from tests.conformance.programs import Node, OfContext, Program, Queue, use

_BATCHES, _MORE_BATCHES = 6, 8
_LONG = ("five slides", "six slides", "gaps", "window of a window")
"""What is in the names of programs that take more batches to show what they show."""

NUMBERS = Queue([1, 2], [], [3], [4, 5, 6], [], [], [7], [])
PAIRS = Queue(
    [("a", 1), ("b", 2)], [("a", 3)], [], [("c", 4), ("c", 5)], [], [("a", 1)], [], [("b", 1)]
)
# The input of Spark's own cases of large windows.
LETTERS = Queue(*[[(letter, 1) for letter in word] for word in ["a", "ab", "abc", "ab", "a", ""]])
SEEN = PAIRS.mapValues(use("one"))

ADD, SUBTRACT, NOT_ZERO = use("add"), use("subtract"), use("not_zero")
ABOVE_ONE, FIRST, LAST = use("above_one"), use("first_of_two"), use("last_of_two")

_NODES: dict[str, Node] = {
    "window": NUMBERS.window(2),
    "window of one batch": NUMBERS.window(1, 1),
    "tumbling window": NUMBERS.window(2, 2),
    "window that slides by two": NUMBERS.window(4, 2),
    "window with gaps": NUMBERS.window(2, 3),
    "window that no slide divides": NUMBERS.window(5, 2),
    "window of a window": NUMBERS.window(2, 2).window(4, 2),
    "window of a mapped stream": NUMBERS.map(use("double")).window(3).filter(use("is_even")),
    "window with missing RDDs": NUMBERS.lacking(1, 2, 3, 5).window(2),
    "persisted window": NUMBERS.window(3).persist(use("MEMORY_AND_DISK")).map(use("double")),
    "layout of a window": NUMBERS.window(2).glom(),
    "count of a window": NUMBERS.window(3).count(),
    "reduce of a window": NUMBERS.window(3, 2).reduce(ADD),
    "union of windows": NUMBERS.window(2, 2).union(NUMBERS.window(4, 2)),
    "ssc.union of windows": OfContext("union", (NUMBERS.window(2), NUMBERS.window(3))),
    "join of windows": PAIRS.window(3).join(PAIRS.window(2)),
    "window joined with the batch": PAIRS.window(3).join(PAIRS),
    "state of a window": PAIRS.window(2, 2).updateStateByKey(use("running_sum")),
    "window of a state": PAIRS.updateStateByKey(use("running_sum")).window(2, 2),
    "reduceByWindow": NUMBERS.reduceByWindow(use("larger"), None, 3, 1),
    "reduceByWindow that slides by two": NUMBERS.reduceByWindow(ADD, None, 3, 2),
    "reduceByWindow with an inverse, empty windows": NUMBERS.lacking(5, 6).reduceByWindow(
        ADD, SUBTRACT, 2, 1
    ),
    "reduceByWindow with an inverse, five slides": NUMBERS.lacking(1).reduceByWindow(
        ADD, SUBTRACT, 5, 1
    ),
    "reduceByWindow with an inverse": NUMBERS.window(5).reduceByWindow(ADD, SUBTRACT, 5, 1),
    "countByWindow": Queue([1], [2, 3], [4], [], [5], [6], [7, 8]).countByWindow(2, 1),
    "countByWindow of five slides": Queue([], [1, 2], [3], [], [], [], [], []).countByWindow(5, 1),
    "countByWindow of empty windows": NUMBERS.lacking(1, 5, 6).countByWindow(2, 1),
    "countByWindow of five slides, missing RDDs": NUMBERS.lacking(1, 4, 5, 6, 7, 8).countByWindow(
        5, 1
    ),
    "countByValueAndWindow, missing RDDs": NUMBERS.lacking(1, 5, 6).countByValueAndWindow(2, 1),
    "countByValueAndWindow of five slides": NUMBERS.lacking(1, 6, 7, 8).countByValueAndWindow(5, 1),
    "countByValueAndWindow": NUMBERS.union(NUMBERS).countByValueAndWindow(2, 1),
    "countByValueAndWindow that slides by two": NUMBERS.countByValueAndWindow(4, 2, 3),
    "countByValueAndWindow of six slides": NUMBERS.countByValueAndWindow(6, 1),
    "groupByKeyAndWindow": PAIRS.groupByKeyAndWindow(3, 1).mapValues(use("in_order")),
    "groupByKeyAndWindow that slides by two": PAIRS.groupByKeyAndWindow(3, 2, 3).mapValues(
        use("in_order")
    ),
    "groupByKeyAndWindow, missing RDDs": PAIRS.lacking(1, 3, 4, 5)
    .groupByKeyAndWindow(2, 1)
    .mapValues(use("in_order")),
    "values of groupByKeyAndWindow": PAIRS.groupByKeyAndWindow(2, 1),
    "reduceByKeyAndWindow": PAIRS.reduceByKeyAndWindow(ADD, None, 3),
    "reduceByKeyAndWindow that slides by two": PAIRS.reduceByKeyAndWindow(
        use("larger"), None, 4, 2, 3
    ),
    "reduceByKeyAndWindow with gaps": PAIRS.reduceByKeyAndWindow(ADD, None, 1, 2),
    "reduceByKeyAndWindow with missing RDDs": PAIRS.lacking(2, 4).reduceByKeyAndWindow(
        ADD, None, 3
    ),
    "reduceByKeyAndWindow, five slides": LETTERS.reduceByKeyAndWindow(ADD, SUBTRACT, 5, 1),
    "reduceByKeyAndWindow, five slides, filter": LETTERS.reduceByKeyAndWindow(
        ADD, SUBTRACT, 5, 1, 3, NOT_ZERO
    ),
    "reduceByKeyAndWindow, six slides, missing RDDs": SEEN.lacking(3, 4).reduceByKeyAndWindow(
        ADD, SUBTRACT, 6, 1, filterFunc=NOT_ZERO
    ),
    "reduceByKeyAndWindow, filter": SEEN.reduceByKeyAndWindow(ADD, SUBTRACT, 2, 1, None, NOT_ZERO),
    "reduceByKeyAndWindow, filter, slides by two": SEEN.reduceByKeyAndWindow(
        ADD, SUBTRACT, 4, 2, None, NOT_ZERO
    ),
    "reduceByKeyAndWindow, filter, gaps": SEEN.reduceByKeyAndWindow(
        ADD, SUBTRACT, 1, 2, None, NOT_ZERO
    ),
    "reduceByKeyAndWindow, an inverse and no filter": PAIRS.reduceByKeyAndWindow(
        ADD, SUBTRACT, 3, 1
    ),
    "reduceByKeyAndWindow, four slides of what has no inverse": PAIRS.reduceByKeyAndWindow(
        use("larger"), FIRST, 4, 1
    ),
    "reduceByKeyAndWindow, an inverse and missing RDDs": PAIRS.lacking(
        1, 3, 4, 5
    ).reduceByKeyAndWindow(ADD, SUBTRACT, 2, 1),
    "reduceByKeyAndWindow, a filter of live pairs": PAIRS.reduceByKeyAndWindow(
        ADD, SUBTRACT, 3, 1, None, ABOVE_ONE
    ),
    "reduceByKeyAndWindow, five slides, a filter of live pairs": SEEN.reduceByKeyAndWindow(
        ADD, SUBTRACT, 5, 1, None, ABOVE_ONE
    ),
    "reduceByKeyAndWindow, five slides, a filter and missing RDDs": SEEN.lacking(
        1, 6, 7
    ).reduceByKeyAndWindow(ADD, SUBTRACT, 5, 1, None, NOT_ZERO),
    "reduceByKeyAndWindow, five slides of two": PAIRS.reduceByKeyAndWindow(ADD, SUBTRACT, 10, 2),
    "reduceByKeyAndWindow, five slides, None leaves": PAIRS.mapValues(
        use("none_of_two")
    ).reduceByKeyAndWindow(LAST, FIRST, 5, 1),
    "reduceByKeyAndWindow, a filter without an inverse": PAIRS.reduceByKeyAndWindow(
        ADD, None, 3, 1, None, ABOVE_ONE
    ),
    "reduceByKeyAndWindow, then values": SEEN.reduceByKeyAndWindow(
        ADD, SUBTRACT, 3, 1, None, NOT_ZERO
    )
    .mapValues(use("plus_ten"))
    .reduceByKey(ADD),
}

WINDOWS = [
    Program(
        name,
        node,
        _MORE_BATCHES if any(words in name for words in _LONG) else _BATCHES,
        reads=name.endswith("gaps"),
    )
    for name, node in _NODES.items()
]
