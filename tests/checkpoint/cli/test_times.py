"""Times are parsed and formatted as ISO 8601; milliseconds are parsed, too."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.cli.common import iso, moment, time_ms

QUARTER_PAST = 1_795_464_900_000


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1795464900000", QUARTER_PAST),
        ("2026-11-23T20:15:00Z", QUARTER_PAST),
        ("2026-11-23t20:15z", QUARTER_PAST),
        ("2026-11-23T20:15:00.25Z", QUARTER_PAST + 250),
        ("2026-11-23T20:15:00,001Z", QUARTER_PAST + 1),
        ("2026-11-23T22:15:00+02:00", QUARTER_PAST),
        ("2026-11-23T14:45:00-05:30", QUARTER_PAST),
        ("2026-11-23T21:15:00", QUARTER_PAST),
        ("2026-11-23 21:15", QUARTER_PAST),
        ("2026-07-01", 1_782_856_800_000),  # 22:00 the day before, in UTC
    ],
)
@pytest.mark.usefixtures("in_berlin")
def test_times(text: str, ms: int) -> None:
    """A time has a zone or is local; a number is milliseconds."""
    assert time_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("now", "'now' must be a time such as 2026-11-23T20:15:00Z, or "),
        ("-5", "'-5' must be a time such as"),
        ("1e12", "'1e12' must be a time"),
        ("2026-11-23T20:15:00.1234Z", "must be a time such as"),
        ("2026-13-01", "'2026-13-01' is not a time: month must be in 1..12"),
        ("1969-12-31T23:59:59Z", "'1969-12-31T23:59:59Z' must be a time since 1970"),
        ("2026-10-25T02:30", "write it with a zone: 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30"),
        ("2026-03-29T02:30", "is ambiguous or skipped in local time"),
    ],
)
@pytest.mark.usefixtures("in_berlin")
def test_no_times(text: str, error: str) -> None:
    """Invalid and ambiguous times are rejected with an example."""
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        time_ms(text)
    assert error in str(refused.value)


@given(st.integers(0, 253_402_300_799_999))
def test_what_is_shown_is_read(ms: int) -> None:
    """Each formatted time is parsed as the same time."""
    assert time_ms(iso(ms)) == ms


def test_moments() -> None:
    """Both forms are shown; a time out of range is shown as a number."""
    assert moment(QUARTER_PAST) == "2026-11-23T20:15:00Z (1795464900000 ms)"
    assert moment(None) == "none"
    assert moment(10**15) == "1000000000000000 (1000000000000000 ms)"
