"""What the records of a query say of a batch, before it runs and after.

A record is named by the time of its batch: the driver's clock, or one millisecond after the batch
before where the clock says no later one. Operators go by the clock's time, which is a fact.

======================= ============================================================================
inputs                  from which offset to which each source is read, and what lies between that
                        only the source knows, such as files (:mod:`dstreams.sources.source`)
watermarks, before      what evicts state and fires timers (``query``), what drops late (``late``)
facts, before           the clock's time, pinned settings, what the stateful operators are
stores                  the state of each stateful operator
watermarks, after       that of the query, and of each operator that says how far event time is
facts, after            when those had data last, and when the earliest timer is due
======================= ============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from checkpoint import BeginRecord, CommitRecord
from dstreams.errors import RestartError
from dstreams.sources.source import PlannedInput
from dstreams.structured.execution.watermarks import Watermarks

_QUERY, _LATE = "query", "late"
_TIMESTAMP, _CONF, _OPERATORS = "timestamp_ms", "conf", "operators"
_ACTIVE, _NEXT_TIMEOUT, _PROGRESS = "active_ms", "next_timeout_ms", "progress"


class BatchStart(TypedDict):
    """What a begin record says of a batch of a query."""

    inputs: Mapping[str, object]
    watermarks: Mapping[str, int]
    facts: Mapping[str, object]


class BatchEnd(TypedDict):
    """What a commit record says of a batch of a query, beside its state."""

    watermarks: Mapping[str, int]
    facts: Mapping[str, object]


def batch_start(
    timestamp_ms: int,
    watermark_ms: int,
    late_watermark_ms: int,
    inputs: Sequence[PlannedInput],
    conf: Mapping[str, str] | None = None,
    operators: Sequence[Mapping[str, Any]] = (),
) -> BatchStart:
    """Return what to begin a batch with, which :class:`QueryBatch` reads.

    *inputs* has what is read of each source. *watermark_ms* evicts state and fires timers,
    *late_watermark_ms* drops late records.
    """
    return BatchStart(
        inputs={source_uid(number): planned.to_record() for number, planned in enumerate(inputs)},
        watermarks={_QUERY: watermark_ms, _LATE: late_watermark_ms},
        facts={
            _TIMESTAMP: timestamp_ms,
            _CONF: dict(conf or {}),
            _OPERATORS: [dict(operator) for operator in operators],
        },
    )


def batch_end(
    watermarks: Watermarks, next_timeout_ms: int = -1, progress: Mapping[str, Any] | None = None
) -> BatchEnd:
    """Return what to commit a batch with, which :class:`QueryCommit` reads.

    *next_timeout_ms* is -1 without a timer; *progress* is for people, as JSON.
    """
    each = {watermark_uid(number): ms for number, ms in enumerate(watermarks.operators_ms)}
    return BatchEnd(
        watermarks={_QUERY: watermarks.query_ms, **each},
        facts={
            _ACTIVE: list(watermarks.active_ms),
            _NEXT_TIMEOUT: next_timeout_ms,
            _PROGRESS: dict(progress or {}),
        },
    )


@dataclass(frozen=True)
class QueryBatch:
    """A batch of a query, as its begin record says it; its fields: see :func:`batch_start`."""

    begun: BeginRecord

    def __post_init__(self) -> None:
        _require_of_query(self.begun, self.begun.facts, (_TIMESTAMP, _CONF, _OPERATORS))
        _require_of_query(self.begun, self.begun.watermarks, (_QUERY, _LATE))

    @property
    def batch_id(self) -> int:
        return self.begun.batch_id

    @property
    def timestamp_ms(self) -> int:
        timestamp_ms: int = self._facts[_TIMESTAMP]
        return timestamp_ms

    @property
    def watermark_ms(self) -> int:
        return self.begun.watermarks[_QUERY]

    @property
    def late_watermark_ms(self) -> int:
        return self.begun.watermarks[_LATE]

    @property
    def ends(self) -> tuple[Any, ...]:
        """For each source, the offset up to which the batch reads it."""
        return tuple(planned.end for planned in self.inputs)

    @property
    def inputs(self) -> tuple[PlannedInput, ...]:
        """What the batch reads of each source."""
        said: Mapping[str, Any] = self.begun.inputs
        uids = map(source_uid, range(len(said)))
        return tuple(PlannedInput.from_record(self.timestamp_ms, said[uid]) for uid in uids)

    @property
    def conf(self) -> Mapping[str, str]:
        conf: Mapping[str, str] = self._facts[_CONF]
        return conf

    @property
    def operators(self) -> Sequence[Mapping[str, Any]]:
        operators: Sequence[Mapping[str, Any]] = self._facts[_OPERATORS]
        return operators

    @property
    def _facts(self) -> Mapping[str, Any]:
        return self.begun.facts


@dataclass(frozen=True)
class QueryCommit:
    """What a batch of a query left, as its commit record says it; see :func:`batch_end`."""

    committed: CommitRecord

    def __post_init__(self) -> None:
        _require_of_query(self.committed, self.committed.facts, (_ACTIVE, _NEXT_TIMEOUT))
        _require_of_query(self.committed, self.committed.watermarks, (_QUERY,))

    @property
    def watermarks(self) -> Watermarks:
        facts: Mapping[str, Any] = self.committed.facts
        active_ms, found = tuple(facts[_ACTIVE]), self.committed.watermarks
        each = tuple(found[watermark_uid(number)] for number in range(len(active_ms)))
        return Watermarks(found[_QUERY], each, active_ms)

    @property
    def next_timeout_ms(self) -> int:
        facts: Mapping[str, Any] = self.committed.facts
        next_ms: int = facts[_NEXT_TIMEOUT]
        return next_ms


def source_uid(number: int) -> str:
    """Return the identity of a source, from its place in the plan."""
    return f"source-{number}"


def watermark_uid(number: int) -> str:
    """Return the identity of a watermark, from its place in the plan."""
    return f"watermark-{number}"


def _require_of_query(
    record: BeginRecord | CommitRecord, said: Mapping[str, object], names: Sequence[str]
) -> None:
    missing = next((name for name in names if name not in said), None)
    if missing is not None:
        raise RestartError(
            f"what is there is the checkpoint of {record.stream_id}, which is no query: its "
            f"records have no '{missing}'; give the checkpointLocation of a query, or a new "
            "directory"
        )
