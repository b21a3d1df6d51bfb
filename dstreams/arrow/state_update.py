"""Updates of a state in blocks, for :class:`dstreams.graph.state.StateDStream`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import RDD, SparkContext

from dstreams.arrow.block_functions import SchemaMismatchError, empty_block, fitted
from dstreams.arrow.block_rdd import BlockFrames, block_of_bytes, frames_of_block, side_of, together
from dstreams.arrow.library import require
from dstreams.arrow.schemas import schema_of
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import Side
from dstreams.spark.cogroup import StateTask
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.worker_gc import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

    from dstreams.arrow.state_step import StateStep


@dataclass(frozen=True)
class BlockUpdate:
    """A state step and the columns of the records of batches."""

    step: StateStep
    records: pa.Schema

    @classmethod
    def checked(
        cls,
        func: Any,
        operation: str,
        records: pa.Schema | None,
        key: str | Sequence[str],
        state: Any,
        output: Any,
    ) -> BlockUpdate:
        """Return the update by a user function over blocks of declared columns.

        Raises:
            InvalidStreamError: *records* are not declared, or a declaration is not valid.
        """
        records = require_declared(records, operation)
        keys = key_schema(key, records, operation)
        kept = schema_of(state, operation)
        twice = [name for name in kept.names if name in keys.names]
        if twice:
            raise InvalidStreamError(
                f"the column {twice[0]!r} of {operation} is both in the key and in the state; "
                "remove it from the state"
            )
        from dstreams.arrow.state_step import (  # noqa: PLC0415 - needs numpy
            StateLayout,
            StateStep,
            defaults_of,
        )

        said = None if output is None else schema_of(output, operation)
        layout = StateLayout(keys, kept, defaults_of(state, kept, operation))
        return cls(StateStep(func, operation, layout, said, touches_all=output is None), records)

    @property
    def columns(self) -> list[dict[str, object]]:
        """Return the columns of the state as JSON."""
        return self.step.layout.described()

    @property
    def layout(self) -> BlockFrames:
        return BlockFrames(self.step.layout, self.step.operation)

    def task(self, time_ms: int, unique: bool, partitioner: StablePartitioner | None) -> StateTask:
        """Return the task that updates one partition of the state."""
        return _StepTask(self, unique)


def require_declared(records: pa.Schema | None, operation: str) -> pa.Schema:
    """Return the columns of blocks, or reject blocks without a declared schema."""
    if records is None:
        raise InvalidStreamError(
            f"{operation} needs blocks of a declared schema: mapBlocks(f, schema)"
        )
    return records


def key_schema(key: str | Sequence[str], records: pa.Schema, operation: str) -> pa.Schema:
    """Return the columns of the key of *records*.

    Raises:
        InvalidStreamError: a column is missing, repeated, or of a type that cannot be a key.
    """
    import pyarrow as pa  # noqa: PLC0415 - where blocks are used

    require("numpy", operation)
    from dstreams.arrow.key_hash import UnplaceableKeyError, hashes_of  # noqa: PLC0415

    names = (key,) if isinstance(key, str) else tuple(key)
    missing = [name for name in names if name not in records.names]
    if missing or not names or len(set(names)) < len(names):
        raise InvalidStreamError(
            f"key of {operation} must be columns of its blocks, each once, got {key!r}; they have "
            f"{', '.join(records.names)}"
        )
    fields = [records.field(name) for name in names]
    try:
        hashes_of([pa.array([], field.type) for field in fields])
    except UnplaceableKeyError as error:
        raise InvalidStreamError(f"key of {operation}: {error}") from None
    return pa.schema(fields)


def block_partitioner(count: int, keys: Sequence[str]) -> StablePartitioner:
    """Return the partitioner of key columns; it differs from that of other columns."""
    from dstreams.arrow.key_hash import BLOCK_HASH_NAME  # noqa: PLC0415 - needs numpy

    return StablePartitioner(count, _hash_of_row, f"{BLOCK_HASH_NAME} of {', '.join(keys)}")


def _hash_of_row(key: Any) -> int:
    """Return the hash of one key: a tuple, or the value of a single column."""
    import pyarrow as pa  # noqa: PLC0415 - where blocks are used

    from dstreams.arrow.key_hash import hashes_of  # noqa: PLC0415 - needs numpy

    row = key if isinstance(key, tuple) else (key,)
    return int(hashes_of([pa.array([value]) for value in row])[0])


def initial_blocks(initial: Any, update: BlockUpdate, spark: SparkContext) -> RDD[Any] | None:
    """Return the RDD of the blocks of an initial state.

    Raises:
        InvalidStreamError: *initial* is not a table, or has other columns than the state.
    """
    import pyarrow as pa  # noqa: PLC0415 - where blocks are used

    if initial is None:
        return None
    operation, schema = update.step.operation, update.step.layout.schema
    if not isinstance(initial, (pa.Table, pa.RecordBatch)):
        raise InvalidStreamError(
            f"initial of {operation} must be a pyarrow.Table, got {type(initial).__name__}"
        )
    table = pa.Table.from_batches([initial]) if isinstance(initial, pa.RecordBatch) else initial
    try:
        blocks = [fitted(block, schema) for block in table.combine_chunks().to_batches()]
    except SchemaMismatchError as error:
        raise InvalidStreamError(f"initial of {operation}: {error}") from None
    return spark.parallelize(blocks, max(1, len(blocks)))


@dataclass(frozen=True)
class _StepTask:
    """Task: frames of a batch and of a state -> frames of the next state, and of the output."""

    update: BlockUpdate
    unique: bool

    def __call__(self, _: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        settle_worker()
        step = self.update.step
        sides: dict[Side, list[Any]] = {side: [] for side in Side}
        for block in map(block_of_bytes, frames):
            side = side_of(block)
            of_state = side is Side.STATE
            sides[side].append(step.layout.grown(block, step.operation) if of_state else block)
        states, records = sides[Side.STATE], sides[Side.BATCH]
        if not states and not records:
            return
        before = together(states, step.operation) if states else None
        batch = together(records, step.operation) if records else empty_block(self.update.records)
        for blocks in sides.values():
            blocks.clear()  # frees memory: a batch is large and was copied
        state, output = step.next(before, batch, unique=self.unique)
        del before, batch
        yield from frames_of_block(state, Side.STATE, step.layout.keys.names)
        if output is not None:
            yield from frames_of_block(output, Side.OUTPUT)


@dataclass(frozen=True)
class OfSide:
    """Task: blocks -> those of a side."""

    side: Side

    def __call__(self, _: int, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        for block in blocks:
            if side_of(block) is self.side:
                yield block.replace_schema_metadata(None)
