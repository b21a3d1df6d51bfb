"""A value that can be pickled and not unpickled, in any process."""

from __future__ import annotations

from typing import Any


class Unreadable:
    """Shows who unpickles a value that nobody has to look at."""

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()


def refuse() -> None:
    raise RuntimeError("a value was unpickled")
