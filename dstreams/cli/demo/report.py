"""What the demo prints: a table of batches on a terminal, lines elsewhere, and the verdict."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TextIO

from checkpoint.cli.progress import SILENT, Progress, painted
from dstreams.cli.demo.summary import Summary

_SHOWN_DIFFERENCES = 10
_WORD_LENGTH = 24
_COLUMNS = {"time": 8, "words": 7, "ms": 6, "lag": 7, "in all": 9, "distinct": 8}


@dataclass(frozen=True)
class BatchProgress:
    """What is told after a batch; it could begin *processing_ms* before its result was there.

    ``lag`` is how many lines no batch has read yet, None where nobody knows.
    """

    batch_time: datetime
    batch_words: int
    processing_ms: int
    sent_bytes: int
    summary: Summary
    lag: int | None = None


@dataclass(eq=False)
class DemoReport:
    """Writes to a stream, each batch in one go so that it stays in one piece.

    *progress* is told how many of the words of the text are counted. To who is quiet the verdict
    alone is told.
    """

    out: TextIO
    text_bytes: int
    text_words: int = 0
    progress: Progress = SILENT
    is_quiet: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._out = self.progress.above(self.out)
        self._on_terminal = self.out.isatty()
        self._has_head = False

    def begin(self, place: str) -> None:
        """Say what is going to happen."""
        self._tell(
            f"counting the words of {_megabytes(self.text_bytes)} of Python sources, "
            f"received from {place}"
        )
        self.progress.begin("words counted", self.text_words)

    def output(self, topic: str | None) -> None:
        """Say where counts are written, None for a cluster that cannot take them once."""
        if topic is None:
            self._tell(
                "writing them to no topic: this cluster has no transactions as Kafka has them; "
                "--kafka HOST:PORT writes them exactly once"
            )
        else:
            self._tell(f"writing the counts of each batch to the topic {topic}, exactly once")

    def batch(self, progress: BatchProgress) -> None:
        """Tell of a batch."""
        if self._on_terminal:
            head = "" if self._has_head else f"{_head(progress)}\n"
            self._has_head = True
            self._tell(f"{head}{_row(progress)}")
        else:
            self._tell(_line(progress))
        self.progress.advance(progress.batch_words)

    def end(self, batches: int, elapsed_ms: int) -> None:
        """Say what it took."""
        counted = f"{batches} batch{'' if batches == 1 else 'es'}"
        self._tell(f"received the last word after {counted}, {elapsed_ms / 1000:.1f} s")

    def verdict(
        self, streamed: Counter[str], counted: Counter[str], written: Counter[str] | None = None
    ) -> bool:
        """Compare counts with the independent one, word by word; True when they are equal.

        Args:
            streamed: the final state of the stream.
            counted: of the text.
            written: in sum, by the topic that got the counts of each batch; None for no topic.
        """
        found = {"streamed": streamed, **({} if written is None else {"written": written})}
        for name, counts in {**found, "independent": counted}.items():
            self._write(f"{name + ':':<12} {_totals(counts)}")
        equal = [self._compare(name, counts, counted) for name, counts in found.items()]
        if all(equal):
            self._write(painted("the counts are equal, word by word", "green", self.out))
        return all(equal)

    def _compare(self, name: str, counts: Counter[str], counted: Counter[str]) -> bool:
        different = count_differences(counts, counted)
        for word, (here, there) in list(different.items())[:_SHOWN_DIFFERENCES]:
            self._write(f"  {_short(word)}: {name} {here:,}, independent {there:,}")
        if different:
            differ = f"the counts differ for {len(different):,} of {len(counts | counted):,} words"
            self._write(painted(differ, "red", self.out))
        return not different

    def _tell(self, text: str) -> None:
        if not self.is_quiet:
            self._write(text)

    def _write(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


@dataclass(eq=False)
class JsonReport(DemoReport):
    """Writes a JSON object a line: one for each batch, and one for the result."""

    _facts: dict[str, Any] = field(default_factory=dict, init=False)

    def begin(self, place: str) -> None:
        """Keep what is counted for the result."""
        self._facts |= {"received_from": place, "text_bytes": self.text_bytes}
        self.progress.begin("words counted", self.text_words)

    def output(self, topic: str | None) -> None:
        """Keep where counts are written for the result."""
        self._facts["topic"] = topic

    def batch(self, progress: BatchProgress) -> None:
        """Tell of a batch."""
        summary = progress.summary
        self._tell(
            json.dumps(
                {
                    "batch_time": progress.batch_time.astimezone().isoformat(),
                    "batch_words": progress.batch_words,
                    "processing_ms": progress.processing_ms,
                    "words": summary.words,
                    "distinct": summary.distinct,
                    "sent_bytes": progress.sent_bytes,
                    "lag": progress.lag,
                    "top": dict(summary.top),
                }
            )
        )
        self.progress.advance(progress.batch_words)

    def end(self, batches: int, elapsed_ms: int) -> None:
        """Keep what it took for the result."""
        self._facts |= {"batches": batches, "seconds": elapsed_ms / 1000}

    def verdict(
        self, streamed: Counter[str], counted: Counter[str], written: Counter[str] | None = None
    ) -> bool:
        """Write the result; True when the counts are equal."""
        found = {"streamed": streamed, **({} if written is None else {"written": written})}
        differences = {name: count_differences(one, counted) for name, one in found.items()}
        is_equal = not any(differences.values())
        totals = {
            name: {"words": counts.total(), "distinct": len(counts)}
            for name, counts in {**found, "independent": counted}.items()
        }
        different = {name: len(words) for name, words in differences.items()}
        self._write(
            json.dumps({"equal": is_equal, **self._facts, **totals, "different_words": different})
        )
        return is_equal


def count_differences(streamed: Counter[str], counted: Counter[str]) -> dict[str, tuple[int, int]]:
    """Return the two counts of each word for which they differ, 0 for a word that is not there."""
    words = sorted(streamed.keys() | counted.keys())
    return {
        word: (streamed[word], counted[word]) for word in words if streamed[word] != counted[word]
    }


def _head(progress: BatchProgress) -> str:
    return "  ".join(name.rjust(width) for name, width in _columns(progress).items())


def _row(progress: BatchProgress) -> str:
    """Return the line of a batch in a table that is as wide as the terminal."""
    summary = progress.summary
    columns = _columns(progress)
    cells = {
        "time": f"{progress.batch_time:%H:%M:%S}",
        "words": f"{progress.batch_words:,}",
        "ms": f"{progress.processing_ms:,}",
        "lag": f"{progress.lag or 0:,}",
        "in all": f"{summary.words:,}",
        "distinct": f"{summary.distinct:,}",
    }
    row = "  ".join(cells[name].rjust(width) for name, width in columns.items())
    for word, count in summary.top:  # as many as there is room for
        longer = f"{row}  {_short(word)} {count:,}"
        if len(longer) >= _width():
            break
        row = longer
    return row


def _columns(progress: BatchProgress) -> dict[str, int]:
    """Return the columns for which there is room, with their widths."""
    shown: dict[str, int] = {}
    for name, width in _COLUMNS.items():
        if name == "lag" and progress.lag is None:
            continue
        if sum(shown.values()) + 2 * len(shown) + width >= _width():
            break
        shown[name] = width
    return shown


def _width() -> int:
    return shutil.get_terminal_size().columns


def _line(progress: BatchProgress) -> str:
    summary = progress.summary
    top = ",".join(f"{_short(word)}:{count}" for word, count in summary.top)
    return (
        f"{progress.batch_time:%H:%M:%S} batch_words={progress.batch_words} "
        f"processing_ms={progress.processing_ms} words={summary.words} "
        f"distinct={summary.distinct}{_lag(progress, ' lag={}')} top={top or '-'}"
    )


def _lag(progress: BatchProgress, form: str) -> str:
    return "" if progress.lag is None else form.format(progress.lag)


def _totals(counts: Counter[str]) -> str:
    return f"{sum(counts.values()):,} words, {len(counts):,} distinct"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.{1 if size >= 100_000 else 3}f} MB"


def _short(word: str) -> str:
    """Return a word that every terminal and every encoding can show."""
    text = word.encode("unicode_escape").decode()
    return text if len(text) <= _WORD_LENGTH else f"{text[: _WORD_LENGTH - 3]}..."
