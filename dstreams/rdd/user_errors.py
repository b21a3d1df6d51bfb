"""Errors of users' functions in their own words: operation, function, what it was called for."""

from __future__ import annotations

from typing import Any

from dstreams.rdd.blocks import shorten
from dstreams.rdd.failures import summarize


class UserFunctionError(RuntimeError):
    """A user's function failed, or returned what it must not; the message names the key."""


def failed(where: str, subject: Any, error: BaseException, kind: str = "key") -> UserFunctionError:
    """Return the error for an *error* of a user's function, called for a *subject* of a *kind*."""
    if isinstance(error, UserFunctionError):
        return error
    return UserFunctionError(f"{where} failed for {kind} {shorten(subject)}: {summarize(error)}")
