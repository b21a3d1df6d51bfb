"""Errors of a user's function over state, in his own words: operation, function and key."""

from __future__ import annotations

from pickle import PickleError
from typing import Any, NoReturn

from checkpoint import CheckpointError
from dstreams.errors import StreamError
from dstreams.rdd.blocks import shorten

# What codecs raise. Errors of the storage, some of which are ValueErrors, are none of these.
_REFUSALS = (TypeError, ValueError, AttributeError, RecursionError, PickleError)


class UserFunctionError(RuntimeError):
    """The user's function failed, or returned what it must not; the message names the key."""


class NotStorableError(TypeError):
    """A state or a key cannot be in a store; the message names it."""


def raise_failed(where: str, key: Any, error: BaseException) -> NoReturn:
    """Raise that the function failed.

    Args:
        where: operation and function.
        key: the key that it was called for.
        error: what it raised.

    Raises:
        UserFunctionError: always.
    """
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    raise UserFunctionError(f"{where} failed for key {shorten(key)}: {text}") from error


def raise_refused(where: str, what: str, key: Any, error: Exception) -> NoReturn:
    """Raise that a store refused something, if that is what *error* says; else raise *error*.

    Args:
        where: operation and function.
        what: what was refused: ``key``, or ``state of key``.
        key: the key.
        error: what the store raised.

    Raises:
        NotStorableError: the store refused it.
    """
    if isinstance(error, (CheckpointError, StreamError)) or not isinstance(error, _REFUSALS):
        raise error
    advice = ""
    if "plain data" in str(error):
        advice = "; or set spark.dstreams.state.values to pickle, which takes any class"
    raise NotStorableError(
        f"{where}: the {what} {shorten(key)} cannot be stored: {error}{advice}"
    ) from error
