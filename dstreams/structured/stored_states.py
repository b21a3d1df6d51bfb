"""The state of a query over its batches: which version there is, and where it is kept warm."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from pyspark import SparkContext

from checkpoint import Files, StoreCommit, require_trusted
from checkpoint.state_store import (
    STORE_PREFIX,
    Classes,
    StateStore,
    StoreId,
)
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.state_stores import StoreUpkeep, give_up_local, maintain_stores, open_store
from dstreams.rdd.stored_version import StoredVersion
from dstreams.structured.conf import QueryConf
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.state_info import StatefulOperatorStateInfo

_log = logging.getLogger(__name__)


def open_query_store(
    files: Files, conf: QueryConf, epoch: int, classes: Classes | None = None
) -> StateStore:
    """Return the stores of a query's checkpoint.

    Args:
        files: the checkpoint.
        conf: how values are written, where hosts keep their copies, and whether with checksums.
        epoch: of the run that writes.
        classes: the classes of data that the program names, None for none.
    """
    return open_store(
        files,
        epoch,
        conf.state_values,
        conf.state_local_directory,
        conf.state_checksums,
        conf.state_local_retention_ms,
        classes,
    )


def require_trusted_values(files: Files, conf: QueryConf) -> Files:
    """Refuse to read state that somebody else could have written, where reading it can run code.

    Returns:
        The files to read it from.

    Raises:
        UntrustedFileError: values are pickles of any kind, and others can write the checkpoint.
    """
    return require_trusted(files, STORE_PREFIX) if conf.state_values == "pickle" else files


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
        partitioner = StablePartitioner(conf.shuffle_partitions)
        count = partitioner.numPartitions
        self._versions = [
            StoredVersion.empty(StoreId(query_id, name, "default", 0, count), partitioner)
            for name in names
        ]
        self._query_id = query_id
        self._names = list(names)
        self._upkeep = [StoreUpkeep() for _ in names]
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
            self._upkeep[number].made(version)
        return tuple(version.commit for version in self._versions)

    def maintain(self) -> int:
        """Do what is due for each partition, and return how many snapshots were written."""
        if self._context is None:
            return 0
        return sum(
            maintain_stores(
                self._store, self._versions[number], handles, upkeep=self._upkeep[number]
            )
            for number, handles in self._context.handles.items()
            if self._upkeep[number].is_due()
        )

    def close(self, *, is_scratch: bool = False) -> None:
        """Give up what is warm.

        Args:
            is_scratch: the checkpoint is for this run alone: delete the local copies as well.
        """
        if self._context is not None:
            self._context.release()
            self._context = None
        if is_scratch and self._names:
            give_up_local(self._store, self._query_id)
