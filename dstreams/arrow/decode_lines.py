"""The task that makes blocks of lines, and which decoder it uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, get_args

from dstreams.arrow.block_rdd import blocks_rdd
from dstreams.arrow.library import require
from dstreams.arrow.rows import BLOCK_ROWS
from dstreams.configuration import choice
from dstreams.errors import InvalidStreamError
from dstreams.rdd.bad_records import BadRecords, LeftOut
from dstreams.rdd.blocks import shorten
from dstreams.rdd.failures import UserFunctionError
from dstreams.rdd.line_bytes import read_as_bytes
from dstreams.rdd.task_reports import TaskReport, TaskReports
from dstreams.rdd.worker_gc import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD

    from dstreams.arrow.block_decoder import BlockDecoder

LineFormat = Literal["json", "csv", "text"]
"""What a line is."""

_FORMATS = choice(*get_args(LineFormat))


def decoder_of(
    format: str, schema: pa.Schema, operation: str, *, sep: str = ",", skips_blank: bool = True
) -> BlockDecoder:
    """Return the decoder of lines of a format to blocks of a schema.

    Raises:
        InvalidStreamError: there is no such format, or it has no values for a column.
        EnvironmentNotReadyError: pyarrow is not installed.
    """
    format = _FORMATS.of(format, f"format of {operation}")
    require("pyarrow", operation)
    from dstreams.arrow import csv_lines, json_lines, text_lines  # noqa: PLC0415 - need pyarrow

    if not isinstance(sep, str) or len(sep.encode()) != 1 or sep in '"\r\n':
        raise InvalidStreamError(f"sep of {operation} must be one character, got {sep!r}")
    if format == "text":
        return text_lines.TextLines(_of_one_text(schema, operation), skips_blank=False)
    decoder, of = (
        (json_lines.JsonLines(schema, skips_blank), json_lines)
        if format == "json"
        else (csv_lines.CsvLines(schema, skips_blank, sep), csv_lines)
    )
    for field in schema:
        kind = of.unreadable(field.type)
        if kind is not None:
            raise InvalidStreamError(
                f"column {field.name!r} of {operation}: {format} has no values of {kind}; declare "
                "what is there, such as str, and make the value of it by mapBlocks(f, schema)"
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
    """Task: lines -> blocks; a line that is no record is named, or left out and reported."""

    decoder: BlockDecoder
    operation: str
    mode: BadRecords
    rows_at_once: int = BLOCK_ROWS
    report: TaskReport[LeftOut] | None = None

    def __call__(self, split: int, lines: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        remaining = iter(lines)
        seen = left_out = 0
        first = ""
        while chunk := list(islice(remaining, self.rows_at_once)):
            block, _, failures = self.decoder.decode(chunk)
            if failures:
                place, why = next(iter(failures.items()))
                said = (
                    f"line {seen + place + 1} of partition {split}: {_shown(chunk[place])}: {why}"
                )
                if self.mode == "FAILFAST":
                    raise UserFunctionError(
                        f"{self.operation} cannot decode {said}; mend who writes it, or have such "
                        "lines left out, by mode='DROPMALFORMED'"
                    )
                left_out += len(failures)
                first = first or said
            seen += len(chunk)
            if block.num_rows:
                yield block
        if left_out and self.report is not None:
            self.report(split, seen, LeftOut(left_out, first))


def _shown(line: Any) -> str:
    """Return a line as a message has it."""
    if isinstance(line, bytes):
        line = line[:400].decode(errors="backslashreplace")
    return shorten(line)


@dataclass(frozen=True)
class LinesToBlocks:
    """Makes of an RDD of lines that of its blocks, which knows what was left out."""

    decoder: BlockDecoder
    operation: str
    mode: BadRecords
    rows_at_once: int

    def __call__(self, rdd: RDD[Any]) -> RDD[pa.RecordBatch]:
        reports: TaskReports[LeftOut] = TaskReports(rdd.context)
        task = DecodeLines(self.decoder, self.operation, self.mode, self.rows_at_once, reports.task)
        blocks: Any = blocks_rdd(rdd, task)
        read_as_bytes(blocks, rdd)
        blocks.left_out = reports
        return blocks  # type: ignore[no-any-return]
