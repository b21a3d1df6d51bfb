"""KafkaSink, and the conversion of records and rows to producer records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from dstreams.common.callables import require_function
from dstreams.errors import InvalidStreamError
from dstreams.kafka.output_commits import DEFAULT_TOPIC
from dstreams.kafka.parameters import ProducerParameters
from dstreams.kafka.producers import ProducerRecord
from dstreams.kafka.transactions import KafkaOutput
from dstreams.sinks.output_batch import BatchSink, OutputBatch
from dstreams.spark.rejected_records import RejectedRecord

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SEVERAL = "kafka"


class KafkaSink(BatchSink):
    """Writes each batch into topics of Kafka exactly once; pass it to ``foreachRDD``.

    Each partition of a batch is one transaction, with its records and a commit that names the
    batch. After a crash, committed partitions are skipped and the others are written again; readers
    with ``isolation.level=read_committed`` do not see aborted ones, and may see some partitions of
    a batch before others. If two writers write one partition, the older one is fenced and fails. If
    an older copy of the checkpoint is restored, later commits in the topics are an
    ``OutputConflictError`` (:mod:`dstreams.sinks.output_batch`).

    The commits are in a compacted topic of their own, which is created if missing, with the
    brokers' default replication. They belong to the stream: a stream that starts without its
    earlier checkpoint writes its batches again. A batch must have the same partitions when it runs
    again, as after any transformation but ``repartition``. Required permissions: write and describe
    the topics; read and write the topic of commits; transactional ids that begin with
    ``dstreams-``.

    With ``exactlyOnce=False`` a batch or task that runs again writes its records again. Each worker
    has one producer then, without transactions.

    >>> from dstreams.kafka import KafkaSink
    >>> brokers = {"bootstrap.servers": "localhost:9092", "compression.type": "zstd"}
    >>> counts.foreachRDD(KafkaSink("counts", brokers, value=json.dumps))
    >>> def topic_of(event):
    ...     return f"events-{event['kind']}"
    >>> events.foreachRDD(KafkaSink(topic_of, brokers, value=json.dumps, name="by-kind"))

    Args:
        topic: its name, or ``f(record) -> name``.
        kafkaParams: parameters of Kafka's producers, by Java's names; ``bootstrap.servers`` is
            required. ``acks=all`` and ``enable.idempotence=true`` are fixed.
            ``delivery.timeout.ms`` (two minutes) is how long a task waits for brokers,
            ``transaction.timeout.ms`` (five minutes) how long a transaction may take. The default
            ``partitioner`` is Java's, ``murmur2_random``, not librdkafka's. Secrets are not kept in
            checkpoints: give them as ``${env:NAME}``.
        key: ``f(record)`` returns the key: bytes, str (sent as UTF-8) or None. None: no keys.
        value: likewise for the value, where None is a tombstone. None: the record itself; if *key*
            is None too, records are pairs ``(key, value)``.
        headers: ``f(record)`` returns pairs of name and bytes, str or None. None: no headers.
        partition: ``f(record)`` returns the number of a partition, or None for the partitioner's
            choice. None: always the partitioner's choice.
        name: unique name among the sinks of a stream, by which a restart finds its commits. None:
            the name of the topic, or ``kafka`` if that is a function.
        exactlyOnce: whether to skip what an earlier run of a batch has written.
        commitTopic: name of the topic of commits, which streams may share.

    Raises:
        InvalidStreamError: an argument or parameter is invalid, or cannot be sent to the workers.
    """

    def __init__(
        self,
        topic: str | Callable[[Any], str],
        kafkaParams: Mapping[str, Any],
        *,
        key: Callable[[Any], bytes | str | None] | None = None,
        value: Callable[[Any], bytes | str | None] | None = None,
        headers: Callable[[Any], Any] | None = None,
        partition: Callable[[Any], int | None] | None = None,
        name: str | None = None,
        exactlyOnce: bool = True,
        commitTopic: str = DEFAULT_TOPIC,
    ) -> None:
        if isinstance(topic, str):
            _require_name(topic, "topic")
            where = f"KafkaSink({topic})"
        else:
            require_function(topic, "topic of KafkaSink", "f(record) -> name")
            where = f"KafkaSink({name or _SEVERAL})"
        _require_name(commitTopic, "commitTopic")
        parts = {"key": key, "value": value, "headers": headers, "partition": partition}
        for part, function in parts.items():
            if function is not None:
                require_function(function, f"{part} of {where}", f"f(record) -> {part}")
        if name is None:
            name = topic if isinstance(topic, str) else _SEVERAL
        _require_name(name, "name")
        if not isinstance(exactlyOnce, bool):
            raise InvalidStreamError(
                f"exactlyOnce of {where} is {exactlyOnce!r}; give True or False"
            )
        self.identity = f"name {name!r}" if exactlyOnce else None
        self._records = ToProducerRecords(topic, key, value, headers, partition, where)
        self._output = KafkaOutput(
            ProducerParameters.of(kafkaParams, where),
            name,
            exactly_once=exactlyOnce,
            commit_topic=commitTopic,
        )
        self.promise = self._output.promise

    def write_batch(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        """Write the partitions of a batch that are not written yet.

        Raises:
            OutputConflictError: the topics have the batch, or a later one, from another history of
                the checkpoint.
            StreamError: the batch was written with another number of partitions, or the brokers
                refuse or do not answer.
        """
        self._output.write(batch, rdd.mapPartitions(self._records))


def _require_name(given: object, what: str) -> None:
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        raise InvalidStreamError(
            f"{what} of KafkaSink is {given!r}; use 1 to 200 of A-Z a-z 0-9 . _ -"
        )


Part = Callable[[Any], Any]
"""Makes a part of a Kafka record from a record of the stream."""


@dataclass(frozen=True)
class ToProducerRecords:
    """Converts the records of a stream, by the arguments of :class:`KafkaSink`."""

    topic: str | Part
    key: Part | None
    value: Part | None
    headers: Part | None
    partition: Part | None
    where: str

    def __call__(self, records: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        for record in records:
            if self.key is None and self.value is None:
                key, value = self._pair(record)
            else:
                key = None if self.key is None else self.key(record)
                value = record if self.value is None else self.value(record)
            yield (
                self.topic if isinstance(self.topic, str) else self.topic(record),
                None if self.partition is None else self.partition(record),
                key,
                value,
                None if self.headers is None else self.headers(record),
            )

    def _pair(self, record: Any) -> tuple[Any, Any]:
        if not isinstance(record, tuple) or len(record) != 2:
            raise InvalidStreamError(
                f"{self.where}: without key= and value= records must be pairs (key, value), got "
                f"{type(record).__name__}; give value= a function, such as str.encode"
            )
        return record


@dataclass(frozen=True)
class RowsToRecords:
    """Converts the rows of a query, by the names of their fields.

    A row has the field value, and may have key, topic, headers and partition; other fields are
    ignored. A str or bytes is a value, a pair without field names is a key and a value. The value
    of a rejected record is JSON.

    Semantics: the sink ``kafka`` of Spark 4.3 (KafkaWriteTask).

    Args:
        topic: topic of all rows; None for the topic of each row.
        where: the output, for messages.
    """

    topic: str | None
    where: str

    def __call__(self, rows: Iterable[Any]) -> Iterator[ProducerRecord]:
        for row in rows:
            parts = self._parts(row)
            topic = self.topic or parts.get("topic")
            if not isinstance(topic, str) or not topic:
                raise InvalidStreamError(
                    f"{self.where}: a row has the topic {topic!r}; set its field topic to the name "
                    "of a topic, or give the option topic for all rows"
                )
            headers = parts.get("headers")
            yield ProducerRecord(
                topic,
                parts.get("partition"),
                parts.get("key"),
                parts["value"],
                None if headers is None else [tuple(header) for header in headers],
            )

    def _parts(self, row: Any) -> Mapping[str, Any]:
        if isinstance(row, (str, bytes)):
            return {"value": row}
        if isinstance(row, RejectedRecord):
            return {"value": row.to_json()}
        found: Mapping[str, Any] = {}
        if isinstance(row, Mapping):
            found = row
        elif isinstance(row, tuple):
            names = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
            if names is None and len(row) == 2:
                names = ("key", "value")
            found = dict(zip(names or (), row, strict=False))
        if "value" not in found:
            has = f"the fields {', '.join(map(str, found))}" if found else type(row).__name__
            raise InvalidStreamError(
                f"{self.where}: a row has no field value, but {has}; map(f) rows to dicts or named "
                "tuples with value and, if needed, key, topic, headers and partition, or to pairs "
                "(key, value)"
            )
        return found
