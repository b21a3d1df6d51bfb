"""Errors of a user's function over state, in his own words: operation, function and key."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pickle import PickleError
from types import GeneratorType
from typing import Any, NoReturn

from checkpoint import CheckpointError
from checkpoint.state_store import NotPlainError
from dstreams.errors import StreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.failures import UserFunctionError, failed

# What codecs raise. Errors of the storage, some of which are ValueErrors, are none of these.
_REFUSALS = (TypeError, ValueError, AttributeError, RecursionError, PickleError)


PLAIN_ROWS = frozenset({list, tuple, GeneratorType, map, filter})
"""What functions return as rows nearly always: of these :func:`require_rows` has nothing to say."""

_OF_TABLES = frozenset({"pandas", "numpy", "polars", "pyarrow"})


class NotStorableError(TypeError):
    """A state or a key cannot be in a store; the message names it."""


def failed_with_state(where: str, key: Any, error: BaseException) -> UserFunctionError:
    """Return the error for an *error* of a function that was called with the state of a *key*.

    Properties of the state are methods in Scala: where something that cannot be called was called,
    the message says so.
    """
    failure = failed(where, key, error)
    if not isinstance(error, TypeError) or "is not callable" not in str(error):
        return failure
    return UserFunctionError(
        f"{failure}; if it calls a property of the state, such as exists or get, remove the ()"
    )


def require_rows(returned: Any, where: str, what: str, of: Any) -> None:
    """Refuse what a function has returned in place of rows, where it is no series of rows.

    Most of it can be iterated over and would pass silently: a text as its characters, a dict and a
    table as the names of their columns, one record as its fields, a set in another order at each
    attempt.
    """
    remedy = _remedy(returned)
    if remedy is not None:
        raise UserFunctionError(
            f"{where} must return an iterable of rows, got {shorten(returned)} "
            f"({type(returned).__name__}) for {what} {shorten(of)}; {remedy}"
        )


def _remedy(returned: Any) -> str | None:
    kind = type(returned)
    if kind.__module__.partition(".")[0] in _OF_TABLES or kind.__name__ == "DataFrame":
        return "return its rows, for example list(frame.itertuples(index=False)) of a DataFrame"
    if isinstance(returned, Mapping):
        return "return [row] for one row that is a dict, or its items()"
    if isinstance(returned, Set):
        return "return them in an order that is always the same, for example sorted(rows)"
    if isinstance(returned, tuple) and kind is not tuple:
        return "return [row] for one row"
    is_iterable = hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    if isinstance(returned, (str, bytes)) or not is_iterable:
        return "return a list of rows, or yield them"
    return None


def raise_refused(where: str, what: str, key: Any, error: Exception) -> NoReturn:
    """Raise NotStorableError if *error* says that a store refused something; else raise *error*."""
    text = refusal(error)
    if text is None:
        raise error
    raise NotStorableError(
        f"{where}: the {what} {shorten(key)} cannot be stored: {text}"
    ) from error


def refusal(error: Exception) -> str | None:
    """Return why a codec refused a value, None if *error* has another reason."""
    if isinstance(error, (CheckpointError, StreamError)) or not isinstance(error, _REFUSALS):
        return None
    return _not_plain(error) if isinstance(error, NotPlainError) else str(error)


def _not_plain(error: NotPlainError) -> str:
    """Return what keeps a state from being stored, and what helps where it is an operator's."""
    place = error.path.removeprefix("[0]")  # a row begins with the state
    text = f"it holds {error.what}{f' (in state{place})' if place else ''}, which {error.why}"
    if error.is_class_of_data:
        return (
            f"{text}; name it where a function of the stream or its module does, or by "
            "stateClasses(...) of the StreamingContext, the StreamSession or the StateSpec"
        )
    return (
        f"{text}; make it a dataclass, store a tuple or dict of its fields, or set "
        "spark.dstreams.state.values to pickle, which takes any class"
    )
