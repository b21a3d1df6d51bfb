"""Which state a stateful operator has, and in which version: filled in for each batch."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint.state_store import StoreId
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.state_version import StateVersion


@dataclass(frozen=True)
class StatefulOperatorStateInfo:
    """The state that an operator begins a batch with.

    Semantics: StatefulOperatorStateInfo (Spark 4.3); what Spark calls ``stateStoreCkptIds`` are the
    references in *before*.
    """

    checkpointLocation: str
    queryRunId: str
    operatorId: int
    before: StateVersion

    @classmethod
    def empty(
        cls,
        numPartitions: int,
        operatorId: int = 0,
        *,
        streamId: str = "stream",
        operatorUid: str | None = None,
        checkpointLocation: str = "",
        queryRunId: str = "",
    ) -> StatefulOperatorStateInfo:
        """Return the info of an operator before its first batch."""
        uid = operatorUid or str(operatorId)
        store_id = StoreId(streamId, uid, "default", 0, numPartitions)
        before = StateVersion.empty(store_id, StablePartitioner(numPartitions))
        return cls(checkpointLocation, queryRunId, operatorId, before)

    @property
    def storeVersion(self) -> int:
        """Batches that led to the state."""
        return self.before.version

    @property
    def numPartitions(self) -> int:
        """Partitions of the state."""
        return len(self.before.version_ids)

    @property
    def partitioner(self) -> StablePartitioner:
        """What brings each key to the partition of its state."""
        return StablePartitioner(self.numPartitions)

    def __str__(self) -> str:
        return _shown(
            self.checkpointLocation,
            self.queryRunId,
            str(self.operatorId),
            str(self.storeVersion),
            str(self.numPartitions),
        )


def describe_state_info(info: StatefulOperatorStateInfo | None) -> str:
    """Return what ``explain`` says of a state; before the first batch nothing of it is known."""
    return _shown(*["<unknown>"] * 5) if info is None else str(info)


def _shown(location: str, run: str, operator: str, version: str, partitions: str) -> str:
    return (
        f"state info [ checkpoint = {location}, runId = {run}, opId = {operator}, "
        f"ver = {version}, numPartitions = {partitions}]"
    )
