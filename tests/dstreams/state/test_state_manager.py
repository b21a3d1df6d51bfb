"""State managers: rows of both formats, encoders, timed-out states with and without an index."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from checkpoint.state_store import EMPTY, MemoryBackend, StateStore, StoreId
from dstreams.errors import InvalidStreamError
from dstreams.state.function_errors import NotStorableError
from dstreams.state.group_state import NO_TIMESTAMP
from dstreams.state.state_manager import (
    ONE_COLUMN,
    BatchedStore,
    DictStateStore,
    StateData,
    StateEncoder,
    StateManagerImplV1,
    StateManagerImplV2,
    TimerIndex,
    create_state_manager,
    may_be_batched,
)
from tests.dstreams.state.stores import DictStore, FieldsEncoder

VERSIONS = (1, 2)


class Visits(NamedTuple):
    count: int | None
    last: str | None = None


ENCODERS: dict[str, tuple[StateEncoder, Any]] = {
    "one column": (ONE_COLUMN, 7),
    "tuple": (FieldsEncoder(tuple), (7, "home")),
    "named tuple": (FieldsEncoder(Visits), Visits(7, "home")),
}


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("has_timeouts", [False, True])
def test_put_get_and_remove(has_timeouts: bool, version: int, encoder: str) -> None:
    """A state that was put is read back, with its timer if timeouts are enabled, until removed."""
    chosen, state = ENCODERS[encoder]
    store, manager = DictStore(), create_state_manager(chosen, has_timeouts, version)
    missing = StateData("a", None, NO_TIMESTAMP)
    assert manager.get_state(store, "a") == missing
    manager.put_state(store, "a", state, 1000)
    timer_ms = 1000 if has_timeouts else NO_TIMESTAMP
    found = manager.get_state(store, "a")
    assert found == StateData("a", state, timer_ms)
    assert type(found.state) is type(state)
    assert store.timeouts == ({"a": 1000} if has_timeouts else {})
    assert list(manager.get_all_state(store)) == [found]
    manager.remove_state(store, "a")
    manager.remove_state(store, "a")
    assert manager.get_state(store, "a") == missing
    assert list(manager.get_all_state(store)) == []


ROWS: list[tuple[int, str, bool, Any]] = [
    (1, "one column", False, (7,)),
    (1, "one column", True, (7, 1000)),
    (1, "named tuple", False, (7, "home")),
    (1, "named tuple", True, (7, "home", 1000)),
    (2, "one column", False, (7,)),
    (2, "one column", True, (7, 1000)),
    (2, "named tuple", False, ((7, "home"),)),
    (2, "named tuple", True, ((7, "home"), 1000)),
]


@pytest.mark.parametrize(("version", "encoder", "has_timeouts", "row"), ROWS)
def test_rows(version: int, encoder: str, has_timeouts: bool, row: Any) -> None:
    """Format 1 is flat, format 2 nests the columns of a declared encoder."""
    chosen, state = ENCODERS[encoder]
    store = DictStore()
    create_state_manager(chosen, has_timeouts, version).put_state(store, "a", state, 1000)
    assert store.rows == {"a": row}
    assert type(row[0]) in (int, tuple)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_timer_without_a_state(encoder: str) -> None:
    """Format 2 keeps it, format 1 refuses it and writes nothing."""
    chosen, _ = ENCODERS[encoder]
    store = DictStore()
    manager = create_state_manager(chosen, True, 2)
    manager.put_state(store, "a", None, 1000)
    assert store.rows == {"a": (None, 1000)}
    assert manager.get_state(store, "a") == StateData("a", None, 1000)
    store = DictStore()
    with pytest.raises(NotStorableError, match="format 1 cannot store a key without a state"):
        create_state_manager(chosen, True, 1).put_state(store, "a", None, 1000)
    assert store.rows == {}


@pytest.mark.parametrize(
    ("encoder", "state"),
    [
        (FieldsEncoder(tuple), (None, None)),
        (FieldsEncoder(Visits), Visits(None)),
    ],
)
def test_a_state_of_nothing_but_none(encoder: StateEncoder, state: Any) -> None:
    """Format 1 reads it as no state, format 2 as it was; its timer stays in both."""
    for version, expected in ((1, None), (2, state)):
        store, manager = DictStore(), create_state_manager(encoder, True, version)
        manager.put_state(store, "a", state, 1000)
        assert manager.get_state(store, "a") == StateData("a", expected, 1000)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("state", [(None, None), [None], {"x": None}, 0, "", False])
def test_without_an_encoder_every_state_is_read_back(version: int, state: Any) -> None:
    """A state that is one column differs from no state, also if it is empty."""
    store, manager = DictStore(), create_state_manager(ONE_COLUMN, False, version)
    manager.put_state(store, "a", state, NO_TIMESTAMP)
    assert manager.get_state(store, "a").state == state


def test_versions() -> None:
    """There are two; the error for another one names the setting."""
    assert isinstance(create_state_manager(ONE_COLUMN, True, 1), StateManagerImplV1)
    assert isinstance(create_state_manager(ONE_COLUMN, True, 2), StateManagerImplV2)
    for version in (0, 3, -1):
        with pytest.raises(InvalidStreamError, match=f"must be 1 or 2, got {version}") as refused:
            create_state_manager(ONE_COLUMN, True, version)
        setting = "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion"
        assert setting in str(refused.value)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("searched", ["index", "no index", "dict"])
def test_timed_out_states(searched: str, version: int) -> None:
    """They are those before the threshold, the earliest first, with and without an index."""
    store, manager = DictStore(), create_state_manager(ONE_COLUMN, True, version)
    for key, timer_ms in {"c": 3, "b": 2, "a": 1, "d": NO_TIMESTAMP}.items():
        manager.put_state(store, key, key, timer_ms)
    stores: dict[str, Any] = {
        "index": store,
        "no index": DictStateStore(store.rows),
        "dict": store.rows,
    }
    found = list(manager.timed_out_states(stores[searched], 3))
    assert found == [StateData("a", "a", 1), StateData("b", "b", 2)]
    store.rows["a"] = ("a", 7)  # the row decides, not the index
    assert [data.key for data in manager.timed_out_states(stores[searched], 3)] == ["b"]
    assert list(create_state_manager(ONE_COLUMN, False, version).timed_out_states({}, 3)) == []


def test_states_that_change_while_they_are_read() -> None:
    """Each key that was due at first comes once, despite changes during the iteration."""
    for store in (DictStore(), DictStateStore()):
        manager = create_state_manager(ONE_COLUMN, True, 2)
        for key in range(4):
            manager.put_state(store, key, key, 10 + key)
        seen = []
        for data in manager.timed_out_states(store, 100):
            seen.append(data.key)
            if data.key % 2:
                manager.remove_state(store, data.key)
            else:
                manager.put_state(store, data.key, data.key, 20)
            manager.put_state(store, 10 + data.key, "new", 30)
        assert seen == [0, 1, 2, 3]


def test_a_store_with_files() -> None:
    """It reads all states, and finds those that are due by its index."""
    store = StateStore(MemoryBackend())
    manager = create_state_manager(FieldsEncoder(Visits), True, 1)
    with store.writer(StoreId("s", "o", "default", 0, 1), EMPTY) as writer:
        manager.put_state(writer, "a", Visits(1), 5)
        manager.put_state(writer, "b", Visits(2, "x"), NO_TIMESTAMP)
        first, second = StateData("a", Visits(1), 5), StateData("b", Visits(2, "x"), NO_TIMESTAMP)
        assert sorted(manager.get_all_state(writer)) == [first, second]
        assert list(manager.timed_out_states(writer, 6)) == [first]


def test_the_dict_that_was_given_is_changed() -> None:
    """Rows are put into and removed from it; a key that is missing has none."""
    rows: dict[Any, Any] = {"a": (1,)}
    store = DictStateStore(rows)
    store.put("b", (2, 9), 9)
    store.put_many({"c": (3,), "d": (4,)})
    store.remove("a")
    store.remove("a")
    assert rows == {"b": (2, 9), "c": (3,), "d": (4,)}
    assert store.get_many(["a", "b"]) == [None, (2, 9)]
    assert DictStateStore().rows == {}


def test_items_are_those_of_the_first_moment() -> None:
    """The store may change while it is read."""
    store = DictStateStore({"a": (1,), "b": (2,)})
    seen = []
    for key, row in store.items():
        seen.append((key, row))
        store.remove("b")
        store.put("c", (3,))
    assert seen == [("a", (1,)), ("b", (2,))]
    assert not isinstance(store, TimerIndex)


Row = tuple[Any, ...]

STATES: dict[str, Callable[[int], Any]] = {
    "numbers": lambda number: number,
    "tuples": lambda number: (number, "a", 0.5),
    "lists": lambda number: [number],
}


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("due_ms", [None, 9])
def test_they_do_what_one_by_one_does(kind: str, due_ms: int | None) -> None:
    """Any order of reads, writes and removals leads to the rows of a store without them."""
    choose = random.Random(5)
    inner, plain = DictStore(), DictStore()
    batched = BatchedStore(inner, "f")
    keyed = [(choose.randrange(40), choose.randrange(4)) for _ in range(3000)]
    for number, (key, given, row) in enumerate(batched.of(iter(keyed))):
        assert row == plain.get(key)
        assert batched.get(key) == row
        for store in (batched, plain):
            if given == 0:
                store.remove(key)
            elif given > 1:
                store.put(key, (STATES[kind](number),), due_ms)
    assert inner.rows == plain.rows
    assert inner.timeouts == plain.timeouts


def test_a_row_is_written_as_it_was_put() -> None:
    """A later call that changes a state changes no row."""
    store, shared = StateStore(MemoryBackend()), [0]
    with store.writer(StoreId("s", "o", "default", 0, 1), EMPTY) as writer:
        batched = BatchedStore(writer, "f")
        for key, given, _ in batched.of([("a", 1), ("b", 2)]):
            shared[0] = given
            batched.put(key, (shared,))
        assert dict(writer.items()) == {"a": ([1],), "b": ([2],)}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_row_of_several_columns_is_written_as_it_was_put(place: int) -> None:
    """Mutable values in any column are written at once; empty rows are rows, too."""
    store, shared = DictStore(), [0]
    batched = BatchedStore(store, "f", has_columns=True)
    for key, _, _ in batched.of([("a", 1)]):
        row = (*(1, 2, 3)[:place], shared, *(1, 2, 3)[place:2])
        batched.put(key, row)
        assert store.rows == {"a": row}
    for key, _, _ in batched.of([("b", 1), ("c", 1)]):
        batched.put(key, () if key == "b" else (1, "x", 2))
        assert list(store.rows) == ["a"]
    assert store.rows == {"a": row, "b": (), "c": (1, "x", 2)}


def test_fewer_rows_are_read_ahead_where_they_are_large() -> None:
    """If the store returns fewer rows than requested, the rest is read again."""
    store = StateStore(MemoryBackend())
    with store.writer(StoreId("s", "o", "default", 0, 1), EMPTY) as writer:
        writer.put_many(dict.fromkeys(range(20), ("x" * 600_000,)))
        assert len(writer.get_many(range(20))) == 8
        rows = [row for _, _, row in BatchedStore(writer, "f").of((key, None) for key in range(20))]
        assert rows == [("x" * 600_000,)] * 20


@pytest.mark.parametrize(
    ("keys", "row", "message"),
    [
        (["a", ["b"]], (1,), r"f at app.py:3: the key \['b'\] cannot be stored: .* unhashable"),
        (["a", "b"], (1 << (33 << 23),), "the state of key 'a' cannot be stored: .* 33554432 byt"),
    ],
    ids=["key", "size"],
)
def test_what_is_refused_is_named(keys: list[Any], row: Row, message: str) -> None:
    """The message names the key and the function, though many are read or written together."""
    store = StateStore(MemoryBackend())
    writer = store.writer(StoreId("s", "o", "default", 0, 1), EMPTY)
    with writer, pytest.raises(NotStorableError, match=message):
        put_all(BatchedStore(writer, "f at app.py:3"), keys, row)


def put_all(batched: BatchedStore, keys: list[Any], row: Row) -> None:
    for key, _, _ in batched.of((key, None) for key in keys):
        batched.put(key, row)


def test_what_may_wait() -> None:
    """Numbers, short text and flat tuples of them; not what can change, nor what is large."""
    assert all(map(may_be_batched, [None, 1, 0.5, True, "a", b"a", (1, "a"), ()]))
    assert not any(map(may_be_batched, [[], {}, (1, []), object(), bytearray(), {1}]))
    assert not any(map(may_be_batched, ["x" * 1001, b"x" * 1001, (1,) * 1001, (1, "x" * 1001)]))


@pytest.mark.parametrize(
    ("value", "ahead"), [(1, 500), ("x" * 300_000, 3), ("x" * (2 << 20), 1), (lambda: 1, 1)]
)
def test_large_pairs_are_not_pulled_far_ahead(value: Any, ahead: int) -> None:
    """About a megabyte of them is in memory."""
    pulled = iter((number, value) for number in range(1000))
    next(BatchedStore(DictStore({}), "f").of(pulled))
    assert next(pulled)[0] == ahead
