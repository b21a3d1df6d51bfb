"""A state store over a dict."""

from __future__ import annotations

import doctest
import random
from collections.abc import Callable
from typing import Any

import pytest

from checkpoint.state_store import EMPTY, StateStore, StoreId
from dstreams.state import keyed_store
from dstreams.state.function_errors import NotStorableError
from dstreams.state.keyed_store import BatchedStore, DictStateStore, TimerIndex, may_be_batched
from tests.dstreams.state.stores import DictStore
from tests.support.memory_backend import MemoryBackend


def test_examples() -> None:
    """The example of the class runs."""
    assert doctest.testmod(keyed_store).failed == 0


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
    """What a later call does to a state changes no row."""
    store, shared = StateStore(MemoryBackend()), [0]
    with store.writer(StoreId("s", "o", "default", 0, 1), EMPTY) as writer:
        batched = BatchedStore(writer, "f")
        for key, given, _ in batched.of([("a", 1), ("b", 2)]):
            shared[0] = given
            batched.put(key, (shared,))
        assert dict(writer.items()) == {"a": ([1],), "b": ([2],)}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_row_of_several_columns_is_written_as_it_was_put(place: int) -> None:
    """What can change is not kept waiting, whichever column it is in; an empty row is one, too."""
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
    """A store that reads less than it was asked for is asked again."""
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
