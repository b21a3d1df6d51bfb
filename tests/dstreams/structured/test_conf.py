"""Settings of queries: read, refused, and pinned by a checkpoint."""

from __future__ import annotations

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.state.state_manager import STATE_FORMAT
from dstreams.structured.conf import AGGREGATION_STATE_FORMAT, SHUFFLE_PARTITIONS, QueryConf

PARTITIONS = {SHUFFLE_PARTITIONS: "4"}
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
CHECK_CORRECTNESS = "spark.sql.streaming.statefulOperator.checkCorrectness.enabled"
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


def test_defaults() -> None:
    """Settings have Spark's defaults."""
    conf = QueryConf.from_conf(PARTITIONS)
    assert conf.watermark_policy == "min"
    assert conf.no_data_batches is True
    assert conf.shuffle_partitions == 4


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (POLICY, "", "use one of min, max"),
        (SHUFFLE_PARTITIONS, "0", "whole number of at least 1"),
        (CHECK_CORRECTNESS, "false", "always enabled"),
        (NO_DATA_BATCHES, "yes", "use one of true, false"),
        ("spark.dstreams.state.values", "xml", "use one of data, pickle"),
        (
            "spark.sql.streaming.join.stateFormatVersion",
            "2",
            "only one format",
        ),
        (
            "spark.sql.streaming.sessionWindow.stateFormatVersion",
            "1",
            "only one format",
        ),
        (AGGREGATION_STATE_FORMAT, "3", "use one of 1, 2"),
        (STATE_FORMAT, "0", "use one of 1, 2"),
        (STATE_FORMAT, "two", "use one of 1, 2"),
    ],
)
def test_refused(key: str, value: str, message: str) -> None:
    """An error names an invalid setting, before anything starts."""
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
        STATE_FORMAT: "2",
        AGGREGATION_STATE_FORMAT: "2",
    }
    later = QueryConf.from_conf({SHUFFLE_PARTITIONS: "8", POLICY: "min", NO_DATA_BATCHES: "false"})
    restored = later.restored({key: first.pinned()[key] for key in (SHUFFLE_PARTITIONS, POLICY)})
    assert restored == later.replace(shuffle_partitions=4, watermark_policy="max")


FORMATS = {STATE_FORMAT: "flat_map_groups_state_format"}
FORMATS[AGGREGATION_STATE_FORMAT] = "aggregation_state_format"


@pytest.mark.parametrize("key", FORMATS)
@pytest.mark.parametrize(
    ("pinned", "given", "used", "is_refused"),
    [
        ("1", None, 1, False),
        ("2", None, 2, False),
        ("1", "1", 1, False),
        ("1", "2", 1, True),
        ("2", "1", 2, True),
        (None, None, 2, False),  # a checkpoint from before there was a choice
        (None, "2", 2, False),
        (None, "1", 2, True),
    ],
)
def test_state_formats(
    key: str, pinned: str | None, given: str | None, used: int, is_refused: bool
) -> None:
    """The checkpoint's format is used; an error names the setting of a session with another one."""
    conf = QueryConf.from_conf(PARTITIONS if given is None else {**PARTITIONS, key: given})
    kept = {} if pinned is None else {key: pinned}
    assert getattr(conf, FORMATS[key]) == int(given or 2)
    assert getattr(conf.restored(kept), FORMATS[key]) == used
    if is_refused:
        (message,) = conf.changed_formats(kept)
        start = f"{key}: the checkpoint has state format {used}, got {given}; remove the setting"
        assert message.startswith(start)
    else:
        assert conf.changed_formats(kept) == []
