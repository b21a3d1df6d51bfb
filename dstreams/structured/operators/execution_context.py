"""The context of a batch: the environment of its operators, and their results."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark import RDD, SparkContext, StorageLevel
from pyspark.rdd import PipelinedRDD

from checkpoint.state_store import StoreId
from dstreams.errors import InvalidStreamError
from dstreams.spark.job_labels import label_jobs
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.partitions import no_records
from dstreams.spark.state_store_rdd import ScratchStoreTask
from dstreams.spark.state_version import StateMetrics, StateVersion
from dstreams.spark.task_reports import LeftOut, TaskReport, TaskReports
from dstreams.state.state_versions import StateUpdate, StateVersions
from dstreams.structured.sinks.sink import Sink


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
        """Return the stats of times in microseconds, or None without times."""
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
        """Return the stats of several parts, or None without times."""
        total: EventTimeStats | None = None
        for stats in parts:
            total = total if stats is None else stats.merge(total)
        return total


@dataclass(frozen=True)
class StatefulOperatorStateInfo:
    """The state that an operator begins a batch with; *checkpointLocation* is only shown.

    Semantics: StatefulOperatorStateInfo (Spark 4.3); the references in *before* are its
    ``stateStoreCkptIds``.
    """

    checkpointLocation: str
    queryRunId: str
    operatorId: int
    before: StateVersion

    @classmethod
    def empty(cls, numPartitions: int, operatorId: int = 0) -> StatefulOperatorStateInfo:
        """Return the info of an operator before its first batch; its uid is *operatorId*."""
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
        return StablePartitioner(self.numPartitions)


def describe_state_info(info: StatefulOperatorStateInfo | None) -> str:
    """Return the text of ``explain`` for a state, which is unknown before the first batch."""
    location = run = operator = version = partitions = "<unknown>"
    if info is not None:
        location, run, operator = info.checkpointLocation, info.queryRunId, str(info.operatorId)
        version, partitions = str(info.storeVersion), str(info.numPartitions)
    return (
        f"state info [ checkpoint = {location}, runId = {run}, opId = {operator}, "
        f"ver = {version}, numPartitions = {partitions}]"
    )


Counts = dict[str, int]


class ObservedMetrics(Protocol):
    """An observation, as far as the context is concerned."""

    def finish(self, buffers: list[Any]) -> dict[str, Any]:
        """Return the metrics of the buffers of all partitions."""
        ...


class HasState(Protocol):
    """An operator with state, as far as the context is concerned."""

    def getStateInfo(self) -> StatefulOperatorStateInfo: ...


class ExecutionContext:
    """One batch of a plan: the environment of ``plan.execute(context)``, and its results.

    Args:
        spark: the SparkContext of the plan.
        states: the states of the plan; None if no operator has state.
        batch: number of the batch, which increases.
        time_ms: the batch time.

    Attributes:
        versions: the version that each operator made, by operator id.
        rejected: the reports of skipped records of each operator that skips any.
    """

    def __init__(
        self,
        spark: SparkContext,
        states: StateVersions | None = None,
        batch: int = 0,
        time_ms: int = 0,
    ) -> None:
        self.spark = spark
        self.time_ms = time_ms
        self.versions: dict[int, StateVersion] = {}
        self.rejected: list[tuple[Any, TaskReports[LeftOut]]] = []
        self._aside: list[tuple[Sink, RDD[Any]]] = []
        self._kept: list[RDD[Any]] = []
        self._states = states
        self._batch = batch
        self._observed: dict[str, TaskReports[EventTimeStats]] = {}
        self._metrics: dict[str, tuple[ObservedMetrics, TaskReports[Any]]] = {}
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

    def skipped(self, operator: object) -> TaskReport[LeftOut]:
        """Return the report that the tasks of an operator send about records that they skip."""
        reports: TaskReports[LeftOut] = TaskReports(self.spark)
        self.rejected.append((operator, reports))
        return reports.task

    def set_aside(self, sink: Sink, rows: RDD[Any]) -> None:
        """Add rows of the batch for a sink other than that of the query."""
        self._aside.append((sink, rows))

    def rows_for(self, sink: Sink) -> RDD[Any]:
        """Return the rows of the batch for a sink other than that of the query."""
        found = [rows for one, rows in self._aside if one == sink]
        return self.spark.union(found) if found else no_records(self.spark, 1)

    def keep(self, rows: RDD[Any]) -> None:
        """Persist rows until the batch has ended."""
        rows.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(rows)

    def release(self) -> None:
        """Unpersist the rows that were kept."""
        while self._kept:
            self._kept.pop().unpersist()

    def observe(self, name: str) -> TaskReport[EventTimeStats]:
        """Return the report of the event times of an operator, known by its unique name."""
        self._observed[name] = TaskReports(self.spark)
        return self._observed[name].task

    def observe_metrics(self, name: str, metrics: ObservedMetrics) -> TaskReport[Any]:
        """Return the report of the buffers of an observation, known by its unique name."""
        reports: TaskReports[Any] = TaskReports(self.spark)
        self._metrics[name] = metrics, reports
        return reports.task

    def observed_metrics(self) -> dict[str, dict[str, Any]]:
        """Return the metrics of each observation; complete after the jobs."""
        return {
            name: metrics.finish(deepcopy(reports.facts()))
            for name, (metrics, reports) in self._metrics.items()
        }

    def event_times(self) -> dict[str, EventTimeStats | None]:
        """Return the event times of each operator that has a name; complete after the jobs."""
        return {
            name: EventTimeStats.of_all(reports.facts()) for name, reports in self._observed.items()
        }


class BatchContext(ExecutionContext):
    """The environment of a batch dataset, which is executed by its actions only.

    A state lives as long as its task, and is computed with the rows; metrics stay empty.
    """

    def make(self, operator: HasState, update: StateUpdate) -> RDD[Any]:
        self._counts[id(operator)] = operator, StateMetrics()
        task = ScratchStoreTask(update.before.store_id, update.function)
        rows: RDD[Any] = PipelinedRDD(update.data, task)
        return rows
