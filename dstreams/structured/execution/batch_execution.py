"""Execution of a batch dataset: all of its rows at once, with the operators of streams.

No row is late, and state starts empty: an operator that keeps state sees all rows of a key in one
turn, at the time of the action and with the watermark of the first batch of a stream.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.incremental import at_time
from dstreams.structured.operators.execution_context import BatchContext, StatefulOperatorStateInfo
from dstreams.structured.operators.flat_map_groups_with_state import GroupedFunctionExec
from dstreams.structured.operators.fusion import fuse_stateful_operators
from dstreams.structured.operators.physical_operator import PhysicalOperator

_NEVER_LATE_MS = -(1 << 60)
_FIRST_MS = 0


def prepare_batch(plan: PhysicalOperator, conf: QueryConf, now_ms: int) -> PhysicalOperator:
    """Return the physical plan of a batch dataset as it is executed at a time."""
    numbers = count()

    def fill(operator: PhysicalOperator) -> PhysicalOperator:
        if not operator.writesState:
            return operator
        info = StatefulOperatorStateInfo.empty(conf.shuffle_partitions, next(numbers))
        if isinstance(operator, GroupedFunctionExec):
            return at_time(operator.inBatch(info, _NEVER_LATE_MS, _FIRST_MS), now_ms, 0)
        return operator.inBatch(info)

    filled = plan.transform(fill)
    return fuse_stateful_operators(filled) if conf.fuses_operators else filled


def execute_batch(
    plan: PhysicalOperator, conf: QueryConf, spark: SparkContext, now_ms: int
) -> RDD[Any]:
    """Return the rows of a batch dataset; no job runs before an action on them."""
    return prepare_batch(plan, conf, now_ms).execute(BatchContext(spark))
