"""State managers: what each format version can represent."""

from __future__ import annotations

from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.state.group_state import NO_TIMESTAMP
from dstreams.state.group_state_rows import StateData, group_state_manager
from tests.dstreams.state.stores import DictStore


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("has_timeouts", [False, True])
def test_there_and_back(version: int, has_timeouts: bool) -> None:
    """What was put comes back, what was removed is gone; timers only where there are any (82)."""
    store, manager = DictStore(), group_state_manager(version, has_timeouts=has_timeouts)
    assert manager.get_state(store, "a") == StateData("a", None, NO_TIMESTAMP)
    manager.put_state(store, "a", 0, 1000)
    timer_ms = 1000 if has_timeouts else NO_TIMESTAMP
    assert manager.get_state(store, "a") == StateData("a", 0, timer_ms)
    manager.remove_state(store, "a")
    manager.remove_state(store, "a")
    assert manager.get_state(store, "a") == StateData("a", None, NO_TIMESTAMP)


def test_a_timer_without_a_state() -> None:
    """Version 2 has it, version 1 refuses it."""
    store = DictStore()
    group_state_manager(2, has_timeouts=True).put_state(store, "a", None, 1000)
    assert group_state_manager(2, has_timeouts=True).get_state(store, "a").timeout_ms == 1000
    with pytest.raises(InvalidStreamError, match="'a' cannot be None: format version 1"):
        group_state_manager(1, has_timeouts=True).put_state(store, "a", None, 1000)


@pytest.mark.parametrize("state", [(None, None), [None], {"x": None}])
def test_a_state_of_nothing_but_none(state: Any) -> None:
    """Version 1 cannot tell it from no state, version 2 can."""
    for version, expected in ((1, None), (2, state)):
        store, manager = DictStore(), group_state_manager(version, has_timeouts=False)
        manager.put_state(store, "a", state, NO_TIMESTAMP)
        assert manager.get_state(store, "a").state == expected


def test_what_is_due() -> None:
    """Timers before the threshold, in order; the row decides, not what an index says."""
    store, manager = DictStore(), group_state_manager(2, has_timeouts=True)
    for key, timer_ms in {"c": 3, "a": 1, "b": 2, "d": NO_TIMESTAMP}.items():
        manager.put_state(store, key, key, timer_ms)
    assert [data.key for data in manager.due_states(store, 3)] == ["a", "b"]
    store.rows["a"] = ("a", 7)
    assert [data.key for data in manager.due_states(store, 3)] == ["b"]


@pytest.mark.parametrize("version", [0, 3, None])
def test_unknown_versions(version: Any) -> None:
    """There are versions 1 and 2."""
    with pytest.raises(InvalidStreamError, match="is invalid; use 1 or 2"):
        group_state_manager(version, has_timeouts=True)
