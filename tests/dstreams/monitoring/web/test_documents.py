"""Statuses as JSON: complete, with their names, for any values. No Spark."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from dstreams.common.redaction import REDACTED, redacted
from dstreams.kafka.offsets import OffsetRange, TopicPartition
from dstreams.monitoring.events import (
    BatchInfo,
    EventTimes,
    InputInfo,
    OffsetProgress,
    OutputOperationInfo,
    PendingBatch,
    PlannedOutput,
    ReceiverInfo,
    StateOperatorInfo,
)
from dstreams.monitoring.status import (
    CheckpointStatus,
    GraphNode,
    PartitionSize,
    RunningBatch,
    StateStatus,
    StreamStatus,
    Totals,
)
from dstreams.monitoring.web.documents import (
    MOST_TEXT,
    ApplicationFacts,
    status_document,
    text_of,
    to_json,
)
from tests.support.pages import FACTS, batch

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028\x00\r\n\ndata: x\n\n"

INPUT = InputInfo(
    0,
    "kafka",
    3,
    "words-0 from 4 to 7",
    {
        "offsets": [OffsetRange("words", 0, 4, 7)],
        "lag": {TopicPartition("words", 0): 5},
        "rejected": 2,
        "other": object(),
    },
    OffsetProgress({"words": {"0": 4}}, {"words": {"0": 7}}, None, {"avgOffsetsBehindLatest": "5"}),
)
PENDING = PendingBatch(2, 3000, (INPUT,), (PlannedOutput(0, "print"),), 3000, 3001)
FULL = StreamStatus(
    kind="stream",
    id="stream-1",
    run_id="run-1",
    name=HOSTILE,
    phase="active",
    message="",
    started_ms=1,
    ended_ms=None,
    now_ms=5000,
    batch_ms=1000,
    totals=Totals({"succeeded": 1}).with_batch(batch(0)),
    waiting=(PENDING,),
    running=RunningBatch(PENDING, PlannedOutput(0, HOSTILE)),
    recent=(
        batch(
            0,
            inputs=(INPUT,),
            outputs=(OutputOperationInfo(0, "print", 1, 2, HOSTILE, 3),),
            states=(StateOperatorInfo("counts", "map", 2, {"numTotalStateRows": 1}, 7),),
            durations_ms={"addBatch": 5},
            event_times=EventTimes(3, 1, 2.5),
        ),
    ),
    graph=(GraphNode(0, "input", HOSTILE, "uid", (), "durable"),),
    states=(StateStatus("counts", "map", 1000, 1, None, 10, (PartitionSize(0, 1, 10),)),),
    checkpoint=CheckpointStatus("file:/c", 1, "here", 0, 1000, 1000, (0, 0), (1,), 10),
    receivers=(ReceiverInfo(0, "socket", True, "here", "driver"),),
    rate_limits={"kafka": 10.5},
    failure=None,
)


def document_of(*statuses: StreamStatus, batches: int = 200) -> Any:
    return json.loads(to_json(status_document(FACTS, statuses, 7, lambda _: batches)))


def names(value: Any) -> Any:
    """Return the names of the fields of a value, and of all that is in it."""
    if isinstance(value, OffsetProgress):
        return dict.fromkeys(value._fields)
    if is_dataclass(value):
        return {each.name: names(getattr(value, each.name)) for each in fields(value)}
    return [names(each) for each in value] if isinstance(value, tuple) else None


def missing(expected: Any, found: Any, path: str) -> list[str]:
    if isinstance(expected, dict):
        return [
            problem
            for name, each in expected.items()
            for problem in (
                missing(each, found[name], f"{path}.{name}")
                if name in found
                else [f"{path}.{name}"]
            )
        ]
    if isinstance(expected, list):
        assert len(expected) == len(found)
        both = zip(expected, found, strict=True)
        return [problem for each, one in both for problem in missing(each, one, path)]
    return []


def test_every_field_is_there_by_its_name() -> None:
    """Every field of a status is in the document; batches also have their delays."""
    [stream] = document_of(FULL)["streams"]
    assert missing(names(FULL), stream, "status") == []
    assert set(stream) == {*(each.name for each in fields(StreamStatus)), "lags"}
    [one] = stream["recent"]
    delays = {"scheduling_delay_ms": 1, "processing_delay_ms": 10, "total_delay_ms": 11}
    assert set(one) == {each.name for each in fields(BatchInfo)} | set(delays)
    assert {name: one[name] for name in delays} == delays


def test_an_input_has_what_is_json() -> None:
    """Lag by partition and named offsets; values without JSON are omitted."""
    [given] = document_of(FULL)["streams"][0]["recent"][0]["inputs"]
    assert given["metadata"] == {"lag": {"words-0": 5}, "rejected": 2}
    assert given["offsets"] == {
        "start": {"words": {"0": 4}},
        "end": {"words": {"0": 7}},
        "latest": None,
        "metrics": {"avgOffsetsBehindLatest": "5"},
    }


def test_hostile_names_stay_text() -> None:
    """They are what they were, in one line of JSON, which ends no event."""
    data = to_json(status_document(FACTS, (FULL,), 7, lambda _: 1))
    assert b"\n" not in data
    assert b"\r" not in data
    assert b"\x00" not in data
    assert json.loads(data)["streams"][0]["name"] == HOSTILE


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"file-\udc80": ["a\udc80"]}, {"file-?": ["a?"]}),
        (float("nan"), None),
        (float("inf"), None),
        (1 << 70, 1 << 70),
        ({1: 2}, {"1": 2}),
        (b"x", "eA=="),
        (range(3), "range(0, 3)"),
        ((1, (2,)), [1, [2]]),
    ],
)
def test_whatever_there_is_becomes_json(value: Any, expected: Any) -> None:
    """No value of a source makes the page fail."""
    assert json.loads(to_json(value)) == expected


def test_the_newest_batches_are_there() -> None:
    """The requested number of batches, none for 0."""
    status = StreamStatus(**{**vars(FULL), "recent": tuple(batch(n) for n in range(5))})
    for count, expected in ((0, []), (2, [3, 4]), (9, [0, 1, 2, 3, 4])):
        [stream] = document_of(status, batches=count)["streams"]
        assert [each["batch_id"] for each in stream["recent"]] == expected


def test_secrets_are_masked() -> None:
    """By Spark's rule and ours; the names of settings stay."""
    settings = {
        "spark.app.name": "a",
        "spark.redaction.regex": "(?i)hidden",
        "spark.my.hidden": "1",
        "spark.dstreams.ui.token": "0123456789abcdef",
        "spark.executorEnv.DB_PASS": "1",
        "spark.some.url": "jdbc://me:word@host/db",
    }
    shown = redacted(settings)
    assert list(shown) == sorted(settings)
    open_ones = {name for name, value in shown.items() if value != REDACTED}
    assert open_ones == {"spark.app.name", "spark.redaction.regex"}
    facts = ApplicationFacts("a", "1", None, "0", "4", 0, shown)
    document = json.loads(to_json(status_document(facts, (), 7, lambda _: 1)))
    assert document["settings"] == shown
    assert "settings" not in document["application"]
    assert document["application"]["now_ms"] == 7


class Long:
    def __repr__(self) -> str:
        return "x" * 10**6


class Broken:
    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("value", ["x" * 10**6, [1] * 10**6, {n: n for n in range(10**5)}, Long()])
def test_a_large_value_is_cut(value: Any) -> None:
    """The text of any value is bounded."""
    assert len(text_of(value)) <= MOST_TEXT + len("...")


def test_a_value_without_a_text_has_one() -> None:
    """Its class is named."""
    assert text_of(Broken()).startswith("<Broken instance at ")


def test_of_many_batches_that_wait_the_next_ones_have_their_offsets() -> None:
    """A stream that is behind may have a thousand, each with all partitions of a topic."""
    waiting = tuple(replace(PENDING, batch_id=number) for number in range(100))
    status = StreamStatus(**{**vars(FULL), "waiting": waiting})
    document = json.loads(to_json(status_document(FACTS, [status], 0, lambda _: 0)))
    told = [batch["inputs"][0] for batch in document["streams"][0]["waiting"]]
    assert len(told) == 100
    assert {each["records"] for each in told} == {INPUT.records}
    assert all(each["offsets"] and each["description"] for each in told[:10])
    assert not any(each["offsets"] or each["metadata"] for each in told[10:])
