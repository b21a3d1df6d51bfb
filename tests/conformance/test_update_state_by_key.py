"""updateStateByKey, as tables run on real RDDs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import BatchFailedError, DStream, StablePartitioner
from dstreams.testing import BatchDriver
from tests.conformance.tables import Table, as_pairs

# The input of Spark's own cases.
U = "in  | a   | a b     | a b c       | a b         | a           | []"

Entry = tuple[Any, list[Any], Any]


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def add_or_100(values: list[int], state: int | None) -> int:
    """Count what comes, so that calls without values are seen."""
    return (state or 0) + sum(values) + (0 if values else 100)


def add_all(entries: Iterator[Entry]) -> Iterator[tuple[Any, int]]:
    return ((key, add(values, state)) for key, values, state in entries)


def sum_of_times(time: datetime, key: str, values: list[int], state: int | None) -> int:
    """Add the batch time in milliseconds when there are values."""
    return (state or 0) + (round(time.timestamp() * 1000) if values else 0)


def ones(words: DStream) -> DStream:
    return words.map(lambda word: (word, 1))


def first_letter(key: str) -> int:
    return ord(key[:1] or " ")


def idle_at_most_once(values: list[int], state: dict[str, int] | None) -> dict[str, int] | None:
    """Count in place, and drop what had no values twice in a row."""
    found = {"count": 0, "idle": 0} if state is None else state
    found["count"] += sum(values)
    found["idle"] = 0 if values else found["idle"] + 1
    return None if found["idle"] == 2 else found


def append_in_place(values: list[Any], state: list[Any] | None) -> list[Any]:
    known = [] if state is None else state
    known.extend(values)
    return known


def test_running_sum(sc: SparkContext) -> None:
    """Every key of the state is in every batch, also in an empty one."""
    Table.parse(f"""
        {U}
        out | a=1 | a=2 b=1 | a=3 b=2 c=1 | a=4 b=3 c=1 | a=5 b=3 c=1 | a=5 b=3 c=1
    """).check(sc, lambda words: ones(words).updateStateByKey(add))


INITIAL = [("a", 1), ("c", 2)]
WITH_INITIAL = f"""
    {U}
    out | a=2 c=2 | a=3 b=1 c=2 | a=4 b=2 c=3 | a=5 b=3 c=3 | a=6 b=3 c=3 | a=6 b=3 c=3
"""

INITIAL_FORMS: dict[str, Callable[[SparkContext], Any]] = {
    "RDD": lambda sc: sc.parallelize(INITIAL, 3),
    "list": lambda sc: INITIAL,
    "dict": lambda sc: dict(INITIAL),
    "generator": lambda sc: (pair for pair in INITIAL),
    "lists of two": lambda sc: [list(pair) for pair in INITIAL],
}


@pytest.mark.deep
@pytest.mark.parametrize("form", INITIAL_FORMS)
def test_initial_state(sc: SparkContext, form: str) -> None:
    """An initial RDD, and any collection that can become one, is the state before the first."""
    initial = INITIAL_FORMS[form](sc)
    Table.parse(WITH_INITIAL).check(
        sc, lambda words: ones(words).updateStateByKey(add, initialRDD=initial)
    )


def test_iterator_form_with_initial_state(sc: SparkContext) -> None:
    """A function over an iterator gives what the same function over values gives."""
    Table.parse(WITH_INITIAL).check(
        sc,
        lambda words: ones(words).updateStateByKey(add_all, initialRDD=INITIAL, form="iterator"),
    )


def test_time_aware(sc: SparkContext) -> None:
    """The keyed form gets the batch time, not the time of any clock."""
    Table.parse(f"""
        {U}
        out | a=1000 c=0 | a=3000 b=2000 c=0 | a=6000 b=5000 c=3000 | a=10000 b=9000 c=3000\
 | a=15000 b=9000 c=3000 | a=15000 b=9000 c=3000
    """).check(
        sc,
        lambda words: ones(words).updateStateByKey(
            sum_of_times, initialRDD=[("a", 0), ("c", 0)], form="keyed"
        ),
    )


def test_states_changed_in_place_and_dropped(sc: SparkContext) -> None:
    """Batches without an RDD count as batches without values, and None drops the key."""
    Table.parse("""
        in  | a b     | -       | a c a   | c       | -   | -
        out | a=1 b=1 | a=1 b=1 | a=3 c=1 | a=3 c=2 | c=2 | []
    """).check(
        sc,
        lambda words: (
            ones(words).updateStateByKey(idle_at_most_once).mapValues(lambda state: state["count"])
        ),
    )


def test_no_rdd_re_applies_the_function(sc: SparkContext) -> None:
    """Branches C1, B and A. Differs from pyspark.streaming, whose state would stay a=1 at 2."""
    Table.parse("""
        in  | a=1 | -     | b=1       | []
        out | a=1 | a=101 | a=201 b=1 | a=301 b=101
    """).check(sc, lambda pairs: pairs.updateStateByKey(add_or_100))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("form", "function"),
    [
        ("values", add_or_100),
        ("keyed", lambda time, key, values, state: add_or_100(values, state)),
        (
            "iterator",
            lambda entries: ((key, add_or_100(values, state)) for key, values, state in entries),
        ),
    ],
)
def test_initial_state_waits_for_the_first_rdd(
    sc: SparkContext, form: str, function: Callable[..., Any]
) -> None:
    """Branches D, D, C2 and A: an initial state alone makes no RDD, and it is not aged."""
    Table.parse("""
        in  | - | - | b=1       | []
        out | - | - | b=1 z=105 | b=101 z=205
    """).check(
        sc,
        lambda pairs: pairs.updateStateByKey(function, initialRDD=[("z", 5)], form=form),
    )


def test_branch_d_without_initial_state(sc: SparkContext) -> None:
    """As long as nothing ever came there is no RDD; an empty RDD is something."""
    Table.parse("""
        in  | - | - | [] | - | a=1
        out | - | - | [] | [] | a=1
    """).check(sc, lambda pairs: pairs.updateStateByKey(add_or_100))


@pytest.mark.deep
@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
def test_duplicate_initial_keys_are_refused(sc: SparkContext, form: str) -> None:
    """Differs from the source, which keeps the first state and loses the others silently."""
    functions: dict[str, Callable[..., Any]] = {
        "values": add,
        "keyed": sum_of_times,
        "iterator": add_all,
    }
    initial = sc.parallelize([("z", 5), ("y", 1), ("z", 7)], 2)
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("z", 1)]])
        driver.output(pairs.updateStateByKey(functions[form], initialRDD=initial, form=form))
        with pytest.raises(BatchFailedError) as raised:
            driver.run(1)
    message = str(raised.value)
    assert "duplicate key 'z' in the state" in message
    assert f"{functions[form].__name__}:" in message
    assert "of updateStateByKey at test_update_state_by_key.py:" in message
    assert "reduceByKey" in message


def test_values_appended_to_a_list(sc: SparkContext) -> None:
    """A state that is a list may be changed in place."""
    Table.parse("""
        in  | k=0   | k=1     | k=2       | k=3         | k=4
        out | k=[0] | k=[0,1] | k=[0,1,2] | k=[0,1,2,3] | k=[0,1,2,3,4]
    """).check(sc, lambda pairs: pairs.updateStateByKey(append_in_place))


def test_values_appended_to_an_initial_list(sc: SparkContext) -> None:
    """So may one that was given as the initial state."""
    Table.parse("""
        in  | k=2       | k=3         | k=4
        out | k=[0,1,2] | k=[0,1,2,3] | k=[0,1,2,3,4]
    """).check(
        sc, lambda pairs: pairs.updateStateByKey(append_in_place, initialRDD=[("k", [0, 1])])
    )


@pytest.mark.deep
@pytest.mark.parametrize(
    ("form", "function"),
    [
        ("values", lambda values, state: None),
        ("keyed", lambda time, key, values, state: None),
        ("iterator", lambda entries: []),
    ],
)
def test_dropping_every_key(sc: SparkContext, form: str, function: Callable[..., Any]) -> None:
    """A state without keys is an empty RDD, and not none."""
    Table.parse("""
        in  | a=1 | a=1 b=1 | -  | []
        out | []  | []      | [] | []
    """).check(sc, lambda pairs: pairs.updateStateByKey(function, form=form))


@pytest.mark.deep
@pytest.mark.parametrize("state", [0, "", [], False, 0.0, (), {}])
def test_falsy_states_stay(sc: SparkContext, state: Any) -> None:
    """Only None drops a key; a state that is false is handed to the next call."""

    def keep(values: list[Any], known: Any) -> Any:
        return values[0] if values else [known]

    with BatchDriver(sc) as driver:
        states = driver.output(driver.input([[("k", state)], []]).updateStateByKey(keep))
        driver.run(2)
    assert states == [[("k", state)], [("k", [state])]]


# The seven variants of Scala's API.

PARTITIONER = StablePartitioner(3, first_letter)


def next_letter(entries: Iterable[Entry]) -> Iterator[tuple[str, int]]:
    """Rename every key, so that it may belong elsewhere."""
    for key, values, state in entries:
        yield key + "x", add(values, state)


def keyed_add(time: datetime, key: str, values: list[int], state: int | None) -> int:
    return add(values, state)


VARIANTS: dict[str, tuple[dict[str, Any], int]] = {
    "1 function": ({"updateFunc": add}, 2),
    "2 number of partitions": ({"updateFunc": add, "numPartitions": 5}, 5),
    "3 partition function": (
        {"updateFunc": add, "numPartitions": 3, "partitionFunc": first_letter},
        3,
    ),
    "3 partitioner": ({"updateFunc": add, "partitionFunc": PARTITIONER}, 3),
    "4 partitioner and initial state": (
        {"updateFunc": add, "partitionFunc": PARTITIONER, "initialRDD": INITIAL},
        3,
    ),
    "5 iterator, remember": (
        {"updateFunc": add_all, "partitionFunc": PARTITIONER, "form": "iterator"},
        3,
    ),
    "5 iterator, do not remember": (
        {
            "updateFunc": add_all,
            "partitionFunc": PARTITIONER,
            "form": "iterator",
            "preservePartitioning": False,
        },
        3,
    ),
    "6 iterator and initial state": (
        {
            "updateFunc": add_all,
            "partitionFunc": PARTITIONER,
            "form": "iterator",
            "initialRDD": INITIAL,
        },
        3,
    ),
    "6 iterator and initial state, do not remember": (
        {
            "updateFunc": add_all,
            "partitionFunc": PARTITIONER,
            "form": "iterator",
            "initialRDD": INITIAL,
            "preservePartitioning": False,
        },
        3,
    ),
    "7 time-aware": (
        {"updateFunc": keyed_add, "partitionFunc": PARTITIONER, "form": "keyed"},
        3,
    ),
    "7 time-aware and initial state, do not remember": (
        {
            "updateFunc": keyed_add,
            "partitionFunc": PARTITIONER,
            "form": "keyed",
            "initialRDD": INITIAL,
            "preservePartitioning": False,
        },
        3,
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_variants_of_scala(sc: SparkContext, variant: str) -> None:
    """Each gives the running sum, in as many partitions as it says, claiming what it says."""
    parameters, partitions = VARIANTS[variant]
    claims = parameters.get("preservePartitioning", True)
    with BatchDriver(sc) as driver:
        words = driver.input([["a"], ["a", "b"], None, []])
        states = ones(words).updateStateByKey(**parameters)
        seen = driver.output(states)
        shapes: list[tuple[int, bool]] = []
        states.foreachRDD(
            lambda rdd: shapes.append((rdd.getNumPartitions(), rdd.partitioner is not None))
        )
        driver.run(4)
    has_initial = "initialRDD" in parameters
    Table.parse(
        "out | a=2 c=2 | a=3 b=1 c=2 | a=3 b=1 c=2 | a=3 b=1 c=2"
        if has_initial
        else "out | a=1 | a=2 b=1 | a=2 b=1 | a=2 b=1"
    ).compare(seen)
    # Without a batch RDD nothing is shuffled: the partitions are those of the batch before.
    assert shapes == [(partitions, claims)] * 4


def test_the_state_is_where_the_partitioner_says(sc: SparkContext) -> None:
    """A partition function decides the place of every key, in every batch."""
    with BatchDriver(sc) as driver:
        words = driver.input([["a", "b", "c"], ["a", "d"], None])
        states = ones(words).updateStateByKey(add, 3, partitionFunc=first_letter)
        places = driver.output(states.glom().map(lambda pairs: sorted(key for key, _ in pairs)))
        driver.run(3)
    # ord("a") is 97, and 97 % 3 is 1.
    assert places == [[["c"], ["a"], ["b"]], [["c"], ["a", "d"], ["b"]], [["c"], ["a", "d"], ["b"]]]


def test_a_function_may_change_keys_without_a_promise(sc: SparkContext) -> None:
    """With preservePartitioning false the state is shuffled, so a renamed key is found again."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)], [("ax", 1), ("b", 1)], [], [("axxx", 5)]])
        states = pairs.updateStateByKey(next_letter, 3, preservePartitioning=False, form="iterator")
        seen = driver.output(states)
        claims: list[Any] = []
        states.foreachRDD(lambda rdd: claims.append(rdd.partitioner))
        driver.run(4)
    Table.parse("out | ax=1 | axx=2 bx=1 | axxx=2 bxx=1 | axxxx=7 bxxx=1").compare(seen)
    assert claims == [None] * 4


def test_a_function_that_breaks_its_promise_is_refused(sc: SparkContext) -> None:
    """Differs from the source, where a key that was moved is lost to later batches silently."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[(key, 1) for key in "abcdef"]])
        driver.output(
            pairs.updateStateByKey(
                lambda entries: ((chr(ord(key) + 1), 1) for key, _, _ in entries),
                3,
                partitionFunc=first_letter,
                form="iterator",
            )
        )
        with pytest.raises(BatchFailedError, match=r"it belongs in partition \d; pass preserve"):
            driver.run(1)


def test_an_iterator_function_may_drop_and_add_keys(sc: SparkContext) -> None:
    """It returns any number of pairs for each entry, each key once."""

    def split(entries: Iterator[Entry]) -> Iterator[tuple[Any, Any]]:
        for key, values, state in entries:
            if key != "gone":
                yield key, add(values, state)
                if values and state is None:
                    yield f"{key} is new", -1

    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1), ("gone", 1)], [("a", 1)]])
        states = pairs.updateStateByKey(split, 1, form="iterator")
        seen = driver.output(states)
        driver.run(2)
    assert [sorted(batch or []) for batch in seen] == [
        [("a", 1), ("a is new", -1)],
        # "a is new" came without values.
        [("a", 2), ("a is new", -1)],
    ]


def test_an_iterator_function_that_yields_a_key_twice_is_refused(sc: SparkContext) -> None:
    """Differs from the source, which keeps both and loses one in the batch after, silently."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)]])
        driver.output(
            pairs.updateStateByKey(
                lambda entries: [pair for key, _, _ in entries for pair in ((key, 1), (key, 2))],
                form="iterator",
            )
        )
        with pytest.raises(BatchFailedError, match="duplicate key 'a' in the state"):
            driver.run(1)


@pytest.mark.deep
def test_chained_state_streams(sc: SparkContext) -> None:
    """A state stream is a stream of pairs, whose states are the values of the next one."""
    with BatchDriver(sc) as driver:
        sums = ones(driver.input([["a"], None, ["a", "b"], []])).updateStateByKey(add)
        seen = driver.output(sums), driver.output(sums.updateStateByKey(append_in_place))
        driver.run(4)
    Table.parse("out | a=1 | a=1 | a=2 b=1 | a=2 b=1").compare(seen[0])
    Table.parse("""
        out | a=[1] | a=[1,1] | a=[1,1,2] b=[1] | a=[1,1,2,2] b=[1,1]
    """).compare(seen[1])


def test_a_state_stream_of_two_outputs_is_computed_once(sc: SparkContext, tmp_path: Path) -> None:
    """The function is called once for each key and batch, however many outputs there are."""
    calls = tmp_path / "calls"

    def counted(time: datetime, key: str, values: list[int], state: int | None) -> int:
        with calls.open("a") as out:
            out.write(f"{round(time.timestamp())} {key}\n")
        return add(values, state)

    with BatchDriver(sc) as driver:
        states = ones(driver.input([["a"], ["b"], [], None])).updateStateByKey(
            counted, form="keyed"
        )
        states.checkpoint(2)
        seen = driver.output(states), driver.output(states.mapValues(str))
        driver.run(4)
    Table.parse("out | a=1 | a=1 b=1 | a=1 b=1 | a=1 b=1").compare(seen[0])
    Table.parse("out | a='1' | a='1' b='1' | a='1' b='1' | a='1' b='1'").compare(seen[1])
    assert sorted(calls.read_text().split("\n")[:-1]) == [
        "1 a", "2 a", "2 b", "3 a", "3 b", "4 a", "4 b",
    ]  # fmt: skip


def test_keys_of_many_types(sc: SparkContext) -> None:
    """Any value that Python can hash by its value is a key; 1, 1.0 and True are one."""
    keys = [
        "a",
        "",
        0,
        -1,
        10**30,
        2.5,
        None,
        b"a",
        ("a", 1),
        (),
        frozenset({1, 2}),
        date(1, 1, 1),
    ]
    with BatchDriver(sc) as driver:
        pairs = driver.input(
            [[(key, 1) for key in [*keys, 1]], [(key, 1) for key in [*keys, True]]]
        )
        seen = driver.output(pairs.updateStateByKey(add, 3))
        driver.run(3)
    wanted = dict.fromkeys([*keys, 1], 2)
    assert [as_pairs(dict(batch or [])) for batch in seen[1:]] == [as_pairs(wanted)] * 2
