"""Docstrings as the site shows them: roles are code, and examples and tables stand as they are."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_BLOCK = re.compile(
    r"^(?P<indent> *)(?:(?P<example>>>> .*)|(?P<table>=+(?: +=+)+ *))$(?:\n *\S.*$)*", re.MULTILINE
)


class PlainDocstrings(griffe.Extension):
    """Makes Markdown of what docstrings have for those who read them in an editor."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was found."""
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
