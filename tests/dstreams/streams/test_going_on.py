"""Which batch comes first after a restart. No Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from checkpoint import BeginRecord
from dstreams.events import tell_nobody
from dstreams.kernel.input_ends import InputEnds
from dstreams.recovery.replay import batches_in_flight
from dstreams.streams.planner import BatchPlanner
from dstreams.testing import ManualClock

PLAN: Any = SimpleNamespace(zero_ms=0, batch_ms=1000, input_uids={}, outputs=())


@pytest.mark.parametrize(
    ("in_flight_ms", "expected"),
    [
        ([], [8000, 9000]),
        ([4000], [4000, 8000, 9000]),
        ([3001], [8000, 9000]),  # a driver died while it wrote its last copy
        ([3001, 4000], [4000, 8000, 9000]),
    ],
)
def test_batches_that_were_missed_are_left_out_once(
    in_flight_ms: list[int], expected: list[int]
) -> None:
    """After those that had begun; a commit between two batches was none."""
    begun = tuple(BeginRecord("stream-1", 3, time_ms, 1, {}) for time_ms in in_flight_ms)
    recovery: Any = SimpleNamespace(in_flight=begun)
    clock = ManualClock(start_ms=8900)
    planner = BatchPlanner(PLAN, {}, InputEnds({}, {}, 0), None, clock, tell_nobody, "stream-1")
    planner.resume(3000, {}, batches_in_flight(recovery, PLAN))
    planner.leave_out_missed()
    assert [planner.plan_batch().time_ms for _ in expected] == expected


@pytest.mark.parametrize("now_ms", [3000, 4999])
def test_no_batch_is_left_out_where_none_was_missed(now_ms: int) -> None:
    """The next one is due, or will be."""
    clock = ManualClock(start_ms=now_ms)
    planner = BatchPlanner(PLAN, {}, InputEnds({}, {}, 0), None, clock, tell_nobody, "stream-1")
    planner.resume(3000, {}, {})
    planner.leave_out_missed()
    assert [planner.plan_batch().time_ms for _ in range(2)] == [4000, 5000]
