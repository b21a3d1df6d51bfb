"""When a query looks for data."""

from __future__ import annotations

from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.structured.api.triggers import Trigger, make_trigger


@pytest.mark.parametrize(
    ("now_ms", "next_ms"), [(0, 1000), (1, 1000), (999, 1000), (1000, 2000), (5500, 6000)]
)
def test_multiples_of_the_interval(now_ms: int, next_ms: int) -> None:
    """Batches begin at multiples of the interval; those that were missed are skipped."""
    assert Trigger("processingTime", 1000).next_ms(now_ms) == next_ms


def test_one_after_the_other() -> None:
    """Without an interval the next batch may begin at once."""
    assert Trigger().next_ms(17) == 17


def test_made() -> None:
    """One argument says which trigger it is."""
    assert make_trigger("5 seconds", None, None) == Trigger("processingTime", 5000)
    assert make_trigger(None, True, None) == Trigger("once")
    assert make_trigger(None, None, True) == Trigger("availableNow")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None, None), "none of them"),
        (("1 second", True, None), "processingTime and once"),
        ((None, False, None), "once of trigger must be True"),
        (("-1 second", None, None), "is '-1 second'; use a duration of at least 0 ms"),
        (("soon", None, None), "is 'soon'; use a duration of at least 0 ms"),
        ((5, None, None), "is 5; use a duration of at least 0 ms"),
    ],
)
def test_refused(arguments: Any, message: str) -> None:
    """What is no trigger is refused by name."""
    with pytest.raises(InvalidStreamError, match=message):
        make_trigger(*arguments)
