"""RDDs of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.arrow.block_serializer import BlockSerializer

if TYPE_CHECKING:
    import pyarrow as pa

BlockTask: TypeAlias = "Callable[[int, Iterable[Any]], Iterator[pa.RecordBatch]]"


def blocks_rdd(rdd: RDD[Any], task: BlockTask) -> RDD[pa.RecordBatch]:
    """Return the RDD of the blocks that *task* makes of each partition; it claims no partitioner.

    Where blocks leave their process they do so as Arrow's own bytes.
    """
    blocks: RDD[pa.RecordBatch] = PipelinedRDD(rdd, task)
    blocks._jrdd_deserializer = BlockSerializer()
    return blocks
