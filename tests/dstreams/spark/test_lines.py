"""Lines of files in byte ranges: each line once, for any line end and any cut."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstreams.spark.lines import LineRange, cut, texts, with_replacements

PARTS = st.sampled_from(
    [b"", b"a", b"{}", b" ", b"\n", b"\r", b"\r\n", "ü鍵".encode(), b"\xef\xbb\xbf", b"x" * 5000]
)
CONTENTS = st.lists(PARTS, max_size=30).map(b"".join)


def lines_of(content: bytes) -> list[bytes]:
    """What the lines of a file are."""
    *lines, last = re.split(rb"\r\n|\n|\r", content.removeprefix(b"\xef\xbb\xbf"))
    return [*lines, last] if last else lines


def lines_in(content: bytes, lines: LineRange, text_bytes: int) -> list[bytes]:
    found = texts(io.BytesIO(content), lines, text_bytes)
    return [line for text in found for line in text.split(b"\n")]


@pytest.mark.deep
@settings(max_examples=300, deadline=None)
@given(
    st.lists(CONTENTS, min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 20),
    st.sampled_from([1, 7, 4096, 1 << 20]),
)
def test_each_line_is_in_one_range(
    contents: list[bytes], partitions: int, open_bytes: int, text_bytes: int
) -> None:
    """In the order of the files, for any size of reads."""
    files = [(str(number), len(content)) for number, content in enumerate(contents)]
    parts = cut(files, partitions, open_bytes)
    assert len(parts) == partitions
    found = [
        line
        for part in parts
        for one in part
        for line in lines_in(contents[int(one.path)], one, text_bytes)
    ]
    assert found == [line for content in contents for line in lines_of(content)]


@given(CONTENTS, st.data())
def test_a_cut_is_a_cut_anywhere(content: bytes, data: st.DataObject) -> None:
    """Between the two bytes of an end, and before the last one, too."""
    at = data.draw(st.integers(0, len(content)))
    found = lines_in(content, LineRange("", 0, at), 8) if at else []
    found += lines_in(content, LineRange("", at, len(content)), 8)
    assert found == lines_of(content)


def test_ranges_of_two_files() -> None:
    """A file that is cut continues in the next partition; files do not start at its end."""
    assert cut([("a", 100), ("b", 100)], 2, 50) == (
        (LineRange("a", 0, 100),),
        (LineRange("b", 0, 100),),
    )
    assert cut([("a", 90), ("b", 10)], 2, 20) == (
        (LineRange("a", 0, 50),),
        (LineRange("a", 50, 90), LineRange("b", 0, 10)),
    )
    assert cut([("a", 0)], 2, 1) == ((), ())


def test_lines_before_a_range(tmp_path: Path) -> None:
    """They are counted in the file, so that a line can be named by its number in it."""
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\r\nthree\rfour")
    assert [LineRange(str(path), start, 19).lines_before() for start in (0, 2, 3, 4, 8, 19)] == [
        0, 1, 1, 2, 2, 4,
    ]  # fmt: skip


def test_a_file_that_is_shorter_now(tmp_path: Path) -> None:
    """The rest of a truncated file is read; a missing file is named as in the JVM."""
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo")
    assert b"\n".join(LineRange(str(path), 0, 100).texts()) == b"one\ntwo"
    assert list(LineRange(str(path), 50, 100).texts()) == []
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"^File file:{path} does not exist$"):
        list(LineRange(str(path), 0, 100).texts())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\xed\xa0\x80\xed\xb0\x80", "\ufffd\ufffd"),
        (b"\xed\xa0\n", "\ufffd\n"),
        (b"\xe2\x82\n\xf0\x90\x80", "\ufffd\n\ufffd"),
        (b"\xc0\x80\xf5\x80", "\ufffd" * 4),
    ],
)
def test_what_is_no_text(data: bytes, text: str) -> None:
    """One replacement character covers as many bytes as in the JVM."""
    assert with_replacements(data).decode() == text
