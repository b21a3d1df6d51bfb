"""Errors of user functions over state: they name the operation, the function and the key."""

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

# Codecs raise these. Storage errors, some of which are ValueErrors, are excluded below.
_REFUSALS = (TypeError, ValueError, AttributeError, RecursionError, PickleError)


PLAIN_ROWS = frozenset({list, tuple, GeneratorType, map, filter})
"""The usual types of returned rows, which :func:`require_rows` need not check."""

_OF_TABLES = frozenset({"pandas", "numpy", "polars", "pyarrow"})


class NotStorableError(TypeError):
    """A state or a key cannot be stored; the message names it."""


def failed_with_state(where: str, key: Any, error: BaseException) -> UserFunctionError:
    """Return the error of a function that was called with the state of a *key*.

    It hints at properties of the state that are methods in Scala.
    """
    failure = failed(where, key, error)
    if not isinstance(error, TypeError) or "is not callable" not in str(error):
        return failure
    return UserFunctionError(
        f"{failure}; if it calls a property of the state, such as exists or get, remove the ()"
    )


def require_rows(returned: Any, where: str, what: str, of: Any) -> None:
    """Raise UserFunctionError if a function returned something other than a series of rows.

    Most of these values are iterable and would pass silently: a text as its characters, a dict or a
    table as its column names, a record as its fields, a set in a different order at each attempt.
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
    """Raise NotStorableError if a codec raised *error*, else raise *error*."""
    text = refusal(error)
    if text is None:
        raise error
    raise NotStorableError(
        f"{where}: the {what} {shorten(key)} cannot be stored: {text}"
    ) from error


def refusal(error: Exception) -> str | None:
    """Return the reason of a codec, None if *error* comes from elsewhere."""
    if isinstance(error, (CheckpointError, StreamError)) or not isinstance(error, _REFUSALS):
        return None
    return _not_plain(error) if isinstance(error, NotPlainError) else str(error)


def _not_plain(error: NotPlainError) -> str:
    """Return the reason for which a state is not plain data, and the remedy."""
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
