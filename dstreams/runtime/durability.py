"""Making the state of a batch durable: files written by the tasks, one record by the driver."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import RDD, SparkContext

from checkpoint import (
    CheckpointError,
    CommitLog,
    CommitRecord,
    Files,
    OperatorCommit,
    StatePartition,
    StoreCommit,
    apply_retention,
    plan_retention,
    state_files_of,
)
from checkpoint.state_store import (
    STORE_PREFIX,
    apply_store_retention,
    plan_store_retention,
)
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.rdd.durable import WrittenRdd, read_rdd, write_rdd
from dstreams.rdd.stable_hash import STABLE_HASH_NAME
from dstreams.rdd.stored_version import StoredVersion

logger = logging.getLogger(__name__)

_EPOCH = 1
"""A run is the first and only writer of its directory: its stream id is new."""


@dataclass(frozen=True)
class StateDurability:
    """Writes, commits and reads back the RDDs that a plan makes durable.

    The order is what makes a crash harmless: the tasks sync their files under names that no other
    attempt uses; then one commit record names the files of all operators, created only if there is
    none; only then is the state RDD replaced by one that reads the files. What no record names does
    not exist.

    Args:
        files: the directory of this stream's run, reachable from driver and executors.
        stream_id: identity of the run, in every file.
        plan: the frozen graph.
        spark: the context.
    """

    files: Files
    stream_id: str
    plan: Plan
    spark: SparkContext

    def write(self, node: Node, time_ms: int, rdd: RDD[Any]) -> WrittenRdd:
        """Compute *rdd*, the RDD of *node*, and write its partitions."""
        first = StatePartition(
            stream_id=self.stream_id,
            operator_uid=self.plan.nodes[node].uid,
            batch_time_ms=time_ms,
            partition=0,
            partition_count=rdd.getNumPartitions(),
            partitioner=getattr(rdd.partitioner, "name", "none"),
        )
        return write_rdd(rdd, self.files, first, _EPOCH)

    def discard(self, node: Node, time_ms: int) -> None:
        """Delete what was written of an RDD that will not be committed, as far as it is there.

        An attempt that was given up may still write: its file counts no more than these.
        """
        try:
            for name in state_files_of(self.files, self.plan.nodes[node].uid, time_ms):
                self.files.delete(name)
        except CheckpointError as error:
            logger.warning("files of a failed copy could not be deleted: %s", error)

    def commit(
        self,
        batch_id: int,
        time_ms: int,
        written: Mapping[Node, WrittenRdd],
        stored: Mapping[Node, StoredVersion],
    ) -> None:
        """Write the record that makes the files of a batch count."""
        operators = {
            self.plan.nodes[node].uid: OperatorCommit(rdd.first.partitioner, rdd.files)
            for node, rdd in written.items()
        }
        facts = {"python": platform.python_version(), "hash": STABLE_HASH_NAME}
        stores = tuple(
            StoreCommit(
                self.plan.nodes[node].uid,
                version.store_id.store,
                version.partitioner,
                version.commits,
            )
            for node, version in stored.items()
        )
        record = CommitRecord(self.stream_id, batch_id, time_ms, _EPOCH, operators, facts, stores)
        CommitLog(self.files).commit(record)

    def read(self, written: WrittenRdd, like: RDD[Any]) -> RDD[Any]:
        """Return the committed files as an RDD with the partitioner of *like*."""
        return read_rdd(self.spark, self.files, written, like)

    def retire(self, oldest_needed_ms: int) -> None:
        """Delete records and files that no batch from *oldest_needed_ms* on can need."""
        log = CommitLog(self.files)
        records = log.records()
        if not self.plan.stored():
            apply_retention(log, plan_retention(records, oldest_needed_ms), _EPOCH)
            return
        names = self.files.list(STORE_PREFIX)
        plan = plan_store_retention(records, names, oldest_needed_ms, _EPOCH)
        for name in apply_store_retention(log, plan, _EPOCH):
            logger.warning("%s could not be deleted; it is tried again later", name)
