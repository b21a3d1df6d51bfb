"""What the log says while brokers do not answer."""

from __future__ import annotations

import logging

import pytest

from dstreams.kafka.outage import Outage
from dstreams.testing import ManualClock


def test_at_once_then_each_minute_then_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """How long it has been is said, and how many batches; a second outage begins anew."""
    clock = ManualClock(0)
    outage = Outage("clicks", clock)
    with caplog.at_level(logging.INFO):
        outage.ends()
        outage.goes_on(RuntimeError("nobody answers"))
        for _ in range(12):
            clock.advance(10_000)
            outage.goes_on(RuntimeError("nobody answers"))
        outage.ends()
        outage.ends()
        outage.goes_on(RuntimeError("nobody answers"))
    assert [record.getMessage() for record in caplog.records] == [
        "nobody answers; batches go on without its records until one does",
        "nobody answers, for 60 s now; 7 batches went on without its records",
        "nobody answers, for 120 s now; 13 batches went on without its records",
        "clicks: its brokers answer again, after 120 s and 13 batches without its records",
        "nobody answers; batches go on without its records until one does",
    ]
