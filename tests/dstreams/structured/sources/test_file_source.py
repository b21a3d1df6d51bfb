"""Files of JSON lines: an invalid line is located, or skipped."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from dstreams.errors import SourceError
from dstreams.structured import StreamingQueryException, StreamSession
from dstreams.structured.sources.query_formats import FileSplit, ParseLines

GOOD = b'{"n": 1}\n'
BAD = b'{"n": 1, "text": "long enough for several splits" "n": 2}\n'


def bad_line_of(split: FileSplit, lines: list[str]) -> str:
    with pytest.raises(SourceError) as caught:
        list(ParseLines((split,))(0, lines))
    return str(caught.value)


def test_where_a_bad_line_is() -> None:
    """The error says file, line, place in the line, what is there, and what to do about it."""
    split = FileSplit("file:/in/1.json", 0)
    assert bad_line_of(split, ['{"n": 1}', "", '{"n" 2}']) == (
        "line 3 of file:/in/1.json is not JSON (Expecting ':' delimiter at character 6: "
        "'{\"n\" 2}'); write one value per line: correct or remove the line, or skip all such "
        "lines with option mode DROPMALFORMED"
    )


def test_only_the_bad_place_of_a_long_line_is_shown() -> None:
    """A line of a megabyte does not fill the log, and what is wrong in it is seen."""
    line = "[" + "1, " * 400_000 + "oops]"
    message = bad_line_of(FileSplit("file:/in/1.json", 0), [line])
    assert "at character 1200002: " in message
    assert "1, 1, oops]" in message
    assert len(message) < 500


TOO_DEEP = {
    "lists": "[" * 201 + "]" * 201,
    "objects": '{"a":' * 5000 + "1" + "}" * 5000,
    "never closed": "[" * 100_000,
    "after a text": '["[[", ' + "[" * 200 + "]" * 201,
}


@pytest.mark.parametrize("name", TOO_DEEP)
def test_lines_that_are_nested_too_deep(name: str) -> None:
    """They are invalid lines: located or skipped, in any Python and at any depth of calls."""
    split = FileSplit("file:/in/1.json", 0)
    message = bad_line_of(split, [TOO_DEEP[name]])
    assert "is not JSON (nested deeper than 200 at character " in message
    assert len(message) < 500
    assert list(ParseLines((split,), "DROPMALFORMED")(0, [TOO_DEEP[name], "7"])) == [7]


def test_lines_with_many_brackets() -> None:
    """Adjacent brackets, or brackets in a string, are not nested."""
    deepest = "[" * 200 + "]" * 200
    lines = [deepest, "[" + "[], " * 300 + "[]]", '["' + "[" * 300 + '\\"{"]']
    values = list(ParseLines((FileSplit("file:/in/1.json", 0),))(0, lines))
    assert [len(value) for value in values] == [1, 301, 1]
    assert len(pickle.dumps(values)) > 0


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", [1, 8, 9, 10, 11, 20])
def test_lines_of_a_later_part_of_a_file(tmp_path: Path, end: str, start: int) -> None:
    """The line is counted from the beginning of the file, wherever Spark has cut that."""
    lines = [f'{{"n": {number}}}' for number in range(5)]
    path = tmp_path / "cut.json"
    path.write_bytes("".join(line + end for line in lines).encode())
    begins = [number * (8 + len(end)) for number in range(5)]
    first = sum(begin <= start for begin in begins)
    message = bad_line_of(FileSplit(f"file:{path}", start), ["{}", "x"])
    assert message.startswith(f"line {first + 2} of file:{path} is not JSON (")


def test_lines_of_a_later_part_of_a_file_elsewhere() -> None:
    """If the driver cannot read the file, lines are counted from the start of the split."""
    message = bad_line_of(FileSplit("hdfs://one/in/1.json", 77), ["{}", "x"])
    assert message.startswith("line 2 after byte 77 of hdfs://one/in/1.json is not JSON (")


@pytest.mark.deep
@pytest.mark.parametrize("before", [0, 1, 40], ids=lambda lines: f"{lines} lines before")
def test_a_query_that_meets_a_bad_line(session: StreamSession, tmp_path: Path, before: int) -> None:
    """It fails with the name of the file and the line, and continues after a correction."""
    directory = tmp_path / "in, [1]"
    directory.mkdir()
    (directory / "0.json").write_bytes(GOOD)
    (directory / "1.json").write_bytes(b"")
    (directory / "2.json").write_bytes(GOOD * before + BAD + GOOD)

    def start() -> Any:
        rows = session.readStream.json(directory)
        writer = rows.writeStream.format("memory").queryName("rows").trigger(availableNow=True)
        return writer.start(checkpointLocation=str(tmp_path / "checkpoint"))

    with pytest.raises(StreamingQueryException) as caught:
        start().awaitTermination(300)
    message = str(caught.value)
    assert f"line {before + 1} of file:{directory}/2.json is not JSON" in message
    assert "Expecting ',' delimiter at character 51: " in message
    assert "option mode DROPMALFORMED" in message
    (directory / "2.json").write_bytes(GOOD)
    assert start().awaitTermination(300)
    assert session.table("rows") == [{"n": 1}] * 2


def test_bad_lines_are_left_out_where_that_is_wanted(
    session: StreamSession, tmp_path: Path
) -> None:
    """With the mode DROPMALFORMED the other lines of a file come, also of a batch that failed."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_bytes(GOOD + BAD + b"\xff\xfe\n" + GOOD)

    def start(**options: str) -> Any:
        rows = session.readStream.json(tmp_path / "in", **options)
        writer = rows.writeStream.format("memory").queryName("rows").trigger(availableNow=True)
        return writer.start(checkpointLocation=str(tmp_path / "checkpoint"))

    with pytest.raises(StreamingQueryException, match=r"line [23] of .*1\.json"):
        start(mode="failfast").awaitTermination(300)
    assert start(mode="dropMalformed").awaitTermination(300)
    assert session.table("rows") == [{"n": 1}] * 2
    assert session.read.json(tmp_path / "in", mode="DROPMALFORMED").collect() == [{"n": 1}] * 2


def test_bytes_that_are_no_text(session: StreamSession, tmp_path: Path) -> None:
    """As in Spark, invalid UTF-8 is read as U+FFFD, without an error."""
    (tmp_path / "1.txt").write_bytes(b"caf\xe9\nok\n")
    assert session.read.text(tmp_path).collect() == ["caf\ufffd", "ok"]
