"""The stream of the demo, run on a text of the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import SparkContext

from dstreams import BatchFailedError, StreamError, StreamingContext
from dstreams.cli.demo.report import BatchProgress
from dstreams.cli.demo.server import TextServer
from dstreams.cli.demo.text import END_WORD, count_words
from dstreams.cli.demo.word_count import StreamedCount, add_up
from dstreams.common.clock import SystemClock

LINES = b"".join(b"to be or not %d\nto_be\n\n" % number for number in range(2000))
TEXT = LINES + END_WORD.encode() + b"\n"
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def _no_context_is_left() -> None:
    assert StreamingContext.getActive() is None


def run(
    sc: SparkContext,
    directory: Path,
    text: bytes,
    tell: Callable[[BatchProgress], None],
    limit_s: float = LIMIT_S,
) -> tuple[StreamedCount, Counter[str]]:
    with TextServer(text) as server:
        count = StreamedCount(sc, server, str(directory), tell, SystemClock())
        return count, count.run(limit_s)


def test_counts_every_word(sc: SparkContext, tmp_path: Path) -> None:
    """The final state is the count of the text, and progress is told after every batch."""
    told: list[BatchProgress] = []
    count, streamed = run(sc, tmp_path, TEXT, told.append)
    assert streamed == count_words(TEXT)
    assert streamed["to"] == 2000
    assert len(told) == count.batches >= 1
    assert sum(progress.batch_words for progress in told) == sum(streamed.values())
    last = told[-1]
    assert last.summary.words == sum(streamed.values())
    assert last.summary.distinct == len(streamed)
    assert last.summary.end_words == 1
    assert last.lag is None
    assert last.sent_bytes == len(TEXT)
    assert all(0 <= progress.processing_ms <= count.elapsed_ms for progress in told)
    assert StreamingContext.getActive() is None
    assert not sc._jsc.sc().isStopped()


def test_last_word_that_does_not_come(sc: SparkContext, tmp_path: Path) -> None:
    """Without the last word the stream is stopped after the limit, and the error says so."""
    with pytest.raises(StreamError, match=r"not counted within 0.5 s, only .* allow more"):
        run(sc, tmp_path, LINES, lambda _: None, limit_s=0.5)
    assert StreamingContext.getActive() is None


def test_failed_batch(sc: SparkContext, tmp_path: Path) -> None:
    """A batch that fails ends the stream with its error."""

    def fail(_: BatchProgress) -> None:
        raise ValueError("cannot tell")

    with pytest.raises(BatchFailedError, match="cannot tell"):
        run(sc, tmp_path, TEXT, fail)
    assert StreamingContext.getActive() is None


def test_nobody_listens(sc: SparkContext, tmp_path: Path) -> None:
    """An output that was closed ends the stream without an error of the batch."""
    told: list[BatchProgress] = []

    def tell(progress: BatchProgress) -> None:
        told.append(progress)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(sc, tmp_path, LINES, tell)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("new", "count", "result"), [([1, 1], None, 2), ([], 3, 3), ([1], 0, 1), ([], 0, 0)]
)
def test_update(new: list[int], count: int | None, result: int) -> None:
    """A count goes up by the new ones, and none forgets a word."""
    assert add_up(new, count) == result
