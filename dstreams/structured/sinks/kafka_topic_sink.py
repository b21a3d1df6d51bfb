"""The sink ``kafka`` of queries, which writes each batch to topics exactly once."""

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
_SERIALIZERS = ("key.serializer", "value.serializer")


class KafkaTopicSink(Sink):
    """Writes the fields key, value, topic, headers and partition of rows, in transactions.

    *output* distinguishes the sink from those of streams, and of the same query, in a topic of
    commits.
    """

    is_for_trials = False

    def __init__(self, given: Mapping[str, Any], output: str = "query") -> None:
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
                    "or str, which is written as UTF-8; serialize them with map(f)"
                )
        self._records = RowsToRecords(topic, self._where)
        self._output = KafkaOutput(
            ProducerParameters.of(clients, self._where),
            output,
            exactly_once=given.get("exactlyOnce", True),
            commit_topic=given.get("commitTopic", DEFAULT_TOPIC),
        )
        self.promise = self._output.promise

    @property
    def name(self) -> str:
        return self._where

    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Write a batch; return its number of rows, None if an earlier run has written some."""
        written = self._output.write(batch, rows.mapPartitions(self._records))
        return None if written.found else written.records
