"""The topic of the commits of outputs: made where it is missing, and fit for its purpose."""

from __future__ import annotations

from typing import Any

from dstreams.errors import InvalidStreamError, StreamError
from dstreams.kafka import client
from dstreams.kafka.output_commits import PARTITIONS
from dstreams.kafka.parameters import BROKERS
from dstreams.kafka.producer_parameters import ProducerParameters

_POLICY = "cleanup.policy"
_COMPACT = "compact"


def require_topic(parameters: ProducerParameters, topic: str) -> None:
    """Make the topic of commits where it is missing, and refuse one that cannot hold them.

    Raises:
        StreamError: it cannot be made or used, or the brokers do not answer, or refuse to.
    """
    with_brokers = _Brokers(parameters, topic)
    partitions = with_brokers.partitions()
    if partitions is None:
        with_brokers.make()
        return
    policy = with_brokers.policy()
    if partitions < PARTITIONS or policy != _COMPACT:
        raise StreamError(
            f"{parameters.where}: the topic {topic} of commits has {partitions} partitions and "
            f"{_POLICY}={policy}; it needs {PARTITIONS} partitions or more, and "
            f"{_POLICY}={_COMPACT}, or what is known of batches is lost: change it, or give "
            "another commitTopic"
        )


class _Brokers:
    """Asks the brokers about the topic."""

    def __init__(self, parameters: ProducerParameters, topic: str) -> None:
        self._where, self._brokers = parameters.where, parameters.given[BROKERS]
        self._topic = topic
        self._answer_s = parameters.delivery_ms / 1000
        self._errors = client.ClientErrors()
        config = {"log_level": 0, **parameters.for_admin(), "error_cb": self._errors}
        self._library = client.confluent_kafka()
        try:
            self._admin = client.make("AdminClient", config, self._where)
        except StreamError as error:
            raise InvalidStreamError(str(error)) from None

    def partitions(self) -> int | None:
        """Return how many the topic has; None where there is no such topic."""
        wanted = self._library.TopicCollection([self._topic])
        try:
            return len(self._ask("describe_topics", wanted).partitions)
        except self._library.KafkaException as error:
            if client.is_unknown_topic(error):
                return None
            raise self._failed(error) from None

    def make(self) -> None:
        """Make the topic; who else makes it at the same time makes the same one."""
        topic = self._library.admin.NewTopic(self._topic, PARTITIONS, config={_POLICY: _COMPACT})
        try:
            self._ask("create_topics", [topic])
        except self._library.KafkaException as error:
            if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return
            if client.may_heal(error):
                raise self._failed(error) from None
            raise StreamError(
                f"{self._where}: the topic {self._topic} of commits is not there and cannot be "
                f"made: {client.reason(error)}; create it, with {_POLICY}={_COMPACT} and "
                f"{PARTITIONS} partitions"
            ) from None

    def policy(self) -> str:
        """Return what is done with old records; whoever may not ask has to know."""
        kinds = self._library.admin.ResourceType
        resource = self._library.admin.ConfigResource(kinds.TOPIC, self._topic)
        try:
            return str(self._ask("describe_configs", [resource])[_POLICY].value)
        except self._library.KafkaException as error:
            if client.may_heal(error):
                raise self._failed(error) from None
            return _COMPACT

    def _ask(self, question: str, about: Any) -> Any:
        answers = getattr(self._admin, question)(about, request_timeout=self._answer_s)
        (answer,) = answers.values()
        return answer.result()

    def _failed(self, error: Exception) -> StreamError:
        self._admin.poll(0)  # calls back with the errors of its connections
        lasting, last = self._errors.lasting, self._errors.last
        if lasting is not None:
            return StreamError(client.refused(self._where, self._brokers, lasting))
        why = client.reason(error) if last is None else f"{last.str()} ({last.name()})"
        return StreamError(
            f"{self._where}: no broker of {self._brokers} has said within {self._answer_s:g} s "
            f"whether there is a topic {self._topic}: {why}; look at them, or give them longer by "
            "delivery.timeout.ms"
        )
