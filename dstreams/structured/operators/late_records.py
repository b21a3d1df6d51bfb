"""Sends the late records that a stateful operator drops to a sink, as well."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.spark.rejected_records import LateRecords, event_time_itself
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import Partitioning, UnaryExec
from dstreams.structured.operators.sessions import SessionGrouping
from dstreams.structured.operators.time_windows import TimeWindows
from dstreams.structured.sinks.sink import Sink


@dataclass(frozen=True)
class LastEnd:
    """Function: the end of the last window of a record; earlier windows may have been dropped."""

    windows: TimeWindows

    def __call__(self, time_us: int, record: Any) -> int:
        return max(self.windows.ends(time_us // 1000)) * 1000


@dataclass(frozen=True)
class EndOfSession:
    """Function: the end of the session of a record by itself; a record in no session has none."""

    grouping: SessionGrouping

    def __call__(self, time_us: int, record: Any) -> int:
        gap_us = self.grouping.gap_of(record)
        return time_us + gap_us if gap_us > 0 else sys.maxsize


@dataclass(frozen=True)
class LateRecordsExec(UnaryExec):
    """Passes events on, and gives those to a sink that the operator *name* drops as late.

    The job of the sink computes the rows of the child again. The watermark is that for the late
    rows of the stateful operator with this number.
    """

    nodeName: ClassVar[str] = "LateRecords"

    sink: Sink
    name: str
    number: int
    endUs: Callable[[int, Any], int] = event_time_itself
    lateMs: int | None = None

    @property
    def arguments(self) -> list[str]:
        return [self.name, self.sink.name]

    @property
    def outputPartitioning(self) -> Partitioning:
        return self.child.outputPartitioning

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        rows = self.child.execute(context)
        if self.lateMs is not None:
            late = LateRecords(self.name, self.lateMs, context.time_ms, self.endUs)
            context.set_aside(self.sink, PipelinedRDD(rows, late))
        return rows
