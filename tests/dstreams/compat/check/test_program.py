"""Files as programs: encodings, Python 2, and what is not a program."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dstreams.compat.check.program import UnreadableError, read_program


def read(directory: Path, data: bytes, name: str = "app.py") -> tuple[str, list[tuple[int, str]]]:
    path = directory / name
    path.write_bytes(data)
    program = read_program(path)
    return ast.unparse(program.tree), [(line, name) for line, name, _ in program.notes]


@pytest.mark.parametrize(
    "line",
    [
        "print 'a', b",
        "if a: print b",
        "print a" + 60_000 * " " + "b",
        "lambda (k, v): k",
        "def f((a, b), c): pass",
        "a = 0755",
        "a = 10L",
        "a = ur'x'",
        "a = b <> c",
        "a = `b`",
        "exec 'a = 1'",
        "raise ValueError, 'x'",
        "try: a\nexcept (A, B), e: pass",
        "if a:\n        b = 1\n\tc = 2",
    ],
)
def test_python_2(line: str, tmp_path: Path) -> None:
    """What only Python 2 takes is named with its line, and which tool translates it."""
    at = r"line [234] is not Python 3: .*\. It looks like Python 2, .*futurize -w FILE; or 2to3"
    with pytest.raises(UnreadableError, match=at) as raised:
        read(tmp_path, f"a = 1\n{line}\nb = 2\n".encode())
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(
    ("data", "notes"),
    [
        ("a = 'ä'\n".encode(), []),
        ("a = 'ä'\n".encode("utf-8-sig"), []),
        ("# -*- coding: latin-1 -*-\na = 'ä'\n".encode("latin-1"), []),
        ("b = 1\r\na = 'ä'\r\n".encode("latin-1"), [(2, "encoding")]),
    ],
)
def test_encodings(data: bytes, notes: list[tuple[int, str]], tmp_path: Path) -> None:
    """A text is read as Python does, and where Python would refuse it that is noted."""
    text, found = read(tmp_path, data)
    assert "a = 'ä'" in text
    assert found == notes


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("app.py", b"a = (\n", r"line 1 is not Python 3: '\(' was never closed: a = \("),
        ("app.py", b"a = 1\n  b = 2\n", "line 2 is not Python 3: unexpected indent: b = 2"),
        ("app.py", b"a\0b", "it has null bytes, so it is not text"),
        ("app.py", b"# coding: nope\n", "unknown encoding: nope; name one that Python has"),
        *(
            (
                "app.py",
                f"# coding: {each}\nx = 1\n".encode(),
                "is not one of text; save it as UTF-8",
            )
            for each in ("hex", "rot13", "zlib", "undefined", "idna", "punycode")
        ),
        ("app.py", b"# coding: unicode_escape\nx = '\\ud800'\n", "cannot parse it"),
        ("app.ipynb", b"{}", "it is a notebook; write it as a program first: jupyter nbconvert"),
    ],
)
def test_what_is_no_program(name: str, data: bytes, reason: str, tmp_path: Path) -> None:
    """It is said where and why."""
    with pytest.raises(UnreadableError, match=reason):
        read(tmp_path, data, name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The reason is that of the system."""
    with pytest.raises(UnreadableError, match="No such file or directory"):
        read_program(tmp_path / "nowhere.py")


def test_nested_beyond_the_parser(tmp_path: Path) -> None:
    """What Python itself cannot parse is said to be so."""
    with pytest.raises(UnreadableError, match=r"parse|not Python 3"):
        read(tmp_path, b"(" * 5000 + b")" * 5000)
