"""KafkaUtils, and the streams it makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from pyspark import RDD, SparkContext

from dstreams.configuration import COUNT
from dstreams.dstream import DStream
from dstreams.errors import InvalidStreamError
from dstreams.graph.input import InputDStream
from dstreams.kafka.strategies import ConsumerStrategy, LocationStrategy
from dstreams.kafka_io.decoders import Utf8Decoder
from dstreams.kafka_io.decoders.decoder import as_decoder
from dstreams.kafka_io.decoding import BAD_RECORDS, DeadLetter, Decoding
from dstreams.kafka_io.fetch import MakeRecords
from dstreams.kafka_io.group import Committed
from dstreams.kafka_io.kafka_rdd import KafkaRDD
from dstreams.kafka_io.messages import AsRecords, dead_letters_of
from dstreams.kafka_io.offsets import OffsetRange
from dstreams.kafka_io.parameters import KafkaParameters
from dstreams.kafka_io.records import ConsumerRecord
from dstreams.kafka_io.source import KafkaSource
from dstreams.settings import Settings
from dstreams.streaming_context import StreamingContext

T = TypeVar("T")


class KafkaDStream(DStream[T]):
    """A stream of the records of topics.

    Its RDDs, as ``foreachRDD`` and ``transform`` of the stream itself get them, are
    :class:`~dstreams.kafka.KafkaRDD` and know their ``offsetRanges``.

    Semantics: the DirectKafkaInputDStream and CanCommitOffsets of
    org.apache.spark.streaming.kafka010.
    """

    _dstreams_driver_only: ClassVar[bool] = False  # commitAsync is called in functions of outputs
    _node: InputDStream

    def commitAsync(
        self, offsetRanges: Iterable[OffsetRange], callback: Committed | None = None
    ) -> None:
        """Let the group of this stream know that ranges are done with, with the next batch.

        That is for others to see: where the stream goes on is in its checkpoint.

        Args:
            offsetRanges: as ``rdd.offsetRanges`` of a batch.
            callback: ``f(offsets, error)``, called on the driver when the brokers have answered:
                offsets by TopicPartition, and why they were not committed, None where they were.
        """
        self._source.commits.add(offsetRanges, callback)

    def deadLetters(self) -> DStream[DeadLetter]:
        """Return the records that could not be decoded and were left out of this stream.

        Each is a :class:`DeadLetter`: the record as it was read, which part could not be decoded,
        and why. They are found by reading the batch once more.

        >>> clicks = KafkaUtils.createDirectStream(
        ...     ssc, LocationStrategies.PreferConsistent, strategy, badRecords="DROPMALFORMED")
        >>> clicks.deadLetters().map(lambda letter: (letter.offset, letter.reason)).pprint()

        Raises:
            InvalidStreamError: such records are not left out, but fail the batch.
        """
        dead_letters_of(self._source.make_records)
        return self.transform(_dead_letters)

    @property
    def _source(self) -> KafkaSource:
        source = self._node.source
        assert isinstance(source, KafkaSource)  # noqa: S101 - KafkaUtils makes no other
        return source


class KafkaUtils:
    """Streams and RDDs of topics.

    Semantics: org.apache.spark.streaming.kafka010.KafkaUtils (4.3).
    """

    @staticmethod
    def createDirectStream(
        ssc: StreamingContext,
        locationStrategy: LocationStrategy,
        consumerStrategy: ConsumerStrategy,
        *,
        minPartitions: int | None = None,
        badRecords: str = "FAILFAST",
        uid: str | None = None,
    ) -> KafkaDStream[ConsumerRecord]:
        """Create a stream of the records of topics.

        What each batch reads of each partition is decided before it runs and stands in its begin
        record, so a batch that runs again has the same records, and a restart goes on where the
        last one ended, whatever the group has committed. A batch has all that is there, or as much
        as ``spark.streaming.kafka.maxRatePerPartition`` and backpressure allow.

        Args:
            ssc: the context.
            locationStrategy: one of :class:`~dstreams.kafka.LocationStrategies`.
            consumerStrategy: one of :class:`~dstreams.kafka.ConsumerStrategies`.
            minPartitions: partitions of a batch's RDD at least: those of a topic are read in pieces
                where there are fewer. None: as many as partitions with records.
            badRecords: ``FAILFAST``: a record that its deserializer cannot decode fails the batch.
                ``DROPMALFORMED``: it is left out; how many were is in the input of the batch, and
                ``deadLetters()`` of the stream has them.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Raises:
            InvalidStreamError: a parameter cannot be.
        """
        source = _source(consumerStrategy, "createDirectStream", minPartitions, badRecords)
        return _stream(ssc, source, "createDirectStream", uid)

    @staticmethod
    def createRDD(
        sc: SparkContext,
        kafkaParams: Mapping[str, Any],
        offsetRanges: Iterable[OffsetRange],
        locationStrategy: LocationStrategy | None = None,
        *,
        badRecords: str = "FAILFAST",
    ) -> KafkaRDD:
        """Return the records of some ranges, each as one partition.

        Args:
            sc: the context.
            kafkaParams: parameters of Kafka's consumers; ``bootstrap.servers`` is needed.
            offsetRanges: what to read.
            locationStrategy: as in :meth:`createDirectStream`.
            badRecords: as in :meth:`createDirectStream`.

        Raises:
            InvalidStreamError: a parameter cannot be.
            SourceError: the settings of Kafka cannot be.
        """
        ranges = list(offsetRanges)
        if not all(isinstance(one, OffsetRange) for one in ranges):
            raise InvalidStreamError(f"createRDD takes OffsetRange values, got {ranges!r}")
        parameters = KafkaParameters.of(kafkaParams, "createRDD")
        settings = Settings.from_conf(dict(sc.getConf().getAll()))
        return KafkaRDD(
            sc,
            ranges,
            parameters.for_tasks(),
            _records(kafkaParams, badRecords, "createRDD"),
            settings.kafka_poll_ms / 1000,
            passes_over_lost=not settings.kafka_fail_on_data_loss,
        )


def _source(
    strategy: Any,
    operation: str,
    least_partitions: int | None,
    bad_records: str = "FAILFAST",
    make: MakeRecords | None = None,
) -> KafkaSource:
    if not isinstance(strategy, ConsumerStrategy):
        raise InvalidStreamError(
            f"{operation} takes one of ConsumerStrategies, such as Subscribe, got {strategy!r}"
        )
    if least_partitions is not None:
        COUNT.require(least_partitions, f"minPartitions of {operation}")
    return KafkaSource(
        KafkaParameters.of(strategy.parameters, operation),
        strategy.selection,
        strategy.offsets,
        make or _records(strategy.parameters, bad_records, operation),
        least_partitions,
    )


def _stream(
    ssc: StreamingContext, source: KafkaSource, operation: str, uid: str | None
) -> KafkaDStream[Any]:
    stream = ssc._input(source, operation, uid)
    return KafkaDStream(stream._node, ssc)


_OF_JAVA = {"ByteArrayDeserializer": None, "StringDeserializer": Utf8Decoder()}


def _records(parameters: Mapping[str, Any], bad_records: str, operation: str) -> AsRecords:
    """Return what makes records, by the deserializers among the parameters."""
    decoders = {}
    for name in ("key.deserializer", "value.deserializer"):
        given = parameters.get(name)
        java = given.rpartition(".")[2] if isinstance(given, str) else None
        decoder = _OF_JAVA[java] if java in _OF_JAVA else as_decoder(given, f"{operation}: {name}")
        decoders[name.partition(".")[0]] = decoder
    rule = BAD_RECORDS.of(bad_records, f"badRecords of {operation}")
    return AsRecords(Decoding(**decoders, bad_records=rule))


def _dead_letters(rdd: RDD[Any]) -> KafkaRDD:
    """Ask the RDD of a batch, which is one of the stream itself."""
    assert isinstance(rdd, KafkaRDD)  # noqa: S101 - as source and history hand it over
    return rdd.deadLetters()
