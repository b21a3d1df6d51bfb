"""Convert docstrings for the site: roles become code, and examples and tables are fenced."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_BLOCK = re.compile(
    r"^(?P<indent> *)(?:(?P<example>>>> .*)|(?P<table>=+(?: +=+)+ *))$(?:\n *\S.*$)*", re.MULTILINE
)


class PlainDocstrings(griffe.Extension):
    """Converts docstrings to Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Convert the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)


def shown(docstring: str) -> str:
    """Return a docstring in which examples and tables are fenced."""

    def fenced(match: re.Match[str]) -> str:
        indent = match["indent"]
        language = "pycon" if match["example"] else "text"
        return f"\n{indent}```{language}\n{match[0]}\n{indent}```"

    plain = re.sub(r"::$", ":", _ROLE.sub(r"`\1`", docstring), flags=re.MULTILINE)
    return _BLOCK.sub(fenced, plain)
