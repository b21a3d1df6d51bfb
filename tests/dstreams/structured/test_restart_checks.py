"""What keeps a query from going on from a checkpoint; plans alone, without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dstreams.sources.rate import RateSource
from dstreams.state.group_state import OutputMode
from dstreams.structured.conf import QueryConf
from dstreams.structured.dataset import StreamingDataset
from dstreams.structured.logical import StreamingRelation
from dstreams.structured.logs import OffsetRecord
from dstreams.structured.planning import plan_query
from dstreams.structured.restart_checks import Facts, describe_operators, differences
from dstreams.structured.sources.rate import RateStreamSource


def operators_of(subset: Any) -> tuple[Facts, ...]:
    source = RateStreamSource(RateSource(1, 0, None))
    environment: Any = None
    marked = StreamingDataset(StreamingRelation(source), environment).withWatermark(
        "timestamp", "1 second"
    )
    plan = marked.dropDuplicates(subset).plan
    return describe_operators(
        plan_query(plan, OutputMode.Append, QueryConf({"spark.sql.shuffle.partitions": "2"}))
    )


@pytest.mark.parametrize(
    ("before", "now", "shown"),
    [
        ("value", ["value", "timestamp"], "True, in the checkpoint False"),
        (["value", "timestamp"], "value", "False, in the checkpoint True"),
    ],
)
def test_keys_that_get_or_lose_their_event_time(before: Any, now: Any, shown: str) -> None:
    """No key that is stored would equal one that comes: all duplicates would go out once more."""
    newest = OffsetRecord(0, 0, 0, 0, (1,), operators=operators_of(before))
    assert differences(newest, operators_of(before), 1) == []
    (found,) = differences(newest, operators_of(now), 1)
    assert f"stateful operator 'dedupe-0' has keys with event times {shown}" in found


def test_what_a_checkpoint_says_nothing_of() -> None:
    """A record of a release that did not compare this keeps nobody from a restart."""
    (facts,) = operators_of("value")
    older = {name: value for name, value in facts.items() if name != "withEventTime"}
    newest = replace(OffsetRecord(0, 0, 0, 0, (1,)), operators=(older,))
    assert differences(newest, (facts,), 1) == []
