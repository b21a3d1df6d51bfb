"""RDDs of blocks, their shuffle by key, and their frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark import RDD
from pyspark.rdd import PipelinedRDD
from pyspark.serializers import FramedSerializer

from checkpoint import arrow_metadata, arrow_side
from dstreams.arrow.library import require
from dstreams.spark import jvm
from dstreams.spark.blocks import Side, shorten
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.worker_gc import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

    from dstreams.arrow.state_step import StateLayout


BlockTask: TypeAlias = "Callable[[int, Iterable[Any]], Iterator[pa.RecordBatch]]"

ROUTED_ROWS = 131_072
"""Number of rows that are assigned to partitions at once."""

FRAME_BYTES = 256 << 10
"""Approximate size of a frame; larger ones are more expensive in the JVM."""

_FEW = 1 << 16


def block_to_bytes(block: pa.RecordBatch) -> bytes:
    """Return a block as a stream of Arrow's IPC format."""
    arrow = require("pyarrow", "a stream of blocks")
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, block.schema) as writer:
        writer.write_batch(block)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def block_of_bytes(data: bytes | memoryview) -> pa.RecordBatch:
    """Reverse :func:`block_to_bytes`; the block refers to *data*."""
    arrow = require("pyarrow", "a stream of blocks")
    with arrow.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


class BlockSerializer(FramedSerializer):
    """Serializer of RDDs of blocks; of a slice, only its rows are serialized."""

    def dumps(self, obj: pa.RecordBatch) -> bytes:
        return block_to_bytes(obj)

    def loads(self, obj: bytes) -> pa.RecordBatch:
        return block_of_bytes(obj)

    def __repr__(self) -> str:
        return "BlockSerializer()"


def blocks_rdd(rdd: RDD[Any], task: BlockTask) -> RDD[pa.RecordBatch]:
    """Return the RDD of the blocks that *task* returns for each partition, without partitioner."""
    blocks: RDD[pa.RecordBatch] = PipelinedRDD(rdd, task)
    blocks._jrdd_deserializer = BlockSerializer()
    return blocks


def side_of(block: pa.RecordBatch) -> Side:
    """Return the side of a block, BATCH unless its metadata has one."""
    return Side[arrow_side(block.schema.metadata) or Side.BATCH.name]


def frames_of_block(block: pa.RecordBatch, side: Side, keys: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield a block in non-empty frames of similar size."""
    from dstreams.arrow.key_hash import rows_of, sizes_of, with_sizes  # noqa: PLC0415 - needs numpy

    named = block.replace_schema_metadata(arrow_metadata(side.name, keys))
    sizes = sizes_of(block)
    if sizes is not None:
        named = with_sizes(named, sizes)

    def frames(part: pa.RecordBatch) -> Iterator[bytes]:
        if part.num_rows > 1 and part.nbytes > 4 * FRAME_BYTES:  # these rows are large
            half = part.num_rows // 2
            yield from frames(rows_of(part, 0, half))
            yield from frames(rows_of(part, half, part.num_rows - half))
        else:
            yield block_to_bytes(part)

    rows = max(1, named.num_rows * FRAME_BYTES // max(1, named.nbytes))
    for start in range(0, named.num_rows, rows):
        yield from frames(rows_of(named, start, rows))


@dataclass(frozen=True)
class BlockFrames:
    """Layout of frames: Arrow blocks with key columns."""

    layout: StateLayout
    operation: str

    def frames(
        self, rdd: RDD[Any], partitioner: StablePartitioner, side: Side, operation: str
    ) -> RDD[bytes]:
        if rdd.partitioner == partitioner and side is Side.STATE:
            return jvm.frames_of(rdd)  # :meth:`rdd` has read them from such frames
        if rdd.partitioner == partitioner:
            return jvm.as_frames(PipelinedRDD(rdd, _Mark(side, self._keys), True), partitioner)
        route = self.route(partitioner.numPartitions, side, operation)
        return jvm.shuffle_frames(PipelinedRDD(rdd, route), partitioner)

    def rdd(self, frames: RDD[bytes]) -> RDD[pa.RecordBatch]:
        return jvm.deserialized(frames, StateSerializer(self.layout, self.operation))

    def route(self, partitions: int, side: Side, operation: str) -> _Route:
        """Return the task that splits blocks by partition."""
        return _Route(self._keys, partitions, side, operation)

    @property
    def _keys(self) -> tuple[str, ...]:
        return tuple(self.layout.keys.names)


class StateSerializer(BlockSerializer):
    """Serializer of a state; adds columns that an earlier program did not have."""

    def __init__(self, layout: StateLayout, operation: str) -> None:
        self._layout = layout
        self._operation = operation

    def loads(self, obj: bytes) -> pa.RecordBatch:
        block = super().loads(obj)
        if side_of(block) is not Side.STATE:
            return block
        # Drops the sizes of buckets, which would be wrong after a user changes the block.
        metadata = arrow_metadata(Side.STATE.name, self._layout.keys.names)
        return self._layout.grown(block, self._operation).replace_schema_metadata(metadata)

    def rows_of_frame(self, obj: bytes) -> int:
        """Return the number of keys in a frame of the state."""
        block = super().loads(obj)
        rows: int = block.num_rows
        return rows if side_of(block) is Side.STATE else 0


@dataclass(frozen=True)
class _Mark:
    """Task: blocks in their partition -> frames of a side."""

    side: Side
    keys: tuple[str, ...]

    def __call__(self, _: int, blocks: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        settle_worker()
        plain = (block.replace_schema_metadata(None) for block in blocks)
        return chain.from_iterable(frames_of_block(block, self.side, self.keys) for block in plain)


@dataclass(frozen=True)
class _Route:
    """Task: blocks -> alternately a partition number and a frame for it."""

    keys: tuple[str, ...]
    partitions: int
    side: Side
    operation: str

    def __call__(self, _: int, blocks: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        settle_worker()
        # The output of a state function may be among the blocks.
        kept = (
            block.replace_schema_metadata(None)
            for block in blocks
            if side_of(block) is not Side.OUTPUT
        )
        for block in gathered(kept, ROUTED_ROWS, self.operation):
            for target, part in self._parts(block):
                for frame in frames_of_block(part, self.side, self.keys):
                    yield from jvm.addressed(target, frame)

    def _parts(self, block: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        import numpy as np  # noqa: PLC0415 - where blocks are used
        import pyarrow as pa  # noqa: PLC0415

        from dstreams.arrow.key_hash import (  # noqa: PLC0415 - needs numpy
            BUCKETS,
            WORTH_ROWS,
            buckets_of,
            hashes_of,
            partitions_of,
            ranges,
            with_sizes,
        )

        try:
            hashes = hashes_of([block.column(name) for name in self.keys])
        except (KeyError, TypeError) as error:
            raise UserFunctionError(f"{self.operation}: {_reason(error, block)}") from error
        parts = BUCKETS if block.num_rows >= WORTH_ROWS else 1
        places = partitions_of(hashes, self.partitions)
        if parts > 1:
            places = places * BUCKETS + buckets_of(hashes)
        # NumPy sorts 16-bit numbers by radix.
        is_small = self.partitions * parts <= _FEW
        order = np.argsort(places.astype(np.uint16) if is_small else places, kind="stable")
        sizes = np.bincount(places, minlength=self.partitions * parts).reshape(-1, parts)
        sorted_block = block.take(pa.array(order))
        for target, (start, count) in enumerate(ranges(sizes.sum(axis=1))):
            if count:
                part = sorted_block.slice(start, count)
                yield target, with_sizes(part, sizes[target]) if parts > 1 else part


def _reason(error: Exception, block: pa.RecordBatch) -> str:
    if isinstance(error, KeyError):
        return f"the blocks have no key column {error}; they have {', '.join(block.schema.names)}"
    return str(error)


def gathered(
    blocks: Iterable[pa.RecordBatch], rows: int, operation: str
) -> Iterator[pa.RecordBatch]:
    """Combine blocks to at least *rows* rows, except for the last."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for block in blocks:
        waiting.append(block)
        count += block.num_rows
        if count >= rows:
            yield together(waiting, operation)
            waiting, count = [], 0
    if count:
        yield together(waiting, operation)


def together(blocks: list[pa.RecordBatch], operation: str) -> pa.RecordBatch:
    """Concatenate one or more blocks, in bucket order if all of them are.

    Raises:
        UserFunctionError: the blocks have different schemas.
    """
    import pyarrow as pa  # noqa: PLC0415 - where blocks are used

    if len(blocks) == 1:
        return blocks[0]
    first = blocks[0].schema
    other = next((each for each in blocks if not each.schema.equals(first)), None)
    if other is not None:
        raise UserFunctionError(
            f"{operation}: blocks of one stream must have one schema, got "
            f"{shorten(first.to_string(show_schema_metadata=False))} and "
            f"{shorten(other.schema.to_string(show_schema_metadata=False))}; declare it: "
            "mapBlocks(f, schema)"
        )
    from dstreams.arrow.key_hash import by_bucket, with_sizes  # noqa: PLC0415 - needs numpy

    in_order = by_bucket(blocks)
    parts = blocks if in_order is None else in_order[0]
    columns = [
        pa.concat_arrays([part.column(number) for part in parts]) for number in range(len(first))
    ]
    block = pa.record_batch(columns, schema=first.remove_metadata())
    return block if in_order is None else with_sizes(block, in_order[1])
