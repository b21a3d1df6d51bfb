"""The stream of the demo, and the comparison of its counts."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import SparkContext

from dstreams import BatchFailedError, StreamError, StreamingContext
from dstreams.cli.demo.command import StreamedCount, add_up, compare, summarize
from dstreams.cli.demo.sources import END_WORD, PARTITIONS, TextServer, TextTopic, count_words
from tests.support.jobs import count_jobs
from tests.support.kafka_cluster import KafkaCluster

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
    tell: Callable[[str], None],
    limit_s: float = LIMIT_S,
) -> tuple[StreamedCount, Counter[str]]:
    with TextServer(text) as server:
        count = StreamedCount(sc, server, str(directory), tell)
        return count, count.run(limit_s)


def test_counts_every_word(sc: SparkContext, tmp_path: Path) -> None:
    """The final state equals the count of the text, and every batch prints a line."""
    told: list[str] = []
    count, streamed = run(sc, tmp_path, TEXT, told.append)
    assert streamed == count_words(TEXT)
    assert streamed["to"] == 2000
    assert len(told) == count.batches >= 1
    totals = f" words={streamed.total()} distinct={len(streamed)}"
    assert told[-1].endswith(totals)
    assert count.elapsed_s > 0
    assert StreamingContext.getActive() is None
    assert not sc._jsc.sc().isStopped()


def test_last_word_that_does_not_come(sc: SparkContext, tmp_path: Path) -> None:
    """Without the last word the stream is stopped after the limit, and the error says so."""
    with pytest.raises(StreamError, match=r"only .* words .* within 0.5 s; increase"):
        run(sc, tmp_path, LINES, lambda _: None, limit_s=0.5)
    assert StreamingContext.getActive() is None


def test_failed_batch(sc: SparkContext, tmp_path: Path) -> None:
    """A batch that fails ends the stream with its error."""

    def fail(_: str) -> None:
        raise ValueError("cannot tell")

    with pytest.raises(BatchFailedError, match="cannot tell"):
        run(sc, tmp_path, TEXT, fail)
    assert StreamingContext.getActive() is None


def test_nobody_listens(sc: SparkContext, tmp_path: Path) -> None:
    """An output that was closed ends the stream without an error of the batch."""
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
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


def test_counts_through_a_broker(sc: SparkContext, kafka: KafkaCluster, tmp_path: Path) -> None:
    """Words that pass through a broker are counted, and at the end the lag is 0."""
    told: list[str] = []
    text = LINES + f"{END_WORD}\n".encode() * PARTITIONS
    with TextTopic(text, {"bootstrap.servers": kafka.bootstrap}) as topic:
        count = StreamedCount(sc, topic, str(tmp_path), told.append)
        assert count.run(LIMIT_S) == count_words(text)
    assert told[-1].endswith(" lag=0")


def test_summary(sc: SparkContext) -> None:
    """Words, distinct words and end words are computed in one job."""
    counts = sc.parallelize([("a", 5), ("b", 2), (END_WORD, 1)], 2)
    assert summarize(counts) == [8, 3, 1]
    assert summarize(sc.emptyRDD()) == [0, 0, 0]
    assert count_jobs(sc, lambda: summarize(counts)) == 1


def test_equal_counts() -> None:
    """Equal counts are reported with both totals."""
    out = io.StringIO()
    assert compare(Counter(a=1000, b=1), Counter(a=1000, b=1), out)
    assert out.getvalue().splitlines() == [
        "streamed:    1,001 words, 2 distinct",
        "independent: 1,001 words, 2 distinct",
        "the counts are equal, word by word",
    ]


def test_different_counts() -> None:
    """Words whose counts differ are listed with both counts, even if the totals are equal."""
    out = io.StringIO()
    assert not compare(Counter({"a": 3, "b": 1, "\xe9": 1}), Counter(a=2, b=2, c=1), out)
    assert out.getvalue().splitlines() == [
        "streamed:    5 words, 3 distinct",
        "independent: 5 words, 3 distinct",
        "  'a': streamed 3, independent 2",
        "  'b': streamed 1, independent 2",
        "  'c': streamed 0, independent 1",
        "  '\\xe9': streamed 1, independent 0",
        "the counts differ for 4 of 4 words",
    ]


def test_many_differences() -> None:
    """Only the first differing words are listed, and the last line has their number."""
    out = io.StringIO()
    assert not compare(Counter(), Counter({f"word{number:03}": 1 for number in range(300)}), out)
    lines = out.getvalue().splitlines()
    assert lines[-1] == "the counts differ for 300 of 300 words"
    assert len(lines) == 13
