"""What conformance checks say when a promise is broken."""

from __future__ import annotations

from collections.abc import Callable


def require(condition: bool, message: str) -> None:
    """Raise ``AssertionError`` unless *condition* holds."""
    if not condition:
        raise AssertionError(message)


def require_equal(found: object, wanted: object, what: str) -> None:
    """Raise ``AssertionError`` unless *found* equals *wanted*."""
    if found != wanted:
        raise AssertionError(f"{what} must be {wanted!r:.300}, got {found!r:.300}")


def require_raises(error: type[Exception], call: Callable[[], object], what: str = "") -> None:
    """Raise ``AssertionError`` unless *call* raises *error*."""
    try:
        call()
    except error:
        return
    raise AssertionError(f"{error.__name__} must be raised by {what or call}")
