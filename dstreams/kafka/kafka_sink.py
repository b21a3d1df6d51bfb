"""KafkaSink: batches of a stream in topics, each record once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pyspark import RDD

from dstreams.common.callables import require_function
from dstreams.errors import InvalidStreamError
from dstreams.kafka.output_commits import DEFAULT_TOPIC
from dstreams.kafka.output_records import ToProducerRecords
from dstreams.kafka.producer_parameters import ProducerParameters
from dstreams.kafka.sink import KafkaOutput
from dstreams.sinks.output_batch import BatchSink, OutputBatch

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SEVERAL = "kafka"


class KafkaSink(BatchSink):
    """Writes each batch into topics of Kafka exactly once, to be handed to ``foreachRDD``.

    Each partition of a batch is one transaction, with its records and with a commit that names the
    batch. A partition that is there, because it was written before a crash, is left out; one that
    was cut off is not seen by who reads with ``isolation.level=read_committed``, and is written
    anew. Readers may see some partitions of a batch before the others. Of two writers of one
    partition, such as an older driver that wakes up, one is fenced and fails. Where an older copy
    of the checkpoint is put back, what the topics have since is an ``OutputConflictError``
    (:mod:`dstreams.sinks.output_batch`).

    The commits are in a compacted topic of their own, which is made when it is missing, with as
    many replicas as the brokers make by default. They belong to the stream: one that begins anew,
    without the checkpoint of the earlier one, writes its batches again. A batch has to have the
    same partitions when it runs again, as it has after any transformation but ``repartition``.
    Where users of Kafka have permissions, this one needs to write and describe the topics, to write
    and read the topic of commits, and to write with transactional ids that begin with
    ``dstreams-``.

    With ``exactlyOnce=False`` a batch, or a task, that runs again writes its records again. Each
    worker has one producer then, and a task needs no transaction.

    >>> from dstreams.kafka import KafkaSink
    >>> brokers = {"bootstrap.servers": "localhost:9092", "compression.type": "zstd"}
    >>> counts.foreachRDD(KafkaSink("counts", brokers, value=json.dumps))
    >>> def topic_of(event):
    ...     return f"events-{event['kind']}"
    >>> events.foreachRDD(KafkaSink(topic_of, brokers, value=json.dumps, name="by-kind"))

    Args:
        topic: its name, or ``f(record) -> name``.
        kafkaParams: parameters of Kafka's producers; ``bootstrap.servers`` is needed. They have
            Java's names; ``acks=all`` and ``enable.idempotence=true`` are what they have to be.
            ``delivery.timeout.ms`` (two minutes) is how long a task waits for brokers that are
            away, ``transaction.timeout.ms`` (five minutes) how long one transaction may take. The
            ``partitioner`` is ``murmur2_random``, which is that of Java: a key goes to the
            partition where Java's producers put it, as it would not by librdkafka's own default
            (``consistent_random``). Secrets are not kept in a checkpoint: give them as
            ``${env:NAME}``.
        key: ``f(record)`` gives the key: bytes, str (sent as UTF-8) or None. None: there is none.
        value: likewise for the value, where None is a tombstone. None: the record itself; and
            without *key*, too, records are pairs ``(key, value)``.
        headers: ``f(record)`` gives pairs of name and bytes, str or None. None: there are none.
        partition: ``f(record)`` gives the number of a partition, or None for that of the
            partitioner. None: that of the partitioner.
        name: tells apart the sinks of one stream; two of one name are refused. It stays the same as
            long as batches are to be known again. None: the name of the topic, or ``kafka`` where
            that is a function.
        exactlyOnce: whether a batch that runs again is known.
        commitTopic: name of the topic of commits, which many streams may share.

    Raises:
        InvalidStreamError: an argument is of the wrong kind, or cannot be sent to the workers; or a
            parameter cannot be.
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
        """Write one batch, or what is missing of it.

        Raises:
            OutputConflictError: the topics have the batch, or one that this stream has not begun,
                from another history of the checkpoint.
            StreamError: what is there of the batch has another number of partitions, or the brokers
                refuse, or do not answer.
        """
        self._output.write(batch, rdd.mapPartitions(self._records))


def _require_name(given: object, what: str) -> None:
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        raise InvalidStreamError(
            f"{what} of KafkaSink is {given!r}; use 1 to 200 of A-Z a-z 0-9 . _ -"
        )
