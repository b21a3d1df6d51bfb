"""What the operators of one batch run with, and what they have made.

Two batches of a streaming count, by hand, with ``store`` a
:class:`checkpoint.state_store.StateStore` of files that the workers reach:

>>> from dataclasses import replace
>>> from dstreams.state.group_state import OutputMode
>>> from dstreams.structured.operators.aggregation import plan_aggregation
>>> from dstreams.structured.operators.execution_context import ExecutionContext
>>> from dstreams.structured.operators.grouping import Grouping
>>> from dstreams.structured.operators.physical_operator import RDDScanExec
>>> from dstreams.structured.operators.state_info import StatefulOperatorStateInfo
>>> info = StatefulOperatorStateInfo.empty(numPartitions=2)
>>> for words in (["a", "b", "a"], ["b", "c"]):
...     scan = RDDScanExec(spark.parallelize(words))
...     plan = plan_aggregation(
...         scan, Grouping(key=str), numPartitions=2, outputMode=OutputMode.Update
...     )
...     context = ExecutionContext(spark, store)
...     rows = plan.filled([info]).execute(context)  # no job yet
...     info = replace(info, before=context.force()[0])  # one job; the next batch begins here
...     print(sorted(rows.collect()))
...     context.release()
[('a', 2), ('b', 1)]
[('b', 2), ('c', 1)]
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext

from checkpoint.state_store import StateStore
from dstreams.rdd.state_store_rdd import StateStoreRDD, StoreFunction
from dstreams.rdd.stored_version import StoredVersion
from dstreams.rdd.task_reports import TaskReport, TaskReports
from dstreams.structured.operators.event_time_stats import EventTimeStats
from dstreams.structured.operators.state_info import StatefulOperatorStateInfo

logger = logging.getLogger(__name__)

Handles = Mapping[int, RDD[bytes]]


class ExecutionContext:
    """One batch: ``plan.execute(context)`` makes RDDs and runs no job, :meth:`force` runs one.

    After that every stateful operator has exactly one version more, and to read the rows computes
    nothing again.

    Args:
        spark: where tasks run.
        store: the stores; may be None when no operator has state.
        warm: handles of the batch before by operator id, which make Spark prefer the hosts that
            have the stores warm; :attr:`handles` of its context.
    """

    def __init__(
        self,
        spark: SparkContext,
        store: StateStore | None = None,
        warm: Handles | None = None,
    ) -> None:
        self.spark = spark
        self._store = store
        self._warm = dict(warm or {})
        self._advanced: dict[int, StateStoreRDD] = {}
        self._versions: dict[int, StoredVersion] = {}
        self._observed: dict[str, TaskReports[EventTimeStats]] = {}

    @property
    def store(self) -> StateStore:
        """The stores.

        Raises:
            RuntimeError: there are none.
        """
        if self._store is None:
            raise RuntimeError("a stateful operator needs a state store in its ExecutionContext")
        return self._store

    def advance(
        self, info: StatefulOperatorStateInfo, inputs: Sequence[RDD[bytes]], function: StoreFunction
    ) -> RDD[Any]:
        """Return the rows of a stateful operator, which its next version is made with.

        Args:
            info: the state before.
            inputs: blocks, placed by ``info.partitioner``.
            function: what a task does with the store of its partition.
        """
        warm = [self._warm[info.operatorId]] if info.operatorId in self._warm else []
        made = StateStoreRDD([*inputs, *warm], self.store, info.before, function)
        self._advanced[info.operatorId] = made
        return made.rows()

    def observe(self, name: str) -> TaskReport[EventTimeStats]:
        """Return where the tasks of an operator report the event times they see.

        Args:
            name: of the operator, unique in its plan.
        """
        self._observed[name] = TaskReports(self.spark)
        return self._observed[name].task

    def made_rows(self, operatorId: int) -> RDD[Any]:
        """Compute a stateful operator, in one job, and return its rows.

        Those below are computed already, by this method too: then whoever reads rows knows which
        attempt of a task counts, and takes no others.

        Raises:
            Py4JJavaError: a task failed; nothing that was made counts.
        """
        try:
            self._force(operatorId)
        except BaseException:
            self.release()
            raise
        return self._advanced[operatorId].rows()

    def force(self) -> dict[int, StoredVersion]:
        """Compute all stateful operators, and return the version that each has made, by its id.

        One job, where one operator is stateful; each other one costs a small job.

        Raises:
            Py4JJavaError: a task failed; nothing that was made counts.
        """
        try:
            # The last one reads the rows of those before, so its job computes them all.
            for number in reversed(self._advanced):
                self._force(number)
        except BaseException:
            self.release()
            raise
        return {number: self._versions[number] for number in self._advanced}

    def _force(self, number: int) -> None:
        if number not in self._versions:
            self._versions[number] = self._advanced[number].force()

    @property
    def handles(self) -> dict[int, RDD[bytes]]:
        """Handles for the context of the next batch, by operator id."""
        return {number: made.handles for number, made in self._advanced.items()}

    def event_times(self) -> dict[str, EventTimeStats | None]:
        """Return what was seen of event times, by name of the operator; None where nothing was.

        It is complete when the batch's jobs are done.
        """
        return {
            name: EventTimeStats.of_all(reports.facts()) for name, reports in self._observed.items()
        }

    def release(self) -> None:
        """Give up rows and handles: when the batch after this one has been forced.

        Where Spark has stopped, nothing is kept any more, and this is no error of the batch.
        """
        for made in self._advanced.values():
            try:
                made.unpersist()
            except (Py4JError, OSError):
                logger.info("rows of a batch could not be given up", exc_info=True)
