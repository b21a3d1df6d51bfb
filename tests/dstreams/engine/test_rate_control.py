"""Backpressure: the estimator, and the sources that it limits; no Spark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams import InvalidStreamError, Settings
from dstreams.engine import rate_control
from dstreams.engine.rate_control import PidEstimator, RateControl, limit_rates
from dstreams.graph.node import InputDStream
from dstreams.monitoring.events import BatchCompleted, BatchInfo, InputInfo, StreamingStarted
from dstreams.sources.source import Source, SourceReader

Measured = tuple[int, int, int, int]
"""When a batch was completed (ms), its records, how long it ran and how long it waited (ms)."""

batches = st.lists(
    st.tuples(
        st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**4), st.integers(0, 10**5)
    ),
    max_size=30,
)
weights = st.floats(0, 10)


@pytest.mark.parametrize(
    ("rule", "measured", "estimates"),
    [
        ("the first gives something to compare with", [(0, 1000, 10, 0)], [None]),
        (
            "without delay the estimate is what was processed, records / s",
            [(0, 1000, 10, 0), (10, 1000, 10, 0)],
            [None, 100_000.0],
        ),
        (
            "no time has passed",
            [(10, 1000, 10, 0), (10, 1000, 10, 0), (9, 1000, 10, 0)],
            [None, None, None],
        ),
        ("no records", [(0, 10, 10, 0), (10, 0, 10, 0), (20, 10, 10, 0)], [None, None, 1000.0]),
        ("no time spent", [(0, 10, 10, 0), (10, 10, 0, 0), (20, 10, 10, 0)], [None, None, 1000.0]),
        ("nothing is first after nothing", [(0, 0, 0, 0), (10, 9, 9, 0)], [None, None]),
        (
            "the backlog is worked off: 0.2 x 50 ms x 1000 / s / 20 ms",
            [(0, 20, 20, 0), (20, 20, 20, 50)],
            [None, 500.0],
        ),
        (
            "after a clock that was set back, by what it shows now",
            [(9000, 10, 10, 0), (1000, 10, 10, 0), (1020, 10, 10, 0)],
            [None, None, 1000.0],
        ),
        ("never below the minimum", [(0, 20, 20, 0), (20, 20, 20, 5000)], [None, 100.0]),
        ("the first may be below", [(0, 1, 20, 0), (20, 1, 20, 0)], [None, 100.0]),
    ],
)
def test_rules(rule: str, measured: list[Measured], estimates: list[float | None]) -> None:
    """The rules of Spark's estimator with its defaults, at batches of 20 ms."""
    estimator = PidEstimator(20)
    assert [estimator.compute(*batch) for batch in measured] == estimates, rule


def test_the_terms() -> None:
    """Each weight applies to its term: the error, the backlog, the change of the error."""
    measured = [(0, 1000, 1000, 0), (1000, 500, 1000, 0), (3000, 500, 1000, 100)]
    estimator = PidEstimator(1000, proportional=0.5, integral=2.0, derived=0.25, minimum=1)
    # measured 1000/s, then 500/s: error 500, change 500/1 s
    second = 1000 - 0.5 * 500 - 2.0 * 0 - 0.25 * 500
    # measured 500/s again: error 625 - 500, waiting 100 ms x 500/s / 1000 ms, change over 2 s
    third = second - 0.5 * 125 - 2.0 * 50 - 0.25 * (125 - 500) / 2
    assert [estimator.compute(*batch) for batch in measured] == [None, second, third]


@pytest.mark.parametrize("records", [lambda n: (n + 1) * 20, lambda n: (50 - n) * 20])
def test_it_follows_the_speed(records: Callable[[int], int]) -> None:
    """It follows faster and slower batches as long as nothing waits."""
    estimator = PidEstimator(20, proportional=1, integral=1, derived=0, minimum=10)
    estimates = [estimator.compute(20 * n, records(n), 20, 0) for n in range(50)]
    assert estimates[0] is None
    assert estimates[1:] == pytest.approx([records(n) * 50.0 for n in range(1, 50)])


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 100)), min_size=2, max_size=30))
def test_it_stays_below_the_speed_while_batches_wait(measured: list[tuple[int, int]]) -> None:
    """The queue gets shorter."""
    estimator = PidEstimator(20, proportional=1, integral=0.01, derived=0, minimum=1e-9)
    for number, (records, waited_ms) in enumerate(measured):
        estimate = estimator.compute(20 * number, records, 20, waited_ms)
        if number:
            assert estimate is not None
            assert estimate < records * 50


@given(batches, weights, weights, weights, st.floats(0.1, 1000))
def test_no_estimate_is_below_the_minimum(
    measured: list[Measured], p: float, i: float, d: float, minimum: float
) -> None:
    """No estimate is below the minimum, for any measurements and weights."""
    estimator = PidEstimator(1000, p, i, d, minimum)
    for batch in measured:
        estimate = estimator.compute(*batch)
        assert estimate is None or estimate >= minimum


@given(batches)
def test_batches_that_tell_nothing_change_nothing(measured: list[Measured]) -> None:
    """Without them the estimates are the same."""
    estimator = PidEstimator(1000)
    useful = [batch for batch in measured if batch[1] > 0 and batch[2] > 0]
    estimates = [estimator.compute(*batch) for batch in measured]
    fresh = PidEstimator(1000)
    assert [estimate for estimate in estimates if estimate is not None] == [
        estimate for batch in useful if (estimate := fresh.compute(*batch)) is not None
    ]


@pytest.mark.parametrize(
    "wrong",
    [{"proportional": -1}, {"integral": -1}, {"derived": -1}, {"minimum": 0}, {"batch_ms": 0}],
)
def test_bad_weights(wrong: dict[str, Any]) -> None:
    """The error has all weights."""
    with pytest.raises(InvalidStreamError, match="weights of a rate estimator must be at least"):
        PidEstimator(**{"batch_ms": 1000, **wrong})


class Limited(SourceReader):
    """A source that keeps its rates."""

    rate_limit = "receiver"

    def __init__(self) -> None:
        self.rates: list[int] = []

    def update_rate(self, records_per_second: int) -> None:
        self.rates.append(records_per_second)


class Broken(Limited):
    """A source whose rate cannot be set."""

    def update_rate(self, records_per_second: int) -> None:
        raise OSError("its executor is gone")


def completed(number: int, records: int | None, **changes: Any) -> BatchCompleted:
    """Return a batch of a second that took a second."""
    values: dict[str, Any] = {
        "batch_id": number,
        "batch_time_ms": 1000 * number,
        "records": {},
        "submitted_ms": 1000 * number,
        "started_ms": 1000 * number,
        "completed_ms": 1000 * number + 1000,
        "outputs": (),
        "outcome": "succeeded",
        "failure": None,
        "inputs": (InputInfo(0, "queue", 1, ""), InputInfo(1, "limited", records, "")),
    }
    return BatchCompleted(BatchInfo(**{**values, **changes}))


def rates(settings: Settings, *events: BatchCompleted) -> list[int]:
    source = Limited()
    control = RateControl({1: source}, settings, 1000)

    control.observe(StreamingStarted(0))
    for event in events:
        control.observe(event)
    return source.rates


ON = Settings(backpressure=True)


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        (Settings(), []),
        (Settings(receiver_max_rate=50), [50]),
        (Settings(backpressure_initial_rate=20), []),
        (Settings(backpressure_initial_rate=20, receiver_max_rate=50), [50]),
        (ON, []),
        (ON.replace(receiver_max_rate=50), [50]),
        (ON.replace(backpressure_initial_rate=20), [20]),
        (ON.replace(backpressure_initial_rate=20, receiver_max_rate=50), [20]),
        (ON.replace(backpressure_initial_rate=70, receiver_max_rate=50), [50]),
    ],
)
def test_the_first_batch(settings: Settings, first: list[int]) -> None:
    """The initial rate holds under backpressure, the highest always."""
    assert rates(settings) == first


def test_limits_follow_the_batches() -> None:
    """The first batch sets no limit; the next ones that of their speed, in whole records."""
    events = [completed(1, 700), completed(2, 600), completed(3, 500)]
    assert rates(ON, *events) == [600, 500]
    assert rates(Settings(), *events) == []
    assert rates(ON.replace(receiver_max_rate=550), *events) == [550, 550, 500]


def test_a_slow_first_batch_holds_nothing_back() -> None:
    """It takes 51 s, and 25 batches wait for it; their rate is that of their records."""
    slow = completed(1, 200, completed_ms=52_000)
    waiting = [
        completed(
            2 + number,
            200,
            started_ms=52_000 + 750 * number,
            completed_ms=52_750 + 750 * number,
        )
        for number in range(25)
    ]
    assert rates(ON, slow, *waiting) == [266] * 25


def test_a_delay_that_grows_after_the_first_batch_counts() -> None:
    """The stream cannot keep up, so the limit is below its speed."""
    slow = completed(1, 200, completed_ms=52_000)
    waiting = [
        completed(
            2 + number,
            600,
            started_ms=52_000 + 1_500 * number,
            completed_ms=53_500 + 1_500 * number,
        )
        for number in range(4)
    ]
    assert rates(ON, slow, *waiting) == [400, 360, 320, 280]


@pytest.mark.parametrize(
    "useless",
    [
        completed(2, 9, outcome="failed"),
        completed(2, 9, outcome="empty"),
        completed(2, 0),
        completed(2, None),
        completed(2, 9, completed_ms=2000),
        completed(2, 9, inputs=()),
    ],
)
def test_batches_that_say_nothing_about_the_speed(useless: BatchCompleted) -> None:
    """A failure or an empty batch sets no limit."""
    assert rates(ON, completed(1, 700), useless, completed(3, 500)) == [500]


def test_estimates_below_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate below one record per second sets no limit: it would stop the source for good."""
    estimator = partial(PidEstimator, integral=100.0)
    monkeypatch.setattr(rate_control, "PidEstimator", estimator)
    late = completed(2, 10, submitted_ms=0)
    assert rates(ON.replace(pid_minimum=0.5), completed(1, 10), late) == []


def test_the_minimum_rate() -> None:
    """A minimum above the measured rate holds."""
    assert rates(ON.replace(pid_minimum=650.0), completed(1, 700), completed(2, 600)) == [650]


def test_a_source_that_cannot_be_told(caplog: pytest.LogCaptureFixture) -> None:
    """The batch and the other sources continue."""
    source = Limited()
    control = RateControl({0: Broken(), 1: source}, ON, 1000)
    both = (InputInfo(0, "broken", 500, ""), InputInfo(1, "limited", 500, ""))
    for number in (1, 2):
        control.observe(completed(number, 500, inputs=both))
    assert source.rates == [500]
    assert caplog.messages == ["failed to set the rate of stream 0 to 500 records/s"]


class NamedSource(Source):
    """A source that is opened elsewhere."""

    name = "any"

    def open(self, environment: Any) -> Any:
        raise NotImplementedError


def test_readers_of_a_context() -> None:
    """Readers that can be limited, by the id of their stream; others are not changed."""
    streams = [InputDStream(number, NamedSource(), 1000, "any") for number in range(2)]
    limited = Limited()
    readers: Any = {streams[0]: SourceReader(), streams[1]: limited}
    control = limit_rates(readers, ON.replace(receiver_max_rate=650), 1000)
    for event in (completed(1, 700), completed(2, 600)):
        control.observe(event)
    assert limited.rates == [650, 600]


class LimitedByItself(Limited):
    """A source with limits of its own, such as Kafka."""

    rate_limit = "backpressure"


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        (ON.replace(receiver_max_rate=650), [700, 600]),
        (ON.replace(receiver_max_rate=650, backpressure_initial_rate=900), [900, 700, 600]),
        (Settings(receiver_max_rate=650), []),
    ],
)
def test_the_limit_of_receivers_is_theirs(settings: Settings, rates: list[int]) -> None:
    """It does not limit sources that have limits of their own."""
    limited = LimitedByItself()
    readers: Any = {InputDStream(1, NamedSource(), 1000, "any"): limited}
    control = limit_rates(readers, settings, 1000)
    for event in (completed(1, 700), completed(2, 700), completed(3, 600)):
        control.observe(event)
    assert limited.rates == rates
