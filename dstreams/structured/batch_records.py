"""What the records of a query say of a batch: what it reads, before it runs, and what it left,
after.

A record is named by the time of its batch: the driver's clock, or one millisecond after the batch
before where the clock says no later one. Operators go by the clock's time, which is a fact.

======================= ============================================================================
inputs                  the offset up to which each source is read (``end``), null where it has
                        none, and what lies before it that only the source knows, such as files
watermarks, before      what evicts state and fires timers (``query``), what drops late (``late``)
facts, before           the clock's time, pinned settings, what the stateful operators are
stores                  the state of each stateful operator
watermarks, after       that of the query, and of each operator that says how far event time is
facts, after            when those had data last, and when the earliest timer is due
======================= ============================================================================
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpoint import INPUT_END, BeginRecord, CommitRecord, RecordId, StoreCommit
from dstreams.errors import RestartError
from dstreams.rdd.stable_hash import STABLE_HASH_NAME
from dstreams.structured.watermarks import Watermarks

_QUERY, _LATE = "query", "late"
_TIMESTAMP, _CONF, _OPERATORS = "timestamp_ms", "conf", "operators"
_ACTIVE, _NEXT_TIMEOUT, _PROGRESS = "active_ms", "next_timeout_ms", "progress"


@dataclass(frozen=True)
class OffsetRecord:
    """What a batch is: written before anything of it is read.

    For each source *ends* has the offset up to which it is read, or None, and *between* what it
    says of the records up to there, both as JSON. *watermark_ms* evicts state and fires timers.
    """

    batch_id: int
    timestamp_ms: int
    watermark_ms: int
    late_watermark_ms: int
    ends: tuple[Any, ...]
    conf: Mapping[str, str] = field(default_factory=dict)
    operators: tuple[Mapping[str, Any], ...] = ()
    between: tuple[Mapping[str, Any], ...] = ()

    def to_begin(
        self,
        query_id: str,
        time_ms: int,
        epoch: int,
        inputs_snapshot: RecordId | None = None,
        graph: RecordId | None = None,
    ) -> BeginRecord:
        """Return the record of the batch log; *time_ms* names it."""
        between = self.between or ({},) * len(self.ends)
        return BeginRecord(
            query_id,
            self.batch_id,
            time_ms,
            epoch,
            {
                source_uid(number): {**said, INPUT_END: end}
                for number, (end, said) in enumerate(zip(self.ends, between, strict=True))
            },
            {_QUERY: self.watermark_ms, _LATE: self.late_watermark_ms},
            {
                _TIMESTAMP: self.timestamp_ms,
                _CONF: dict(self.conf),
                _OPERATORS: [dict(operator) for operator in self.operators],
            },
            inputs_snapshot,
            graph,
        )

    @classmethod
    def from_begin(cls, record: BeginRecord) -> OffsetRecord:
        """Read what :meth:`to_begin` returned."""
        facts: Mapping[str, Any] = record.facts
        inputs: Mapping[str, Any] = record.inputs
        try:
            said = [dict(inputs[source_uid(number)]) for number in range(len(inputs))]
            return cls(
                batch_id=record.batch_id,
                timestamp_ms=facts[_TIMESTAMP],
                watermark_ms=record.watermarks[_QUERY],
                late_watermark_ms=record.watermarks[_LATE],
                ends=tuple(one.pop(INPUT_END) for one in said),
                conf=facts[_CONF],
                operators=tuple(facts[_OPERATORS]),
                between=tuple(said),
            )
        except KeyError as error:
            raise _of_no_query(record.stream_id, error) from error


@dataclass(frozen=True)
class QueryCommit:
    """What a batch left behind: written when its output was taken.

    *next_timeout_ms* is -1 without a timer; *progress* is for people, as JSON.
    """

    batch_id: int
    stores: tuple[StoreCommit, ...] = ()
    watermarks: Watermarks = field(default_factory=lambda: Watermarks.start(0))
    next_timeout_ms: int = -1
    progress: Mapping[str, Any] = field(default_factory=dict)

    def to_commit(self, query_id: str, time_ms: int, epoch: int) -> CommitRecord:
        """Return the record of the commit log; *time_ms* names it."""
        marks = self.watermarks
        each = {watermark_uid(number): ms for number, ms in enumerate(marks.operators_ms)}
        return CommitRecord(
            query_id,
            self.batch_id,
            time_ms,
            epoch,
            snapshots={},
            writer={"python": platform.python_version(), "hash": STABLE_HASH_NAME},
            stores=self.stores,
            watermarks={_QUERY: marks.query_ms, **each},
            facts={
                _ACTIVE: list(marks.active_ms),
                _NEXT_TIMEOUT: self.next_timeout_ms,
                _PROGRESS: dict(self.progress),
            },
        )

    @classmethod
    def from_commit(cls, record: CommitRecord) -> QueryCommit:
        """Read what :meth:`to_commit` returned."""
        facts: Mapping[str, Any] = record.facts
        try:
            active_ms = tuple(facts[_ACTIVE])
            each = (record.watermarks[watermark_uid(number)] for number in range(len(active_ms)))
            return cls(
                batch_id=record.batch_id,
                stores=record.stores,
                watermarks=Watermarks(record.watermarks[_QUERY], tuple(each), active_ms),
                next_timeout_ms=facts[_NEXT_TIMEOUT],
                progress=facts[_PROGRESS],
            )
        except KeyError as error:
            raise _of_no_query(record.stream_id, error) from error


def source_uid(number: int) -> str:
    """Return the identity of a source, from its place in the plan."""
    return f"source-{number}"


def watermark_uid(number: int) -> str:
    """Return the identity of a watermark, from its place in the plan."""
    return f"watermark-{number}"


def _of_no_query(stream_id: str, missing: KeyError) -> RestartError:
    return RestartError(
        f"what is there is the checkpoint of {stream_id}, which is no query: its records have no "
        f"{missing}; give the checkpointLocation of a query, or a new directory"
    )
