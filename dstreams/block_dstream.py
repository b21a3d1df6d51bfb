"""BlockDStream: the public face of a stream of Arrow blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from dstreams.arrow.block_functions import BlockForm, MapBlockIterator, MapBlocks
from dstreams.arrow.block_rdd import BlockTask, blocks_rdd
from dstreams.arrow.rows import BlocksToRows
from dstreams.arrow.schemas import BlockSchema, is_record_class, schema_of
from dstreams.arrow.state_update import BlockUpdate, OfSide, block_partitioner, initial_blocks
from dstreams.dstream import DStream
from dstreams.errors import InvalidStreamError
from dstreams.graph.node import Node
from dstreams.graph.state import StateDStream
from dstreams.rdd.blocks import Side
from dstreams.rdd.totals import count_all

if TYPE_CHECKING:
    import pyarrow as pa

    from dstreams.arrow.grouping import GroupedValues
    from dstreams.streaming_context import StreamingContext

__all__ = ["BlockDStream", "BlockStateDStream", "MapStateBlocksDStream", "block_stream"]

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
"""As what a function takes and returns blocks."""


def block_stream(
    parent: DStream[Any], operation: str, task: BlockTask, schema: pa.Schema | None
) -> BlockDStream:
    """Return the stream of the blocks that *task* makes of each partition of *parent*."""
    made = parent._transformed(operation, partial(blocks_rdd, task=task))
    return BlockDStream(made._node, parent._ssc, schema)


class BlockDStream(DStream["pa.RecordBatch"]):
    """A stream whose elements are Arrow blocks: ``pyarrow.RecordBatch``, many records each.

    :meth:`DStream.toBlocks` makes it. How many records a block has is nobody's promise; no block is
    empty. What has no method here works on the blocks as elements: ``map(f)`` calls f for a block.

    Attributes:
        schema: the columns of the blocks, None where the function that makes them decides.
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
        """Return the stream of ``f(block)`` for each block; f may return an empty one.

        Args:
            f: ``block -> block``: a ``pyarrow.RecordBatch``, or by *form* a DataFrame. For a block
                of Arrow it may return a ``pyarrow.Table`` as well.
            schema: columns of what f returns, as for :meth:`DStream.toBlocks`; None: f decides.
                Values are not converted; pandas' columns become Arrow's by it.
            form: ``"arrow"``, ``"pandas"`` or ``"polars"``, which must be installed.

        Raises:
            InvalidStreamError: *f* takes another number of arguments, *schema* is none, or *form*
                is unknown.
            EnvironmentNotReadyError: the library of *form* is not installed.
            UserFunctionError: in a batch, where f fails, returns no block, or one of another
                schema, or a null where none may be; the first such row is named.

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
        """Return the blocks of ``func(iterator over the blocks of a partition)``.

        Args:
            func: ``iterator of pyarrow.RecordBatch -> iterator of pyarrow.RecordBatch``.
            schema: columns of what it yields, as for :meth:`DStream.toBlocks`.

        Raises:
            As :meth:`mapBlocks`.

        Semantics: ``DataFrame.mapInArrow`` of PySpark (4.3), without the conversion of types.
        """
        return self._map_iterator("mapInArrow", func, BlockForm.ARROW, schema)

    def mapInPandas(
        self, func: Callable[[Iterator[Any]], Iterable[Any]], schema: BlockSchema
    ) -> BlockDStream:
        """Return the blocks of ``func(iterator over the DataFrames of a partition)``.

        Args:
            func: ``iterator of pandas.DataFrame -> iterator of pandas.DataFrame``.
            schema: columns of what it yields, as for :meth:`DStream.toBlocks`.

        Raises:
            As :meth:`mapBlocks`.

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
        """Return the records of the blocks: tuples, or instances of a class of records.

        Args:
            recordClass: a dataclass or NamedTuple whose fields are columns; the blocks may have
                others. None: tuples of all columns in order.

        Raises:
            InvalidStreamError: *recordClass* is no such class.
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
        """Return the stream of the state of every key, updated by each batch, in blocks.

        The function is called once for each partition in every batch, with all of its keys. It runs
        on numbers, texts and times as columns; nothing is called for a key or a record.

        Args:
            updateFunc: ``f(keys, values, state) -> state``. *keys* is a ``pyarrow.RecordBatch`` of
                the key columns, each key once; *values* the records of the batch behind them
                (:class:`~dstreams.arrow.GroupedValues`); *state* a RecordBatch of the state
                columns, aligned with the keys, with nulls where a key has no state yet. It returns
                the same for the state after the batch; a key whose columns are all null is dropped.
            numPartitions: partitions of the state. None: the default parallelism.
            initial: keys and state to begin with, each key once: a table with columns of both.
            key: the column or columns of the key: numbers, texts, bytes or times.
            state: columns of the state, as for :meth:`DStream.toBlocks`.
            uid: name under which the state is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Returns:
            Stream of blocks with the columns of the key and of the state, one RDD for each batch
            once there is a state. It is persisted, serialized in memory, and needs a checkpoint
            directory.

        Raises:
            InvalidStreamError: the blocks have no declared schema, a key column is missing or of a
                type that is no key, or an argument is not what it should be.
            UserFunctionError: in a batch, where the function fails, or returns another number of
                rows, another order of the keys, another schema, or a null where none may be.

        State: one row for each key until the function drops it; each batch costs all of them.
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
        """Return what a function says of the keys of each batch, which have a state, in blocks.

        The function is called once for each partition of a batch, with the keys that have records.

        Args:
            f: ``f(keys, values, state) -> (state, output)``, as for :meth:`updateStateByKey`;
                *output* is a RecordBatch of any length, or None.
            numPartitions: partitions of the state. None: the default parallelism.
            initial: keys and state to begin with, each key once: a table with columns of both.
            key: the column or columns of the key: numbers, texts, bytes or times.
            state: columns of the state, as for :meth:`DStream.toBlocks`.
            output: columns of the output, likewise.
            uid: name under which the state is kept. None: one from its place.

        Returns:
            Stream of the blocks of output; its ``stateSnapshots()`` are the states of all keys.

        Raises:
            As :meth:`updateStateByKey`.

        State: one row for each key until the function drops it. A batch costs a copy of all of
            them, and calls for those that it touches.
        """
        operation = self._operation(
            "mapStateBlocks", f, "f(keys, values, state) -> (state, output)", 3
        )
        made = self._with_block_state(operation, f, numPartitions, initial, key, state, output, uid)
        columns = schema_of(output, operation)
        said = block_stream(made, operation, OfSide(Side.OUTPUT), columns)
        return MapStateBlocksDStream(said._node, self._ssc, columns, made)

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
            partitioner=block_partitioner(count),
            preserves_partitioning=True,
            initial=initial_blocks(initial, update, self._ssc.sparkContext),
            operation=operation,
        )
        self._ssc._require_initialized("transformations cannot be added")
        return BlockStateDStream(node, self._ssc, update.step.layout.schema)._named(uid)

    def count(self) -> DStream[int]:
        """Return the number of records in all blocks of each batch."""
        return self._transformed(
            self._operation("count"), partial(count_all, size=attrgetter("num_rows"))
        )


class BlockStateDStream(BlockDStream):
    """The state of ``updateStateByKey`` over blocks: a row for each key."""

    def stateSnapshots(self) -> BlockDStream:
        """Return the stream of the states of every key, after each batch: this one."""
        return self


class MapStateBlocksDStream(BlockDStream):
    """What the function of ``mapStateBlocks`` says of each batch."""

    def __init__(
        self, node: Node, ssc: StreamingContext, schema: pa.Schema, state: BlockStateDStream
    ) -> None:
        super().__init__(node, ssc, schema)
        self._state = state

    def stateSnapshots(self) -> BlockDStream:
        """Return the stream of the states of every key, after each batch."""
        operation = self._operation("stateSnapshots")
        return block_stream(self._state, operation, OfSide(Side.STATE), self._state.schema)
