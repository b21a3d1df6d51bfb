"""Windows, as tables run on real RDDs; batches of a second unless said otherwise."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from pyspark import SparkContext, StorageLevel

from dstreams import BatchFailedError, DStream, InvalidStreamError
from dstreams.common.settings import Settings
from dstreams.testing import BatchDriver
from tests.conformance.tables import Table

NUMBERS = "in  | 0 | 1 | 2 | 3 | 4 | 5"
RANGES = "in  | 0 | 0 1 | 0 1 2 | 0 1 2 3 | 0 1 2 3 4 | [] | []"
LONG = """in  | a=1 | a=1 b=1 | a=1 b=1 c=1 | a=1 b=1 | a=1 | [] | a=1 | a=1 b=1 | a=1 b=1 c=1 \
| a=1 b=1 | a=1 | []"""
LONG_REDUCED = """out | a=1 | a=2 b=1 | a=2 b=2 c=1 | a=2 b=2 c=1 | a=2 b=1 | a=1 | a=1 | a=2 b=1 \
| a=2 b=2 c=1 | a=2 b=2 c=1 | a=2 b=1 | a=1"""


def naive(stream: DStream) -> DStream:
    return stream.reduceByKeyAndWindow(operator.add, None, 2, 1)


def inverse(stream: DStream) -> DStream:
    return stream.reduceByKeyAndWindow(operator.add, operator.sub, 2, 1)


def five(stream: DStream) -> DStream:
    return stream.reduceByKeyAndWindow(operator.add, operator.sub, 5)


def inverse_and_filter(stream: DStream) -> DStream:
    return stream.reduceByKeyAndWindow(
        operator.add, operator.sub, 2, 1, filterFunc=lambda pair: pair[1] != 0
    )


WINDOWS: dict[str, tuple[str, Callable[[DStream], DStream]]] = {
    "window(2, 1)": (
        f"{NUMBERS}\nout | 0 | 0 1 | 1 2 | 2 3 | 3 4 | 4 5",
        lambda s: s.window(2, 1),
    ),
    "the slide is the parent's": (
        f"{NUMBERS}\nout | 0 | 0 1 | 1 2 | 2 3 | 3 4 | 4 5",
        lambda s: s.window(2),
    ),
    "window(2, 2), tumbling": (
        f"{NUMBERS}\nout | - | 0 1 | - | 2 3 | - | 4 5",
        lambda s: s.window(2, 2),
    ),
    "window(4, 2)": (
        "in  | 0 | 1 | 2 | 3 | 4 | 5 | [] | []\n"
        "out | - | 0 1 | - | 0 1 2 3 | - | 2 3 4 5 | - | 4 5",
        lambda s: s.window(4, 2),
    ),
    "window(2, 3), with gaps": (
        f"{NUMBERS}\nout | - | - | 1 2 | - | - | 4 5",
        lambda s: s.window(2, 3),
    ),
    "window(1, 3): the slide is longer than the window": (
        f"{NUMBERS}\nout | - | - | 2 | - | - | 5",
        lambda s: s.window(1, 3),
    ),
    "a window of a mapped stream": (
        f"{NUMBERS}\nout | - | '0' '1' | - | '2' '3' | - | '4' '5'",
        lambda s: s.map(str).window(2, 2),
    ),
    "a batch without an RDD is left out": (
        "in  | 0 | - | 2 | - | - | -\nout | 0 | 0 | 2 | 2 | [] | []",
        lambda s: s.window(2),
    ),
    "a window without any RDD is empty": (
        "in  | - | -\nout | - | []",
        lambda s: s.window(2, 2),
    ),
    "a window of windows": (
        f"{NUMBERS}\nout | - | 0 0 1 | - | 0 0 1 1 2 2 3 | - | 1 2 2 3 3 4 4 5",
        lambda s: s.window(2, 1).window(4, 2),
    ),
    "window(1.5, 0.5).count": (
        f"{RANGES}\nout | 1 | 3 | 6 | 9 | 12 | 9 | 5",
        lambda s: s.window(1.5, 0.5).count(),
    ),
    "countByWindow(1.5, 0.5)": (
        f"{RANGES}\nout | 1 | 3 | 6 | 9 | 12 | 9 | 5",
        lambda s: s.countByWindow(1.5, 0.5),
    ),
    "groupByKeyAndWindow(1.5, 0.5)": (
        "in  | a=0 | a=1 | a=2 | a=3 | a=4 | [] | []\n"
        "out | a=[0] | a=[0,1] | a=[0,1,2] | a=[1,2,3] | a=[2,3,4] | a=[3,4] | a=[4]",
        lambda s: s.groupByKeyAndWindow(1.5, 0.5).mapValues(list),
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("case", WINDOWS)
def test_windows(sc: SparkContext, case: str) -> None:
    """Each holds the batches of (t - window, t], the oldest first; before zero time is nothing."""
    text, operation = WINDOWS[case]
    duration = 0.5 if "(1.5, 0.5)" in case else 1
    Table.parse(text).check(sc, operation, ordered=True, batch_duration=duration)


REDUCED: dict[str, tuple[str, Callable[[DStream], DStream]]] = {
    "a key stays, inverse": ("in | a=1 | a=1\nout | a=1 | a=2", inverse),
    "a key stays, naive": ("in | a=1 | a=1\nout | a=1 | a=2", naive),
    "a new key, inverse": ("in | a=1 | a=1 b=1\nout | a=1 | a=2 b=1", inverse),
    "a new key, naive": ("in | a=1 | a=1 b=1\nout | a=1 | a=2 b=1", naive),
    "a key leaves, naive": ("in | a=1 | a=1 | [] | []\nout | a=1 | a=2 | a=1 | []", naive),
    "a key leaves, inverse": ("in | a=1 | a=1 | [] | []\nout | a=1 | a=2 | a=1 | []", inverse),
    "a key leaves, inverse and filter": (
        "in | a=1 | a=1 | [] | []\nout | a=1 | a=2 | a=1 | []",
        inverse_and_filter,
    ),
    "long, naive": (f"{LONG}\n{LONG_REDUCED}", naive),
    "long, inverse": (f"{LONG}\n{LONG_REDUCED}", inverse),
    "long, inverse and filter": (f"{LONG}\n{LONG_REDUCED}", inverse_and_filter),
    "groupByKeyAndWindow": (
        f"{LONG}\n{LONG_REDUCED}",
        lambda s: s.groupByKeyAndWindow(2, 1).mapValues(len),
    ),
    "countByWindow": (
        "in  | 1 | 1 | 1 2 | 0 | [] | []\nout | 1 | 2 | 3 | 3 | 1 | []",
        lambda s: s.countByWindow(2, 1),
    ),
    "countByWindow of nothing has no number": (
        "in  | [] | - | 7 | -\nout | [] | [] | 1 | 1",
        lambda s: s.countByWindow(2, 1),
    ),
    "countByWindow of no RDD at all": (
        "in  | - | - | 7\nout | - | - | 1",
        lambda s: s.countByWindow(2, 1),
    ),
    "countByWindow of five slides": (
        "in  | - | [] | 7 | - | [] | - | - | - | -\nout | - | [] | 1 | 1 | 1 | 1 | 1 | 0 | 0",
        lambda s: s.countByWindow(5),
    ),
    "countByValueAndWindow": (
        "in  | a | b b | a b | [] | []\nout | a=1 | a=1 b=2 | a=1 b=3 | a=1 b=1 | []",
        lambda s: s.countByValueAndWindow(2, 1),
    ),
    "reduceByWindow, inverse": (
        "in  | 1 2 | 3 | [] | [] | 4\nout | 3 | 6 | 3 | [] | 4",
        lambda s: s.reduceByWindow(operator.add, operator.sub, 2, 1),
    ),
    "reduceByWindow, inverse, batches without an RDD": (
        "in  | - | [] | - | - | 4\nout | - | [] | [] | - | 4",
        lambda s: s.reduceByWindow(operator.add, operator.sub, 2, 1),
    ),
    "reduceByWindow, naive": (
        "in  | 1 2 | 3 | [] | [] | 4\nout | 3 | 6 | 3 | [] | 4",
        lambda s: s.reduceByWindow(operator.add, None, 2, 1),
    ),
    "reduceByWindow of what has no inverse": (
        "in  | 1 7 | 3 | [] | -\nout | - | 7 | - | []",
        lambda s: s.reduceByWindow(max, None, 2, 2),
    ),
    "inverse, batches without an RDD": (
        "in  | a=1 | - | b=1 | - | -\nout | a=1 | a=1 | b=1 | b=1 | -",
        inverse,
    ),
    "inverse, tumbling": (
        "in  | a=1 | a=2 | b=4 | b=8 | a=16 | []\nout | - | a=3 | - | b=12 | - | a=16",
        lambda s: s.reduceByKeyAndWindow(operator.add, operator.sub, 2, 2),
    ),
    "inverse, two at a time": (
        "in  | a=1 | a=2 | a=4 | b=8 | [] | a=16\nout | - | a=3 | - | a=7 b=8 | - | a=20 b=8",
        lambda s: s.reduceByKeyAndWindow(operator.add, operator.sub, 4, 2),
    ),
    "inverse, with gaps": (
        "in  | c=1 | a=2 | a=4 | c=8 | a=16 | b=32 | c=1 | [] | []\n"
        "out | - | - | a=6 | - | - | a=16 b=32 | - | - | []",
        lambda s: s.reduceByKeyAndWindow(operator.add, operator.sub, 2, 3),
    ),
    "without an inverse a filter is not used": (
        "in  | c=1 | a=2 | a=4 | c=8 | a=16 | b=32\nout | - | - | a=6 | - | - | a=16 b=32",
        lambda s: s.reduceByKeyAndWindow(
            operator.add, None, 2, 3, filterFunc=lambda pair: pair != ("a", 16)
        ),
    ),
    "four slides, a function without an inverse": (
        "in  | a=5 | a=1 | a=2 | a=3 | a=1 | []\nout | a=5 | a=5 | a=5 | a=5 | a=3 | a=3",
        lambda s: s.reduceByKeyAndWindow(max, lambda v, w: v, 4),
    ),
    "four slides, a filter that drops what is still in the window": (
        "in  | a=1 b=2 | a=3 | [] | c=9 b=1 | a=1 | []\n"
        "out | b=2 | a=4 b=2 | a=4 b=2 | a=4 b=3 c=9 | a=4 c=9 | c=9",
        lambda s: s.reduceByKeyAndWindow(
            operator.add, operator.sub, 4, filterFunc=lambda pair: pair[1] > 1
        ),
    ),
    "a falsy value is a value": (
        "in  | a=0 | b='' | a=0 | []\nout | a=0 | a=0 b='' | a=0 b='' | a=0",
        lambda s: s.reduceByKeyAndWindow(lambda v, w: v or w, lambda v, w: v, 2, 1),
    ),
    "five slides, keys stay": (
        "in | a=1 | b=1 | [] | [] | [] | [] | []\n"
        "out | a=1 | a=1 b=1 | a=1 b=1 | a=1 b=1 | a=1 b=1 | a=0 b=1 | a=0 b=0",
        five,
    ),
    "five slides, a falsy value is a value": (
        "in  | a=0 | b='' | a=0 | [] | [] | []\n"
        "out | a=0 | a=0 b='' | a=0 b='' | a=0 b='' | a=0 b='' | a=0 b=''",
        lambda s: s.reduceByKeyAndWindow(lambda v, w: v or w, lambda v, w: v, 5, 1),
    ),
    "five slides, batches without an RDD": (
        "in  | - | a=1 | - | - | - | - | b=1 | -\n"
        "out | - | a=1 | a=1 | a=1 | a=1 | a=1 | a=0 b=1 | a=0 b=1",
        five,
    ),
    "five slides of two": (
        "in  | a=1 | a=2 | [] | [] | [] | [] | [] | [] | [] | b=8 | - | -\n"
        "out | - | a=3 | - | a=3 | - | a=3 | - | a=3 | - | a=3 b=8 | - | a=0 b=8",
        lambda s: s.reduceByKeyAndWindow(operator.add, operator.sub, 10, 2),
    ),
    # Of what the filter dropped nothing is in a later window: the first 1 is taken away at 6.
    "five slides, a filter that drops what is still in the window": (
        "in  | a=1 b=2 | [] | a=3 | [] | [] | [] | [] | []\n"
        "out | b=2 | b=2 | a=3 b=2 | a=3 b=2 | a=3 b=2 | a=2 | a=2 | []",
        lambda s: s.reduceByKeyAndWindow(
            operator.add, operator.sub, 5, filterFunc=lambda pair: pair[1] > 1
        ),
    ),
    "five slides, a filter waits for a batch with an RDD": (
        "in  | a=1 b=1 | [] | [] | [] | [] | - | - | b=1 | -\n"
        "out | a=1 b=1 | a=1 b=1 | a=1 b=1 | a=1 b=1 | a=1 b=1 | a=0 b=0 | a=0 b=0 | b=1 | b=1",
        lambda s: s.reduceByKeyAndWindow(
            operator.add, operator.sub, 5, filterFunc=lambda pair: pair[1] != 0
        ),
    ),
    "five slides, None that leaves is left out": (
        "in  | a=None | a=1 | [] | [] | [] | [] | []\n"
        "out | a=None | a=1 | a=1 | a=1 | a=1 | a=1 | a=0",
        lambda s: s.reduceByKeyAndWindow(lambda v, w: w, operator.sub, 5),
    ),
    "countByValueAndWindow, five slides": (
        "in  | a | b b | a | [] | [] | - | - | [] | -\n"
        "out | a=1 | a=1 b=2 | a=2 b=2 | a=2 b=2 | a=2 b=2 | a=1 b=2 | a=1 | [] | []",
        lambda s: s.countByValueAndWindow(5),
    ),
    "groupByKeyAndWindow, five slides": (
        "in  | - | a=1 | a=2 | - | - | - | - | - | -\n"
        "out | - | a=[1] | a=[1,2] | a=[1,2] | a=[1,2] | a=[1,2] | a=[2] | - | -",
        lambda s: s.groupByKeyAndWindow(5).mapValues(list),
    ),
    "a window over a state stream": (
        "in  | a=1 | - | a=2 b=1 | []\nout | a=1 | a=1 a=1 | a=1 a=3 b=1 | a=3 a=3 b=1 b=1",
        lambda s: s.updateStateByKey(running_sum).window(2, 1),
    ),
    "an inverse window over a state stream, two at a time": (
        "in  | a=1 | - | a=2 b=1 | []\nout | - | a=2 | - | a=6 b=2",
        lambda s: s.updateStateByKey(running_sum).reduceByKeyAndWindow(
            operator.add, operator.sub, 2, 2
        ),
    ),
    "state over an inverse window": (
        "in  | a=1 | a=1 | [] | []\nout | a=1 | a=3 | a=4 | a=4",
        lambda s: inverse(s).updateStateByKey(running_sum),
    ),
    "a window over a reduced window": (
        "in  | a=1 | a=2 | [] | a=4\nout | - | a=1 a=3 | - | a=2 a=4",
        lambda s: inverse(s).window(2, 2),
    ),
}


def running_sum(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


@pytest.mark.deep
@pytest.mark.parametrize("case", REDUCED)
def test_reductions(sc: SparkContext, case: str) -> None:
    """What was reduced over the window; from five slides on keys stay until a filter drops them."""
    text, operation = REDUCED[case]
    Table.parse(text).check(sc, operation)


SCALA: dict[str, tuple[str, Callable[[DStream], DStream]]] = {
    "a key leaves, inverse": (
        "in | a=1 | a=1 | [] | []\nout | a=1 | a=2 | a=1 | a=0",
        inverse,
    ),
    "a key leaves, inverse and filter": (
        "in | a=1 | a=1 | [] | []\nout | a=1 | a=2 | a=1 | []",
        inverse_and_filter,
    ),
    "long, inverse": (
        f"{LONG}\nout | a=1 | a=2 b=1 | a=2 b=2 c=1 | a=2 b=2 c=1 | a=2 b=1 c=0 | a=1 b=0 c=0 "
        "| a=1 b=0 c=0 | a=2 b=1 c=0 | a=2 b=2 c=1 | a=2 b=2 c=1 | a=2 b=1 c=0 | a=1 b=0 c=0",
        inverse,
    ),
    "long, inverse and filter": (f"{LONG}\n{LONG_REDUCED}", inverse_and_filter),
    "countByWindow": (
        "in  | [] | 1 | 1 2 | 0 | [] | -\nout | [] | 1 | 3 | 3 | 1 | 0",
        lambda s: s.countByWindow(2, 1),
    ),
    "countByValueAndWindow": (
        "in  | a | b b | a b | [] | -\nout | a=1 | a=1 b=2 | a=1 b=3 | a=1 b=1 | []",
        lambda s: s.countByValueAndWindow(2, 1),
    ),
    "a filter in a batch without an RDD": (
        "in  | a=1 | - | - | b=1 | -\nout | a=1 | a=1 | [] | b=1 | b=1",
        inverse_and_filter,
    ),
    "batches without an RDD": (
        "in  | - | a=1 | - | b=1 | - | -\nout | [] | a=1 | a=1 | a=0 b=1 | a=0 b=1 | a=0 b=0",
        inverse,
    ),
    "tumbling": (
        "in  | a=1 | a=2 | b=4 | b=8 | a=16 | []\nout | - | a=3 | - | a=0 b=12 | - | a=16 b=0",
        lambda s: s.reduceByKeyAndWindow(operator.add, operator.sub, 2, 2),
    ),
    "with gaps": (
        "in  | c=1 | a=2 | a=4 | c=8 | a=16 | b=32 | c=1 | [] | []\n"
        "out | - | - | a=6 | - | - | a=16 b=32 | - | - | a=0 b=0",
        lambda s: s.reduceByKeyAndWindow(operator.add, operator.sub, 2, 3),
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("case", SCALA)
def test_reductions_by_the_rule_of_scala(sc: SparkContext, case: str) -> None:
    """The setting lets a window of any length use its inverse function."""
    text, operation = SCALA[case]
    table = Table.parse(text)
    with BatchDriver(sc, settings=Settings(window_inverse="scala")) as driver:
        found = driver.output(operation(driver.input(table.rows["in"])))
        driver.run(len(table.rows["in"]))
    table.compare(found)


def test_a_bad_record_is_bad_for_the_windows_that_it_is_in(sc: SparkContext) -> None:
    """A window of less than five slides is right again when the record has left it."""
    failed, seen = [], []
    with BatchDriver(sc) as driver:
        numbers = driver.input([["1"], ["bad"], ["3"], ["4"], ["5"]]).map(int)
        seen = driver.output(numbers.countByWindow(2))
        for number in range(1, 6):
            try:
                driver.run(1)
            except BatchFailedError:
                failed.append(number)
    assert failed == [2, 3]
    assert seen == [[1], None, None, [2], [2]]


@pytest.mark.parametrize("slide", [2, 3])
def test_no_multiple(sc: SparkContext, slide: int) -> None:
    """Windows and slides that are no multiples of the parent's slide are refused at definition."""
    with BatchDriver(sc, 0.5) as driver:
        numbers = driver.input([[1]])
        for durations in ((0.1, 0.1), (0.1,), (1, 0.1)):
            with pytest.raises(ValueError, match="must be a multiple of the parent stream's slide"):
                numbers.window(*durations)
        windows = numbers.window(slide, slide)
        with pytest.raises(InvalidStreamError, match=f"slide of {slide}000 ms; use {slide}000 ms"):
            windows.window(slide, 0.5)


@pytest.mark.deep
def test_count_by_value_and_window(sc: SparkContext) -> None:
    """A value whose count has gone down to 0 is left out."""
    batches = [list(range(n)) for n in (1, 2, 3, 4, 5, 6)] + [[]] * 4
    with BatchDriver(sc, 0.5) as driver:
        found = driver.output(driver.input(batches).countByValueAndWindow(2.5, 0.5))
        driver.run(10)
    assert [" ".join(f"{k}:{n}" for k, n in sorted(batch or [])) for batch in found] == [
        "0:1",
        "0:2 1:1",
        "0:3 1:2 2:1",
        "0:4 1:3 2:2 3:1",
        "0:5 1:4 2:3 3:2 4:1",
        "0:5 1:5 2:4 3:3 4:2 5:1",
        "0:4 1:4 2:4 3:3 4:2 5:1",
        "0:3 1:3 2:3 3:3 4:2 5:1",
        "0:2 1:2 2:2 3:2 4:2 5:1",
        "0:1 1:1 2:1 3:1 4:1 5:1",
    ]


def test_a_long_window_without_inverse(sc: SparkContext) -> None:
    """A slide of two batches, a window of ten, and keys that come in all of them."""
    batches = [[(x, 1) for x in range(n)] for n in (1, 2, 3, 4, 5, 6)]
    with BatchDriver(sc, 0.5) as driver:
        reduced = driver.input(batches).reduceByKeyAndWindow(operator.add, None, 5, 1)
        counts = driver.output(reduced.filter(lambda pair: pair[1] > 0).count())
        driver.run(12)
    assert counts[1::2] == [[2], [4], [6], [6], [6], [6]]
    assert counts[::2] == [None] * 6


def levels(driver: BatchDriver, *streams: DStream) -> list[StorageLevel | None]:
    engine = driver.context._engine
    assert engine is not None
    return [engine.plan.nodes[stream._node].storage_level for stream in streams]


def test_a_level_for_the_window_is_one_for_its_parent(sc: SparkContext) -> None:
    """The parent's RDDs are persisted, serialized in memory by default; the window's never."""
    with BatchDriver(sc) as driver:
        numbers = driver.input([[1], [2]])
        by_default, by_choice, of_window = (numbers.map(str) for _ in range(3))
        windows = [
            by_default.window(2),
            by_choice.window(2).persist(StorageLevel.DISK_ONLY),
            of_window.window(1).window(2).persist(StorageLevel.MEMORY_AND_DISK),
        ]
        for window in windows:
            driver.output(window)
        driver.run(1)
        assert levels(driver, by_default, by_choice, of_window) == [
            StorageLevel.MEMORY_ONLY,
            StorageLevel.DISK_ONLY,
            StorageLevel.MEMORY_AND_DISK,
        ]
        assert levels(driver, *windows, numbers) == [None] * 4


def test_what_windows_remember(sc: SparkContext) -> None:
    """Each parent is remembered for a window longer; after 10 s older RDDs are gone."""
    with BatchDriver(sc) as driver:
        driver.context.remember(3)
        mapped = driver.input([[n] for n in range(1, 13)]).map(lambda x: x)
        inner = mapped.window(2, 1)
        outer = inner.window(4, 2)
        driver.output(outer)
        driver.run(10)
        engine = driver.context._engine
        assert engine is not None
        remembered = [engine.plan.nodes[s._node].remember_ms for s in (outer, inner, mapped)]
        times = [engine.rdds.times(s._node) for s in (outer, inner, mapped)]
    assert remembered == [3000, 7000, 9000]
    assert times == [[8000, 10000], list(range(4000, 10001, 1000)), list(range(2000, 10001, 1000))]
