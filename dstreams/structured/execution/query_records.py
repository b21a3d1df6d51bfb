"""Begin and commit records of the batches of a query.

The batch time that names a record is the driver's clock, or one millisecond after the previous
batch if the clock was not advanced. Operators use the clock's time, which is among the facts.

======================= ============================================================================
inputs                  start and end offset of each source, and facts that only the source knows,
                        such as files (:mod:`dstreams.sources.source`)
watermarks, begin       ``query`` evicts state and fires timers, ``late`` drops late records
facts, begin            the clock's time, pinned settings, a description of the stateful operators,
                        the versions of static data, whether the batch moves the state, the
                        checkpoint of Spark that it adopts
stores                  the state of each stateful operator
watermarks, commit      those of the query and of each watermark operator
facts, commit           when those operators last had data, and when the earliest timer is due
======================= ============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkpoint import BeginRecord, CommitRecord
from checkpoint.state_store import STATIC
from dstreams.errors import RestartError
from dstreams.sources.source import PlannedInput
from dstreams.structured.execution.watermarks import Watermarks

_QUERY, _LATE = "query", "late"
_TIMESTAMP, _CONF, _OPERATORS = "timestamp_ms", "conf", "operators"
_MOVES_STATE, _ADOPTS = "moves_state", "adopts"
_ACTIVE, _NEXT_TIMEOUT, _PROGRESS = "active_ms", "next_timeout_ms", "progress"


def batch_start(
    timestamp_ms: int,
    watermark_ms: int,
    late_watermark_ms: int,
    inputs: Sequence[PlannedInput],
    conf: Mapping[str, str] | None = None,
    operators: Sequence[Mapping[str, Any]] = (),
    static: Mapping[str, Any] | None = None,
    *,
    moves_state: bool = False,
    adopts: str | None = None,
) -> dict[str, Any]:
    """Return the contents of a begin record, which :class:`QueryBatch` reads.

    *watermark_ms* evicts state and fires timers, *late_watermark_ms* drops late records. A batch
    that *moves_state* into other partitions does nothing else; nor does one that *adopts* the
    checkpoint of Spark at a URL.
    """
    facts = {
        _TIMESTAMP: timestamp_ms,
        _CONF: dict(conf or {}),
        _OPERATORS: [dict(operator) for operator in operators],
        **({STATIC: dict(static)} if static else {}),
        **({_MOVES_STATE: True} if moves_state else {}),
        **({_ADOPTS: adopts} if adopts else {}),
    }
    return {
        "inputs": {source_uid(number): one.to_record() for number, one in enumerate(inputs)},
        "watermarks": {_QUERY: watermark_ms, _LATE: late_watermark_ms},
        "facts": facts,
    }


def batch_end(
    watermarks: Watermarks, next_timeout_ms: int = -1, progress: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the contents of a commit record, which :class:`QueryCommit` reads.

    *next_timeout_ms* is -1 without a timer; *progress* is JSON that only people read.
    """
    each = {watermark_uid(number): ms for number, ms in enumerate(watermarks.operators_ms)}
    facts = {
        _ACTIVE: list(watermarks.active_ms),
        _NEXT_TIMEOUT: next_timeout_ms,
        _PROGRESS: dict(progress or {}),
    }
    return {"watermarks": {_QUERY: watermarks.query_ms, **each}, "facts": facts}


@dataclass(frozen=True)
class QueryBatch:
    """The begin record of a query; for its fields see :func:`batch_start`."""

    begun: BeginRecord

    def __post_init__(self) -> None:
        _require_of_query(self.begun, self.begun.facts, (_TIMESTAMP, _CONF, _OPERATORS))
        _require_of_query(self.begun, self.begun.watermarks, (_QUERY, _LATE))

    @property
    def batch_id(self) -> int:
        return self.begun.batch_id

    @property
    def timestamp_ms(self) -> int:
        return int(self._facts[_TIMESTAMP])

    @property
    def watermark_ms(self) -> int:
        return self.begun.watermarks[_QUERY]

    @property
    def late_watermark_ms(self) -> int:
        return self.begun.watermarks[_LATE]

    @property
    def ends(self) -> tuple[Any, ...]:
        """The end offset of each source."""
        return tuple(planned.end for planned in self.inputs)

    @property
    def inputs(self) -> tuple[PlannedInput, ...]:
        """The input of the batch from each source."""
        inputs: Mapping[str, Any] = self.begun.inputs
        uids = map(source_uid, range(len(inputs)))
        return tuple(PlannedInput.from_record(self.timestamp_ms, inputs[uid]) for uid in uids)

    @property
    def conf(self) -> Mapping[str, str]:
        conf: Mapping[str, str] = self._facts[_CONF]
        return conf

    @property
    def operators(self) -> Sequence[Mapping[str, Any]]:
        operators: Sequence[Mapping[str, Any]] = self._facts[_OPERATORS]
        return operators

    @property
    def static(self) -> Mapping[str, Mapping[str, Any]]:
        """The version of the static rows of each join, by uid."""
        static: Mapping[str, Mapping[str, Any]] = self._facts.get(STATIC, {})
        return static

    @property
    def moves_state(self) -> bool:
        """True for a batch that only moves the state into other partitions."""
        return bool(self._facts.get(_MOVES_STATE))

    @property
    def adopts(self) -> str | None:
        """The URL of the checkpoint of Spark that the batch only adopts, None for other batches."""
        adopts: str | None = self._facts.get(_ADOPTS)
        return adopts

    @property
    def _facts(self) -> Mapping[str, Any]:
        return self.begun.facts


@dataclass(frozen=True)
class QueryCommit:
    """The commit record of a query; see :func:`batch_end`."""

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
        return int(facts[_NEXT_TIMEOUT])


def source_uid(number: int) -> str:
    """Return the identity of a source, by its position in the plan."""
    return f"source-{number}"


def watermark_uid(number: int) -> str:
    """Return the identity of a watermark, by its position in the plan."""
    return f"watermark-{number}"


def _require_of_query(
    record: BeginRecord | CommitRecord, content: Mapping[str, object], names: Sequence[str]
) -> None:
    missing = next((name for name in names if name not in content), None)
    if missing is not None:
        raise RestartError(
            f"the checkpoint is of {record.stream_id}, which is not a query: its records have no "
            f"'{missing}'; use the checkpointLocation of a query, or a new directory"
        )
