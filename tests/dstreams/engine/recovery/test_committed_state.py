"""The committed state that a restart begins with, from commit records; no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoint import CommitRecord, FileRef, OperatorSnapshot
from dstreams.engine.recovery.recover import RecoveredStream
from dstreams.engine.recovery.resume import (
    CommittedState,
    committed_state,
    last_batch_ms,
)
from dstreams.engine.stream_checkpoint import UNREAD
from dstreams.graph.node import InputDStream, Node, OutputOperation
from dstreams.graph.plan import Plan, StreamGraph
from dstreams.graph.state import StateDStream
from dstreams.graph.windowed import WindowedDStream, WindowTimes
from dstreams.sources.queue import QueueSource
from dstreams.spark.partitioner import StablePartitioner
from dstreams.state.update_function import UpdateFunction

INPUT = InputDStream(0, QueueSource([]), 1000, "queueStream at a.py:1")
UID = "updateStateByKey-0"


def update(values: list[Any], state: Any) -> Any:
    return state


def planned(slide_s: int = 1) -> tuple[Plan, Node]:
    """A state over the input, or over windows of it, and its graph."""
    parent: Node = INPUT
    if slide_s > 1:
        times = WindowTimes(1000 * slide_s, 1000 * slide_s, 1000)
        parent = WindowedDStream(INPUT, times, "window at a.py:2")
    operation = "updateStateByKey at a.py:3"
    checked = UpdateFunction.checked(update, "values", operation)
    node = StateDStream(parent, checked, StablePartitioner(1), True, None, operation)
    graph = StreamGraph(1000)
    graph.inputs.append(INPUT)
    graph.outputs.append(OutputOperation(node, lambda batch, rdd: None, "pprint at a.py:4"))
    return graph.freeze(0, has_checkpoint_directory=True), node


def snapshot(time_ms: int) -> OperatorSnapshot:
    name = f"state/{UID}/{time_ms}"
    return OperatorSnapshot("stable-hash-1", (FileRef(name, 1, "0" * 32, 1),))


def record(time_ms: int, *, without: bool = False, **more: Any) -> CommitRecord:
    """A record of a batch that has a snapshot, or no state."""
    snapshots = {} if without else {UID: snapshot(time_ms)}
    without_state = (UID,) if without else ()
    return CommitRecord(
        "stream-0", 0, time_ms, 1, snapshots, {}, without_state=without_state, **more
    )


def read(
    plan: Plan,
    records: list[CommitRecord],
    last_ms: int,
    *,
    added: frozenset[str] | None = None,
    added_after: Mapping[str, int] | None = None,
) -> CommittedState:
    recovery: Any = SimpleNamespace(last_ms=last_ms)
    operators = [{"uid": uid, "began_after_ms": ms} for uid, ms in (added_after or {}).items()]
    snapshot: Any = SimpleNamespace(stream_id="stream-0", description={"operators": operators})
    nothing: Any = None
    recovered = RecoveredStream(nothing, 0, snapshot, recovery, nothing, added)
    return committed_state(plan, recovery, records, recovered)


def test_a_restart_stands_on_the_newest_snapshot() -> None:
    """The state of the last batch is computed from its newest snapshot and the input after it."""
    plan, node = planned()
    committed = read(plan, [record(1000), record(3000)], 5000)
    assert committed.last_ms == 5000
    assert committed.snapshots == {UID: {t: (t, snapshot(t)) for t in (1000, 3000)}}
    assert committed.required_since == {INPUT: 3000, node: 3000}


def test_without_a_snapshot_all_input_is_asked_for() -> None:
    """The state is computed from the first batch."""
    plan, node = planned()
    assert read(plan, [], 5000).required_since == {INPUT: 0, node: 0}


def test_no_state_is_as_good_as_a_snapshot() -> None:
    """The first batch after a batch without state begins without state."""
    plan, node = planned()
    committed = read(plan, [record(2000, without=True)], 5000)
    assert committed.snapshots == {UID: {2000: (2000, None)}}
    assert committed.required_since[node] == 2000


@pytest.mark.parametrize(
    ("slide_s", "record_ms", "time_ms"),
    [(1, 3001, 3000), (3, 3001, 3000), (3, 5000, 3000), (3, 5001, 3000), (3, 6000, 6000)],
)
def test_a_snapshot_between_two_turns_is_that_of_the_first(
    slide_s: int, record_ms: int, time_ms: int
) -> None:
    """It counts as the snapshot of the first batch; its files have the time of the record."""
    plan, node = planned(slide_s)
    committed = read(plan, [record(record_ms)], record_ms)
    assert committed.snapshots == {UID: {time_ms: (record_ms, snapshot(record_ms))}}
    assert committed.required_since[node] == time_ms


@pytest.mark.parametrize(("last_ms", "batch_ms"), [(None, 0), (5000, 5000), (5001, 5000)])
def test_the_last_batch(last_ms: int | None, batch_ms: int) -> None:
    """A record between two batches counts for the first; without any it is zero time."""
    recovery: Any = SimpleNamespace(last_ms=last_ms)
    assert last_batch_ms(recovery, planned()[0]) == batch_ms


def test_what_a_stream_of_the_same_uid_had_before_is_not_its_own() -> None:
    """Snapshots of an earlier stream with the same uid, which was removed, are ignored."""
    plan, node = planned()
    records = [record(1000), record(2000), record(4000)]
    committed = read(plan, records, 5000, added_after={UID: 2000})
    assert committed.added == {node: 2000}
    assert list(committed.snapshots[UID]) == [4000]
    assert not committed.is_new(node)


def test_a_stream_that_no_run_had_asks_for_nothing_before() -> None:
    """A node with an old uid of another node begins after the last batch."""
    plan, node = planned()
    committed = read(plan, [record(1000)], 5000, added=frozenset({UID}))
    assert committed.is_new(node)
    assert committed.snapshots == {UID: {}}
    assert committed.required_since == {INPUT: 5000, node: 5000}


def test_inputs_that_batches_could_not_read() -> None:
    """They are known by uid and batch: the state that followed does not contain them."""
    plan, _ = planned()
    facts = {UNREAD: ["queueStream-0"]}
    committed = read(plan, [record(1000), record(2000, facts=facts)], 2000)
    assert committed.unread == {("queueStream-0", 2000)}
