"""Records that cannot be decoded: what becomes of them, and how a task tells of those left out."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

from dstreams.common.configuration import choice
from dstreams.spark.task_reports import TaskReports

BadRecords = Literal["FAILFAST", "DROPMALFORMED"]
"""What becomes of a record that cannot be decoded: it fails the batch, or is left out and counted;
who asks for dead letters gets those that were left out."""

BAD_RECORDS = choice(*get_args(BadRecords))


class LeftOut(NamedTuple):
    """How many records of a partition were left out, and where the first is and why."""

    records: int
    first: str


@runtime_checkable
class LeavesOut(Protocol):
    """An RDD whose tasks report the records that they leave out."""

    left_out: TaskReports[LeftOut]
