"""When batches are due by a clock that stands where no batch time is. No Spark."""

from __future__ import annotations

import logging

import pytest

from dstreams.engine.scheduler import BatchTimer

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("rule", "time_ms", "now_ms", "due_ms"),
    [
        ("at its time", 11_000, 10_000, 11_000),
        ("also when that has passed: a late driver skips none", 11_000, 99_000, 11_000),
        ("never more than a batch from now", 11_000, 9_000, 10_000),
        ("at a multiple of the batch duration", 11_000, 8_400, 9_000),
        ("after now", 11_000, 8_999, 9_000),
        ("after now, not at once", 11_000, 9_001, 10_000),
        ("an hour makes no other rule", HOUR_MS + 11_000, 10_300, 11_000),
    ],
)
def test_a_batch_is_due(rule: str, time_ms: int, now_ms: int, due_ms: int) -> None:
    """A clock that was set back moves the next batch and does not stretch a wait."""
    assert BatchTimer(1000).due_ms(time_ms, now_ms) == due_ms, rule


def test_a_clock_that_is_behind_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """One message when it was set back, one when further back, one when it has caught up."""
    pace = BatchTimer(1000)
    with caplog.at_level(logging.INFO, "dstreams"):
        assert pace.due_ms(7_201_000, 7_200_000) == 7_201_000
        assert pace.due_ms(7_201_000, 3_600_500) == 3_601_000
        assert pace.due_ms(7_202_000, 3_601_000) == 3_602_000
        assert pace.due_ms(7_203_000, 1_000) == 2_000
        assert pace.due_ms(7_204_000, 7_300_000) == 7_204_000
    first, further, caught_up = caplog.records
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    assert first.getMessage() == (
        "the clock shows 1970-01-01 01:00:00.500000, and the next batch is that at 7201000 ms "
        "(1970-01-01 02:00:01): the clock was set back, or batches ran early. Batches continue, "
        "one every 1000 ms, with batch times that are 3600 s ahead of the clock until it has "
        "caught up"
    )
    assert "7201 s ahead" in further.getMessage()
    assert caught_up.getMessage() == "the clock has caught up with the batch at 7204000 ms"
