"""Waiting that a signal can interrupt, whichever thread of the process the system gives it to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

_POLL_S = 0.2


def wait_in_steps(
    changed: threading.Condition, condition: Callable[[], bool], timeout: float | None
) -> None:
    """Wait, with *changed* held, in short steps, so that the main thread notices signals.

    A signal that another thread receives does not wake the main thread, which alone runs handlers.
    A timeout of None is no limit.
    """
    until = None if timeout is None else monotonic() + timeout
    while not condition():
        left = _POLL_S if until is None else until - monotonic()
        if left <= 0:
            return
        changed.wait(min(_POLL_S, left))  # less than that where somebody notifies
