"""A value that can be pickled and not unpickled, in any process."""

from __future__ import annotations

from typing import Any


class Unreadable:
    """Detects when a value is unpickled needlessly."""

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()


def refuse() -> None:
    raise RuntimeError("a value was unpickled")
