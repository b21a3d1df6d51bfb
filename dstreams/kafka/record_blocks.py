"""Conversion of records to Arrow blocks: decoded values, and columns of the record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dstreams.arrow.block_rdd import blocks_rdd
from dstreams.arrow.library import require
from dstreams.errors import DecodeError, InvalidStreamError
from dstreams.kafka.decoders import Utf8Decoder
from dstreams.kafka.decoding import ConsumerRecord, Decoding
from dstreams.spark.task_reports import BadRecords, LeftOut, TaskReport, TaskReports
from dstreams.spark.worker_gc import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD

    from dstreams.arrow.block_decoder import BlockDecoder

_VALUE = itemgetter(ConsumerRecord._fields.index("value"))


def record_columns(names: Sequence[str], decoding: Decoding, operation: str) -> pa.Schema:
    """Return the schema of columns of records.

    Raises:
        InvalidStreamError: a column is unknown, or keys are decoded to neither bytes nor text.
    """
    arrow = require("pyarrow", operation)
    known: dict[str, Any] = {
        "key": arrow.string() if isinstance(decoding.key, Utf8Decoder) else arrow.binary(),
        "topic": arrow.string(),
        "partition": arrow.int32(),
        "offset": arrow.int64(),
        "timestamp": arrow.timestamp("ms", "UTC"),
        "timestampType": arrow.int32(),
    }
    for name in names:
        if name not in known or isinstance(names, str):
            raise InvalidStreamError(
                f"columns of {operation} must be some of {', '.join(known)}, got {names!r}"
            )
    if "key" in names and not isinstance(decoding.key, (Utf8Decoder, type(None))):
        raise InvalidStreamError(
            f"the column 'key' of {operation} is bytes or text, but {decoding.key!r} decodes keys; "
            "remove key.deserializer, or set it to StringDeserializer"
        )
    fields = [
        arrow.field(name, known[name], nullable=name in ("key", "timestamp")) for name in names
    ]
    return arrow.schema(fields)


@dataclass(frozen=True)
class DecodeRecords:
    """A task that makes blocks of records; malformed values fail it or are skipped and reported."""

    decoder: BlockDecoder
    columns: pa.Schema
    operation: str
    mode: BadRecords
    rows_at_once: int
    report: TaskReport[LeftOut]

    def __call__(self, split: int, records: Iterable[ConsumerRecord]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        remaining = iter(records)
        seen = skipped = 0
        first = ""
        while chunk := list(islice(remaining, self.rows_at_once)):
            block, rows, failures = self.decoder.decode(list(map(_VALUE, chunk)))
            if failures:
                place, why = next(iter(failures.items()))
                topic, partition, offset = chunk[place][:3]
                if self.mode == "FAILFAST":
                    remedy = "mode='DROPMALFORMED'"
                    raise DecodeError(
                        topic, partition, offset, "value", self.operation, why, remedy
                    )
                skipped += len(failures)
                first = first or f"{topic}-{partition}, offset {offset}, its value: {why}"
            seen += len(chunk)
            if block.num_rows:
                kept = chunk if rows is None else [chunk[row] for row in rows]
                yield self._with_columns(block, kept)
        if skipped:
            self.report(split, seen, LeftOut(skipped, first))

    def _with_columns(self, block: pa.RecordBatch, kept: list[ConsumerRecord]) -> pa.RecordBatch:
        if not self.columns.names:
            return block
        import pyarrow as pa  # noqa: PLC0415 - where blocks are used

        arrays = [
            pa.array(list(map(_of_field(field.name), kept)), field.type) for field in self.columns
        ]
        schema = pa.schema([*block.schema, *self.columns])
        return pa.record_batch([*block.columns, *arrays], schema=schema)


def _of_field(name: str) -> Any:
    if name == "timestamp":
        return _timestamp
    return itemgetter(ConsumerRecord._fields.index(name))


def _timestamp(record: ConsumerRecord) -> int | None:
    return None if record.timestamp < 0 else record.timestamp


@dataclass(frozen=True)
class RecordsToBlocks:
    """Converts an RDD of records to an RDD of blocks, which reports skipped records."""

    decoder: BlockDecoder
    columns: pa.Schema
    operation: str
    mode: BadRecords
    rows_at_once: int

    def __call__(self, rdd: RDD[Any]) -> RDD[pa.RecordBatch]:
        reports: TaskReports[LeftOut] = TaskReports(rdd.context)
        task = DecodeRecords(
            self.decoder,
            self.columns,
            self.operation,
            self.mode,
            self.rows_at_once,
            reports.task,
        )
        blocks: Any = blocks_rdd(rdd, task)
        blocks.left_out = reports
        return blocks  # type: ignore[no-any-return]
