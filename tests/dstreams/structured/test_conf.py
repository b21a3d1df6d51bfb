"""Settings of queries: read, refused, and pinned by a checkpoint."""

from __future__ import annotations

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.structured.conf import (
    CHECK_CORRECTNESS,
    IDLE_EVENT_INTERVAL,
    PINNED,
    POLICY,
    SHUFFLE_PARTITIONS,
    QueryConf,
)

PARTITIONS = {SHUFFLE_PARTITIONS: "4"}


def test_defaults() -> None:
    """What is not set has Spark's default."""
    conf = QueryConf(PARTITIONS)
    conf.validate()
    assert conf.policy() == "min"
    assert conf.flag(CHECK_CORRECTNESS) is True
    assert conf.duration_ms(IDLE_EVENT_INTERVAL) == 10_000
    assert conf.count(SHUFFLE_PARTITIONS) == 4


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (POLICY, "", "valid values are 'min' and 'max'"),
        (SHUFFLE_PARTITIONS, "0", "whole number of at least 1"),
        (CHECK_CORRECTNESS, "yes", "must be true or false"),
        (IDLE_EVENT_INTERVAL, "soon", "is no duration"),
        ("spark.dstreams.state.values", "xml", "use one of data, pickle"),
        (
            "spark.sql.streaming.join.stateFormatVersion",
            "2",
            "has no effect",
        ),
        (
            "spark.sql.streaming.aggregation.stateFormatVersion",
            "1",
            "have one format",
        ),
    ],
)
def test_refused(key: str, value: str, message: str) -> None:
    """What cannot be read is refused by name, before anything starts."""
    with pytest.raises(InvalidStreamError, match=message) as refused:
        QueryConf({**PARTITIONS, key: value}).validate()
    assert key in str(refused.value)


def test_pinned() -> None:
    """A checkpoint's settings win over those of the session."""
    first = QueryConf({**PARTITIONS, POLICY: "max"})
    assert set(first.pinned()) == set(PINNED)
    later = QueryConf({SHUFFLE_PARTITIONS: "8", POLICY: "min", IDLE_EVENT_INTERVAL: "1s"})
    restored = later.restored(first.pinned())
    assert restored.count(SHUFFLE_PARTITIONS) == 4
    assert restored.policy() == "max"
    assert restored.duration_ms(IDLE_EVENT_INTERVAL) == 1000
