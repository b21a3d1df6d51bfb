"""Durations: seconds at the public edge, integer milliseconds below it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.common.durations import (
    batch_datetime,
    batch_name,
    batch_time_ms,
    event_time_ms,
    event_time_us,
    ms_upto,
    parse_duration_ms,
    require_duration_ms,
    require_multiple,
)
from dstreams.errors import InvalidStreamError


@pytest.mark.parametrize(
    ("seconds", "expected_ms"),
    [
        (1, 1000),
        (0.5, 500),
        (2.01, 2010),
        (0.001, 1),
        (0.0005001, 1),
        (1.1, 1100),
        (86_400, 86_400_000),
        (Fraction(1, 4), 250),
        (timedelta(milliseconds=250), 250),
        (timedelta(minutes=2), 120_000),
    ],
)
def test_seconds_become_milliseconds(seconds: object, expected_ms: int) -> None:
    """Seconds are rounded to milliseconds; truncation would lose one."""
    assert require_duration_ms(seconds, "batchDuration") == expected_ms


@given(st.integers(min_value=1, max_value=10**10))
def test_milliseconds_survive_the_way_through_seconds(duration_ms: int) -> None:
    """Each whole number of milliseconds survives the conversion to seconds and back."""
    assert require_duration_ms(duration_ms / 1000, "batchDuration") == duration_ms


@pytest.mark.parametrize(
    "seconds",
    [0, -1, -0.5, 0.0004, float("nan"), float("inf"), float("-inf"), timedelta(0), timedelta(-1)],
)
def test_impossible_durations(seconds: object) -> None:
    """A duration that is not positive, not finite or below a millisecond is refused."""
    with pytest.raises(InvalidStreamError) as raised:
        require_duration_ms(seconds, "windowDuration")
    assert str(raised.value).startswith(
        "windowDuration must be a positive number of seconds, at least 0.001, got "
    )


@pytest.mark.parametrize("value", ["1", None, True, [1], Decimal(1), 1j])
def test_durations_of_the_wrong_type(value: object) -> None:
    """A value that is not a number of seconds, such as True, is shown with its type."""
    with pytest.raises(InvalidStreamError) as raised:
        require_duration_ms(value, "slideDuration")
    assert str(raised.value) == (
        f"slideDuration must be a number of seconds, got {value!r} ({type(value).__name__})"
    )


def test_error_is_a_value_error() -> None:
    """Programs that catch ValueError, which PySpark raises, keep working."""
    with pytest.raises(ValueError, match="got 0"):
        require_duration_ms(0, "batchDuration")


@pytest.mark.parametrize(
    ("duration_ms", "of_ms", "choice"),
    [(2500, 1000, "use 2000 or 3000 ms"), (500, 1000, "use 1000 ms"), (1001, 1000, "use 1000 or")],
)
def test_not_a_multiple(duration_ms: int, of_ms: int, choice: str) -> None:
    """The nearest multiples are offered, except zero."""
    with pytest.raises(InvalidStreamError) as raised:
        require_multiple(duration_ms, of_ms, "windowDuration", "the slide duration")
    assert str(raised.value).startswith(
        f"windowDuration of {duration_ms} ms must be a multiple of the slide duration of "
        f"{of_ms} ms; {choice}"
    )


@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_multiples_pass(of_ms: int, times: int) -> None:
    """A multiple is returned unchanged."""
    assert require_multiple(of_ms * times, of_ms, "windowDuration", "the slide") == of_ms * times


@pytest.mark.parametrize(
    ("text", "default_unit", "expected_ms"),
    [
        ("500", "ms", 500),
        ("60", "s", 60_000),
        ("200ms", "s", 200),
        ("60s", "ms", 60_000),
        ("2m", "ms", 120_000),
        ("2min", "ms", 120_000),
        ("1h", "ms", 3_600_000),
        ("1d", "ms", 86_400_000),
        (" 10 S ", "ms", 10_000),
        ("0", "ms", 0),
    ],
)
def test_parse(text: str, default_unit: str, expected_ms: int) -> None:
    """Durations are read as Spark writes them; a bare number has the unit of its key."""
    assert parse_duration_ms(text, "spark.any", default_unit) == expected_ms


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_batch_time_as_datetime(time_ms: int) -> None:
    """User functions get naive local time; with its zone it is the same moment."""
    moment = batch_datetime(time_ms)
    assert moment.tzinfo is None
    assert batch_time_ms(moment.astimezone(timezone.utc), "begin") == time_ms


@pytest.mark.parametrize(
    ("moment", "expected_ms"),
    [
        (2, 2000),
        (2.01, 2010),
        (Fraction(1, 2), 500),
        (datetime(2024, 1, 1, tzinfo=timezone.utc), 1_704_067_200_000),
        (datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2))), 1_704_060_000_000),
        (datetime.fromtimestamp(5, tz=timezone.utc).astimezone().replace(tzinfo=None), 5000),
    ],
)
def test_batch_time(moment: object, expected_ms: int) -> None:
    """A moment is given in seconds, or as a datetime, which without a zone is local."""
    assert batch_time_ms(moment, "begin") == expected_ms


@pytest.mark.parametrize("moment", ["now", None, True, timedelta(1), float("nan"), float("inf")])
def test_batch_time_refuses(moment: object) -> None:
    """A value that is not a moment is shown with its type."""
    with pytest.raises(InvalidStreamError) as raised:
        batch_time_ms(moment, "begin")
    assert str(raised.value) == (
        f"begin must be a datetime or a number of seconds, got {moment!r} ({type(moment).__name__})"
    )


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1 second", 1000),
        ("10 seconds", 10_000),
        ("-3 second", -3000),
        ("1 hour 30 minutes", 5_400_000),
        ("Interval 1 WEEK", 7 * 86_400_000),
        ("2 years 5 months", (24 + 5) * 31 * 86_400_000),
        ("1 month -31 days", 0),
        ("  5000 microseconds  ", 5),
        ("+2days", 2 * 86_400_000),
    ],
)
def test_in_words(text: str, expected_ms: int) -> None:
    """Durations are sums of numbers with units; a month is 31 days."""
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "not a duration")
            for text in ("", "10", "s", "five", "1.5s", "1s2", "2 mss", "5 hs")
        ),
        *(
            (text, "not a duration")
            for text in ("ten seconds", "1 second,", "1.5 seconds", "1 min s")
        ),
        ("1 microsecond", "not a whole number of milliseconds"),
    ],
)
def test_what_is_no_duration(text: str, message: str) -> None:
    """A text that cannot be parsed is shown with its name and a valid example."""
    with pytest.raises(InvalidStreamError, match=message) as raised:
        parse_duration_ms(text, "spark.any")
    assert str(raised.value).startswith(f"spark.any is {text!r}, which is not a ")


@pytest.mark.parametrize("is_naive", [False, True])
@pytest.mark.parametrize(
    ("second", "microsecond", "expected_ms"),
    [
        (0, 0, 0),
        (0, 999_499, 999),
        (0, 999_500, 999),
        (1_700_006_399, 999_999, 1_700_006_399_999),
        (1_700_006_400, 0, 1_700_006_400_000),
        (-1, 999_999, -1),
        (-1, 1, -1000),
        (-86_400, 500, -86_400_000),
        (11_000_000_000, 999_999, 11_000_000_000_999),
    ],
)
def test_a_moment_is_in_its_millisecond(
    second: int, microsecond: int, expected_ms: int, is_naive: bool
) -> None:
    """Fractions of a millisecond are rounded down, also before 1970."""
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(0, second, microsecond)
    if is_naive:
        moment = moment.astimezone().replace(tzinfo=None)
    assert event_time_ms(moment) == expected_ms
    assert event_time_us(moment) == second * 1_000_000 + microsecond


def test_a_batch_is_named_by_number_and_time() -> None:
    """In milliseconds, as in commands, and as in tables, with the time zone."""
    moment = datetime.fromtimestamp(1_763_942_472).astimezone()
    shown = f"{moment:%Y-%m-%d %H:%M:%S}"
    assert batch_name(1_763_942_472_000, 2) == (
        f"batch 2 at 1763942472000 ms ({shown} {moment.tzname()})"
    )
    assert f"({shown}.500 " in batch_name(1_763_942_472_500, 2)
    assert batch_name(10**18, 2) == "batch 2 at 1000000000000000000 ms"


@pytest.mark.parametrize(("time_us", "expected_ms"), [(0, 0), (1, 1), (1000, 1), (-1, 0)])
def test_a_millisecond_is_up_when_all_of_it_is(time_us: int, expected_ms: int) -> None:
    """A time within a millisecond is rounded up to its end."""
    assert ms_upto(time_us) == expected_ms
