"""DStream: the public face of a stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from operator import add, iadd, itemgetter, sub
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, overload

from pyspark import RDD, StorageLevel
from pyspark.rdd import portable_hash
from pyspark.resultiterable import ResultIterable

from dstreams.arrow.block_rdd import blocks_rdd
from dstreams.arrow.decode_lines import LineFormat, LinesToBlocks, decoder_of
from dstreams.arrow.rows import BLOCK_ROWS, RowsToBlocks
from dstreams.arrow.schemas import BlockSchema, schema_of
from dstreams.common.callables import (
    call_site,
    describe,
    require_arity,
    require_function,
    require_picklable,
)
from dstreams.common.configuration import COUNT
from dstreams.common.durations import batch_datetime, batch_time_ms, require_duration_ms
from dstreams.errors import InvalidStreamError, StreamLifecycleError
from dstreams.graph.node import Node, OutputOperation
from dstreams.graph.plan import StreamOptions
from dstreams.graph.state import SnapshotDStream, StateDStream, StateStoreDStream
from dstreams.graph.transformed import ReducedDStream, TransformFunc
from dstreams.graph.windowed import ReducedWindowedDStream, WindowedDStream, WindowTimes
from dstreams.kafka.kafka_sink import KafkaSink
from dstreams.kafka.output_commits import DEFAULT_TOPIC
from dstreams.sinks.console import ConsolePrinter
from dstreams.sinks.foreach import ForeachBatch
from dstreams.sinks.output_batch import BatchSink, OutputBatch
from dstreams.sinks.promise import DeliveryGuarantee
from dstreams.sinks.text_files import TextFilesWriter
from dstreams.spark.bad_records import BAD_RECORDS, BadRecords
from dstreams.spark.blocks import Side
from dstreams.spark.by_key import (
    Combiner,
    cogroup_by_key,
    combine_by_key,
    group_by_key,
    join_by_key,
)
from dstreams.spark.element_tasks import (
    Filter,
    FlatMap,
    FlatMapValues,
    Map,
    MapPartitions,
    MapValues,
    as_list,
    is_counted,
    number_of,
    pair_with_one,
    with_no_key,
    with_ones,
)
from dstreams.spark.failures import function_of
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.reduction import Reduction, UserFunction
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from dstreams.spark.spread import spread
from dstreams.spark.totals import count_all, reduce_all
from dstreams.spark.window_step import WindowFunctions
from dstreams.state.group_state import GroupState, OutputMode
from dstreams.state.initial import initial_states
from dstreams.state.operator_definitions import (
    EventClock,
    GroupsWithStateDefinition,
    MapWithStateDefinition,
)
from dstreams.state.state_spec import StateSpec
from dstreams.state.update_function import UpdateFunction

if TYPE_CHECKING:
    import pyarrow as pa

    from dstreams.context import StreamingContext
    from dstreams.dstream.block_dstream import (
        BlockDStream,
        BlockStateDStream,
        BlockStateFunc,
        BlockUpdateFunc,
        MapStateBlocksDStream,
    )

__all__ = ["DStream"]

logger = logging.getLogger(__name__)

T_co = TypeVar("T_co", covariant=True)
"""Type of a stream's elements."""

H = TypeVar("H", bound=Hashable)
K = TypeVar("K")
S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")
Self = TypeVar("Self", bound="DStream[Any]")

PartitionFunc: TypeAlias = "Callable[[K], int] | StablePartitioner | None"
"""Where a key belongs: a function, or a partitioner whole; None for the stable hash."""

_SLIDES_OF_INVERSE = 5
"""From so many slides in a window on its inverse function is used, as in pyspark.streaming."""


class DStream(Generic[T_co]):
    """A sequence of RDDs, one for each batch, defined by what it is made from.

    A DStream is made by a :class:`~dstreams.StreamingContext` or from other streams, and does
    nothing before the context starts. Its methods check what they are given, add a node to the
    graph and return its stream. Functions are sent to the workers; a function must not use streams
    or contexts. The type parameter is that of the elements: type checkers follow it through a
    pipeline.

    In a batch in which a stream has no RDD its outputs are not called, and what is made of that
    batch alone has no RDD either. Everywhere *numPartitions* None means the default parallelism of
    the SparkContext, and *partitionFunc* is ``key -> int`` or a
    :class:`~dstreams.StablePartitioner`, None meaning :func:`~dstreams.stable_hash`.

    **Windows.** A window at time t covers (t - windowDuration, t]; the first windows are shorter.
    *windowDuration* and *slideDuration* are seconds, positive multiples of this stream's slide; a
    slide of None is this stream's slide, and one that is longer than the window leaves gaps. The
    batches of this stream, or their reductions, are persisted and remembered for a window. An
    inverse function is used for windows of five slides or more: the result of the window before is
    made into that of the next. A shorter window is made anew, as it is without an inverse function,
    and depends on nothing but its batches. The setting ``spark.dstreams.window.inverse`` asks for
    Scala's rule, by which an inverse function is always used
    (org.apache.spark.streaming.dstream.ReducedWindowedDStream, 4.3).

    **Stored state** is what ``mapWithState``, ``flatMapGroupsWithState`` and ``mapGroupsWithState``
    have: a batch costs what it touches, not what there is, and writes what it changed, synced,
    before any output runs. It needs a checkpoint directory. States and keys are plain data
    (numbers, text, bytes, dates, and tuples, lists, sets and dicts of such) and instances of
    classes of data that the program names (dataclasses, classes of attrs, named tuples, enums,
    Rows; see :meth:`~dstreams.StreamingContext.stateClasses` for others), unless
    ``spark.dstreams.state.values`` is ``pickle``.

    Durations, functions, partitions and other arguments that are not what they should be raise
    InvalidStreamError where the stream is defined.

    In the examples, ``run(batches, operation)`` is :func:`dstreams.testing.run_batches` with a
    SparkContext ``spark`` and each batch of the result sorted; ``ssc`` is a context of one batch a
    second whose first batch time is second 1.

    Args:
        node: its node of the graph.
        ssc: its context.

    Semantics: pyspark.streaming.DStream (4.3).
    """

    _dstreams_driver_only: ClassVar[bool] = True

    def __init__(self, node: Node, ssc: StreamingContext) -> None:
        self._node = node
        self._ssc = ssc

    def __repr__(self) -> str:
        return f"DStream({self._node.operation})"

    def _repr_html_(self) -> str:
        return self._ssc._picture(self._node)

    def context(self) -> StreamingContext:
        """Return the StreamingContext of this stream."""
        return self._ssc

    def count(self) -> DStream[int]:
        """Return the stream of the number of elements of each batch, 0 for an empty one.

        >>> run([[1, 2, 3], []], lambda numbers: numbers.count())
        [[3], [0]]
        """
        return self._transformed(self._operation("count"), count_all)

    def filter(self, f: Callable[[T_co], Any]) -> DStream[T_co]:
        """Return the stream of the elements x for which ``f(x)`` is true.

        >>> run([[1, 2, 3], [5]], lambda numbers: numbers.filter(lambda x: x > 1))
        [[2, 3], [5]]
        """
        operation = self._operation("filter", f, "f(x) -> bool")
        return self._each(operation, Filter(f, function_of(f, operation)))

    def flatMap(
        self, f: Callable[[T_co], Iterable[U]], preservesPartitioning: bool = False
    ) -> DStream[U]:
        """Return the stream of all elements of ``f(x)``, for each element x.

        >>> run([["to be", "or"]], lambda lines: lines.flatMap(str.split))
        [['be', 'or', 'to']]
        """
        operation = self._operation("flatMap", f, "f(x) -> iterable of y")
        return self._each(operation, FlatMap(f, function_of(f, operation)), preservesPartitioning)

    def map(self, f: Callable[[T_co], U], preservesPartitioning: bool = False) -> DStream[U]:
        """Return the stream of ``f(x)`` for each element x.

        >>> run([[1, 2], []], lambda numbers: numbers.map(lambda x: 10 * x))
        [[10, 20], []]
        """
        operation = self._operation("map", f, "f(x) -> y")
        return self._each(operation, Map(f, function_of(f, operation)), preservesPartitioning)

    def mapPartitions(
        self, f: Callable[[Iterator[T_co]], Iterable[U]], preservesPartitioning: bool = False
    ) -> DStream[U]:
        """Return the stream of ``f(iterator over a partition)``, for each partition.

        >>> run([[1, 2, 3, 4]], lambda numbers: numbers.mapPartitions(lambda part: [sum(part)]))
        [[3, 7]]
        """
        operation = self._operation("mapPartitions", f, "f(iterator) -> iterator")
        return self._each(operation, MapPartitions(f, operation), preservesPartitioning)

    def mapPartitionsWithIndex(
        self,
        f: Callable[[int, Iterator[T_co]], Iterable[U]],
        preservesPartitioning: bool = False,
    ) -> DStream[U]:
        """Return the stream of ``f(number of the partition, iterator over it)``.

        >>> def numbered(index, part):
        ...     return [(index, x) for x in part]
        >>> run([["a", "b"]], lambda letters: letters.mapPartitionsWithIndex(numbered))
        [[(0, 'a'), (1, 'b')]]
        """
        shape = "f(index, iterator) -> iterator"
        operation = self._operation("mapPartitionsWithIndex", f, shape, 2)
        return self._each(
            operation, MapPartitions(f, operation, with_index=True), preservesPartitioning
        )

    def reduce(self: DStream[T], func: Callable[[T, T], T]) -> DStream[T]:
        """Return the stream of one element for each batch, none for an empty one.

        Args:
            func: ``(x, y) -> z``, associative and commutative.

        >>> run([[1, 2, 3], []], lambda numbers: numbers.reduce(max))
        [[3], []]
        """
        operation = self._operation("reduce", func, "f(x, y) -> z", 2)
        return self._transformed(operation, lambda rdd: reduce_all(rdd, func, operation))

    def reduceByKey(
        self: DStream[tuple[K, V]],
        func: Callable[[V, V], V],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, V]]:
        """Return the stream of (key, its values of the batch reduced by *func*).

        Args:
            func: ``(v, w) -> x``, associative and commutative.
            numPartitions: partitions of each RDD.
            partitionFunc: as in :meth:`updateStateByKey`.

        >>> run([[("a", 1), ("b", 5), ("a", 2)], []], lambda pairs: pairs.reduceByKey(max))
        [[('a', 2), ('b', 5)], []]
        """
        operation = self._operation("reduceByKey", func, "f(v, w) -> x", 2)
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        combiner = Combiner.of_reduction(func)
        return self._transformed(
            operation, lambda rdd: combine_by_key(rdd, combiner, partitioner, operation)
        )

    def combineByKey(
        self: DStream[tuple[K, V]],
        createCombiner: Callable[[V], U],
        mergeValue: Callable[[U, V], U],
        mergeCombiners: Callable[[U, U], U],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, U]]:
        """Return the stream of (key, its values of the batch combined).

        Args:
            createCombiner: ``v -> c``, for the first value of a key in a partition.
            mergeValue: ``(c, v) -> c``.
            mergeCombiners: ``(c, d) -> c``, across partitions.
            numPartitions: partitions of each RDD.
            partitionFunc: as in :meth:`updateStateByKey`.

        >>> def as_list(v):
        ...     return [v]
        >>> def with_one(vs, v):
        ...     return [*vs, v]
        >>> def both(vs, ws):
        ...     return sorted(vs + ws)
        >>> batches = [[("a", 1), ("a", 2)]]
        >>> run(batches, lambda pairs: pairs.combineByKey(as_list, with_one, both))
        [[('a', [1, 2])]]
        """
        operation = self._operation("combineByKey", createCombiner, "createCombiner(v) -> c")
        require_function(mergeValue, operation, "mergeValue(c, v) -> c", 2)
        require_function(mergeCombiners, operation, "mergeCombiners(c, d) -> c", 2)
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        combiner = Combiner(createCombiner, mergeValue, mergeCombiners)
        return self._transformed(
            operation, lambda rdd: combine_by_key(rdd, combiner, partitioner, operation)
        )

    def partitionBy(
        self: DStream[tuple[K, V]],
        numPartitions: int,
        partitionFunc: Callable[[K], int] = portable_hash,
    ) -> DStream[tuple[K, V]]:
        """Return the stream with each pair in the partition of its key.

        Args:
            numPartitions: partitions of each RDD.
            partitionFunc: ``key -> int``. Its default stands for :func:`~dstreams.stable_hash`.

        >>> run([[(0, "a"), (1, "b")]], lambda pairs: pairs.partitionBy(2, lambda key: key).glom())
        [[[(0, 'a')], [(1, 'b')]]]
        """
        operation = self._operation("partitionBy")
        func = None if partitionFunc is portable_hash else partitionFunc
        partitioner = self._partitioner(numPartitions, func, operation)
        return self._transformed(
            operation,
            lambda rdd: BlockPairsRDD(
                shuffle_pairs(rdd, partitioner, Side.BATCH, operation), Side.BATCH
            ),
        )

    @overload
    def foreachRDD(self, func: Callable[[RDD[T_co]], Any]) -> None: ...

    @overload
    def foreachRDD(self, func: Callable[[datetime, RDD[T_co]], Any]) -> None: ...

    @overload
    def foreachRDD(self, func: Callable[[datetime, RDD[T_co], int], Any]) -> None: ...

    @overload
    def foreachRDD(self, func: BatchSink) -> None: ...

    def foreachRDD(self, func: Callable[..., Any] | BatchSink) -> None:
        """Call *func* on the driver with each RDD.

        The batch that was running when a driver died runs again after a restart, with the same
        records, time and batch id: by these a function can tell that it has seen a batch before.
        A batch that was committed does not run again. Where an older copy of the checkpoint is put
        back, other records come under the same batch ids; who has to tell these too writes a
        :class:`dstreams.sinks.BatchSink`, which is told the beginning of its batch.

        Args:
            func: ``f(rdd)``, ``f(time, rdd)`` with the batch time as a datetime, or
                ``f(time, rdd, batchId)`` with the number of the batch in its stream, from 0. A
                parameter named ``batchId`` gets the number wherever it stands, so that
                ``f(rdd, *, batchId)`` is possible too. It should run one Spark job; each job
                computes what is not persisted again. Or a sink, such as
                :class:`dstreams.sinks.TransactionalSink`.

        Raises:
            InvalidStreamError: *func* takes other arguments, or is a sink of the name of another.
            StreamLifecycleError: the context has started.

        >>> def show(time, rdd):
        ...     print(time.second % 60, rdd.collect())
        >>> stream = ssc.queueStream([[1, 2], [3]])
        >>> stream.foreachRDD(show)
        >>> batches = ssc.step(2)
        1 [1, 2]
        2 [3]
        """
        if isinstance(func, BatchSink):
            self._output_to("foreachRDD", func)
        else:
            writer = ForeachBatch.of(func, self._operation("foreachRDD"))
            self._output("foreachRDD", writer, writer.promise)

    def pprint(self, num: int = 10) -> None:
        """Print the first *num* elements of each RDD, in one job.

        Raises:
            InvalidStreamError: *num* is no positive integer.
            StreamLifecycleError: the context has started.

        >>> ssc.queueStream([[1, 2, 3]]).pprint(2)
        >>> batches = ssc.step()
        -------------------------------------------
        Time: ...
        -------------------------------------------
        1
        2
        ...
        <BLANKLINE>
        """
        self._output("pprint", ConsolePrinter(num), ConsolePrinter.promise)

    def mapValues(self: DStream[tuple[K, V]], f: Callable[[V], U]) -> DStream[tuple[K, U]]:
        """Return the stream of ``(k, f(v))``; partitioning is kept.

        >>> run([[("a", 1)]], lambda pairs: pairs.mapValues(lambda v: v + 1))
        [[('a', 2)]]
        """
        operation = self._operation("mapValues", f, "f(v) -> w")
        return self._each(operation, MapValues(f, operation))

    def flatMapValues(
        self: DStream[tuple[K, V]], f: Callable[[V], Iterable[U]]
    ) -> DStream[tuple[K, U]]:
        """Return the stream of ``(k, w)`` for each w of ``f(v)``; partitioning is kept.

        >>> run([[("a", 2), ("b", 0)]], lambda pairs: pairs.flatMapValues(range))
        [[('a', 0), ('a', 1)]]
        """
        operation = self._operation("flatMapValues", f, "f(v) -> iterable of w")
        return self._each(operation, FlatMapValues(f, operation))

    def glom(self) -> DStream[list[T_co]]:
        """Return the stream of lists, one for each partition.

        >>> run([[1, 2, 3, 4]], lambda numbers: numbers.glom())
        [[[1, 2], [3, 4]]]
        """
        return self._transformed(self._operation("glom"), lambda rdd: rdd.glom())

    def cache(self: Self) -> Self:
        """Persist the RDDs of this stream, serialized in memory."""
        return self.persist(StorageLevel.MEMORY_ONLY)

    def persist(self: Self, storageLevel: StorageLevel = StorageLevel.MEMORY_ONLY) -> Self:
        """Persist the RDDs of this stream at a storage level.

        Raises:
            InvalidStreamError: *storageLevel* is none.
            StreamLifecycleError: the context has started.

        >>> from pyspark import StorageLevel
        >>> numbers = ssc.queueStream([[1, 2]]).persist(StorageLevel.MEMORY_AND_DISK)
        >>> numbers.foreachRDD(lambda rdd: print(rdd.is_cached))
        >>> batches = ssc.step()
        True
        """
        self._ssc._require_initialized("the storage level of a stream cannot be changed")
        if not isinstance(storageLevel, StorageLevel):
            raise InvalidStreamError(
                f"storageLevel must be a StorageLevel, got {type(storageLevel).__name__}"
            )
        self._options.storage_level = storageLevel
        return self

    def checkpoint(self: Self, interval: float) -> Self:
        """Make the RDDs of this stream durable every *interval* seconds.

        Stored state is made durable in every batch all the same. Of the stream that
        ``mapWithState`` returns, the interval says in which batches it looks for timeouts, where it
        does as Spark does: where ``spark.dstreams.mapWithState.timeouts`` is ``checkpoint``.

        Args:
            interval: seconds, a multiple of this stream's slide. Stateful streams have a default:
                the first multiple of the slide that is 10 seconds or more; with stored state ten
                slides.

        Raises:
            InvalidStreamError: *interval* is no positive duration; that it is a multiple of the
                slide is checked at start.
            StreamLifecycleError: the context has started.

        A storage level that was chosen before stays as it is.
        """
        self._ssc._require_initialized("the checkpoint interval of a stream cannot be changed")
        options, node = self._options, self._node
        options.checkpoint_ms = require_duration_ms(interval, "interval")
        is_persisted = options.storage_level is not None or node.default_storage is not None
        if not is_persisted and not isinstance(node, StateStoreDStream):
            options.storage_level = StorageLevel.MEMORY_ONLY
        return self

    @property
    def is_cached(self) -> bool:
        """Whether a storage level was chosen for this stream."""
        return self._options.storage_level is not None

    @property
    def is_checkpointed(self) -> bool:
        """Whether a checkpoint interval was chosen for this stream."""
        return self._options.checkpoint_ms is not None

    def groupByKey(
        self: DStream[tuple[K, V]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, Iterable[V]]]:
        """Return the stream of (key, iterable of its values of the batch, in no defined order).

        Args:
            numPartitions: partitions of each RDD.
            partitionFunc: as in :meth:`updateStateByKey`.

        >>> run([[("a", 1), ("a", 2)]], lambda pairs: pairs.groupByKey().mapValues(sorted))
        [[('a', [1, 2])]]
        """
        operation = self._operation("groupByKey")
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        return self._transformed(operation, lambda rdd: group_by_key(rdd, partitioner, operation))

    def countByValue(self: DStream[H]) -> DStream[tuple[H, int]]:
        """Return the stream of (value, how often it comes in the batch).

        >>> run([["a", "b", "a"]], lambda letters: letters.countByValue())
        [[('a', 2), ('b', 1)]]
        """
        operation = self._operation("countByValue")
        partitioner = self._partitioner(None, None, operation)
        ones = Combiner.of_reduction(add)
        return self._transformed(
            operation,
            lambda rdd: combine_by_key(
                rdd.mapPartitionsWithIndex(with_ones), ones, partitioner, operation
            ),
        )

    def toBlocks(
        self,
        schema: BlockSchema,
        blockRows: int = BLOCK_ROWS,
        *,
        format: LineFormat | None = None,
        mode: BadRecords = "FAILFAST",
        sep: str = ",",
    ) -> BlockDStream:
        """Return this stream's records in Arrow blocks, a column for each field.

        A record is a tuple or list of the columns in order, a dict of their names, an object with
        such attributes, or, where there is one column, its value. A dict may lack what may be null.

        With a *format* a record is a line, str or bytes of UTF-8, and is decoded. Blank lines are
        passed over, but for ``"text"``. Nothing is rounded: what does not fit its column makes the
        line a malformed one. Directly behind ``textFileStream`` and ``fileStream`` workers read the
        files themselves, where they are ``file:`` ones that are not compressed.

        Args:
            schema: the columns: a dataclass or NamedTuple, a dict of names and types (Python's or
                Arrow's), a ``pyarrow.Schema``, or a schema of Spark's as StructType or text. A type
                of Python holds no null unless it says ``| None``.
            blockRows: records a block has at most; the last block of a partition has fewer.
            format: what a line is. ``"json"``: an object, whose members are the columns by name; a
                member that is missing is null, one that is no column is passed over; times are
                texts of ISO 8601, with a zone where the column has one. ``"csv"``: values in the
                order of the columns; an empty one is null. ``"text"``: the value of the one column.
                None: records are no lines.
            mode: what becomes of a line that is malformed: ``FAILFAST``: it fails the batch, and is
                named; ``DROPMALFORMED``: it is left out, and counted in the log and in the batch's
                ``inputs``.
            sep: character between two values of ``"csv"``.

        Raises:
            InvalidStreamError: *schema* is none, *blockRows* is no positive integer, *format* or
                *mode* is unknown, or the format has no values of the type of a column.
            EnvironmentNotReadyError: pyarrow is not installed.
            UserFunctionError: in a batch, for a record that does not fit; it is named.

        >>> columns = {"word": str, "number": int}
        >>> run([[("a", 1), ("b", 2)]], lambda pairs: pairs.toBlocks(columns).count())
        [[2]]
        >>> lines = ['{"word": "a", "number": 1}', '{"word": "b"']
        >>> run([lines], lambda lines: lines.toBlocks(columns, format="json",
        ...     mode="DROPMALFORMED").toRows())
        [[('a', 1)]]
        """
        operation = self._operation("toBlocks")
        COUNT.require(blockRows, f"blockRows of {operation}")
        columns = schema_of(schema, operation)
        if format is not None:
            decoder = decoder_of(format, columns, operation, sep=sep)
            rule = BAD_RECORDS.of(mode, f"mode of {operation}")
            return self._ssc._blocks_of(
                self, operation, LinesToBlocks(decoder, operation, rule, blockRows), columns
            )
        make = partial(blocks_rdd, task=RowsToBlocks(columns, operation, blockRows))
        return self._ssc._blocks_of(self, operation, make, columns)

    def saveAsTextFiles(self, prefix: str, suffix: str | None = None) -> None:
        """Write each RDD as a directory of text files named ``prefix-TIME_IN_MS[.suffix]``.

        The directory appears when it is complete, or not at all, and a batch that runs again after
        a crash changes nothing in it. What is complete is never replaced: where the directory of a
        batch is another stream's, or of another history of the checkpoint, the stream stops with an
        ``OutputConflictError``, and the batch runs again when that is put right. In a store without
        rename, a directory is complete when it has a ``_SUCCESS``, which names what counts.

        Args:
            prefix: path or URL up to the dash: on a file system of Hadoop's, or one of fsspec's
                that can create a file only if it is absent (s3, gs, abfs).
            suffix: what follows the time after a dot. None: nothing.

        Raises:
            InvalidStreamError: *prefix* or *suffix* is no string.
            StreamLifecycleError: the context has started.

        >>> ssc.queueStream([["to be"]]).saveAsTextFiles(directory + "/lines", "txt")
        >>> batches = ssc.step()
        >>> spark.textFile(directory + "/lines-1000.txt").collect()
        ['to be']
        """
        self._output("saveAsTextFiles", TextFilesWriter(prefix, suffix), TextFilesWriter.promise)

    def saveToKafka(
        self,
        topic: str | Callable[[T_co], str],
        kafkaParams: Mapping[str, Any],
        *,
        key: Callable[[T_co], bytes | str | None] | None = None,
        value: Callable[[T_co], bytes | str | None] | None = None,
        headers: Callable[[T_co], Any] | None = None,
        partition: Callable[[T_co], int | None] | None = None,
        name: str | None = None,
        exactlyOnce: bool = True,
        commitTopic: str = DEFAULT_TOPIC,
    ) -> None:
        """Write each RDD into a topic of Kafka, each record exactly once.

        Who reads with ``isolation.level=read_committed`` sees each partition of a batch whole or
        not at all, and once, whatever dies on the way: it is ``foreachRDD`` with a
        :class:`dstreams.kafka.KafkaSink`, which says how. An empty RDD writes nothing, and asks no
        broker. Needs the package confluent-kafka: ``pip install 'dstreams[kafka]'``.

        Args:
            topic: its name, or ``f(record) -> name``.
            kafkaParams: parameters of Kafka's producers; ``bootstrap.servers`` is needed.
            key: ``f(record)`` gives the key: bytes, str or None. None: there is none.
            value: likewise for the value. None: the record itself; and without *key*, too, records
                are pairs ``(key, value)``.
            headers: ``f(record)`` gives pairs of name and bytes, str or None. None: there are none.
            partition: ``f(record)`` gives the number of a partition, or None. None: that of Java's
                default partitioner, for each record.
            name: tells apart the sinks of one stream. None: the name of the topic, or ``kafka``
                where that is a function.
            exactlyOnce: False: a batch that runs again writes its records again. It is quicker.
            commitTopic: name of the topic that says which batches are there; made if need be.

        Raises:
            InvalidStreamError: an argument or a parameter cannot be, or another sink of this stream
                has the name.
            StreamLifecycleError: the context has started.

        >>> ssc.queueStream([[("a", "1")]]).saveToKafka(
        ...     "letters", {"bootstrap.servers": "localhost:9092"})
        """
        sink = KafkaSink(
            topic,
            kafkaParams,
            key=key,
            value=value,
            headers=headers,
            partition=partition,
            name=name,
            exactlyOnce=exactlyOnce,
            commitTopic=commitTopic,
        )
        self._output_to("saveToKafka", sink)

    @overload
    def transform(self, func: Callable[[RDD[T_co]], RDD[U] | None]) -> DStream[U]: ...

    @overload
    def transform(self, func: Callable[[datetime, RDD[T_co]], RDD[U] | None]) -> DStream[U]: ...

    def transform(self, func: Callable[..., RDD[Any] | None]) -> DStream[Any]:
        """Return the stream of ``func(rdd)``, called on the driver for each batch.

        Args:
            func: ``f(rdd)`` or ``f(time, rdd)`` with the batch time as a datetime; None for a batch
                without an RDD.

        >>> run([[3, 1, 2]], lambda numbers: numbers.transform(lambda rdd: rdd.sortBy(abs)))
        [[1, 2, 3]]
        """
        operation = self._operation("transform")
        count = require_arity(func, (1, 2), operation, "f(rdd) -> RDD or f(time, rdd) -> RDD")
        timed = _timed(func) if count == 2 else _untimed(func)
        return self._ssc._combine((self,), timed, operation)

    @overload
    def transformWith(
        self,
        func: Callable[[RDD[T_co], RDD[U]], RDD[S] | None],
        other: DStream[U],
        keepSerializer: bool = False,
    ) -> DStream[S]: ...

    @overload
    def transformWith(
        self,
        func: Callable[[datetime, RDD[T_co], RDD[U]], RDD[S] | None],
        other: DStream[U],
        keepSerializer: bool = False,
    ) -> DStream[S]: ...

    def transformWith(
        self,
        func: Callable[..., RDD[Any] | None],
        other: DStream[Any],
        keepSerializer: bool = False,
    ) -> DStream[Any]:
        """Return the stream of ``func(rdd of this, rdd of other)``, called on the driver.

        Args:
            func: ``f(a, b)`` or ``f(time, a, b)`` with the batch time as a datetime. Where a parent
                has no RDD, it gets an empty one.
            other: stream of the same slide duration.
            keepSerializer: taken for compatibility; RDDs know their serializer.

        >>> run([[1, 2]], lambda a, b: a.transformWith(lambda x, y: x.subtract(y), b), [[2]])
        [[1]]
        """
        operation = self._operation("transformWith")
        shape = "f(rdd, rdd) -> RDD or f(time, rdd, rdd) -> RDD"
        count = require_arity(func, (2, 3), operation, shape)
        timed = _timed(func) if count == 3 else _untimed(func)
        return self._ssc._combine((self, other), timed, operation)

    def repartition(self, numPartitions: int) -> DStream[T_co]:
        """Return the stream with *numPartitions* partitions in each RDD.

        >>> run([[1, 2, 3]], lambda numbers: numbers.repartition(1).glom())
        [[[1, 2, 3]]]
        """
        operation = self._operation("repartition")
        count = self._require_partitions(numPartitions, operation)
        return self._transformed(operation, lambda rdd: spread(rdd, count))

    def union(self, other: DStream[U]) -> DStream[T_co | U]:
        """Return the stream of the elements of this stream and then of *other*.

        Raises:
            InvalidStreamError: *other* has another context or slide duration.

        >>> run([[1], []], lambda a, b: a.union(b), [[2], [3]])
        [[1, 2], [3]]
        """
        return self._transformed(self._operation("union"), lambda a, b: a.union(b), other)

    def cogroup(
        self: DStream[tuple[K, V]],
        other: DStream[tuple[K, W]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, tuple[Iterable[V], Iterable[W]]]]:
        """Return the stream of (key, (values here, values in *other*)).

        Args:
            other: stream of pairs, of the same slide duration.
            numPartitions: partitions of each RDD.
            partitionFunc: as in :meth:`updateStateByKey`.

        >>> def lists(sides):
        ...     return [list(side) for side in sides]
        >>> run([[("a", 1)]], lambda a, b: a.cogroup(b).mapValues(lists), [[("b", 2)]])
        [[('a', [[1], []]), ('b', [[], [2]])]]
        """
        operation = self._operation("cogroup")
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        return self._transformed(
            operation, lambda a, b: cogroup_by_key(a, b, partitioner, operation), other
        )

    def join(
        self: DStream[tuple[K, V]],
        other: DStream[tuple[K, W]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, tuple[V, W]]]:
        """Return the stream of (key, (v, w)) for each pair of values that meet.

        Args:
            other: stream of pairs, of the same slide duration.
            numPartitions: partitions of each RDD.
            partitionFunc: as in :meth:`updateStateByKey`.

        >>> run([[("a", 1), ("b", 2)]], lambda a, b: a.join(b), [[("a", 3)]])
        [[('a', (1, 3))]]
        """
        return self._joined("join", other, numPartitions, partitionFunc)

    def leftOuterJoin(
        self: DStream[tuple[K, V]],
        other: DStream[tuple[K, W]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, tuple[V, W | None]]]:
        """Return the join, with (key, (v, None)) where *other* has no such key.

        Arguments as of :meth:`join`.

        >>> run([[("a", 1)]], lambda a, b: a.leftOuterJoin(b), [[("b", 2)]])
        [[('a', (1, None))]]
        """
        return self._joined("leftOuterJoin", other, numPartitions, partitionFunc, all_left=True)

    def rightOuterJoin(
        self: DStream[tuple[K, V]],
        other: DStream[tuple[K, W]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, tuple[V | None, W]]]:
        """Return the join, with (key, (None, w)) where this stream has no such key.

        Arguments as of :meth:`join`.

        >>> run([[("a", 1)]], lambda a, b: a.rightOuterJoin(b), [[("b", 2)]])
        [[('b', (None, 2))]]
        """
        return self._joined("rightOuterJoin", other, numPartitions, partitionFunc, all_right=True)

    def fullOuterJoin(
        self: DStream[tuple[K, V]],
        other: DStream[tuple[K, W]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, tuple[V | None, W | None]]]:
        """Return the join, with None for the side that has no such key.

        Arguments as of :meth:`join`.

        >>> run([[("a", 1)]], lambda a, b: a.fullOuterJoin(b), [[("b", 2)]])
        [[('a', (1, None)), ('b', (None, 2))]]
        """
        return self._joined(
            "fullOuterJoin", other, numPartitions, partitionFunc, all_left=True, all_right=True
        )

    def slice(self, begin: datetime | float, end: datetime | float) -> list[RDD[T_co]]:
        """Return the RDDs of this stream from *begin* to *end*, both included.

        Those of batches that ran and are remembered
        (:meth:`~dstreams.StreamingContext.remember`); unlike in Spark none is computed.

        Args:
            begin: batch time as a datetime (naive: local time) or in seconds since the epoch; a
                time between two batches is floored.
            end: likewise.

        Raises:
            StreamLifecycleError: the context does not run, or no output uses this stream.

        >>> ssc.remember(10)
        >>> numbers = ssc.queueStream([[1], [2], [3]])
        >>> numbers.foreachRDD(lambda rdd: None)
        >>> batches = ssc.step(3)
        >>> [rdd.collect() for rdd in numbers.slice(2, 3)]
        [[2], [3]]
        """
        begin_ms, end_ms = batch_time_ms(begin, "begin"), batch_time_ms(end, "end")
        return self._ssc._remembered(self._node, begin_ms, end_ms)

    def latest(self) -> RDD[T_co] | None:
        """Return the newest RDD of this stream, as of the last batch that ran.

        For a look at a stream between two steps, or while it runs: what is done with the RDD is a
        job of the caller's, beside the batches. Like those of :meth:`slice` it may be computed
        again from its input where nothing persists it.

        Returns:
            The RDD; None where the stream had none in any batch that is remembered.

        Raises:
            StreamLifecycleError: no batch has run yet, the context has stopped, or no output uses
                this stream.

        >>> doubled = ssc.queueStream([[1], [2]]).map(lambda x: 2 * x)
        >>> doubled.foreachRDD(lambda rdd: None)
        >>> batches = ssc.step(2)
        >>> doubled.latest().collect()
        [4]
        """
        newest = self._ssc._newest(self._node)
        return None if newest is None else newest[1]

    def show(self, n: int = 20) -> None:
        """Print the first *n* elements of the newest RDD (:meth:`latest`), in one job.

        Raises:
            InvalidStreamError: *n* is no positive integer.
            StreamLifecycleError: as in :meth:`latest`.

        >>> words = ssc.queueStream([["to", "be", "or"]])
        >>> words.foreachRDD(lambda rdd: None)
        >>> batches = ssc.step()
        >>> words.show(2)
        -------------------------------------------
        Time: ...
        -------------------------------------------
        to
        be
        ...
        <BLANKLINE>
        """
        COUNT.require(n, "n of show")
        newest = self._ssc._newest(self._node)
        if newest is None:
            print(f"{self._node.operation} had no RDD in the last batch")  # noqa: T201
        else:
            ConsolePrinter(n).print(*newest)

    def window(self, windowDuration: float, slideDuration: float | None = None) -> DStream[T_co]:
        """Return the stream of all elements of each window, those of the oldest batch first.

        A level that the result is persisted at is one for the batches of this stream. A window
        without elements has an empty RDD.

        >>> run([[1], [2], [3], []], lambda numbers: numbers.window(2))
        [[1], [1, 2], [2, 3], [3]]
        """
        operation = self._operation("window")
        times = WindowTimes.of(windowDuration, slideDuration, self._node.slide_ms, operation)
        return self._derived(WindowedDStream(self._node, times, operation))

    def reduceByWindow(
        self: DStream[T],
        reduceFunc: Callable[[T, T], T],
        invReduceFunc: Callable[[T, T], T] | None,
        windowDuration: float,
        slideDuration: float | None = None,
        *,
        uid: str | None = None,
    ) -> DStream[T]:
        """Return the stream of one element for each window: all of its elements reduced.

        Args:
            reduceFunc: ``(x, y) -> z``, associative and commutative.
            invReduceFunc: undoes *reduceFunc*: ``(reduced, left) -> reduced``. With it a window of
                five slides or more is made from the window before, which needs a checkpoint
                directory. None: each window is reduced anew.
            windowDuration: seconds.
            slideDuration: seconds.
            uid: as of :meth:`reduceByKeyAndWindow`.

        A window without elements has none in the result, too; where *invReduceFunc* is used that is
        so only before the first element came: later there is what was left when all was taken away.

        >>> run([[1, 5], [2], []], lambda numbers: numbers.reduceByWindow(max, None, 2))
        [[5], [5], [2]]
        """
        operation = self._operation("reduceByWindow", reduceFunc, "reduceFunc(x, y) -> z", 2)
        return self._reduced_by_window(
            operation,
            self.map(with_no_key),
            (reduceFunc, invReduceFunc, None),
            (windowDuration, slideDuration),
            StablePartitioner(1),
            uid,
        ).map(itemgetter(1))

    def countByWindow(
        self,
        windowDuration: float,
        slideDuration: float | None = None,
        *,
        uid: str | None = None,
    ) -> DStream[int]:
        """Return the stream of the number of elements of each window.

        Each batch is counted once. A window without elements has no number; one of five slides or
        more has 0 once there were elements, and needs a checkpoint directory.

        >>> run([[7, 8], [9], [], []], lambda numbers: numbers.countByWindow(2))
        [[2], [3], [1], []]
        """
        return self._reduced_by_window(
            self._operation("countByWindow"),
            self.mapPartitions(number_of),
            (add, sub, None),
            (windowDuration, slideDuration),
            StablePartitioner(1),
            uid,
        ).map(itemgetter(1))

    def countByValueAndWindow(
        self: DStream[H],
        windowDuration: float,
        slideDuration: float | None = None,
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[H] = None,
        uid: str | None = None,
    ) -> DStream[tuple[H, int]]:
        """Return the stream of (value, how often it comes in the window).

        Each batch is counted once. A window of five slides or more needs a checkpoint directory.

        State: of such a window, a number for each value in it.

        >>> run([["a"], ["a", "b"], []], lambda letters: letters.countByValueAndWindow(2))
        [[('a', 1)], [('a', 2), ('b', 1)], [('a', 1), ('b', 1)]]
        """
        operation = self._operation("countByValueAndWindow")
        return self._reduced_by_window(
            operation,
            self.map(pair_with_one),
            (add, sub, None),
            (windowDuration, slideDuration),
            self._partitioner(numPartitions, partitionFunc, operation),
            uid,
            is_counted=is_counted,
        )

    def groupByKeyAndWindow(
        self: DStream[tuple[K, V]],
        windowDuration: float,
        slideDuration: float | None = None,
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, Iterable[V]]]:
        """Return the stream of (key, iterable of its values in the window).

        The values of an older batch come before those of a younger one; within a batch they are in
        no defined order. Each batch is grouped and shuffled once, windows only put lists together.
        Differs from the source in that it needs no checkpoint directory, and in that a key of which
        all values left is not in the result: from five slides on the source keeps it, with no
        values, for ever.

        >>> batches = [[("a", 1)], [("a", 2)], [("a", 3)]]
        >>> run(batches, lambda pairs: pairs.groupByKeyAndWindow(2).mapValues(sorted))
        [[('a', [1])], [('a', [1, 2])], [('a', [2, 3])]]
        """
        operation = self._operation("groupByKeyAndWindow")
        return self._reduced_by_window(
            operation,
            self._each(operation, MapValues(as_list, operation)),
            (iadd, None, None),
            (windowDuration, slideDuration),
            self._partitioner(numPartitions, partitionFunc, operation),
            empty_for_none=False,
        ).mapValues(ResultIterable)

    def reduceByKeyAndWindow(
        self: DStream[tuple[K, V]],
        func: Callable[[V, V], V],
        invFunc: Callable[[V, V], V] | None,
        windowDuration: float,
        slideDuration: float | None = None,
        numPartitions: int | None = None,
        filterFunc: Callable[[tuple[K, V]], Any] | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
        uid: str | None = None,
    ) -> DStream[tuple[K, V]]:
        """Return the stream of (key, its values in the window reduced by *func*).

        Each batch is reduced by key and shuffled once. With *invFunc* a window of five slides or
        more is made from the window before: what left is taken away, what entered is added, and
        the functions are called for those keys only, so that the cost does not grow with the
        window. A key of which all values left stays in the result, with what is left of its value,
        until *filterFunc* drops it. A shorter window, and one without *invFunc*, is reduced anew
        from the reduced batches: *invFunc* is never called, and a key is in the result as long as
        it is in the window.

        Args:
            func: ``(v, w) -> x``, associative and commutative; may change v in place.
            invFunc: undoes *func*: ``(reduced, left) -> reduced``, so that
                ``invFunc(func(x, y), y)`` is x. None: each window is reduced anew.
            windowDuration: seconds.
            slideDuration: seconds.
            numPartitions: partitions of each resulting RDD.
            filterFunc: ``((key, value)) -> bool``, with *invFunc* called for every pair of the
                result; one that fails it is dropped. From five slides on it is dropped from what
                the next window begins with, too: what is left of its values is in no later window.
                Without *invFunc* it is not used, as in the source, and a warning says so: use
                :meth:`filter`.
            partitionFunc: where keys belong.
            uid: name under which the state of a window that uses *invFunc* is kept, so that a
                changed program finds it (:meth:`StreamingContext.restore`). None: one from its
                place.

        Returns:
            Stream of ``(key, value)``, one RDD for each window; with *invFunc* there is no RDD
            while no batch of the window had one. Where *invFunc* is used it is persisted,
            serialized in memory, and needs a checkpoint directory.

        State: where *invFunc* is used, one value for each key until *filterFunc* drops it.
        Semantics: pyspark.streaming.DStream.reduceByKeyAndWindow (4.3).

        >>> from operator import add, sub
        >>> batches = [[("a", 1)], [("a", 2)], [], []]
        >>> run(batches, lambda pairs: pairs.reduceByKeyAndWindow(add, sub, 2))
        [[('a', 1)], [('a', 3)], [('a', 2)], []]
        """
        operation = self._operation("reduceByKeyAndWindow", func, "func(v, w) -> x", 2)
        if filterFunc is not None and invFunc is None:
            logger.warning(
                "filterFunc of %s is not used without invFunc, as in pyspark.streaming; write "
                ".filter(filterFunc) behind it to have it",
                operation,
            )
        return self._reduced_by_window(
            operation,
            self,
            (func, invFunc, filterFunc),
            (windowDuration, slideDuration),
            self._partitioner(numPartitions, partitionFunc, operation),
            uid,
        )

    @overload
    def updateStateByKey(
        self: DStream[tuple[K, V]],
        updateFunc: Callable[[list[V], S | None], S | None],
        numPartitions: int | None = None,
        initialRDD: RDD[tuple[K, S]] | Iterable[tuple[K, S]] | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
        preservePartitioning: bool = True,
        form: Literal["values"] = "values",
        uid: str | None = None,
    ) -> UpdateStateDStream[K, S]: ...

    @overload
    def updateStateByKey(
        self: DStream[tuple[K, V]],
        updateFunc: Callable[[datetime, K, list[V], S | None], S | None],
        numPartitions: int | None = None,
        initialRDD: RDD[tuple[K, S]] | Iterable[tuple[K, S]] | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
        preservePartitioning: bool = True,
        form: Literal["keyed"],
        uid: str | None = None,
    ) -> UpdateStateDStream[K, S]: ...

    @overload
    def updateStateByKey(
        self: DStream[tuple[K, V]],
        updateFunc: Callable[[Iterator[tuple[K, list[V], S | None]]], Iterable[tuple[K, S]]],
        numPartitions: int | None = None,
        initialRDD: RDD[tuple[K, S]] | Iterable[tuple[K, S]] | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
        preservePartitioning: bool = True,
        form: Literal["iterator"],
        uid: str | None = None,
    ) -> UpdateStateDStream[K, S]: ...

    @overload
    def updateStateByKey(
        self,
        updateFunc: BlockUpdateFunc,
        numPartitions: int | None = None,
        initialRDD: pa.Table | pa.RecordBatch | None = None,
        *,
        form: Literal["blocks"],
        schema: BlockSchema,
        state: BlockSchema,
        uid: str | None = None,
    ) -> BlockStateDStream: ...

    def updateStateByKey(
        self,
        updateFunc: Callable[..., Any],
        numPartitions: int | None = None,
        initialRDD: Any = None,
        *,
        partitionFunc: PartitionFunc[Any] = None,
        preservePartitioning: bool = True,
        form: str = "values",
        schema: BlockSchema | None = None,
        state: BlockSchema | None = None,
        uid: str | None = None,
    ) -> UpdateStateDStream[Any, Any] | BlockStateDStream:
        """Return the stream of the state of every key, updated by each batch.

        The function is called for *every* key that has a state or new values, in every batch: also
        for keys without new values, and in batches without an RDD. 0, "", [] and False are states.

        Args:
            updateFunc: by *form*:
                ``"values"``: ``f(values, state) -> state``, None drops the key;
                ``"keyed"``: ``f(time, key, values, state) -> state``, None drops the key, the time
                being the batch time as a datetime;
                ``"iterator"``: ``f(iterator of (key, values, state)) -> iterator of (key, state)``;
                ``"blocks"``: ``f(keys, values, state) -> state`` over Arrow blocks
                (:meth:`BlockDStream.updateStateByKey`).
                *values* is a new list, in no defined order, empty without new values; *state* is
                None when there is none. Both may be changed in place.
            numPartitions: partitions of the state. None: the default parallelism.
            initialRDD: pairs of key and state to begin with, each key once; an RDD or a collection.
                It waits for the first batch with an RDD.
            partitionFunc: ``key -> int``, or a :class:`~dstreams.StablePartitioner`. None:
                :func:`~dstreams.stable_hash`.
            preservePartitioning: whether the state claims to be partitioned as its input. False
                lets ``"iterator"`` functions change keys, and costs a shuffle of the whole state in
                every batch.
            form: how *updateFunc* is called.
            schema: with ``"blocks"`` the columns of a pair, that of the key first, as for
                :meth:`toBlocks`.
            state: with ``"blocks"`` the columns of the state, likewise. *initialRDD* is a table of
                Arrow then, and *partitionFunc* is not taken.
            uid: name under which the state is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Returns:
            Stream of ``(key, state)``, one RDD for each batch once there is a state. It is
            persisted, serialized in memory, and needs a checkpoint directory. Its ``stateStore()``
            is the state for a look from a notebook.

        Raises:
            InvalidStreamError: the function does not fit *form* or cannot be sent to workers, or
                *numPartitions*, *partitionFunc* or *initialRDD* is not what it should be.

        State: one entry for each key until the function drops it; each batch costs all of them.
        Semantics: org.apache.spark.streaming.dstream.StateDStream (4.3).

        >>> def total(values, state):
        ...     return sum(values) + (state or 0)
        >>> batches = [[("a", 1)], [("a", 2), ("b", 1)], []]
        >>> run(batches, lambda pairs: pairs.updateStateByKey(total))
        [[('a', 1)], [('a', 3), ('b', 1)], [('a', 3), ('b', 1)]]
        """
        operation = self._operation("updateStateByKey")
        if form == "blocks":
            if partitionFunc is not None or not preservePartitioning:
                raise InvalidStreamError(
                    f"{operation} places the keys of blocks itself; leave partitionFunc and "
                    "preservePartitioning out"
                )
            blocks, key = self._blocks_of_pairs(schema, state, operation)
            return blocks.updateStateByKey(
                updateFunc, numPartitions, initialRDD, key=key, state=state, uid=uid
            )
        if schema is not None or state is not None:
            raise InvalidStreamError(
                f"schema and state of {operation} are columns of blocks; add form='blocks'"
            )
        update = UpdateFunction.checked(updateFunc, form, operation)
        require_picklable(updateFunc, operation)
        node = StateDStream(
            parent=self._node,
            update=update,
            partitioner=self._partitioner(numPartitions, partitionFunc, operation),
            preserves_partitioning=bool(preservePartitioning),
            initial=initial_states(initialRDD, self._ssc.sparkContext, operation),
            operation=operation,
        )
        self._ssc._require_initialized("transformations cannot be added")
        return UpdateStateDStream(node, self._ssc)._named(uid)

    def mapStateBlocks(
        self,
        f: BlockStateFunc,
        numPartitions: int | None = None,
        initial: pa.Table | pa.RecordBatch | None = None,
        *,
        schema: BlockSchema,
        state: BlockSchema,
        output: BlockSchema,
        uid: str | None = None,
    ) -> MapStateBlocksDStream:
        """Return what a function over blocks says of the keys of each batch, which have a state.

        The same as ``toBlocks(schema).mapStateBlocks(...)``, by the first column.

        Args:
            f: ``f(keys, values, state) -> (state, output)``
                (:meth:`BlockDStream.mapStateBlocks`).
            numPartitions: partitions of the state. None: the default parallelism.
            initial: keys and state to begin with, each key once: a table with columns of both.
            schema: columns of a pair, that of the key first, as for :meth:`toBlocks`.
            state: columns of the state, likewise.
            output: columns of the output, likewise.
            uid: name under which the state is kept. None: one from its place.

        Raises:
            As :meth:`updateStateByKey`.

        >>> import pyarrow as pa
        >>> import pyarrow.compute as pc
        >>> def add(keys, values, state):
        ...     total = pc.add(pc.fill_null(state.column("total"), 0), values.sum("number"))
        ...     return pa.record_batch({"total": total}), keys.append_column("now", total)
        >>> columns = {"word": str, "number": int}
        >>> now = {"word": str, "now": pa.int64()}
        >>> batches = [[("a", 1), ("b", 1)], [("a", 2)]]
        >>> run(batches, lambda pairs: pairs.mapStateBlocks(
        ...     add, schema=columns, state={"total": int}, output=now).toRows())
        [[('a', 1), ('b', 1)], [('a', 3)]]
        """
        operation = self._operation("mapStateBlocks")
        blocks, key = self._blocks_of_pairs(schema, state, operation)
        return blocks.mapStateBlocks(
            f, numPartitions, initial, key=key, state=state, output=output, uid=uid
        )

    def _blocks_of_pairs(
        self, schema: BlockSchema | None, state: BlockSchema | None, operation: str
    ) -> tuple[BlockDStream, str]:
        """Return the blocks of pairs, and the column of their key."""
        if schema is None or state is None:
            raise InvalidStreamError(
                f"{operation} in blocks needs schema=, the columns of a pair with that of the key "
                "first, and state=, the columns that are kept for a key"
            )
        blocks = self.toBlocks(schema)
        return blocks, schema_of(schema, operation).names[0]

    def mapWithState(
        self: DStream[tuple[K, V]], spec: StateSpec, *, uid: str | None = None
    ) -> MapWithStateDStream:
        """Return the stream of what a function emits for each record and the state of its key.

        Args:
            spec: the function, and what else is to be said (:class:`~dstreams.StateSpec`).
            uid: as in :meth:`updateStateByKey`.

        Returns:
            Stream of what the function emits, one RDD for each batch; its ``stateSnapshots()`` is
            the stream of all keys and states.

        Raises:
            InvalidStreamError: *spec* is no StateSpec.

        State: one entry for each key until the function removes it or it times out, in the first
        batch after it was without a record for longer than the timeout.
        Semantics: org.apache.spark.streaming.dstream.PairDStreamFunctions.mapWithState (4.3).

        >>> from dstreams import StateSpec
        >>> def count(key, value, state):
        ...     state.update((state.getOption or 0) + value)
        ...     return key, state.get
        >>> batches = [[("a", 1), ("b", 1)], [("a", 5)], []]
        >>> run(batches, lambda pairs: pairs.mapWithState(StateSpec.function(count)))
        [[('a', 1), ('b', 1)], [('a', 6)], []]
        """
        operation = self._operation("mapWithState")
        if not isinstance(spec, StateSpec):
            raise InvalidStreamError(
                f"{operation} needs a StateSpec, got {type(spec).__name__}; make one with "
                "StateSpec.function(f)"
            )
        timeouts = self._ssc._settings.map_with_state_timeouts
        function = MapWithStateDefinition(spec.mapping, spec.idle_ms, timeouts)
        partitioner = self._partitioner(spec.partitions, spec.partition_func, operation)
        return self._with_stored_state(function, partitioner, spec.initial, operation, uid)

    def flatMapGroupsWithState(
        self: DStream[tuple[K, V]],
        f: Callable[[K, Iterator[V], GroupState[S]], Iterable[U]],
        outputMode: str = "update",
        timeout: str = "none",
        *,
        eventTime: Callable[[V], datetime | int | None] | None = None,
        watermark: float | None = None,
        initialState: RDD[tuple[K, S]] | Iterable[tuple[K, S]] | None = None,
        numPartitions: int | None = None,
        partitionFunc: PartitionFunc[K] = None,
        keepTimer: bool = False,
        uid: str | None = None,
    ) -> MapWithStateDStream:
        """Return the stream of what a function returns for the values of each key of a batch.

        Args:
            f: ``f(key, iterator of values, state) -> rows``, called once for each key that has
                values in the batch, and, with empty values and ``state.hasTimedOut``, for each key
                whose timer is due. *state* is a :class:`~dstreams.GroupState`.
            outputMode: ``"update"`` or ``"append"``; says what the rows mean.
            timeout: ``"none"``; ``"processingTime"``: timers are set by
                ``state.setTimeoutDuration`` and are due in the first batch after their time; or
                ``"eventTime"``: timers are set by ``state.setTimeoutTimestamp`` and are due in the
                first batch whose watermark is after them. Values of an event time up to the
                watermark are late then, and left out.
            eventTime: ``value -> datetime (naive: local time), milliseconds since the epoch, or
                None``; goes with *watermark*.
            watermark: seconds that the watermark of a batch is behind the latest event time of the
                batches before.
            initialState: pairs of key and state to begin with, each key once; the function is
                called for their keys in the first batch.
            numPartitions: partitions of the state. None: the default parallelism.
            partitionFunc: as in :meth:`updateStateByKey`.
            keepTimer: let a timer stay that a call with values does not set again. False: it is
                none after the call, as in Spark.
            uid: as in :meth:`updateStateByKey`.

        Raises:
            InvalidStreamError: the function takes other arguments, or a mode or timeout is unknown.

        State: one entry for each key until the function removes it.
        Semantics: FlatMapGroupsWithStateExec (Spark 4.3); the processing time is the batch time.

        >>> def count(key, values, state):
        ...     state.update((state.getOption or 0) + len(list(values)))
        ...     return [(key, state.get)]
        >>> batches = [["a", "b", "a"], ["b"]]
        >>> def counts(words):
        ...     return words.map(lambda word: (word, 1)).flatMapGroupsWithState(count)
        >>> run(batches, counts)
        [[('a', 2), ('b', 1)], [('b', 2)]]
        """
        shape = "f(key, values, state) -> rows"
        operation = self._operation("flatMapGroupsWithState", f, shape, 3)
        if outputMode not in (OutputMode.Append.value, OutputMode.Update.value):
            raise InvalidStreamError(
                f"outputMode of {operation} is {outputMode!r}; the output mode of the function "
                "should be append or update"
            )
        clock = EventClock.checked(eventTime, watermark, timeout, operation)
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        skips = self._ssc._settings.skip_initial_keys
        groups = GroupsWithStateDefinition.of(f, timeout, clock, operation, keepTimer, skips)
        return self._with_stored_state(groups, partitioner, initialState, operation, uid, clock)

    def mapGroupsWithState(
        self: DStream[tuple[K, V]],
        f: Callable[[K, Iterator[V], GroupState[S]], U],
        timeout: str = "none",
        *,
        eventTime: Callable[[V], datetime | int | None] | None = None,
        watermark: float | None = None,
        initialState: RDD[tuple[K, S]] | Iterable[tuple[K, S]] | None = None,
        numPartitions: int | None = None,
        partitionFunc: PartitionFunc[K] = None,
        keepTimer: bool = False,
        uid: str | None = None,
    ) -> MapWithStateDStream:
        """Return the stream of one row for each call of :meth:`flatMapGroupsWithState`.

        Args:
            f: ``f(key, iterator of values, state) -> row``.
            timeout: as there, and so are the others.

        >>> def count(key, values, state):
        ...     state.update((state.getOption or 0) + len(list(values)))
        ...     return key, state.get
        >>> batches = [[("a", 1), ("a", 2)], [("a", 3)]]
        >>> run(batches, lambda pairs: pairs.mapGroupsWithState(count))
        [[('a', 2)], [('a', 3)]]
        """
        operation = self._operation("mapGroupsWithState", f, "f(key, values, state) -> row", 3)
        clock = EventClock.checked(eventTime, watermark, timeout, operation)
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        skips = self._ssc._settings.skip_initial_keys
        groups = GroupsWithStateDefinition.of(
            f, timeout, clock, operation, keepTimer, skips, is_map=True
        )
        return self._with_stored_state(groups, partitioner, initialState, operation, uid, clock)

    def _operation(self, name: str, f: Any = None, shape: str = "", count: int = 1) -> str:
        """Name an operation and its call site; with a *shape* check its function, too."""
        operation = f"{name} at {call_site()}"
        if shape:
            require_function(f, operation, shape, count)
        return operation

    @property
    def _options(self) -> StreamOptions:
        return self._ssc._graph.options_of(self._node)

    def _derived(self, node: Node) -> DStream[Any]:
        """Return the stream of a node that has just been made of this one's."""
        self._ssc._require_initialized("transformations cannot be added")
        return DStream(node, self._ssc)

    def _named(self: Self, uid: str | None) -> Self:
        """Return this stream, its state and progress kept under *uid* if that is not None."""
        self._ssc._graph.name(self._node, uid)
        return self

    def _transformed(
        self, operation: str, func: Callable[..., RDD[Any] | None], *others: DStream[Any]
    ) -> DStream[Any]:
        """Return the stream of ``func(rdd of this, rdds of the others...)``."""
        return self._ssc._combine((self, *others), _untimed(func), operation)

    def _each(
        self,
        operation: str,
        task: Callable[[int, Iterator[Any]], Iterable[Any]],
        keeps_partitioning: bool = True,
    ) -> DStream[Any]:
        """Return the stream of what *task* makes of each partition."""
        return self._transformed(
            operation, lambda rdd: rdd.mapPartitionsWithIndex(task, keeps_partitioning)
        )

    def _require_partitions(self, numPartitions: int | None, operation: str) -> int:
        if numPartitions is None:
            return self._ssc.sparkContext.defaultParallelism
        if isinstance(numPartitions, bool) or not isinstance(numPartitions, int):
            raise InvalidStreamError(
                f"numPartitions of {operation} must be an integer, got {numPartitions!r}"
            )
        if numPartitions < 1:
            raise InvalidStreamError(
                f"numPartitions of {operation} must be at least 1, got {numPartitions}"
            )
        return numPartitions

    def _joined(
        self,
        name: str,
        other: DStream[Any],
        numPartitions: int | None,
        partitionFunc: PartitionFunc[Any],
        *,
        all_left: bool = False,
        all_right: bool = False,
    ) -> DStream[Any]:
        operation = self._operation(name)
        join = partial(
            join_by_key,
            partitioner=self._partitioner(numPartitions, partitionFunc, operation),
            all_left=all_left,
            all_right=all_right,
            operation=operation,
        )
        return self._transformed(operation, join, other)

    def _partitioner(
        self,
        numPartitions: int | None,
        partitionFunc: PartitionFunc[Any],
        operation: str,
    ) -> StablePartitioner:
        if isinstance(partitionFunc, StablePartitioner):
            if numPartitions not in (None, partitionFunc.numPartitions):
                raise InvalidStreamError(
                    f"{operation} has numPartitions {numPartitions}, but its partitioner has "
                    f"{partitionFunc.numPartitions}; give one of the two"
                )
            return partitionFunc
        if partitionFunc is not None:
            self._operation("partitionFunc", partitionFunc, "f(key) -> int")
        count = self._require_partitions(numPartitions, operation)
        return StablePartitioner(count, partitionFunc)

    def _reduced_by_window(
        self,
        operation: str,
        pairs: DStream[Any],
        functions: tuple[Any, Any, Any],
        durations: tuple[float, float | None],
        partitioner: StablePartitioner,
        uid: str | None = None,
        *,
        is_counted: Callable[[Any], bool] | None = None,
        empty_for_none: bool = True,
    ) -> DStream[Any]:
        """Return the stream of *pairs* reduced over a window, from the window before or anew.

        *is_counted* says of a pair whether anything of it is left, None where nobody can; without
        an inverse a window without any RDD has an empty one if *empty_for_none*.
        """
        func, inverse, keeps = functions
        times = WindowTimes.of(*durations, self._node.slide_ms, operation)
        if inverse is not None:
            require_function(inverse, operation, "inverse(reduced, left) -> reduced", 2)
        if keeps is not None:
            require_function(keeps, operation, "filterFunc((key, value)) -> bool")
        reduction = Reduction(func, f"reduce function {describe(func)} of {operation}")
        batches = ReducedDStream(pairs._node, reduction, partitioner, operation)
        is_scala = self._ssc._settings.window_inverse == "scala"
        if inverse is None or (times.slides < _SLIDES_OF_INVERSE and not is_scala):
            is_there = inverse is None and empty_for_none
            window = WindowedDStream(batches, times, operation, is_there)
            anew = self._derived(ReducedDStream(window, reduction, partitioner, operation))
            return (anew if inverse is None or keeps is None else anew.filter(keeps))._named(uid)
        keeps = is_counted or keeps
        window_functions = WindowFunctions(
            reduction,
            UserFunction(inverse, f"inverse function {describe(inverse)} of {operation}"),
            keeps and UserFunction(keeps, f"filter {describe(keeps)} of {operation}"),
            drops_only_empty=is_counted is not None,
            is_scala=is_scala,
        )
        node = ReducedWindowedDStream(batches, window_functions, times, operation)
        return self._derived(node)._named(uid)

    def _with_stored_state(
        self,
        function: MapWithStateDefinition | GroupsWithStateDefinition,
        partitioner: StablePartitioner,
        initial: RDD[Any] | Iterable[tuple[Any, Any]] | None,
        operation: str,
        uid: str | None,
        clock: EventClock | None = None,
    ) -> MapWithStateDStream:
        self._ssc._require_initialized("transformations cannot be added")
        node = StateStoreDStream(
            parent=self._node,
            function=function,
            partitioner=partitioner,
            initial=initial_states(initial, self._ssc.sparkContext, operation),
            operation=operation,
            delay_ms=None if clock is None else clock.delay_ms,
        )
        return MapWithStateDStream(node, self._ssc)._named(uid)

    def _output_to(self, name: str, sink: BatchSink) -> None:
        """Add a sink, unless another one would take its batches for its own."""
        for output in self._ssc._graph.outputs:
            if output.identity == sink.identity is not None:
                raise InvalidStreamError(
                    f"{self._operation(name)} has a {type(sink).__name__} of the "
                    f"{sink.identity}, and so has {output.operation}; give each its own name"
                )
        self._output(name, sink.write_batch, sink.promise, sink.identity)

    def _output(
        self,
        name: str,
        func: Callable[[OutputBatch, RDD[Any]], None],
        promise: DeliveryGuarantee,
        identity: str | None = None,
    ) -> None:
        self._ssc._require_initialized("output operations cannot be added")
        self._ssc._graph.outputs.append(
            OutputOperation(self._node, func, self._operation(name), promise, identity)
        )


class UpdateStateDStream(DStream[tuple[K, S]]):
    """The state of ``updateStateByKey``, and a way to look at it as at stored state."""

    def stateSnapshots(self) -> DStream[tuple[K, S]]:
        """Return the stream of (key, state) of every key, after each batch: this one."""
        return self

    def stateStore(self, batchTime: datetime | float | None = None) -> RDD[tuple[K, S, None]]:
        """Return the state as an RDD, for a look from a notebook, also while the stream runs.

        Args:
            batchTime: the batch after which the state is wanted, as a datetime (naive: local time)
                or in seconds since the epoch; a time between two batches is floored. It must be
                remembered: the newest one is, and older ones as
                :meth:`~dstreams.StreamingContext.remember` says. None: the newest.

        Returns:
            RDD of (key, state, None), as of ``mapWithState``; there are no timeouts here.

        Raises:
            InvalidStreamError: the state after that batch is not remembered, or was never there.
            StreamLifecycleError: the context does not run, or no batch has made a state yet.

        >>> ssc.checkpoint(directory)
        >>> pairs = ssc.queueStream([[("a", 1)], [("a", 2)]])
        >>> counts = pairs.updateStateByKey(lambda values, state: sum(values) + (state or 0))
        >>> counts.foreachRDD(lambda rdd: None)
        >>> batches = ssc.step(2)
        >>> counts.stateStore().collect()
        [('a', 3, None)]
        """
        return state_rdd(self, batchTime).map(_without_timeout)


class MapWithStateDStream(DStream[Any]):
    """What the function of ``mapWithState`` emits, and a way to all of the state.

    Semantics: org.apache.spark.streaming.dstream.MapWithStateDStream (4.3).
    """

    def stateSnapshots(self) -> DStream[tuple[Any, Any]]:
        """Return the stream of (key, state) of every key, after each batch.

        It reads the whole state, so a batch costs as much as there is.
        """
        if not isinstance(self._node, StateStoreDStream):
            raise InvalidStreamError(f"{self._node.operation} has no stored state")
        operation = self._operation("stateSnapshots")
        return self._derived(SnapshotDStream(self._node, itemgetter(0), operation))

    def stateStore(
        self, batchTime: datetime | float | None = None
    ) -> RDD[tuple[Any, Any, int | None]]:
        """Return the state as an RDD, for a look from a notebook, also while the stream runs.

        Args:
            batchTime: the batch after which the state is wanted, as a datetime (naive: local time)
                or in seconds since the epoch; a time between two batches is floored. At least the
                batches since the last but one snapshot of the state are kept. None: the newest
                state there is now.

        Returns:
            RDD of (key, state, when the key is due in milliseconds since the epoch or None), of one
            version; what batches change later is not in it. Reading a version that is not the
            newest is slow, and works for as long as it is kept.

        Raises:
            InvalidStreamError: the state after that batch is not kept, or was never there.
            StreamLifecycleError: the context does not run, or no batch has made a state yet.
        """
        time_ms = None if batchTime is None else batch_time_ms(batchTime, "batchTime")
        engine = self._ssc._engine
        entries = None
        if engine is not None:
            if time_ms is not None:
                since_ms = time_ms - engine.plan.zero_ms
                time_ms -= since_ms % self._node.slide_ms
            planned = engine.plan.nodes.get(self._node)
            if planned is not None:
                states = engine.rdds.states
                entries = states.entries(planned.uid, self._node.operation, time_ms)
        if entries is None:
            raise StreamLifecycleError(
                f"{self._node.operation} has no state yet, or the context has stopped"
            )
        return entries.map(_state_and_timeout)


def state_rdd(stream: DStream[T], batchTime: datetime | float | None) -> RDD[T]:
    """Return the RDD of a stream that is the state of each batch, after one that is remembered."""
    node, ssc = stream._node, stream._ssc
    newest = ssc._newest(node)
    if newest is None:
        raise StreamLifecycleError(f"{node.operation} has no state yet")
    time_ms, state = newest
    if batchTime is not None:
        wanted_ms = batch_time_ms(batchTime, "batchTime")
        remembered = ssc._remembered(node, wanted_ms, wanted_ms)
        if not remembered:
            raise InvalidStreamError(
                f"the state of {node.operation} after the batch at {wanted_ms} ms is not "
                f"remembered, that of the batch at {time_ms} ms is; let remember(seconds) say "
                "for how long states are to be kept"
            )
        (state,) = remembered
    return state


def _timed(func: Callable[..., RDD[Any] | None]) -> TransformFunc:
    return lambda time_ms, rdds: func(batch_datetime(time_ms), *rdds)


def _untimed(func: Callable[..., RDD[Any] | None]) -> TransformFunc:
    return lambda _, rdds: func(*rdds)


def _without_timeout(pair: tuple[Any, Any]) -> tuple[Any, Any, None]:
    key, state = pair
    return key, state, None


def _state_and_timeout(entry: tuple[Any, Any, int | None]) -> tuple[Any, Any, int | None]:
    """Return (key, state, timeout) of a stored row, which begins with the state."""
    key, row, timeout_ms = entry
    return key, row[0], timeout_ms
