"""Records that an operation has skipped, because their function failed or because they were late.

Workers import this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

from dstreams.common.settings import choice
from dstreams.errors import StreamError
from dstreams.spark.failures import UserFunctionError, summarize
from dstreams.spark.task_reports import LeftOut, TaskReport

Task = Callable[[int, Iterable[Any]], Iterable[Any]]
Offset = tuple[str, int, int]

OnError = Literal["fail", "skip"]
"""A record whose function fails, fails the batch, or is skipped and counted."""

ON_ERROR = choice("fail", "skip")

_FAIL_THE_TASK = (StreamError, MemoryError)
"""Errors that no record causes: they fail the task in any case."""

_REASON_LENGTH = 200


class RejectedRecord(NamedTuple):
    """A record that an operation has skipped.

    Args:
        operator: the operation with its function, or the name of the state of an operator that
            drops late records.
        reason: type and shortened message of the exception, or event time and watermark.
        record: the record, as the operation received it.
        event_time_ms: its event time, None if it has none.
        batch_time_ms: time of the batch.
        offset: ``(topic, partition, offset)`` of a record that has these fields, such as one of
            Kafka; None after an operation that makes other records.
    """

    operator: str
    reason: str
    record: Any
    event_time_ms: int | None
    batch_time_ms: int
    offset: Offset | None

    def to_json(self) -> bytes:
        """Return the fields as a JSON object; values without a form in JSON become texts."""
        return json.dumps(self._asdict(), default=_text).encode()


def _text(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def rejected(
    operator: str, reason: str, record: Any, time_us: int | None, batch_time_ms: int
) -> RejectedRecord:
    """Return a rejected record; its event time is in microseconds."""
    offset = None
    if {"topic", "partition", "offset"} <= set(getattr(record, "_fields", ())):
        offset = (record.topic, record.partition, record.offset)
    event_ms = None if time_us is None else time_us // 1000
    return RejectedRecord(operator, reason, record, event_ms, batch_time_ms, offset)


class _Aside(NamedTuple):
    """A rejected record among the results of an :class:`Attempt`."""

    rejected: RejectedRecord


def results(_: int, rows: Iterable[Any]) -> Iterator[Any]:
    """Task: the results of an :class:`Attempt` without rejected records."""
    return (row for row in rows if row.__class__ is not _Aside)


def rejections(_: int, rows: Iterable[Any]) -> Iterator[RejectedRecord]:
    """Task: the rejected records among the results of an :class:`Attempt`."""
    return (row.rejected for row in rows if row.__class__ is _Aside)


@dataclass(frozen=True)
class Attempt:
    """Task: applies *task* to one element at a time, and reports those for which it fails.

    They are among the results, for :func:`results` and :func:`rejections`. With *are_events*,
    elements are pairs of event time and record. A task of functions that may be called again is
    applied to *at_once* elements, and to each by itself only if it fails for them.
    """

    task: Task
    operator: str
    batch_time_ms: int
    report: TaskReport[LeftOut]
    are_events: bool = False
    at_once: int = 1

    def __call__(self, split: int, elements: Iterable[Any]) -> Iterator[Any]:
        remaining, seen = iter(elements), 0
        errors: list[str] = []
        try:
            while several := list(islice(remaining, self.at_once)):
                seen += len(several)
                yield from self._tried(split, several, errors)
        finally:
            if errors:
                left_out = LeftOut(len(errors), errors[0], "failed")
                self.report(split, seen, left_out)

    def _tried(self, split: int, elements: list[Any], errors: list[str]) -> Iterable[Any]:
        """Return the results, and add the text of an error to *errors* for each that fails."""
        try:
            return list(self.task(split, elements))
        except UserFunctionError as error:
            if isinstance(error.__cause__, _FAIL_THE_TASK):
                raise
            if len(elements) > 1:
                return chain.from_iterable(self._tried(split, [one], errors) for one in elements)
            errors.append("" if errors else summarize(error))
            return [_Aside(self._rejected(elements[0], error))]

    def _rejected(self, element: Any, error: UserFunctionError) -> RejectedRecord:
        time_us, record = element if self.are_events else (None, element)
        reason = " ".join(summarize(error.__cause__ or error).split())
        if len(reason) > _REASON_LENGTH:
            reason = f"{reason[: _REASON_LENGTH - 3]}..."
        return rejected(self.operator, reason, record, time_us, self.batch_time_ms)


def event_time_itself(time_us: int, record: Any) -> int:
    """Return the time up to which a record is not late: its event time."""
    return time_us


@dataclass(frozen=True)
class LateRecords:
    """Task: events -> the late ones; *end_us* returns the end of an event by time and record.

    An event is late if its end is not after the watermark.
    """

    operator: str
    watermark_ms: int
    batch_time_ms: int
    end_us: Callable[[int, Any], int] = event_time_itself

    def __call__(self, _: int, events: Iterable[Any]) -> Iterator[RejectedRecord]:
        late_us = self.watermark_ms * 1000
        for time_us, record in events:
            if time_us is not None and self.end_us(time_us, record) <= late_us:
                reason = f"late: event time {time_us // 1000} ms, watermark {self.watermark_ms} ms"
                yield rejected(self.operator, reason, record, time_us, self.batch_time_ms)


@dataclass(frozen=True)
class LatePairs:
    """Task: pairs -> those whose value is late; *event_time* returns that of a value."""

    late: LateRecords
    event_time: Callable[[Any], int | None]

    def __call__(self, split: int, pairs: Iterable[Any]) -> Iterator[RejectedRecord]:
        return self.late(split, ((self.event_time(value), (key, value)) for key, value in pairs))
