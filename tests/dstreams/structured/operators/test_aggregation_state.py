"""Aggregation where the state is, in each output mode; without Spark."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.arrow.aggregates.functions import (
    AggregateFunction,
    Average,
    Count,
    Reduce,
    aggregate,
)
from dstreams.errors import InvalidStreamError
from dstreams.spark.failures import UserFunctionError
from dstreams.state.group_state import OutputMode
from dstreams.state.state_manager import DictStateStore
from dstreams.structured.named_rows import Window
from dstreams.structured.operators.aggregation import AggregateRecords, finish_rows
from dstreams.structured.operators.aggregation_state import (
    AggregateIntoState,
    MergeRows,
    SaveRows,
    create_aggregation_state_manager,
)
from dstreams.structured.operators.grouping import EVENT_TIME, Grouping
from dstreams.structured.operators.time_windows import TimeWindows, passed_by, time_prefix
from tests.dstreams.structured.operators.local_query import LocalQuery, LocalStore


@pytest.mark.parametrize(("version", "value"), [(1, ("a", 4)), (2, (4,))])
def test_rows(version: int, value: Any) -> None:
    """Format 1 stores the whole row, format 2 omits the key; both are read back as rows."""
    manager, store = create_aggregation_state_manager(version), DictStateStore()
    assert manager.get(store, "a") is None
    manager.put(store, ("a", 4))
    assert store.rows == {"a": value}
    assert manager.get_key(("a", 4)) == "a"
    assert manager.get(store, "a") == ("a", 4)
    assert list(manager.values(store)) == [("a", 4)]


@pytest.mark.parametrize("version", [0, 3])
def test_unknown_format(version: int) -> None:
    """The error names the setting and the value."""
    message = rf"aggregation\.stateFormatVersion: the state format must be 1 or 2, got {version}"
    with pytest.raises(InvalidStreamError, match=message):
        create_aggregation_state_manager(version)


BY_VALUE = Grouping(key=lambda value: value)
BY_WINDOW = Grouping(windows=TimeWindows(5_000))
ALL_MODES = list(OutputMode)

FORMAT_2 = create_aggregation_state_manager(2)


class Aggregation:
    """A whole aggregation on a store in memory."""

    def __init__(
        self,
        grouping: Grouping,
        mode: OutputMode,
        function: AggregateFunction | None = None,
        **of_query: Any,
    ) -> None:
        self.function = function or Count()
        self.grouping, self.mode = grouping, mode
        partial = AggregateRecords(self.function, grouping, are_events=True)
        self.query = LocalQuery(lambda events: partial(0, events), self._state_side, **of_query)

    def _state_side(self, late_ms: int | None, evict_ms: int | None) -> AggregateIntoState:
        save = SaveRows(FORMAT_2, self.grouping, self.mode, late_ms, evict_ms)
        return AggregateIntoState(MergeRows(self.function, self.grouping), save)

    def add(self, *events: Any) -> dict[Any, Any]:
        """Add events: (seconds, value), or values alone; return results by key."""
        given = [event if isinstance(event, tuple) else (0, event) for event in events]
        rows = self.query.add([(None if s is None else s * 1000, value) for s, value in given])
        results = list(finish_rows(self.function, self.grouping, None, 0, rows))
        assert len(dict(results)) == len(results), "a key came out twice"
        return dict(results)

    def add_seconds(self, *seconds: int) -> dict[int, Any]:
        """Add events without a value; return results by start of the window, in seconds."""
        found = self.add(*((s, None) for s in seconds))
        return {window.start_ms // 1000: result for window, result in found.items()}

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.query.batches[-1].counts


def test_complete_counts() -> None:
    """Complete: all of the table in every batch."""
    counts = Aggregation(BY_VALUE, OutputMode.Complete, delay_ms=None)
    assert counts.add(3) == {3: 1}
    assert counts.add(2) == {3: 1, 2: 1}
    assert counts.add(3, 2, 1) == {3: 2, 2: 2, 1: 1}
    assert counts.add(4, 4, 4, 4) == {3: 2, 2: 2, 1: 1, 4: 4}


def test_update_metrics() -> None:
    """Update: what was touched goes out, and is counted."""
    counts = Aggregation(BY_VALUE, OutputMode.Update, delay_ms=None)
    assert counts.add(1, 2) == {1: 1, 2: 1}
    assert counts.counts == (2, 2, 0, 0)
    assert counts.add(2, 3, 3, 4) == {2: 2, 3: 2, 4: 1}
    assert counts.counts == (4, 3, 0, 0)
    assert counts.query.batches[-1].metrics.numOutputRows == 3


def test_two_keys() -> None:
    """A key of several columns is a tuple."""
    pairs = Grouping(key=lambda value: (value, value + 1))
    counts = Aggregation(pairs, OutputMode.Update, delay_ms=None)
    assert counts.add(1, 2) == {(1, 2): 1, (2, 3): 1}
    assert counts.add(1, 2) == {(1, 2): 2, (2, 3): 2}


def test_global_count() -> None:
    """Without a key there is one row, also in batches without data."""
    count = Aggregation(Grouping(), OutputMode.Complete, delay_ms=None)
    found = [count.add(*batch) for batch in ([7], [], [1, 2], [])]
    assert found == [{(): 1}, {(): 1}, {(): 3}, {(): 3}]


def test_without_partitions() -> None:
    """Without tasks that emit the empty row, the stored row is kept."""
    count = Aggregation(Grouping(), OutputMode.Complete, delay_ms=None)
    count.add(7)
    count.query._map_side = lambda events: ()
    assert count.add() == {(): 1}


def test_append_metrics() -> None:
    """Append: windows go out when the watermark passes them, and are forgotten."""
    counts = Aggregation(BY_WINDOW, OutputMode.Append)
    assert counts.add_seconds(15) == {}
    assert [batch.counts for batch in counts.query.batches] == [(1, 1, 0, 0), (1, 0, 0, 0)]
    assert counts.add_seconds(10, 12, 14) == {}
    assert counts.counts == (2, 1, 0, 0)
    assert counts.add_seconds(25) == {10: 3}
    assert [batch.counts for batch in counts.query.batches[-2:]] == [(3, 1, 0, 0), (2, 0, 1, 0)]
    assert counts.query.batches[-1].metrics.numOutputRows == 1


def test_append() -> None:
    """Append: a late row is dropped and changes nothing."""
    counts = Aggregation(BY_WINDOW, OutputMode.Append)
    assert counts.add_seconds(10, 11, 12, 13, 14, 15) == {}
    assert counts.add_seconds(25) == {10: 5}
    assert counts.counts[0] == 2
    assert counts.add_seconds(10) == {}
    assert counts.counts == (2, 0, 0, 1)


def test_update() -> None:
    """Update: rows are put out when they change; what is passed by the watermark just goes."""
    counts = Aggregation(BY_WINDOW, OutputMode.Update)
    assert counts.add_seconds(10, 11, 12, 13, 14, 15) == {10: 5, 15: 1}
    assert counts.add_seconds(25) == {25: 1}
    assert counts.counts[0] == 2
    assert counts.add_seconds(10, 25) == {25: 2}
    assert counts.counts == (2, 1, 0, 1)
    assert counts.add_seconds(10) == {}


def test_complete() -> None:
    """In mode complete, no row is late and no state is evicted."""
    counts = Aggregation(BY_WINDOW, OutputMode.Complete, no_data=False)
    found = [counts.add_seconds(*batch) for batch in ([10, 11, 12], [25], [25], [10], [25])]
    assert found == [
        {10: 3},
        {10: 3, 25: 1},
        {10: 3, 25: 2},
        {10: 4, 25: 2},
        {10: 4, 25: 3},
    ]


def test_without_batches_without_data() -> None:
    """Nothing goes out before another batch runs."""
    counts = Aggregation(BY_WINDOW, OutputMode.Append, no_data=False)
    assert counts.add_seconds(10, 11, 12, 13, 14, 15) == {}
    assert counts.add_seconds(25) == {}
    assert counts.add_seconds() == {10: 5}


def test_late_by_the_watermark_of_the_batch_before() -> None:
    """The batch whose watermark has just moved still takes what is older than it."""
    counts = Aggregation(BY_WINDOW, OutputMode.Update, no_data=False)
    assert counts.add_seconds(100) == {100: 1}
    assert counts.add_seconds(50) == {50: 1}
    assert counts.counts == (1, 1, 1, 0)
    assert counts.add_seconds(50) == {}
    assert counts.counts == (1, 0, 0, 1)


def test_a_window_that_ends_at_the_watermark_is_passed() -> None:
    """The end is not part of a window, so a watermark equal to it has passed it."""
    counts = Aggregation(BY_WINDOW, OutputMode.Append)
    counts.add_seconds(10)
    assert counts.add_seconds(24) == {}
    assert counts.add_seconds(25) == {10: 1}


def test_windows_and_a_key() -> None:
    """Each key has windows of its own, in any kind of key."""
    for keys in ("ab", (1, 2), ((1, "x"), (None, "y"))):
        grouping = Grouping(key=lambda value: value, windows=TimeWindows(10_000, 5_000))
        counts = Aggregation(grouping, OutputMode.Append)
        assert counts.add((12, keys[0]), (13, keys[1]), (17, keys[1])) == {}
        early, late = Window(5_000, 15_000), Window(10_000, 20_000)
        assert counts.add((25, keys[0])) == {(early, keys[0]): 1, (early, keys[1]): 1}
        assert counts.add((30, keys[0])) == {(late, keys[0]): 1, (late, keys[1]): 2}


def test_grouped_by_event_time() -> None:
    """A key that is an event time is evicted when the watermark reaches it."""
    grouping = Grouping(key=lambda record: ("at 10", record), windows=EVENT_TIME)
    counts = Aggregation(grouping, OutputMode.Append)
    assert counts.add((10, "x"), (10, "x"), (11, "z"), (None, "y")) == {}
    assert counts.add((20, "x")) == {("at 10", "x"): 2}
    assert counts.add((21, "x"), (None, "y")) == {("at 10", "z"): 1}


def test_groups_of_event_times_in_microseconds() -> None:
    """Groups are as far apart as their times; one without a time is never late, and never ends."""
    grouping = Grouping(key=lambda record: record, windows=EVENT_TIME)
    assert list(grouping.assign([(1_000, "a"), (1_001, "a"), (None, "b")], True)) == [
        ((1_000, "a"), "a"),
        ((1_001, "a"), "a"),
        ((None, "b"), "b"),
    ]
    assert grouping.passed_of([(1_000, "a"), (1_001, "a"), (None, "b")], 1) == [True, False, False]


def test_without_event_time_no_window() -> None:
    """A record without an event time is in no window."""
    counts = Aggregation(BY_WINDOW, OutputMode.Update)
    assert counts.add((None, "x"), (3, "y")) == {Window(0, 5_000): 1}


def test_a_window_of_another_time_is_kept() -> None:
    """Windows of a time without a watermark are neither late nor evicted."""
    other = Grouping(windows=TimeWindows(5_000), time=lambda value: value)
    counts = Aggregation(other, OutputMode.Update)
    assert counts.add((100, 1_000)) == {Window(0, 5_000): 1}
    assert counts.add((200, 1_000)) == {Window(0, 5_000): 2}


def test_a_buffer_can_be_none() -> None:
    """The result of a key with only None values is None."""
    means = Aggregation(Grouping(key=lambda _: "k"), OutputMode.Update, Average())
    assert means.add(None) == {"k": None}
    assert means.add(4) == {"k": 4.0}


def test_a_function_that_fails_names_the_key() -> None:
    """The error says which key could not be merged."""

    def add(first: Any, second: Any) -> Any:
        return first + second

    sums = Aggregation(Grouping(key=lambda _: "k"), OutputMode.Update, Reduce(func=add))
    sums.add(1)
    with pytest.raises(UserFunctionError, match="agg failed for key 'k': TypeError: unsupported"):
        sums.add("x")


def test_more_keys_than_memory() -> None:
    """Rows beyond the memory limit are merged as well, in the same order."""
    rows = [(f"key-{number % 3000}", 1) for number in range(9000)]
    merge = MergeRows(Count(), Grouping(), memory_mb=0.001)
    assert list(merge(0, iter(rows))) == [(f"key-{number}", 3) for number in range(3000)]


@pytest.mark.deep
@pytest.mark.parametrize("mode", [OutputMode.Update, OutputMode.Append])
def test_rows_do_not_depend_on_memory(mode: OutputMode) -> None:
    """State is written in the order of keys where there is memory; rows come in that of arrival."""
    windows = TimeWindows(5_000)
    grouping = Grouping(key=str, windows=windows)
    keys = [
        (time_prefix(end_ms) or "") + f"{number * 7 % 3000}"
        for number in range(3000)
        for end_ms in (20_000, 5_000, 10_000)
    ]
    made = []
    for memory_mb in (512, 0.001):
        merge = MergeRows(Count(), grouping, memory_mb=memory_mb)
        save = SaveRows(FORMAT_2, grouping, mode, late_ms=5_000, evict_ms=10_000)
        into_state = AggregateIntoState(merge, save)
        store = LocalStore(partitions=1)
        batch = store.batch(into_state, [(key, 1) for key in keys])
        made.append((batch.rows, batch.counts, store.contents()))
    assert made[0] == made[1]
    rows, counts, contents = made[0]
    assert counts == (3000, 6000, 3000, 3000)
    on_time = [key for key in keys if not passed_by(5_000)(key)]
    passed = [key for key in on_time if passed_by(10_000)(key)]
    expected = on_time if mode is OutputMode.Update else sorted(passed)
    assert [key for key, _ in rows] == expected
    assert sorted(contents) == sorted(set(on_time) - set(passed))


TIMES = st.none() | st.integers(-20_000_000, 60_000_000)
GROUPINGS = [
    Grouping(),
    Grouping(key=lambda value: value),
    Grouping(key=lambda value: value, windows=EVENT_TIME),
    Grouping(windows=TimeWindows(5_000)),
    Grouping(key=lambda value: value, windows=TimeWindows(7_000)),
    Grouping(key=lambda value: value, windows=TimeWindows(7_000), time=lambda _: 3),
]


@given(
    st.lists(st.tuples(TIMES, st.sampled_from(["a", "b", 7, None])), max_size=20),
    st.sampled_from(GROUPINGS),
)
def test_groups_in_columns(events: list[Any], grouping: Grouping) -> None:
    """Many records get the keys that each of them gets alone."""
    parts = grouping.assign_columns(events, are_events=True)
    found = [pair for keys, records in parts for pair in zip(keys, records, strict=True)]
    assert found == list(grouping.assign(events, are_events=True))


def test_a_key_that_cannot_be_counted_is_named() -> None:
    """The error says which key it is."""
    partial = AggregateRecords(Count(), Grouping(key=list), are_events=False)
    with pytest.raises(UserFunctionError, match=r"agg failed for key \['x'\]: TypeError"):
        list(partial(0, ["x"]))


def test_a_key_function_that_fails_names_the_record() -> None:
    """The error says which record has no key; an error from below is left as it is."""
    lengths = Grouping(key=len, name="count by len")
    with pytest.raises(UserFunctionError, match="count by len failed for record 7: TypeError"):
        list(lengths.assign([7], are_events=False))
    below = (1 // value for value in [0])
    partial = AggregateRecords(Count(), Grouping(key=str), are_events=False)
    with pytest.raises(ZeroDivisionError):
        list(partial(0, below))


EVENTS = st.lists(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abc")), max_size=6), max_size=8
)


@pytest.mark.deep
@given(EVENTS, st.sampled_from([(5_000, None), (10_000, 5_000), (7_000, 3_000)]))
def test_append_is_the_batch_result_of_what_was_not_late(
    batches: list[list[tuple[int, str]]], sizes: tuple[int, int | None]
) -> None:
    """All emitted rows together equal one aggregation of the rows that were not late."""
    windows = TimeWindows(*sizes)
    counts = Aggregation(Grouping(key=lambda value: value, windows=windows), OutputMode.Append)
    expected: Counter[Any] = Counter()
    out: dict[Any, int] = {}
    for batch in [*batches, [(1000, "end")]]:
        late_ms = counts.query.late_ms
        for seconds, value in batch:
            for end_ms in windows.ends(seconds * 1000):
                if end_ms > late_ms and value != "end":
                    expected[windows.at(end_ms), value] += 1
        found = counts.add(*batch)
        assert not out.keys() & found.keys()
        out.update(found)
    assert out == expected


@pytest.mark.deep
@given(st.lists(st.lists(st.integers(0, 5), max_size=5), max_size=6))
def test_update_and_complete_are_the_batch_result(batches: list[list[int]]) -> None:
    """After every batch, table and last updates are the aggregation of all that came."""
    function = Average()
    update = Aggregation(Grouping(key=lambda value: value % 3), OutputMode.Update, function)
    complete = Aggregation(Grouping(key=lambda value: value % 3), OutputMode.Complete, function)
    seen: list[int] = []
    latest: dict[int, float] = {}
    for batch in batches:
        seen += batch
        expected = {
            key: aggregate(function, [value for value in seen if value % 3 == key])
            for key in {value % 3 for value in seen}
        }
        latest |= update.add(*batch)
        assert latest == expected
        assert complete.add(*batch) == expected


class Picky(Count):
    """A count that fails for some records."""

    def reduce(self, buffer: Any, record: Any) -> Any:
        if record == "reduce":
            raise ValueError("no")
        return super().reduce(buffer, record)

    def merge(self, first: Any, second: Any) -> Any:
        raise ValueError("no")


def test_messages_show_keys_as_results_do() -> None:
    """Messages show a key as the result does, with its window, not as the store does."""
    grouping = Grouping(key=str, windows=TimeWindows(5_000))
    counts = Aggregation(grouping, OutputMode.Update, Picky())
    shown = r"failed for key \(Window\(.*, 1970-01-01T00:00:05Z\), '{}'\): ValueError: no"
    with pytest.raises(UserFunctionError, match=shown.format("reduce")):
        counts.add((1, "reduce"))
    counts.add((1, "a"))
    with pytest.raises(UserFunctionError, match=shown.format("a")):
        counts.add((2, "a"))
    merge = MergeRows(Picky(), grouping)
    rows = list(grouping.assign([(1000, "a"), (1000, "a")], are_events=True))
    with pytest.raises(UserFunctionError, match=shown.format("a")):
        list(merge(0, iter(rows)))
