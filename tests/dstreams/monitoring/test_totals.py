"""Counts of a run: they grow with each batch. No Spark."""

from __future__ import annotations

import pytest

from dstreams.monitoring.events import BatchInfo, InputInfo, OutputOperationInfo, StateOperatorInfo
from dstreams.monitoring.status import BUCKETS_S, Histogram, Totals


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0, 0), (0.01, 0), (0.0101, 1), (1.0, 6), (60, 11), (60.1, 12), (10**6, 12)],
)
def test_a_time_is_in_the_first_bucket_whose_bound_it_does_not_exceed(
    seconds: float, bucket: int
) -> None:
    """As Prometheus counts; the last bucket has no bound."""
    histogram = Histogram().with_time(seconds)
    assert [at for at, count in enumerate(histogram.counts) if count] == [bucket]
    assert histogram.sum_s == seconds
    assert len(histogram.counts) == len(BUCKETS_S) + 1


def test_totals_grow_with_each_batch() -> None:
    """By outcome, source, output and operator; a source that is read twice is counted once."""
    metrics = {"numRemovedStateRows": 2, "numRowsDroppedByWatermark": 1, "commitTimeMs": 1500}
    batch = BatchInfo(
        batch_id=0,
        batch_time_ms=1000,
        records={"a": 5, "b": None},
        submitted_ms=1000,
        started_ms=1100,
        completed_ms=3100,
        outputs=(OutputOperationInfo(0, "save", 1, 2, "no disk"),),
        outcome="failed",
        failure="no disk",
        inputs=(
            InputInfo(0, "a", 2, "", {"rejected": 1}),
            InputInfo(1, "a", 3, ""),
            InputInfo(2, "b", None, ""),
        ),
        states=(StateOperatorInfo("counts", "map", 2, metrics),),
    )
    totals = Totals().with_batch(batch).with_batch(batch)
    assert totals.batches == {"failed": 2}
    assert totals.records == {"a": 10, "b": 0}
    assert totals.rejected == {"a": 2, "b": 0}
    assert totals.output_failures == {"save": 2}
    assert totals.processing.sum_s == 4
    assert totals.scheduling_delay.sum_s == pytest.approx(0.2)
    assert totals.keys_removed == {"counts": 4}
    assert totals.late_records == {"counts": 2}
    assert totals.state_commit_s == {"counts": 3}
