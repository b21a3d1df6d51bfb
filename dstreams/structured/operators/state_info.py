"""Which state a stateful operator has, and in which version: filled in for each batch."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint.state_store import StoreId
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.state_version import StateVersion


@dataclass(frozen=True)
class StatefulOperatorStateInfo:
    """The state that an operator begins a batch with; *checkpointLocation* is for people to read.

    Semantics: StatefulOperatorStateInfo (Spark 4.3); the references in *before* are its
    ``stateStoreCkptIds``.
    """

    checkpointLocation: str
    queryRunId: str
    operatorId: int
    before: StateVersion

    @classmethod
    def empty(cls, numPartitions: int, operatorId: int = 0) -> StatefulOperatorStateInfo:
        """Return the info of an operator before its first batch, by hand; its uid is its number."""
        store_id = StoreId("stream", str(operatorId), "default", 0, numPartitions)
        before = StateVersion.empty(store_id, StablePartitioner(numPartitions))
        return cls("", "", operatorId, before)

    @property
    def storeVersion(self) -> int:
        """How many batches led to the state."""
        return self.before.version

    @property
    def numPartitions(self) -> int:
        return len(self.before.version_ids)

    @property
    def partitioner(self) -> StablePartitioner:
        """The partitioner of the state."""
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
    """Return what ``explain`` prints of a state, which is unknown before the first batch."""
    return _shown(*["<unknown>"] * 5) if info is None else str(info)


def _shown(location: str, run: str, operator: str, version: str, partitions: str) -> str:
    return (
        f"state info [ checkpoint = {location}, runId = {run}, opId = {operator}, "
        f"ver = {version}, numPartitions = {partitions}]"
    )
