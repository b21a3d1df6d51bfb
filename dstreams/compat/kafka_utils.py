"""KafkaUtils and KafkaDStream of Spark's Scala API, which also accept calls of Spark 2.4."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pyspark import RDD, SparkContext

from dstreams.arrow.decode_lines import LineFormat, decoder_of
from dstreams.arrow.rows import BLOCK_ROWS
from dstreams.arrow.schemas import BlockSchema, schema_of
from dstreams.common.settings import COUNT, Settings
from dstreams.compat.kafka24 import KafkaUtils24
from dstreams.context import StreamingContext
from dstreams.dstream import DStream
from dstreams.dstream.block_dstream import BlockDStream, derived_blocks
from dstreams.errors import InvalidStreamError
from dstreams.graph.node import InputDStream
from dstreams.kafka.decoding import (
    AsRecords,
    ConsumerRecord,
    DeadLetter,
    decoding_of,
    require_dead_letters,
)
from dstreams.kafka.fetch import FetchConfig, KafkaRDD
from dstreams.kafka.kafka_source import KafkaSource
from dstreams.kafka.offsets import OffsetRange, PerPartitionConfig
from dstreams.kafka.parameters import KafkaParameters
from dstreams.kafka.record_blocks import RecordsToBlocks, record_columns
from dstreams.kafka.strategies import ConsumerStrategy, LocationStrategy
from dstreams.kafka.topics import Committed
from dstreams.spark.task_reports import BAD_RECORDS, BadRecords

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_Call = TypeVar("_Call", bound=Callable[..., Any])


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
        """Commit the ends of ranges to the group of this stream, with the next batch.

        These offsets are for other programs: the stream resumes at the offsets of its checkpoint.

        Args:
            offsetRanges: as ``rdd.offsetRanges`` of a batch.
            callback: ``f(offsets, error)``, called on the driver when the brokers have answered:
                offsets by TopicPartition, and the error if they were not committed, else None.
        """
        self._source.commits.add(offsetRanges, callback)

    def deadLetters(self) -> DStream[DeadLetter]:
        """Return the stream of the undecoded records that could not be decoded.

        ``badRecords="DROPMALFORMED"`` skips them in this stream. To return them, batches read their
        ranges again. To keep them in a topic::

            stream.deadLetters().saveToKafka(
                "clicks.bad", parameters, key=lambda letter: letter.key,
                value=lambda letter: letter.value, headers=lambda letter: letter.error_headers)

        Raises:
            InvalidStreamError: such records fail the batch instead of being skipped.
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
        """Return the records in Arrow blocks; a *format* decodes their values.

        Do not set ``value.deserializer`` then: a value is one line, in bytes. A tombstone becomes a
        record of nulls. Without a format this is :meth:`DStream.toBlocks` of the records.

        Args:
            schema: as of :meth:`DStream.toBlocks`, of the values.
            blockRows: maximal number of records in a block.
            format: as of :meth:`DStream.toBlocks`.
            mode: ``FAILFAST``: a malformed value fails the batch, with topic, partition and offset;
                ``DROPMALFORMED``: its record is skipped, and counted in the log and in the batch's
                ``inputs``.
            sep: separator of values of ``"csv"``.
            columns: fields of the record to add as columns after those of *schema*: ``key``,
                ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestampType``.

        Raises:
            InvalidStreamError: as of :meth:`DStream.toBlocks`; or *columns* are unknown, are given
                without a *format*, or are columns of *schema*.
            DecodeError: in a batch, for a malformed value.
        """
        if format is None:
            if columns:
                raise InvalidStreamError(
                    "columns of toBlocks need decoded values; give a format as well"
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
        return derived_blocks(
            self, operation, make, schema_of(_all_columns(values, more), operation)
        )

    @property
    def _source(self) -> KafkaSource:
        source = self._node.source
        assert isinstance(source, KafkaSource)
        return source


def accepts_spark24_signature(
    call24: Callable[..., Any], kinds: tuple[type, ...]
) -> Callable[[_Call], _Call]:
    """Make a function of Scala's API also accept the calls of Spark 2.4.

    A call is one of Scala's API if an argument is of *kinds*, which 2.4 does not have, or if the
    name of an argument is unknown to *call24*.
    """
    names24 = set(inspect.signature(call24).parameters)

    def decorate(call: _Call) -> _Call:
        @wraps(call)
        def called(*arguments: Any, **named: Any) -> Any:
            is_of_scala = not names24.issuperset(named) or any(
                isinstance(one, kinds) for one in (*arguments, *named.values())
            )
            return (call if is_of_scala else call24)(*arguments, **named)

        return called  # type: ignore[return-value]

    return decorate


class KafkaUtils:
    """Streams and RDDs of topics.

    The methods accept the signatures of Scala's integration, and those of
    ``pyspark.streaming.kafka`` of Spark 2.4 (:class:`dstreams.compat.kafka24.KafkaUtils24`).

    Semantics: org.apache.spark.streaming.kafka010.KafkaUtils (4.3).
    """

    createStream = staticmethod(KafkaUtils24.createStream)

    @staticmethod
    @accepts_spark24_signature(
        KafkaUtils24.createDirectStream, (LocationStrategy, ConsumerStrategy)
    )
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

        The ranges of a batch are planned before it runs and written to its begin record: a batch
        that runs again has the same records, and a restart continues after the last batch; the
        offsets of the group do not matter. The checkpoint also has the first position, so
        ``latest`` is that of the first start. A batch reads all available records, within
        ``spark.streaming.kafka.maxRatePerPartition`` and backpressure. While no broker answers,
        batches run without the records of the stream, which later batches read.

        The group gets the offsets of committed batches if ``enable.auto.commit`` is true, and those
        given to :meth:`KafkaDStream.commitAsync`; they are for other programs.

        Args:
            ssc: the context.
            locationStrategy: one of :class:`~dstreams.kafka.LocationStrategies`.
            consumerStrategy: one of :class:`~dstreams.kafka.ConsumerStrategies`. Its parameters
                ``key.deserializer`` and ``value.deserializer`` are a function of bytes, a
                :class:`~dstreams.kafka.Decoder`, or the name of one of Kafka's own, such as
                ``StringDeserializer``. None: keys or values stay bytes.
            perPartitionConfig: limits by partition; None for those of
                ``spark.streaming.kafka.maxRatePerPartition`` and ``minRatePerPartition``.
            badRecords: for records that cannot be decoded. ``FAILFAST``: they fail the batch, with
                topic, partition and offset; ``DROPMALFORMED``: they are skipped, and counted in the
                log and in the batch's ``inputs``; see :meth:`KafkaDStream.deadLetters`.
            minPartitions: minimal number of partitions of a batch's RDD: ranges are split if there
                are fewer. None: as many as partitions with records.
            uid: name of its progress in the checkpoint, by which a changed program finds it
                (:meth:`StreamingContext.restore`). None: a generated name.

        Raises:
            InvalidStreamError: a parameter is invalid.
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
                f"{where} takes a dstreams.kafka.PerPartitionConfig as limits of partitions, got "
                f"{perPartitionConfig!r}"
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
    @accepts_spark24_signature(KafkaUtils24.createRDD, (LocationStrategy,))
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
            kafkaParams: parameters of Kafka's consumers; ``bootstrap.servers`` is required.
            offsetRanges: the ranges to read.
            locationStrategy: as in :meth:`createDirectStream`. A call without it is one of 2.4,
                which returns pairs of decoded keys and values.
            badRecords: as in :meth:`createDirectStream`.

        Raises:
            InvalidStreamError: a parameter is invalid.
            SourceError: a setting of Kafka is invalid.
        """
        ranges = list(offsetRanges)
        if not all(isinstance(one, OffsetRange) for one in ranges):
            raise InvalidStreamError(f"createRDD takes OffsetRange values, got {ranges!r}")
        settings = Settings.from_conf(dict(sc.getConf().getAll()))
        fetch = FetchConfig(
            KafkaParameters.of(kafkaParams, "createRDD").for_tasks(),
            AsRecords(decoding_of(kafkaParams, badRecords, "createRDD")),
            settings.kafka_poll_ms / 1000,
            not settings.kafka_fail_on_data_loss,
        )
        return KafkaRDD(sc, ranges, fetch)


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
