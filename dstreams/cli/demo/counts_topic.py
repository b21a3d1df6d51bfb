"""A topic of Kafka that gets the counts of each batch, each of them once."""

from __future__ import annotations

from collections import Counter

from checkpoint import new_attempt
from dstreams import DStream
from dstreams.cli.demo.brokers import DemoBrokers
from dstreams.cli.demo.summary import WordCount


class CountsTopic:
    """Has, for each batch, how often each of its words came, in transactions of ``saveToKafka``.

    A word that was lost, or written twice, would be another sum. The topic is made here, and
    deleted at the end with the one of the commits.

    Raises:
        EnvironmentNotReadyError: the brokers do not answer, or refuse to make a topic.

    >>> with CountsTopic(brokers) as written:
    ...     written.take(counts)
    ...     ssc.step()
    ...     written.sums()
    """

    def __init__(self, brokers: DemoBrokers) -> None:
        self._brokers = brokers
        self.name = f"dstreams-demo-{new_attempt()}-counts"
        self._commits = f"{self.name}-commits"
        brokers.make_topic(self.name)

    def take(self, counts: DStream[WordCount]) -> None:
        """Write the pairs of each batch."""
        counts.saveToKafka(
            self.name, self._brokers.given, key=_word, value=_count, commitTopic=self._commits
        )

    def sums(self) -> Counter[str]:
        """Return what the topic has of each word, read with ``isolation.level=read_committed``.

        Raises:
            StreamError: the brokers do not answer.
        """
        sums: Counter[str] = Counter()
        for record in self._brokers.records(self.name):
            sums[record.key().decode()] += int(record.value())
        return sums

    def close(self) -> None:
        """Delete the topics."""
        self._brokers.delete_topics(self.name, self._commits)

    def __enter__(self) -> CountsTopic:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _word(pair: WordCount) -> str:
    return pair[0]


def _count(pair: WordCount) -> str:
    return str(pair[1])
