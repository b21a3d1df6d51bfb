"""The next batch: its time, its input, and its begin record; no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoint import BeginRecord, StorageRefusedError
from dstreams.engine.inputs import InputOffsets
from dstreams.engine.planner import BatchPlanner
from dstreams.engine.recovery.resume import batches_in_flight
from dstreams.engine.stream_checkpoint import AFTER
from dstreams.graph.node import InputDStream
from dstreams.graph.plan import Plan
from dstreams.monitoring.events import (
    BatchSubmitted,
    Event,
    InputInfo,
    OffsetProgress,
    ignore_event,
)
from dstreams.sources.source import PlannedInput, Source, SourceReader
from dstreams.testing import ManualClock


class FrozenPlan(SimpleNamespace):
    """The part of a plan that a planner uses."""

    batch_upto = Plan.batch_upto


PLAN: Any = FrozenPlan(zero_ms=0, batch_ms=1000, input_uids={}, outputs=())


def planner_at(now_ms: int) -> BatchPlanner:
    """Return a planner of a stream without inputs."""
    clock = ManualClock(start_ms=now_ms)
    return BatchPlanner(PLAN, {}, InputOffsets({}, {}, 0), None, clock, ignore_event, "stream-1")


@pytest.mark.parametrize(
    ("in_flight_ms", "expected"),
    [
        ([], [8000, 9000]),
        ([4000], [4000, 8000, 9000]),
        ([3001], [8000, 9000]),  # a driver died while it wrote its last snapshot
        ([3001, 4000], [4000, 8000, 9000]),
    ],
)
def test_batches_that_were_missed_are_left_out_once(
    in_flight_ms: list[int], expected: list[int]
) -> None:
    """They follow those that had begun; a commit between two batches is not a batch."""
    begun = tuple(BeginRecord("stream-1", 3, time_ms, 1, {}) for time_ms in in_flight_ms)
    recovery: Any = SimpleNamespace(in_flight=begun)
    planner = planner_at(8900)
    planner.resume(3000, {}, batches_in_flight(recovery, PLAN))
    planner.skip_missed()
    assert [planner.plan_batch().time_ms for _ in expected] == expected


@pytest.mark.parametrize("now_ms", [3000, 4999])
def test_no_batch_is_left_out_where_none_was_missed(now_ms: int) -> None:
    """The next batch is due now or later."""
    planner = planner_at(now_ms)
    planner.resume(3000, {}, {})
    planner.skip_missed()
    assert [planner.plan_batch().time_ms for _ in range(2)] == [4000, 5000]


@pytest.mark.parametrize(
    ("now_ms", "in_flight_ms", "leaves_out", "expected"),
    [
        (3000, [], False, (0, 3000)),
        (4999, [], False, (1, 4000)),
        (8900, [], False, (5, 8000)),
        (8900, [4000, 5000], False, (5, 8000)),
        (3500, [4000, 5000], False, (2, 5000)),
        (8900, [4000, 5000], True, (3, 8000)),
        (8900, [], True, (1, 8000)),
    ],
)
def test_how_far_a_restart_is_behind(
    now_ms: int, in_flight_ms: list[int], leaves_out: bool, expected: tuple[int, int]
) -> None:
    """It counts the batches up to now that run again, and those that were missed, or one."""
    planner = planner_at(now_ms)
    in_flight = {time_ms: BeginRecord("stream-1", 3, time_ms, 1, {}) for time_ms in in_flight_ms}
    planner.resume(3000, {}, in_flight)
    if leaves_out:
        planner.skip_missed()
    assert planner.behind() == expected
    planned = [planner.plan_batch().time_ms for _ in range(expected[0])]
    assert planned[-1:] == [expected[1]][: expected[0]]


@dataclass
class Numbers(SourceReader):
    """A reader with two more records per batch, except for batches in which it fails."""

    fails_at: tuple[int, ...] = ()

    def plan(self, start: int | None, time_ms: int) -> PlannedInput:
        if time_ms in self.fails_at:
            raise OSError("gone")
        return PlannedInput(time_ms, start, (start or 0) + 2, records=2)


@dataclass
class Log:
    """A checkpoint that keeps begin records, except for the batch at which storage fails."""

    fails_at: int = 0
    begun: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def begin(
        self, batch_id: int, time_ms: int, inputs: Mapping[str, Any], *, facts: Any, token: str
    ) -> None:
        if time_ms == self.fails_at:
            raise StorageRefusedError("disk full")
        assert batch_id == time_ms // 1000 - 1
        self.begun[time_ms] = dict(inputs), dict(facts), token


class Planned:
    """A planner of a stream with inputs, which are named by their readers."""

    def __init__(
        self, log: Log, begins: Mapping[int, BeginRecord] | None = None, **readers: Numbers
    ) -> None:
        streams: dict[str, Any] = {
            uid: InputDStream(number, NumberSource(), 1000, f"{uid} at a.py:{number}")
            for number, uid in enumerate(readers)
        }
        plan: Any = FrozenPlan(
            zero_ms=0,
            batch_ms=1000,
            input_uids={stream: uid for uid, stream in streams.items()},
            outputs=(),
        )
        opened: Any = {streams[uid]: reader for uid, reader in readers.items()}
        by_uid: Any = readers
        any_log: Any = log
        self.events: list[Event] = []
        self.planner = BatchPlanner(
            plan,
            opened,
            InputOffsets(by_uid, begins or {}, 1000),
            any_log,
            ManualClock(start_ms=700),
            self.events.append,
            "stream-1",
        )


class NumberSource(Source):
    """A source of a sequence of numbers."""

    name = "numbers"

    def open(self, environment: Any) -> Any:
        raise NotImplementedError


def ends(log: Log) -> dict[int, list[Any]]:
    """Return the end of the input of each batch."""
    return {
        time_ms: [said["end"] for said in inputs.values()]
        for time_ms, (inputs, _, _) in log.begun.items()
    }


def test_each_batch_reads_on_where_the_one_before_has_ended() -> None:
    """The begin record is written before any event reports the batch."""
    log = Log()
    made = Planned(log, a=Numbers(), b=Numbers())
    batches = [made.planner.plan_batch() for _ in range(3)]
    assert [batch.time_ms for batch in batches] == [1000, 2000, 3000]
    assert ends(log) == {1000: [2, 2], 2000: [4, 4], 3000: [6, 6]}
    assert [begun[1] for begun in log.begun.values()] == [{}] * 3
    assert [batch.batch_token for batch in batches] == [begun[2] for begun in log.begun.values()]
    assert len({batch.batch_token for batch in batches}) == 3
    assert made.events == [BatchSubmitted(batch.pending()) for batch in batches]


def test_inputs_are_told_apart() -> None:
    """They have the name of their source, with a number if several have the same name."""
    batch = Planned(Log(), a=Numbers(), b=Numbers()).planner.plan_batch()
    read = OffsetProgress(None, 2, 2, {})
    assert batch.input_infos == (
        InputInfo(0, "numbers #0", 2, "", offsets=read),
        InputInfo(1, "numbers #1", 2, "", offsets=read),
    )
    (info,) = Planned(Log(), a=Numbers()).planner.plan_batch().input_infos
    assert info.name == "numbers"


def test_a_source_that_fails_makes_a_batch_that_fails() -> None:
    """The batch reads nothing of it, and the next one reads the rest."""
    log = Log()
    made = Planned(log, a=Numbers(fails_at=(1000,)), b=Numbers())
    failed, following = made.planner.plan_batch(), made.planner.plan_batch()
    assert failed.failure is not None
    assert failed.failure.where == "reading the input of a at a.py:0"
    assert following.failure is None
    assert ends(log) == {1000: [None, 2], 2000: [2, 4]}


def test_after_a_batch_that_could_not_be_begun_none_is() -> None:
    """Its input is in no batch until a restart finds out what was begun."""
    log = Log(fails_at=2000)
    made = Planned(log, a=Numbers())
    batches = [made.planner.plan_batch() for _ in range(3)]
    assert list(log.begun) == [1000]
    assert batches[0].failure is None
    assert batches[1].failure is not None
    assert batches[1].failure.where == "writing its begin record"
    assert batches[2].failure == batches[1].failure


def test_a_batch_in_flight_runs_again_as_it_was() -> None:
    """It has the same input and token, and nothing of an input that was added."""
    said = PlannedInput(2000, 2, 7, records=5).to_record()
    begins = {
        1000: BeginRecord("stream-1", 0, 1000, 1, {"a": {"end": 2}}),
        2000: BeginRecord("stream-1", 1, 2000, 1, {"a": said}, beginning="then"),
    }
    log = Log()
    made = Planned(log, begins, a=Numbers(), b=Numbers())
    made.planner.resume(1000, begins, {2000: begins[2000]})
    again, following = made.planner.plan_batch(), made.planner.plan_batch()
    assert [info.records for info in again.input_infos] == [5, 0]
    assert [again.batch_token, following.batch_token == again.batch_token] == ["then", False]
    assert ends(log) == {3000: [9, 2]}


def test_a_record_names_the_batch_before_a_gap() -> None:
    """Outputs receive the ids of the skipped batches."""
    log = Log()
    made = Planned(log, a=Numbers())
    made.planner.resume(1000, {}, {})
    made.planner._clock = ManualClock(start_ms=6500)
    made.planner.skip_missed()
    batches = [made.planner.plan_batch() for _ in range(2)]
    assert [(batch.time_ms, batch.after_ms) for batch in batches] == [(6000, 1000), (7000, None)]
    assert [begun[1] for begun in log.begun.values()] == [{AFTER: 1000}, {}]
    told = made.planner.begun.output_batch(6000, "now")
    assert (told.batch_id, told.left_out, told.newest) == (5, range(1, 5), 6)
    assert told.gap == range(1, 5)
    following = made.planner.begun.output_batch(7000, "now")
    assert (following.left_out, following.gap) == (range(1, 5), range(0))
