"""Every physical operator by itself: rows, metrics, output, distribution and order of its rows."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

import dstreams.structured
from checkpoint import open_files
from checkpoint.state_store import LmdbBackend, StateStore
from dstreams.arrow.aggregates.functions import Count, Several, Sum
from dstreams.errors import InvalidStreamError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.placed_pairs import PlacedPairsRDD
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.state.flat_map_groups import FlatMapGroups
from dstreams.state.group_state import GroupState, GroupStateTimeout, OutputMode
from dstreams.state.state_versions import StateUpdate, StateVersions
from dstreams.state.stateful_processor import TimeMode
from dstreams.state.transform_groups import TransformGroups, defined
from dstreams.structured.execution.replay import RecordedExec
from dstreams.structured.named_rows import Window
from dstreams.structured.operators.aggregation import (
    AggregateMode,
    HashAggregateExec,
    StateStoreRestoreExec,
    StateStoreSaveExec,
)
from dstreams.structured.operators.attempts import TryExec
from dstreams.structured.operators.deduplication import (
    KeyEventsExec,
    StreamingDeduplicateExec,
    StreamingDeduplicateWithinWatermarkExec,
)
from dstreams.structured.operators.exchange import LocalSortExec, ShuffleExchangeExec
from dstreams.structured.operators.execution_context import (
    ExecutionContext,
    StatefulOperatorStateInfo,
)
from dstreams.structured.operators.flat_map_groups_with_state import (
    FlatMapGroupsWithStateExec,
    GroupedFunctionExec,
)
from dstreams.structured.operators.fusion import FusedExec, fuse_stateful_operators
from dstreams.structured.operators.grouping import Grouping
from dstreams.structured.operators.join import (
    LEFT,
    RIGHT,
    JoinCondition,
    JoinedEventsExec,
    JoinType,
    NestedEventsExec,
    StreamingSymmetricHashJoinExec,
)
from dstreams.structured.operators.late_records import LateRecordsExec
from dstreams.structured.operators.limit import (
    LimitExec,
    StreamingGlobalLimitExec,
    StreamingLocalLimitExec,
)
from dstreams.structured.operators.physical_operator import (
    BY_KEY,
    BY_KEY_AND_START,
    UNORDERED,
    LocalTableScanExec,
    NarrowExec,
    Ordering,
    PhysicalOperator,
    RDDScanExec,
    UnaryExec,
)
from dstreams.structured.operators.sessions import (
    FinishSessionsExec,
    MergingSessionsExec,
    Session,
    SessionGrouping,
    SessionWindowStateStoreRestoreExec,
    SessionWindowStateStoreSaveExec,
    UpdatingSessionsExec,
)
from dstreams.structured.operators.stateful_operator import (
    SavingOperator,
    StatefulOperator,
    StateStoreReader,
    StateStoreWriter,
)
from dstreams.structured.operators.stateless import (
    AppendKeyExec,
    BatchScanExec,
    ElementsExec,
    EventTimeWatermarkExec,
    ObserveExec,
    RecordsExec,
    SortExec,
    StreamingRelationExec,
    TimedExec,
    UnionExec,
    WindowTimeExec,
)
from dstreams.structured.operators.static_join import (
    MatchRows,
    ShuffledHashJoinExec,
    StaticJoinExec,
    StaticSide,
    StaticTable,
)
from dstreams.structured.operators.time_windows import TimeWindows
from dstreams.structured.operators.transform_with_state import TransformWithStateExec
from dstreams.structured.sinks.trial_sinks import NoopSink
from dstreams.structured.sources.static_rows import StaticRows
from tests.dstreams.state.processors import Commands
from tests.dstreams.state.stores import FieldsEncoder

TWO = StablePartitioner(2)
BY_LETTER = Grouping(str, name="letter")
S = 1_000_000  # a second in microseconds
LATE = NoopSink()

ABSTRACT = {
    PhysicalOperator,
    UnaryExec,
    NarrowExec,
    StatefulOperator,
    StateStoreReader,
    StateStoreWriter,
    SavingOperator,
    GroupedFunctionExec,
}


@dataclass
class Lab:
    """The environment in which operators are executed."""

    sc: SparkContext
    directory: Path
    states: StateVersions = field(init=False)

    def __post_init__(self) -> None:
        backend = LmdbBackend(
            open_files(str(self.directory / "files")), str(self.directory / "local")
        )
        self.states = StateVersions(self.sc, StateStore(backend))

    def rows(self, *rows: Any, events: bool = False) -> RDDScanExec:
        """Return a scan of rows in two partitions."""
        return RDDScanExec(self.sc.parallelize(rows, 2), events=events)

    def pairs(
        self, *rows: Any, events: bool = False, ordering: Ordering = UNORDERED
    ) -> RDDScanExec:
        """Return a scan of pairs, each in the partition of its key."""
        placed = shuffle_pairs(self.sc.parallelize(rows, 1), TWO, ordered=True)
        return RDDScanExec(
            PlacedPairsRDD(placed), "pairs", events, ordering, columns=("key", "row")
        )

    def info(self, stored: Mapping[Any, Any] | None = None) -> StatefulOperatorStateInfo:
        """Return the state info of a state with some rows: value, or value and timeout.

        A session, stored under (key, start), is in the partition of its key.
        """
        info = StatefulOperatorStateInfo.empty(2)
        if not stored:
            return info
        placed = (
            (key[0] if isinstance(key, tuple) and key else key, (key, value))
            for key, value in stored.items()
        )
        rows = self.pairs(*placed).rdd
        assert rows is not None
        self.states.make("0", 0, StateUpdate(info.before, rows, put_all))
        version = self.states.at("0", 0)
        assert version is not None
        return StatefulOperatorStateInfo("", "", 0, version)

    def contents(self) -> dict[Any, Any]:
        """Return what the newest version of the state has."""
        entries = self.states.entries("0", "state")
        return {} if entries is None else {key: value for key, value, _ in entries.collect()}


@dataclass(frozen=True)
class WithTimeout:
    value: Any
    timeout_ms: int


def put_all(store: Any, initial: Any, records: Any, metrics: Any) -> Iterator[Any]:
    for _, (key, value) in records:
        if isinstance(value, WithTimeout):
            store.put(key, value.value, value.timeout_ms)
        else:
            store.put(key, value)
    return iter(())


@dataclass(frozen=True)
class Expected:
    """The expected results of an operator by itself.

    Args:
        rows: sorted by their text, if the operator promises no order.
        partitioning: as text.
        metrics: the expected values of some of them.
        stored: the state afterwards.
    """

    rows: list[Any]
    partitioning: str = "UnknownPartitioning"
    ordering: Ordering = UNORDERED
    output: tuple[str, ...] = ("value",)
    metrics: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[Any, Any] | None = None


PLACED = "hashpartitioning(key, 2)"
Case = Callable[[Lab], tuple[PhysicalOperator, Expected]]
CASES: list[Case] = []


def case(build: Case) -> Case:
    CASES.append(build)
    return build


def counting(key: Any, values: Iterator[Any], state: GroupState[int]) -> Iterator[Any]:
    if state.hasTimedOut:
        yield key, "timed out", state.get
        state.remove()
        return
    state.update((state.getOption or 0) + sum(1 for _ in values))
    yield key, state.get


def adding(key: str, values: Iterator[int], state: GroupState[Any]) -> Iterator[Any]:
    total, calls = state.get
    total += sum(values)
    state.update((total, calls + 1))
    yield key, total


def second(row: tuple[Any, Any]) -> Any:
    return row[1]


@case
def rdd_scan(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return lab.rows(1, 2), Expected([1, 2])


@case
def placed_rdd_scan(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return lab.pairs(("a", 1)), Expected([("a", 1)], PLACED, output=("key", "row"))


@case
def local_table_scan(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return LocalTableScanExec((1, 2)), Expected([1, 2], "SinglePartition")


@case
def streaming_relation(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    relation = StreamingRelationExec(0, "rate", ("timestamp", "value"), lab.rows(1, 2).rdd)
    return relation, Expected([1, 2], output=("timestamp", "value"))


@case
def elements(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    events = lab.rows((1, "a b"), (2, "c"), events=True)
    return ElementsExec(events, str.split, "flatMap"), Expected([(1, "a"), (1, "b"), (2, "c")])


@case
def tried(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    events = lab.rows((1, "1"), (2, "c"), (3, "3"), events=True)
    return TryExec(events, (int,), "groupByKey(int)", "skip"), Expected([(1, "1"), (3, "3")])


@case
def union(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return UnionExec(lab.rows(1), lab.rows(2)), Expected([1, 2])


@case
def observe(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return ObserveExec(lab.rows(1, 2), "seen", ("count",), Several((Count(),))), Expected([1, 2])


@case
def recorded(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return RecordedExec(lab.pairs(("a", 1)), "scan", {}), Expected(
        [("a", 1)], PLACED, output=("key", "row")
    )


@case
def late_records(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    events = lab.rows((1000, "late"), (3000, "in time"), events=True)
    expected = Expected([(1000, "late"), (3000, "in time")])
    return LateRecordsExec(events, LATE, "window", 0, lateMs=2), expected


@case
def scan(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return BatchScanExec(StaticRows.of([1, 2], "scan")), Expected([1, 2])


@case
def shuffled_join(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    left = lab.pairs(("a", (LEFT, (None, 1))), ("b", (LEFT, (None, 2))))
    match = MatchRows(JoinType.LeftOuter, JoinCondition())
    joined = ShuffledHashJoinExec(left, lab.pairs(("a", (RIGHT, (None, 3)))), match)
    return joined, Expected([(1, 3), (2, None)], output=("left", "right"))


@case
def static_join(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    match = MatchRows(JoinType.Inner, JoinCondition())
    side = StaticSide("static", lab.rows(), str, RIGHT, "join")
    table = StaticTable(lab.sc.broadcast({"1": [(None, 5)]}), 1, "every operator", "1")
    return StaticJoinExec(lab.rows(1, 2), str, side, match, 2, table), Expected(
        [(1, 5)], output=("left", "right")
    )


@case
def window_time(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return WindowTimeExec(lab.rows(("w", 5)), second), Expected([(5, ("w", 5))])


@case
def timed(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return TimedExec(lab.rows((1, 7), events=True), lambda record: record), Expected([(7, 7)])


@case
def append_key(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    keyed = AppendKeyExec(lab.rows("ab"), len, "len")
    return keyed, Expected([(2, "ab")], output=("key", "value"))


@case
def records(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return RecordsExec(lab.rows((1, "a"), events=True)), Expected(["a"])


@case
def sort(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    found = SortExec(lab.rows(1, 3, 2), abs, ascending=False)
    return found, Expected([3, 2, 1], "SinglePartition", Ordering(("builtins.abs DESC",)))


@case
def limit(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return LimitExec(lab.rows(1, 2, 3), 2), Expected([1, 2], "SinglePartition")


@case
def nested_events(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return NestedEventsExec(lab.rows((1, "a"), events=True)), Expected([(1, (1, "a"))])


@case
def joined_events(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    joined = JoinedEventsExec(lab.rows(((1, "a"), (2, "b"))), is_semi=False)
    return joined, Expected([(2, ("a", "b"))])


@case
def event_time_watermark(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    return EventTimeWatermarkExec(lab.rows(5), lambda ms: ms), Expected([(5000, 5)])


@case
def exchange(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    moved = ShuffleExchangeExec(lab.rows(("a", 1), ("b", 2)), 2, "letter")
    return moved, Expected([("a", 1), ("b", 2)], "hashpartitioning(letter, 2)")


@case
def local_sort(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    child = lab.pairs(("a", 2), ("c", 5), ("a", 1))
    rows = [("a", 2), ("a", 1), ("c", 5)]
    return LocalSortExec(child, BY_KEY), Expected(rows, PLACED, BY_KEY, ("key", "row"))


@case
def local_sort_by_start(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    child = lab.pairs(("a", (2, "x")), ("a", (1, "y")))
    rows = [("a", (1, "y")), ("a", (2, "x"))]
    expected = Expected(rows, PLACED, BY_KEY_AND_START, ("key", "row"))
    return LocalSortExec(child, BY_KEY_AND_START), expected


@case
def partial_aggregate(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    part = HashAggregateExec(lab.rows("a"), Count(), BY_LETTER, AggregateMode.Partial)
    return part, Expected([("a", 1)], output=("key", "buffer"))


@case
def merging_aggregate(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    child = lab.pairs(("a", 1), ("b", 1), ("a", 2))
    part = HashAggregateExec(child, Count(), BY_LETTER, AggregateMode.PartialMerge)
    return part, Expected([("a", 3), ("b", 1)], PLACED, BY_KEY, ("key", "buffer"))


@case
def final_aggregate(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    windows = Grouping(str, TimeWindows(5), "window")
    part = HashAggregateExec(lab.pairs(((10, "a"), 3)), Count(), windows, AggregateMode.Final)
    return part, Expected([((Window(5, 10), "a"), 3)], output=("key", "result"))


@case
def restore(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    child = lab.pairs(("a", 1), ("b", 1))
    step = StateStoreRestoreExec(child, BY_LETTER, stateInfo=lab.info({"a": (4,), "z": (9,)}))
    rows = [("a", 1), ("a", 4), ("b", 1)]
    return step, Expected(rows, PLACED, output=("key", "row"), metrics={"numOutputRows": 2})


@case
def restore_of_format_1(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    child = lab.pairs(("a", 1), ("b", 1))
    info = lab.info({"a": ("a", 4)})
    step = StateStoreRestoreExec(child, BY_LETTER, stateFormatVersion=1, stateInfo=info)
    rows = [("a", 1), ("a", 4), ("b", 1)]
    return step, Expected(rows, PLACED, output=("key", "row"), metrics={"numOutputRows": 2})


@case
def restore_without_rows_and_keys(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = StateStoreRestoreExec(lab.pairs(), Grouping(), stateInfo=lab.info({(): (7,)}))
    return step, Expected([((), 7)], PLACED, output=("key", "row"))


@case
def restore_without_rows(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = StateStoreRestoreExec(lab.pairs(), BY_LETTER, stateInfo=lab.info({"a": (7,)}))
    return step, Expected([], PLACED, output=("key", "row"), metrics={"numOutputRows": 0})


@case
def save(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = StateStoreSaveExec(
        lab.pairs(("a", 5)), BY_LETTER, OutputMode.Update, stateInfo=lab.info({"z": (9,)})
    )
    counts = {"numOutputRows": 1, "numUpdatedStateRows": 1, "numTotalStateRows": 2}
    stored = {"a": (5,), "z": (9,)}
    return step, Expected([("a", 5)], output=("key", "row"), metrics=counts, stored=stored)


@case
def save_the_whole_table(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = StateStoreSaveExec(
        lab.pairs(("a", 5)), BY_LETTER, OutputMode.Complete, stateInfo=lab.info({"z": (9,)})
    )
    counts = {"numOutputRows": 2, "numUpdatedStateRows": 1, "numTotalStateRows": 2}
    return step, Expected([("a", 5), ("z", 9)], output=("key", "row"), metrics=counts)


@case
def save_and_evict(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = StateStoreSaveExec(
        lab.pairs((3, 1), (9, 1)),
        Grouping(windows=TimeWindows(3)),
        OutputMode.Append,
        eventTimeWatermarkForLateEvents=3,
        eventTimeWatermarkForEviction=6,
        stateInfo=lab.info({6: (2,)}),
    )
    counts = {
        "numOutputRows": 1,
        "numUpdatedStateRows": 1,
        "numRemovedStateRows": 1,
        "numRowsDroppedByWatermark": 1,
        "numTotalStateRows": 1,
    }
    stored = {9: (1,)}
    return step, Expected([(6, 2)], output=("key", "row"), metrics=counts, stored=stored)


@case
def updating_sessions(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    child = lab.rows((1 * S, "a"), events=True)
    step = UpdatingSessionsExec(child, Count(), SessionGrouping(5_000_000, str))
    return step, Expected([("a", Session(1 * S, 6 * S, 1))], output=("key", "session"))


BY_SESSION = SessionGrouping(5_000_000, str)


@case
def restore_sessions(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    rows = (("a", (1 * S, 2 * S, 1)), ("a", (9 * S, 14 * S, 1)))
    step = SessionWindowStateStoreRestoreExec(
        lab.pairs(*rows, ordering=BY_KEY_AND_START),
        BY_SESSION,
        eventTimeWatermarkForLateEvents=2000,
        stateInfo=lab.info({("a", 5 * S): (10 * S, 3)}),
    )
    found = [("a", Session(5 * S, 10 * S, 3)), ("a", Session(9 * S, 14 * S, 1))]
    counts = {"numOutputRows": 2, "numRowsDroppedByWatermark": 1}
    return step, Expected(found, PLACED, BY_KEY_AND_START, ("key", "row"), counts)


@case
def merging_sessions(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    rows = (("a", (5 * S, 10 * S, 3)), ("a", (9 * S, 14 * S, 1)), ("b", (1, 2, 1)))
    step = MergingSessionsExec(lab.pairs(*rows, ordering=BY_KEY_AND_START), Sum())
    found = [("a", Session(5 * S, 14 * S, 4)), ("b", Session(1, 2, 1))]
    return step, Expected(found, PLACED, BY_KEY_AND_START, ("key", "row"))


@case
def save_sessions(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = SessionWindowStateStoreSaveExec(
        lab.pairs(("a", (4 * S, 14 * S, 4)), ordering=BY_KEY_AND_START),
        BY_SESSION,
        OutputMode.Append,
        eventTimeWatermarkForEviction=2000,
        stateInfo=lab.info(
            {
                ("a", 5 * S): WithTimeout((10 * S, 3), 10_000),
                ("z", 1 * S): WithTimeout((2 * S, 8), 2_000),
            }
        ),
    )
    counts = {
        "numOutputRows": 1,
        "numUpdatedStateRows": 1,
        "numRemovedStateRows": 2,
        "numTotalStateRows": 1,
    }
    return step, Expected(
        [("z", Session(1 * S, 2 * S, 8))],
        output=("key", "row"),
        metrics=counts,
        stored={("a", 4 * S): (14 * S, 4)},
    )


@case
def finish_sessions(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = FinishSessionsExec(lab.pairs(("a", (1 * S, 6 * S, 4))), Count(), BY_SESSION)
    return step, Expected([((Window(1000, 6000), "a"), 4)], output=("key", "result"))


@case
def key_events(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = KeyEventsExec(lab.rows("ab"), len, where="len")
    return step, Expected([(2, (None, "ab"))], output=("key", "event"))


@case
def key_events_of_a_side(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = KeyEventsExec(lab.rows((5, "ab"), events=True), len, side=1)
    return step, Expected([(2, (1, (5, "ab")))], output=("key", "event"))


@case
def deduplicate(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    rows = (("a", (None, "A")), ("b", (None, "B")), ("b", (None, "BB")))
    step = StreamingDeduplicateExec(lab.pairs(*rows), stateInfo=lab.info({"a": True}))
    counts = {"numOutputRows": 1, "numDroppedDuplicateRows": 2, "numTotalStateRows": 2}
    return step, Expected(["B"], metrics=counts, stored={"a": True, "b": True})


@case
def deduplicate_within_watermark(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = StreamingDeduplicateWithinWatermarkExec(
        lab.pairs(("b", (9 * S, "B")), events=True),
        delayMs=1000,
        eventTimeWatermarkForLateEvents=0,
        eventTimeWatermarkForEviction=5000,
        stateInfo=lab.info({"a": WithTimeout(5000, 5000)}),
    )
    counts = {"numOutputRows": 1, "numRemovedStateRows": 1, "numTotalStateRows": 1}
    return step, Expected([(9 * S, "B")], metrics=counts, stored={"b": 10_000})


@case
def join(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = StreamingSymmetricHashJoinExec(
        lab.pairs(("k", (0, (None, "left")))),
        lab.pairs(("k", (1, (None, "right"))), ("z", (1, (None, "alone")))),
        JoinType.Inner,
        JoinCondition(),
        stateInfo=lab.info(),
    )
    counts = {"numOutputRows": 1, "numTotalStateRows": 3}
    return step, Expected([("left", "right")], output=("left", "right"), metrics=counts)


@case
def local_limit(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = StreamingLocalLimitExec(lab.rows("a", "b"), 5)
    return step, Expected([((), "a"), ((), "b")], output=("key", "value"))


@case
def global_limit(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    rows = [((), "a"), ((), "b"), ((), "c")]
    step = StreamingGlobalLimitExec(lab.pairs(*rows), 3, stateInfo=lab.info({(): 1}))
    counts = {"numOutputRows": 2, "numUpdatedStateRows": 1}
    return step, Expected(["a", "b"], output=("row",), metrics=counts, stored={(): 3})


@case
def flat_map_groups_with_state(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = FlatMapGroupsWithStateExec(
        lab.pairs(("a", 1), ("a", 2), ("b", 1), ordering=BY_KEY),
        FlatMapGroups(
            func=counting,
            where="counting",
            timeoutConf=GroupStateTimeout.ProcessingTimeTimeout,
            batchTimestampMs=1000,
        ),
        stateInfo=lab.info({"a": (5, -1), "z": WithTimeout((9, 999), 999)}),
    )
    counts = {
        "numOutputRows": 3,
        "numUpdatedStateRows": 2,
        "numRemovedStateRows": 1,
        "numTotalStateRows": 2,
    }
    rows = [("a", 7), ("b", 1), ("z", "timed out", 9)]
    return step, Expected(rows, metrics=counts, stored={"a": (7, -1), "b": (1, -1)})


@case
def flat_map_groups_with_converters(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    step = FlatMapGroupsWithStateExec(
        lab.pairs(("a", (9 * S, "5")), ("a", (1 * S, "7")), events=True, ordering=BY_KEY),
        FlatMapGroups(
            func=adding,
            where="adding",
            timeoutConf=GroupStateTimeout.EventTimeTimeout,
            stateFormatVersion=1,
            stateEncoder=FieldsEncoder(tuple),
            getKeyObj=str.upper,
            getValueObj=int,
            getOutputRow=list,
        ),
        eventTimeWatermarkForLateEvents=1000,
        eventTimeWatermarkForEviction=2000,
        stateInfo=lab.info({"a": (30, 1, -1)}),
    )
    counts = {"numRowsDroppedByWatermark": 1, "numUpdatedStateRows": 1}
    return step, Expected([["A", 35]], metrics=counts, stored={"a": (35, 2, -1)})


@case
def transform_with_state(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    records = [("a", "value", "update", (7,)), ("a", "value", "get"), ("b", "value", "exists")]
    processor, mode = Commands(), TimeMode.ProcessingTime
    step = TransformWithStateExec(
        lab.pairs(*(((record[0],), record) for record in records)),
        TransformGroups(
            processor=processor,
            timeMode=mode,
            variables=defined(processor, mode, "commands")[0],
            batchTimestampMs=1000,
            batchNumber=3,
        ),
        stateInfo=lab.info(),
    )
    counts = {"numOutputRows": 2, "numUpdatedStateRows": 1, "numTotalStateRows": 1}
    stored = {("value", "a"): (7,)}
    return step, Expected([("a", (7,)), ("b", False)], metrics=counts, stored=stored)


@case
def fused(lab: Lab) -> tuple[PhysicalOperator, Expected]:
    merged = HashAggregateExec(
        lab.pairs(("a", 1), ("a", 1)), Count(), BY_LETTER, AggregateMode.PartialMerge
    )
    info = lab.info({"a": (4,)})
    restored = StateStoreRestoreExec(merged, BY_LETTER, stateInfo=info)
    both = HashAggregateExec(restored, Count(), BY_LETTER, AggregateMode.PartialMerge)
    saved = StateStoreSaveExec(both, BY_LETTER, OutputMode.Update, stateInfo=info)
    plan = fuse_stateful_operators(saved)
    assert isinstance(plan, FusedExec)
    return plan, Expected([("a", 6)], output=("key", "buffer"), stored={"a": (6,)})


@pytest.mark.deep
@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_by_itself(sc: SparkContext, tmp_path: Path, build: Case) -> None:
    """An operator executed over an RDD does what its description says."""
    lab = Lab(sc, tmp_path)
    operator, expected = build(lab)
    context = ExecutionContext(sc, lab.states, batch=1)
    rows = operator.executeCollect(context)
    if expected.ordering == UNORDERED:
        assert sorted(rows, key=repr) == sorted(expected.rows, key=repr)
    else:
        keys = list(dict.fromkeys(row[0] if isinstance(row, tuple) else row for row in rows))
        by_key = sorted(rows, key=lambda row: repr(row[0]) if isinstance(row, tuple) else 0)
        assert by_key == expected.rows
        assert [row[0] if isinstance(row, tuple) else row for row in rows] == sorted(
            (row[0] if isinstance(row, tuple) else row for row in rows), key=keys.index
        )
    counts = context.metrics(operator)
    assert {name: counts.get(name, 0) for name in expected.metrics} == expected.metrics
    assert str(operator.outputPartitioning) == expected.partitioning
    assert operator.outputOrdering == expected.ordering
    assert operator.output == expected.output
    if expected.stored is not None:
        assert lab.contents() == expected.stored
    lab.states.release()


def failing(*arguments: Any) -> Any:
    raise ValueError("broken")


def failing_map(lab: Lab) -> PhysicalOperator:
    return ElementsExec(lab.rows("a"), failing, "map")


def failing_with_state(lab: Lab) -> PhysicalOperator:
    rows = lab.pairs(("a", 1), ordering=BY_KEY)
    return FlatMapGroupsWithStateExec(
        rows, FlatMapGroups(func=failing, where="failing"), stateInfo=lab.info()
    )


@pytest.mark.parametrize(
    ("build", "subject"), [(failing_map, "record"), (failing_with_state, "key")]
)
def test_a_function_that_fails(
    sc: SparkContext, tmp_path: Path, build: Callable[[Lab], PhysicalOperator], subject: str
) -> None:
    """The first line names the function and its argument, whichever job it fails in."""
    lab = Lab(sc, tmp_path)
    with pytest.raises(
        Exception, match=rf"^.*failing.* failed for {subject} 'a': ValueError: broken\n"
    ) as raised:
        build(lab).executeCollect(ExecutionContext(sc, lab.states, batch=0))
    assert "\tat " not in str(raised.value)
    assert "\tat " in raised.value.java  # type: ignore[attr-defined]


def operator_classes() -> set[type[PhysicalOperator]]:
    for module in pkgutil.walk_packages(dstreams.structured.__path__, "dstreams.structured."):
        importlib.import_module(module.name)
    found: set[type[PhysicalOperator]] = set()
    waiting: list[type[PhysicalOperator]] = [PhysicalOperator]
    while waiting:
        found.update(below := waiting.pop().__subclasses__())
        waiting += below
    return {each for each in found if each.__module__.startswith("dstreams.")}


def test_what_operators_report_or_set_aside(sc: SparkContext, tmp_path: Path) -> None:
    """Aggregates over the rows that pass, and the rows that are late."""
    lab = Lab(sc, tmp_path)
    context = ExecutionContext(sc, lab.states, batch=1)
    for build in (observe, late_records):
        build(lab)[0].execute(context).collect()
    assert context.observed_metrics() == {"seen": {"count": 2}}
    (record,) = context.rows_for(LATE).collect()
    assert (record.record, record.operator) == ("late", "window")


@pytest.mark.deep
def test_every_class_has_a_case(sc: SparkContext, tmp_path: Path) -> None:
    """No operator class exists that is not executed here."""
    executed = {type(build(Lab(sc, tmp_path / build.__name__))[0]) for build in CASES}
    assert operator_classes() - ABSTRACT == executed


STATEFUL = [restore, save, restore_sessions, save_sessions, deduplicate, join, global_limit]


@pytest.mark.parametrize("build", STATEFUL, ids=lambda build: build.__name__)
def test_without_state_info(sc: SparkContext, tmp_path: Path, build: Case) -> None:
    """The state rule fills in the state info; execution without it is an error."""
    lab = Lab(sc, tmp_path)
    operator, _ = build(lab)
    bare = operator.inBatch(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidStreamError, match="state location not present for execution"):
        bare.execute(ExecutionContext(sc, lab.states, batch=1))


@pytest.mark.parametrize("build", STATEFUL, ids=lambda build: build.__name__)
def test_over_rows_that_are_anywhere(sc: SparkContext, tmp_path: Path, build: Case) -> None:
    """Rows that are not where their state is are refused, with what to do."""
    lab = Lab(sc, tmp_path)
    operator, _ = build(lab)
    anywhere = operator.transform(
        lambda step: lab.rows(("a", 1)) if isinstance(step, RDDScanExec) else step
    )
    with pytest.raises(
        InvalidStreamError,
        match=r"input must have hashpartitioning\(.*, 2\), RDDScan has UnknownPartitioning; "
        r"call ensure_requirements\(plan, numPartitions\)",
    ):
        anywhere.execute(ExecutionContext(sc, lab.states, batch=1))


@pytest.mark.parametrize(
    ("timeout", "message"),
    [
        (GroupStateTimeout.ProcessingTimeTimeout, "processing-time timeout needs batchTimestampMs"),
        (GroupStateTimeout.EventTimeTimeout, "event-time timeout needs rows with event times and"),
    ],
)
def test_times_that_a_timeout_requires(
    sc: SparkContext, tmp_path: Path, timeout: GroupStateTimeout, message: str
) -> None:
    """Batch time and watermarks are required by the timeout that goes by them, and by no other."""
    lab = Lab(sc, tmp_path)
    operator, _ = flat_map_groups_with_state(lab)
    assert isinstance(operator, FlatMapGroupsWithStateExec)
    groups = replace(operator.groups, timeoutConf=timeout, batchTimestampMs=None)
    bare = replace(operator, groups=groups, stateInfo=lab.info())
    with pytest.raises(InvalidStreamError, match=message):
        bare.execute(ExecutionContext(sc, lab.states, batch=1))
    free = replace(bare, groups=replace(groups, timeoutConf=GroupStateTimeout.NoTimeout))
    rows = free.execute(ExecutionContext(sc, lab.states, batch=1)).collect()
    assert sorted(rows) == [("a", 2), ("b", 1)]
    lab.states.release()
