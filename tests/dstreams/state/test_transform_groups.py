"""transformWithState over a store in memory, as tables of input batches to output batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from checkpoint.state_store import EMPTY, MemoryBackend, StateStore, StateWriter, StoreId, VersionId
from dstreams.errors import InvalidStateCallError, InvalidStreamError
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.state_version import StateMetrics
from dstreams.state.stateful_processor import (
    Columns,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimeMode,
)
from dstreams.state.transform_groups import TransformGroups, defined
from tests.dstreams.state.processors import NUMBER, TEXT, Commands

NONE, PROCESSING, EVENT = TimeMode.NoTime, TimeMode.ProcessingTime, TimeMode.EventTime


class CountedWriter:
    """A writer that counts the entries that are read, written and removed."""

    def __init__(self, writer: StateWriter) -> None:
        self._writer = writer
        self.counts: Counter[str] = Counter()

    def get(self, key: Any) -> Any:
        self.counts["read"] += 1
        return self._writer.get(key)

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        self.counts["read together"] += len(keys)
        return self._writer.get_many(keys)

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None:
        self.counts["written"] += 1
        self._writer.put(key, value, timeout_ms)

    def put_many(self, values: Mapping[Any, Any], timeouts_ms: Sequence[int] | None = None) -> None:
        self.counts["written together"] += len(values)
        self._writer.put_many(values, timeouts_ms)

    def remove(self, key: Any) -> None:
        self.counts["removed"] += 1
        self._writer.remove(key)

    def remove_prefix(self, prefix: Any) -> int:
        removed = self._writer.remove_prefix(prefix)
        self.counts["removed"] += removed
        return removed

    def prefix(self, prefix: Any) -> Iterator[Any]:
        for pair in self._writer.prefix(prefix):
            self.counts["read"] += 1
            yield pair

    def due(self, until_ms: int) -> Iterator[Any]:
        for found in self._writer.due(until_ms):
            self.counts["due"] += 1
            yield found


class Partition:
    """A processor over one partition, batch by batch."""

    def __init__(self, processor: StatefulProcessor, mode: TimeMode = NONE) -> None:
        self._store, self._version = StateStore(MemoryBackend()), EMPTY
        self._batch = 0
        self.metrics = StateMetrics()
        self.counts: Counter[str] = Counter()
        self.use(processor, mode)

    def use(self, processor: StatefulProcessor, mode: TimeMode) -> None:
        """Continue with another processor."""
        variables, deleted = defined(processor, mode, "test")
        self.groups = TransformGroups(
            processor=processor, where="test", timeMode=mode, variables=variables, deleted=deleted
        )

    def add(
        self,
        *records: tuple[Any, ...],
        now_ms: int = 0,
        watermark_ms: int | None = None,
        initial: list[tuple[Any, Any]] | None = None,
    ) -> list[Any]:
        """Run a batch of records whose first part is the key, and return its rows."""
        task = replace(
            self.groups,
            batchTimestampMs=now_ms,
            batchNumber=self._batch,
            eventTimeWatermark=watermark_ms,
        )
        self._batch += 1
        self.metrics = StateMetrics()
        pairs = [((record[0],), record) for record in records]
        with self._store.writer(self._id, self._version) as writer:
            counted = CountedWriter(writer)
            rows = list(task(counted, iter(initial or []), iter(pairs), self.metrics))  # type: ignore[arg-type]
            self._version: VersionId = writer.commit().version_id
        self.counts = counted.counts
        return rows

    def contents(self) -> dict[Any, Any]:
        with self._store.reader(self._id, self._version) as reader:
            return dict(reader.items())

    @property
    def _id(self) -> StoreId:
        return StoreId("stream", "operator", "default", 0, 1)


def test_value() -> None:
    """A value state is set, read and cleared, per key and across batches."""
    run = Partition(Commands())
    assert run.add(("a", "value", "exists"), ("a", "value", "get")) == [("a", False), ("a", None)]
    assert run.add(("a", "value", "update", (1,)), ("a", "value", "get")) == [("a", (1,))]
    assert run.add(("a", "value", "exists"), ("b", "value", "exists")) == [
        ("a", True),
        ("b", False),
    ]
    assert run.add(("a", "value", "clear"), ("a", "value", "get")) == [("a", None)]
    assert run.metrics.numRemovedStateRows == 1
    assert run.contents() == {}


def test_list() -> None:
    """A list state keeps the order of its rows, over batches and many appends."""
    run = Partition(Commands())
    assert run.add(("a", "list", "exists"), ("a", "list", "get")) == [("a", False), ("a", [])]
    for number in range(12):  # of batches: numbers are ordered as numbers, not as texts
        run.add(("a", "list", "appendValue", (number,)), ("b", "list", "appendValue", (-1,)))
    assert run.add(("a", "list", "appendList", [(12,), (13,)]), ("a", "list", "get")) == [
        ("a", [(number,) for number in range(14)])
    ]
    assert run.add(("a", "list", "put", [(5,)]), ("a", "list", "get")) == [("a", [(5,)])]
    assert run.metrics.numRemovedStateRows == 14
    assert run.add(("a", "list", "clear"), ("a", "list", "exists"), ("b", "list", "exists")) == [
        ("a", False),
        ("b", True),
    ]


def test_map() -> None:
    """A map state has a row per map key."""
    run = Partition(Commands())
    run.add(
        ("a", "map", "updateValue", ("x",), (1,)),
        ("a", "map", "updateValue", ("y",), (2,)),
        ("b", "map", "updateValue", ("x",), (3,)),
    )
    assert run.add(
        ("a", "map", "getValue", ("x",)),
        ("a", "map", "getValue", ("z",)),
        ("a", "map", "containsKey", ("y",)),
        ("a", "map", "iterator"),
        ("a", "map", "keys"),
        ("a", "map", "values"),
        ("a", "map", "exists"),
    ) == [
        ("a", (1,)),
        ("a", None),
        ("a", True),
        ("a", [(("x",), (1,)), (("y",), (2,))]),
        ("a", [("x",), ("y",)]),
        ("a", [(1,), (2,)]),
        ("a", True),
    ]
    assert run.add(("a", "map", "removeKey", ("x",)), ("a", "map", "keys")) == [("a", [("y",)])]
    assert run.add(("a", "map", "clear"), ("a", "map", "exists"), ("b", "map", "exists")) == [
        ("a", False),
        ("b", True),
    ]


def test_row_of_a_map_has_names() -> None:
    """As in Spark, ``getValue`` returns a Row."""
    run = Partition(Commands())
    run.add(("a", "map", "updateValue", ("x",), (1,)))
    ((_, row),) = run.add(("a", "map", "getValue", ("x",)))
    assert row.number == 1


def test_keys_of_several_types() -> None:
    """Keys that differ in one part, or only in their text, do not share state."""
    run = Partition(Commands())
    keys = ["a", "a\0", "", 1, "1", 1.5, None, ("a", "b"), "a" * 1000]
    run.add(*((key, "list", "appendValue", (number,)) for number, key in enumerate(keys)))
    found = run.add(*((key, "list", "get") for key in keys))
    assert found == [(key, [(number,)]) for number, key in enumerate(keys)]


def test_processing_time_timers() -> None:
    """Timers fire at their time, in their order, once, and only then are deleted."""
    run = Partition(Commands(), PROCESSING)
    run.add(
        ("a", "timers", "registerTimer", 100),
        ("b", "timers", "registerTimer", 50),
        ("a", "timers", "registerTimer", 50),
        ("a", "timers", "registerTimer", 50),
    )
    assert (run.metrics.numRegisteredTimers, run.metrics.nextTimeoutMs) == (3, 49)
    assert run.add(("a", "timers", "listTimers"), now_ms=49) == [("a", [50, 100])]
    assert run.add(now_ms=50) == [("a", "timer", 50, [50, 100]), ("b", "timer", 50, [50])]
    assert (run.metrics.numExpiredTimers, run.metrics.nextTimeoutMs) == (2, 99)
    assert run.add(now_ms=50) == []
    run.add(("a", "timers", "deleteTimer", 100), ("a", "timers", "deleteTimer", 7))
    assert (run.metrics.numDeletedTimers, run.metrics.nextTimeoutMs) == (1, -1)
    assert run.contents() == {}


def test_timer_of_a_timer_waits() -> None:
    """A timer that is registered by a timer fires in the next batch, even if it is due."""
    run = Partition(Commands(), PROCESSING)
    run.add(("a", "timers", "registerTimer", 5))
    assert run.add(now_ms=100) == [("a", "timer", 5, [5])]
    assert run.metrics.nextTimeoutMs == 14
    assert run.add(now_ms=100) == [("a", "timer", 15, [15])]


def test_timer_that_is_due_already() -> None:
    """It fires in the batch that registers it, because timers follow the records."""
    run = Partition(Commands(), PROCESSING)
    assert run.add(("a", "timers", "registerTimer", 10), now_ms=30) == [("a", "timer", 10, [10])]


def test_event_time_timers() -> None:
    """Timers follow the watermark, not the batch time."""
    run = Partition(Commands(), EVENT)
    run.add(("a", "timers", "registerTimer", 100), now_ms=1000, watermark_ms=0)
    assert run.add(now_ms=1000, watermark_ms=99) == []
    assert run.add(now_ms=1000, watermark_ms=100) == [("a", "timer", 100, [100])]
    assert run.metrics.nextTimeoutMs == -1


@pytest.mark.parametrize(
    ("mode", "expected"), [(NONE, (-1, -1)), (PROCESSING, (7, -1)), (EVENT, (7, 3))]
)
def test_timer_values(mode: TimeMode, expected: tuple[int, int]) -> None:
    """Without a time mode, a processor gets no times."""
    run = Partition(Commands(), mode)
    watermark_ms = 3 if mode is EVENT else None
    assert run.add(("a", "times", ""), now_ms=7, watermark_ms=watermark_ms) == [("a", expected)]


def test_ttl() -> None:
    """Each row expires one TTL after it was written; reading it changes nothing."""
    run = Partition(Commands(ttl_ms=100), PROCESSING)
    run.add(
        ("a", "value", "update", (1,)),
        ("a", "list", "appendValue", (1,)),
        ("a", "map", "updateValue", ("x",), (1,)),
        now_ms=0,
    )
    reads = [("a", "value", "get"), ("a", "list", "get"), ("a", "map", "keys")]
    more = [("a", "list", "appendValue", (2,)), ("a", "map", "updateValue", ("y",), (2,))]
    assert run.add(*reads, *more, now_ms=99) == [("a", (1,)), ("a", [(1,)]), ("a", [("x",)])]
    assert run.metrics.nextTimeoutMs == 99
    assert run.add(*reads, ("a", "value", "exists"), now_ms=100) == [
        ("a", None),
        ("a", [(2,)]),
        ("a", [("y",)]),
        ("a", False),
    ]
    assert run.metrics.numValuesRemovedDueToTTLExpiry == 3
    assert len(run.contents()) == 2
    assert run.add(now_ms=199) == []
    assert run.contents() == {}


def test_ttl_begins_again_with_an_update() -> None:
    """An update sets a new expiry."""
    run = Partition(Commands(ttl_ms=100), PROCESSING)
    for now_ms in (0, 90, 180):
        run.add(("a", "value", "update", (now_ms,)), now_ms=now_ms)
    assert run.add(("a", "value", "get"), now_ms=279) == [("a", (180,))]
    assert run.add(("a", "value", "get"), now_ms=280) == [("a", None)]


def test_ttl_and_timers() -> None:
    """A timer sees a state as it is at the batch time; due timers survive the cleanup."""
    run = Partition(Commands(ttl_ms=100), PROCESSING)
    run.add(("a", "value", "update", (1,)), ("a", "timers", "registerTimer", 105))
    assert run.add(now_ms=110) == [("a", "timer", 105, [105])]
    assert list(run.contents()) == [("$timers", "a", 115)]


def test_initial_state() -> None:
    """All rows of the initial state are handled before the records of their key."""
    run = Partition(Commands())
    initial = [(("a",), 1), (("b",), 2), (("a",), 3)]
    assert run.add(("a", "list", "get"), ("c", "list", "get"), initial=initial) == [
        ("a", [(1,), (3,)]),
        ("c", []),
    ]
    assert run.add(("b", "list", "get")) == [("b", [(2,)])]


def test_deleted_variable() -> None:
    """All rows of a deleted variable are removed, and no others."""
    run = Partition(Commands())
    for key in "ab":
        run.add((key, "value", "update", (1,)), (key, "list", "appendValue", (1,)))
    run.use(Commands(deletes=["list"], without=["list"]), NONE)
    run.add()
    assert run.metrics.numRemovedStateRows == 2
    assert set(run.contents()) == {("value", "a"), ("value", "b")}


LARGE = 2000


@pytest.mark.parametrize("large", [LARGE, pytest.param(100_000, marks=pytest.mark.deep)])
def test_costs_of_lists_and_maps(large: int) -> None:
    """Changes of large lists and maps touch the entries that they name, and no others."""
    run = Partition(Commands())
    run.add(("a", "list", "appendList", [(number,) for number in range(large)]))
    run.add(*(("a", "map", "updateValue", (str(number),), (0,)) for number in range(large)))
    run.add(("a", "list", "appendValue", (1,)))
    assert run.counts == {"written together": 1}
    run.add(("a", "list", "exists"))
    assert run.counts == {"read": 1}
    run.add(("a", "map", "updateValue", ("7",), (1,)))
    assert run.counts == {"written together": 1}
    run.add(("a", "map", "getValue", ("7",)), ("a", "map", "containsKey", ("8",)))
    assert run.counts == {"read": 2}
    run.add(("a", "map", "removeKey", ("7",)))
    assert run.counts == {"read": 1, "removed": 1}


def test_costs_of_values() -> None:
    """Values of many keys are read in one call, and written in one; unused ones are not read."""
    run = Partition(Commands())
    run.add(*((number, "value", "update", (number,)) for number in range(600)))
    assert run.counts == {"written together": 600}
    used = [("value", "get"), ("value", "update", (1,)), ("value", "exists"), ("value", "get")]
    rows = run.add(*((number, *command) for number in range(400) for command in used))
    assert run.counts == {"read together": 400, "written together": 400}
    assert rows[3:6] == [(1, (1,)), (1, True), (1, (1,))]
    run.add(*((number, "list", "exists") for number in range(400)))
    assert "read together" not in run.counts


NUMBERS = StructType([StructField("numbers", ArrayType(LongType()))])


def test_values_that_are_changed_in_place() -> None:
    """A row with a list is read again, so changing it in place has no effect."""

    class Lists(Commands):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._lists = handle.getValueState("lists", NUMBERS)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for _ in rows:
                numbers = [] if (found := self._lists.get()) is None else found[0]
                numbers.append(key[0])
                self._lists.update((numbers,))
                numbers.append("not stored")
                found = self._lists.get()
                assert found is not None
                yield list(found[0])
                found[0].append("not stored")

    run = Partition(Lists())
    assert run.add(("a",), ("a",), ("b",)) == [["a"], ["a", "a"], ["b"]]
    assert run.add(("b",), ("a",)) == [["b", "b"], ["a", "a", "a"]]


def test_costs_of_timers_and_ttls() -> None:
    """A batch looks at the timers and TTLs that are due, and at no others."""
    run = Partition(Commands(ttl_ms=LARGE), PROCESSING)
    for number in range(100):
        run.add(
            (number, "value", "update", (1,)),
            (number, "timers", "registerTimer", 10 * LARGE + 10 * number),
            now_ms=number,
        )
    run.add(now_ms=LARGE + 1)
    # Two TTLs, once for the timers and once for the cleanup; then the earliest one that is left.
    assert run.counts["due"] == 2 + 2 + 1
    run.add(now_ms=9 * LARGE)
    run.add(now_ms=10 * LARGE + 20)
    assert run.metrics.numExpiredTimers == 3
    assert run.counts["due"] == 3 + 1


Failing = tuple[tuple[Any, ...], TimeMode, str]


@pytest.mark.parametrize(
    ("record", "mode", "text"),
    [
        (("a", "timers", "registerTimer", 1), NONE, "WITH_INVALID_TIME_MODE.*register_timer"),
        (("a", "timers", "deleteTimer", 1), NONE, "WITH_INVALID_TIME_MODE.*delete_timer"),
        (("a", "timers", "listTimers"), NONE, "WITH_INVALID_TIME_MODE.*list_timers"),
        (("a", "timers", "registerTimer", -1), PROCESSING, "at least 0, got -1"),
        (("a", "timers", "getValueState", "x", NUMBER), NONE, "get_value_state.*INITIALIZED"),
        (("a", "timers", "getListState", "x", NUMBER), NONE, "get_list_state.*INITIALIZED"),
        (("a", "timers", "getMapState", "x", TEXT, NUMBER), NONE, "get_map_state.*INITIALIZED"),
        (("a", "timers", "deleteIfExists", "x"), NONE, "delete_if_exists.*INITIALIZED"),
        (("a", "value", "update", None), NONE, "NULL_VALUE.*state 'value'"),
        (("a", "list", "put", None), NONE, "NULL_VALUE.*state 'list'"),
        (("a", "list", "put", []), NONE, "EMPTY_LIST_VALUE.*state 'list'"),
        (("a", "list", "appendList", []), NONE, "EMPTY_LIST_VALUE"),
        (("a", "list", "appendValue", None), NONE, "NULL_VALUE"),
        (("a", "map", "updateValue", None, (1,)), NONE, "NULL_VALUE.*map key of state 'map'"),
        (("a", "map", "updateValue", ("x",), None), NONE, "NULL_VALUE"),
        (("a", "value", "update", 5), NONE, "must be a tuple of 1 values .*got 5"),
        (("a", "value", "update", (1, 2)), NONE, "must be a tuple of 1 values"),
        (("a", "value", "update", ("x",)), NONE, "column 'number' has type bigint, got 'x'"),
        (
            ("a", "value", "update", (2**63,)),
            NONE,
            "'value': column 'number' .*got 9223372036854775808",
        ),
    ],
)
def test_errors_of_calls(record: tuple[Any, ...], mode: TimeMode, text: str) -> None:
    """An invalid call fails the batch, and the error names the key and Spark's condition."""
    run = Partition(Commands(), mode)
    with pytest.raises(UserFunctionError, match=text) as failure:
        run.add(record)
    assert "test failed for key ('a',)" in str(failure.value)


@pytest.mark.parametrize(
    ("kind", "bits", "remedy"),
    [
        ("tinyint", 8, "bigint"),
        ("smallint", 16, "bigint"),
        ("int", 32, "bigint"),
        ("bigint", 64, "decimal(38, 0), for values of Decimal"),
    ],
)
@pytest.mark.parametrize("is_checked_before", [False, True])
def test_integers_out_of_range(kind: str, bits: int, remedy: str, is_checked_before: bool) -> None:
    """The bounds of a type are accepted, and the integers after them are refused."""
    columns = Columns.of(f"word string, number {kind}", "state 'x'")
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    if is_checked_before:
        assert columns.row(("a", 0), "a row") == ("a", 0)
    for number in (least - 1, most + 1):
        with pytest.raises(InvalidStreamError) as failure:
            columns.row(("a", number), "a row")
        assert str(failure.value) == (
            f"a row: column 'number' has type {kind}, got {number}, which is not between {least} "
            f"and {most}; declare the column as {remedy}"
        )
    for row in (("a", least), ("a", most), ("a", None), (None, 1)):
        assert columns.row(row, "a row") == row


class Defining(StatefulProcessor):
    """Calls a function in ``init``."""

    def __init__(self, define: Any) -> None:
        self._define = define

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._define(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        return iter(())


def twice(handle: StatefulProcessorHandle) -> None:
    handle.getValueState("x", NUMBER)
    handle.getListState("x", NUMBER)


def deletes_what_it_defines(handle: StatefulProcessorHandle) -> None:
    handle.getValueState("x", NUMBER)
    handle.deleteIfExists("x")


@pytest.mark.parametrize(
    ("define", "mode", "text"),
    [
        (twice, NONE, "DUPLICATE_STATE_VARIABLE_DEFINED.*'x'"),
        (deletes_what_it_defines, NONE, "defines the state variable 'x' and deletes it"),
        (lambda handle: handle.getValueState("", NUMBER), NONE, "INVALID_NAME"),
        (lambda handle: handle.getValueState("$timers", NUMBER), NONE, "INVALID_NAME"),
        (lambda handle: handle.getValueState("x", "int", None), NONE, "StructType|SparkContext"),
        (lambda handle: handle.getValueState("x", 5), NONE, "must be a StructType.*got 5"),
        (lambda handle: handle.getValueState("x", NUMBER, 10), NONE, "TIME_MODE_TO_ASSIGN_TTL"),
        (lambda handle: handle.getListState("x", NUMBER, 10), EVENT, "TIME_MODE_TO_ASSIGN_TTL"),
        (
            lambda handle: handle.getMapState("x", TEXT, NUMBER, 0),
            PROCESSING,
            "DURATION_MUST_BE_POSITIVE",
        ),
        (lambda handle: 1 / 0, NONE, "init or close .* failed .*ZeroDivisionError"),
    ],
)
def test_errors_of_definitions(define: Any, mode: TimeMode, text: str) -> None:
    """An invalid definition is refused in the driver, by Spark's condition."""
    with pytest.raises(InvalidStreamError, match=text):
        defined(Defining(define), mode, "test")


def test_use_in_init() -> None:
    """In ``init`` there is no key yet, neither in the driver nor in a task."""

    def reads(handle: StatefulProcessorHandle) -> None:
        handle.getValueState("x", NUMBER).get()

    with pytest.raises(InvalidStreamError, match="handle state PRE_INIT"):
        defined(Defining(reads), NONE, "test")
    handle = StatefulProcessorHandle("test", NONE)
    with pytest.raises(InvalidStateCallError, match="handle state PRE_INIT"):
        handle.getMapState("y", TEXT, NUMBER).getValue(("a",))


def test_other_definitions_in_a_task() -> None:
    """A processor defines the same state variables in the driver and in tasks."""
    run = Partition(Defining(lambda handle: handle.getValueState("x", NUMBER)))
    other = Defining(lambda handle: handle.getListState("x", NUMBER))
    run.groups = replace(run.groups, processor=other)
    with pytest.raises(UserFunctionError, match="defined no list state 'x' in the driver"):
        run.add()


def test_objects_without_methods() -> None:
    """Anything but an object with the methods of a processor is refused."""
    with pytest.raises(InvalidStreamError, match="lacks init, handleInputRows"):
        defined(print, NONE, "test")
    with pytest.raises(InvalidStreamError, match=r"got the class; pass \w+\(\)"):
        defined(Commands, NONE, "test")


class Returning(StatefulProcessor):
    """Returns what a function returns for the rows of a key."""

    def __init__(self, rows_of: Any) -> None:
        self._rows_of = rows_of

    def init(self, handle: StatefulProcessorHandle) -> None:
        handle.getValueState("x", NUMBER)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        return self._rows_of(key, rows)


def test_returned_rows() -> None:
    """Rows of declared columns are Rows, by name or by position; other results are refused."""
    from pyspark.sql import Row  # noqa: PLC0415

    rows = [(1,), [2], Row(number=3), {"number": 4}, Row(0)]
    run = Partition(Returning(lambda key, _: rows))
    run.groups = replace(run.groups, output=Columns(NUMBER))
    assert run.add(("a",)) == [Row(number=n) for n in (1, 2, 3, 4, 0)]
    assert run.metrics.numOutputRows == 5
    run.use(Returning(lambda key, _: "text"), NONE)
    with pytest.raises(UserFunctionError, match="must return an iterable of rows"):
        run.add(("a",))
    run.use(Returning(lambda key, _: [("x",)]), NONE)
    run.groups = replace(run.groups, output=Columns(NUMBER))
    with pytest.raises(UserFunctionError, match="an output row: column 'number' has type bigint"):
        run.add(("a",))
    run.use(Returning(lambda key, _: [Row(numer=1)]), NONE)
    run.groups = replace(run.groups, output=Columns(NUMBER))
    with pytest.raises(UserFunctionError, match=r"has a field 'numer', .* are number"):
        run.add(("a",))


def test_dicts_become_rows() -> None:
    """A processor for Spark reads fields as attributes."""
    run = Partition(Returning(lambda key, rows: [row.n for row in rows]))
    pairs = iter([(("a",), {"n": 1}), (("a",), {"n": 2})])
    task = replace(run.groups, batchTimestampMs=0, batchNumber=0)
    with run._store.writer(run._id, EMPTY) as writer:
        assert list(task(writer, iter(()), pairs, StateMetrics())) == [1, 2]


class Recording(Returning):
    """Records the order of the calls."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__(lambda key, rows: [])
        self._calls = calls

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._calls.append("init")
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        self._calls.append("rows")
        self._handle.registerTimer(0)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        self._calls.append("timer")
        return iter(())

    def close(self) -> None:
        self._calls.append("close")


def test_order_of_calls() -> None:
    """The calls of a batch come in Spark's order; the driver uses a copy."""
    calls: list[str] = []
    run = Partition(Recording(calls), PROCESSING)
    assert calls == []
    run.add(("a",))
    assert calls == ["init", "rows", "timer", "close"]


def test_unread_rows_and_generators() -> None:
    """A processor need not read its rows, and state follows the key of a lazy generator."""

    def lazily(key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        yield key

    run = Partition(Returning(lazily))
    assert run.add(("a",), ("b",), ("a",)) == [("a",), ("b",)]
