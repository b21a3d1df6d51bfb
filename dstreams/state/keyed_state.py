"""State: the state of one key, as the function of ``mapWithState`` sees it."""

from __future__ import annotations

from typing import Generic, NoReturn, TypeVar

from checkpoint.state_store import DataValues, Shapes
from dstreams.errors import InvalidStateCallError, InvalidStreamError, NoStateError
from dstreams.state.function_errors import NotStorableError, refusal
from dstreams.state.state_classes import classes_of_callers

S = TypeVar("S")


class StateValue(Generic[S]):
    """A state during one call of a user's function; None if the key has no state."""

    __slots__ = ("_value",)

    def __init__(self, state: S | None) -> None:
        self._value = state

    @property
    def exists(self) -> bool:
        """True if the key has a state."""
        return self._value is not None

    @property
    def get(self) -> S:
        """The state.

        Raises:
            NoStateError: the key has no state.
        """
        if self._value is None:
            raise NoStateError("the state is not defined or was removed; check state.exists first")
        return self._value

    @property
    def getOption(self) -> S | None:
        """The state, None without one."""
        return self._value


def require_state(value: object) -> None:
    """Raise InvalidStreamError if a state is None."""
    if value is None:
        raise InvalidStreamError(
            "a state must not be None; call state.remove() to remove it, or store a value of yours "
            "that means empty"
        )


def require_storable(value: object) -> None:
    """Raise if the store of a stream does not take a state; for the states that tests make.

    Classes count as known if the modules of the calling functions mention them.
    """
    require_state(value)
    try:
        DataValues(classes_of_callers()).encoder(Shapes())(value)
    except Exception as error:
        text = refusal(error)
        if text is None:
            raise
        raise NotStorableError(f"a state cannot be stored: {text}") from error


class State(StateValue[S]):
    """The state of one key during the call for one record.

    >>> state = State("old")
    >>> state.exists, state.get
    (True, 'old')
    >>> state.remove()
    >>> state.exists, state.getOption
    (False, None)

    In tests it rejects the values that the store of a stream rejects.

    Semantics: org.apache.spark.streaming.State (4.3), with properties instead of methods without
    arguments, as in :class:`~dstreams.GroupState`.

    Args:
        state: the state, None without one.
        is_timing_out: True if the key is idle for longer than its timeout.

    Attributes:
        is_updated: True if the function set a state.
        is_removed: True if the function removed the state.
    """

    __slots__ = ("_is_timing_out", "is_removed", "is_updated")

    _require = staticmethod(require_storable)

    def __init__(self, state: S | None = None, *, is_timing_out: bool = False) -> None:
        self._value = state  # faster than super().__init__, and called for each record
        self._is_timing_out = is_timing_out
        self.is_updated = False
        self.is_removed = False

    @property
    def isTimingOut(self) -> bool:
        """True if the key is removed after this call because it is idle for too long."""
        return self._is_timing_out

    def update(self, newState: S) -> None:
        """Set the state.

        Args:
            newState: the state, anything but None.

        Raises:
            InvalidStateCallError: the state was removed in this call, or is timing out.
            InvalidStreamError: *newState* is None.
            NotStorableError: the store does not take *newState*.
        """
        if self.is_removed:
            raise InvalidStateCallError("the state cannot be updated after it has been removed")
        if self._is_timing_out:
            raise InvalidStateCallError("a state that is timing out cannot be updated")
        self._require(newState)
        self._value = newState
        self.is_updated = True

    def remove(self) -> None:
        """Remove the state, if there is one.

        Raises:
            InvalidStateCallError: it was already removed in this call, or is timing out.
        """
        if self._is_timing_out:
            raise InvalidStateCallError("a state that is timing out is removed anyway")
        if self.is_removed:
            raise InvalidStateCallError("the state has already been removed")
        self._value = None
        self.is_updated = False
        self.is_removed = True

    def __repr__(self) -> str:
        return "<state not set>" if self._value is None else repr(self._value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a State is valid during one call only; keep state.get instead")


class StoredState(State[S]):
    """The state of one key in a stream; the store checks the values."""

    __slots__ = ()

    _require = staticmethod(require_state)
