"""Waiting for what another thread does, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], seconds: float = 180) -> None:
    """Return as soon as *condition* holds; fail when it does not within *seconds*."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come true within {seconds} s: {condition}")
        time.sleep(0.01)  # from one look to the next
