"""Formats of the files that queries read.

Lines are ``str``, values of JSON lines any objects. With a schema, the records of JSON, CSV and
Parquet are Rows with the names of the columns, or instances of the class that is the schema.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pyspark import RDD, SparkContext
from pyspark.rdd import PipelinedRDD
from pyspark.sql import Row

from dstreams.arrow.decode_lines import decoder_of
from dstreams.arrow.library import require
from dstreams.arrow.rows import BLOCK_ROWS, BlocksToRows
from dstreams.arrow.schemas import is_record_class, schema_of
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.sources.file_formats import (
    TEXT_LINES,
    FileFormat,
    combined,
    joined,
    partition_count,
)
from dstreams.sources.file_listing import FileStamp, local_path
from dstreams.spark.blocks import shorten
from dstreams.spark.jvm import file_splits
from dstreams.spark.nesting import require_shallow
from dstreams.spark.worker_gc import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

    from dstreams.arrow.block_decoder import BlockDecoder

BadLines = Literal["FAILFAST", "DROPMALFORMED"]
"""Handling of a line that does not fit its format: fail the batch, or skip the line."""

_AROUND = 40
_SPLIT = re.compile(r"(.*):(\d+)\+\d+", re.DOTALL)
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class FileSplit:
    """The part of a file that one task reads: lines that begin after *start*, or at 0."""

    path: str
    start: int

    def name_of(self, number: int) -> str:
        """Return the name of line *number*, from 1, of this split, with its file."""
        before = 0 if self.start == 0 else self._lines_before()
        if before is None:
            return f"line {number} after byte {self.start} of {self.path}"
        return f"line {before + number} of {self.path}"

    def _lines_before(self) -> int | None:
        """Return the number of lines before this split, None if unknown."""
        path = self.path.removeprefix("file:")
        if not path.startswith("/") or path.endswith(".bz2"):  # split at compressed offsets
            return None
        try:
            with open(path, "rb") as file:
                content = file.read(self.start + 1)
        except OSError:
            return None
        return 1 + sum(found.end() <= self.start for found in _LINE_END.finditer(content))


@dataclass(frozen=True)
class ParseLines:
    """Task: lines -> values; empty lines are skipped."""

    splits: tuple[FileSplit, ...]
    bad_lines: BadLines = "FAILFAST"

    def __call__(self, split: int, lines: Iterable[str]) -> Iterator[Any]:
        settle_worker()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = loads(line)
            except ValueError as error:
                if self.bad_lines == "DROPMALFORMED":
                    continue
                raise SourceError(
                    f"{self.splits[split].name_of(number)} is not JSON ({_what(line, error)}); "
                    "write one value per line: correct or remove the line, or skip all such lines "
                    "with option mode DROPMALFORMED"
                ) from error
            yield value


def loads(line: str) -> Any:
    """Return the value of a line; raise ValueError if it is not JSON, or nested too deeply."""
    require_shallow(line)
    return json.loads(line)


@dataclass(frozen=True)
class JsonLines(FileFormat):
    """The format of files with a JSON value per line."""

    has_partitions_of_files: ClassVar[bool] = True

    bad_lines: BadLines = "FAILFAST"

    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[Any]:
        lines = spark.textFile(joined(files))
        parse = ParseLines(splits_of(lines), self.bad_lines)
        return combined(PipelinedRDD(lines, parse), files)


def splits_of(lines: RDD[str]) -> tuple[FileSplit, ...]:
    """Return the part of a file that each partition of ``textFile`` has."""
    found = map(_SPLIT.fullmatch, file_splits(lines))
    return tuple(FileSplit(one[1], int(one[2])) for one in found if one is not None)


def _what(line: str, error: ValueError) -> str:
    """Return a description of an invalid line, with an excerpt around the error."""
    if not isinstance(error, json.JSONDecodeError):
        return f"{error}: {line[: 2 * _AROUND]!r}"
    first = max(0, error.pos - _AROUND)
    return f"{error.msg} at character {error.colno}: {line[first : error.pos + _AROUND]!r}"


@dataclass(frozen=True)
class RecordSchema:
    """The schema of records, as a user declared it.

    Attributes:
        schema: the columns.
        record_class: class of the records; None for Rows.
    """

    schema: pa.Schema
    record_class: type | None = None

    @classmethod
    def of(cls, declared: Any) -> RecordSchema:
        """Return the columns of a schema; raises as :func:`~dstreams.arrow.schemas.schema_of`."""
        record_class = declared if is_record_class(declared) else None
        return cls(schema_of(declared, "readStream.schema"), record_class)

    def rows(self, block: pa.RecordBatch) -> Iterator[Any]:
        """Iterate over the records of a block."""
        if self.record_class is not None:
            yield from BlocksToRows(self.record_class, "readStream.schema").rows(block)
            return
        yield from map(Row(*block.schema.names), *(column.to_pylist() for column in block.columns))


class ColumnFormat(FileFormat):
    """Base of formats whose records have a schema."""

    columns: RecordSchema


@dataclass(frozen=True)
class ParseColumns:
    """Task: lines -> records with a schema; blank lines are skipped.

    With a *header*, the first line of each file has names. *is_header_checked*: they must be those
    of the columns, in order.
    """

    splits: tuple[FileSplit, ...]
    decoder: BlockDecoder
    columns: RecordSchema
    bad_lines: BadLines = "FAILFAST"
    has_header: bool = False
    is_header_checked: bool = False

    def __call__(self, split: int, lines: Iterable[str]) -> Iterator[Any]:
        settle_worker()
        remaining, where, seen = iter(lines), self.splits[split], 0
        if self.has_header and where.start == 0:
            for line in remaining:
                seen += 1
                if line.strip():
                    self._check_header(line, where)
                    break
        while chunk := list(islice(remaining, BLOCK_ROWS)):
            block, _, failures = self.decoder.decode(chunk)
            if failures and self.bad_lines == "FAILFAST":
                place, why = next(iter(failures.items()))
                raise SourceError(
                    f"{where.name_of(seen + place + 1)} does not fit the schema: {why}, got "
                    f"{shorten(chunk[place])}; correct or remove the line, or skip all such lines "
                    "with option mode DROPMALFORMED"
                )
            seen += len(chunk)
            yield from self.columns.rows(block)

    def _check_header(self, line: str, where: FileSplit) -> None:
        if not self.is_header_checked:
            return
        import pyarrow as pa  # noqa: PLC0415 - on the workers

        from dstreams.arrow.plain_lines import CsvLines  # noqa: PLC0415 - needs pyarrow

        names = self.columns.schema.names
        sep = getattr(self.decoder, "sep", ",")
        texts = pa.schema([(name, pa.string()) for name in names])
        block, _, _ = CsvLines(texts, sep=sep).decode([line])
        found = [column[0].as_py() for column in block.columns] if block.num_rows else None
        if found != names:
            raise SourceError(
                f"the header of {where.path} is {shorten(line)}, but the schema has "
                f"{sep.join(names)}; correct the schema, or set enforceSchema=true to ignore the "
                "names of headers"
            )


@dataclass(frozen=True)
class ColumnLines(ColumnFormat):
    """The format of files with a record with a schema per line: JSON, or CSV."""

    has_partitions_of_files: ClassVar[bool] = True

    decoder: BlockDecoder
    columns: RecordSchema
    bad_lines: BadLines = "FAILFAST"
    has_header: bool = False
    is_header_checked: bool = False

    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[Any]:
        lines = spark.textFile(joined(files))
        parse = ParseColumns(
            splits_of(lines),
            self.decoder,
            self.columns,
            self.bad_lines,
            self.has_header,
            self.is_header_checked,
        )
        return combined(PipelinedRDD(lines, parse), files)


@dataclass(frozen=True)
class ParquetFiles(ColumnFormat):
    """The format of Parquet files: columns by name, null if a file lacks a nullable one.

    A task reads whole files. The workers open local files; others go through the JVM, and then are
    in the memory of their worker.
    """

    columns: RecordSchema

    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[Any]:
        partitions = partition_count(files, spark.defaultParallelism)
        local = [path for path in (local_path(file.path) for file in files) if path is not None]
        contents: RDD[Any]
        if len(local) < len(files):
            contents = spark.binaryFiles(joined(files), partitions)
        else:
            for path in local:
                os.stat(path)  # a missing file fails here, where its batch is known
            contents = spark.parallelize([(path, None) for path in local], partitions)
        rows: RDD[Any] = PipelinedRDD(contents, ReadParquet(self.columns))
        return rows


@dataclass(frozen=True)
class ReadParquet:
    """Task: (path, content, or None for a local path) -> records with a schema."""

    columns: RecordSchema

    def __call__(self, split: int, files: Iterable[tuple[str, bytes | None]]) -> Iterator[Any]:
        settle_worker()
        for path, content in files:
            for block in self._blocks(path, content):
                yield from self.columns.rows(block)

    def _blocks(self, path: str, content: bytes | None) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - on the workers
        import pyarrow.parquet as pq  # noqa: PLC0415

        schema = self.columns.schema
        try:
            source = path if content is None else pa.BufferReader(content)
            with pq.ParquetFile(source) as file:
                parts = map(file.schema.column, range(len(file.schema)))
                in_utc = {part.path for part in parts if part.physical_type == "INT96"}
                names = [name for name in schema.names if name in file.schema_arrow.names]
                for block in file.iter_batches(BLOCK_ROWS, columns=names):
                    yield pa.record_batch(
                        [_column(pa, block, field, field.name in in_utc) for field in schema],
                        schema=schema,
                    )
        except (pa.ArrowException, _ColumnError) as error:
            raise SourceError(
                f"{path} cannot be read as Parquet with the schema: {error}; correct the schema, "
                "or remove the file"
            ) from error


class _ColumnError(ValueError):
    """A column of a file does not fit the schema."""


def _column(arrow: Any, block: pa.RecordBatch, field: pa.Field, in_utc: bool) -> pa.Array:
    """Return a column of a block with the type of the schema, which may be wider."""
    if field.name not in block.schema.names:
        if not field.nullable:
            raise _ColumnError(f"it has no column {field.name!r}, which is not nullable")
        return arrow.nulls(block.num_rows, field.type)
    column, types = block.column(field.name), arrow.types
    if column.null_count and not field.nullable:
        raise _ColumnError(f"column {field.name!r} has null, but it is not nullable")
    given, wanted = column.type, field.type
    is_wider = (
        given.equals(wanted)
        or (types.is_integer(given) and (types.is_integer(wanted) or types.is_float64(wanted)))
        or (types.is_floating(given) and types.is_floating(wanted))
        or (types.is_decimal(given) and types.is_decimal(wanted))
        or (types.is_null(given))
        or (types.is_dictionary(given) and given.value_type.equals(wanted))
        or (types.is_large_string(given) and types.is_string(wanted))
        or (types.is_large_binary(given) and types.is_binary(wanted))
        or (types.is_nested(given) and types.is_nested(wanted))
        or (
            types.is_timestamp(given)
            and types.is_timestamp(wanted)
            and (in_utc or (given.tz is None) == (wanted.tz is None))
        )
    )
    if not is_wider:
        raise _ColumnError(f"column {field.name!r} is {given}, but the schema has {wanted}")
    if in_utc and types.is_timestamp(given):  # such times have nanoseconds
        column = column.cast(arrow.timestamp("us"), safe=False)
    return column.cast(wanted)


def format_of(
    name: str,
    columns: RecordSchema | None = None,
    bad_lines: BadLines = "FAILFAST",
    *,
    sep: str = ",",
    has_header: bool = False,
    is_header_checked: bool = False,
) -> FileFormat:
    """Return the format ``text``, ``json``, ``csv`` or ``parquet``.

    Raises:
        InvalidStreamError: the format needs a schema or has none, or lacks a type of it.
        EnvironmentNotReadyError: pyarrow is missing, which a schema needs.
    """
    if name == "text" and columns is not None:
        raise InvalidStreamError(
            "the source text has no schema, its records are str; omit schema, and use map(f)"
        )
    if name == "text":
        return TEXT_LINES
    if columns is None and name == "json":
        return JsonLines(bad_lines)
    if columns is None:
        raise InvalidStreamError(
            f"the source {name} needs a schema; call schema before it, such as "
            "schema('word string, count bigint')"
        )
    if name == "parquet":
        require("pyarrow", "the source parquet")
        return ParquetFiles(columns)
    decoder = decoder_of(name, columns.schema, f"the source {name}", sep=sep)
    return ColumnLines(decoder, columns, bad_lines, has_header, is_header_checked)
