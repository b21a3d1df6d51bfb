"""KafkaUtils, and the streams it makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pyspark import RDD, SparkContext

from dstreams.arrow.decode_lines import LineFormat, decoder_of
from dstreams.arrow.rows import BLOCK_ROWS
from dstreams.arrow.schemas import BlockSchema, schema_of
from dstreams.common.configuration import COUNT
from dstreams.common.settings import Settings
from dstreams.compat import kafka24 as legacy
from dstreams.compat.kafka24_forms import or_as_in_2_4
from dstreams.context import StreamingContext
from dstreams.dstream import DStream
from dstreams.dstream.block_dstream import BlockDStream, blocks_of
from dstreams.errors import InvalidStreamError
from dstreams.graph.node import InputDStream
from dstreams.kafka.decoding import DeadLetter
from dstreams.kafka.deserializers import decoding_of
from dstreams.kafka.fetch import Reading
from dstreams.kafka.group import Committed
from dstreams.kafka.kafka_rdd import KafkaRDD
from dstreams.kafka.messages import AsRecords, require_dead_letters
from dstreams.kafka.offsets import OffsetRange
from dstreams.kafka.parameters import KafkaParameters
from dstreams.kafka.rates import PerPartitionConfig
from dstreams.kafka.record_blocks import RecordsToBlocks, record_columns
from dstreams.kafka.records import ConsumerRecord
from dstreams.kafka.source import KafkaSource
from dstreams.kafka.strategies import ConsumerStrategy, LocationStrategy
from dstreams.spark.bad_records import BAD_RECORDS, BadRecords

if TYPE_CHECKING:
    import pyarrow as pa

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
        """Return the stream of the records that could not be decoded, as they were read.

        They are left out of this stream by ``badRecords="DROPMALFORMED"``. Batches that are asked
        for their dead letters read their ranges once more. To keep them in a topic::

            stream.deadLetters().saveToKafka(
                "clicks.bad", parameters, key=lambda letter: letter.key,
                value=lambda letter: letter.value, headers=lambda letter: letter.error_headers)

        Raises:
            InvalidStreamError: such records are not left out, but fail the batch.
        """
        require_dead_letters(self._source.make_records)
        return self.transform(_dead_letters)

    def toBlocks(
        self,
        schema: BlockSchema,
        blockRows: int = BLOCK_ROWS,
        *,
        format: LineFormat | None = None,
        mode: BadRecords = "FAILFAST",
        sep: str = ",",
        columns: Sequence[str] = (),
    ) -> BlockDStream:
        """Return the records in Arrow blocks; with a *format* their values are decoded.

        ``value.deserializer`` is left out then: a value is one line, in bytes. A tombstone is a
        record of nulls. Without a format it is :meth:`DStream.toBlocks` of the records themselves.

        Args:
            schema: as of :meth:`DStream.toBlocks`, of the values.
            blockRows: records a block has at most.
            format: as of :meth:`DStream.toBlocks`.
            mode: ``FAILFAST``: a malformed value fails the batch, which names topic, partition and
                offset; ``DROPMALFORMED``: its record is left out, and counted in the log and in the
                batch's ``inputs``.
            sep: character between two values of ``"csv"``.
            columns: what else of a record is a column behind those of *schema*, of ``key``,
                ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestampType``.

        Raises:
            InvalidStreamError: as of :meth:`DStream.toBlocks`; or *columns* are not these, are
                given without a *format*, or are columns of *schema*.
            DecodeError: in a batch, for a malformed value.
        """
        if format is None:
            if columns:
                raise InvalidStreamError(
                    "columns of toBlocks are those of records whose values are decoded; give a "
                    "format as well"
                )
            return super().toBlocks(schema, blockRows)
        operation = self._operation("toBlocks")
        COUNT.require(blockRows, f"blockRows of {operation}")
        values = schema_of(schema, operation)
        made = self._source.make_records
        assert isinstance(made, AsRecords)
        more = record_columns(columns, made.decoding, operation)
        make = RecordsToBlocks(
            decoder_of(format, values, operation, sep=sep, skips_blank=False),
            more,
            operation,
            BAD_RECORDS.of(mode, f"mode of {operation}"),
            blockRows,
        )
        return blocks_of(self, operation, make, schema_of(_all_columns(values, more), operation))

    @property
    def _source(self) -> KafkaSource:
        source = self._node.source
        assert isinstance(source, KafkaSource)
        return source


class KafkaUtils:
    """Streams and RDDs of topics.

    The methods are called as Scala's integration has them, or as ``pyspark.streaming.kafka`` of
    Spark 2.4 had them: :class:`dstreams.compat.kafka24.KafkaUtils` says what they do then.

    Semantics: org.apache.spark.streaming.kafka010.KafkaUtils (4.3).
    """

    createStream = staticmethod(legacy.KafkaUtils.createStream)

    @staticmethod
    @or_as_in_2_4(legacy.KafkaUtils.createDirectStream, (LocationStrategy, ConsumerStrategy))
    def createDirectStream(
        ssc: StreamingContext,
        locationStrategy: LocationStrategy,
        consumerStrategy: ConsumerStrategy,
        perPartitionConfig: PerPartitionConfig | None = None,
        *,
        badRecords: BadRecords = "FAILFAST",
        minPartitions: int | None = None,
        uid: str | None = None,
    ) -> KafkaDStream[ConsumerRecord]:
        """Create a stream of the records of topics.

        What each batch reads of each partition is decided before it runs and stands in its begin
        record, so a batch that runs again has the same records, and a restart goes on where the
        last one ended, whatever the group has committed. Where a stream begins stands in the
        checkpoint when it has started, so ``latest`` is that of its first start. A batch has all
        that is there, or as much as ``spark.streaming.kafka.maxRatePerPartition`` and backpressure
        allow. While no broker answers, batches go on without records of the stream, which come when
        it is back.

        For others to see, the group gets the ends of batches that were committed where
        ``enable.auto.commit`` is true, or those given to :meth:`KafkaDStream.commitAsync`.

        Args:
            ssc: the context.
            locationStrategy: one of :class:`~dstreams.kafka.LocationStrategies`.
            consumerStrategy: one of :class:`~dstreams.kafka.ConsumerStrategies`. Among its
                parameters ``key.deserializer`` and ``value.deserializer`` say how keys and values
                are decoded: a function of bytes, a :class:`~dstreams.kafka.Decoder`, or the name of
                one of Kafka's own, such as ``StringDeserializer``. None: they stay bytes.
            perPartitionConfig: limits that differ between partitions; None for those of
                ``spark.streaming.kafka.maxRatePerPartition`` and ``minRatePerPartition``.
            badRecords: what becomes of records that cannot be decoded: ``FAILFAST``: they fail the
                batch, which names topic, partition and offset; ``DROPMALFORMED``: they are left
                out, and counted in the log and in the batch's ``inputs``; see
                :meth:`KafkaDStream.deadLetters`.
            minPartitions: partitions of a batch's RDD at least: those of a topic are read in pieces
                where there are fewer. None: as many as partitions with records.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Raises:
            InvalidStreamError: a parameter cannot be.
        """
        where = "createDirectStream"
        if not isinstance(consumerStrategy, ConsumerStrategy):
            raise InvalidStreamError(
                f"{where} takes one of ConsumerStrategies, such as Subscribe, got "
                f"{consumerStrategy!r}"
            )
        if minPartitions is not None:
            COUNT.require(minPartitions, f"minPartitions of {where}")
        if not isinstance(perPartitionConfig, PerPartitionConfig | None):
            raise InvalidStreamError(
                f"{where} takes a dstreams.kafka.PerPartitionConfig as its limits of partitions, "
                f"got {perPartitionConfig!r}"
            )
        given = consumerStrategy.parameters
        source = KafkaSource(
            KafkaParameters.of(given, where),
            consumerStrategy.selection,
            consumerStrategy.offsets,
            AsRecords(decoding_of(given, badRecords, where)),
            minPartitions,
            limits=perPartitionConfig,
        )
        return direct_stream(ssc, source, where, uid)

    @staticmethod
    @or_as_in_2_4(legacy.KafkaUtils.createRDD, (LocationStrategy,))
    def createRDD(
        sc: SparkContext,
        kafkaParams: Mapping[str, Any],
        offsetRanges: Iterable[OffsetRange],
        locationStrategy: LocationStrategy,
        *,
        badRecords: BadRecords = "FAILFAST",
    ) -> KafkaRDD:
        """Return the records of some ranges, each as one partition.

        Args:
            sc: the context.
            kafkaParams: parameters of Kafka's consumers; ``bootstrap.servers`` is needed.
            offsetRanges: what to read.
            locationStrategy: as in :meth:`createDirectStream`. Without one the call is that of
                2.4, and gives pairs of decoded keys and values.
            badRecords: as in :meth:`createDirectStream`.

        Raises:
            InvalidStreamError: a parameter cannot be.
            SourceError: the settings of Kafka cannot be.
        """
        ranges = list(offsetRanges)
        if not all(isinstance(one, OffsetRange) for one in ranges):
            raise InvalidStreamError(f"createRDD takes OffsetRange values, got {ranges!r}")
        settings = Settings.from_conf(dict(sc.getConf().getAll()))
        reading = Reading(
            KafkaParameters.of(kafkaParams, "createRDD").for_tasks(),
            AsRecords(decoding_of(kafkaParams, badRecords, "createRDD")),
            settings.kafka_poll_ms / 1000,
            not settings.kafka_fail_on_data_loss,
        )
        return KafkaRDD(sc, ranges, reading)


def _all_columns(values: pa.Schema, more: pa.Schema) -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 - where blocks are used

    return pa.schema([*values, *more])


def _dead_letters(rdd: RDD[Any]) -> RDD[DeadLetter]:
    assert isinstance(rdd, KafkaRDD)
    return rdd.deadLetters()


def direct_stream(
    ssc: StreamingContext, source: KafkaSource, operation: str, uid: str | None = None
) -> KafkaDStream[Any]:
    """Add a source of Kafka to the streams of a context."""
    return KafkaDStream(ssc._input(source, operation, uid)._node, ssc)
