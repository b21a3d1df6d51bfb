"""Files as programs: encodings, Python 2, and what is no program."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dstreams.migration.program import UnreadableError, read_program


def read(directory: Path, data: bytes, name: str = "app.py") -> tuple[str, list[tuple[int, str]]]:
    path = directory / name
    path.write_bytes(data)
    program = read_program(path)
    return ast.unparse(program.tree), [(line, name) for line, name, _ in program.notes]


@pytest.mark.parametrize(
    ("line", "repaired", "form"),
    [
        ("print 'a', b", "print('a', b)", "print statement"),
        ("if a: print b", "if a:\n    print(b)", "print statement"),
        ("print >>f, 'a' % b", "print('a' % b)", None),
        ("lambda (k, v): k", "lambda k, v: k", "parameters in parentheses"),
        ("def f((a, b), c): pass", "\ndef f(a, b, c):\n    pass", "parameters in parentheses"),
        ("a = 0755", "a = 493", "octal number"),
        ("a = 10L", "a = 10", "long number"),
        ("a = ur'x'", "a = 'x'", "text with ur in front"),
        ("a = b <> c", "a = b != c", "<> for unequal"),
        ("a = `b`", "a = repr(b)", "backticks"),
        ("exec 'a = 1'", "exec('a = 1')", "exec statement"),
        ("raise ValueError, 'x'", "raise ValueError('x')", "raise with a comma"),
    ],
)
def test_python_2(line: str, repaired: str, form: str | None, tmp_path: Path) -> None:
    """What only Python 2 takes is noted with its line, and the program is read on."""
    text, notes = read(tmp_path, f"a = 1\n{line}\nb = 2\n".encode())
    if form is None:  # which Python 3 parses
        assert notes == []
        return
    assert text == f"a = 1\n{repaired}\nb = 2"
    assert notes == [(2, f"Python 2: {form}")]


def test_python_2_in_many_lines(tmp_path: Path) -> None:
    """Each line is noted once, in the order of the file."""
    source = b"try:\n    print 'a'\nexcept (A, B), e:\n    print e\n"
    text, notes = read(tmp_path, source)
    assert "except (A, B) as e" in text
    assert sorted(notes) == [
        (2, "Python 2: print statement"),
        (3, "Python 2: except with a comma"),
        (4, "Python 2: print statement"),
    ]


def test_tabs_and_spaces(tmp_path: Path) -> None:
    """An indentation that Python 3 refuses is noted as such."""
    text, notes = read(tmp_path, b"if a:\n        b = 1\n\tc = 2\n")
    assert text == "if a:\n    b = 1\n    c = 2"
    assert [name for _, name in notes] == ["Python 2: tabs and spaces"]


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
        ("app.py", b"a = (\n", r"line 1 is no Python 3: '\(' was never closed: a = \("),
        ("app.py", b"a = 1\n  b = 2\n", "line 2 is no Python 3: unexpected indent: b = 2"),
        ("app.py", b"a\0b", "it has bytes of 0, so it is no text"),
        ("app.py", b"# coding: nope\n", "unknown encoding: nope; name one that Python has"),
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
    with pytest.raises(UnreadableError, match=r"parse|no Python 3"):
        read(tmp_path, b"(" * 5000 + b")" * 5000)
