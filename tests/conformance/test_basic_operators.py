"""The basic operators, as tables run on real RDDs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import DStream, InvalidStreamError
from dstreams.testing import BatchDriver, run_batches
from tests.conformance.tables import Table

# The input that most of Spark's own cases have.
NUMBERS = "in  | 1 2 3 4 | 5 6 7 8 | 9 10 11 12"
LETTERS = "in  | a a b   | '' ''   | []"
HUNDREDS = [list(range(1, 101)), list(range(101, 201)), list(range(201, 301))]


def ones(stream: DStream) -> DStream:
    return stream.map(lambda word: (word, 1))


def marks(stream: DStream) -> DStream:
    return stream.map(lambda word: (word, "x"))


def in_order(iterable: Iterable[Any]) -> list[Any]:
    return sorted(iterable)


def both_in_order(pair: tuple[Iterable[Any], Iterable[Any]]) -> tuple[list[Any], list[Any]]:
    return in_order(pair[0]), in_order(pair[1])


ORDERED: dict[str, tuple[str, Callable[..., DStream]]] = {
    "map": (
        f"{NUMBERS}\nout | '1' '2' '3' '4' | '5' '6' '7' '8' | '9' '10' '11' '12'",
        lambda s: s.map(str),
    ),
    "flatMap": (
        f"{NUMBERS}\nout | 1 2 2 4 3 6 4 8 | 5 10 6 12 7 14 8 16 | 9 18 10 20 11 22 12 24",
        lambda s: s.flatMap(lambda x: (x, 2 * x)),
    ),
    "filter": (
        f"{NUMBERS}\nout | 2 4 | 6 8 | 10 12",
        lambda s: s.filter(lambda x: x % 2 == 0),
    ),
    "glom": (
        f"{NUMBERS}\nout | [1,2] [3,4] | [5,6] [7,8] | [9,10] [11,12]",
        lambda s: s.glom(),
    ),
    "mapPartitionsWithIndex": (
        f"{NUMBERS}\nout | (0,3) (1,7) | (0,11) (1,15) | (0,19) (1,23)",
        lambda s: s.mapPartitionsWithIndex(lambda index, items: [(index, sum(items))]),
    ),
    "reduce": (
        "in  | 1 2 3 4 | 5 6 7 8 | 9 10 11 12 | []\nout | 10 | 26 | 42 | []",
        lambda s: s.reduce(operator.add),
    ),
    "count, an empty RDD counts 0": (
        "in  | 1 2 3 4 | 5 | []\nout | 4 | 1 | 0",
        lambda s: s.count(),
    ),
    "union": (
        "in  | 1 2 3 4 | 101 102 | 201 202\n"
        "out | 1 2 3 4 5 6 7 8 | 101 102 105 106 | 201 202 205 206",
        lambda s: s.union(s.map(lambda x: x + 4)),
    ),
    "union of three": (
        "in  | 1 2 | 101 102 | 201\nout | 1 2 5 6 9 10 | 101 102 105 106 109 110 | 201 205 209",
        lambda s: s.context().union(s, s.map(lambda x: x + 4), s.map(lambda x: x + 8)),
    ),
    "transform": (
        f"{NUMBERS}\nout | '1' '2' '3' '4' | '5' '6' '7' '8' | '9' '10' '11' '12'",
        lambda s: s.transform(lambda rdd: rdd.map(str)),
    ),
}

UNORDERED: dict[str, tuple[str, Callable[..., DStream]]] = {
    "mapPartitions": (
        f"{NUMBERS}\nout | 3 7 | 11 15 | 19 23",
        lambda s: s.mapPartitions(lambda items: [sum(items)]),
    ),
    "groupByKey": (
        f"{LETTERS}\nout | a=[1,1] b=[1] | ''=[1,1] | []",
        lambda s: ones(s).groupByKey().mapValues(in_order),
    ),
    "reduceByKey": (
        f"{LETTERS}\nout | a=2 b=1 | ''=2 | []",
        lambda s: ones(s).reduceByKey(operator.add),
    ),
    "mapValues": (
        f"{LETTERS}\nout | a=12 b=11 | ''=12 | []",
        lambda s: ones(s).reduceByKey(operator.add).mapValues(lambda v: v + 10),
    ),
    "flatMapValues": (
        f"{LETTERS}\nout | a=2 a=12 b=1 b=11 | ''=2 ''=12 | []",
        lambda s: ones(s).reduceByKey(operator.add).flatMapValues(lambda v: (v, v + 10)),
    ),
    "countByValue": (
        "in  | 1 | 1 1 1 | 1 2 | 1 1 2 2\nout | 1=1 | 1=3 | 1=1 2=1 | 1=2 2=2",
        lambda s: s.countByValue(),
    ),
    "combineByKey": (
        "in  | a=1 a=2 b=3 | b=4 | []\nout | a=(3,2) b=(3,1) | b=(4,1) | []",
        lambda s: s.combineByKey(
            lambda v: (v, 1),
            lambda c, v: (c[0] + v, c[1] + 1),
            lambda c, d: (c[0] + d[0], c[1] + d[1]),
        ),
    ),
    "partitionBy": (
        "in  | 1=a 2=b 3=c 4=d\nout | [(2,'b'),(4,'d')] [(1,'a'),(3,'c')]",
        lambda s: s.partitionBy(2, lambda key: key).glom().map(sorted),
    ),
}

LEFT = "in left  | a b | a ''  | '' | []"
RIGHT = "in right | a b | b '' | [] | ''"

PAIRED: dict[str, tuple[str, Callable[..., DStream]]] = {
    "transformWith(join)": (
        f"{LEFT}\n{RIGHT}\nout | a=(1,'x') b=(1,'x') | ''=(1,'x') | [] | []",
        lambda left, right: ones(left).transformWith(lambda a, b: a.join(b, 2), marks(right)),
    ),
    "join": (
        f"{LEFT}\n{RIGHT}\nout | a=(1,'x') b=(1,'x') | ''=(1,'x') | [] | []",
        lambda left, right: ones(left).join(marks(right)),
    ),
    "leftOuterJoin": (
        f"{LEFT}\n{RIGHT}\nout | a=(1,'x') b=(1,'x') | ''=(1,'x') a=(1,None) | ''=(1,None) | []",
        lambda left, right: ones(left).leftOuterJoin(marks(right)),
    ),
    "rightOuterJoin": (
        f"{LEFT}\n{RIGHT}\n"
        "out | a=(1,'x') b=(1,'x') | ''=(1,'x') b=(None,'x') | [] | ''=(None,'x')",
        lambda left, right: ones(left).rightOuterJoin(marks(right)),
    ),
    "fullOuterJoin": (
        f"{LEFT}\n{RIGHT}\n"
        "out | a=(1,'x') b=(1,'x') | ''=(1,'x') a=(1,None) b=(None,'x') | ''=(1,None)"
        " | ''=(None,'x')",
        lambda left, right: ones(left).fullOuterJoin(marks(right)),
    ),
    "cogroup": (
        "in left  | a a b | a '' | '' | []\n"
        "in right | a a b | b '' | [] | []\n"
        "out | a=([1,1],['x','x']) b=([1],['x']) | a=([1],[]) b=([],['x']) ''=([1],['x'])"
        " | ''=([1],[]) | []",
        lambda left, right: ones(left).cogroup(marks(right)).mapValues(both_in_order),
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("case", ORDERED)
def test_operators_that_keep_order(sc: SparkContext, case: str) -> None:
    """What comes out of a batch comes in the order of its input."""
    text, operation = ORDERED[case]
    Table.parse(text).check(sc, operation, ordered=True)


@pytest.mark.deep
@pytest.mark.parametrize("case", UNORDERED)
def test_operators_without_order(sc: SparkContext, case: str) -> None:
    """What comes out of a batch is a multiset."""
    text, operation = UNORDERED[case]
    Table.parse(text).check(sc, operation)


@pytest.mark.deep
@pytest.mark.parametrize("case", PAIRED)
def test_operators_of_two_streams(sc: SparkContext, case: str) -> None:
    """The RDDs of one batch are joined, never those of two."""
    text, operation = PAIRED[case]
    Table.parse(text).check(sc, operation)


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2)], ids=["more", "fewer"])
def test_repartition(sc: SparkContext, before: int, after: int) -> None:
    """Partitions become more or fewer, the elements stay."""
    with BatchDriver(sc) as driver:
        numbers = driver.input([sc.parallelize(batch, before) for batch in HUNDREDS])
        partitions = driver.output(numbers.repartition(after).glom())
        driver.run(3)
    assert [len(batch or []) for batch in partitions] == [after] * 3
    assert [sorted(chain(*(batch or []))) for batch in partitions] == HUNDREDS


ONE_PARENT: dict[str, Callable[[DStream], DStream]] = {
    "map": lambda s: s.map(str),
    "flatMap": lambda s: s.flatMap(str),
    "filter": lambda s: s.filter(bool),
    "glom": lambda s: s.glom(),
    "mapPartitions": lambda s: s.mapPartitions(list),
    "count": lambda s: s.count(),
    "reduce": lambda s: s.reduce(operator.add),
    "countByValue": lambda s: s.countByValue(),
    "repartition": lambda s: s.repartition(3),
    "reduceByKey": lambda s: ones(s).reduceByKey(operator.add),
    "transform": lambda s: s.transform(lambda rdd: rdd.map(str)),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", ONE_PARENT)
def test_no_rdd_passes_through(sc: SparkContext, name: str) -> None:
    """Where the only parent has no RDD there is none, for transform as in Python."""
    assert run_batches(sc, [None], ONE_PARENT[name]) == [None]


TWO_PARENTS: dict[str, Callable[[DStream, DStream], DStream]] = {
    "union": lambda a, b: a.union(b),
    "ssc.union": lambda a, b: a.context().union(a, b),
    "transformWith": lambda a, b: a.transformWith(lambda x, y: x.union(y), b),
    "ssc.transform": lambda a, b: a.context().transform(
        [a, b], lambda rdds: rdds[0].union(rdds[1])
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", TWO_PARENTS)
def test_a_missing_parent_is_an_empty_rdd(sc: SparkContext, name: str) -> None:
    """Differs from Scala, which raises: as in pyspark.streaming, no RDD is an empty one here."""
    Table.parse("""
        in a | 1 | - | 3 | -
        in b | 2 | 4 | - | -
        out  | 1 2 | 4 | 3 | []
    """).check(sc, TWO_PARENTS[name], ordered=True)


def test_transform_may_return_no_rdd(sc: SparkContext) -> None:
    """Differs from Scala, which raises: as in pyspark.streaming, None means no RDD."""

    def odd_batches(time: Any, rdd: RDD[Any]) -> RDD[Any] | None:
        return rdd if round(time.timestamp()) % 2 else None

    Table.parse("""
        in  | 1 | 2 | 3
        out | 1 | - | 3
    """).check(sc, lambda s: s.transform(odd_batches), ordered=True)


def test_count_of_an_rdd_without_partitions_is_0(sc: SparkContext) -> None:
    """Differs from pyspark.streaming, which counts nothing there: the Scala rule."""
    assert run_batches(sc, [sc.emptyRDD()], lambda s: s.count()) == [[0]]


def test_transform_gets_the_batch_time(sc: SparkContext) -> None:
    """A function of two arguments gets the batch time first, as a datetime."""
    assert run_batches(
        sc,
        [["a"], ["b"]],
        lambda s: s.transform(lambda time, rdd: rdd.map(lambda x: (x, time.timestamp()))),
        batch_duration=0.5,
    ) == [[("a", 0.5)], [("b", 1.0)]]


def test_transform_with_gets_the_batch_time(sc: SparkContext) -> None:
    """So does a function of three arguments given to transformWith."""
    assert run_batches(
        sc,
        [[1]],
        lambda a, b: a.transformWith(
            lambda time, x, y: x.union(y).map(lambda n: n + time.timestamp()), b
        ),
        [[2]],
    ) == [[2.0, 3.0]]


@pytest.mark.parametrize("name", TWO_PARENTS)
def test_streams_of_two_contexts_cannot_be_combined(sc: SparkContext, name: str) -> None:
    """The error says so when the stream is defined."""
    with BatchDriver(sc) as one, BatchDriver(sc) as other:
        streams = one.input([]), other.input([])
        with pytest.raises(InvalidStreamError, match="needs streams of one StreamingContext"):
            TWO_PARENTS[name](*streams)
