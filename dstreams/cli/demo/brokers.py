"""Brokers of Kafka that the demo goes through, and the topics that it makes there."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from dstreams.cli.demo.mock_cluster import PARTITIONS
from dstreams.errors import EnvironmentNotReadyError, StreamError
from dstreams.kafka import client
from dstreams.kafka.parameters import BROKERS, ProducerParameters

logger = logging.getLogger(__name__)

_ANSWER_S = 10.0
_LOOK_S = 0.1
_QUIET = {"log_level": 0}
_MOST_RECORDS = 10_000


class DemoBrokers:
    """Brokers, with the parameters of their clients.

    Args:
        given: parameters by the names of Java's clients; ``bootstrap.servers`` is needed.
        is_mock: whether they are a cluster inside of this process, which makes topics by itself,
            keeps few records, and has other transactions than Kafka.

    Raises:
        InvalidStreamError: a parameter cannot be.
    """

    def __init__(self, given: Mapping[str, Any], *, is_mock: bool = False) -> None:
        self.given = given
        self.is_mock = is_mock
        self._where = "dstreams demo"
        self._parameters = ProducerParameters.of(given, self._where)
        self._addresses = str(self._parameters.given[BROKERS])

    @property
    def place(self) -> str:
        """Where they are, for people."""
        return "Kafka in this process" if self.is_mock else self._addresses

    def producer(self) -> Any:
        """Return a producer without transactions, whose records keep their order."""
        return client.make("Producer", {**self._parameters.for_producers(), **_QUIET}, self._where)

    def records(self, topic: str) -> Iterator[Any]:
        """Yield the records of a topic, as who reads with ``isolation.level=read_committed``.

        Raises:
            StreamError: the brokers do not answer.
        """
        library = client.confluent_kafka()
        config = {**self._parameters.for_commits(), **_QUIET}
        consumer = client.make("Consumer", config, self._where)
        try:
            partitions = range(PARTITIONS)
            beginning = library.OFFSET_BEGINNING
            consumer.assign([library.TopicPartition(topic, one, beginning) for one in partitions])
            ended: set[int] = set()
            while len(ended) < PARTITIONS:
                messages = consumer.consume(_MOST_RECORDS, _ANSWER_S)
                if not messages:
                    raise StreamError(f"{topic} of {self.place} could not be read: no answer")
                for message in messages:
                    error = message.error()
                    if error is None:
                        yield message
                    elif error.name() == "_PARTITION_EOF":
                        ended.add(message.partition())
        finally:
            consumer.close()

    def make_topic(self, name: str) -> None:
        """Make a topic, where topics are not made by themselves.

        Raises:
            EnvironmentNotReadyError: the brokers do not answer, or refuse.
        """
        if self.is_mock:
            return
        library = client.confluent_kafka()
        errors = client.ClientErrors()
        admin = self._admin({"error_cb": errors})
        topic = library.admin.NewTopic(name, PARTITIONS, -1)
        try:
            answer = admin.create_topics([topic], request_timeout=_ANSWER_S)[name]
            while not answer.done() and errors.refusal is None:
                admin.poll(_LOOK_S)  # calls back with the errors of its connections
            if not answer.done():
                raise EnvironmentNotReadyError(
                    client.refused(self._where, self._addresses, errors.refusal)
                )
            answer.result()
        except library.KafkaException as error:
            admin.poll(0)
            if errors.lasting is not None:
                raise EnvironmentNotReadyError(
                    client.refused(self._where, self._addresses, errors.lasting)
                ) from error
            found = "do not answer" if client.may_heal(error) else f"have not made the topic {name}"
            raise EnvironmentNotReadyError(
                f"the brokers {self._addresses} {found}: {client.reason(error)}; give host and "
                "port of a broker that is up and lets this client make topics, or none for a "
                "cluster inside of the demo"
            ) from error

    def delete_topics(self, *names: str) -> None:
        """Delete what the demo has made; what stays is in the log."""
        if self.is_mock:
            return
        library = client.confluent_kafka()
        admin = self._admin({})  # which ends what it is asked where it is forgotten
        for name, answer in admin.delete_topics(list(names), request_timeout=_ANSWER_S).items():
            try:
                answer.result()
            except library.KafkaException as error:
                logger.warning(
                    "the topic %s of %s was not deleted: %s", name, self.place, client.reason(error)
                )

    def _admin(self, more: Mapping[str, Any]) -> Any:
        config = {**self._parameters.for_admin(), **_QUIET, **more}
        return client.make("AdminClient", config, self._where)
