"""RDDs of blocks, their shuffle by key, and the state that they are in frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from checkpoint import arrow_metadata, arrow_side
from dstreams.arrow.block_serializer import BlockSerializer, block_to_bytes
from dstreams.spark import jvm
from dstreams.spark.blocks import Side, shorten
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.worker_gc import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

    from dstreams.arrow.state_layout import StateLayout

BlockTask: TypeAlias = "Callable[[int, Iterable[Any]], Iterator[pa.RecordBatch]]"

ROUTED_ROWS = 131_072
"""Rows that are addressed at once."""

FRAME_BYTES = 256 << 10
"""What a frame that is moved or kept has about; the JVM takes larger ones at a higher price."""

_FEW = 1 << 16


def blocks_rdd(rdd: RDD[Any], task: BlockTask) -> RDD[pa.RecordBatch]:
    """Return the RDD of the blocks that *task* makes of each partition; it claims no partitioner.

    Where blocks leave their process they do so as Arrow's own bytes.
    """
    blocks: RDD[pa.RecordBatch] = PipelinedRDD(rdd, task)
    blocks._jrdd_deserializer = BlockSerializer()
    return blocks


def side_of(block: pa.RecordBatch) -> Side:
    """Return what the rows of a block are; records of a batch where it does not say."""
    return Side[arrow_side(block.schema.metadata) or Side.BATCH.name]


def frames_of_block(block: pa.RecordBatch, side: Side, keys: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield a block in frames, none of them empty, and none much larger than the others."""
    from dstreams.arrow.buckets import rows_of, sizes_of, with_sizes  # noqa: PLC0415 - needs numpy

    named = block.replace_schema_metadata(arrow_metadata(side.name, keys))
    sizes = sizes_of(block)
    if sizes is not None:
        named = with_sizes(named, sizes)

    def frames(part: pa.RecordBatch) -> Iterator[bytes]:
        if part.num_rows > 1 and part.nbytes > 4 * FRAME_BYTES:  # its rows are larger than others
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
    """Layout of frames: blocks of Arrow, whose key is in some of their columns."""

    layout: StateLayout
    operation: str

    def frames(
        self, rdd: RDD[Any], partitioner: StablePartitioner, side: Side, operation: str
    ) -> RDD[bytes]:
        if rdd.partitioner == partitioner and side is Side.STATE:
            return jvm.frames_of(rdd)  # what :meth:`rdd` made of such frames
        if rdd.partitioner == partitioner:
            return jvm.as_frames(PipelinedRDD(rdd, _Mark(side, self._keys), True), partitioner)
        route = self.route(partitioner.numPartitions, side, operation)
        return jvm.shuffle_frames(PipelinedRDD(rdd, route), partitioner)

    def rdd(self, frames: RDD[bytes]) -> RDD[pa.RecordBatch]:
        return jvm.deserialized(frames, StateSerializer(self.layout, self.operation))

    def route(self, partitions: int, side: Side, operation: str) -> _Route:
        """Return the task that addresses blocks to their partitions."""
        return _Route(self._keys, partitions, side, operation)

    @property
    def _keys(self) -> tuple[str, ...]:
        return tuple(self.layout.keys.names)


class StateSerializer(BlockSerializer):
    """Serializer of a state: blocks that an earlier program wrote get the columns of this one."""

    def __init__(self, layout: StateLayout, operation: str) -> None:
        self._layout = layout
        self._operation = operation

    def loads(self, obj: bytes) -> pa.RecordBatch:
        block = super().loads(obj)
        if side_of(block) is not Side.STATE:
            return block
        # In which buckets its rows lie would not be true any more where somebody changes the block.
        metadata = arrow_metadata(Side.STATE.name, self._layout.keys.names)
        return self._layout.grown(block, self._operation).replace_schema_metadata(metadata)

    def rows_of_frame(self, obj: bytes) -> int:
        """Return how many keys a frame of the state has."""
        block = super().loads(obj)
        rows: int = block.num_rows
        return rows if side_of(block) is Side.STATE else 0


@dataclass(frozen=True)
class _Mark:
    """Task: blocks that are where they belong -> frames of a side."""

    side: Side
    keys: tuple[str, ...]

    def __call__(self, _: int, blocks: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        settle_worker()
        plain = (block.replace_schema_metadata(None) for block in blocks)
        return chain.from_iterable(frames_of_block(block, self.side, self.keys) for block in plain)


@dataclass(frozen=True)
class _Route:
    """Task: blocks -> alternately a partition number and a frame that belongs there."""

    keys: tuple[str, ...]
    partitions: int
    side: Side
    operation: str

    def __call__(self, _: int, blocks: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        settle_worker()
        # What a function had to say of a batch may lie among the states after it.
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

        from dstreams.arrow.buckets import (  # noqa: PLC0415 - needs both
            BUCKETS,
            WORTH_ROWS,
            buckets_of,
            ranges,
            with_sizes,
        )
        from dstreams.arrow.key_hash import hashes_of, partitions_of  # noqa: PLC0415

        try:
            hashes = hashes_of([block.column(name) for name in self.keys])
        except (KeyError, TypeError) as error:
            raise UserFunctionError(f"{self.operation}: {_said(error, block)}") from error
        parts = BUCKETS if block.num_rows >= WORTH_ROWS else 1
        places = partitions_of(hashes, self.partitions)
        if parts > 1:
            places = places * BUCKETS + buckets_of(hashes)
        # A stable sort of small numbers is one by their digits.
        is_small = self.partitions * parts <= _FEW
        order = np.argsort(places.astype(np.uint16) if is_small else places, kind="stable")
        sizes = np.bincount(places, minlength=self.partitions * parts).reshape(-1, parts)
        sorted_block = block.take(pa.array(order))
        for target, (start, count) in enumerate(ranges(sizes.sum(axis=1))):
            if count:
                part = sorted_block.slice(start, count)
                yield target, with_sizes(part, sizes[target]) if parts > 1 else part


def _said(error: Exception, block: pa.RecordBatch) -> str:
    if isinstance(error, KeyError):
        return f"the blocks have no key column {error}; they have {', '.join(block.schema.names)}"
    return str(error)


def gathered(
    blocks: Iterable[pa.RecordBatch], rows: int, operation: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *blocks* in blocks of so many rows or more, but for the last."""
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
    """Return the rows of blocks, at least one, as one block: by buckets where all lie in such.

    Raises:
        UserFunctionError: they are of two schemas.
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
    from dstreams.arrow.buckets import by_bucket, with_sizes  # noqa: PLC0415 - needs numpy

    in_order = by_bucket(blocks)
    parts = blocks if in_order is None else in_order[0]
    columns = [
        pa.concat_arrays([part.column(number) for part in parts]) for number in range(len(first))
    ]
    block = pa.record_batch(columns, schema=first.remove_metadata())
    return block if in_order is None else with_sizes(block, in_order[1])
