"""Write blocks to files of Parquet or of Arrow's IPC format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dstreams.arrow.block_rdd import gathered
from dstreams.arrow.library import require
from dstreams.common.settings import choice
from dstreams.spark.blocks import shorten
from dstreams.spark.failures import UserFunctionError

if TYPE_CHECKING:
    import pyarrow as pa

_GROUP_ROWS = 131_072


class _Drained:
    """A writable file that keeps the bytes since the last :meth:`take`."""

    closed = False

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self._chunks.append(chunk)
        self._size += len(chunk)
        return len(chunk)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing, because writes are not buffered."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        data = b"".join(self._chunks)
        self._chunks.clear()
        return data


@dataclass(frozen=True)
class BlockFile:
    """Turns the blocks of a partition into one file; without blocks, an empty file if possible.

    Attributes:
        schema: the columns; None for those of the first block.
        operation: name for messages.
        compression: compression of the columns, or ``none``.
    """

    schema: pa.Schema | None
    operation: str
    compression: str

    compressions: ClassVar[Any]

    def __call__(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, int]]:
        """Yield the bytes of the file in chunks, each with its number of rows."""
        file, schema = _Drained(), self.schema
        writer = None if schema is None else self._writer(file, schema)
        for block in gathered(blocks, _GROUP_ROWS, self.operation):
            if writer is None:
                schema = block.schema.remove_metadata()
                writer = self._writer(file, schema)
            writer.write_batch(self._of_schema(block, schema))
            yield file.take(), block.num_rows
        if writer is not None:
            writer.close()
            yield file.take(), 0

    def _of_schema(self, block: pa.RecordBatch, schema: Any) -> pa.RecordBatch:
        arrow = require("pyarrow", self.operation)
        if not block.schema.equals(schema):
            raise UserFunctionError(
                f"{self.operation}: the blocks of a file must have one schema, got "
                f"{shorten(schema.to_string())} and {shorten(block.schema.to_string())}; declare "
                "it: mapBlocks(f, schema)"
            )
        return arrow.RecordBatch.from_arrays(block.columns, schema=schema)

    def _writer(self, file: _Drained, schema: pa.Schema) -> Any:
        raise NotImplementedError


class ParquetFile(BlockFile):
    """A Parquet file with row groups of at least 131,072 rows."""

    compressions = choice("none", "snappy", "gzip", "brotli", "lz4", "zstd")

    def _writer(self, file: _Drained, schema: pa.Schema) -> Any:
        import pyarrow.parquet as pq  # noqa: PLC0415 - where blocks are used

        return pq.ParquetWriter(file, schema, compression=self.compression)


class ArrowFile(BlockFile):
    """A file of Arrow's IPC format, which readers can map into memory."""

    compressions = choice("none", "lz4", "zstd")

    def _writer(self, file: _Drained, schema: pa.Schema) -> Any:
        import pyarrow as pa  # noqa: PLC0415 - where blocks are used

        named = None if self.compression == "none" else self.compression
        options = pa.ipc.IpcWriteOptions(compression=named)
        return pa.ipc.new_file(file, schema, options=options)
