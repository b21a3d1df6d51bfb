"""State of mapWithState: what may be called when."""

from __future__ import annotations

import doctest
import pickle
from typing import Any

import pytest

from dstreams.errors import InvalidStateCallError, InvalidStreamError, NoStateError
from dstreams.state import keyed_state
from dstreams.state.keyed_state import State


def answers(state: State[Any]) -> tuple[Any, ...]:
    return state.exists, state.getOption, state.isTimingOut, repr(state)


def test_examples() -> None:
    """The example of the class runs."""
    assert doctest.testmod(keyed_state).failed == 0


def test_no_state() -> None:
    """Nothing exists; removing it is fine; setting it makes it exist."""
    state: State[int] = State()
    assert answers(state) == (False, None, False, "<state not set>")
    with pytest.raises(
        NoStateError, match=r"not defined or was removed; check state\.exists first"
    ):
        state.get  # noqa: B018 - a property
    state.update(0)
    assert answers(state) == (True, 0, False, "0")
    assert (state.get, state.is_updated, state.is_removed) == (0, True, False)
    removed: State[int] = State()
    removed.remove()
    assert (removed.exists, removed.is_removed) == (False, True)


def test_after_a_removal() -> None:
    """In the same call it is gone for good."""
    state = State(1)
    state.update(2)
    state.remove()
    assert answers(state) == (False, None, False, "<state not set>")
    assert (state.is_updated, state.is_removed) == (False, True)
    with pytest.raises(InvalidStateCallError, match="updated after it has been removed"):
        state.update(3)
    with pytest.raises(InvalidStateCallError, match="already been removed"):
        state.remove()


def test_timing_out() -> None:
    """It can be read and not changed."""
    state = State(1, is_timing_out=True)
    assert answers(state) == (True, 1, True, "1")
    with pytest.raises(InvalidStateCallError, match="timing out cannot be updated"):
        state.update(3)
    with pytest.raises(InvalidStateCallError, match="timing out is removed anyway"):
        state.remove()
    assert state.get == 1


def test_none_is_no_state() -> None:
    """It is refused, with what to do instead."""
    state = State(1)
    with pytest.raises(InvalidStreamError, match=r"call state\.remove\(\)"):
        state.update(None)  # type: ignore[arg-type]
    assert state.get == 1


def test_it_does_not_outlive_its_call() -> None:
    """It cannot be kept in a result or a state."""
    with pytest.raises(TypeError, match=r"keep state\.get instead"):
        pickle.dumps(State(1))
