"""``pyspark.streaming.kafka`` of Spark 2.4, on the Kafka source of dstreams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pyspark import SparkContext, StorageLevel
from pyspark.rdd import PipelinedRDD

from dstreams.common.callables import require_arity
from dstreams.common.clock import SystemClock
from dstreams.common.settings import Settings
from dstreams.compat.kafka24_messages import (
    AsPairs,
    ByHandler,
    Decoder,
    KafkaMessageAndMetadata,
)
from dstreams.compat.kafka24_parameters import of_direct_stream, of_group
from dstreams.context import StreamingContext
from dstreams.dstream import DStream
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.graph.transformed import TransformedDStream
from dstreams.kafka import kafka_rdd, offsets
from dstreams.kafka.decoders import utf8_decoder
from dstreams.kafka.fetch import MakeRecords, Reading
from dstreams.kafka.offsets import TopicPartition
from dstreams.kafka.parameters import KafkaParameters
from dstreams.kafka.source import KafkaSource
from dstreams.kafka.topics import EARLIEST, LATEST, Selection, Topics

logger = logging.getLogger(__name__)

_STREAM, _DIRECT, _RDD = (
    f"KafkaUtils.{name}" for name in ("createStream", "createDirectStream", "createRDD")
)

Handler = Callable[[KafkaMessageAndMetadata], Any]


class WrongTypeError(InvalidStreamError, TypeError):
    """A parameter is of a type that it cannot be of."""


class OffsetRange:
    """The messages of a partition from one offset to another.

    Args:
        topic: Kafka topic name.
        partition: Kafka partition id.
        fromOffset: inclusive starting offset.
        untilOffset: exclusive ending offset.

    Semantics: pyspark.streaming.kafka.OffsetRange (2.4).
    """

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __init__(self, topic: str, partition: int, fromOffset: int, untilOffset: int) -> None:
        self.topic = topic
        self.partition = partition
        self.fromOffset = fromOffset
        self.untilOffset = untilOffset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRange | offsets.OffsetRange) and vars(self) == vars(other)

    def __str__(self) -> str:
        offsets_of_it = f"[{self.fromOffset} -> {self.untilOffset}]"
        return (
            f"OffsetRange(topic: {self.topic}, partition: {self.partition}, range: {offsets_of_it}"
        )

    def __repr__(self) -> str:
        return f"{self})"


class TopicAndPartition:
    """A partition of a topic.

    Args:
        topic: Kafka topic name.
        partition: Kafka partition id.

    Semantics: pyspark.streaming.kafka.TopicAndPartition (2.4).
    """

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicAndPartition) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return (self._topic, self._partition).__hash__()

    def __repr__(self) -> str:
        return f"TopicAndPartition({self._topic!r}, {self._partition!r})"


class Broker:
    """Host and port of a broker.

    Args:
        host: broker's hostname.
        port: broker's port.

    Semantics: pyspark.streaming.kafka.Broker (2.4).
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port


class KafkaRDD(PipelinedRDD):  # type: ignore[misc]
    """The messages of some ranges.

    Args:
        records: what reads them.

    Semantics: pyspark.streaming.kafka.KafkaRDD (2.4).
    """

    def __init__(self, records: kafka_rdd.KafkaRDD) -> None:
        super().__init__(records, _unchanged)
        self._ranges = records.offsetRanges

    def offsetRanges(self) -> list[OffsetRange]:
        """Return what it reads: those with messages first, as the partitions of the RDD stand."""
        return [
            OffsetRange(one.topic, one.partition, one.fromOffset, one.untilOffset)
            for one in self._ranges
        ]


class KafkaDStream(DStream[Any]):
    """A stream of messages; functions of its ``foreachRDD`` and ``transform`` get a KafkaRDD.

    Semantics: pyspark.streaming.kafka.KafkaDStream (2.4).
    """


class KafkaUtils:
    """Makes streams and RDDs of topics.

    Semantics: pyspark.streaming.kafka.KafkaUtils (2.4).
    """

    @staticmethod
    def createStream(
        ssc: StreamingContext,
        zkQuorum: str,
        groupId: str,
        topics: dict[str, int],
        kafkaParams: dict[str, Any] | None = None,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
        keyDecoder: Decoder = utf8_decoder,
        valueDecoder: Decoder = utf8_decoder,
    ) -> DStream[tuple[Any, Any]]:
        """Create a stream of the messages that a consumer group has not had.

        It begins where the group has committed, else as ``auto.offset.reset`` says (``largest``
        unless given), and commits as batches are committed, unless ``auto.commit.enable`` is
        false. After a restart from a checkpoint the checkpoint says where it goes on. Of the
        streams of one program that have a group and a topic in common the first one reads all.

        Args:
            ssc: the streaming context.
            zkQuorum: has no effect: the brokers have the offsets of groups.
            groupId: the group id for this consumer.
            topics: dict of (topic_name -> numPartitions) to consume. The numbers, of threads, have
                no effect.
            kafkaParams: parameters of Kafka, also by the names of 0.8. Where they have neither
                ``metadata.broker.list`` nor ``bootstrap.servers``, the brokers are those of
                ``spark.dstreams.kafka.bootstrapServers``.
            storageLevel: has no effect: nothing is received before its batch.
            keyDecoder: ``f(bytes or None) -> key``.
            valueDecoder: ``f(bytes or None) -> value``.

        Returns:
            Pairs of key and value.

        Raises:
            WrongTypeError: *topics* is no dict. It is a TypeError.
            InvalidStreamError: the brokers are missing, or a parameter cannot be.
        """
        _require_context(ssc, _STREAM)
        if not isinstance(topics, dict):
            raise WrongTypeError(f"topics should be dict, got {type(topics).__name__}")
        _require_dict(kafkaParams or {})
        if not isinstance(groupId, str) or not groupId:
            raise InvalidStreamError(f"groupId of {_STREAM} must be a text, got {groupId!r}")
        make = _records(_STREAM, keyDecoder, valueDecoder)
        names = _names(topics, _STREAM)
        brokers = ssc._settings.kafka_brokers
        parameters = of_group(kafkaParams or {}, _STREAM, zkQuorum, groupId, brokers)
        read = _read_by_group(ssc, parameters)
        left = tuple(name for name in names if name not in read)
        if left != names:
            logger.warning(
                "%s: another stream of this program reads all of %s for the group %r; its tasks "
                "share the partitions, so this one has nothing of them to read",
                _STREAM,
                ", ".join(sorted(read.intersection(names))),
                groupId,
            )
        if not left:
            return ssc.queueStream([], replayable=True)
        return ssc._input(KafkaSource(parameters, Selection(left), {}, make), _STREAM)

    @staticmethod
    def createDirectStream(
        ssc: StreamingContext,
        topics: list[str],
        kafkaParams: dict[str, Any],
        fromOffsets: dict[TopicAndPartition, int] | None = None,
        keyDecoder: Decoder = utf8_decoder,
        valueDecoder: Decoder = utf8_decoder,
        messageHandler: Handler | None = None,
    ) -> KafkaDStream:
        """Create a stream of the messages of topics, by offsets that are its own.

        What each batch reads is decided before it runs and stands in its begin record: a batch that
        runs again has the same messages, and a restart goes on behind the last one. Without
        *fromOffsets* a first run begins as ``auto.offset.reset`` says, with what comes from now on
        (``largest``) unless that is given; what a group has committed has no say.

        Args:
            ssc: the streaming context.
            topics: list of topic_name to consume.
            kafkaParams: parameters of Kafka, also by the names of 0.8; ``metadata.broker.list`` or
                ``bootstrap.servers`` is needed.
            fromOffsets: where partitions begin (inclusive), by :class:`TopicAndPartition`. These
                partitions are read and no others.
            keyDecoder: ``f(bytes or None) -> key``.
            valueDecoder: ``f(bytes or None) -> value``.
            messageHandler: ``f(KafkaMessageAndMetadata) -> record``. None: pairs of key and value.

        Raises:
            WrongTypeError: a parameter is of another type. It is a TypeError.
            InvalidStreamError: the brokers are missing, the topics are not those of the offsets, or
                a parameter cannot be.
        """
        _require_context(ssc, _DIRECT)
        if not isinstance(topics, list):
            raise WrongTypeError(f"topics should be list, got {type(topics).__name__}")
        _require_dict(kafkaParams)
        names = _names(topics, _DIRECT)
        begin = _begin(fromOffsets or {}, names)
        source = KafkaSource(
            of_direct_stream(kafkaParams, _DIRECT),
            Selection(assigned=tuple(sorted(begin))) if begin else Selection(names),
            begin,
            _records(_DIRECT, keyDecoder, valueDecoder, messageHandler),
        )
        read = ssc._input(source, _DIRECT)
        node = TransformedDStream((read._node,), _as_kafka_rdd, read._node.operation)
        return KafkaDStream(node, ssc)

    @staticmethod
    def createRDD(
        sc: SparkContext,
        kafkaParams: dict[str, Any],
        offsetRanges: list[OffsetRange],
        leaders: dict[TopicAndPartition, Broker] | None = None,
        keyDecoder: Decoder = utf8_decoder,
        valueDecoder: Decoder = utf8_decoder,
        messageHandler: Handler | None = None,
    ) -> KafkaRDD:
        """Return the messages of some ranges.

        Args:
            sc: the SparkContext.
            kafkaParams: as in :meth:`createDirectStream`.
            offsetRanges: list of offsetRange to specify topic:partition:[start, end) to consume.
            leaders: has no effect: consumers ask the brokers.
            keyDecoder: as in :meth:`createDirectStream`.
            valueDecoder: as in :meth:`createDirectStream`.
            messageHandler: as in :meth:`createDirectStream`.

        Raises:
            WrongTypeError: a parameter is of another type. It is a TypeError.
            InvalidStreamError: the brokers are missing, or a parameter cannot be.
            SourceError: the brokers do not have all of the offsets, or do not answer.
        """
        _require_dict(kafkaParams)
        if not isinstance(offsetRanges, list):
            raise WrongTypeError(f"offsetRanges should be list, got {type(offsetRanges).__name__}")
        make = _records(_RDD, keyDecoder, valueDecoder, messageHandler)
        parameters = of_direct_stream(kafkaParams, _RDD)
        ranges = [
            offsets.OffsetRange(one.topic, one.partition, one.fromOffset, one.untilOffset)
            for one in offsetRanges
        ]
        _require_there(parameters, ranges)
        settings = Settings.from_conf(dict(sc.getConf().getAll()))
        reading = Reading(parameters.for_tasks(), make, settings.kafka_poll_ms / 1000)
        return KafkaRDD(kafka_rdd.KafkaRDD(sc, ranges, reading))


def _unchanged(_: int, records: Iterable[Any]) -> Iterable[Any]:
    return records


def _as_kafka_rdd(_: int, rdds: tuple[Any, ...]) -> Any:
    """Let functions of the stream see the ranges that a batch reads, as 2.4 has them."""
    (rdd,) = rdds
    return KafkaRDD(rdd) if isinstance(rdd, kafka_rdd.KafkaRDD) else rdd


def _require_context(ssc: object, operation: str) -> None:
    if not isinstance(ssc, StreamingContext):
        raise WrongTypeError(
            f"ssc of {operation} should be a StreamingContext, got {type(ssc).__name__}"
        )


def _require_dict(parameters: object) -> None:
    if not isinstance(parameters, dict):
        raise WrongTypeError(f"kafkaParams should be dict, got {type(parameters).__name__}")


def _names(topics: Iterable[str], operation: str) -> tuple[str, ...]:
    names = tuple(sorted({*topics}, key=str))
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidStreamError(f"topics of {operation} are names of topics, got {list(names)!r}")
    return names


def _records(
    operation: str, decode_key: Decoder, decode_value: Decoder, handle: Handler | None = None
) -> MakeRecords:
    """Return what makes records of messages; what cannot work is refused here."""
    require_arity(decode_key, (1,), operation, "keyDecoder(bytes or None) -> key")
    require_arity(decode_value, (1,), operation, "valueDecoder(bytes or None) -> value")
    if handle is None:
        return AsPairs(decode_key, decode_value)
    require_arity(handle, (1,), operation, "messageHandler(KafkaMessageAndMetadata) -> record")
    return ByHandler(decode_key, decode_value, handle)


def _begin(
    given: Mapping[TopicAndPartition, int], names: Sequence[str]
) -> dict[TopicPartition, int]:
    begin = {}
    for one, offset in given.items():
        if not isinstance(one, TopicAndPartition):
            raise WrongTypeError(
                f"fromOffsets of {_DIRECT} has offsets by TopicAndPartition, got {one!r}"
            )
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise InvalidStreamError(
                f"fromOffsets of {_DIRECT}: the offset of {one!r} is {offset!r}; give a whole "
                "number of at least 0"
            )
        begin[TopicPartition(one._topic, one._partition)] = offset
    of_offsets = sorted({one.topic for one in begin})
    if begin and of_offsets != list(names):
        raise InvalidStreamError(
            f"The specified topics: {' '.join(names)} do not equal to the topic from offsets: "
            f"{' '.join(of_offsets)}"
        )
    return begin


def _read_by_group(ssc: StreamingContext, parameters: KafkaParameters) -> set[str]:
    """Return the topics that streams of this program read for a group already."""
    sources = [stream.source for stream in ssc._graph.inputs]
    return {
        topic
        for source in sources
        if isinstance(source, KafkaSource)
        and source.parameters.where == _STREAM
        and source.parameters.group == parameters.group
        for topic in source.selection.topics
    }


def _require_there(parameters: KafkaParameters, ranges: Sequence[offsets.OffsetRange]) -> None:
    """Refuse ranges that the brokers do not have, as Spark does, before a task waits for them."""
    partitions = tuple(sorted({one.topicPartition() for one in ranges}))
    topics = Topics(parameters, Selection(assigned=partitions), SystemClock(), _RDD, _ignore)
    try:
        low = topics.offsets(dict.fromkeys(partitions, EARLIEST))
        high = topics.offsets(dict.fromkeys(partitions, LATEST))
    finally:
        topics.close()
    missing = [
        f"{one.topicPartition()} from {one.fromOffset} until {one.untilOffset}, where it has "
        f"{low[one.topicPartition()]} to {high[one.topicPartition()]}"
        for one in ranges
        if one.fromOffset < low[one.topicPartition()]
        or one.untilOffset > high[one.topicPartition()]
    ]
    if missing:
        raise SourceError(
            f"{_RDD}: Offsets not available on leader: {'; '.join(missing)}; give ranges that the "
            "topics have"
        )


def _ignore(*_: object) -> None:
    """Nothing is committed."""
