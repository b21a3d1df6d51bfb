"""A limit over all batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.structured.operators.limit import LimitRows, plan_limit
from dstreams.structured.operators.physical_operator import RDDScanExec
from tests.dstreams.structured.operators.local_query import LocalStore
from tests.dstreams.structured.operators.query import SparkQuery


def test_the_first_rows_of_all_batches() -> None:
    """Rows pass until the limit, which counts those of earlier batches."""
    store = LocalStore()
    batches = [["a", "b"], [], ["c", "d"], ["e"]]
    found = [store.batch(LimitRows(3), [((), row) for row in batch]) for batch in batches]
    assert [batch.rows for batch in found] == [["a", "b"], [], ["c"], []]
    assert [batch.counts for batch in found] == [
        (1, 1, 0, 0),
        (1, 0, 0, 0),
        (1, 1, 0, 0),
        (1, 0, 0, 0),
    ]


def test_on_rdds(sc: SparkContext, tmp_path: Path) -> None:
    """All partitions together give no more rows than the limit."""
    query = SparkQuery(sc, plan_limit(RDDScanExec(None), 3, numPartitions=2), tmp_path)
    assert len(query.add([1, 2])) == 2
    assert len(query.add([3, 4, 5, 6])) == 1
    assert query.add([7]) == []


def test_a_negative_limit() -> None:
    """A negative limit is rejected when the plan is made."""
    with pytest.raises(InvalidStreamError, match="limit of -1 rows must not be negative"):
        plan_limit(RDDScanExec(None), -1, numPartitions=2)
