"""Rows of groups: what they can represent."""

from __future__ import annotations

from typing import Any

import pytest
from dstreams.state.group_state_rows import GroupStateManager, StateData

from dstreams.state.group_state import NO_TIMESTAMP
from tests.dstreams.state.stores import DictStore


@pytest.mark.parametrize("has_timeouts", [False, True])
def test_there_and_back(has_timeouts: bool) -> None:
    """What was put comes back, what was removed is gone; timers only where there are any (82)."""
    store, manager = DictStore(), GroupStateManager(has_timeouts)
    assert manager.get_state(store, "a") == StateData("a", None, NO_TIMESTAMP)
    manager.put_state(store, "a", 0, 1000)
    timer_ms = 1000 if has_timeouts else NO_TIMESTAMP
    assert manager.get_state(store, "a") == StateData("a", 0, timer_ms)
    manager.remove_state(store, "a")
    manager.remove_state(store, "a")
    assert manager.get_state(store, "a") == StateData("a", None, NO_TIMESTAMP)


def test_a_timer_without_a_state() -> None:
    """It comes back as such."""
    store, manager = DictStore(), GroupStateManager(has_timeouts=True)
    manager.put_state(store, "a", None, 1000)
    assert manager.get_state(store, "a") == StateData("a", None, 1000)


@pytest.mark.parametrize("state", [(None, None), [None], {"x": None}])
def test_a_state_of_nothing_but_none(state: Any) -> None:
    """It is told from no state."""
    store, manager = DictStore(), GroupStateManager(has_timeouts=False)
    manager.put_state(store, "a", state, NO_TIMESTAMP)
    assert manager.get_state(store, "a").state == state


def test_what_is_due() -> None:
    """Timers before the threshold, in order; the row decides, not what an index says."""
    store, manager = DictStore(), GroupStateManager(has_timeouts=True)
    for key, timer_ms in {"c": 3, "a": 1, "b": 2, "d": NO_TIMESTAMP}.items():
        manager.put_state(store, key, key, timer_ms)
    assert [data.key for data in manager.due_states(store, 3)] == ["a", "b"]
    store.rows["a"] = ("a", 7)
    assert [data.key for data in manager.due_states(store, 3)] == ["b"]
