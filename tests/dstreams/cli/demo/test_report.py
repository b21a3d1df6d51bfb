"""What the demo prints."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from datetime import datetime

import pytest

from checkpoint.cli.progress import Progress
from dstreams.cli.demo.report import BatchProgress, DemoReport, JsonReport, count_differences
from dstreams.cli.demo.summary import Summary

SUMMARY = Summary(1234567, 8901, (("self", 80000), ("caf\u00e9", 7), ("x" * 40, 1)))
PROGRESS = BatchProgress(
    batch_time=datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - batch times are local
    batch_words=4321,
    processing_ms=1234,
    sent_bytes=2_500_000,
    summary=SUMMARY,
)


class Terminal(io.StringIO):
    """Text in memory that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(out: io.StringIO, progress: BatchProgress = PROGRESS) -> list[str]:
    DemoReport(out, 10_000_000).batch(progress)
    return out.getvalue().splitlines()


def test_line() -> None:
    """Where no terminal is, a batch is one line of names and numbers."""
    assert printed(io.StringIO()) == [
        "03:04:05 batch_words=4321 processing_ms=1234 words=1234567 distinct=8901 "
        f"top=self:80000,caf\\xe9:7,{'x' * 21}...:1"
    ]


def test_a_word_of_a_stranger_changes_nothing_of_a_terminal() -> None:
    """Words come from a topic, to which others may write."""
    (line,) = printed(io.StringIO(), replace(PROGRESS, summary=Summary(1, 1, (("\x1b[2J\n", 1),))))
    assert line.endswith("top=\\x1b[2J\\n:1")


def test_line_without_words() -> None:
    """A batch before the first word is a line too."""
    progress = BatchProgress(PROGRESS.batch_time, 0, 5, 0, Summary())
    (line,) = printed(io.StringIO(), progress)
    assert line == "03:04:05 batch_words=0 processing_ms=5 words=0 distinct=0 top=-"


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal batches are the rows of a table that fits, a word beside its count."""
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    report = DemoReport(out, 10_000_000)
    report.batch(PROGRESS)
    report.batch(replace(PROGRESS, batch_words=0))
    assert out.getvalue().splitlines() == [
        "    time    words      ms     in all  distinct",
        "03:04:05    4,321   1,234  1,234,567     8,901  self 80,000  caf\\xe9 7",
        "03:04:05        0   1,234  1,234,567     8,901  self 80,000  caf\\xe9 7",
    ]


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ("20", "03:04:05    4,321"),
        ("40", "03:04:05    4,321   1,234  1,234,567"),
        ("62", "03:04:05    4,321   1,234  1,234,567     8,901  self 80,000"),
        (
            "120",
            "03:04:05    4,321   1,234  1,234,567     8,901  self 80,000  caf\\xe9 7  "
            f"{'x' * 21}... 1",
        ),
    ],
)
def test_table_of_a_width(columns: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has what there is room for, and is no longer than the terminal is wide."""
    monkeypatch.setenv("COLUMNS", columns)
    head, shown = printed(Terminal())
    assert shown == row
    assert len(head) <= len(row) < int(columns)


def test_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is known, a line and a row say how many records no batch has read."""
    monkeypatch.setenv("COLUMNS", "100")
    progress = replace(PROGRESS, lag=98765)
    assert " distinct=8901 lag=98765 top=" in printed(io.StringIO(), progress)[0]
    head, row = printed(Terminal(), progress)
    assert head == "    time    words      ms      lag     in all  distinct"
    assert row.startswith("03:04:05    4,321   1,234   98,765  1,234,567     8,901  self 80,000")


class Told(Progress):
    """Keeps what progress is told."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None]] = []
        self.done = 0

    def begin(self, stage: str, total: int | None = None) -> None:
        self.stages.append((stage, total))

    def advance(self, count: int = 1) -> None:
        self.done += count


def test_progress() -> None:
    """A bar is told how many words of the text are counted, by people's report and programs'."""
    for kind in (DemoReport, JsonReport):
        told = Told()
        report = kind(io.StringIO(), 10_000_000, 12_345, told)
        report.begin("127.0.0.1:4242")
        for words in (2000, 300):
            report.batch(replace(PROGRESS, batch_words=words))
        assert told.stages == [("words counted", 12_345)]
        assert told.done == 2300


def test_quiet() -> None:
    """Who is quiet is told the verdict alone."""
    out = Terminal()
    report = DemoReport(out, 10_000_000, is_quiet=True)
    report.begin("127.0.0.1:4242")
    report.output("counts")
    report.batch(PROGRESS)
    report.end(7, 8910)
    assert out.getvalue() == ""
    assert report.verdict(Counter(a=1), Counter(a=1))
    assert len(out.getvalue().splitlines()) == 3


def test_json() -> None:
    """Programs get an object for each batch, and the result as the last one."""
    out = io.StringIO()
    report = JsonReport(out, 10_000_000)
    report.begin("127.0.0.1:4242")
    report.output(None)
    report.batch(replace(PROGRESS, lag=5))
    report.end(7, 8910)
    assert not report.verdict(Counter(a=3, b=1), Counter(a=2, b=1), Counter(a=2, b=1))
    batch, result = map(json.loads, out.getvalue().splitlines())
    assert batch.pop("batch_time").startswith("2026-01-02T03:04:05")
    assert batch == {
        "batch_words": 4321,
        "processing_ms": 1234,
        "words": 1234567,
        "distinct": 8901,
        "sent_bytes": 2_500_000,
        "lag": 5,
        "top": dict(SUMMARY.top),
    }
    assert result == {
        "equal": False,
        "received_from": "127.0.0.1:4242",
        "text_bytes": 10_000_000,
        "topic": None,
        "batches": 7,
        "seconds": 8.91,
        "streamed": {"words": 4, "distinct": 2},
        "written": {"words": 3, "distinct": 2},
        "independent": {"words": 3, "distinct": 2},
        "different_words": {"streamed": 1, "written": 0},
    }


def test_the_verdict_in_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal good news is green, and bad news red."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    out = Terminal()
    report = DemoReport(out, 1)
    report.verdict(Counter(a=1), Counter(a=1))
    report.verdict(Counter(a=1), Counter(a=2))
    lines = out.getvalue().splitlines()
    assert "\033[32mthe counts are equal, word by word\033[0m" in lines
    assert lines[-1] == "\033[31mthe counts differ for 1 of 1 words\033[0m"


def test_begin_and_end() -> None:
    """The first line says what is counted, the last of the stream what it took."""
    out = io.StringIO()
    report = DemoReport(out, 12_345)
    report.begin("127.0.0.1:4242")
    report.end(7, 8910)
    assert out.getvalue().splitlines() == [
        "counting the words of 0.012 MB of Python sources, received from 127.0.0.1:4242",
        "received the last word after 7 batches, 8.9 s",
    ]


def test_equal_counts() -> None:
    """Equal counts are said to be equal, with both totals."""
    out = io.StringIO()
    assert DemoReport(out, 1).verdict(Counter(a=1000, b=1), Counter(a=1000, b=1))
    assert out.getvalue().splitlines() == [
        "streamed:    1,001 words, 2 distinct",
        "independent: 1,001 words, 2 distinct",
        "the counts are equal, word by word",
    ]


def test_different_counts() -> None:
    """Where counts differ, words are named with both, though the totals may agree."""
    out = io.StringIO()
    assert not DemoReport(out, 1).verdict(Counter(a=3, b=1, d=1), Counter(a=2, b=2, c=1))
    assert out.getvalue().splitlines() == [
        "streamed:    5 words, 3 distinct",
        "independent: 5 words, 3 distinct",
        "  a: streamed 3, independent 2",
        "  b: streamed 1, independent 2",
        "  c: streamed 0, independent 1",
        "  d: streamed 1, independent 0",
        "the counts differ for 4 of 4 words",
    ]


def test_written_counts() -> None:
    """What a topic has is compared as well."""
    out = io.StringIO()
    report = DemoReport(out, 1)
    assert report.verdict(Counter(a=2), Counter(a=2), Counter(a=2))
    assert not report.verdict(Counter(a=2), Counter(a=2), Counter(a=3))
    assert out.getvalue().splitlines() == [
        "streamed:    2 words, 1 distinct",
        "written:     2 words, 1 distinct",
        "independent: 2 words, 1 distinct",
        "the counts are equal, word by word",
        "streamed:    2 words, 1 distinct",
        "written:     3 words, 1 distinct",
        "independent: 2 words, 1 distinct",
        "  a: written 3, independent 2",
        "the counts differ for 1 of 1 words",
    ]


def test_output() -> None:
    """Where the counts are written is said, and why they are not on the demo's own cluster."""
    out = io.StringIO()
    DemoReport(out, 1).output("counts")
    DemoReport(out, 1).output(None)
    written, not_written = out.getvalue().splitlines()
    assert written == "writing the counts of each batch to the topic counts, exactly once"
    assert not_written.startswith("writing them to no topic: this cluster has no transactions")


def test_many_differences() -> None:
    """Some of the differing words are shown, and how many there are."""
    out = io.StringIO()
    counted = Counter({f"word{number:03}": 1 for number in range(300)})
    assert not DemoReport(out, 1).verdict(Counter(), counted)
    lines = out.getvalue().splitlines()
    assert lines[-1] == "the counts differ for 300 of 300 words"
    assert len(lines) == 13


def test_differences() -> None:
    """Only words whose counts differ come back, sorted, with 0 for what is missing."""
    assert count_differences(Counter(b=1, same=1), Counter(a=2, same=1)) == {
        "a": (0, 2),
        "b": (1, 0),
    }
    assert count_differences(Counter(), Counter()) == {}
