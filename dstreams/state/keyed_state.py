"""State: what the function of ``mapWithState`` sees of the state of one key."""

from __future__ import annotations

from typing import ClassVar, Generic, NoReturn, TypeVar

from checkpoint.state_store import DataValues, Shapes
from dstreams.errors import InvalidStateCallError, InvalidStreamError, NoStateError
from dstreams.state.function_errors import NotStorableError, refusal
from dstreams.state.state_classes import classes_of_callers

S = TypeVar("S")


class StateValue(Generic[S]):
    """A state during one call of a user's function; None stands for none.

    Args:
        state: the state, None for none.
    """

    __slots__ = ("_value",)

    def __init__(self, state: S | None) -> None:
        self._value = state

    @property
    def exists(self) -> bool:
        """Whether there is a state."""
        return self._value is not None

    @property
    def get(self) -> S:
        """The state.

        Raises:
            NoStateError: there is none.
        """
        if self._value is None:
            raise NoStateError("the state is not defined, or was removed; ask state.exists first")
        return self._value

    @property
    def getOption(self) -> S | None:
        """The state, or None."""
        return self._value


def require_state(value: object) -> None:
    """Refuse None."""
    if value is None:
        raise InvalidStreamError(
            "None is no state; call state.remove() to have no state, or keep a value of yours that "
            "stands for nothing"
        )


def require_storable(value: object) -> None:
    """Refuse what the store of a stream refuses; for the states that tests make.

    The program is what the caller's modules are, those of the test and those of the function.
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
    """The state of one key during one call, which is made for one record.

    >>> state = State("old")
    >>> state.exists, state.get
    (True, 'old')
    >>> state.remove()
    >>> state.exists, state.getOption
    (False, None)

    A state that a test makes takes what a store takes, and refuses other values as the store does.

    Semantics: org.apache.spark.streaming.State (4.3), with properties in the place of methods
    without arguments, as in :class:`~dstreams.GroupState`. None is no state.

    Args:
        state: the state, None for none.
        is_timing_out: whether the call is made because the key got no data for too long.

    Attributes:
        is_updated: whether the function set a state.
        is_removed: whether the function removed the state.
    """

    __slots__ = ("_is_timing_out", "is_removed", "is_updated")

    _is_of_stream: ClassVar[bool] = False

    def __init__(self, state: S | None = None, *, is_timing_out: bool = False) -> None:
        self._value = state  # faster than to ask the base, and made for each record
        self._is_timing_out = is_timing_out
        self.is_updated = False
        self.is_removed = False

    @property
    def isTimingOut(self) -> bool:
        """Whether the key is removed after this call because it got no data for too long."""
        return self._is_timing_out

    def update(self, newState: S) -> None:
        """Set the state.

        Args:
            newState: the state, anything but None.

        Raises:
            InvalidStateCallError: it was removed in this call, or is timing out.
            InvalidStreamError: it is None.
            NotStorableError: it is none that a store takes.
        """
        if self.is_removed:
            raise InvalidStateCallError("the state cannot be updated after it has been removed")
        if self._is_timing_out:
            raise InvalidStateCallError("a state that is timing out cannot be updated")
        if newState is None or not self._is_of_stream:
            require_storable(newState)
        self._value = newState
        self.is_updated = True

    def remove(self) -> None:
        """Remove the state; that there is none is fine.

        Raises:
            InvalidStateCallError: it was removed in this call before, or is timing out.
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
    """The state of one key in a stream, where the store says what it does not take."""

    __slots__ = ()

    _is_of_stream: ClassVar[bool] = True
