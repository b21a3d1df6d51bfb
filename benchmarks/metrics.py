"""Benchmark: a scrape of ``/metrics``, without a server: making statuses and writing them as text.

Each stream has a history of 1,000 batches, operators in the state store, a Kafka source, and a
checkpoint on disk. No Spark.

Usage: python benchmarks/metrics.py [--streams 5] [--operators 20] [--partitions 200]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

from checkpoint import FileRef, PartitionCommit, StoreCommit, open_files
from checkpoint.state_store import VersionId
from dstreams.common.clock import SystemClock
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.kafka.offsets import TopicPartition
from dstreams.monitoring.events import BatchCompleted, BatchInfo, InputInfo, StateOperatorInfo
from dstreams.monitoring.metrics import render_metrics
from dstreams.monitoring.monitor import Monitor, RunInfo
from dstreams.monitoring.registry import registry
from dstreams.monitoring.status import GraphNode

BATCHES = 1000


def store(uid: str, partitions: int) -> StoreCommit:
    version = VersionId(1, "0" * 32)
    commits = tuple(
        PartitionCommit(
            number, version, FileRef(f"stores/{uid}/{number}", 1000, "0" * 32, 10), 1000
        )
        for number in range(partitions)
    )
    return StoreCommit(uid, "default", "stable", commits)


def run_stream(name: str, directory: Path, operators: int, partitions: int) -> None:
    """Register a stream that has run its batches."""
    monitor = Monitor("stream", name, 1000, SystemClock(), BATCHES)
    log = StreamCheckpoint.take_over(open_files(str(directory)), f"stream-{name}", now_ms=1)
    uids = [f"operator-{number}" for number in range(operators)]
    log.begin(0, 1000, {}, token="0" * 32)
    log.commit(0, 1000, stores=[store(uid, partitions) for uid in uids])
    nodes = [GraphNode(number, "state", f"map at {uid}", uid) for number, uid in enumerate(uids)]
    output = GraphNode(operators, "output", "pprint at app.py:20")
    monitor.started(RunInfo(f"stream-{name}", "run", (*nodes, output), log))
    registry().add(monitor)
    lag = {TopicPartition("clicks", number): 5 for number in range(partitions)}
    inputs = (InputInfo(0, "kafka(clicks)", 1000, "", {"lag": lag}),)
    metrics = {"stateMemory": 10**6, "commitTimeMs": 5}
    states = tuple(StateOperatorInfo(uid, "map", partitions, metrics) for uid in uids)
    for number in range(BATCHES):
        at = 1000 * number
        batch = BatchInfo(
            number, at, {}, at, at + 5, at + 300, (), "succeeded", None, inputs, states
        )
        monitor.record(BatchCompleted(batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=5)
    parser.add_argument("--operators", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--scrapes", type=int, default=50)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for number in range(args.streams):
            path = Path(directory, str(number))
            run_stream(f"app-{number}", path, args.operators, args.partitions)
        render_metrics()
        whole, statuses, size = [], [], 0
        for _ in range(args.scrapes):
            started = perf_counter()
            registry().statuses()
            statuses.append(perf_counter() - started)
            started = perf_counter()
            size = len(render_metrics()[1])
            whole.append(perf_counter() - started)
    print(
        f"{args.streams} streams, {args.streams * args.operators} operators of {args.partitions} "
        f"partitions: a scrape takes {1000 * statistics.median(whole):.1f} ms, of which statuses "
        f"{1000 * statistics.median(statuses):.1f} ms; {size:,} bytes"
    )


if __name__ == "__main__":
    main()
