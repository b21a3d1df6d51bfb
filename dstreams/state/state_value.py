"""What the states of all operations have in common: a value that is there or is not."""

from __future__ import annotations

from typing import Generic, TypeVar

from checkpoint.state_store import DataValues, Shapes
from dstreams.errors import InvalidStreamError, NoStateError
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
