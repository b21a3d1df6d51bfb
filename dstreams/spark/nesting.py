"""A limit on the nesting depth of input data."""

from __future__ import annotations

import re

MOST_NESTED = 200
"""The maximum depth of nested lists, objects and records.

Deeper values fail or crash the process, depending on the Python version, the caller's stack and the
library. Jackson, Spark's parser, has a limit of 1000.
"""

_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)  # a string is one match
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def require_shallow(text: str | bytes) -> None:
    """Raise ValueError if a JSON text is nested deeper than :data:`MOST_NESTED`."""
    if len(text) <= MOST_NESTED:
        return
    if isinstance(text, str):
        if text.count("[") + text.count("{") > MOST_NESTED:
            _require_shallow(text)
    elif text.count(b"[") + text.count(b"{") > MOST_NESTED:
        _require_shallow(text.decode("latin-1"))  # keeps the positions of brackets


def _require_shallow(text: str) -> None:
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += _STEPS.get(bracket[0], 0)
        if depth > MOST_NESTED:
            raise ValueError(f"nested deeper than {MOST_NESTED} at character {bracket.start() + 1}")
