"""Rejected records, and the tasks that find them, without Spark."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from dstreams.kafka.decoding import KafkaRow
from dstreams.kafka.kafka_sink import RowsToRecords
from dstreams.spark.element_tasks import Map
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.rejected_records import (
    Attempt,
    LateRecords,
    RejectedRecord,
    rejected,
    rejections,
    results,
)
from dstreams.spark.task_reports import LeftOut

ROW = KafkaRow(None, b"v\xff", "clicks", 2, 17, datetime(2026, 1, 2), 0)  # noqa: DTZ001 - as in Spark


def attempt(func: Any, elements: list[Any], *, are_events: bool = False) -> tuple[Any, Any, Any]:
    """Return results, rejected records and reports."""
    reports: list[Any] = []

    def report(split: int, seen: int, fact: LeftOut) -> None:
        reports.append((split, seen, fact))

    task: Any = Attempt(Map(func, "map(f)"), "map(f)", 5000, report, are_events)  # type: ignore[arg-type]
    rows = list(task(3, elements))
    return list(results(0, rows)), list(rejections(0, rows)), reports


def test_each_element_is_tried_alone() -> None:
    """The others have their results; the report has the number of failures and the first."""
    good, bad, reports = attempt(lambda number: 6 // number, [1, 0, 2, 0])
    assert good == [6, 3]
    reason = "ZeroDivisionError: integer division or modulo by zero"
    assert bad == [RejectedRecord("map(f)", reason, 0, None, 5000, None)] * 2
    first = f"map(f) failed for record 0: {reason}"
    assert reports == [(3, 4, LeftOut(2, first, "failed"))]


def test_several_at_once() -> None:
    """Elements are tried alone only beside one that fails, and stay in order."""
    calls: list[int] = []

    def task(_: int, numbers: Any) -> list[int]:
        calls.append(len(numbers))
        return list(Map(lambda number: 6 // number, "map(f)")(0, numbers))

    reports: list[Any] = []
    tried: Any = Attempt(task, "map(f)", 5000, lambda *facts: reports.append(facts), at_once=3)
    rows = list(tried(0, [1, 2, 3, 6, 0, 1, 2]))
    assert list(results(0, rows)) == [6, 3, 2, 1, 6, 3]
    assert [one.record for one in rejections(0, rows)] == [0]
    assert calls == [3, 3, 1, 1, 1, 1]
    assert [(seen, fact.records) for _, seen, fact in reports] == [(7, 1)]


def test_a_long_reason_is_cut() -> None:
    """It is one line of at most 200 characters."""

    def fail(_: Any) -> None:
        raise ValueError("x\n" * 500)

    ((rejected_one,), _) = attempt(fail, [1])[1:]
    assert len(rejected_one.reason) == 200
    assert rejected_one.reason.startswith("ValueError: x x x")
    assert rejected_one.reason.endswith("...")


def test_an_error_that_no_record_causes() -> None:
    """It fails the task."""

    def fail(_: Any) -> None:
        raise MemoryError

    with pytest.raises(UserFunctionError, match="MemoryError"):
        attempt(fail, [1])


def test_late_events() -> None:
    """Those whose end is not after the watermark; an event without a time is never late."""
    late = LateRecords("counts", 2, 5000, lambda time_us, record: time_us + record)
    events = [(None, 0), (1999, 1), (1999, 2), (2001, 0), (1000, 0)]
    found = list(late(0, events))
    assert [one.record for one in found] == [1, 0]
    assert found[0] == RejectedRecord(
        "counts", "late: event time 1 ms, watermark 2 ms", 1, 1, 5000, None
    )


def test_the_offset_of_a_record_of_kafka() -> None:
    """It is known as long as the record has it; a sink of Kafka writes JSON."""
    one = rejected("map(f)", "ValueError", ROW, 1_500_000, 5000)
    assert (one.offset, one.event_time_ms) == (("clicks", 2, 17), 1500)
    (written,) = RowsToRecords("bad", "KafkaSink[bad]")([one])
    assert (written.topic, written.key) == ("bad", None)
    assert json.loads(written.value or b"") == {
        "operator": "map(f)",
        "reason": "ValueError",
        "record": [None, "v\\xff", "clicks", 2, 17, "2026-01-02 00:00:00", 0],
        "event_time_ms": 1500,
        "batch_time_ms": 5000,
        "offset": ["clicks", 2, 17],
    }
