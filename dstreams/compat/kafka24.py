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
from dstreams.context import StreamingContext
from dstreams.dstream import DStream
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.graph.transformed import TransformedDStream
from dstreams.kafka.decoders import utf8_decoder
from dstreams.kafka.decoding import MakeRecords
from dstreams.kafka.fetch import FetchConfig, KafkaRDD
from dstreams.kafka.kafka_source import KafkaSource
from dstreams.kafka.offsets import OffsetRange, TopicPartition, is_offset
from dstreams.kafka.parameters import BROKERS, COMMIT, GROUP, RESET, KafkaParameters
from dstreams.kafka.topics import EARLIEST, LATEST, Topics, TopicSelection

logger = logging.getLogger(__name__)

_BROKERS_OF_0_8 = "metadata.broker.list"
_COMMIT_OF_0_8 = "auto.commit.enable"

_OF_ZOOKEEPER = "zookeeper."
_WITHOUT_EFFECT = frozenset(
    [
        "auto.commit.interval.ms",
        "consumer.id",
        "consumer.timeout.ms",
        "dual.commit.enabled",
        "exclude.internal.topics",
        "num.consumer.fetchers",
        "offsets.channel.backoff.ms",
        "offsets.channel.socket.timeout.ms",
        "offsets.commit.max.retries",
        "offsets.storage",
        "queued.max.message.chunks",
        "rebalance.backoff.ms",
        "rebalance.max.retries",
        "refresh.leader.backoff.ms",
    ]
)
"""Parameters of 0.8 for ZooKeeper, threads of consumers, and commits."""

_STREAM, _DIRECT, _RDD = (
    f"KafkaUtils.{name}" for name in ("createStream", "createDirectStream", "createRDD")
)

Handler = Callable[[KafkaMessageAndMetadata], Any]


class WrongTypeError(InvalidStreamError, TypeError):
    """A parameter is of the wrong type."""


class OffsetRange24:
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
        return isinstance(other, OffsetRange24 | OffsetRange) and vars(self) == vars(other)

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


class KafkaRDD24(PipelinedRDD):  # type: ignore[misc]
    """The messages of some ranges.

    Semantics: pyspark.streaming.kafka.KafkaRDD (2.4).
    """

    def __init__(self, records: KafkaRDD) -> None:
        super().__init__(records, _unchanged)
        self._ranges = records.offsetRanges

    def offsetRanges(self) -> list[OffsetRange24]:
        """Return the ranges, in the order of the partitions of the RDD; empty ranges are last."""
        return [
            OffsetRange24(one.topic, one.partition, one.fromOffset, one.untilOffset)
            for one in self._ranges
        ]


class KafkaDStream24(DStream[Any]):
    """A stream of messages; functions of its ``foreachRDD`` and ``transform`` get a KafkaRDD24.

    Semantics: pyspark.streaming.kafka.KafkaDStream (2.4).
    """


class KafkaUtils24:
    """Streams and RDDs of topics.

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
        """Create a stream of the messages that a consumer group has not read.

        It begins at the offsets of the group, else by ``auto.offset.reset`` (default ``largest``),
        and commits offsets with batches, unless ``auto.commit.enable`` is false. A restart resumes
        at the offsets of the checkpoint. If several streams of a program share a group and a topic,
        the first one reads all messages.

        Args:
            ssc: the streaming context.
            zkQuorum: ignored, as the brokers keep the offsets of groups.
            groupId: the group id for this consumer.
            topics: dict of (topic_name -> numPartitions) to consume; the numbers are ignored.
            kafkaParams: parameters of Kafka, with current names or those of 0.8. Without
                ``metadata.broker.list`` and ``bootstrap.servers``, the brokers are those of
                ``spark.dstreams.kafka.bootstrapServers``.
            storageLevel: ignored, as nothing is received before its batch.
            keyDecoder: ``f(bytes or None) -> key``.
            valueDecoder: ``f(bytes or None) -> value``.

        Returns:
            Pairs of key and value.

        Raises:
            WrongTypeError: *topics* is not a dict. It is a TypeError.
            InvalidStreamError: the brokers are missing, or a parameter is invalid.
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
        parameters = _of_group(kafkaParams or {}, _STREAM, zkQuorum, groupId, brokers)
        read = _read_by_group(ssc, parameters)
        left = tuple(name for name in names if name not in read)
        if left != names:
            logger.warning(
                "%s: another stream of this program reads all of %s for the group %r; this stream "
                "gets no messages of these topics",
                _STREAM,
                ", ".join(sorted(read.intersection(names))),
                groupId,
            )
        if not left:
            return ssc.queueStream([], replayable=True)
        return ssc._input(KafkaSource(parameters, TopicSelection(left), {}, make), _STREAM)

    @staticmethod
    def createDirectStream(
        ssc: StreamingContext,
        topics: list[str],
        kafkaParams: dict[str, Any],
        fromOffsets: dict[TopicAndPartition, int] | None = None,
        keyDecoder: Decoder = utf8_decoder,
        valueDecoder: Decoder = utf8_decoder,
        messageHandler: Handler | None = None,
    ) -> KafkaDStream24:
        """Create a stream of the messages of topics, which keeps its own offsets.

        The ranges of a batch are planned before it runs: a batch that runs again has the same
        messages, and a restart continues after the last batch. Without *fromOffsets* a first run
        begins by ``auto.offset.reset`` (default ``largest``: only new messages); the offsets of the
        group are ignored.

        Args:
            ssc: the streaming context.
            topics: list of topic_name to consume.
            kafkaParams: parameters of Kafka, with current names or those of 0.8;
                ``metadata.broker.list`` or ``bootstrap.servers`` is required.
            fromOffsets: starting offsets (inclusive) by :class:`TopicAndPartition`. Only these
                partitions are read.
            keyDecoder: ``f(bytes or None) -> key``.
            valueDecoder: ``f(bytes or None) -> value``.
            messageHandler: ``f(KafkaMessageAndMetadata) -> record``. None: pairs of key and value.

        Raises:
            WrongTypeError: a parameter is of another type. It is a TypeError.
            InvalidStreamError: the brokers are missing, the topics differ from those of the
                offsets, or a parameter is invalid.
        """
        _require_context(ssc, _DIRECT)
        if not isinstance(topics, list):
            example = topics if isinstance(topics, str) else "clicks"
            raise WrongTypeError(
                f"topics must be a list, got {type(topics).__name__}; give [{example!r}]"
            )
        _require_dict(kafkaParams)
        names = _names(topics, _DIRECT)
        begin = _begin(fromOffsets or {}, names)
        source = KafkaSource(
            _of_direct_stream(kafkaParams, _DIRECT),
            TopicSelection(assigned=tuple(sorted(begin))) if begin else TopicSelection(names),
            begin,
            _records(_DIRECT, keyDecoder, valueDecoder, messageHandler),
        )
        read = ssc._input(source, _DIRECT)
        node = TransformedDStream((read._node,), _as_kafka_rdd, read._node.operation)
        return KafkaDStream24(node, ssc)

    @staticmethod
    def createRDD(
        sc: SparkContext,
        kafkaParams: dict[str, Any],
        offsetRanges: list[OffsetRange24],
        leaders: dict[TopicAndPartition, Broker] | None = None,
        keyDecoder: Decoder = utf8_decoder,
        valueDecoder: Decoder = utf8_decoder,
        messageHandler: Handler | None = None,
    ) -> KafkaRDD24:
        """Return the messages of some ranges.

        Args:
            sc: the SparkContext.
            kafkaParams: as in :meth:`createDirectStream`.
            offsetRanges: list of offsetRange to specify topic:partition:[start, end) to consume.
            leaders: ignored, as consumers ask the brokers.
            keyDecoder: as in :meth:`createDirectStream`.
            valueDecoder: as in :meth:`createDirectStream`.
            messageHandler: as in :meth:`createDirectStream`.

        Raises:
            WrongTypeError: a parameter is of another type. It is a TypeError.
            InvalidStreamError: the brokers are missing, or a parameter is invalid.
            SourceError: the brokers do not have all of the offsets, or do not answer.
        """
        _require_dict(kafkaParams)
        if not isinstance(offsetRanges, list):
            raise WrongTypeError(f"offsetRanges should be list, got {type(offsetRanges).__name__}")
        make = _records(_RDD, keyDecoder, valueDecoder, messageHandler)
        parameters = _of_direct_stream(kafkaParams, _RDD)
        ranges = [
            OffsetRange(one.topic, one.partition, one.fromOffset, one.untilOffset)
            for one in offsetRanges
        ]
        _require_there(parameters, ranges)
        settings = Settings.from_conf(dict(sc.getConf().getAll()))
        fetch = FetchConfig(parameters.for_tasks(), make, settings.kafka_poll_ms / 1000)
        return KafkaRDD24(KafkaRDD(sc, ranges, fetch))


def _unchanged(_: int, records: Iterable[Any]) -> Iterable[Any]:
    return records


def _as_kafka_rdd(_: int, rdds: tuple[Any, ...]) -> Any:
    """Give the RDD of a batch the methods of 2.4."""
    (rdd,) = rdds
    return KafkaRDD24(rdd) if isinstance(rdd, KafkaRDD) else rdd


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
        raise InvalidStreamError(
            f"topics of {operation} must be names of topics, got {list(names)!r}"
        )
    return names


def _records(
    operation: str, decode_key: Decoder, decode_value: Decoder, handle: Handler | None = None
) -> MakeRecords:
    """Check the functions of a program, and return what makes its records."""
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
                f"keys of fromOffsets of {_DIRECT} must be TopicAndPartition, got {one!r}"
            )
        if not is_offset(offset):
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
    """Return the topics that other streams of this program read for a group."""
    sources = [stream.source for stream in ssc._graph.inputs]
    return {
        topic
        for source in sources
        if isinstance(source, KafkaSource)
        and source.parameters.where == _STREAM
        and source.parameters.group == parameters.group
        for topic in source.selection.topics
    }


def _require_there(parameters: KafkaParameters, ranges: Sequence[OffsetRange]) -> None:
    """Reject ranges that the brokers do not have, as Spark does."""
    partitions = tuple(sorted({one.topicPartition() for one in ranges}))
    topics = Topics(parameters, TopicSelection(assigned=partitions), SystemClock(), _RDD)
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
            f"{_RDD}: Offsets not available on leader: {'; '.join(missing)}; give existing ranges"
        )


def _of_direct_stream(given: Mapping[str, Any], where: str) -> KafkaParameters:
    """Return the parameters of a stream with its own offsets, without a group.

    Raises:
        InvalidStreamError: the brokers are missing, or a parameter is invalid.
    """
    translated = _translated(given, where)
    if not _has_brokers(translated):
        raise InvalidStreamError(
            f"{where}: Must specify metadata.broker.list or bootstrap.servers, for example "
            "'localhost:9092'"
        )
    left = {key: value for key, value in translated.items() if key not in (GROUP, COMMIT)}
    return KafkaParameters.of(left, where)


def _of_group(
    given: Mapping[str, Any], where: str, zookeepers: object, group: str, brokers: str | None = None
) -> KafkaParameters:
    """Return the parameters of a stream with the offsets of a group; *brokers* are the default.

    Raises:
        InvalidStreamError: the brokers are missing, or a parameter is invalid.
    """
    translated = _translated(given, where)
    if not _has_brokers(translated):
        if brokers is None:
            raise InvalidStreamError(
                f"{where}: zkQuorum={zookeepers!r} names ZooKeeper, which Kafka does not use any "
                "more; give the brokers by kafkaParams={'metadata.broker.list': 'localhost:9092'}, "
                "or, without a change of the program, by --conf "
                "spark.dstreams.kafka.bootstrapServers=localhost:9092"
            )
        translated[BROKERS] = brokers
    logger.warning(
        "%s: ignoring zkQuorum=%r: the brokers keep the offsets of the group %r",
        where,
        zookeepers,
        group,
    )
    return KafkaParameters.of({COMMIT: "true", **translated, GROUP: group}, where)


def _has_brokers(parameters: Mapping[str, Any]) -> bool:
    return bool(parameters.get(_BROKERS_OF_0_8) or parameters.get(BROKERS))


def _translated(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Give parameters their current names, and drop those that have no effect."""
    dropped = [
        key
        for key in given
        if isinstance(key, str) and (key.startswith(_OF_ZOOKEEPER) or key in _WITHOUT_EFFECT)
    ]
    if dropped:
        logger.warning("%s: ignoring %s, which have no effect any more", where, ", ".join(dropped))
    names = {_COMMIT_OF_0_8: COMMIT}
    found = {names.get(key, key): value for key, value in given.items() if key not in dropped}
    if BROKERS in found:
        found.pop(_BROKERS_OF_0_8, None)
    reset = found.get(RESET)
    if isinstance(reset, str):
        found[RESET] = reset.lower()
    return found
