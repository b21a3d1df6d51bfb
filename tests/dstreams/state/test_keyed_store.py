"""A state store over a dict."""

from __future__ import annotations

import doctest
from typing import Any

from dstreams.state import keyed_store
from dstreams.state.keyed_store import DictStateStore, TimerIndex


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
