"""What the demo shows of a state RDD, computed in one Spark job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from heapq import nsmallest

from pyspark import RDD

from dstreams.cli.demo.text import END_WORD

TOP_WORDS = 10

WordCount = tuple[str, int]


@dataclass(frozen=True)
class Summary:
    """Facts of a set of (word, count) pairs; *top* has the most frequent words.

    ``end_words`` is how often END_WORD has come.
    """

    words: int = 0
    distinct: int = 0
    top: tuple[WordCount, ...] = ()
    end_words: int = 0


def summarize_counts(counts: RDD[WordCount]) -> Summary:
    """Summarize the whole RDD in one job: each partition by itself, then all of them here."""
    return reduce(_united, counts.mapPartitions(summarize_partition).collect(), Summary())


def summarize_partition(counts: Iterable[WordCount]) -> Iterator[Summary]:
    """Yield the summary of the pairs of one partition; runs on a worker."""
    pairs = list(counts)
    yield Summary(
        words=sum(count for _, count in pairs),
        distinct=len(pairs),
        top=_top(pairs),
        end_words=sum(count for word, count in pairs if word == END_WORD),
    )


def _united(one: Summary, other: Summary) -> Summary:
    """Return the summary of two sets that have no word in common."""
    return Summary(
        words=one.words + other.words,
        distinct=one.distinct + other.distinct,
        top=_top(one.top + other.top),
        end_words=one.end_words + other.end_words,
    )


def _top(pairs: Iterable[WordCount]) -> tuple[WordCount, ...]:
    return tuple(nsmallest(TOP_WORDS, pairs, key=lambda pair: (-pair[1], pair[0])))
