"""How steps of a query are planned, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from dstreams.sources.rate import RateSource
from dstreams.state.group_state import OutputMode
from dstreams.structured.api.dataset import StreamingDataset
from dstreams.structured.conf import QueryConf
from dstreams.structured.operators.deduplication import StreamingDeduplicateWithinWatermarkExec
from dstreams.structured.operators.execution_context import StatefulOperatorStateInfo
from dstreams.structured.operators.physical_operator import PhysicalOperator
from dstreams.structured.operators.stateful_operator import StatefulOperator, StateStoreWriter
from dstreams.structured.plan.logical import StreamingRelation
from dstreams.structured.plan.planning import plan_query
from dstreams.structured.sources.rate_source import RateStreamSource

CONF = QueryConf(shuffle_partitions=2)


def rate() -> StreamingDataset:
    environment: Any = None
    source = RateStreamSource(RateSource(1, 0, None))
    return StreamingDataset(StreamingRelation(source), environment)


def marked(delay: str) -> StreamingDataset:
    return rate().withWatermark("timestamp", delay)


def planned(dataset: StreamingDataset, mode: OutputMode = OutputMode.Append) -> PhysicalOperator:
    return plan_query(dataset.plan, mode, CONF).root


def stateful(dataset: StreamingDataset) -> Any:
    """Return the one operator with state."""
    (operator,) = (step for step in planned(dataset).walk() if isinstance(step, StateStoreWriter))
    return operator


@pytest.mark.parametrize("delays", [("10 seconds", "2 seconds"), ("2 seconds", "10 seconds")])
def test_duplicates_of_a_union_are_remembered_for_the_longest_delay(
    delays: tuple[str, str],
) -> None:
    """A duplicate may come as late as the slower of the streams allows, whichever is first."""
    left, right = map(marked, delays)
    operator = stateful(left.union(right).dropDuplicatesWithinWatermark("value"))
    assert isinstance(operator, StreamingDeduplicateWithinWatermarkExec)
    assert operator.delayMs == 10_000


@pytest.mark.parametrize(("within", "wanted"), [(None, False), (("0 seconds", "1 hour"), True)])
def test_a_join_wants_a_batch_only_where_rows_are_given_up(
    within: tuple[str, str] | None, *, wanted: bool
) -> None:
    """Without a range no row of a join ever ends, so a watermark that goes on changes nothing."""
    joined = stateful(marked("1 second").join(marked("1 second"), "value", within=within))
    running = joined.inBatch(StatefulOperatorStateInfo.empty(2), 1000, 1000)
    assert running.shouldRunAnotherBatch(2000) is wanted


@pytest.mark.parametrize(
    ("build", "operators"),
    [
        (
            lambda rows: rows.groupByKey("value").count(),
            ["StateStoreRestoreExec", "StateStoreSaveExec"],
        ),
        (
            lambda rows: rows.groupByKey("value").flatMapGroupsWithState(no_rows, "append"),
            ["FlatMapGroupsWithStateExec"],
        ),
        (lambda rows: rows.dropDuplicates("value"), ["StreamingDeduplicateExec"]),
    ],
    ids=["aggregation", "groups", "duplicates"],
)
def test_strategies(build: Any, operators: list[str]) -> None:
    """Each step has a strategy of its own: aggregations alone restore and save."""
    plan = planned(build(marked("1 second")), OutputMode.Append)
    stateful = [type(step).__name__ for step in plan.walk() if isinstance(step, StatefulOperator)]
    assert stateful == operators


def test_state_formats() -> None:
    """Operators have the state formats of the settings."""
    conf = QueryConf(
        shuffle_partitions=2, aggregation_state_format=1, flat_map_groups_state_format=1
    )
    rows = marked("1 second").groupByKey("value")
    for dataset in (rows.count(), rows.flatMapGroupsWithState(no_rows, "append")):
        plan = plan_query(dataset.plan, OutputMode.Append, conf).root
        steps: list[Any] = [step for step in plan.walk() if isinstance(step, StatefulOperator)]
        formats = {getattr(step, "groups", step).stateFormatVersion for step in steps}
        assert formats == {1}


def no_rows(key: Any, values: Any, state: Any) -> list[Any]:
    return []
