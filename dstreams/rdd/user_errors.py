"""Errors of users' functions in their own words: operation, function, what it was called for."""

from __future__ import annotations

from typing import Any

from dstreams.rdd.blocks import shorten
from dstreams.rdd.failures import summarize


class UserFunctionError(RuntimeError):
    """A user's function failed, or returned what it must not; the message names the key."""


def failed(where: str, subject: Any, error: BaseException, kind: str = "key") -> UserFunctionError:
    """Return what to raise for an *error* of a user's function, that error if it says all.

    Args:
        where: operation and function.
        subject: what the function was called for.
        error: what it raised.
        kind: what *subject* is.
    """
    if isinstance(error, UserFunctionError):
        return error
    return UserFunctionError(f"{where} failed for {kind} {shorten(subject)}: {summarize(error)}")
