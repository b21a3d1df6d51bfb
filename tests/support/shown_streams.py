"""Streams and queries for the page, without Spark: a test drives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dstreams.common.clock import SystemClock
from dstreams.errors import InvalidStreamError
from dstreams.monitoring.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    BatchSubmitted,
    EventTimes,
    InputInfo,
    OffsetProgress,
    OutputOperationInfo,
    PendingBatch,
    PlannedOutput,
    ReceiverError,
    ReceiverInfo,
    StateOperatorInfo,
)
from dstreams.monitoring.monitor import Monitor, RunInfo
from dstreams.monitoring.registry import StreamRegistry
from dstreams.monitoring.state_queries import KeySize, StateOfKey
from dstreams.monitoring.status import (
    CheckpointStatus,
    GraphNode,
    Kind,
    PartitionSize,
    StateStatus,
    StreamStatus,
)

GRAPH = (
    GraphNode(0, "input", "createDirectStream at shop.py:21", "orders", (), "what a batch reads"),
    GraphNode(1, "step", "map at shop.py:30", "", (0,)),
    GraphNode(
        2, "state", "updateStateByKey at shop.py:36", "totals", (1,), "a snapshot every 10 s"
    ),
    GraphNode(3, "output", "foreachRDD at shop.py:50", "", (2,)),
    GraphNode(4, "output", "pprint at shop.py:52", "", (1,)),
)


@dataclass(frozen=True)
class Shown:
    """The facts shown of a stream in addition to its batches.

    Args:
        name: a readable name.
        kind: ``stream`` or ``query``.
        graph: its steps.
        partition_keys: how many keys each partition of its state has.
        values: the state of each key.
    """

    name: str = "orders"
    kind: Kind = "stream"
    graph: tuple[GraphNode, ...] = GRAPH
    partition_keys: tuple[int, ...] = (100, 700, 100, 100)
    values: Mapping[Any, Any] = field(default_factory=lambda: {"customer-1": 41})


class ShownStream(Monitor):
    """A monitor with the state and checkpoint of a test."""

    def __init__(self, registry: StreamRegistry, shown: Shown | None = None, run: int = 1) -> None:
        self.shown = shown or Shown()
        self._now = SystemClock()
        batch_ms = 1000 if self.shown.kind == "stream" else None
        super().__init__(
            self.shown.kind, self.shown.name, batch_ms, self._now, 1000, registry.changed
        )
        self.next_id = 0
        self.lag_of: Callable[[int], int] = lambda number: 40 + number
        self.started(
            RunInfo(
                f"id of {self.shown.name}",
                f"{self.shown.name}-run-{run}",
                self.shown.graph,
                rate_limits=lambda: {"orders": 5000.0},
                states=self,
            )
        )
        registry.add(self)

    # Events -------------------------------------------------------------------------------

    def run(self, count: int = 1, failure: str | None = None, **changes: Any) -> None:
        """Run some batches of which the newest ends now."""
        now_ms = self._now.now_ms()
        for ago in range(count - 1, -1, -1):
            info = self._batch(self.next_id, now_ms - ago * 1000 - 400, failure)
            self.record(BatchCompleted(replace(info, **changes)))
            self.next_id += 1

    def begin(self, waiting: int = 0) -> None:
        """Begin a batch that does not end, with others waiting for it."""
        now_ms = self._now.now_ms()
        for ahead in range(waiting + 1):
            info = self._batch(self.next_id + ahead, now_ms + ahead * 1000, None)
            outputs = tuple(PlannedOutput(output.output_id, output.name) for output in info.outputs)
            pending = PendingBatch(
                info.batch_id, info.batch_time_ms, info.inputs, outputs, info.submitted_ms
            )
            self.record(BatchSubmitted(pending))
            if ahead == 0:
                self.record(BatchStarted(replace(pending, started_ms=info.started_ms)))

    def receiver_failed(self, message: str) -> None:
        """Let a receiver end with an error."""
        now_ms = self._now.now_ms()
        info = ReceiverInfo(1, "clicks", False, "host-1", "driver", message, "stack", now_ms)
        self.record(ReceiverError(info))

    def _batch(self, number: int, time_ms: int, failure: str | None) -> BatchInfo:
        records, started_ms = 900 + number, time_ms + 10
        ended_ms = started_ms + 200 + number % 50
        ends = ({"orders": {"0": number * 900}}, {"orders": {"0": number * 900 + records}})
        given = InputInfo(
            0,
            "orders",
            records,
            f"{records} records",
            {"lag": {"orders-0": self.lag_of(number)}},
            OffsetProgress(*ends, ends[1], {}),
        )
        outputs = [
            OutputOperationInfo(
                0,
                "foreachRDD at shop.py:50",
                started_ms + 50,
                ended_ms - 20,
                failure,
                job_ids=(7, 8),
            ),
            OutputOperationInfo(1, "pprint at shop.py:52", ended_ms - 20, ended_ms - 10, None),
        ]
        is_query = self.kind == "query"
        mark_ms = time_ms - 12_000 if is_query else None
        metrics = {"numTotalStateRows": 1000 + number, "numUpdatedStateRows": 30}
        metrics |= {"numRemovedStateRows": 2, "stateMemory": 4096, "numRowsDroppedByWatermark": 1}
        phases = {"latestOffset": 8, "walCommit": 12, "addBatch": 150, "commitOffsets": 14}
        return BatchInfo(
            number,
            time_ms,
            {"orders": records},
            time_ms,
            started_ms,
            ended_ms,
            tuple(outputs[:1] if is_query else outputs),
            "succeeded" if failure is None else "failed",
            failure,
            (given,),
            (StateOperatorInfo("totals", "updateStateByKey", 4, metrics, mark_ms),),
            {**phases, "triggerExecution": ended_ms - started_ms},
            1000,
            EventTimes(time_ms - 500, time_ms - 15_000, time_ms - 4000.0) if is_query else None,
            mark_ms,
        )

    # Queries ------------------------------------------------------------------------------

    def status(self) -> StreamStatus:
        status = super().status()
        partitions = tuple(
            PartitionSize(number, keys, keys * 50)
            for number, keys in enumerate(self.shown.partition_keys)
        )
        keys, written = sum(self.shown.partition_keys), sum(self.shown.partition_keys) * 50
        state = StateStatus(
            "totals",
            "updateStateByKey at shop.py:36",
            status.now_ms,
            keys,
            None,
            written,
            partitions,
        )
        last = self.next_id - 1
        checkpoint = CheckpointStatus(
            "s3://bucket/checkpoints/orders",
            3,
            "process 4121 on host worker-7",
            last,
            status.now_ms,
            status.now_ms - 4000,
            (max(0, last - 3), last),
            (self.next_id,),
            written,
        )
        return replace(status, states=(state,), checkpoint=checkpoint)

    def look_up(self, uid: str, key: Any) -> StateOfKey:
        if key == "refused":
            raise InvalidStreamError(f"operator {uid!r} has no state yet; wait for a batch")
        is_there = key in self.shown.values
        now_ms = self._now.now_ms()
        return StateOfKey(uid, now_ms, 3, is_there, self.shown.values.get(key))

    def largest(self, uid: str, count: int) -> tuple[KeySize, ...]:
        return tuple(
            KeySize(key, 3, 9000 - at) for at, key in enumerate([*self.shown.values][:count])
        )
