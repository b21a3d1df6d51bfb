"""The sink ``kafka`` of queries: each batch as records of topics, exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark import RDD

from dstreams.errors import InvalidStreamError
from dstreams.kafka.kafka_sink import RowsToRecords
from dstreams.kafka.output_commits import DEFAULT_TOPIC
from dstreams.kafka.parameters import ProducerParameters
from dstreams.kafka.transactions import KafkaOutput
from dstreams.sinks.output_batch import OutputBatch
from dstreams.state.group_state import OutputMode
from dstreams.structured.sinks.sink import Sink

_PREFIX = "kafka."
_NAME = "query"
"""Distinguishes the sink of a query from those of streams in the same topic of commits."""

_SERIALIZERS = ("key.serializer", "value.serializer")


class KafkaTopicSink(Sink):
    """Writes rows by their fields key, value, topic, headers and partition, in transactions.

    Args:
        given: the options of the writer; those of Kafka's producers begin with ``kafka.``.
    """

    is_for_trials = False

    def __init__(self, given: Mapping[str, Any]) -> None:
        topic = given.get("topic")
        self._where = f"KafkaSink[{topic or 'topics of rows'}]"
        clients = {
            key.removeprefix(_PREFIX): value
            for key, value in given.items()
            if key.startswith(_PREFIX)
        }
        for name in _SERIALIZERS:
            if name in clients:
                raise InvalidStreamError(
                    f"{self._where} has no option 'kafka.{name}': keys and values must be bytes "
                    "or str, which is written as UTF-8; serialize them by map(f)"
                )
        self._records = RowsToRecords(topic, self._where)
        self._output = KafkaOutput(
            ProducerParameters.of(clients, self._where),
            _NAME,
            exactly_once=given.get("exactlyOnce", True),
            commit_topic=given.get("commitTopic", DEFAULT_TOPIC),
        )
        self.promise = self._output.promise

    @property
    def name(self) -> str:
        return self._where

    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Write a batch; return its number of rows, None if an earlier run has written some.

        Raises:
            OutputConflictError: the topics have the batch from another history of the checkpoint.
            StreamError: the brokers refuse or do not answer.
        """
        written = self._output.write(batch, rows.mapPartitions(self._records))
        return None if written.found else written.records
