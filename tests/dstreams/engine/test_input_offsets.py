"""Up to where batches read inputs, asked by their times. No Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoint import BeginRecord
from checkpoint.storage.json_records import encode
from dstreams.engine.input_offsets import InputOffsets, planned_before, planned_in
from dstreams.sources.source import PlannedInput


class Partitions:
    """A reader whose offset has a number for each partition of a topic, and that keeps calls."""

    not_replayable_reason: str | None = None

    def __init__(self, size: int | None = 0) -> None:
        self.size = size
        self.calls: list[tuple[str, Any]] = []

    def snapshot_size(self) -> int | None:
        return self.size

    def snapshot(self, end: Any) -> Mapping[str, Any]:
        return {"upto": end}

    def retire(self, end: Any) -> None:
        self.calls.append(("retire", end))

    def release(self, end: Any) -> None:
        self.calls.append(("release", end))


def at(number: int) -> dict[str, int]:
    return {"0": number, "1": 2 * number}


def begun(*batches: tuple[int, PlannedInput | None]) -> dict[int, BeginRecord]:
    """Begin records as a restart reads them, of batches that have the input or not."""
    return {
        time_ms: BeginRecord(
            "stream", 0, time_ms, 1, {} if one is None else {"topic": read_back(one.to_record())}
        )
        for time_ms, one in batches
    }


def read_back(said: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(encode(said))
    return read


def planned(time_ms: int, start: int | None, end: int | None, **more: Any) -> PlannedInput:
    first, last = (None if number is None else at(number) for number in (start, end))
    return PlannedInput(time_ms, first, last, **more)


@pytest.mark.parametrize(
    "one",
    [
        planned(1000, None, None),
        planned(1000, None, 3),
        planned(1000, 3, 3, description="nothing new"),
        planned(1000, 3, 4, facts={"files": ["a"]}, records=None, description="a"),
        planned(1000, 3, 4, records=0),
    ],
)
def test_what_a_batch_reads_comes_back_from_its_record(one: PlannedInput) -> None:
    """Whether it reads anything or not, and begins where another one ended or at the beginning."""
    assert PlannedInput.from_record(1000, read_back(one.to_record())) == one


def test_the_next_batch_reads_after_the_last_one() -> None:
    """Also after a restart, with batches between that have not had the input."""
    before = begun((1000, planned(1000, None, 1)), (2000, None), (3000, planned(3000, 1, 2)))
    reader: Any = Partitions()
    ends = InputOffsets({"topic": reader}, before, 2000)
    assert ends.newest("topic") == at(1)
    assert [ends.at("topic", ms) for ms in (999, 1000, 2500)] == [None, at(1), at(1)]
    ends.begun(3000, {"topic": at(2), "of another stream": 7})
    assert ends.newest("topic") == at(2)
    assert planned_in(before, "topic") == {
        1000: planned(1000, None, 1),
        3000: planned(3000, 1, 2),
    }


@pytest.mark.parametrize(("size", "is_kept"), [(0, True), (None, False)])
def test_ends_are_kept_as_long_as_a_snapshot_may_ask(size: int | None, is_kept: bool) -> None:
    """Only of readers that have to know what was read; of the others as long as RDDs are used."""
    one = Partitions(size)
    reader: Any = one
    ends = InputOffsets({"topic": reader}, {}, 0)
    for number in range(1, 5):
        ends.begun(number * 1000, {"topic": at(number)})
    ends.release("topic", 500)
    ends.release("topic", 3000)
    assert one.calls == [("release", at(3))]
    assert ends.at("topic", 2000) == (at(2) if is_kept else None)
    assert ends.snapshot(2999) == ({"topic": {"upto": at(2)}} if is_kept else {})
    ends.retire(2999)
    assert one.calls[1:] == ([("retire", at(2))] if is_kept else [])
    assert ends.at("topic", 1999) is None
    assert ends.at("topic", 3000) == at(3)
    assert ends.newest("topic") == at(4)


def test_what_is_gone_with_a_driver_is_planned_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """The log says how many records were lost, and why; the offset goes on after them."""
    caplog.set_level(logging.WARNING)
    source: Any = SimpleNamespace(name="lines", restart_refusal=None)
    reader: Any = Partitions()
    said = planned(1000, 1, 2, records=5).to_record()
    assert planned_before(source, reader, 1000, said) == planned(1000, 1, 2, records=5)
    assert planned_before(source, reader, 1000, None) is None
    reader.not_replayable_reason = "it cannot replay"
    assert planned_before(source, reader, 1000, said) == planned(1000, 2, 2, description="lost")
    assert caplog.messages == [
        "lines: 5 records of the batch at 1000 ms are lost: it cannot replay"
    ]
    source.restart_refusal = "it cannot go on at all"
    assert planned_before(source, reader, 1000, said) == planned(1000, 1, 2, records=5)
