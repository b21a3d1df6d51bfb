"""Windows through the public methods: bad input, cost, failures, and what they add up to."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import RDD, SparkContext, StorageLevel

from checkpoint import CommitLog, LocalFiles
from dstreams import (
    BatchFailedError,
    DStream,
    InvalidStreamError,
    StablePartitioner,
    StreamingContext,
    StreamLifecycleError,
)
from dstreams.common.settings import Settings
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.testing import BatchDriver, ManualClock, run_batches
from tests.dstreams.spark.lineage import lineage_of, shuffles_in
from tests.support.jobs import count_jobs

HERE = "test_windows.py"

OPERATIONS: dict[str, Callable[..., DStream[Any]]] = {
    "window": lambda s, *durations: s.window(*durations),
    "reduceByWindow": lambda s, *durations: s.reduceByWindow(max, None, *durations),
    "countByWindow": lambda s, *durations: s.countByWindow(*durations),
    "countByValueAndWindow": lambda s, *durations: s.countByValueAndWindow(*durations),
    "groupByKeyAndWindow": lambda s, *durations: s.groupByKeyAndWindow(*durations),
    "reduceByKeyAndWindow": lambda s, *durations: s.reduceByKeyAndWindow(max, None, *durations),
}


SCALA = Settings(window_inverse="scala")
"""A window of any length uses its inverse function."""


def add(v: int, w: int) -> int:
    return v + w


def sub(v: int, w: int) -> int:
    return v - w


def message_of(sc: SparkContext, define: Callable[[DStream[Any]], object]) -> str:
    """Define a stream that is refused, and return the error message."""
    with BatchDriver(sc) as driver:
        stream = driver.input([])
        with pytest.raises(InvalidStreamError) as raised:
            define(stream)
    assert isinstance(raised.value, ValueError)
    return str(raised.value)


# Bad input -----------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ((2.5, 1), "windowDuration of 2500 ms must be a multiple of .* of 1000 ms; use 2000 or"),
        ((2, 0.5), "slideDuration of 500 ms must be a multiple of .* of 1000 ms; use 1000 ms"),
        ((0, 1), "windowDuration must be a positive number of seconds, at least 0.001, got 0"),
        ((-2, 1), "windowDuration must be a positive number of seconds, at least 0.001, got -2"),
        ((2, 0), "slideDuration must be a positive number of seconds, at least 0.001, got 0"),
        (("2", 1), "windowDuration must be a number of seconds, got '2' .str."),
        ((2, True), "slideDuration must be a number of seconds, got True .bool."),
        ((float("inf"), 1), "windowDuration must be a positive number of seconds"),
    ],
)
def test_durations(sc: SparkContext, name: str, durations: tuple[Any, ...], message: str) -> None:
    """They are refused when the stream is defined; the error has its name, value and rule."""
    found = message_of(sc, lambda s: OPERATIONS[name](s, *durations))
    assert re.match(rf"{name} at {HERE}:\d+: {message}", found)


def test_seconds_are_rounded_to_milliseconds(sc: SparkContext) -> None:
    """2.01 s are 2010 ms, three times 0.67 s; truncation would break that."""
    with BatchDriver(sc, 0.67) as driver:
        windows = driver.input([]).window(2.01, 1.34)
        assert windows._node.slide_ms == 1340


FUNCTIONS: dict[str, tuple[Callable[[DStream[Any]], object], str]] = {
    "a reduce function of one argument": (
        lambda s: s.reduceByKeyAndWindow(lambda v: v, None, 2),
        r"reduceByKeyAndWindow at .* calls func\(v, w\) -> x, but .* takes \(v\)",
    ),
    "no reduce function": (
        lambda s: s.reduceByWindow(None, None, 2),
        "reduceByWindow at .* needs a function reduceFunc",
    ),
    "an inverse function of three arguments": (
        lambda s: s.reduceByKeyAndWindow(add, lambda a, b, c: a, 2),
        "reduceByKeyAndWindow at .* takes .a, b, c.",
    ),
    "an inverse that is no function": (
        lambda s: s.reduceByWindow(add, 2, 2),
        "reduceByWindow at .* needs a function inverse",
    ),
    "a filter of two arguments": (
        lambda s: s.reduceByKeyAndWindow(add, sub, 2, filterFunc=lambda k, v: True),
        r"reduceByKeyAndWindow at .* calls filterFunc\(\(key, value\)\) -> bool",
    ),
    "a function with a stream in it": (
        lambda s: s.reduceByKeyAndWindow(add, lambda v, w: s, 2),
        "reduceByKeyAndWindow at .*, because it uses 's', a DStream",
    ),
    "no partitions": (
        lambda s: s.groupByKeyAndWindow(2, 1, 0),
        "numPartitions of groupByKeyAndWindow at .* is 0; use a whole number of at least 1",
    ),
    "a partition function that is none": (
        lambda s: s.countByValueAndWindow(2, partitionFunc=7),
        "partitionFunc at .* needs a function",
    ),
    "two numbers of partitions": (
        lambda s: s.reduceByKeyAndWindow(
            add, sub, 2, numPartitions=3, partitionFunc=StablePartitioner(2)
        ),
        "reduceByKeyAndWindow at .* has numPartitions 3, but its partitioner has 2",
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_and_partitions(sc: SparkContext, case: str) -> None:
    """They are refused when the stream is defined."""
    define, message = FUNCTIONS[case]
    assert re.match(message, message_of(sc, define))


def test_after_the_start_no_window_can_be_defined(sc: SparkContext) -> None:
    """As for every other stream."""
    with BatchDriver(sc) as driver:
        numbers = driver.input([[1]])
        driver.output(numbers)
        driver.run(1)
        for operation in OPERATIONS.values():
            with pytest.raises(StreamLifecycleError, match="after the StreamingContext has been"):
                operation(numbers, 2)


WITH_INVERSE: dict[str, Callable[..., DStream[Any]]] = {
    "countByWindow": lambda s, window: s.countByWindow(window),
    "countByValueAndWindow": lambda s, window: s.countByValueAndWindow(window),
    "reduceByWindow": lambda s, window: s.reduceByWindow(add, sub, window),
    "reduceByKeyAndWindow": lambda s, window: s.reduceByKeyAndWindow(add, sub, window),
}


@pytest.mark.usefixtures("no_checkpoint_directory")
@pytest.mark.parametrize("rule", ["pyspark", "scala"])
def test_an_inverse_that_is_used_needs_a_checkpoint_directory(sc: SparkContext, rule: Any) -> None:
    """It is required at the start, and the error names the operation; others need none."""
    settings = Settings(window_inverse=rule)
    for name, operation in WITH_INVERSE.items():
        ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=settings)
        operation(ssc.queueStream([]), 5 if rule == "pyspark" else 2).pprint()
        with pytest.raises(InvalidStreamError, match=rf"{name} at .* the checkpoint directory has"):
            ssc.step()
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=settings)
    for name in ("window", "groupByKeyAndWindow", "reduceByWindow", "reduceByKeyAndWindow"):
        OPERATIONS[name](ssc.queueStream([]), 6).foreachRDD(lambda rdd: None)
    if rule == "pyspark":
        for operation in WITH_INVERSE.values():
            operation(ssc.queueStream([]), 4).foreachRDD(lambda rdd: None)
    ssc.step()
    ssc.stop(stopSparkContext=False)


def test_a_filter_that_is_not_used_is_named(
    sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no effect without an inverse, as in Spark; the warning names the alternative."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)]])
        seen = driver.output(
            pairs.reduceByKeyAndWindow(add, None, 2, filterFunc=lambda pair: False)
        )
        driver.run(1)
    assert seen == [[("a", 1)]]
    (warning,) = caplog.messages
    assert re.match(
        rf"filterFunc of reduceByKeyAndWindow at {HERE}:\d+ is ignored without invFunc, as in "
        r"pyspark.streaming; append .filter\(filterFunc\) instead",
        warning,
    )


@pytest.mark.deep
@pytest.mark.parametrize("name", ["groupByKeyAndWindow", "reduceByKeyAndWindow"])
@pytest.mark.parametrize("record", ["ab", (["k"], 1)])
def test_records_that_are_no_pairs(sc: SparkContext, name: str, record: Any) -> None:
    """The error has the record or the key, and the operation."""
    with BatchDriver(sc) as driver:
        driver.output(OPERATIONS[name](driver.input([[record]]), 2))
        with pytest.raises(BatchFailedError) as raised:
            driver.run(1)
    assert re.search(
        rf"{name} at {HERE}:\d+: (expected \(key, value\) pairs, got 'ab'|the key \['k'\] cannot)",
        str(raised.value),
    ), str(raised.value)


@pytest.mark.deep
def test_a_function_that_fails_is_named(sc: SparkContext) -> None:
    """With the operation, its name and line, and the key."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1), ("a", "x")]])
        driver.output(pairs.reduceByKeyAndWindow(add, sub, 2))
        with pytest.raises(BatchFailedError) as raised:
            driver.run(1)
    assert re.search(
        rf"reduce function .*\.add:\d+ of reduceByKeyAndWindow at {HERE}:\d+ failed for key 'a': "
        "TypeError: unsupported operand",
        str(raised.value),
    ), str(raised.value)


# Costs ---------------------------------------------------------------------------------------


def jobs_of(sc: SparkContext, driver: BatchDriver, batches: int) -> list[int]:
    return [count_jobs(sc, lambda: driver.run(1)) for _ in range(batches)]


@pytest.mark.deep
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_output_is_one_job(sc: SparkContext, name: str) -> None:
    """In each batch, the first, an empty one and one without an RDD."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)], [("b", 1)], [], None, [("a", 1)]])
        OPERATIONS[name](pairs, 3).foreachRDD(lambda rdd: rdd.count())
        assert jobs_of(sc, driver, 5) == [1] * 5


@pytest.mark.deep
def test_with_an_inverse_it_is_one_job_too(sc: SparkContext) -> None:
    """One more only when the result is made durable."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)]] * 6)
        windows = pairs.reduceByKeyAndWindow(add, sub, 5).checkpoint(3)
        windows.foreachRDD(lambda rdd: rdd.count())
        assert jobs_of(sc, driver, 6) == [1, 1, 2] * 2


@pytest.mark.deep
def test_batches_between_two_windows_run_no_job(sc: SparkContext) -> None:
    """With a slide of three batches only every third batch has a window."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)]] * 6)
        pairs.reduceByKeyAndWindow(add, sub, 6, 3).foreachRDD(lambda rdd: rdd.count())
        pairs.window(2, 3).foreachRDD(lambda rdd: rdd.count())
        assert jobs_of(sc, driver, 6) == [0, 0, 2] * 2


def seen_rdds(driver: BatchDriver, stream: DStream[Any]) -> list[RDD[Any]]:
    seen: list[RDD[Any]] = []
    stream.foreachRDD(lambda rdd: (rdd.count(), seen.append(rdd)))
    return seen


@pytest.mark.deep
def test_lineage_does_not_grow(sc: SparkContext) -> None:
    """Over two checkpoint intervals it is the same as over one."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", n), (n, 1)] for n in range(12)])
        sizes: list[int] = []
        windows = pairs.reduceByKeyAndWindow(add, sub, 5).checkpoint(2)
        windows.foreachRDD(lambda rdd: sizes.append(len(lineage_of(rdd))))
        driver.run(12)
    assert sizes[6:8] == sizes[8:10] == sizes[10:12]


@pytest.mark.deep
def test_reductions_of_batches_are_not_moved_again(sc: SparkContext) -> None:
    """Each is shuffled once, for any number of reads; windows over them shuffle nothing."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[(n, 1) for n in range(20)]] * 4)
        naive = seen_rdds(driver, pairs.reduceByKeyAndWindow(add, None, 3))
        grouped = seen_rdds(driver, pairs.groupByKeyAndWindow(3))
        driver.run(4)
        for rdds in (naive, grouped):
            assert [shuffles_in(rdd) for rdd in rdds] == [1, 2, 3, 3]
            assert all(rdd.getNumPartitions() == 2 for rdd in rdds)
            assert rdds[-1].partitioner == StablePartitioner(2)


@pytest.mark.deep
def test_the_parents_functions_run_once_for_each_record(sc: SparkContext) -> None:
    """For any number of windows that contain a record."""
    calls = sc.accumulator(0)

    def counted(value: Any) -> Any:
        calls.add(1)
        return value

    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1), ("b", 1)]] * 6)
        for windows in (
            pairs.map(counted).window(4),
            pairs.map(counted).reduceByKeyAndWindow(add, sub, 4, 2),
            pairs.map(counted).reduceByKeyAndWindow(add, sub, 5),
        ):
            windows.foreachRDD(lambda rdd: rdd.count())
        driver.run(6)
    assert calls.value == 3 * 12


@pytest.mark.deep
def test_place_and_number_of_partitions(sc: SparkContext) -> None:
    """As chosen, for the result with and without an inverse."""
    partitioner = StablePartitioner(3, lambda key: key, "identity")
    with BatchDriver(sc) as driver:
        pairs = driver.input([[(n, 1) for n in range(9)]] * 2)
        rdds = [
            seen_rdds(driver, windows)
            for windows in (
                pairs.reduceByKeyAndWindow(add, sub, 5, partitionFunc=partitioner),
                pairs.reduceByKeyAndWindow(add, None, 2, partitionFunc=partitioner),
                pairs.groupByKeyAndWindow(2, partitionFunc=partitioner),
                pairs.map(lambda p: p[0]).countByValueAndWindow(2, partitionFunc=partitioner),
                pairs.reduceByKeyAndWindow(add, sub, 5, 1, 3, partitionFunc=lambda key: key),
            )
        ]
        driver.run(2)
        for seen in rdds:
            assert [sorted(key for key, _ in part) for part in seen[1].glom().collect()] == [
                [0, 3, 6],
                [1, 4, 7],
                [2, 5, 8],
            ]


def test_levels(sc: SparkContext) -> None:
    """A result with an inverse is persisted, in memory and on disk by default."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)]])
        by_default = seen_rdds(driver, pairs.reduceByKeyAndWindow(add, sub, 5))
        chosen = pairs.reduceByKeyAndWindow(add, sub, 5).persist(StorageLevel.MEMORY_AND_DISK)
        by_choice = seen_rdds(driver, chosen)
        driver.run(1)
        assert by_default[0].getStorageLevel() == StorageLevel.MEMORY_AND_DISK_DESER
        assert by_choice[0].getStorageLevel() == StorageLevel.MEMORY_AND_DISK


# Durable, and failures -----------------------------------------------------------------------


@pytest.mark.deep
def test_a_durable_result_is_committed(sc: SparkContext, tmp_path: Path) -> None:
    """Written at each interval, under the name of the operation; later windows read the files."""
    with BatchDriver(sc, checkpoint=str(tmp_path), settings=SCALA) as driver:
        pairs = driver.input([[("a", 2**n)] for n in range(8)])
        windows = pairs.reduceByKeyAndWindow(add, sub, 4, 2, 3).checkpoint(4)
        seen = driver.output(windows)
        driver.run(8)
    (directory,) = tmp_path.glob("stream-*")
    log = CommitLog(LocalFiles(str(directory)))
    copied = [record.batch_time_ms for record in log.records() if record.snapshots]
    assert copied == [4000, 8000]
    (uid,) = log.read(8000).snapshots
    assert uid.startswith("reduceByKeyAndWindow-")
    assert seen[1::2] == [[("a", 3)], [("a", 15)], [("a", 60)], [("a", 240)]]


@pytest.mark.deep
def test_a_copy_that_failed_is_made_up_for_with_the_next_window(
    sc: SparkContext, tmp_path: Path
) -> None:
    """Batches between two windows keep it due."""
    broken = tmp_path / "broken"

    def add_unless_broken(v: int, w: int) -> int:
        if broken.exists():
            raise RuntimeError("broken")
        return v + w

    with BatchDriver(sc, checkpoint=str(tmp_path), settings=SCALA) as driver:
        pairs = driver.input([[("a", 1)]] * 8)
        windows = pairs.reduceByKeyAndWindow(add_unless_broken, sub, 4, 2).checkpoint(4)
        seen = driver.output(windows)
        driver.run(3)
        broken.touch()
        with pytest.raises(BatchFailedError, match="RuntimeError: broken"):
            driver.run(1)
        broken.unlink()
        driver.run(3)
    (directory,) = tmp_path.glob("stream-*")
    records = CommitLog(LocalFiles(str(directory))).records()
    assert [record.batch_time_ms for record in records if record.snapshots] == [6000]
    assert seen == [None, [("a", 2)], None, None, None, [("a", 4)], None]


@pytest.mark.deep
def test_windows_can_be_made_durable(sc: SparkContext) -> None:
    """Also one without an inverse, and one over reductions; both are read from files then."""
    with BatchDriver(sc) as driver:
        pairs = driver.input([[("a", n)] for n in range(6)])
        plain = driver.output(pairs.window(2).checkpoint(2))
        naive = driver.output(pairs.reduceByKeyAndWindow(add, None, 2).checkpoint(1).window(2))
        driver.run(6)
    assert plain[1:] == [[("a", n - 1), ("a", n)] for n in range(1, 6)]
    assert naive[2:] == [[("a", 2 * n - 3), ("a", 2 * n - 1)] for n in range(2, 6)]


@pytest.mark.deep
@pytest.mark.parametrize("slide", [1, 3])
def test_a_failed_batch_is_not_lost(sc: SparkContext, slide: int) -> None:
    """Its records are in later windows as soon as the function works."""
    batches: list[Any] = [[("a", 2**n)] for n in range(9)]

    def run(fails_at: set[int]) -> tuple[list[Any], list[int]]:
        failed = []
        with BatchDriver(sc, settings=SCALA) as driver:

            def guarded(time: Any, rdd: RDD[Any]) -> RDD[Any]:
                if len(seen) + 1 in fails_at:
                    raise RuntimeError("the source is away")
                return rdd

            pairs = driver.input(batches).transform(guarded)
            seen = driver.output(
                pairs.reduceByKeyAndWindow(add, sub, 4, slide).checkpoint(2 * slide)
            )
            for number in range(1, 10):
                try:
                    driver.run(1)
                except BatchFailedError:
                    failed.append(number)
        return seen, failed

    expected, none = run(set())
    found, failed = run({4, 5, 6})
    assert none == []
    assert failed
    assert all(found[number - 1] is None for number in failed)
    assert [batch for n, batch in enumerate(found, 1) if n not in failed] == [
        batch for n, batch in enumerate(expected, 1) if n not in failed
    ]


@pytest.mark.deep
def test_lost_blocks_are_computed_again(sc: SparkContext) -> None:
    """RDDs that Spark dropped from memory are recomputed, with the same results."""
    with BatchDriver(sc, settings=SCALA) as driver:
        pairs = driver.input([[("a", 2**n), (n, 1)] for n in range(8)])
        windows = pairs.reduceByKeyAndWindow(add, sub, 3, filterFunc=lambda p: p[1] != 0)
        seen = driver.output(windows)
        for _ in range(8):
            driver.run(1)
            engine = driver.context._engine
            assert engine is not None
            for node in engine.plan.nodes:
                for rdd in engine.rdds.between(node, 0, 100_000):
                    level = rdd.getStorageLevel()
                    if isinstance(rdd, BlockPairsRDD) and level.useMemory:
                        rdd.blocks._jrdd.unpersist(True)
                        rdd.blocks._jrdd.persist(sc._getJavaStorageLevel(level))
    sums = [sum(2**k for k in range(max(0, n - 2), n + 1)) for n in range(8)]
    assert [dict(batch or [])["a"] for batch in seen] == sums
    assert [len(batch or []) for batch in seen] == [2, 3, 4, 4, 4, 4, 4, 4]


# Results -------------------------------------------------------------------------------------

PAIRS = st.tuples(st.sampled_from(["a", "b", "", None, 7, ("a", 1)]), st.integers(-3, 3))
BATCHES = st.lists(st.none() | st.lists(PAIRS, max_size=6), min_size=1, max_size=8)


@pytest.mark.deep
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(BATCHES, st.integers(1, 6), st.integers(1, 3))
def test_incremental_and_anew_are_the_same(
    sc: SparkContext, batches: list[Any], window: int, slide: int
) -> None:
    """Over random batches, windows and slides: with an inverse, without, and by a plain sum."""
    with BatchDriver(sc, settings=SCALA) as driver:
        pairs = driver.input(batches).mapValues(lambda value: (value, 1))
        incremental = driver.output(
            pairs.reduceByKeyAndWindow(
                lambda v, w: (v[0] + w[0], v[1] + w[1]),
                lambda v, w: (v[0] - w[0], v[1] - w[1]),
                window,
                slide,
                filterFunc=lambda pair: pair[1][1] > 0,
            ).checkpoint(2 * slide)
        )
        anew = driver.output(
            pairs.reduceByKeyAndWindow(lambda v, w: (v[0] + w[0], v[1] + w[1]), None, window, slide)
        )
        plain = driver.output(pairs.window(window, slide))
        driver.run(len(batches))
    for end in range(1, len(batches) + 1):
        if end % slide:
            assert incremental[end - 1] is anew[end - 1] is plain[end - 1] is None
            continue
        wanted: dict[Any, tuple[int, int]] = {}
        for batch in batches[max(0, end - window) : end]:
            for key, value in batch or []:
                total, number = wanted.get(key, (0, 0))
                wanted[key] = (total + value, number + 1)
        assert dict(incremental[end - 1] or []) == wanted
        assert dict(anew[end - 1] or []) == wanted
        assert len(plain[end - 1] or []) == sum(number for _, number in wanted.values())


def test_lists_are_in_the_order_of_their_batches(sc: SparkContext) -> None:
    """Over slides of several batches, and for values that are lists."""
    batches = [[("a", [n])] for n in range(6)]
    found = run_batches(sc, batches, lambda pairs: pairs.groupByKeyAndWindow(4, 2).mapValues(list))
    assert found[1::2] == [
        [("a", [[0], [1]])],
        [("a", [[0], [1], [2], [3]])],
        [("a", [[2], [3], [4], [5]])],
    ]


def test_a_value_is_not_shared_between_windows(sc: SparkContext) -> None:
    """A function that changes its first argument in place changes no other window."""
    batches = [[("a", [n]), ("b", [n])] for n in range(5)]
    found = run_batches(
        sc, batches, lambda pairs: pairs.reduceByKeyAndWindow(operator.iadd, None, 3)
    )
    assert [dict(batch or []) for batch in found] == [
        {key: list(range(max(0, n - 2), n + 1)) for key in "ab"} for n in range(5)
    ]


@pytest.mark.deep
def test_nothing_is_logged(sc: SparkContext, caplog: pytest.LogCaptureFixture) -> None:
    """Windows of all kinds log no warning."""
    with caplog.at_level(logging.WARNING), BatchDriver(sc) as driver:
        pairs = driver.input([[("a", 1)], [], None, [("b", 1)]])
        for operation in OPERATIONS.values():
            driver.output(operation(pairs, 3, 2))
        driver.run(4)
    assert caplog.records == []
