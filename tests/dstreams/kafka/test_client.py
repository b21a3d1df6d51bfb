"""The log while brokers do not answer."""

from __future__ import annotations

import logging

import pytest

from dstreams.errors import SourceError
from dstreams.kafka.client import ConnectionState, make
from dstreams.testing import ManualClock


def test_at_once_then_each_minute_then_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the duration and number of batches; a second outage starts from zero."""
    clock = ManualClock(0)
    state = ConnectionState("clicks", clock)
    with caplog.at_level(logging.INFO):
        state.restored()
        state.lost(RuntimeError("nobody answers"))
        for _ in range(12):
            clock.advance(10_000)
            state.lost(RuntimeError("nobody answers"))
        state.restored()
        state.restored()
        state.lost(RuntimeError("nobody answers"))
    assert [record.getMessage() for record in caplog.records] == [
        "nobody answers; batches run without its records until a broker answers",
        "nobody answers, for 60 s now; 7 batches ran without its records",
        "nobody answers, for 120 s now; 13 batches ran without its records",
        "clicks: its brokers answer again, after 120 s and 13 batches without its records",
        "nobody answers; batches run without its records until a broker answers",
    ]


def test_an_unknown_setting() -> None:
    """The error names the setting, and one with a similar name."""
    pytest.importorskip("confluent_kafka", reason="pip install -e '.[dev]'")
    given = {"bootstrap.servers": "localhost:9", "auto.offset.rest": "latest"}
    with pytest.raises(SourceError) as error:
        make("Consumer", {**given, "group.id": "g"}, "clicks")
    assert str(error.value) == (
        "clicks: Kafka has no setting 'auto.offset.rest'; did you mean auto.offset.reset? remove "
        "it, or correct its name"
    )
