"""Joins of two streams: without Spark, against all pairs at once, and one plan on RDDs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkContext

from checkpoint.state_store import EMPTY, MemoryBackend, StateStore, StateWriter, StoreId
from dstreams.errors import InvalidStreamError
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.spilling import SpillBuffer
from dstreams.spark.state_version import StateMetrics
from dstreams.structured.operators import join
from dstreams.structured.operators.join import (
    LEFT,
    RIGHT,
    JoinCondition,
    JoinRows,
    JoinType,
    TimeRange,
    plan_join,
)
from dstreams.structured.operators.physical_operator import RDDScanExec
from dstreams.structured.operators.stateless import EventTimeWatermarkExec
from tests.dstreams.structured.operators.local_query import LocalQuery
from tests.dstreams.structured.operators.query import SparkQuery
from tests.support.jobs import count_jobs

STORE = StoreId("stream", "join", "default", 0, 1)
WITHIN_10_S = JoinCondition(TimeRange(0, 10_000))
Row = tuple[int, Any, str]


class Join:
    """A join on a store in memory."""

    def __init__(
        self, kind: JoinType, condition: JoinCondition = WITHIN_10_S, *, no_data: bool = True
    ) -> None:
        self.query = LocalQuery(
            lambda events: [(key, (side, (ms, name))) for ms, (side, key, name) in events],
            lambda late, evict: JoinRows(kind, condition, late, evict),
            no_data=no_data,
        )

    def add(self, left: list[Row] = [], right: list[Row] = []) -> list[Any]:  # noqa: B006
        """Add rows (second, key, name) of both sides; return what goes out."""
        events = [
            (None if second is None else second * 1000, (side, key, name))
            for side, rows in ((LEFT, left), (RIGHT, right))
            for second, key, name in rows
        ]
        return sorted(self.query.add(events), key=repr)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.query.batches[-1].counts


def test_inner_pairs_in_one_batch_and_over_batches() -> None:
    """Rows meet those of the same batch and those that were there."""
    join = Join(JoinType.Inner)
    assert join.add([(1, "k", "l1"), (2, "x", "l2")], [(3, "k", "r1")]) == [("l1", "r1")]
    assert join.counts == (3, 3, 0, 0)
    assert join.add(right=[(11, "k", "r2"), (12, "k", "r3")]) == [("l1", "r2")]
    assert join.add([(12, "k", "l3")]) == [("l3", "r3")]


def test_state_that_the_watermark_has_passed_goes() -> None:
    """A left row goes 10 s after its time, a right one at once: only earlier rows can meet it."""
    join = Join(JoinType.Inner)
    join.add([(5, "k", "l")], [(5, "k", "r")])
    join.add([(15, "z", "l2")])
    assert join.counts == (2, 0, 1, 0)
    join.add([(25, "z", "l3")])
    assert join.counts == (2, 0, 1, 0)
    assert join.add([(15, "k", "late")]) == []
    assert join.counts == (2, 0, 0, 1)


def test_a_row_that_meets_nothing_any_more_is_not_kept() -> None:
    """A row that the watermark of its own batch has passed matches rows of that batch only."""
    join = Join(JoinType.LeftOuter)
    join.query.watermark_ms = 50_000
    assert join.add([(30, "k", "l"), (39, "k", "alone")], [(35, "k", "r")]) == [
        ("alone", None),
        ("l", "r"),
    ]
    assert join.counts == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("kind", "out"),
    [
        (JoinType.Inner, []),
        (JoinType.LeftOuter, [("l", None)]),
        (JoinType.RightOuter, [(None, "r")]),
        (JoinType.FullOuter, [("l", None), (None, "r")]),
        (JoinType.LeftSemi, []),
    ],
)
def test_rows_that_met_none(kind: JoinType, out: list[Any]) -> None:
    """They go out of an outer join when the watermark has passed what they could meet."""
    join = Join(kind)
    met = "l2" if kind is JoinType.LeftSemi else ("l2", "r2")
    assert join.add([(5, "a", "l"), (6, "c", "l2")], [(5, "b", "r"), (7, "c", "r2")]) == [met]
    assert join.add([(24, "z", "x")]) == [row for row in out if row != ("l", None)]
    assert join.add([(25, "z", "y")]) == [row for row in out if row == ("l", None)]


@pytest.mark.parametrize("kind", [JoinType.LeftOuter, JoinType.RightOuter, JoinType.FullOuter])
def test_updated_rows(kind: JoinType) -> None:
    """Only new rows are counted, not stored ones that meet their first match, as in Spark."""
    join = Join(kind)
    join.add([(5, "k", "l")], [(6, "x", "r")])
    assert join.counts == (2, 2, 0, 0)
    assert join.add([(1, "x", "l2")], [(7, "k", "r2")]) == [("l", "r2"), ("l2", "r")]
    assert join.counts == (4, 2, 0, 0)


def test_a_semi_join_puts_out_each_row_once() -> None:
    """A left row goes out when it meets one, and is kept no longer."""
    join = Join(JoinType.LeftSemi)
    assert join.add([(1, "k", "l")]) == []
    assert join.add(right=[(2, "k", "r1"), (3, "k", "r2")]) == ["l"]
    assert join.counts == (2, 2, 1, 0)
    assert join.add([(2, "k", "l2")], [(4, "k", "r3")]) == ["l2"]
    assert join.add(right=[(5, "k", "r4")]) == []


def test_no_key_meets_none() -> None:
    """A row with key None goes out of an outer join at once, and is not kept."""
    join = Join(JoinType.FullOuter)
    assert join.add([(1, None, "l")], [(1, None, "r")]) == [("l", None), (None, "r")]
    assert join.counts == (0, 0, 0, 0)


def test_no_event_time_meets_none_within_a_range() -> None:
    """Without a time it is near to none."""
    join = Join(JoinType.LeftOuter)
    assert join.add([(None, "k", "l")], [(None, "k", "r")]) == [("l", None)]  # type: ignore[list-item]
    assert join.counts == (0, 0, 0, 0)


def test_rows_meet_and_end_by_the_microsecond() -> None:
    """A range is exact to the microsecond; the watermark evicts rows when it has passed them."""
    within = TimeRange(0, 1)
    near = [within.holds(500, right_us) for right_us in (499, 500, 1500, 1501)]
    assert near == [False, True, True, False]
    condition = JoinCondition(within)
    assert [condition.last_ms(LEFT, time_us) for time_us in (1000, 1001)] == [2, 3]


def test_without_bounds_all_is_kept() -> None:
    """An inner join by key alone matches all earlier rows, without eviction."""
    join = Join(JoinType.Inner, JoinCondition())
    join.add([(1, "k", "l")])
    join.add([(1000, "z", "x")])
    assert join.add(right=[(2000, "k", "r")]) == [("l", "r")]


UP_TO_10_S, AT_LEAST_5_S = TimeRange(None, 10_000), TimeRange(5_000, None)


@pytest.mark.parametrize(
    ("watermarks", "time_range", "kept", "dropped"),
    [
        ((True, True), TimeRange(0, 10_000), "", 2),
        ((True, False), TimeRange(0, 10_000), "l", 1),
        ((False, True), TimeRange(0, 10_000), "r", 1),
        ((False, False), TimeRange(0, 10_000), "l late-l late-r r", 0),
        ((True, True), UP_TO_10_S, "r", 2),
        ((True, False), UP_TO_10_S, "l late-r r", 1),
        ((False, True), UP_TO_10_S, "r", 1),
        ((True, True), AT_LEAST_5_S, "l", 2),
        ((True, False), AT_LEAST_5_S, "l", 1),
        ((False, True), AT_LEAST_5_S, "l late-l r", 1),
        ((True, True), None, "l r", 2),
        ((True, False), None, "l late-r r", 1),
    ],
)
def test_an_inner_join_keeps_what_no_watermark_ends(
    watermarks: tuple[bool, bool], time_range: TimeRange | None, kept: str, dropped: int
) -> None:
    """Only a side with a watermark drops late rows, and only that watermark ends the other side."""
    join = Join(JoinType.Inner, JoinCondition(time_range, watermarks=watermarks))
    join.add([(5, "a", "l")], [(5, "b", "r")])
    join.query.late_ms = join.query.watermark_ms = 40_000
    assert join.add([(30, "c", "late-l")], [(39, "d", "late-r")]) == []
    rows = join.query.state.contents().values()
    assert " ".join(sorted(record for _, record, _ in rows)) == kept
    assert join.query.batches[-1].metrics.numRowsDroppedByWatermark == dropped


@pytest.mark.parametrize(
    ("kind", "watermarks", "out"),
    [
        (JoinType.LeftOuter, (False, True), [("l", None), ("late-l", None)]),
        (JoinType.LeftSemi, (False, True), []),
        (JoinType.RightOuter, (True, False), [(None, "late-r"), (None, "r")]),
    ],
)
def test_an_outer_join_needs_the_watermark_of_the_other_side(
    kind: JoinType, watermarks: tuple[bool, bool], out: list[Any]
) -> None:
    """Rows without a match are emitted by the watermark of the side that they wait for."""
    join = Join(kind, JoinCondition(TimeRange(0, 10_000), watermarks=watermarks))
    join.add([(5, "a", "l")], [(5, "b", "r")])
    join.query.late_ms = join.query.watermark_ms = 40_000
    assert join.add([(30, "c", "late-l")], [(39, "d", "late-r")]) == out


def test_a_condition() -> None:
    """A function says which rows of a key meet; when it fails, the error names the key."""
    join = Join(JoinType.Inner, JoinCondition(matches=lambda left, right: left < right, where="j"))
    assert join.add([(1, "k", "a"), (1, "k", "c")], [(1, "k", "b")]) == [("a", "b")]
    with pytest.raises(UserFunctionError, match="j failed for key 'k': TypeError"):
        join.add(right=[(1, "k", 7)])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("kind", "condition", "message"),
    [
        (JoinType.Inner, WITHIN_10_S, "join with a time range needs event times on both sides"),
        (JoinType.LeftOuter, JoinCondition(), "left_outer join .* needs a watermark on the right"),
        (JoinType.LeftSemi, JoinCondition(), "left_semi join .* needs a watermark on the right"),
        (JoinType.FullOuter, JoinCondition(), "full_outer join .* needs a watermark on the right"),
        (JoinType.RightOuter, JoinCondition(), "right_outer join .* needs a watermark on the left"),
    ],
)
def test_joins_that_cannot_be(kind: JoinType, condition: JoinCondition, message: str) -> None:
    """They are refused when they are made, with what to do."""
    scan = RDDScanExec(None)
    with pytest.raises(InvalidStreamError, match=message):
        plan_join(scan, scan, len, len, kind, condition, numPartitions=2)
    with pytest.raises(InvalidStreamError, match="time range of a join from 2 ms to 1 ms is empty"):
        TimeRange(2, 1)


ROWS = st.lists(st.tuples(st.booleans(), st.integers(1, 60), st.sampled_from("ab")), max_size=6)


@pytest.mark.deep
@given(
    st.lists(ROWS, max_size=6),
    st.sampled_from(list(JoinType)),
    st.sampled_from([(0, 10), (-5, 5), (-20, -3)]),
    st.booleans(),
)
def test_all_pairs_once(
    batches: list[list[tuple[bool, int, str]]],
    kind: JoinType,
    limits: tuple[int, int],
    no_data: bool,
) -> None:
    """All in all each pair of rows that were not late goes out once, and each that met none."""
    condition = JoinCondition(TimeRange(limits[0] * 1000, limits[1] * 1000))
    join = Join(kind, condition, no_data=no_data)
    sides: tuple[list[Any], list[Any]] = ([], [])
    out: Counter[Any] = Counter()
    for number, batch in enumerate(batches):
        given_rows: tuple[list[Row], list[Row]] = ([], [])
        for place, (is_right, second, key) in enumerate(batch):
            row = (second, key, f"{number}.{place}")
            given_rows[is_right].append(row)
            if second * 1000 > join.query.late_ms:
                sides[is_right].append(row)
        out.update(join.add(*given_rows))
    out.update(join.add([(1000, "end", "x")]))
    out.update(join.add())
    pairs = [
        (left[2], right[2])
        for left in sides[0]
        for right in sides[1]
        if left[1] == right[1] and limits[0] <= right[0] - left[0] <= limits[1]
    ]
    expected: Counter[Any] = Counter(pairs)
    if kind is JoinType.LeftSemi:
        expected = Counter({left for left, _ in pairs})
    if kind.keeps(LEFT):
        expected.update((row[2], None) for row in sides[0] if row[2] not in dict(pairs))
    if kind.keeps(RIGHT):
        met = {right for _, right in pairs}
        expected.update((None, row[2]) for row in sides[1] if row[2] not in met)
    assert out == expected
    assert len(join.query.state.contents()) == 1


def large_rows(store: StateWriter, memory_mb: float) -> tuple[list[Any], StateMetrics]:
    """Join 4,000 rows of 8 kB with as many matching rows of the state."""
    condition = JoinCondition(TimeRange(0, 10_000))
    text = "x" * 8000
    batches = [
        [(f"k{n}", (side, (1000, (side, n, text)))) for n in range(4000)] for side in (LEFT, RIGHT)
    ]
    join = JoinRows(JoinType.LeftOuter, condition, memory_mb=memory_mb)
    rows: list[Any] = []
    metrics = StateMetrics()
    for batch in batches:
        pairs = join(store, iter(()), iter(batch), metrics)
        rows += [(left[:2], right[:2]) for left, right in pairs]
    return rows, metrics


@pytest.mark.deep
def test_what_changes_is_spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is larger than memory comes to the same, in the same order, and holds little."""
    found = []
    made: list[SpillBuffer] = []
    in_memory: list[int] = []

    class Held(SpillBuffer):
        def __init__(self, memory_mb: float) -> None:
            super().__init__(memory_mb)
            made.append(self)

        def rows(self) -> Iterator[Any]:
            in_memory.append(len(self._rows))
            return super().rows()

    monkeypatch.setattr(join, "SpillBuffer", Held)
    for memory_mb in (1 << 62, 0.001):
        with StateStore(MemoryBackend()).writer(STORE, EMPTY) as store:
            rows, metrics = large_rows(store, memory_mb)
            found.append((rows, metrics.numUpdatedStateRows, sorted(store.items(), key=repr)))
    assert found[0] == found[1]
    assert found[0][1] == 2 * 4000
    # Of each batch: rows that are kept, that were met, that go.
    assert [held.are_in_memory for held in made] == [True] * 6 + [
        False,
        True,
        True,
        False,
        False,
        True,
    ]
    assert in_memory == [4000, 0, 0, 4000, 4000, 0] + [0] * 6


def test_on_rdds(sc: SparkContext, tmp_path: Path) -> None:
    """Two streams with watermarks, joined by one job a batch."""

    def marked(name: str) -> EventTimeWatermarkExec:
        scan = RDDScanExec(None, name)
        return EventTimeWatermarkExec(scan, lambda record: record[0] * 1000, 10_000, name)

    plan = plan_join(
        marked("views"),
        marked("clicks"),
        lambda view: view[1],
        lambda click: click[1],
        JoinType.LeftOuter,
        WITHIN_10_S,
        numPartitions=2,
    )
    query = SparkQuery(sc, plan, tmp_path)
    assert query.add([(5, "a"), (6, "b")], [(7, "a")]) == [((5, "a"), (7, "a"))]
    assert query.add([], [(9, "a")]) == [((5, "a"), (9, "a"))]
    found: list[Any] = []
    jobs = count_jobs(sc, lambda: found.extend(query.add([(40, "z")], [(40, "z")])))
    assert sorted(found, key=repr) == [((40, "z"), (40, "z")), ((6, "b"), None)]
    assert jobs == 4, "one that makes the state and one that reads the rows, of two batches"
    assert query.metrics["symmetricHashJoin"].numRemovedStateRows == 4
