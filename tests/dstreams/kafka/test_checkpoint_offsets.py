"""Compare offsets of a checkpoint and of brokers, without either."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkpoint import BeginRecord, CommitRecord, RecoveryPlan
from dstreams.kafka.offsets import Position, TopicPartition
from dstreams.kafka.offsets_report import (
    BrokerOffsets,
    PartitionLag,
    ReadInput,
    inputs_read,
    partition_lags,
)

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))
READ = ReadInput("in", Position({T0: 5, T1: 7}, {"t": "A"}), Position({T0: 9, T1: 7}, {"t": "A"}))
BROKERS = BrokerOffsets({"t": "A"}, {T0: 0, T1: 2}, {T0: 15, T1: 7})


def begun(time_ms: int, **ends: object) -> BeginRecord:
    return BeginRecord("s", 1, time_ms, 1, {uid: {"end": end} for uid, end in ends.items()})


def plan(last_ms: int | None, *begins: BeginRecord) -> RecoveryPlan:
    last = None if last_ms is None else CommitRecord("s", 1, last_ms, 1, {}, {})
    by_time = {record.batch_time_ms: record for record in begins}
    return RecoveryPlan("s", last, (), by_time, (), {}, (), {})


def test_committed_and_begun() -> None:
    """The newest committed batch and the newest begun one say how far each input is."""
    first, second = Position({T0: 5}, {"t": "A"}), Position({T0: 9}, {"t": "A"})
    batches = (begun(1000, a=first.to_json(), b=[3]), begun(2000, a=second.to_json(), b=[4]))
    assert list(inputs_read(plan(1000, *batches))) == [ReadInput("a", first, second)]
    assert list(inputs_read(plan(2000, *batches))) == [ReadInput("a", second, second)]
    assert list(inputs_read(plan(None, *batches))) == [ReadInput("a", Position({}, {}), second)]


@pytest.mark.parametrize("end", [None, 7, {"offsets": {}}, {"t": 1}, [["f", 1]]])
def test_inputs_of_others(end: object) -> None:
    """Inputs of other sources are ignored."""
    assert list(inputs_read(plan(1000, begun(1000, a=end)))) == []


def test_lag() -> None:
    """The lag is what no committed batch has read."""
    assert list(partition_lags(READ, BROKERS)) == [
        PartitionLag("t", 0, 5, 9, 0, 15, 10),
        PartitionLag("t", 1, 7, 7, 2, 7, 0),
    ]


def test_without_brokers() -> None:
    """Without brokers, the report has only the offsets of the checkpoint."""
    assert list(partition_lags(READ, None)) == [
        PartitionLag("t", 0, 5, 9),
        PartitionLag("t", 1, 7, 7),
    ]


def test_partition_that_was_added() -> None:
    """A partition that no batch knows waits from its first record on."""
    found = replace(BROKERS, first={**BROKERS.first, T2: 3}, end={**BROKERS.end, T2: 8})
    assert list(partition_lags(READ, found))[2] == PartitionLag("t", 2, None, None, 3, 8, 5)


@pytest.mark.parametrize(
    ("brokers", "problem"),
    [
        (
            replace(BROKERS, ids={"t": "B"}),
            "the topic was deleted and created again: its id was A and is B",
        ),
        (BrokerOffsets({}, {}, {}), "the topic does not exist"),
        (replace(BROKERS, end={T1: 7}), "the partition does not exist"),
        (replace(BROKERS, end={T0: 3, T1: 7}), "it ends 2 offsets before the committed one"),
        (replace(BROKERS, first={T0: 8, T1: 2}), "3 offsets expired before they were read"),
    ],
)
def test_what_cannot_go_on(brokers: BrokerOffsets, problem: str) -> None:
    """A partition that cannot continue has a reason and no lag."""
    lag = next(partition_lags(READ, brokers))
    assert lag.problem == problem
    assert lag.lag is None


def test_brokers_without_ids() -> None:
    """Without ids of topics, they are not compared."""
    assert next(partition_lags(READ, replace(BROKERS, ids={}))).problem is None
