"""The table of deliberate differences is true, row by row."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import SparkContext

from tests.conformance.comparison import compare_alone
from tests.conformance.differences import DIFFERENCES, Difference
from tests.conformance.programs import is_ordered
from tests.conformance.recording import Recording
from tests.conformance.runs import Run


@pytest.mark.deep
@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: row.name)
def test_difference_shows(sc: SparkContext, recording: Recording, row: Difference) -> None:
    """Each side does what the row says of it: a difference that is gone leaves the table."""
    found = compare_alone(sc, recording, row.example)
    assert arranged(row, batches(row, found.theirs)) == arranged(row, row.their_batches)
    assert arranged(row, batches(row, found.ours)) == arranged(row, row.our_batches)
    assert not found.equal
    assert row.covers(row.example)


def test_rows_are_different() -> None:
    """No two rows have one name."""
    assert len({row.name for row in DIFFERENCES}) == len(DIFFERENCES)


def batches(row: Difference, run: Run) -> list[Any]:
    if not row.slices:
        return list(run.batches)
    (rdds,) = run.slices
    return list(rdds)


def arranged(row: Difference, batches: list[Any]) -> list[Any]:
    ordered = is_ordered(row.example.output)
    return [sorted(b, key=repr) if isinstance(b, list) and not ordered else b for b in batches]
