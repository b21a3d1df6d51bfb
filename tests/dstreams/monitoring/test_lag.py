"""The lag is what no committed batch has read, whether it waits in a batch or not."""

from __future__ import annotations

from typing import Any

from dstreams.kafka.offsets import OffsetRange, TopicPartition
from dstreams.monitoring.events import InputInfo, PendingBatch
from dstreams.monitoring.metrics import families
from dstreams.monitoring.status import RunningBatch, StreamStatus
from dstreams.monitoring.web.documents import ApplicationFacts, status_document
from tests.support.statuses import CLICKS, SOCKET, a_batch, a_status

FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def planned(number: int, lag: dict[TopicPartition, int] | None, *ranges: int) -> PendingBatch:
    """A batch that reads from one offset to the next of both partitions."""
    offsets = [OffsetRange("clicks", at, *ranges[2 * at : 2 * at + 2]) for at in range(2)]
    metadata: dict[str, Any] = {"offsets": offsets} | ({} if lag is None else {"lag": lag})
    inputs = (InputInfo(0, CLICKS, None, "", metadata), InputInfo(1, SOCKET, None, ""))
    return PendingBatch(number, 1000 * number, inputs, (), 1000 * number)


def behind(**changes: Any) -> tuple[StreamStatus, dict[TopicPartition, int], int]:
    status = a_status(**changes)
    [lag] = status.lags
    assert (lag.stream_id, lag.name) == (0, CLICKS)
    return status, dict(lag.partitions), lag.in_batches


def test_batches_that_wait_and_run_count() -> None:
    """From what is committed up to the newest end that a plan has seen."""
    running = RunningBatch(planned(1, {FIRST: 9, SECOND: 9}, 10, 20, 0, 5))
    waiting = (
        planned(2, {FIRST: 1, SECOND: 9}, 20, 50, 5, 5),
        planned(3, {FIRST: 40}, 50, 51, 5, 7),
    )
    status, lag, in_batches = behind(running=running, waiting=waiting)
    assert lag == {FIRST: 51 - 10 + 40, SECOND: 7}
    assert in_batches == 41 + 7
    [family] = [one for one in families([status]) if one.name == "dstreams_source_lag_records"]
    assert {one.labels["partition"]: one.value for one in family.samples} == {"0": 81, "1": 7}
    facts = ApplicationFacts("app", "app-1", None, "0", "4", 0)
    [stream] = status_document(facts, [status], 0, lambda _: 1)["streams"]
    assert stream["lags"] == [
        {
            "stream_id": 0,
            "name": CLICKS,
            "records": 88,
            "in_batches": 48,
            "partitions": {"clicks-0": 81, "clicks-1": 7},
        }
    ]


def test_after_the_newest_batch() -> None:
    """Nothing waits: what the newest batch left."""
    _, lag, in_batches = behind(running=None, waiting=(), recent=(a_batch(0), a_batch(1)))
    assert (lag, in_batches) == ({FIRST: 7, SECOND: 3}, 0)


def test_brokers_that_are_away() -> None:
    """A batch that was planned without them does not know the ends: the one before it does."""
    away = planned(3, None, 50, 50, 7, 7)
    waiting = (planned(2, {FIRST: 4}, 20, 50, 5, 7), away)
    assert behind(running=None, waiting=waiting)[1:] == ({FIRST: 34, SECOND: 2}, 32)
    assert behind(running=None, waiting=(away,))[1:] == ({FIRST: 7, SECOND: 3}, 0)


def test_sources_without_ends() -> None:
    """A socket has none."""
    assert a_status(recent=(a_batch(0, inputs=()),), running=None, waiting=()).lags == ()
