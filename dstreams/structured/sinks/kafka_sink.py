"""Each batch as records of topics of Kafka, exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark import RDD

from dstreams.errors import InvalidStreamError
from dstreams.kafka.output_commits import DEFAULT_TOPIC
from dstreams.kafka.producer_parameters import ProducerParameters
from dstreams.kafka.sink import KafkaOutput
from dstreams.kafka.written_rows import RowsToRecords
from dstreams.sinks.output_batch import OutputBatch
from dstreams.state.group_state import OutputMode
from dstreams.structured.sinks.sink import Sink

_PREFIX = "kafka."
_NAME = "query"
"""Tells the sink of a query, which has one, from those of streams that share a topic of commits."""

_SERIALIZERS = ("key.serializer", "value.serializer")


class KafkaTopicSink(Sink):
    """Writes rows by their fields key, value, topic, headers and partition.

    The records of a batch and what says that it is there are written in transactions, one for each
    partition of its rows (:mod:`dstreams.kafka.sink`).

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
                    f"{self._where} has no option 'kafka.{name}': keys and values are bytes or "
                    "str, which is written as UTF-8; make them by map(f)"
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
        """Write a batch, or what is missing of it; return how many rows, None if some were there.

        Raises:
            OutputConflictError: the topics have the batch from another history of the checkpoint.
            StreamError: the brokers refuse, or do not answer.
        """
        written = self._output.write(batch, rows.mapPartitions(self._records))
        return None if written.found else written.records
