"""The context of a batch: the environment of its operators, and their results.

Two batches of a streaming count, by hand, with ``store`` a
:class:`checkpoint.state_store.StateStore` of files that the workers reach:

>>> from dataclasses import replace
>>> from dstreams.state.state_versions import StateVersions
>>> from dstreams.state.group_state import OutputMode
>>> from dstreams.structured.operators.aggregation import plan_aggregation
>>> from dstreams.structured.operators.execution_context import ExecutionContext
>>> from dstreams.structured.operators.grouping import Grouping
>>> from dstreams.structured.operators.physical_operator import RDDScanExec
>>> from dstreams.structured.operators.execution_context import StatefulOperatorStateInfo
>>> states = StateVersions(spark, store)
>>> info = StatefulOperatorStateInfo.empty(numPartitions=2)
>>> for batch, words in enumerate((["a", "b", "a"], ["b", "c"])):
...     scan = RDDScanExec(spark.parallelize(words))
...     plan = plan_aggregation(
...         scan, Grouping(key=str), numPartitions=2, outputMode=OutputMode.Update
...     )
...     context = ExecutionContext(spark, states, batch)
...     rows = plan.filled([info]).execute(context)  # one job for each operator with state
...     info = replace(info, before=context.versions[0])  # the next batch begins here
...     print(sorted(rows.collect()))
[('a', 2), ('b', 1)]
[('b', 2), ('c', 1)]
>>> states.release()
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark import RDD, SparkContext

from checkpoint.state_store import StoreId
from dstreams.errors import InvalidStreamError
from dstreams.spark.empty_partitions import no_records
from dstreams.spark.job_labels import label_jobs
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.state_metrics import StateMetrics
from dstreams.spark.state_version import StateVersion
from dstreams.spark.task_reports import TaskReport, TaskReports
from dstreams.state.state_versions import StateUpdate, StateVersions


@dataclass(frozen=True)
class EventTimeStats:
    """Event times that one operator has seen, in milliseconds since the epoch.

    The mean is a running one, so that no sum gets large. Semantics: EventTimeStats (Spark 4.3).
    """

    max_ms: int
    min_ms: int
    avg_ms: float
    count: int

    @classmethod
    def of(cls, times_us: Iterable[int]) -> EventTimeStats | None:
        """Return the stats of some times in microseconds, None for none."""
        times = list(times_us)
        if not times:
            return None
        avg_ms = sum(times) / len(times) / 1000
        return cls(max(times) // 1000, min(times) // 1000, avg_ms, len(times))

    def merge(self, other: EventTimeStats | None) -> EventTimeStats:
        if other is None:
            return self
        count = self.count + other.count
        avg_ms = self.avg_ms + (other.avg_ms - self.avg_ms) * (other.count / count)
        return EventTimeStats(
            max(self.max_ms, other.max_ms), min(self.min_ms, other.min_ms), avg_ms, count
        )

    @classmethod
    def of_all(cls, parts: Iterable[EventTimeStats | None]) -> EventTimeStats | None:
        """Return the stats of several parts, None for none."""
        total: EventTimeStats | None = None
        for stats in parts:
            if stats is not None:
                total = stats.merge(total)
        return total


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
        """The number of batches that made the state."""
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
    """Return the text of ``explain`` for a state, which is unknown before the first batch."""
    return _shown(*["<unknown>"] * 5) if info is None else str(info)


def _shown(location: str, run: str, operator: str, version: str, partitions: str) -> str:
    return (
        f"state info [ checkpoint = {location}, runId = {run}, opId = {operator}, "
        f"ver = {version}, numPartitions = {partitions}]"
    )


Counts = dict[str, int]


class HasState(Protocol):
    """An operator with state, as far as the context is concerned."""

    def getStateInfo(self) -> StatefulOperatorStateInfo: ...


class ExecutionContext:
    """One batch of a plan: the environment of ``plan.execute(context)``, and its results.

    Args:
        spark: the SparkContext of the plan.
        states: the states of the plan; None if no operator has state.
        batch: number of the batch, which increases.

    Attributes:
        versions: the version that each operator made, by operator id.
    """

    def __init__(
        self, spark: SparkContext, states: StateVersions | None = None, batch: int = 0
    ) -> None:
        self.spark = spark
        self.versions: dict[int, StateVersion] = {}
        self._states = states
        self._batch = batch
        self._observed: dict[str, TaskReports[EventTimeStats]] = {}
        # By identity: operators that are equal may be in one plan. They live as long as this does.
        self._counts: dict[int, tuple[object, TaskReports[Counts] | StateMetrics | Counts]] = {}

    @property
    def memory_mb(self) -> float:
        """The memory that a Python worker uses before it spills, in MiB."""
        limit: float = no_records(self.spark, 1)._memory_limit()
        return limit

    @property
    def states(self) -> StateVersions:
        """The states of the plan, or InvalidStreamError if the context has none."""
        if self._states is None:
            raise InvalidStreamError(
                "an operator with state needs StateVersions, its ExecutionContext has none; give "
                "ExecutionContext(spark, StateVersions(spark, store))"
            )
        return self._states

    def make(self, operator: HasState, update: StateUpdate) -> RDD[Any]:
        """Make the next version of the state of an operator, in one job, and return its rows."""
        info, states = operator.getStateInfo(), self.states
        uid = info.before.store_id.operator_uid
        label_jobs(f"state: {uid}")
        rows = states.make(uid, self._batch, update)
        version = states.at(uid, self._batch)
        if version is not None:
            self.versions[info.operatorId] = version
            self._counts[id(operator)] = operator, version.metrics or StateMetrics()
        return rows

    def count(self, operator: object) -> TaskReport[Counts]:
        """Return the report that the tasks of an operator send their counts to."""
        reports: TaskReports[Counts] = TaskReports(self.spark)
        self._counts[id(operator)] = operator, reports
        return reports.task

    def metrics(self, operator: object) -> Counts:
        """Return the counts of an operator, complete when the jobs that compute it are done.

        They have Spark's names. The operator is one of the plan that was executed.
        """
        _, found = self._counts.get(id(operator), (operator, None))
        if isinstance(found, StateMetrics):
            return found.as_dict()
        if found is None or isinstance(found, dict):
            return found or {}
        total: Counts = {}
        for counts in found.facts():
            for name, number in counts.items():
                total[name] = total.get(name, 0) + number
        return total

    def set_metrics(self, operator: object, counts: Counts) -> None:
        """Set the counts of an operator that is fused into another one."""
        self._counts[id(operator)] = operator, counts

    def state_metrics(self, operator: object) -> StateMetrics:
        """Return the counts of an operator that has made its state."""
        _, found = self._counts[id(operator)]
        assert isinstance(found, StateMetrics), f"{operator} has made no state"
        return found

    def observe(self, name: str) -> TaskReport[EventTimeStats]:
        """Return the report of the event times of an operator, known by its unique name."""
        self._observed[name] = TaskReports(self.spark)
        return self._observed[name].task

    def event_times(self) -> dict[str, EventTimeStats | None]:
        """Return the event times of each operator that has a name; complete after the jobs."""
        return {
            name: EventTimeStats.of_all(reports.facts()) for name, reports in self._observed.items()
        }
