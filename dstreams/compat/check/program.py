"""A program as text and as a tree, of any encoding."""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
import warnings
from dataclasses import dataclass
from pathlib import Path

from dstreams.compat.check.answers import Answer, change

_SHOWN = 200
_PYTHON_2 = re.compile(
    r"\bprint\s|\bexec\s|\bexcept\b[^:]*,|\braise\s+\w+\s*,|<>|`|\blambda\s*\(|\bdef\s+\w+\s*\(\("
    r"|\b0[0-7]+\b|\b[0-9]+[lL]\b|\b[uU][rR]['\"]"
)
_TRANSLATE = (
    "It looks like Python 2, which no PySpark since 3.1 runs. Translate it first: pip install "
    "future, then futurize -w FILE; or 2to3 -w FILE, which Python has up to 3.12"
)


class UnreadableError(Exception):
    """A file cannot be read as a program; the message says why, and what to do."""


@dataclass(frozen=True)
class Program:
    """What was read.

    Args:
        path: its file.
        lines: its text as it is in the file.
        tree: what it says.
        notes: what Python does not take and is no syntax: line and answer.
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
    return Program(path, tuple(text.split("\n")), _parsed(text), tuple(notes))


def _decoded(data: bytes) -> tuple[str, list[tuple[int, str, Answer]]]:
    if b"\0" in data:
        raise UnreadableError("it has null bytes, so it is not text")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        if "unknown encoding" in str(error):
            raise UnreadableError(f"{error}; name one that Python has, such as utf-8") from error
        encoding = "utf-8"
    if not _is_of_text(encoding):
        raise UnreadableError(f"its encoding {encoding} is not one of text; save it as UTF-8")
    try:
        return _with_line_feeds(data.decode(encoding)), []
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"The byte 0x{data[error.start]:02x} is not {encoding}, and Python refuses it."
        instead = (
            "Save the file as UTF-8, or name its encoding in the first line: "
            "# -*- coding: latin-1 -*-"
        )
        text = _with_line_feeds(data.decode("latin-1"))
        return text, [(line, "encoding", change(what, instead))]
    except ValueError as error:
        raise UnreadableError(f"it is not {encoding}: {error}; save it as UTF-8") from error


def _is_of_text(encoding: str) -> bool:
    """Return whether an encoding is one of programs: zlib is not one of text, idna is of names."""
    if codecs.lookup(encoding).name in ("idna", "punycode"):
        return False
    try:
        b"a".decode(encoding)
    except UnicodeDecodeError:  # such as of two bytes
        return True
    except (LookupError, UnicodeError, ValueError):
        return False
    return True


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parsed(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the program's own escapes and comparisons
            return ast.parse(text)
    except SyntaxError as error:
        raise UnreadableError(_refusal(error, text)) from error
    except (RecursionError, MemoryError, ValueError) as error:
        why = str(error) or type(error).__name__
        raise UnreadableError(f"Python cannot parse it: {why}") from error


def _refusal(error: SyntaxError, text: str) -> str:
    at = error.lineno or 1
    lines = text.split("\n", at)
    line = lines[at - 1].strip()[:_SHOWN] if 0 < at <= len(lines) else ""
    refusal = f"line {at} is not Python 3: {error.msg}: {line}"
    is_python_2 = isinstance(error, TabError) or _PYTHON_2.search(line) is not None
    return f"{refusal}. {_TRANSLATE}" if is_python_2 else refusal
