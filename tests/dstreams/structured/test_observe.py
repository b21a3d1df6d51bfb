"""Metrics of ``observe`` in the progress of a query."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.structured import (
    StreamingDataset,
    StreamingQueryException,
    StreamSession,
    UnsupportedOperationError,
    window,
)
from dstreams.structured.api.aggregates import (
    Average,
    CollectList,
    Count,
    CountDistinct,
    Max,
    Sum,
)
from tests.dstreams.structured.runs import QueryRun


class Sale(NamedTuple):
    """A record with a time in seconds."""

    second: int
    item: str
    price: int

    def time(self) -> int:
        return self.second * 1000


def observed(rows: StreamingDataset[Any]) -> StreamingDataset[Any]:
    """Observe records, and the rows of an aggregation over them."""
    counts = (
        rows.observe("sales", Count(), Sum("price"), items=CountDistinct("item"))
        .withWatermark(Sale.time, "0 seconds")
        .observe("events", newest=Max("second"))
        .groupByKey(window(Sale.time, "10 seconds"), "item")
        .count()
    )
    return counts.observe("results", rows=Count(), records=Sum("count"))


BATCHES: list[tuple[list[Sale], list[tuple[Any, ...]]]] = [
    (
        [Sale(1, "tea", 3), Sale(2, "cup", 5), Sale(3, "tea", 4)],
        [(3, 12, 2, 3, 0, None), (0, None, 0, None, 0, None)],
    ),
    # The batch without data is past the end of the first window.
    ([Sale(12, "tea", 1)], [(1, 1, 1, 12, 0, None), (0, None, 0, None, 2, 3)]),
]
"""Records, and the metrics of the batch with them and of the one without data that follows."""


def of_batch(values: tuple[Any, ...]) -> dict[str, Any]:
    count, total, items, newest, rows, records = values
    return {
        "sales": {"count": count, "sum_price": total, "items": items},
        "events": {"newest": newest},
        "results": {"rows": rows, "records": records},
    }


def test_metrics_of_batches(session: StreamSession) -> None:
    """Each observation has the rows at its place, in each batch anew, also in one without data."""
    run = QueryRun(session, observed, "append")
    expected: list[dict[str, Any]] = []
    for sales, batches in BATCHES:
        run.add(*sales)
        expected += map(of_batch, batches)
        assert [one.observedMetrics for one in run.query.recentProgress] == expected
    progress = run.query.lastProgress
    assert progress is not None
    assert progress.observedMetrics["results"].records == 3
    assert json.loads(progress.json)["observedMetrics"] == expected[-1]


def test_rows_that_are_computed_twice_count_once(session: StreamSession) -> None:
    """A partition counts as the job that read most of it has seen it."""
    words = session.memoryStream(partitions=2)
    dataset = words.toDS().observe("words", all=CollectList(), mean=Average(len))

    def output(rows: Any, batch_id: int) -> None:
        rows.take(1)
        rows.count()
        rows.collect()

    query = dataset.writeStream.foreachBatch(output).start()
    words.addData("a", "bbb", "cc")
    query.processAllAvailable()
    assert query.lastProgress is not None
    metrics = query.lastProgress.observedMetrics["words"]
    assert (sorted(metrics.all), metrics.mean) == (["a", "bbb", "cc"], 2.0)


def test_an_observation_that_fails(session: StreamSession) -> None:
    """The batch fails, with the record and the name of the observation."""
    run = QueryRun(session, lambda rows: rows.observe("sales", Sum("price")), "append")
    with pytest.raises(StreamingQueryException, match=r"observe\('sales'\).*no field 'price'"):
        run.add("no sale")


WRONG: dict[str, tuple[Callable[[StreamingDataset[Any]], Any], str]] = {
    "name": (lambda rows: rows.observe("", Count()), "name of observe must be a non-empty str"),
    "nothing": (lambda rows: rows.observe("a"), "observe needs at least one aggregator"),
    "no aggregator": (lambda rows: rows.observe("a", len), "aggregators of observe must have zero"),
    "same metric": (lambda rows: rows.observe("a", Count(), Count()), "several metrics named 'cou"),
    "same name": (
        lambda rows: rows.observe("a", Count()).map(str).observe("a", Count()).explain(),
        "two observations are named 'a'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_observations(session: StreamSession, name: str) -> None:
    """What cannot be observed is refused before the query starts."""
    make, message = WRONG[name]
    with pytest.raises(InvalidStreamError, match=message):
        make(session.memoryStream().toDS())


def test_batch_datasets_have_no_progress(session: StreamSession) -> None:
    """Observing one is refused, with the aggregation to use."""
    rows = session.createDataset([1, 2]).observe("all", Count())
    with pytest.raises(UnsupportedOperationError, match=r"use groupByKey\(\).agg\(...\)"):
        rows.collect()
