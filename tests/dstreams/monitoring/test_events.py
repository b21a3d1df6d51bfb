"""Events and their values, without Spark."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from dstreams import BatchInfo, OutputOperationInfo

INFO = BatchInfo(
    batch_id=0,
    batch_time_ms=1000,
    records={"queueStream": 3},
    submitted_ms=1005,
    started_ms=1200,
    completed_ms=1950,
    outputs=(OutputOperationInfo(0, "pprint at a.py:1", 1210, 1900, None),),
    outcome="succeeded",
    failure=None,
)


def test_delays() -> None:
    """Waiting, running and total time; the batch time is not a clock reading."""
    assert INFO.scheduling_delay_ms == 195
    assert INFO.processing_delay_ms == 750
    assert INFO.total_delay_ms == 945


@pytest.mark.parametrize("value", [INFO, INFO.outputs[0]], ids=["batch", "output"])
def test_what_is_told_does_not_change(value: object) -> None:
    """Events are immutable."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.started_ms = 0  # type: ignore[attr-defined]


def test_what_is_told_can_be_kept_elsewhere() -> None:
    """Plain data: it can be compared, and sent to another process."""
    assert pickle.loads(pickle.dumps(INFO)) == INFO
    assert dataclasses.replace(INFO, outcome="failed") != INFO
