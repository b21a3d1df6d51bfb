"""BlockDStream, the public class of streams of Arrow blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from dstreams.arrow.block_functions import BlockForm, MapBlockIterator, MapBlocks
from dstreams.arrow.block_rdd import BlockTask, blocks_rdd
from dstreams.arrow.file_bytes import ArrowFile, BlockFile, ParquetFile
from dstreams.arrow.library import require
from dstreams.arrow.rows import BlocksToRows
from dstreams.arrow.schemas import BlockSchema, is_record_class, schema_of
from dstreams.arrow.state_update import BlockUpdate, OfSide, block_partitioner, initial_blocks
from dstreams.common.callables import require_function
from dstreams.dstream.dstream import DStream, state_rdd
from dstreams.errors import InvalidStreamError
from dstreams.graph.node import Node
from dstreams.graph.state import StateDStream
from dstreams.graph.windowed import WindowedDStream, WindowTimes
from dstreams.sinks.text_files import EncodedFilesWriter
from dstreams.spark.blocks import Side
from dstreams.spark.reduction import count_all
from dstreams.state.group_state import OutputMode

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa
    from pyspark import RDD

    from dstreams.arrow.aggregates.aggregates_by_key import AggregatesByKey
    from dstreams.arrow.aggregates.functions import ColumnAggregate
    from dstreams.arrow.key_numbers import GroupedValues
    from dstreams.context import StreamingContext
    from dstreams.spark.partitioner import StablePartitioner

__all__ = [
    "AggregateStateDStream",
    "BlockDStream",
    "BlockStateDStream",
    "MapStateBlocksDStream",
    "block_stream",
]

U = TypeVar("U")

BlockUpdateFunc: TypeAlias = (
    "Callable[[pa.RecordBatch, GroupedValues, pa.RecordBatch], pa.RecordBatch | pa.Table]"
)
"""``f(keys, values, state) -> state`` over blocks."""

BlockStateFunc: TypeAlias = (
    "Callable[[pa.RecordBatch, GroupedValues, pa.RecordBatch], tuple[Any, Any]]"
)
"""``f(keys, values, state) -> (state, output)`` over blocks."""

BlockFormName: TypeAlias = Literal["arrow", "pandas", "polars"]
"""The type of the blocks that a function takes and returns."""


def block_stream(
    parent: DStream[Any], operation: str, task: BlockTask, schema: pa.Schema | None
) -> BlockDStream:
    """Return a stream of the blocks that *task* makes from each partition of *parent*."""
    return derived_blocks(parent, operation, partial(blocks_rdd, task=task), schema)


def derived_blocks(
    parent: DStream[Any],
    operation: str,
    make: Callable[[RDD[Any]], RDD[pa.RecordBatch]],
    schema: pa.Schema | None,
) -> BlockDStream:
    """Return a stream of the blocks in ``make(rdd)`` for each batch."""
    made = parent._transformed(operation, make)
    return BlockDStream(made._node, parent._ssc, schema)


class BlockDStream(DStream["pa.RecordBatch"]):
    """A stream whose elements are Arrow blocks: ``pyarrow.RecordBatch``, many records each.

    :meth:`DStream.toBlocks` creates it. Blocks are not empty; their sizes are undefined. Methods
    inherited from :class:`DStream` treat blocks as elements: ``map(f)`` calls f with a block.

    Attributes:
        schema: the columns of the blocks; None if the function that makes them decides.
    """

    def __init__(self, node: Node, ssc: StreamingContext, schema: pa.Schema | None) -> None:
        super().__init__(node, ssc)
        self.schema = schema

    def mapBlocks(
        self,
        f: Callable[[Any], Any],
        schema: BlockSchema | None = None,
        form: BlockFormName = "arrow",
    ) -> BlockDStream:
        """Return a stream of ``f(block)`` for each block; f may return an empty one.

        Args:
            f: ``block -> block``: a ``pyarrow.RecordBatch``, or a DataFrame as *form* says. With
                form ``"arrow"`` it may also return a ``pyarrow.Table``.
            schema: columns of the result, as in :meth:`DStream.toBlocks`; None: f decides. Values
                are not converted, except that pandas columns become Arrow columns of these types.
            form: ``"arrow"``, ``"pandas"`` or ``"polars"``, which must be installed.

        Raises:
            InvalidStreamError: if *f* takes other arguments, *schema* is not a schema, or *form* is
                unknown.
            EnvironmentNotReadyError: if the library of *form* is not installed.
            UserFunctionError: in a batch, if f fails or does not return a block, or the block has
                another schema or a null in a column without nulls; names the first such row.

        >>> columns = {"word": str, "number": int}
        >>> def first_column(block):
        ...     return block.select(["word"])
        >>> run([[("a", 1)]], lambda p: p.toBlocks(columns).mapBlocks(first_column).toRows())
        [[('a',)]]
        """
        operation = self._operation("mapBlocks", f, "f(block) -> block")
        columns = None if schema is None else schema_of(schema, operation)
        task = MapBlocks(f, operation, BlockForm.checked(form, operation), columns)
        return block_stream(self, operation, task, columns)

    def mapInArrow(
        self, func: Callable[[Iterator[Any]], Iterable[Any]], schema: BlockSchema
    ) -> BlockDStream:
        """Return a stream of the blocks of ``func(iterator over the blocks of a partition)``.

        Args:
            func: ``iterator of pyarrow.RecordBatch -> iterator of pyarrow.RecordBatch``.
            schema: columns of the result, as in :meth:`DStream.toBlocks`.

        Raises:
            The errors of :meth:`mapBlocks`.

        Semantics: ``DataFrame.mapInArrow`` of PySpark (4.3), without type conversion.
        """
        return self._map_iterator("mapInArrow", func, BlockForm.ARROW, schema)

    def mapInPandas(
        self, func: Callable[[Iterator[Any]], Iterable[Any]], schema: BlockSchema
    ) -> BlockDStream:
        """Return a stream of the blocks of ``func(iterator over the DataFrames of a partition)``.

        Args:
            func: ``iterator of pandas.DataFrame -> iterator of pandas.DataFrame``.
            schema: columns of the result, as in :meth:`DStream.toBlocks`.

        Raises:
            The errors of :meth:`mapBlocks`.

        Semantics: ``DataFrame.mapInPandas`` of PySpark (4.3).
        """
        return self._map_iterator("mapInPandas", func, BlockForm.PANDAS, schema)

    def _map_iterator(
        self,
        name: str,
        func: Callable[[Iterator[Any]], Iterable[Any]],
        form: BlockForm,
        schema: BlockSchema,
    ) -> BlockDStream:
        operation = self._operation(name, func, "func(iterator of blocks) -> iterator of blocks")
        columns = schema_of(schema, operation)
        task = MapBlockIterator(func, operation, BlockForm.checked(form, operation), columns)
        return block_stream(self, operation, task, columns)

    def toRows(self, recordClass: type[U] | None = None) -> DStream[U]:
        """Return a stream of the records of the blocks: tuples, or instances of *recordClass*.

        Args:
            recordClass: a dataclass or NamedTuple whose fields are columns; other columns are
                ignored. None: tuples of all columns in order.

        Raises:
            InvalidStreamError: if *recordClass* is not such a class.
        """
        operation = self._operation("toRows")
        if recordClass is not None and not is_record_class(recordClass):
            raise InvalidStreamError(
                f"{operation} makes records of a dataclass or NamedTuple, got {recordClass!r}"
            )
        return self._each(operation, BlocksToRows(recordClass, operation), keeps_partitioning=False)

    def updateStateByKey(  # type: ignore[override] # its function takes blocks
        self,
        updateFunc: BlockUpdateFunc,
        numPartitions: int | None = None,
        initial: pa.Table | pa.RecordBatch | None = None,
        *,
        key: str | Sequence[str],
        state: BlockSchema,
        uid: str | None = None,
    ) -> BlockStateDStream:
        """Return a stream of the state of every key, updated by each batch, in blocks.

        The function is called once per partition in every batch, with all of its keys as columns;
        no function is called per key or record.

        Args:
            updateFunc: ``f(keys, values, state) -> state``. *keys* is a ``pyarrow.RecordBatch`` of
                the key columns, each key once; *values* the batch's records of these keys
                (:class:`~dstreams.arrow.GroupedValues`); *state* a RecordBatch of the state
                columns, aligned with the keys, with nulls for keys without a state. Returns the
                same for the state after the batch; a key whose columns are all null is dropped.
            numPartitions: partitions of the state. None: the default parallelism.
            initial: initial keys and state, each key once: a table with the columns of both.
            key: the column or columns of the key: numbers, texts, bytes or times.
            state: columns of the state, as in :meth:`DStream.toBlocks`.
            uid: name under which the state is stored, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: derived from its position.

        Returns:
            Stream of blocks with the columns of the key and of the state, one RDD per batch once
            there is a state. It is persisted, serialized in memory, and needs a checkpoint
            directory.

        Raises:
            InvalidStreamError: if the blocks have no declared schema, a key column is missing or
                has a type that cannot be a key, or an argument is invalid.
            UserFunctionError: in a batch, if the function fails or returns another number of rows,
                another order of the keys, another schema, or a null in a column without nulls.

        State: one row per key until the function drops it; each batch processes all of them.
        Semantics: :meth:`DStream.updateStateByKey`, a block at a time.
        """
        operation = self._operation(
            "updateStateByKey", updateFunc, "f(keys, values, state) -> state", 3
        )
        return self._with_block_state(
            operation, updateFunc, numPartitions, initial, key, state, None, uid
        )

    def mapStateBlocks(
        self,
        f: BlockStateFunc,
        numPartitions: int | None = None,
        initial: pa.Table | pa.RecordBatch | None = None,
        *,
        key: str | Sequence[str],
        state: BlockSchema,
        output: BlockSchema,
        uid: str | None = None,
    ) -> MapStateBlocksDStream:
        """Return a stream of the output of a function of the batch and its keys' states, in blocks.

        The function is called once per partition of a batch, with the keys that have records.

        Args:
            f: ``f(keys, values, state) -> (state, output)``, as in :meth:`updateStateByKey`;
                *output* is a RecordBatch of any length, or None.
            output: columns of the output, as in :meth:`DStream.toBlocks`. The other arguments are
                those of :meth:`updateStateByKey`.

        Returns:
            Stream of the output blocks. Its ``stateSnapshots()`` has the states of all keys.

        Raises:
            The errors of :meth:`updateStateByKey`.

        State: one row per key until the function drops it. A batch copies all of them and calls the
            function for those with records.
        """
        operation = self._operation(
            "mapStateBlocks", f, "f(keys, values, state) -> (state, output)", 3
        )
        made = self._with_block_state(operation, f, numPartitions, initial, key, state, output, uid)
        columns = schema_of(output, operation)
        output_blocks = block_stream(made, operation, OfSide(Side.OUTPUT), columns)
        return MapStateBlocksDStream(output_blocks._node, self._ssc, columns, made)

    def _with_block_state(
        self,
        operation: str,
        func: Callable[..., Any],
        numPartitions: int | None,
        initial: Any,
        key: str | Sequence[str],
        state: BlockSchema,
        output: BlockSchema | None,
        uid: str | None,
    ) -> BlockStateDStream:
        update = BlockUpdate.checked(func, operation, self.schema, key, state, output)
        count = self._require_partitions(numPartitions, operation)
        node = StateDStream(
            parent=self._node,
            update=update,
            partitioner=block_partitioner(count, update.step.layout.keys.names),
            preserves_partitioning=True,
            initial=initial_blocks(initial, update, self._ssc.sparkContext),
            operation=operation,
        )
        self._ssc._require_initialized("transformations cannot be added")
        return BlockStateDStream(node, self._ssc, update.step.layout.schema)._named(uid)

    def aggregateByKey(
        self,
        key: str | Sequence[str],
        numPartitions: int | None = None,
        **aggregates: ColumnAggregate,
    ) -> BlockDStream:
        """Return a stream of the aggregates of each key in every batch, in blocks.

        Records are aggregated before the shuffle, which moves one row per key and 131,072 records.

        Args:
            key: the column or columns of the key: numbers, texts, bytes or times.
            numPartitions: partitions of the result. None: the default parallelism.
            aggregates: aggregates of :mod:`dstreams.arrow.aggregates`, by the name of the result
                column.

        Returns:
            Stream of blocks with the columns of the key and of the results, one row per key.

        Raises:
            InvalidStreamError: if the blocks have no declared schema, a column is missing or has a
                type that cannot be a key or be aggregated, or two columns have the same name.
            UserFunctionError: in a batch, if a sum overflows its type; names the key and the
                column.

        Nulls are ignored, as in SQL; NaN is greater than all numbers, as in Spark. Dictionary
        columns are returned as their values.

        >>> from dstreams.arrow.aggregates import Count, Sum
        >>> def totals(pairs):
        ...     sales = pairs.toBlocks({"shop": str, "cents": int})
        ...     return sales.aggregateByKey("shop", total=Sum("cents"), sales=Count()).toRows()
        >>> run([[("a", 1), ("b", 2), ("a", 3)], []], totals)
        [[('a', 4, 2), ('b', 2, 1)], []]
        """
        operation = self._operation("aggregateByKey")
        of_keys, partitioner = self._aggregates(operation, key, aggregates, numPartitions)
        merged = self._merged_partials(operation, of_keys, partitioner, final=True)
        return BlockDStream(merged._node, self._ssc, of_keys.results)

    def aggregateByKeyAndWindow(
        self,
        key: str | Sequence[str],
        windowDuration: float,
        slideDuration: float | None = None,
        numPartitions: int | None = None,
        **aggregates: ColumnAggregate,
    ) -> BlockDStream:
        """Return a stream of the aggregates of each key in every window, in blocks.

        The records of a batch are aggregated and shuffled once. The result, one row per key, is
        persisted and merged into each window that contains the batch.

        Args:
            windowDuration: seconds.
            slideDuration: seconds; None: this stream's slide. The other arguments are those of
                :meth:`aggregateByKey`.

        Returns:
            Stream of blocks as in :meth:`aggregateByKey`, one RDD per window, with the keys that
            have records in the window.

        Raises:
            The errors of :meth:`aggregateByKey`.

        >>> from dstreams.arrow.aggregates import Max
        >>> def highest(pairs):
        ...     sales = pairs.toBlocks({"shop": str, "cents": int})
        ...     return sales.aggregateByKeyAndWindow("shop", 2, highest=Max("cents")).toRows()
        >>> run([[("a", 1)], [("b", 2)], [("a", 0)]], highest)
        [[('a', 1)], [('a', 1), ('b', 2)], [('a', 0), ('b', 2)]]
        """
        from dstreams.arrow.aggregates.aggregates_by_key import merged_rdd  # noqa: PLC0415 - needs numpy

        operation = self._operation("aggregateByKeyAndWindow")
        of_keys, partitioner = self._aggregates(operation, key, aggregates, numPartitions)
        times = WindowTimes.of(windowDuration, slideDuration, self._node.slide_ms, operation)
        batches = self._merged_partials(operation, of_keys, partitioner, final=False)
        window = self._derived(WindowedDStream(batches._node, times, operation))
        merged = window._transformed(
            operation,
            lambda rdd: merged_rdd(rdd, of_keys, partitioner, final=True),
        )
        return BlockDStream(merged._node, self._ssc, of_keys.results)

    def aggregateStateByKey(
        self,
        key: str | Sequence[str],
        numPartitions: int | None = None,
        filterFunc: Callable[[Any], Any] | None = None,
        *,
        outputMode: Literal["complete", "update"] = "complete",
        uid: str | None = None,
        **aggregates: ColumnAggregate,
    ) -> AggregateStateDStream:
        """Return a stream of the running aggregates of each key over all batches, in blocks.

        Args:
            key: as in :meth:`aggregateByKey`.
            numPartitions: partitions of the state. None: the default parallelism.
            filterFunc: ``f(block) -> pyarrow array of truth values``, called after each batch with
                the results of all keys of a partition. Keys with false or null are dropped from the
                state.
            outputMode: ``"complete"``: the result has all keys; ``"update"``: the keys with records
                in the batch.
            uid: as in :meth:`updateStateByKey`.
            aggregates: as in :meth:`aggregateByKey`.

        Returns:
            Stream of blocks with the columns of the key and of the results. Its
            ``stateSnapshots()`` has all keys. It needs a checkpoint directory.

        Raises:
            The errors of :meth:`aggregateByKey`.

        State: one row of partial aggregates per key until *filterFunc* drops it. A batch copies all
            of them and merges those with records; with a *filterFunc*, all.

        >>> from dstreams.arrow.aggregates import Mean
        >>> def means(pairs):
        ...     sales = pairs.toBlocks({"shop": str, "cents": int})
        ...     return sales.aggregateStateByKey("shop", mean=Mean("cents")).toRows()
        >>> run([[("a", 1)], [("b", 2)], [("a", 2)]], means)
        [[('a', 1.0)], [('a', 1.0), ('b', 2.0)], [('a', 1.5), ('b', 2.0)]]
        """
        from dstreams.arrow.aggregates.aggregates_by_key import (  # noqa: PLC0415 - needs numpy
            MergedState,
            StateResults,
            partials_rdd,
            state_update,
        )

        operation = self._operation("aggregateStateByKey")
        of_keys, partitioner = self._aggregates(operation, key, aggregates, numPartitions)
        if outputMode not in (OutputMode.Complete.value, OutputMode.Update.value):
            raise InvalidStreamError(
                f"outputMode of {operation} is {outputMode!r}; use 'complete' for all keys, or "
                "'update' for those with records in the batch"
            )
        if filterFunc is not None:
            require_function(filterFunc, operation, "filterFunc(block) -> array of truth values")
        is_update = outputMode == OutputMode.Update.value
        node = StateDStream(
            parent=self._transformed(operation, partial(partials_rdd, aggregates=of_keys))._node,
            update=state_update(MergedState(of_keys, filterFunc, is_update)),
            partitioner=partitioner,
            preserves_partitioning=True,
            initial=None,
            operation=operation,
        )
        state = BlockDStream(node, self._ssc, None)._named(uid)
        every = block_stream(state, operation, StateResults(of_keys), of_keys.results)
        if is_update:
            output_blocks = block_stream(state, operation, OfSide(Side.OUTPUT), of_keys.results)
            return AggregateStateDStream(output_blocks._node, state, every)
        return AggregateStateDStream(every._node, state, every)

    def _aggregates(
        self,
        operation: str,
        key: str | Sequence[str],
        aggregates: Mapping[str, ColumnAggregate],
        numPartitions: int | None,
    ) -> tuple[AggregatesByKey, StablePartitioner]:
        from dstreams.arrow.aggregates.aggregates_by_key import AggregatesByKey  # noqa: PLC0415 - needs numpy

        self._ssc._require_initialized("transformations cannot be added")
        count = self._require_partitions(numPartitions, operation)
        of_keys = AggregatesByKey.checked(operation, self.schema, key, aggregates)
        return of_keys, block_partitioner(count, of_keys.keys.names)

    def _merged_partials(
        self,
        operation: str,
        of_keys: AggregatesByKey,
        partitioner: StablePartitioner,
        *,
        final: bool,
    ) -> DStream[Any]:
        from dstreams.arrow.aggregates.aggregates_by_key import merged_rdd, partials_rdd  # noqa: PLC0415

        def merged(rdd: RDD[Any]) -> RDD[Any]:
            return merged_rdd(partials_rdd(rdd, of_keys), of_keys, partitioner, final)

        return self._transformed(operation, merged)

    def saveAsParquetFiles(
        self, prefix: str, suffix: str | None = None, compression: str = "snappy"
    ) -> None:
        """Write each RDD as a directory of Parquet files named ``prefix-TIME_IN_MS[.suffix]``.

        Directories have the delivery guarantee and the errors of :meth:`DStream.saveAsTextFiles`.
        A partition is one file, ``part-....parquet``.

        Args:
            prefix: path or URL up to the dash, in a directory that all workers share, or in an
                object store (s3, gs, abfs). There a directory is complete when it contains
                ``_SUCCESS``, which lists the valid files.
            suffix: appended after the time and a dot. None: nothing.
            compression: ``"none"``, ``"snappy"``, ``"gzip"``, ``"brotli"``, ``"lz4"``, ``"zstd"``.

        Raises:
            InvalidStreamError: if *prefix* or *suffix* is not a string, or *compression* is
                unknown.
            StreamLifecycleError: if the context has started.
            UserFunctionError: in a batch, if the blocks of a file have different schemas.
        """
        self._save("saveAsParquetFiles", ParquetFile, ".parquet", prefix, suffix, compression)

    def saveAsArrowFiles(
        self, prefix: str, suffix: str | None = None, compression: str = "none"
    ) -> None:
        """Write each RDD as a directory of Arrow files named ``prefix-TIME_IN_MS[.suffix]``.

        Files have Arrow's IPC format (Feather version 2): read them with ``pyarrow.ipc.open_file``
        or ``polars.read_ipc``.

        Args:
            compression: ``"none"``, ``"lz4"`` or ``"zstd"``. The other arguments are those of
                :meth:`saveAsParquetFiles`.

        Raises:
            The errors of :meth:`saveAsParquetFiles`.
        """
        self._save("saveAsArrowFiles", ArrowFile, ".arrow", prefix, suffix, compression)

    def _save(
        self,
        operation: str,
        file: type[BlockFile],
        ending: str,
        prefix: str,
        suffix: str | None,
        compression: str,
    ) -> None:
        require("pyarrow", operation)
        known = file.compressions.of(compression, f"compression of {operation}")
        encode = file(self.schema, operation, known)
        writer = EncodedFilesWriter(prefix, suffix, operation, encode, ending)
        self._output(operation, writer, writer.promise)

    def count(self) -> DStream[int]:
        """Return a stream with the number of records in all blocks of each batch."""
        return self._transformed(
            self._operation("count"), partial(count_all, size=attrgetter("num_rows"))
        )


class BlockStateDStream(BlockDStream):
    """The state stream of ``updateStateByKey`` over blocks, one row per key."""

    def stateSnapshots(self) -> BlockDStream:
        """Return the stream of the states of every key after each batch: this stream."""
        return self

    def stateStore(self, batchTime: datetime | float | None = None) -> RDD[pa.RecordBatch]:
        """Return the state as an RDD of blocks, for example in a notebook.

        Args:
            batchTime: return the state after this batch, as in
                :meth:`UpdateStateDStream.stateStore`. None: the newest.

        Raises:
            InvalidStreamError: if the state after that batch is not remembered or never existed.
            StreamLifecycleError: if the context is not running, or no batch has made a state yet.
        """
        return state_rdd(self, batchTime)


class MapStateBlocksDStream(BlockDStream):
    """The output of ``mapStateBlocks``, with access to the state."""

    def __init__(
        self, node: Node, ssc: StreamingContext, schema: pa.Schema, state: BlockStateDStream
    ) -> None:
        super().__init__(node, ssc, schema)
        self._state = state

    def stateSnapshots(self) -> BlockDStream:
        """Return a stream of the states of every key after each batch."""
        operation = self._operation("stateSnapshots")
        return block_stream(self._state, operation, OfSide(Side.STATE), self._state.schema)


class AggregateStateDStream(BlockDStream):
    """The results of ``aggregateStateByKey``, of all keys or of those with records."""

    def __init__(self, node: Node, state: BlockDStream, every: BlockDStream) -> None:
        super().__init__(node, every._ssc, every.schema)
        self._state = state
        self._every = every

    def stateSnapshots(self) -> BlockDStream:
        """Return the stream of the results of every key after each batch."""
        return self._every

    def checkpoint(self, interval: float) -> AggregateStateDStream:
        """Make the state durable every *interval* seconds."""
        self._state.checkpoint(interval)
        return self
