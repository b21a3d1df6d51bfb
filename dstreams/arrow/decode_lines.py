"""Tasks that decode lines to blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, get_args

from dstreams.arrow.block_rdd import blocks_rdd
from dstreams.arrow.library import require
from dstreams.arrow.rows import BLOCK_ROWS
from dstreams.common.settings import choice
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.counting import count_of, uncounted
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.lines import (
    HasLineRanges,
    LineRange,
    LineRanges,
    read_as_bytes,
    with_replacements,
)
from dstreams.spark.partitions import no_records
from dstreams.spark.task_reports import BadRecords, LeftOut, TaskReport, TaskReports
from dstreams.spark.worker_gc import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD

    from dstreams.arrow.block_decoder import BlockDecoder

LineFormat = Literal["json", "csv", "text"]
"""The format of a line."""

_FORMATS = choice(*get_args(LineFormat))


def decoder_of(
    format: str, schema: pa.Schema, operation: str, *, sep: str = ",", skips_blank: bool = True
) -> BlockDecoder:
    """Return the decoder of lines of a format to blocks of a schema.

    Raises:
        InvalidStreamError: the format is unknown, or cannot have values of a column's type.
        EnvironmentNotReadyError: pyarrow is not installed.
    """
    format = _FORMATS.of(format, f"format of {operation}")
    require("pyarrow", operation)
    from dstreams.arrow import json_lines, plain_lines  # noqa: PLC0415 - need pyarrow

    if not isinstance(sep, str) or len(sep.encode()) != 1 or sep in '"\r\n':
        raise InvalidStreamError(f"sep of {operation} must be one character, got {sep!r}")
    if format == "text":
        return plain_lines.TextLines(_of_one_text(schema, operation), skips_blank=False)
    decoder, of = (
        (json_lines.JsonLines(schema, skips_blank), json_lines)
        if format == "json"
        else (plain_lines.CsvLines(schema, skips_blank, sep), plain_lines)
    )
    for field in schema:
        kind = of.unreadable(field.type)
        if kind is not None:
            raise InvalidStreamError(
                f"column {field.name!r} of {operation}: {format} has no values of {kind}; declare "
                "the type in the lines, such as str, and convert it by mapBlocks(f, schema)"
            )
    return decoder


def _of_one_text(schema: pa.Schema, operation: str) -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 - where blocks are used

    if len(schema) != 1 or not (
        pa.types.is_string(schema.types[0]) or pa.types.is_large_string(schema.types[0])
    ):
        raise InvalidStreamError(
            f"the schema of {operation} must be one column of text, such as {{'line': str}}, got "
            f"{', '.join(f'{field.name} {field.type}' for field in schema)}"
        )
    return schema


@dataclass(frozen=True)
class DecodeLines:
    """Task: lines -> blocks; a malformed line fails the batch, or is skipped and counted."""

    decoder: BlockDecoder
    operation: str
    mode: BadRecords
    rows_at_once: int = BLOCK_ROWS
    report: TaskReport[LeftOut] | None = None

    def __call__(self, split: int, lines: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        remaining = iter(lines)
        malformed = _Malformed(self.operation, self.mode)
        seen = 0
        while chunk := list(islice(remaining, self.rows_at_once)):
            block, _, failures = self.decoder.decode(chunk)
            if malformed.are_first(failures):
                place, why = next(iter(failures.items()))
                where = f"line {seen + place + 1} of partition {split}"
                malformed.record(where, chunk[place], why)
            seen += len(chunk)
            if block.num_rows:
                yield block
        malformed.report(self.report, split, seen)


@dataclass(frozen=True)
class DecodeFiles:
    """Task: nothing -> blocks of the lines of files, which the worker reads."""

    decoder: BlockDecoder
    operation: str
    mode: BadRecords
    rows_at_once: int
    ranges: LineRanges
    report: TaskReport[LeftOut]
    count: TaskReport[int] | None

    def __call__(self, split: int, nothing: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        for _ in nothing:  # Spark does not reuse a worker with unread input
            pass
        malformed = _Malformed(self.operation, self.mode)
        seen = 0
        for lines in self.ranges.partitions[split]:
            before = seen
            for text in self._texts(lines):
                block, rows, failures = self.decoder.decode_text(text)
                if malformed.are_first(failures):
                    place, why = next(iter(failures.items()))
                    number = lines.lines_before() + seen - before + place + 1
                    line = with_replacements(text).split(b"\n")[place]
                    malformed.record(f"line {number} of {lines.path}", line, why)
                seen += block.num_rows if rows is None else text.count(b"\n") + 1
                for start in range(0, block.num_rows, self.rows_at_once):
                    yield block.slice(start, self.rows_at_once)
        malformed.report(self.report, split, seen)
        if self.count is not None:
            self.count(split, seen, seen)

    def _texts(self, lines: LineRange) -> Iterator[bytes]:
        try:
            yield from lines.texts()
        except FileNotFoundError:
            if not self.ranges.skips_missing:
                raise


class _Malformed:
    """The malformed lines of a partition, which fail the batch or are counted."""

    def __init__(self, operation: str, mode: BadRecords) -> None:
        self._operation = operation
        self._mode = mode
        self._count = 0
        self._first = ""

    def are_first(self, failures: Sized) -> bool:
        """Count malformed lines; return whether the first one is among them."""
        before, self._count = self._count, self._count + len(failures)
        return bool(failures) and not before

    def record(self, where: str, line: Any, why: str) -> None:
        """Keep the first malformed line.

        Raises:
            UserFunctionError: malformed lines fail the batch.
        """
        first = f"{where}: {_shown(line)}: {why}"
        if self._mode == "FAILFAST":
            raise UserFunctionError(
                f"{self._operation} cannot decode {first}; correct the writer of the lines, or "
                "skip such lines with mode='DROPMALFORMED'"
            )
        self._first = first

    def report(self, report: TaskReport[LeftOut] | None, split: int, seen: int) -> None:
        if self._count and report is not None:
            report(split, seen, LeftOut(self._count, self._first))


def _shown(line: Any) -> str:
    """Return a line for a message."""
    if isinstance(line, bytes):
        line = line[:400].decode(errors="backslashreplace")
    return shorten(line)


@dataclass(frozen=True)
class LinesToBlocks:
    """Turns an RDD of lines into one of blocks with a report of skipped lines.

    Workers read the lines of files directly if they can.
    """

    decoder: BlockDecoder
    operation: str
    mode: BadRecords
    rows_at_once: int

    def __call__(self, rdd: RDD[Any]) -> RDD[pa.RecordBatch]:
        reports: TaskReports[LeftOut] = TaskReports(rdd.context)
        what = self.decoder, self.operation, self.mode, self.rows_at_once
        source = uncounted(rdd)
        ranges = source.line_ranges() if isinstance(source, HasLineRanges) else None
        blocks: Any
        if ranges is None:
            blocks = blocks_rdd(rdd, DecodeLines(*what, reports.task))
            read_as_bytes(blocks, rdd)
        else:
            partitions, count = len(ranges.partitions), count_of(rdd)
            counting = None if count is None else count.also_of(partitions)
            task = DecodeFiles(*what, ranges, reports.task, counting)
            blocks = blocks_rdd(no_records(rdd.context, partitions), task)
        blocks.left_out = reports
        return blocks  # type: ignore[no-any-return]
