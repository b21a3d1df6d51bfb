"""What the demo prints: a block for each batch on a terminal, a line elsewhere, and the verdict."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TextIO

from dstreams.demo.summary import Summary

_SHOWN_DIFFERENCES = 10
_WORD_LENGTH = 24
_INDENT = " " * 10


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


class DemoReport:
    """Writes to a stream, each batch in one go so that it stays in one piece."""

    def __init__(self, out: TextIO, text_bytes: int) -> None:
        self._out = out
        self._text_bytes = text_bytes
        self._on_terminal = out.isatty()

    def begin(self, place: str) -> None:
        """Say what is going to happen."""
        self._write(
            f"counting the words of {_megabytes(self._text_bytes)} of Python sources, "
            f"received from {place}"
        )

    def output(self, topic: str | None) -> None:
        """Say where counts are written, None for a cluster that cannot take them once."""
        if topic is None:
            self._write(
                "writing them to no topic: this cluster has no transactions as Kafka has them; "
                "--kafka HOST:PORT writes them exactly once"
            )
        else:
            self._write(f"writing the counts of each batch to the topic {topic}, exactly once")

    def batch(self, progress: BatchProgress) -> None:
        """Tell of a batch."""
        self._write(self._block(progress) if self._on_terminal else _line(progress))

    def end(self, batches: int, elapsed_ms: int) -> None:
        """Say what it took."""
        self._write(f"received the last word after {batches} batches, {elapsed_ms / 1000:.1f} s")

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
            self._write("the counts are equal, word by word")
        return all(equal)

    def _compare(self, name: str, counts: Counter[str], counted: Counter[str]) -> bool:
        different = count_differences(counts, counted)
        for word, (here, there) in list(different.items())[:_SHOWN_DIFFERENCES]:
            self._write(f"  {_short(word)}: {name} {here:,}, independent {there:,}")
        if different:
            self._write(
                f"the counts differ for {len(different):,} of {len(counts | counted):,} words"
            )
        return not different

    def _block(self, progress: BatchProgress) -> str:
        summary = progress.summary
        width = max(40, shutil.get_terminal_size().columns) - 1
        lines = [
            f"{progress.batch_time:%H:%M:%S}  {progress.batch_words:,} words in this batch, "
            f"processed in {progress.processing_ms:,} ms",
            f"{_INDENT}{summary.words:,} words so far, {summary.distinct:,} distinct, "
            f"{_megabytes(progress.sent_bytes)} of {_megabytes(self._text_bytes)} sent"
            f"{_lag(progress, ', lag {:,} records')}",
            # A no-break space keeps a word and its count on one line.
            *textwrap.wrap(
                "   ".join(f"{_short(word)}\u00a0{count:,}" for word, count in summary.top),
                width,
                initial_indent=_INDENT,
                subsequent_indent=_INDENT,
            ),
        ]
        return "\n".join(line.replace("\u00a0", " ") for line in lines)

    def _write(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


def count_differences(streamed: Counter[str], counted: Counter[str]) -> dict[str, tuple[int, int]]:
    """Return the two counts of each word for which they differ, 0 for a word that is not there."""
    words = sorted(streamed.keys() | counted.keys())
    return {
        word: (streamed[word], counted[word]) for word in words if streamed[word] != counted[word]
    }


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
    text = word.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= _WORD_LENGTH else f"{text[: _WORD_LENGTH - 3]}..."
