"""Sinks that call a user's function with each row or batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.common.callables import describe, require_arity, require_picklable
from dstreams.errors import InvalidStreamError
from dstreams.sinks.output_batch import OutputBatch
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.group_state import OutputMode
from dstreams.structured.named_rows import with_times
from dstreams.structured.sinks.sink import Sink


def require_row_writer(writer: Any) -> None:
    """Refuse a writer that :class:`ForeachSink` could not call or pickle."""
    if isinstance(writer, type) or not (callable(writer) or hasattr(writer, "process")):
        raise InvalidStreamError(
            f"foreach takes a function of a row, or an object with process(row), got {writer!r}"
        )
    if not hasattr(writer, "process"):
        require_arity(writer, (1,), "foreach", "f(row)")
    for name, count, shape in _WRITER_METHODS:
        if hasattr(writer, name):
            require_arity(getattr(writer, name), (count,), "foreach", shape)
    require_picklable(writer, "foreach")


_WRITER_METHODS = (
    ("open", 2, "open(partition_id, epoch_id)"),
    ("process", 1, "process(row)"),
    ("close", 1, "close(error)"),
)


@dataclass(frozen=True)
class ForeachSink(Sink):
    """Passes each row to a function or a writer, on the workers.

    Semantics: DataStreamWriter.foreach of PySpark. A writer has ``process(row)``, and optionally
    ``open(partition_id, epoch_id) -> bool`` and ``close(error)``.
    """

    writer: Any

    @property
    def name(self) -> str:
        return f"ForeachSink[{describe(self.writer)}]"

    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        counts: list[int] = PipelinedRDD(rows, _ForeachTask(self.writer, batch.batch_id)).collect()
        return sum(counts)


@dataclass(frozen=True)
class _ForeachTask:
    writer: Any
    batch_id: int

    def __call__(self, split: int, rows: Iterable[Any]) -> Iterator[int]:
        settle_worker()
        process = getattr(self.writer, "process", self.writer)
        remaining = iter(rows)
        count = 0
        error: Exception | None = None
        opener = getattr(self.writer, "open", None)
        try:
            if opener is None or opener(split, self.batch_id):
                for row in remaining:
                    process(row)
                    count += 1
        except Exception as failure:
            error = failure
            raise
        finally:
            closer = getattr(self.writer, "close", None)
            if closer is not None:
                closer(error)
        deque(remaining, maxlen=0)
        yield count


@dataclass(frozen=True)
class ForeachBatchSink(Sink):
    """Passes each batch to a function on the driver, as an RDD or a DataFrame.

    Without a schema, a DataFrame without rows has no columns.
    """

    func: Callable[[Any, int], Any]
    schema: Any = None
    as_dataframe: bool = False

    @property
    def name(self) -> str:
        return f"ForeachBatchSink[{describe(self.func)}]"

    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Call the function, which may read any number of the rows."""
        self.func(self._converted(rows), batch.batch_id)
        return None

    def _converted(self, rows: RDD[Any]) -> Any:
        if not self.as_dataframe:
            return rows
        from pyspark.sql import SparkSession  # noqa: PLC0415 - loaded only if needed
        from pyspark.sql.types import StructType  # noqa: PLC0415

        schema = self.schema
        if schema is None and rows.isEmpty():  # Spark cannot infer a schema without rows
            schema = StructType()
        return SparkSession(rows.context).createDataFrame(rows.map(with_times), schema)
