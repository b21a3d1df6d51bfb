"""The number of retained batches, and the details of each. No Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dstreams.monitoring.events import BatchInfo, InputInfo, OffsetProgress, OutputOperationInfo
from dstreams.monitoring.monitor import MOST_FACTS, RecentBatches

PARTITIONS = 1000
OF_A_BATCH = 4 * PARTITIONS + 8 * PARTITIONS // 100


def of_kafka(number: int) -> BatchInfo:
    offsets = {"clicks": {str(at): number for at in range(PARTITIONS)}}
    given = InputInfo(
        0,
        "kafka",
        10,
        "offsets " * PARTITIONS,
        {"lag": {("clicks", at): number for at in range(PARTITIONS)}, "rejected": 3},
        OffsetProgress(offsets, offsets, offsets, {}),
    )
    return BatchInfo(number, number, {"kafka": 10}, 0, 0, 0, (), "succeeded", None, (given,))


def small(number: int) -> BatchInfo:
    given = InputInfo(0, "queue", 1, "one", {}, OffsetProgress(number, number + 1, number + 1, {}))
    return BatchInfo(number, number, {"queue": 1}, 0, 0, 0, (), "succeeded", None, (given,))


def test_offsets_of_many_partitions_are_kept_of_the_newest_batches_alone() -> None:
    """Older batches stay, without what would fill the memory."""
    recent, whole = RecentBatches(100), MOST_FACTS // OF_A_BATCH
    for number in range(90):
        recent.append(of_kafka(number))
    batches = recent.all()
    assert [batch.batch_id for batch in batches] == list(range(90))
    assert batches[-whole:] == tuple(map(of_kafka, range(90 - whole, 90)))
    for batch in batches[:-whole]:
        [given] = batch.inputs
        assert (given.offsets, given.metadata, given.records) == (None, {"rejected": 3}, 10)
        assert len(given.description) < 600


def test_batches_that_are_forgotten_make_room_for_the_offsets_of_others() -> None:
    """The bound is on what is kept at a time."""
    few = 10
    recent = RecentBatches(few)
    for number in range(200):
        recent.append(of_kafka(number))
    assert recent.all() == tuple(map(of_kafka, range(200 - few, 200)))


def test_of_what_has_ended_fewer_offsets_are_kept() -> None:
    """An ended stream keeps fewer offsets."""
    recent = RecentBatches(100)
    for number in range(50):
        recent.append(of_kafka(number))
    recent.ended()
    whole = MOST_FACTS // 20 // OF_A_BATCH
    has_offsets = [batch.inputs[0].offsets is not None for batch in recent.all()]
    assert has_offsets == [False] * (50 - whole) + [True] * whole


def test_few_offsets_are_kept_of_all_batches() -> None:
    """The bound takes nothing from a stream that is small."""
    recent = RecentBatches(1000)
    for number in range(1500):
        recent.append(small(number))
    assert recent.all() == tuple(map(small, range(500, 1500)))
    assert recent.newest() == small(1499)


def test_the_newest_batch_is_whole_however_large() -> None:
    """It is the one that is looked at."""
    huge = of_kafka(0)
    [given] = huge.inputs
    lag = {("clicks", at): 0 for at in range(MOST_FACTS + 1)}
    huge = replace(huge, inputs=(replace(given, metadata={"lag": lag}),))
    recent = RecentBatches(10)
    assert recent.newest() is None
    for _ in range(3):
        recent.append(huge)
        assert recent.newest() == huge


def test_what_failed_is_told_without_the_secrets_of_urls() -> None:
    """Of a batch as of its outputs."""
    failure = "OSError: s3://me:topsecret@bucket/x?sig=abcdef refused"
    output = OutputOperationInfo(0, "save", 0, 1, failure)
    recent = RecentBatches(1)
    recent.append(replace(small(0), outputs=(output,), outcome="failed", failure=failure))
    [batch] = recent.all()
    hidden = "OSError: s3://me:***@bucket/x?sig=*** refused"
    assert (batch.failure, batch.outputs[0].failure) == (hidden, hidden)


@pytest.mark.deep
def test_long_failures_are_kept_of_the_newest_batches_alone() -> None:
    """Long errors of older batches are cut, in the batch and in its outputs."""
    failure = "x" * 1_000_000
    recent = RecentBatches(1000)
    for number in range(50):
        output = OutputOperationInfo(0, "save", 0, 1, failure)
        recent.append(replace(small(number), outputs=(output,), outcome="failed", failure=failure))
    lengths = [len(batch.failure or "") for batch in recent.all()]
    whole = MOST_FACTS // 20_000
    assert lengths[-whole:] == [1_000_000] * whole
    assert set(lengths[:-whole]) == {503}
    assert {len(batch.outputs[0].failure or "") for batch in recent.all()[:-whole]} == {503}
