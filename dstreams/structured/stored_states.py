"""The state of a query over its batches: which version there is, and where it is kept warm."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark import SparkContext
from pyspark.rdd import PipelinedRDD

from checkpoint import Files, StoreCommit
from checkpoint.state_store import (
    DataValues,
    LmdbBases,
    PickleValues,
    StateStore,
    StoreId,
    snapshot_if_due,
)
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.stored_version import StoredVersion
from dstreams.rdd.worker import settle_worker
from dstreams.structured.conf import (
    SHUFFLE_PARTITIONS,
    STATE_LOCAL_DIRECTORY,
    STATE_VALUES,
    QueryConf,
)
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.state_info import StatefulOperatorStateInfo


def open_store(files: Files, conf: QueryConf, epoch: int) -> StateStore:
    """Return the stores of a checkpoint.

    Args:
        files: the checkpoint.
        conf: how values are written, and where hosts keep their copies.
        epoch: of the run that writes.
    """
    directory = conf.text(STATE_LOCAL_DIRECTORY)
    if directory is None:
        directory = os.path.join(tempfile.gettempdir(), f"dstreams-state-{os.getuid()}")
    values = PickleValues() if conf.text(STATE_VALUES) == "pickle" else DataValues()
    return StateStore(LmdbBases(files, directory, epoch), values)


class QueryStates:
    """The newest version of each stateful operator, and the contexts that have them warm.

    Args:
        spark: where tasks run.
        store: the stores.
        query_id: identity of the query.
        names: of the stateful operators, in the order of the plan.
        conf: how many partitions a new state has.
    """

    def __init__(
        self,
        spark: SparkContext,
        store: StateStore,
        query_id: str,
        names: Sequence[str],
        conf: QueryConf,
    ) -> None:
        self._spark = spark
        self._store = store
        partitioner = StablePartitioner(conf.count(SHUFFLE_PARTITIONS))
        count = partitioner.numPartitions
        self._versions = [
            StoredVersion.empty(StoreId(query_id, name, "default", 0, count), partitioner)
            for name in names
        ]
        self._query_id = query_id
        self._names = list(names)
        self._context: ExecutionContext | None = None

    def restore(self, stores: Iterable[StoreCommit]) -> None:
        """Go on from what a commit record names."""
        by_name = {store.operator_uid: store for store in stores}
        for number, name in enumerate(self._names):
            if name in by_name:
                self._versions[number] = StoredVersion.committed(self._query_id, by_name[name])

    def infos(self, location: str, run_id: str) -> list[StatefulOperatorStateInfo]:
        """Return the state info of each operator, for the next batch."""
        return [
            StatefulOperatorStateInfo(location, run_id, number, version)
            for number, version in enumerate(self._versions)
        ]

    def context(self) -> ExecutionContext:
        """Return the context of the next batch."""
        warm = {} if self._context is None else self._context.handles
        return ExecutionContext(self._spark, self._store, warm)

    def advance(
        self, context: ExecutionContext, versions: Mapping[int, StoredVersion]
    ) -> tuple[StoreCommit, ...]:
        """Go on to the versions that a batch made, and return what its commit record says."""
        if self._context is not None:
            self._context.release()
        self._context = context
        for number, version in versions.items():
            self._versions[number] = version
        return tuple(
            StoreCommit(
                version.store_id.operator_uid,
                version.store_id.store,
                version.partitioner,
                version.commits,
            )
            for version in self._versions
        )

    def take_snapshots(self) -> int:
        """Write a snapshot of each partition that is due for one, and return how many."""
        bases = self._store.bases
        if self._context is None or not isinstance(bases, LmdbBases):
            return 0
        written = 0
        for number, handles in self._context.handles.items():
            task = _TakeSnapshot(bases, self._versions[number])
            written += sum(PipelinedRDD(handles, task).collect())
        return written

    def close(self) -> None:
        """Give up what is warm."""
        if self._context is not None:
            self._context.release()
            self._context = None


@dataclass(frozen=True)
class _TakeSnapshot:
    """Task: a snapshot of the store of a partition, if it is time; yields how many it wrote."""

    bases: LmdbBases
    version: StoredVersion

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[int]:
        settle_worker()
        for _ in frames:  # a worker whose input is left unread is not used again
            pass
        store_id = replace(self.version.store_id, partition=split)
        written = snapshot_if_due(self.bases, store_id, self.version.references[split], None)
        yield int(written is not None)
