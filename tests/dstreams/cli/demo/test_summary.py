"""What is computed of the state in each batch."""

from __future__ import annotations

from pyspark import SparkContext

from dstreams.cli.demo.summary import TOP_WORDS, Summary, summarize_counts, summarize_partition
from dstreams.cli.demo.text import END_WORD
from tests.support.jobs import count_jobs


def test_partition() -> None:
    """Words, distinct words and the most frequent ones; the alphabet decides between equals."""
    (summary,) = summarize_partition(iter([("b", 2), ("a", 2), ("c", 5)]))
    assert summary == Summary(9, 3, (("c", 5), ("a", 2), ("b", 2)), end_words=0)


def test_empty_partition() -> None:
    """No words are a summary like any other."""
    assert list(summarize_partition(iter([]))) == [Summary()]


def test_partitions_are_united(sc: SparkContext) -> None:
    """The summary is of the whole RDD, wherever its words are."""
    counts = [(f"word{number:02}", number) for number in range(1, 31)]
    summary = summarize_counts(sc.parallelize([*counts, (END_WORD, 1)], 3))
    assert summary.words == sum(range(31)) + 1
    assert summary.distinct == 31
    assert summary.top == tuple(reversed(counts[-TOP_WORDS:]))
    assert summary.end_words == 1


def test_empty_rdd(sc: SparkContext) -> None:
    """An RDD without partitions has a summary as well."""
    assert summarize_counts(sc.emptyRDD()) == Summary()


def test_one_job(sc: SparkContext) -> None:
    """All facts together cost one Spark job."""
    counts = sc.parallelize([("a", 1), ("b", 2)], 2)
    assert count_jobs(sc, lambda: summarize_counts(counts)) == 1
