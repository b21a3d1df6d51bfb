"""Settings of queries: read, refused, and pinned by a checkpoint."""

from __future__ import annotations

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.structured.conf import SHUFFLE_PARTITIONS, QueryConf

PARTITIONS = {SHUFFLE_PARTITIONS: "4"}
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
CHECK_CORRECTNESS = "spark.sql.streaming.statefulOperator.checkCorrectness.enabled"
IDLE_EVENT_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"


def test_defaults() -> None:
    """What is not set has Spark's default."""
    conf = QueryConf.from_conf(PARTITIONS)
    assert conf.watermark_policy == "min"
    assert conf.check_correctness is True
    assert conf.idle_event_interval_ms == 10_000
    assert conf.shuffle_partitions == 4


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (POLICY, "", "use one of min, max"),
        (SHUFFLE_PARTITIONS, "0", "whole number of at least 1"),
        (CHECK_CORRECTNESS, "yes", "use one of true, false"),
        (IDLE_EVENT_INTERVAL, "soon", "use a duration of at least 0 ms"),
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
        QueryConf.from_conf({**PARTITIONS, key: value})
    assert key in str(refused.value)


def test_pinned() -> None:
    """A checkpoint's settings win over those of the session."""
    first = QueryConf.from_conf({**PARTITIONS, POLICY: "MAX"})
    assert first.pinned() == {
        SHUFFLE_PARTITIONS: "4",
        POLICY: "max",
        "spark.dstreams.state.values": "data",
    }
    later = QueryConf.from_conf({SHUFFLE_PARTITIONS: "8", POLICY: "min", IDLE_EVENT_INTERVAL: "1s"})
    restored = later.restored({key: first.pinned()[key] for key in (SHUFFLE_PARTITIONS, POLICY)})
    assert restored == later.replace(shuffle_partitions=4, watermark_policy="max")
