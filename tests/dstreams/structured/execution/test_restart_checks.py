"""Reasons why a query cannot resume from a checkpoint; with plans only, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from checkpoint import BeginRecord
from dstreams.errors import RestartError
from dstreams.state.group_state import OutputMode
from dstreams.state.state_manager import STATE_FORMAT
from dstreams.structured import (
    GroupedDataset,
    GroupState,
    StreamSession,
    session_window,
    window,
)
from dstreams.structured.api.aggregates import Average, Count, MaxBy, Sum
from dstreams.structured.api.dataset import StreamingDataset
from dstreams.structured.conf import AGGREGATION_STATE_FORMAT, STATE_SCHEMA_CHECK, QueryConf
from dstreams.structured.execution.query_records import QueryBatch, batch_start
from dstreams.structured.execution.restart_checks import Facts, describe_operators, differences
from dstreams.structured.plan.logical import StreamingRelation
from dstreams.structured.plan.planning import PlannedQuery, plan_query
from dstreams.structured.sources.rate_source import RateStreamSource
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.runs import QueryRun
from tests.support.surroundings import reads

Build = Callable[[StreamingDataset], StreamingDataset]


CONF = QueryConf(shuffle_partitions=2)


def deduplicated(subset: Any) -> PlannedQuery:
    return planned_of(lambda marked: marked.dropDuplicates(subset))


def planned_of(build: Build) -> PlannedQuery:
    source = RateStreamSource(1, 0, None)
    environment: Any = None
    marked = StreamingDataset(StreamingRelation(source), environment).withWatermark(
        "timestamp", "1 second"
    )
    return plan_query(build(marked).plan, OutputMode.Append, CONF)


def batch_with(operators: tuple[Facts, ...]) -> QueryBatch:
    start = batch_start(0, 0, 0, reads(1), operators=operators)
    return QueryBatch(BeginRecord("query", 0, 0, 1, **start))


def found_in(before: Build, now: Build) -> list[str]:
    newest = batch_with(describe_operators(planned_of(before)))
    return differences(newest, planned_of(now), CONF)


@pytest.mark.parametrize(
    ("before", "now", "shown"),
    [
        ("value", ["value", "timestamp"], "True, in the checkpoint False"),
        (["value", "timestamp"], "value", "False, in the checkpoint True"),
    ],
)
def test_keys_that_get_or_lose_their_event_time(before: Any, now: Any, shown: str) -> None:
    """No key that is stored would equal one that comes: all duplicates would go out once more."""
    newest = batch_with(describe_operators(deduplicated(before)))
    assert differences(newest, deduplicated(before), CONF) == []
    (found,) = differences(newest, deduplicated(now), CONF)
    assert f"stateful operator 'dedupe-0' has keys with event times {shown}" in found


def test_what_a_checkpoint_says_nothing_of() -> None:
    """Records of a release that did not compare this fact do not prevent a restart."""
    (facts,) = describe_operators(deduplicated("value"))
    older = {name: value for name, value in facts.items() if name != "withEventTime"}
    newest = batch_with((older,))
    assert differences(newest, deduplicated("value"), CONF) == []


def value_of(record: Any) -> Any:
    return record.value


def latest(key: Any, records: Iterator[Any], state: GroupState[Any]) -> list[Any]:
    return [key]


def grouped(groups: GroupedDataset) -> StreamingDataset:
    return groups.flatMapGroupsWithState(latest, "append")


CHANGED: dict[str, tuple[Build, Build, str]] = {
    "another function": (
        lambda rows: rows.groupByKey(window("timestamp", "1 second")).count(),
        lambda rows: rows.groupByKey(window("timestamp", "1 second")).agg(Sum(value_of)),
        "operator 'stateStoreSave-0' (stateStoreSave) computes "
        f"Sum(of={__name__}.value_of), in the checkpoint Count()",
    ),
    "another column": (
        lambda rows: rows.groupByKey("value").agg(Sum(itemgetter(1))),
        lambda rows: rows.groupByKey("value").agg(Sum(itemgetter(0))),
        "computes Sum(of=operator.itemgetter(0)), in the checkpoint Sum(of=operator.itemgetter(1))",
    ),
    "another order": (
        lambda rows: rows.groupByKey("value").agg(Count(), Sum(value_of), name="both"),
        lambda rows: rows.groupByKey("value").agg(Sum(value_of), Count(), name="both"),
        f"'both' (stateStoreSave) computes Sum(of={__name__}.value_of), Count(), in the checkpoint "
        f"Count(), Sum(of={__name__}.value_of)",
    ),
    "one less": (
        lambda rows: rows.groupByKey("value").agg(Count(), Sum(value_of)),
        lambda rows: rows.groupByKey("value").agg(Count()),
        "computes Count(), in the checkpoint Count(), Sum(",
    ),
    "sessions": (
        lambda rows: rows.groupByKey(session_window("timestamp", "1 second")).agg(MaxBy()),
        lambda rows: rows.groupByKey(session_window("timestamp", "1 second")).agg(
            Average(value_of)
        ),
        f"computes Average(of={__name__}.value_of), in the checkpoint MaxBy()",
    ),
    "another key": (
        lambda rows: rows.map(vars).groupByKey("shop").count(),
        lambda rows: rows.map(vars).groupByKey("shop", "item").count(),
        "has the keys shop, item, in the checkpoint shop",
    ),
    "one group for all": (
        lambda rows: rows.groupByKey("value").count(),
        lambda rows: rows.groupByKey().count(),
        "(stateStoreSave) has the keys none, in the checkpoint value",
    ),
    "another key function": (
        lambda rows: rows.groupByKey(itemgetter(0)).count(),
        lambda rows: rows.groupByKey(value_of).count(),
        f"has the keys {__name__}.value_of, in the checkpoint operator.itemgetter(0)",
    ),
    "fields of duplicates": (
        lambda rows: rows.map(vars).dropDuplicates("shop"),
        lambda rows: rows.map(vars).dropDuplicates(["shop", "item"]),
        "'dedupe-0' (dedupe) has the keys shop, item, in the checkpoint shop",
    ),
    "fields of duplicates with a time": (
        lambda rows: rows.map(vars).dropDuplicates(["shop", "timestamp"]),
        lambda rows: rows.map(vars).dropDuplicates(["item", "timestamp"]),
        "'dedupe-0' (dedupe) has the keys item, in the checkpoint shop",
    ),
    "duplicates of a field": (
        lambda rows: rows.map(vars).dropDuplicates(),
        lambda rows: rows.map(vars).dropDuplicates("shop"),
        "'dedupe-0' (dedupe) has the keys shop, in the checkpoint all of a record",
    ),
    "fields of duplicates within the watermark": (
        lambda rows: rows.map(vars).dropDuplicatesWithinWatermark("shop"),
        lambda rows: rows.map(vars).dropDuplicatesWithinWatermark(["shop", "item"]),
        "(dedupeWithinWatermark) has the keys shop, item, in the checkpoint shop",
    ),
    "left keys of a join": (
        lambda rows: rows.join(rows, "value"),
        lambda rows: rows.join(rows, "timestamp", otherOn="value"),
        "(symmetricHashJoin) has the left keys timestamp, in the checkpoint value",
    ),
    "right keys of a join": (
        lambda rows: rows.map(vars).join(rows, "value"),
        lambda rows: rows.map(vars).join(rows, "value", otherOn=value_of),
        f"has the right keys {__name__}.value_of, in the checkpoint value",
    ),
    "keys of groups": (
        lambda rows: grouped(rows.groupByKey("value")),
        lambda rows: grouped(rows.groupByKey("timestamp")),
        "'flatMapGroupsWithState-0' (flatMapGroupsWithState) has the keys timestamp, in the "
        "checkpoint value",
    ),
    "key function of groups": (
        lambda rows: grouped(rows.groupByKey(lambda row: row.value)),
        lambda rows: grouped(rows.groupByKey(lambda row: row.value % 2)),
        "'flatMapGroupsWithState-0' (flatMapGroupsWithState) has the keys <lambda>#",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_another_aggregate_or_key(name: str) -> None:
    """Another aggregate or key than that of the stored rows is found."""
    before, now, shown = CHANGED[name]
    assert found_in(before, before) == []
    problems = found_in(before, now)
    assert any(shown in problem for problem in problems), problems
    assert any(f"set {STATE_SCHEMA_CHECK} to false" in problem for problem in problems)


def counted(words: StreamingDataset) -> StreamingDataset:
    return words.groupByKey(lambda word: word[0]).count()


def summed(words: StreamingDataset) -> StreamingDataset:
    return words.groupByKey(lambda word: word[0]).agg(Sum(lambda word: word[1]))


def distinct(words: StreamingDataset) -> StreamingDataset:
    return words.dropDuplicates(itemgetter(0))


def distinct_pairs(words: StreamingDataset) -> StreamingDataset:
    return words.dropDuplicates(itemgetter(0, 1))


def test_restart_with_other_keys(session: StreamSession, tmp_path: Path) -> None:
    """Start and check refuse keys that are not those of the stored rows, in the same words."""
    run = QueryRun(session, distinct, "append", tmp_path)
    assert run.add(("a", 10), ("a", 11)) == [("a", 10)]
    words = run.streams[0].toDS()
    (problem,) = session.checkRestart(distinct_pairs(words), "append", str(tmp_path))
    assert "has the keys operator.itemgetter(0, 1), in the checkpoint" in problem
    with pytest.raises(RestartError) as refused:
        run.restart(distinct_pairs)
    assert problem in str(refused.value)
    run.restart(distinct)
    assert run.add(("a", 12), ("b", 13)) == [("b", 13)]


def test_restart_with_another_aggregate(make_session: MakeSession, tmp_path: Path) -> None:
    """It is refused by the check and at the start, and only done where the user knows better."""
    session: StreamSession = make_session()
    run = QueryRun(session, counted, "update", tmp_path)
    assert run.add(("a", 10)) == [("a", 1)]
    run.query.stop()
    words = run.streams[0].toDS()
    assert session.checkRestart(counted(words), "update", str(tmp_path)) == []
    (problem,) = session.checkRestart(summed(words), "update", str(tmp_path))
    assert "computes Sum(of=<lambda>#" in problem
    with pytest.raises(RestartError) as refused:
        run.restart(summed)
    assert problem in str(refused.value)
    assert run.restart(counted).isActive
    assert run.add(("a", 10)) == [("a", 2)]

    session.conf.set(STATE_SCHEMA_CHECK, False)
    assert session.checkRestart(summed(words), "update", str(tmp_path)) == []
    run.restart(summed)
    session.conf.unset(STATE_SCHEMA_CHECK)
    assert run.add(("a", 10)) == [("a", 12)]
    assert session.checkRestart(summed(words), "update", str(tmp_path)) == []


def running(words: StreamingDataset) -> StreamingDataset:
    def count(key: str, rows: Iterator[Any], state: GroupState[int]) -> list[Any]:
        state.update((state.getOption or 0) + len(list(rows)))
        return [(key, state.get)]

    return words.groupByKey(itemgetter(0)).flatMapGroupsWithState(count, "update")


def test_restart_with_another_state_format(make_session: MakeSession, tmp_path: Path) -> None:
    """The checkpoint keeps its format; an error names the setting of a session with another one."""
    session: StreamSession = make_session(**{STATE_FORMAT: "1"})
    run = QueryRun(session, running, "update", tmp_path)
    assert run.add(("a", 10)) == [("a", 1)]
    run.query.stop()
    words = run.streams[0].toDS()
    for key, pinned, other in ((STATE_FORMAT, 1, 2), (AGGREGATION_STATE_FORMAT, 2, 1)):
        session.conf.set(key, other)
        (problem,) = session.checkRestart(running(words), "update", str(tmp_path))
        assert f"{key}: the checkpoint has state format {pinned}, got {other}; remove" in problem
        with pytest.raises(RestartError) as refused:
            run.restart()
        assert problem in str(refused.value)
        session.conf.unset(key)
    assert session.checkRestart(running(words), "update", str(tmp_path)) == []
    run.restart()
    assert run.add(("a", 10)) == [("a", 2)]
    assert run.query._execution.conf.flat_map_groups_state_format == 1
