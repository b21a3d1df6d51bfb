"""Which batch comes first after a restart. No Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from checkpoint import BeginRecord
from dstreams.recovery.replay import batches_in_flight
from dstreams.streams.engine import Engine
from dstreams.testing import ManualClock

PLAN: Any = SimpleNamespace(zero_ms=0, batch_ms=1000)


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
    nothing: Any = None
    engine = Engine(PLAN, nothing, {}, None, ManualClock())
    engine.resume(3000, batches_in_flight(recovery, PLAN))
    engine.leave_out(7000)
    assert [_next(engine) for _ in expected] == expected


def _next(engine: Engine) -> int:
    time_ms = engine.next_time_ms
    engine._last_planned_ms = time_ms
    return time_ms
