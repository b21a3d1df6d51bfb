"""How blocks go from one process to another: Arrow's own bytes, one block a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.serializers import FramedSerializer

from dstreams.arrow.library import require

if TYPE_CHECKING:
    import pyarrow as pa


def block_to_bytes(block: pa.RecordBatch) -> bytes:
    """Return a block as a stream of Arrow's IPC format: its schema, then its columns."""
    arrow = require("pyarrow", "a stream of blocks")
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, block.schema) as writer:
        writer.write_batch(block)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def block_of_bytes(data: bytes | memoryview) -> pa.RecordBatch:
    """Return the block that :func:`block_to_bytes` made *data* of; it holds on to them."""
    arrow = require("pyarrow", "a stream of blocks")
    with arrow.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


class BlockSerializer(FramedSerializer):
    """Serializer of RDDs of blocks: a slice of a block travels without the rest of it."""

    def dumps(self, obj: pa.RecordBatch) -> bytes:
        return block_to_bytes(obj)

    def loads(self, obj: bytes) -> pa.RecordBatch:
        return block_of_bytes(obj)

    def __repr__(self) -> str:
        return "BlockSerializer()"
