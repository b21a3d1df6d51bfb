"""DStream, the public class of streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from operator import add, iadd, itemgetter, sub
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NoReturn,
    TypeAlias,
    TypeVar,
    overload,
)

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
from dstreams.common.durations import batch_datetime, batch_time_ms, require_duration_ms
from dstreams.common.settings import COUNT
from dstreams.errors import InvalidStreamError, StreamLifecycleError
from dstreams.graph.node import Node, OutputOperation
from dstreams.graph.plan import StreamOptions
from dstreams.graph.state import LateDStream, SnapshotDStream, StateDStream, StateStoreDStream
from dstreams.graph.transformed import ReducedDStream, TransformFunc
from dstreams.graph.windowed import ReducedWindowedDStream, WindowedDStream, WindowTimes
from dstreams.kafka.kafka_sink import KafkaSink
from dstreams.kafka.output_commits import DEFAULT_TOPIC
from dstreams.sinks.console import ConsolePrinter
from dstreams.sinks.foreach import ForeachBatch
from dstreams.sinks.output_batch import BatchSink, DeliveryGuarantee, OutputBatch
from dstreams.sinks.text_files import TextFilesWriter
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
from dstreams.spark.partitions import spread
from dstreams.spark.reduction import Reduction, UserFunction, count_all, reduce_all
from dstreams.spark.rejected_records import (
    ON_ERROR,
    Attempt,
    OnError,
    RejectedRecord,
    Task,
    rejections,
    results,
)
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from dstreams.spark.task_reports import BAD_RECORDS, BadRecords, LeftOut, TaskReports
from dstreams.spark.window_step import WindowFunctions
from dstreams.state.flat_map_groups import TIMEOUTS, EventClock, FlatMapGroups, OneRow
from dstreams.state.group_state import GroupState, OutputMode
from dstreams.state.input_processor import GroupFunction
from dstreams.state.map_with_state import MapRecords, StateSpec, initial_states
from dstreams.state.stateful_processor import TIMERS, Columns, TimeMode
from dstreams.state.transform_groups import TransformGroups, defined
from dstreams.state.update_function import UpdateFunction

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from dstreams.context import StreamingContext
    from dstreams.dstream.block_dstream import (
        BlockDStream,
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
"""A function of the key, or a partitioner; None for the stable hash."""

_INSTEAD = {
    **dict.fromkeys(("collect", "first", "take"), "foreachRDD(f), or latest() after a batch"),
    **dict.fromkeys(("distinct", "sortBy", "sortByKey"), "transform(f) for operations of RDDs"),
    "foreach": "foreachRDD(f)",
    "groupBy": "groupByKey() on pairs of key and value",
    "print": "pprint()",
}
"""Methods of Scala's streams, RDDs and datasets, and their counterparts here."""

_SLIDES_OF_INVERSE = 5
"""Minimum slides per window for using the inverse function, as in pyspark.streaming."""


class DStream(Generic[T_co]):
    """A sequence of RDDs, one per batch.

    A :class:`~dstreams.StreamingContext` creates DStreams from sources; their methods create
    further ones. Nothing runs until the context starts. Each method checks its arguments, adds a
    node to the graph and returns the stream of that node. Functions are sent to the workers and
    must not refer to streams or contexts. The type parameter is the element type, which type
    checkers follow through a pipeline.

    If a stream has no RDD in a batch, its outputs are not called, and streams derived from that
    batch alone have no RDD either.

    *numPartitions* is the number of partitions of each RDD or of the state; None means the default
    parallelism of the SparkContext. *partitionFunc* is ``key -> int`` or a
    :class:`~dstreams.StablePartitioner`; None means :func:`~dstreams.stable_hash`. Two streams that
    are combined must have the same context and slide duration.

    **Windows.** A window at time t covers (t - windowDuration, t]; the first windows are shorter.
    *windowDuration* and *slideDuration* are in seconds and must be positive multiples of this
    stream's slide. A slide of None is this stream's slide; a slide longer than the window leaves
    gaps. The batches of this stream, or their reductions, are persisted and remembered for the
    length of the window. An inverse function is used for windows of five slides or more: each
    window is then computed from the previous one. Shorter windows, and windows without an inverse
    function, are computed from scratch and depend only on their batches. With
    ``spark.dstreams.window.inverse=scala`` the inverse function is always used, as in Scala
    (org.apache.spark.streaming.dstream.ReducedWindowedDStream, 4.3).

    **Stored state** is used by ``mapWithState``, ``flatMapGroupsWithState``,
    ``mapGroupsWithState`` and ``transformWithState``. The cost of a batch depends on the keys it
    touches, not on the size of the state. Changes are written and synced before any output runs. It
    needs a checkpoint directory. States and keys are plain data (numbers, text, bytes, dates, and
    tuples, lists, sets and dicts of these) or instances of data classes that the program refers to
    (dataclasses, attrs classes, named tuples, enums, Rows; see
    :meth:`~dstreams.StreamingContext.stateClasses` for others), unless
    ``spark.dstreams.state.values`` is ``pickle``.

    Invalid durations, functions, partitions and other arguments raise InvalidStreamError when the
    stream is defined. Methods that define or change a stream or an output raise
    StreamLifecycleError after the context has started.

    In the examples, ``run(batches, operation)`` is :func:`dstreams.testing.run_batches` with a
    SparkContext ``spark`` and each batch of the result sorted; ``ssc`` is a context with one batch
    per second whose first batch time is second 1.

    Args:
        node: the node of the graph.
        ssc: the context.

    Semantics: pyspark.streaming.DStream (4.3).
    """

    _dstreams_driver_only: ClassVar[bool] = True

    def __init__(self, node: Node, ssc: StreamingContext) -> None:
        self._node = node
        self._ssc = ssc
        self._attempts: DStream[Any] | None = None

    def __repr__(self) -> str:
        return f"DStream({self._node.operation})"

    def _repr_html_(self) -> str:
        return self._ssc._picture(self._node)

    if not TYPE_CHECKING:  # a type checker finds wrong names by itself

        def __getattr__(self, name: str) -> NoReturn:
            remedy = f"; use {_INSTEAD[name]}" if name in _INSTEAD else ""
            text = f"{type(self).__name__!r} object has no attribute {name!r}{remedy}"
            raise AttributeError(text, name=name, obj=self)

    def context(self) -> StreamingContext:
        """Return the StreamingContext of this stream."""
        return self._ssc

    def count(self) -> DStream[int]:
        """Return a stream with the number of elements of each batch, 0 if it is empty.

        >>> run([[1, 2, 3], []], lambda numbers: numbers.count())
        [[3], [0]]
        """
        return self._transformed(self._operation("count"), count_all)

    def filter(self, f: Callable[[T_co], Any], *, onError: OnError = "fail") -> DStream[T_co]:
        """Return a stream of the elements x for which ``f(x)`` is true.

        *onError* as of :meth:`map`.

        >>> run([[1, 2, 3], [5]], lambda numbers: numbers.filter(lambda x: x > 1))
        [[2, 3], [5]]
        """
        operation = self._operation("filter", f, "f(x) -> bool")
        return self._each(operation, Filter(f, function_of(f, operation)), on_error=onError)

    def flatMap(
        self,
        f: Callable[[T_co], Iterable[U]],
        preservesPartitioning: bool = False,
        *,
        onError: OnError = "fail",
    ) -> DStream[U]:
        """Return a stream of all elements of ``f(x)`` for each element x.

        *onError* as of :meth:`map`; an element whose iteration fails has no results.

        >>> run([["to be", "or"]], lambda lines: lines.flatMap(str.split))
        [['be', 'or', 'to']]
        """
        operation = self._operation("flatMap", f, "f(x) -> iterable of y")
        task = FlatMap(f, function_of(f, operation))
        return self._each(operation, task, preservesPartitioning, onError)

    def map(
        self,
        f: Callable[[T_co], U],
        preservesPartitioning: bool = False,
        *,
        onError: OnError = "fail",
    ) -> DStream[U]:
        """Return a stream of ``f(x)`` for each element x.

        Args:
            onError: an element for which *f* raises an exception: ``fail`` fails the batch,
                ``skip`` skips the element, and counts it in the log and in the batch's ``inputs``;
                see :meth:`rejected`.

        >>> run([[1, 2], []], lambda numbers: numbers.map(lambda x: 10 * x))
        [[10, 20], []]
        """
        operation = self._operation("map", f, "f(x) -> y")
        task = Map(f, function_of(f, operation))
        return self._each(operation, task, preservesPartitioning, onError)

    def rejected(self) -> DStream[RejectedRecord]:
        """Return the stream of the elements that this operation has skipped.

        They are those for which a function has failed with ``onError="skip"`` or, behind
        ``flatMapGroupsWithState``, ``mapGroupsWithState`` and ``transformWithState`` with timers of
        event time, the pairs that were dropped as late. To find late pairs, the batch computes
        these pairs again.

        The results of the operation are then persisted, in memory and on disk, so that the function
        runs once for each element. The outputs of both streams belong to one batch: if they write
        exactly once, an element is in one of them once, provided that the function fails for the
        same elements when the batch runs again.

        Raises:
            InvalidStreamError: this stream is not the result of such an operation.

        >>> def parse(batches):
        ...     return batches.map(int, onError="skip").rejected().map(lambda bad: bad[1:3])
        >>> run([["1", "x"]], parse)
        [[("ValueError: invalid literal for int() with base 10: 'x'", 'x')]]
        """
        operation, node = self._operation("rejected"), self._node
        if isinstance(node, StateStoreDStream) and node.event_time_of_late is not None:
            return self._derived(LateDStream(node, node.event_time_of_late, operation))
        if self._attempts is None:
            raise InvalidStreamError(
                f"{self._node.operation} skips no elements; call rejected() on the stream that "
                "map, flatMap, filter, mapValues or flatMapValues returns with onError='skip', or "
                "that a function with state and timers of event time returns"
            )
        attempts = self._attempts
        if not attempts.is_cached:
            attempts.persist(StorageLevel.MEMORY_AND_DISK)
        return attempts._each(operation, rejections, keeps_partitioning=False)

    def mapPartitions(
        self, f: Callable[[Iterator[T_co]], Iterable[U]], preservesPartitioning: bool = False
    ) -> DStream[U]:
        """Return a stream of the results of ``f(iterator)`` for each partition.

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
        """Return a stream of the results of ``f(index, iterator)`` for each partition.

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
        """Return a stream of one reduced element per batch, none if the batch is empty.

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
        """Return a stream of pairs (key, values of the batch reduced by *func*).

        Args:
            func: ``(v, w) -> x``, associative and commutative.

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
        """Return a stream of pairs (key, combined values of the batch).

        Args:
            createCombiner: ``v -> c``, for the first value of a key in a partition.
            mergeValue: ``(c, v) -> c``.
            mergeCombiners: ``(c, d) -> c``, across partitions.

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
            partitionFunc: ``key -> int``. The default is replaced by :func:`~dstreams.stable_hash`.

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

        If the driver dies during a batch, the batch runs again after a restart with the same
        records, time and batch id, so a function can recognize a batch it has already seen. A
        committed batch does not run again. After an older copy of the checkpoint is restored, the
        same batch ids may carry different records; a :class:`dstreams.sinks.BatchSink` can detect
        that too, because it also receives the token of its batch.

        Args:
            func: ``f(rdd)``, ``f(time, rdd)`` with the batch time as a datetime, or
                ``f(time, rdd, batchId)`` with the number of the batch in its stream, from 0. A
                parameter named ``batchId`` receives the number in any position, so
                ``f(rdd, *, batchId)`` also works. Run only one Spark job if possible: each job
                recomputes whatever is not persisted. Or a sink such as
                :class:`dstreams.sinks.TransactionalSink`.

        Raises:
            InvalidStreamError: if *func* takes other arguments, or is a sink with the name of
                another one.

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

    def mapValues(
        self: DStream[tuple[K, V]], f: Callable[[V], U], *, onError: OnError = "fail"
    ) -> DStream[tuple[K, U]]:
        """Return a stream of ``(k, f(v))``, keeping the partitioning; *onError* as of :meth:`map`.

        >>> run([[("a", 1)]], lambda pairs: pairs.mapValues(lambda v: v + 1))
        [[('a', 2)]]
        """
        operation = self._operation("mapValues", f, "f(v) -> w")
        return self._each(operation, MapValues(f, operation), on_error=onError)

    def flatMapValues(
        self: DStream[tuple[K, V]], f: Callable[[V], Iterable[U]], *, onError: OnError = "fail"
    ) -> DStream[tuple[K, U]]:
        """Return a stream of ``(k, w)`` for each w in ``f(v)``, keeping the partitioning.

        *onError* as of :meth:`flatMap`.

        >>> run([[("a", 2), ("b", 0)]], lambda pairs: pairs.flatMapValues(range))
        [[('a', 0), ('a', 1)]]
        """
        operation = self._operation("flatMapValues", f, "f(v) -> iterable of w")
        return self._each(operation, FlatMapValues(f, operation), on_error=onError)

    def glom(self) -> DStream[list[T_co]]:
        """Return a stream of lists, one per partition.

        >>> run([[1, 2, 3, 4]], lambda numbers: numbers.glom())
        [[[1, 2], [3, 4]]]
        """
        return self._transformed(self._operation("glom"), lambda rdd: rdd.glom())

    def cache(self: Self) -> Self:
        """Persist the RDDs of this stream, serialized in memory."""
        return self.persist(StorageLevel.MEMORY_ONLY)

    def persist(self: Self, storageLevel: StorageLevel = StorageLevel.MEMORY_ONLY) -> Self:
        """Persist the RDDs of this stream at a storage level.

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

        Stored state is made durable in every batch regardless. For the stream returned by
        ``mapWithState``, the interval also determines in which batches timeouts are checked if
        ``spark.dstreams.mapWithState.timeouts`` is ``checkpoint``, as in Spark.

        Args:
            interval: seconds, a multiple of this stream's slide (checked at start). The default
                for stateful streams is the smallest multiple of the slide that is at least 10
                seconds; for stored state it is ten slides.

        A storage level that was already set is kept.
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
        """True if a storage level was set for this stream."""
        return self._options.storage_level is not None

    @property
    def is_checkpointed(self) -> bool:
        """True if a checkpoint interval was set for this stream."""
        return self._options.checkpoint_ms is not None

    def groupByKey(
        self: DStream[tuple[K, V]],
        numPartitions: int | None = None,
        *,
        partitionFunc: PartitionFunc[K] = None,
    ) -> DStream[tuple[K, Iterable[V]]]:
        """Return a stream of pairs (key, iterable of the values of the batch, in any order).

        >>> run([[("a", 1), ("a", 2)]], lambda pairs: pairs.groupByKey().mapValues(sorted))
        [[('a', [1, 2])]]
        """
        operation = self._operation("groupByKey")
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        return self._transformed(operation, lambda rdd: group_by_key(rdd, partitioner, operation))

    def countByValue(self: DStream[H]) -> DStream[tuple[H, int]]:
        """Return a stream of pairs (value, number of occurrences in the batch).

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
        """Convert the records of this stream to Arrow blocks with one column per field.

        A record is a tuple or list of the columns in order, a dict keyed by column name, an object
        with matching attributes, or, for a single column, its value. A dict may omit nullable
        columns.

        With a *format*, each record is a line (str or UTF-8 bytes) to decode. Blank lines are
        skipped, except for ``"text"``. Nothing is rounded: a value that does not fit its column
        makes the line malformed. Directly after ``textFileStream`` and ``fileStream``, workers read
        uncompressed ``file:`` files themselves.

        Args:
            schema: the columns: a dataclass or NamedTuple, a dict of names and Python or Arrow
                types, a ``pyarrow.Schema``, or a Spark schema (StructType or DDL string). A Python
                type is not nullable unless it includes ``| None``.
            blockRows: maximum number of records per block; the last block of a partition may have
                fewer.
            format: format of a line. ``"json"``: an object keyed by column name; missing members
                are null, unknown members are ignored; times are ISO 8601 strings, with a time zone
                if the column has one. ``"csv"``: values in the order of the columns; empty values
                are null. ``"text"``: the value of the only column. None: records are not lines.
            mode: treatment of malformed lines. ``FAILFAST``: fail the batch with an error that
                quotes the line. ``DROPMALFORMED``: skip the line; skipped lines are counted in the
                log and in the batch's ``inputs``.
            sep: separator between values of ``"csv"``, one character.

        Raises:
            InvalidStreamError: if *schema* is not a schema, *blockRows* is not a positive integer,
                *format* or *mode* is unknown, or the format has no values of a column's type.
            EnvironmentNotReadyError: if pyarrow is not installed.
            UserFunctionError: in a batch, for a record that does not match the schema.

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

        A directory becomes visible only when it is complete, and a batch that runs again after a
        crash does not change it. Complete directories are never replaced: if the directory of a
        batch belongs to another stream or to another history of the checkpoint, the stream stops
        with an ``OutputConflictError``, and the batch runs again once the conflict is resolved. In
        a store without rename, a directory is complete when it contains ``_SUCCESS``, which lists
        the valid files.

        Args:
            prefix: path or URL up to the dash, on a Hadoop file system or in an object store (s3,
                gs, abfs).
            suffix: appended after the time and a dot. None: nothing.

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
        """Write each RDD to a Kafka topic, each record exactly once.

        Consumers with ``isolation.level=read_committed`` see each partition of a batch completely
        or not at all, and only once, even after failures. Equivalent to ``foreachRDD`` with a
        :class:`dstreams.kafka.KafkaSink`, which describes the details. An empty RDD writes nothing
        and contacts no broker. Needs the package confluent-kafka (extra ``kafka``).

        Args:
            topic: name of the topic, or ``f(record) -> name``.
            kafkaParams: parameters of Kafka's producers; ``bootstrap.servers`` is required.
            key: ``f(record) -> bytes, str or None``. None: no key.
            value: ``f(record) -> bytes, str or None``. None: the record itself; if *key* is None
                too, records are pairs ``(key, value)``.
            headers: ``f(record) -> pairs (name, bytes, str or None)``. None: no headers.
            partition: ``f(record) -> partition number or None``. None: the partition chosen by
                Java's default partitioner.
            name: distinguishes the sinks of one stream. None: the name of the topic, or ``kafka``
                if *topic* is a function.
            exactlyOnce: False: a batch that runs again writes its records again. Faster.
            commitTopic: topic that records which batches were written; created if missing.

        Raises:
            InvalidStreamError: if an argument or parameter is invalid, or another sink of this
                stream has the same name.

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
        """Return a stream of ``func(rdd)``, called on the driver for each batch.

        Args:
            func: ``f(rdd)`` or ``f(time, rdd)`` with the batch time as a datetime. May return None
                for a batch without an RDD.

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
        """Return a stream of ``func(rdd of this, rdd of other)``, called on the driver.

        Args:
            func: ``f(a, b)`` or ``f(time, a, b)`` with the batch time as a datetime. A missing RDD
                of a parent is replaced by an empty one.
            other: stream with the same slide duration.
            keepSerializer: accepted for compatibility; RDDs know their serializer.

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
        """Return a stream of the elements of this stream followed by those of *other*.

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
        """Return a stream of pairs (key, (values of this stream, values of *other*)).

        Args:
            other: stream of pairs with the same slide duration.

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
        """Return a stream of (key, (v, w)) for each pair of values with the same key.

        Args:
            other: stream of pairs with the same slide duration.

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
        """Return the join, with (key, (v, None)) for keys missing in *other*.

        See :meth:`join` for the arguments.

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
        """Return the join, with (key, (None, w)) for keys missing in this stream.

        See :meth:`join` for the arguments.

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
        """Return the join, with None for the side that lacks the key.

        See :meth:`join` for the arguments.

        >>> run([[("a", 1)]], lambda a, b: a.fullOuterJoin(b), [[("b", 2)]])
        [[('a', (1, None)), ('b', (None, 2))]]
        """
        return self._joined(
            "fullOuterJoin", other, numPartitions, partitionFunc, all_left=True, all_right=True
        )

    def slice(self, begin: datetime | float, end: datetime | float) -> list[RDD[T_co]]:
        """Return the RDDs of this stream from *begin* to *end*, both inclusive.

        Contains the batches that ran and are still remembered
        (:meth:`~dstreams.StreamingContext.remember`). Unlike Spark, computes none.

        Args:
            begin: batch time as a datetime (naive: local time) or in seconds since the epoch,
                rounded down to a batch time.
            end: likewise.

        Raises:
            StreamLifecycleError: if the context is not running, or no output uses this stream.

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
        """Return the RDD of this stream from the newest batch that ran.

        Use it to inspect a stream between two steps or while it runs. Actions on the RDD run as the
        caller's own jobs. As with :meth:`slice`, an RDD that is not persisted may be recomputed
        from its input.

        Returns:
            The RDD, or None if the stream has none in any remembered batch.

        Raises:
            StreamLifecycleError: if no batch has run yet, the context has stopped, or no output
                uses this stream.

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
            InvalidStreamError: if *n* is not a positive integer.
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
        """Return a stream of all elements of each window, oldest batch first.

        A storage level set on the result applies to the batches of this stream. A window without
        elements has an empty RDD.

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
        """Return a stream of one element per window: all its elements reduced.

        Args:
            reduceFunc: ``(x, y) -> z``, associative and commutative.
            invReduceFunc: inverse of *reduceFunc*: ``(reduced, left) -> reduced``. With it, a
                window of five slides or more is computed from the previous one, which needs a
                checkpoint directory. None: each window is reduced from scratch.
            windowDuration: seconds.
            slideDuration: seconds.
            uid: as in :meth:`reduceByKeyAndWindow`.

        A window without elements has no result. If *invReduceFunc* is used, this holds only before
        the first element; later the result is what remains after all elements were removed.

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
        """Return a stream with the number of elements of each window.

        Each batch is counted once. A window without elements has no count; a window of five slides
        or more has the count 0 once there were elements, and needs a checkpoint directory.

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
        """Return a stream of pairs (value, number of occurrences in the window).

        Each batch is counted once. A window of five slides or more needs a checkpoint directory.

        State: for windows of five slides or more, one number per value in the window.

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
        """Return a stream of pairs (key, iterable of its values in the window).

        Values of older batches come first; within a batch the order is undefined. Each batch is
        grouped and shuffled once; a window only concatenates lists. Unlike in Spark, no checkpoint
        directory is needed, and a key without values in the window is not in the result; Spark
        keeps it forever, with no values, for windows of five slides or more.

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
        """Return a stream of pairs (key, values in the window reduced by *func*).

        Each batch is reduced by key and shuffled once. With *invFunc*, a window of five slides or
        more is computed from the previous one by removing what left and adding what entered. The
        functions are called for those keys only, so the cost does not grow with the window. A key
        whose values have all left stays in the result, with the remaining value, until *filterFunc*
        drops it. Shorter windows, and windows without *invFunc*, are reduced from scratch from the
        reduced batches: *invFunc* is never called, and a key is in the result as long as it is in
        the window.

        Args:
            func: ``(v, w) -> x``, associative and commutative; may change v in place.
            invFunc: inverse of *func*: ``(reduced, left) -> reduced``, with
                ``invFunc(func(x, y), y) == x``. None: each window is reduced from scratch.
            windowDuration: seconds.
            slideDuration: seconds.
            filterFunc: ``((key, value)) -> bool``; with *invFunc*, called for every pair of the
                result and drops those that fail. For windows of five slides or more a dropped pair
                is also removed from the state, so later windows start without it. Ignored without
                *invFunc*, as in Spark, with a warning; use :meth:`filter` instead.
            uid: name under which the state of a window that uses *invFunc* is stored, so that a
                changed program finds it (:meth:`StreamingContext.restore`). None: derived from its
                position.

        Returns:
            Stream of ``(key, value)``, one RDD per window; with *invFunc*, no RDD as long as no
            batch of the window had one. If *invFunc* is used, the stream is persisted, serialized
            in memory, and needs a checkpoint directory.

        State: if *invFunc* is used, one value per key until *filterFunc* drops it.
        Semantics: pyspark.streaming.DStream.reduceByKeyAndWindow (4.3).

        >>> from operator import add, sub
        >>> batches = [[("a", 1)], [("a", 2)], [], []]
        >>> run(batches, lambda pairs: pairs.reduceByKeyAndWindow(add, sub, 2))
        [[('a', 1)], [('a', 3)], [('a', 2)], []]
        """
        operation = self._operation("reduceByKeyAndWindow", func, "func(v, w) -> x", 2)
        if filterFunc is not None and invFunc is None:
            logger.warning(
                "filterFunc of %s is ignored without invFunc, as in pyspark.streaming; append "
                ".filter(filterFunc) instead",
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

    def updateStateByKey(
        self,
        updateFunc: Callable[..., Any],
        numPartitions: int | None = None,
        initialRDD: Any = None,
        *,
        partitionFunc: PartitionFunc[Any] = None,
        preservePartitioning: bool = True,
        form: str = "values",
        uid: str | None = None,
    ) -> UpdateStateDStream[Any, Any]:
        """Return a stream of the state of every key, updated by each batch.

        In every batch, the function is called for *every* key that has a state or new values, even
        in batches without an RDD. 0, "", [] and False are valid states.

        Args:
            updateFunc: by *form*:
                ``"values"``: ``f(values, state) -> state``; None drops the key;
                ``"keyed"``: ``f(time, key, values, state) -> state``; None drops the key, *time* is
                the batch time as a datetime;
                ``"iterator"``: ``f(iterator of (key, values, state)) -> iterator of (key, state)``.
                *values* is a new list in undefined order, empty if there are no new values; *state*
                is None if the key has none. Both may be changed in place.
            initialRDD: initial pairs of key and state, each key once; an RDD or a collection. Used
                in the first batch with an RDD.
            preservePartitioning: whether the state keeps the partitioning of its input. False lets
                ``"iterator"`` functions change keys, and shuffles the whole state in every batch.
            form: calling convention of *updateFunc*.
            uid: name under which the state is stored, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: derived from its position.

        Returns:
            Stream of ``(key, state)``, one RDD per batch once there is a state. It is persisted as
            serialized blocks, in memory and on disk, and needs a checkpoint directory. Its
            ``stateStore()`` gives notebooks access to the state.

        Raises:
            InvalidStreamError: if the function does not match *form* or cannot be sent to workers,
                or *numPartitions*, *partitionFunc* or *initialRDD* is invalid.

        State: one entry per key until the function drops it; each batch processes all of them.
        Semantics: org.apache.spark.streaming.dstream.StateDStream (4.3).

        >>> def total(values, state):
        ...     return sum(values) + (state or 0)
        >>> batches = [[("a", 1)], [("a", 2), ("b", 1)], []]
        >>> run(batches, lambda pairs: pairs.updateStateByKey(total))
        [[('a', 1)], [('a', 3), ('b', 1)], [('a', 3), ('b', 1)]]
        """
        operation = self._operation("updateStateByKey")
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

    def mapWithState(
        self: DStream[tuple[K, V]], spec: StateSpec, *, uid: str | None = None
    ) -> MapWithStateDStream:
        """Return a stream of the results of a function called with each record and its state.

        Args:
            spec: the function and its options (:class:`~dstreams.StateSpec`).
            uid: as in :meth:`updateStateByKey`.

        Returns:
            Stream of the results, one RDD per batch. Its ``stateSnapshots()`` is the stream of all
            keys and states.

        Raises:
            InvalidStreamError: if *spec* is not a StateSpec.

        State: one entry per key until the function removes it or it times out, which happens in the
        first batch after the key had no record for longer than the timeout.
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
        at_checkpoints = timeouts == "checkpoint"
        function = MapRecords(spec.mapping, idle_ms=spec.idle_ms, at_checkpoints=at_checkpoints)
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
        """Return a stream of the rows a function returns for each key and its values in a batch.

        Args:
            f: ``f(key, iterator of values, state) -> rows``, called once per key with values in the
                batch, and once per key whose timer has expired, with no values and
                ``state.hasTimedOut``. *state* is a :class:`~dstreams.GroupState`.
            outputMode: ``"update"`` or ``"append"``; the meaning of the rows.
            timeout: ``"none"``; ``"processingTime"``: timers are set by
                ``state.setTimeoutDuration`` and expire in the first batch after their time; or
                ``"eventTime"``: timers are set by ``state.setTimeoutTimestamp`` and expire in the
                first batch whose watermark is later. Values whose event time is not later than the
                watermark are then late and dropped.
            eventTime: ``value -> datetime (naive: local time), milliseconds since the epoch, or
                None``; requires *watermark*.
            watermark: delay in seconds of a batch's watermark behind the latest event time of the
                previous batches.
            initialState: initial pairs of key and state, each key once; the function is called for
                these keys in the first batch.
            keepTimer: keep a timer that a call with values does not set again. False: the call
                removes it, as in Spark.
            uid: as in :meth:`updateStateByKey`.

        Raises:
            InvalidStreamError: if the function takes other arguments, or a mode or timeout is
                unknown.

        State: one entry per key until the function removes it.
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
        _require_output_mode(outputMode, operation)
        clock = EventClock.checked(eventTime, watermark, timeout, operation)
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        groups = self._groups(f, f, timeout, clock, operation, keepTimer)
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
        """Return a stream of one row per call, otherwise like :meth:`flatMapGroupsWithState`.

        Args:
            f: ``f(key, iterator of values, state) -> row``.
            timeout: as in :meth:`flatMapGroupsWithState`, like all other arguments.

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
        groups = self._groups(f, OneRow(f), timeout, clock, operation, keepTimer)
        return self._with_stored_state(groups, partitioner, initialState, operation, uid, clock)

    def transformWithState(
        self: DStream[tuple[K, V]],
        statefulProcessor: Any,
        outputStructType: StructType | str | None = None,
        outputMode: str = "append",
        timeMode: str = "none",
        initialState: RDD[tuple[K, Any]] | Iterable[tuple[K, Any]] | None = None,
        *,
        eventTime: Callable[[V], datetime | int | None] | None = None,
        watermark: float | None = None,
        numPartitions: int | None = None,
        partitionFunc: PartitionFunc[K] = None,
        uid: str | None = None,
    ) -> TransformWithStateDStream:
        """Return the rows of a stateful processor, with state variables and timers per key.

        The processor is one of ``transformWithState`` of queries, or of Spark. Its rows are the
        values of the key; a dict reaches it as a Row. A key that is a tuple reaches it as it is,
        any other key as a tuple of one part. A batch costs what it uses: an append to a large list
        the appended rows, a change of a large map the entries that change.

        Args:
            statefulProcessor: a :class:`~dstreams.StatefulProcessor`, or one of
                ``pyspark.sql.streaming``; it handles the keys with values in a batch, then the
                timers that are due.
            outputStructType: the columns of output rows, a StructType or DDL text. Rows then are
                Rows with these names, and their types are checked. None: rows may be any objects.
            outputMode: ``"append"`` or ``"update"``; the meaning of the rows.
            timeMode: ``"none"``; ``"processingTime"``: timers and TTLs follow the batch time; or
                ``"eventTime"``: timers follow the watermark. Values whose event time is not later
                than the watermark are then late and dropped.
            initialState: pairs of key and row for ``handleInitialState`` in the first batch; a key
                may occur several times.
            eventTime: as in :meth:`flatMapGroupsWithState`, like all other arguments.

        Raises:
            InvalidStreamError: an argument is invalid, or the processor's ``init`` fails, which
                runs once here.

        State: an entry for each row and timer, until the processor removes it or it expires.
        Semantics: pyspark.sql.GroupedData.transformWithState (4.3); the processing time is the
        batch time.

        >>> from dstreams import StatefulProcessor
        >>> class Count(StatefulProcessor):
        ...     def init(self, handle):
        ...         self.count = handle.getValueState("count", "count long")
        ...
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         (count,) = self.count.get() or (0,)
        ...         self.count.update((count + len(list(rows)),))
        ...         yield key[0], *self.count.get()
        >>> batches = [[("a", 1), ("b", 1), ("a", 1)], [("b", 1)]]
        >>> run(batches, lambda pairs: pairs.transformWithState(Count()))
        [[('a', 2), ('b', 1)], [('b', 2)]]
        """
        operation = self._operation("transformWithState")
        where = f"{type(statefulProcessor).__name__} of {operation}"
        _require_output_mode(outputMode, operation)
        time_mode = TimeMode.of(timeMode)
        clock = EventClock.checked(eventTime, watermark, time_mode.value, operation, "timeMode")
        variables, deleted = defined(statefulProcessor, time_mode, where)
        groups = TransformGroups(
            processor=statefulProcessor,
            where=where,
            timeMode=time_mode,
            variables=variables,
            deleted=deleted,
            output=None if outputStructType is None else Columns.of(outputStructType, where),
            are_pairs=True,
            reports_next_timeout=False,
            event_time=None if clock is None else clock.event_time,
        )
        partitioner = self._partitioner(numPartitions, partitionFunc, operation)
        node = self._stored_state(groups, partitioner, initialState, operation, clock)
        return TransformWithStateDStream(node, self._ssc)._named(uid)

    def _groups(
        self,
        f: Callable[..., Any],
        func: GroupFunction,
        timeout: str,
        clock: EventClock | None,
        operation: str,
        keep_timer: bool,
    ) -> FlatMapGroups:
        return FlatMapGroups(
            func=func,
            where=f"function {describe(f)} of {operation}",
            timeoutConf=TIMEOUTS[timeout],
            event_time=None if clock is None else clock.event_time,
            keepTimer=bool(keep_timer),
            skipEmittingInitialStateKeys=self._ssc._settings.skip_initial_keys,
        )

    def _operation(self, name: str, f: Any = None, shape: str = "", count: int = 1) -> str:
        """Return the operation with its call site; with a *shape*, check its function."""
        operation = f"{name} at {call_site()}"
        if shape:
            require_function(f, operation, shape, count)
        return operation

    @property
    def _options(self) -> StreamOptions:
        return self._ssc._graph.options_of(self._node)

    def _derived(self, node: Node) -> DStream[Any]:
        """Return the stream of a node that was derived from this stream's node."""
        self._ssc._require_initialized("transformations cannot be added")
        return DStream(node, self._ssc)

    def _named(self: Self, uid: str | None) -> Self:
        """Store state and progress under *uid* unless it is None; return this stream."""
        self._ssc._graph.name(self._node, uid)
        return self

    def _transformed(
        self, operation: str, func: Callable[..., RDD[Any] | None], *others: DStream[Any]
    ) -> DStream[Any]:
        """Return a stream of ``func(rdd of this, rdds of the others...)``."""
        return self._ssc._combine((self, *others), _untimed(func), operation)

    def _each(
        self,
        operation: str,
        task: Task,
        keeps_partitioning: bool = True,
        on_error: OnError = "fail",
    ) -> DStream[Any]:
        """Return a stream of the results of *task* for each partition."""
        if ON_ERROR.require(on_error, f"onError of {operation}") == "fail":
            return self._transformed(
                operation, lambda rdd: rdd.mapPartitionsWithIndex(task, keeps_partitioning)
            )
        attempt = partial(_attempted, task, operation, keeps_partitioning)
        attempts = self._ssc._combine((self,), attempt, operation)
        done = attempts._each(operation, results)
        done._attempts = attempts
        return done

    def _require_partitions(self, numPartitions: int | None, operation: str) -> int:
        if numPartitions is None:
            return self._ssc.sparkContext.defaultParallelism
        count: int = COUNT.require(numPartitions, f"numPartitions of {operation}")
        return count

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
        """Return a stream of *pairs* reduced over a window, incrementally or from scratch.

        *is_counted* returns whether any value of a pair remains, None if that is unknown. With
        *empty_for_none* and no inverse, a window without any RDD gets an empty one.
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
            reduced = self._derived(ReducedDStream(window, reduction, partitioner, operation))
            if inverse is not None and keeps is not None:
                reduced = reduced.filter(keeps)
            return reduced._named(uid)
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
        function: MapRecords | FlatMapGroups,
        partitioner: StablePartitioner,
        initial: RDD[Any] | Iterable[tuple[Any, Any]] | None,
        operation: str,
        uid: str | None,
        clock: EventClock | None = None,
    ) -> MapWithStateDStream:
        node = self._stored_state(function, partitioner, initial, operation, clock)
        return MapWithStateDStream(node, self._ssc)._named(uid)

    def _stored_state(
        self,
        function: MapRecords | FlatMapGroups | TransformGroups,
        partitioner: StablePartitioner,
        initial: RDD[Any] | Iterable[tuple[Any, Any]] | None,
        operation: str,
        clock: EventClock | None,
    ) -> StateStoreDStream:
        self._ssc._require_initialized("transformations cannot be added")
        spark, each_once = self._ssc.sparkContext, not isinstance(function, TransformGroups)
        return StateStoreDStream(
            parent=self._node,
            function=function,
            partitioner=partitioner,
            initial=initial_states(initial, spark, operation, each_once=each_once),
            operation=operation,
            delay_ms=None if clock is None else clock.delay_ms,
        )

    def _output_to(self, name: str, sink: BatchSink) -> None:
        """Add a sink unless another one has the same identity."""
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
    """The state stream of ``updateStateByKey``."""

    def stateSnapshots(self) -> DStream[tuple[K, S]]:
        """Return the stream of (key, state) of every key after each batch: this stream."""
        return self

    def stateStore(self, batchTime: datetime | float | None = None) -> RDD[tuple[K, S, None]]:
        """Return the state as an RDD, for example in a notebook, also while the stream runs.

        Args:
            batchTime: return the state after this batch, as a datetime (naive: local time) or in
                seconds since the epoch, rounded down to a batch time. The batch must be remembered:
                the newest one always is, older ones according to
                :meth:`~dstreams.StreamingContext.remember`. None: the newest.

        Returns:
            RDD of (key, state, None), the format of ``mapWithState``; there are no timeouts here.

        Raises:
            InvalidStreamError: if the state after that batch is not remembered or never existed.
            StreamLifecycleError: if the context is not running, or no batch has made a state yet.

        >>> ssc.checkpoint(directory)
        >>> pairs = ssc.queueStream([[("a", 1)], [("a", 2)]])
        >>> counts = pairs.updateStateByKey(lambda values, state: sum(values) + (state or 0))
        >>> counts.foreachRDD(lambda rdd: None)
        >>> batches = ssc.step(2)
        >>> counts.stateStore().collect()
        [('a', 3, None)]
        """
        return state_rdd(self, batchTime).map(_without_timeout)


class StoredStateDStream(DStream[Any]):
    """The results of a function over stored state, with access to the state."""

    def stateStore(
        self, batchTime: datetime | float | None = None
    ) -> RDD[tuple[Any, Any, int | None]]:
        """Return the state as an RDD, for example in a notebook, also while the stream runs.

        Args:
            batchTime: return the state after this batch, as a datetime (naive: local time) or in
                seconds since the epoch, rounded down to a batch time. At least the batches since
                the second newest snapshot are kept. None: the newest.

        Returns:
            RDD of (key, state, expiry in milliseconds since the epoch or None) of one version;
            later changes are not in it. Reading an older version is slow, and possible only as long
            as it is kept.

        Raises:
            InvalidStreamError: if the state after that batch is not kept or never existed.
            StreamLifecycleError: if the context is not running, or no batch has made a state yet.
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
        return entries.map(self._shown)

    @staticmethod
    def _shown(entry: tuple[Any, Any, int | None]) -> tuple[Any, Any, int | None]:
        """Return (key, state, timeout) of a stored row, whose first field is the state."""
        key, row, timeout_ms = entry
        return key, row[0], timeout_ms


class MapWithStateDStream(StoredStateDStream):
    """The results of ``mapWithState`` or ``flatMapGroupsWithState``, with access to the state.

    Semantics: org.apache.spark.streaming.dstream.MapWithStateDStream (4.3).
    """

    def stateSnapshots(self) -> DStream[tuple[Any, Any]]:
        """Return a stream of (key, state) of every key after each batch.

        Each batch reads the whole state.
        """
        if not isinstance(self._node, StateStoreDStream):
            raise InvalidStreamError(f"{self._node.operation} has no stored state")
        operation = self._operation("stateSnapshots")
        return self._derived(SnapshotDStream(self._node, itemgetter(0), operation))


class TransformWithStateDStream(StoredStateDStream):
    """The rows of a stateful processor, with access to the state.

    ``stateStore()`` has an entry for each value, list element, map entry and timer; its key is
    ``(name of the state variable, key of the pair, ...)``, as
    :mod:`dstreams.state.stateful_processor` says.
    """

    @staticmethod
    def _shown(entry: tuple[Any, Any, int | None]) -> tuple[Any, Any, int | None]:
        """Return (key, row, timeout); a row with a timeout is stored with its expiry."""
        key, row, timeout_ms = entry
        return key, row if timeout_ms is None or key[0] == TIMERS else row[0], timeout_ms


def state_rdd(stream: DStream[T], batchTime: datetime | float | None) -> RDD[T]:
    """Return the RDD of a state stream after a remembered batch."""
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
                f"remembered; the newest is that of the batch at {time_ms} ms; call "
                "remember(seconds) to keep states longer"
            )
        (state,) = remembered
    return state


def _timed(func: Callable[..., RDD[Any] | None]) -> TransformFunc:
    return lambda time_ms, rdds: func(batch_datetime(time_ms), *rdds)


def _attempted(
    task: Task, operation: str, keeps_partitioning: bool, time_ms: int, rdds: tuple[RDD[Any], ...]
) -> RDD[Any]:
    reports: TaskReports[LeftOut] = TaskReports(rdds[0].context)
    attempt = Attempt(task, operation, time_ms, reports.task)
    rows = rdds[0].mapPartitionsWithIndex(attempt, keeps_partitioning)
    rows.left_out = reports  # type: ignore[attr-defined]
    return rows


def _untimed(func: Callable[..., RDD[Any] | None]) -> TransformFunc:
    return lambda _, rdds: func(*rdds)


def _without_timeout(pair: tuple[Any, Any]) -> tuple[Any, Any, None]:
    key, state = pair
    return key, state, None


def _require_output_mode(mode: str, operation: str) -> None:
    if mode not in (OutputMode.Append.value, OutputMode.Update.value):
        raise InvalidStreamError(
            f"outputMode of {operation} is {mode!r}; the output mode of the function should be "
            "append or update"
        )
