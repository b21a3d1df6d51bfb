"""A warning about what happens often."""

from __future__ import annotations

import logging

import pytest

from dstreams.sources.repeated_warning import RepeatedWarning
from tests.support.surroundings import HandClock

logger = logging.getLogger(__name__)


def test_it_is_said_at_once_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """What is not said at once is counted, and said with the next one, or at the end."""
    clock = HandClock(1000)
    warning = RepeatedWarning(logger, clock, "%s: %d", "100 % of it")
    for time_ms, count in (1000, 1), (1001, 2), (60_999, 3), (61_000, 4), (61_001, 5):
        clock.time_ms = time_ms
        warning.add(count)
    warning.flush()
    warning.flush()
    assert caplog.messages == ["100 % of it: 1", "100 % of it: 9", "100 % of it: 5"]


def test_a_clock_that_was_set_back_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The minute counts from what was said last, also if that seems to be in the future."""
    clock = HandClock(1_000_000)
    warning = RepeatedWarning(logger, clock, "%d")
    warning.add(1)
    clock.time_ms = 1000
    warning.add(2)
    assert caplog.messages == ["1", "2"]
