"""A program as text and as a tree: of any encoding, and of Python 2 as far as that goes."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from dataclasses import dataclass
from pathlib import Path

from dstreams.migration.answers import Answer, change
from dstreams.migration.python2 import of_python_2, repair_of

_MOST_REPAIRS = 1000


class UnreadableError(Exception):
    """A file cannot be read as a program; the message says why, and what to do."""


@dataclass(frozen=True)
class Program:
    """What was read.

    Args:
        path: its file.
        lines: its text as it is in the file.
        tree: what it says, where needed after repairs of Python 2.
        notes: what Python 3 does not take: line and answer.
    """

    path: Path
    lines: tuple[str, ...]
    tree: ast.Module
    notes: tuple[tuple[int, str, Answer], ...]


def read_program(path: Path) -> Program:
    """Read a file, and run nothing of it.

    Raises:
        UnreadableError: it is not there, or is no program of Python.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    if path.suffix == ".ipynb":
        raise UnreadableError(
            f"it is a notebook; write it as a program first: jupyter nbconvert --to script {path}"
        )
    text, notes = _decoded(data)
    lines = text.split("\n")
    tree, repaired = _parsed(lines)
    return Program(path, tuple(lines), tree, (*notes, *repaired))


def _decoded(data: bytes) -> tuple[str, list[tuple[int, str, Answer]]]:
    if b"\0" in data:
        raise UnreadableError("it has bytes of 0, so it is no text")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        if "unknown encoding" in str(error):
            raise UnreadableError(f"{error}; name one that Python has, such as utf-8") from error
        encoding = "utf-8"
    try:
        return _with_line_feeds(data.decode(encoding)), []
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"The byte 0x{data[error.start]:02x} is no {encoding}, and Python does not take it."
        instead = (
            "Save the file as UTF-8, or name its encoding in the first line: "
            "# -*- coding: latin-1 -*-"
        )
        text = _with_line_feeds(data.decode("latin-1"))
        return text, [(line, "encoding", change(what, instead))]


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parsed(lines: list[str]) -> tuple[ast.Module, list[tuple[int, str, Answer]]]:
    """Parse a program; a line of Python 2 is read as it would be in Python 3, and noted."""
    current = list(lines)
    notes: list[tuple[int, str, Answer]] = []
    for _ in range(_MOST_REPAIRS):
        try:
            return _tree("\n".join(current)), notes
        except SyntaxError as error:
            found = _repaired(current, error)
            if found is None:
                raise UnreadableError(_refusal(error, lines)) from error
            notes.append(found)
        except (RecursionError, MemoryError, ValueError) as error:
            raise UnreadableError(f"Python cannot parse it: {error}") from error
    raise UnreadableError("it is Python 2; translate it first")


def _tree(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the program's own escapes and comparisons
        return ast.parse(text)


def _repaired(lines: list[str], error: SyntaxError) -> tuple[int, str, Answer] | None:
    """Repair the line of an error, or one shortly before it, which the parser may mean."""
    at = error.lineno or 1
    if isinstance(error, TabError):
        lines[:] = [line.expandtabs() for line in lines]
        what = "Indentation mixes tabs and spaces, which Python 3 does not take."
        return at, "Python 2: tabs and spaces", change(what, "Indent by spaces alone.")
    for number in (at, at - 1):
        repair = repair_of(lines[number - 1]) if 0 < number <= len(lines) else None
        if repair is not None:
            lines[number - 1], form = repair
            return number, f"Python 2: {form.name}", of_python_2(form.instead)
    return None


def _refusal(error: SyntaxError, lines: list[str]) -> str:
    at = error.lineno or 1
    line = lines[at - 1].strip() if 0 < at <= len(lines) else ""
    return f"line {at} is no Python 3: {error.msg}: {line}"
