"""What the operators of one batch run with, and what they have made.

Two batches of a streaming count, by hand, with ``store`` a
:class:`checkpoint.state_store.StateStore` of files that the workers reach:

>>> from dataclasses import replace
>>> from dstreams.kernel.state_versions import StateVersions
>>> from dstreams.state.group_state import OutputMode
>>> from dstreams.structured.operators.aggregation import plan_aggregation
>>> from dstreams.structured.operators.execution_context import ExecutionContext
>>> from dstreams.structured.operators.grouping import Grouping
>>> from dstreams.structured.operators.physical_operator import RDDScanExec
>>> from dstreams.structured.operators.state_info import StatefulOperatorStateInfo
>>> states = StateVersions(spark, store)
>>> info = StatefulOperatorStateInfo.empty(numPartitions=2)
>>> for batch, words in enumerate((["a", "b", "a"], ["b", "c"])):
...     scan = RDDScanExec(spark.parallelize(words))
...     plan = plan_aggregation(
...         scan, Grouping(key=str), numPartitions=2, outputMode=OutputMode.Update
...     )
...     context = ExecutionContext(spark, states, batch)
...     rows = plan.filled([info]).run(context)  # one job for each operator with state
...     info = replace(info, before=context.versions[0])  # the next batch begins here
...     print(sorted(rows.collect()))
[('a', 2), ('b', 1)]
[('b', 2), ('c', 1)]
>>> states.release()
"""

from __future__ import annotations

from typing import Any

from pyspark import RDD, SparkContext

from dstreams.kernel.state_versions import StateUpdate, StateVersions
from dstreams.rdd.job_labels import label_jobs
from dstreams.rdd.state_version import StateVersion
from dstreams.rdd.task_reports import TaskReport, TaskReports
from dstreams.structured.operators.event_time_stats import EventTimeStats
from dstreams.structured.operators.state_info import StatefulOperatorStateInfo


class ExecutionContext:
    """One batch of a plan, which ``plan.run(context)`` runs.

    *versions* has what operators made, by id; *states* may be None when no operator has state.
    """

    def __init__(
        self, spark: SparkContext, states: StateVersions | None = None, batch: int = 0
    ) -> None:
        self.spark = spark
        self.versions: dict[int, StateVersion] = {}
        self._states = states
        self._batch = batch
        self._observed: dict[str, TaskReports[EventTimeStats]] = {}

    def make(self, info: StatefulOperatorStateInfo, update: StateUpdate) -> RDD[Any]:
        """Make the next version of an operator's state, in one job, and return its rows."""
        states, uid = self._states, info.before.store_id.operator_uid
        if states is None:
            raise RuntimeError("a stateful operator needs StateVersions in its ExecutionContext")
        label_jobs(f"state: {uid}")
        rows = states.make(uid, self._batch, update)
        version = states.at(uid, self._batch)
        if version is not None:
            self.versions[info.operatorId] = version
        return rows

    def observe(self, name: str) -> TaskReport[EventTimeStats]:
        """Return where the tasks of an operator, by its unique name, report event times."""
        self._observed[name] = TaskReports(self.spark)
        return self._observed[name].task

    def event_times(self) -> dict[str, EventTimeStats | None]:
        """Return the event times by name of the operator; complete when the jobs are done."""
        return {
            name: EventTimeStats.of_all(reports.facts()) for name, reports in self._observed.items()
        }
