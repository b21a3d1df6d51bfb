"""What operators say of an error that came up in a user's function."""

from __future__ import annotations

from typing import Any

from dstreams.rdd.blocks import shorten
from dstreams.state.function_errors import UserFunctionError


def failed(where: str, subject: Any, error: Exception, kind: str = "key") -> Exception:
    """Return what to raise for an *error* of a user's function.

    Args:
        where: operation and function.
        subject: what the function was called for.
        error: what it raised.
        kind: what *subject* is.
    """
    if isinstance(error, UserFunctionError):
        return error
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return UserFunctionError(f"{where} failed for {kind} {shorten(subject)}: {text}")
