"""Statuses of streams that say something of everything, and monitors that were told of batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dstreams.kafka.offsets import TopicPartition
from dstreams.monitoring.events import (
    BatchInfo,
    InputInfo,
    OutputOperationInfo,
    PendingBatch,
    ReceiverInfo,
    StateOperatorInfo,
)
from dstreams.monitoring.status import (
    CheckpointStatus,
    DiskSpace,
    GraphNode,
    PartitionSize,
    RunningBatch,
    StateStatus,
    StreamStatus,
    Totals,
)

SAVE = "foreachRDD at app.py:20"
CLICKS = "kafka(clicks)"
SOCKET = "socketTextStream(localhost:9999)"


def a_batch(number: int, **changes: Any) -> BatchInfo:
    """Return a batch of one second that ran for 300 ms, and whose output failed."""
    at = 1000 * (number + 1)
    lag = {TopicPartition("clicks", 0): 7, TopicPartition("clicks", 1): 3}
    batch = BatchInfo(
        batch_id=number,
        batch_time_ms=at,
        records={CLICKS: 100, SOCKET: None},
        submitted_ms=at,
        started_ms=at + 20,
        completed_ms=at + 320,
        outputs=(OutputOperationInfo(0, SAVE, at + 20, at + 320, "no disk"),),
        outcome="failed",
        failure="no disk",
        inputs=(
            InputInfo(0, CLICKS, 100, "", {"lag": lag, "rejected": 2}),
            InputInfo(1, SOCKET, None, ""),
        ),
        states=(
            StateOperatorInfo(
                "sessions",
                "mapWithState at app.py:18",
                2,
                {
                    "numTotalStateRows": 40,
                    "numRemovedStateRows": 4,
                    "numRowsDroppedByWatermark": 5,
                    "commitTimeMs": 250,
                    "stateMemory": 4096,
                },
                watermark_ms=at - 700,
            ),
        ),
        durations_ms={"triggerExecution": 400},
        since_ms=1000,
    )
    return replace(batch, **changes)


def a_status(**changes: Any) -> StreamStatus:
    """Return the status of a stream at 10 s, of which every metric has something to say."""
    batch = a_batch(0)
    parts = (PartitionSize(0, 30, 10), PartitionSize(1, 10, 10))
    status = StreamStatus(
        kind="stream",
        id="stream-1",
        run_id="run-1",
        name="app",
        phase="active",
        message="",
        started_ms=500,
        ended_ms=None,
        now_ms=10_000,
        batch_ms=1000,
        totals=Totals().with_batch(batch),
        waiting=(PendingBatch(2, 3000, (), (), 3000),),
        running=RunningBatch(PendingBatch(1, 2000, batch.inputs, (), 2000, 8500)),
        recent=(batch,),
        graph=(GraphNode(0, "input", "kafka"), GraphNode(1, "output", SAVE)),
        states=(
            StateStatus("sessions", "mapWithState", 1000, 40, 4096, 20, parts, has_changelogs=True),
            StateStatus("counts", "updateStateByKey", 1000, 40, None, 20, parts),
        ),
        checkpoint=CheckpointStatus(
            url="file:///checkpoint",
            epoch=3,
            holder="process 1 on host here",
            committed_batch_id=0,
            committed_ms=1000,
            durable_state_ms=None,
            recomputed=(0, 0),
            rerun=(1, 2),
            snapshot_bytes=40,
            disk=DiskSpace(250, 1000),
        ),
        receivers=(ReceiverInfo(1, SOCKET, True, "here", "driver"),),
        rate_limits={CLICKS: 500},
        local_state_disk=DiskSpace(500, 1000),
    )
    return replace(status, **changes)
