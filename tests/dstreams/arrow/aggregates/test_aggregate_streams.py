"""Aggregates of streams of blocks: of each batch, of windows, and running ones over restarts."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark import RDD, SparkContext

from dstreams import BatchFailedError, InvalidStreamError, StreamingContext
from dstreams.testing import run_batches

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
pc = pytest.importorskip("pyarrow.compute")
pytest.importorskip("numpy", reason="pip install 'dstreams[arrow]'")

from dstreams.arrow.aggregates import Count, First, Last, Max, Mean, Sum, TopK  # noqa: E402


class Sale(NamedTuple):
    shop: str | None
    cents: int


BATCHES: list[list[Any] | None] = [
    [("a", 1), ("b", 2), ("a", 3)],
    [],
    [(None, 7), ("c", 1), ("b", -2)],
    None,
    [("a", 10)],
]
WHAT: dict[str, Any] = {
    "total": Sum("cents"),
    "sales": Count(),
    "mean": Mean("cents"),
    "first": First("cents"),
    "last": Last("cents"),
    "top": TopK("cents", 2),
}


def of_plain_rows(rows: list[tuple[Any, int]]) -> list[tuple[Any, ...]]:
    """The results of WHAT for rows."""
    made = []
    for key in dict.fromkeys(key for key, _ in rows):
        cents = [number for of, number in rows if of == key]
        top = sorted(cents, reverse=True)[:2]
        mean = sum(cents) / len(cents)
        made.append((key, sum(cents), len(cents), mean, cents[0], cents[-1], top))
    return sorted(made, key=repr)


def in_order(batches: list[list[Any] | None]) -> list[Any]:
    return [batch if batch is None else sorted(batch, key=repr) for batch in batches]


def rows_upto(batch: int, batches: int = 99) -> list[Any]:
    """The rows of batches up to a number."""
    return [row for rows in BATCHES[max(0, batch + 1 - batches) : batch + 1] for row in rows or []]


@pytest.mark.deep
def test_of_each_batch(sc: SparkContext) -> None:
    """Each key of a batch is there once; a batch without records has no keys."""
    seen = run_batches(
        sc, BATCHES, lambda rows: rows.toBlocks(Sale).aggregateByKey("shop", **WHAT).toRows()
    )
    expected = [None if batch is None else of_plain_rows(batch) for batch in BATCHES]
    assert in_order(seen) == expected


@pytest.mark.deep
@pytest.mark.parametrize("partitions", [1, 3])
def test_of_windows(sc: SparkContext, partitions: int) -> None:
    """A window has the records of its batches in their order, and no other ones."""
    seen = run_batches(
        sc,
        BATCHES,
        lambda rows: (
            rows.toBlocks(Sale).aggregateByKeyAndWindow("shop", 3, 1, partitions, **WHAT).toRows()
        ),
    )
    assert in_order(seen) == [of_plain_rows(rows_upto(number, 3)) for number in range(5)]


def test_a_window_that_slides_by_two(sc: SparkContext) -> None:
    """A slide that is longer than a batch gives a result in every second one."""
    seen = run_batches(
        sc,
        BATCHES,
        lambda rows: rows.toBlocks(Sale).aggregateByKeyAndWindow("shop", 4, 2, **WHAT).toRows(),
    )
    results = [batch for batch in seen if batch is not None]
    assert in_order(results) == [of_plain_rows(rows_upto(number, 4)) for number in (1, 3)]


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["complete", "update"])
def test_running(sc: SparkContext, mode: Any) -> None:
    """All keys, or those that have records."""
    seen = run_batches(
        sc,
        BATCHES,
        lambda rows: (
            rows.toBlocks(Sale).aggregateStateByKey("shop", outputMode=mode, **WHAT).toRows()
        ),
    )
    for number, batch in enumerate(seen):
        expected = of_plain_rows(rows_upto(number))
        touched = {key for key, _ in BATCHES[number] or []}
        kept = [row for row in expected if mode == "complete" or row[0] in touched]
        assert sorted(batch or [], key=repr) == kept


def test_snapshots_behind_updates(sc: SparkContext) -> None:
    """All keys are there behind those with records; a key of nulls alone is one."""
    rows = [[("a", None)], [("b", 1)]]
    schema = {"shop": str, "cents": pa.int64()}

    def snapshots(stream: Any) -> Any:
        return (
            stream.toBlocks(schema)
            .aggregateStateByKey("shop", outputMode="update", most=Max("cents"))
            .stateSnapshots()
            .toRows()
        )

    assert in_order(run_batches(sc, rows, snapshots)) == [
        [("a", None)],
        [("a", None), ("b", 1)],
    ]


def recent(block: Any) -> Any:
    """Keep rows that are at most an hour older than the newest."""
    hours = block.column("hour")
    return pc.greater_equal(hours, pc.subtract(pc.max(hours), 1))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("complete", [[(1, 5)], [(1, 5), (2, 5)], [(2, 5), (3, 5)], [(2, 5), (3, 6)]]),
        ("update", [[(1, 5)], [(2, 5)], [(3, 5)], [(3, 6)]]),
    ],
)
def test_keys_that_are_dropped(sc: SparkContext, mode: Any, expected: list[Any]) -> None:
    """A key that the filter drops is in no output, also where a record comes for it."""
    batches = [[(1, 5)], [(2, 5)], [(3, 5), (1, 7)], [(3, 1)]]

    def hours(rows: Any) -> Any:
        totals = rows.toBlocks({"hour": int, "cents": int}).aggregateStateByKey(
            "hour", 1, recent, outputMode=mode, total=Sum("cents")
        )
        return totals.toRows()

    assert in_order(run_batches(sc, batches, hours)) == expected


def test_a_filter_that_gives_something_else(sc: SparkContext) -> None:
    """The error has the type that a filter must return."""

    def dropped(rows: Any) -> Any:
        blocks = rows.toBlocks(Sale)
        return blocks.aggregateStateByKey("shop", 1, lambda _: [True], total=Sum("cents"))

    with pytest.raises(
        BatchFailedError, match=r"of aggregateStateByKey at .* must return a pyarrow array"
    ):
        run_batches(sc, BATCHES[:1], dropped)


@pytest.mark.deep
def test_a_restart_goes_on(sc: SparkContext, tmp_path: Path) -> None:
    """Running results and windows are the same with a restart between any two batches."""
    checkpoint, seen = str(tmp_path / "checkpoint"), tmp_path / "seen"

    def define() -> StreamingContext:
        ssc = StreamingContext(sc, 1)
        ssc.checkpoint(checkpoint)
        rows = ssc.queueStream([batch or [] for batch in BATCHES], replayable=True)
        blocks = rows.toBlocks(Sale)
        running = blocks.aggregateStateByKey("shop", uid="totals", **WHAT).checkpoint(2)
        running.toRows().foreachRDD(partial(write_line, seen))
        window = blocks.aggregateByKeyAndWindow("shop", 3, **WHAT)
        window.toRows().foreachRDD(partial(write_line, seen))
        return ssc

    for batches in (1, 2, 2):
        ssc = StreamingContext.getOrCreate(checkpoint, define)
        ssc.step(batches)
        ssc.stop(stopSparkContext=False)
    lines = [ast.literal_eval(line) for line in seen.read_text(encoding="utf-8").splitlines()]
    assert in_order(lines[::2]) == [of_plain_rows(rows_upto(number)) for number in range(5)]
    assert in_order(lines[1::2]) == [of_plain_rows(rows_upto(number, 3)) for number in range(5)]


def write_line(path: Path, rdd: RDD[Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        print(rdd.collect(), file=file)


def test_the_order_of_partitions(sc: SparkContext) -> None:
    """First and last are by the order of the records, however the shuffle delivers them."""
    rows = [("a", number) for number in range(1000)]
    rdd = sc.parallelize(rows, 8)
    made: list[Any] = []
    ssc = StreamingContext(sc, 1)
    stream = ssc.queueStream([rdd], replayable=False).toBlocks(Sale)
    stream.aggregateByKey("shop", first=First("cents"), last=Last("cents")).toRows().foreachRDD(
        lambda batch: made.extend(batch.collect())
    )
    ssc.step(1)
    ssc.stop(stopSparkContext=False)
    assert made == [("a", 0, 999)]


def test_one_shuffle_of_few_rows(sc: SparkContext) -> None:
    """The shuffle moves one row for each key of a partition."""
    ssc = StreamingContext(sc, 1)
    rows = ssc.queueStream([sc.parallelize([("a", 1)] * 5000, 4)])
    plans: list[str] = []
    rows.toBlocks(Sale).aggregateByKey("shop", total=Sum("cents")).foreachRDD(
        lambda rdd: plans.append((rdd.toDebugString() or b"").decode())
    )
    ssc.step(1)
    ssc.stop(stopSparkContext=False)
    assert plans[0].count("ShuffledRDD") == 1


def test_a_sum_beyond_its_range_ends_the_batch(sc: SparkContext) -> None:
    """The operation, the column and the key are named."""
    with pytest.raises(BatchFailedError, match=r"column 'cents' for the key.*'a'"):
        run_batches(
            sc,
            [[("a", 2**62), ("a", 2**62)]],
            lambda rows: rows.toBlocks(Sale).aggregateByKey("shop", total=Sum("cents")),
        )


def test_bad_arguments(sc: SparkContext) -> None:
    """Invalid arguments are rejected at the definition, with its line."""
    blocks = StreamingContext(sc, 1).queueStream([]).toBlocks(Sale)
    with pytest.raises(InvalidStreamError, match=r"aggregateByKey at .*:\d+.*column 'price'"):
        blocks.aggregateByKey("shop", total=Sum("price"))
    with pytest.raises(InvalidStreamError, match=r"outputMode .* is 'append'; use 'complete'"):
        blocks.aggregateStateByKey("shop", outputMode="append", total=Sum("cents"))  # type: ignore[arg-type]
    with pytest.raises(InvalidStreamError, match="filterFunc"):
        blocks.aggregateStateByKey("shop", filterFunc=7, total=Sum("cents"))  # type: ignore[arg-type]
    with pytest.raises(InvalidStreamError, match="windowDuration"):
        blocks.aggregateByKeyAndWindow("shop", 1.5, total=Sum("cents"))
    with pytest.raises(InvalidStreamError, match=r"numPartitions .* use a whole number of at leas"):
        blocks.aggregateByKey("shop", numPartitions=Sum("cents"))  # type: ignore[arg-type]
    assert blocks.aggregateByKey("shop", mean=Mean("cents")).schema.names == ["shop", "mean"]
