"""The text of the demo, and its words."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dstreams.cli.demo.text import END_WORD, count_words, library_files, library_text, words_of
from dstreams.errors import EnvironmentNotReadyError


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("  \t", []),
        ("def f(self, x1):", ["def", "f", "self", "x1"]),
        ("The THE the", ["the", "the", "the"]),
        ("_private __init__", ["_private", "__init__"]),
        ("3.14 1e5 0xff", ["e5", "xff"]),
        ("na\u00efve \u03a3", ["na\u00efve"]),
    ],
)
def test_words(line: str, words: list[str]) -> None:
    """Words begin with a letter of ASCII or an underscore and are in lower case."""
    assert words_of(line) == words


def test_both_counts_mean_the_same_words() -> None:
    """The count of a whole text has the words that its lines have, ends of lines aside."""
    text = "A b\r\n_c\x0ca \u03a3\u03a3\nlast\n"
    by_line: Counter[str] = Counter()
    for line in text.split("\n"):
        by_line.update(words_of(line))
    assert count_words(text.encode()) == by_line
    assert by_line == {"a": 2, "b": 1, "_c": 1, "last": 1}


def test_library_of_this_python() -> None:
    """The running Python has sources; the same whole lines come at each call, up to a limit."""
    text = library_text(200_000)
    assert 100_000 < len(text) <= 200_000
    assert text.endswith(b"\n")
    assert text == library_text(200_000)
    assert text == library_text(300_000)[: len(text)]
    assert b"import" in text
    assert END_WORD not in count_words(text)


def test_end_word_is_one_word() -> None:
    """The last word of the text is counted as what it is."""
    assert words_of(END_WORD) == [END_WORD]


def test_modules_and_packages_sorted_without_tests(tmp_path: Path) -> None:
    """Modules and packages of the standard library are taken in order; tests and others are not."""
    for name in (
        "zipfile.py",
        "asyncio/__init__.py",
        "asyncio/test/test_tasks.py",
        "idlelib/idle_test/test_run.py",
        "idlelib/run.py",
        "email/mime/text.py",
        "abc.py",
        "abc.txt",
        "test/test_abc.py",
        "site-packages/numpy/core.py",
        "numpy.py",
    ):
        write(tmp_path / name, b"x\n")
    found = [path.relative_to(tmp_path).as_posix() for path in library_files(tmp_path)]
    assert found == [
        "abc.py",
        "asyncio/__init__.py",
        "email/mime/text.py",
        "idlelib/run.py",
        "zipfile.py",
    ]


def test_text_is_utf_8_in_whole_lines(tmp_path: Path) -> None:
    """Other bytes are replaced, a missing end of line is added, and a line is not cut."""
    write(tmp_path / "abc.py", b"caf\xe9")
    write(tmp_path / "ast.py", b"second\nthird\n")
    assert library_text(1000, tmp_path) == "caf\ufffd\nsecond\nthird\n".encode()
    assert library_text(15, tmp_path) == "caf\ufffd\nsecond\n".encode()


def test_no_sources(tmp_path: Path) -> None:
    """A Python without sources is an error that says where they were looked for."""
    with pytest.raises(EnvironmentNotReadyError, match=f"but {tmp_path} has none"):
        library_text(1000, tmp_path)


def test_unreadable_source(tmp_path: Path) -> None:
    """A source that cannot be read is named."""
    (tmp_path / "abc.py").symlink_to(tmp_path / "ast.py")
    write(tmp_path / "email" / "message.py", b"x\n")
    assert library_text(1000, tmp_path) == b"x\n"
    (tmp_path / "email" / "parser.py").mkdir()
    with pytest.raises(EnvironmentNotReadyError, match=r"cannot be read: .*parser\.py"):
        library_text(1000, tmp_path)
