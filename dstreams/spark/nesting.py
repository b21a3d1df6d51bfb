"""How deep a value that comes from outside may be nested."""

from __future__ import annotations

import re

MOST_NESTED = 200
"""How deep lists, objects and records may be in each other.

Whether Python can read and send deeper ones depends on its version and on the depth of the caller,
and some libraries end the process. Jackson, Spark's parser, has a limit of 1000.
"""

_BRACKETS = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL
)  # a text goes by as a whole
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def require_shallow(text: str | bytes) -> None:
    """Check that a text of JSON is not nested too deep.

    Raises:
        ValueError: it is.
    """
    if len(text) <= MOST_NESTED:
        return
    if isinstance(text, str):
        if text.count("[") + text.count("{") > MOST_NESTED:
            _require_shallow(text)
    elif text.count(b"[") + text.count(b"{") > MOST_NESTED:
        _require_shallow(text.decode("latin-1"))  # brackets are where they were


def _require_shallow(text: str) -> None:
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += _STEPS.get(bracket[0], 0)
        if depth > MOST_NESTED:
            raise ValueError(f"nested deeper than {MOST_NESTED} at character {bracket.start() + 1}")
