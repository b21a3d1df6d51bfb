"""Encode rows as files of text, JSON, CSV and Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from dstreams.arrow.file_bytes import ParquetFile
from dstreams.arrow.rows import RowsToBlocks, fields_of
from dstreams.arrow.schemas import field_names, is_record_class, schema_of
from dstreams.errors import InvalidStreamError
from dstreams.sinks.committed_directory import Encode, Lines
from dstreams.spark.blocks import shorten
from dstreams.spark.failures import UserFunctionError
from dstreams.structured.named_rows import with_times

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = {"text": ".txt", "json": ".json", "csv": ".csv", "parquet": ".parquet"}
"""The suffix of the files of each format."""

_NOTHING: Any = object()
_NESTED = (dict, list, tuple, set, frozenset)


def encoder_of(format: str, options: Mapping[str, Any]) -> Encode:
    """Return the function that encodes the rows of a partition.

    Raises:
        InvalidStreamError: Parquet has no schema, or the schema is invalid.
    """
    where, declared = f"the sink {format}", options.get("schema")
    schema = None if declared is None else schema_of(declared, where)
    if format == "parquet":
        if schema is None:
            raise InvalidStreamError(
                "the sink parquet needs a schema, because rows are Python objects; set "
                "option('schema', 'word string, count bigint')"
            )
        return ParquetRows(schema, options.get("compression", "snappy"))
    if format == "csv":
        names = None if schema is None else tuple(schema.names)
        return CsvRows(names, options.get("header", False), options.get("sep", ","))
    return Lines(_json_line if format == "json" else _text_line)


@dataclass(frozen=True)
class ParquetRows:
    """Encodes rows as a Parquet file."""

    schema: pa.Schema
    compression: str

    def __call__(self, rows: Iterable[Any]) -> Iterator[tuple[bytes, int]]:
        """Yield the bytes of the file in chunks, each with its number of rows."""
        where = "the sink parquet"
        blocks = RowsToBlocks(self.schema, where)(0, map(with_times, rows))
        return ParquetFile(None, where, self.compression)(blocks)


@dataclass(frozen=True)
class CsvRows:
    """Encodes rows as lines of CSV, by RFC 4180 except for line ends.

    None is an empty value, the empty string is ``""``.

    Attributes:
        names: fields of the rows in order; None for those of the first row of the file.
        has_header: write the names first.
        sep: separator of values.
    """

    names: tuple[str, ...] | None = None
    has_header: bool = False
    sep: str = ","

    def __call__(self, rows: Iterable[Any]) -> Iterator[tuple[bytes, int]]:
        """Yield the lines in chunks, each with its number of rows."""
        remaining = iter(rows)
        first = next(remaining, _NOTHING)
        if first is _NOTHING:
            return
        names = self.names or _names_of(first)
        if self.has_header:
            if names is None:
                raise UserFunctionError(
                    "the sink csv cannot write a header, because rows have no names, got "
                    f"{shorten(first)} ({type(first).__name__}); set option schema, or make dicts "
                    "or named tuples with map(f)"
                )
            yield self._line(names) + b"\n", 0
        line_of: Callable[[Any], bytes] = partial(self._line_of, names)
        yield from Lines(line_of)(chain((first,), remaining))

    def _line_of(self, names: tuple[str, ...] | None, row: Any) -> bytes:
        try:
            if names is not None:
                return self._line(fields_of(row, names))
            return self._line(row if isinstance(row, (tuple, list)) else (row,))
        except TypeError as error:
            raise UserFunctionError(
                f"the sink csv cannot write the row {shorten(row)}: {error}; make plain values "
                "with map(f)"
            ) from error

    def _line(self, values: Iterable[Any]) -> bytes:
        return self.sep.join(map(self._cell, values)).encode()

    def _cell(self, value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, _NESTED) or is_record_class(type(value)):
            raise TypeError(f"a value is nested, got {shorten(value)} ({type(value).__name__})")
        if isinstance(value, bool):
            return "true" if value else "false"
        is_time = isinstance(value, (date, datetime))
        text = value.isoformat() if is_time else str(value)
        if text and not any(sign in text for sign in (self.sep, '"', "\n", "\r")):
            return text
        return '"' + text.replace('"', '""') + '"'


def _names_of(row: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of a row, None if they have no names."""
    if isinstance(row, dict):
        return tuple(map(str, row))
    if getattr(row, "__fields__", None):
        return tuple(row.__fields__)
    return field_names(type(row)) if is_record_class(type(row)) else None


def _text_line(row: Any) -> bytes:
    return str(row).encode()


def _json_line(row: Any) -> bytes:
    return json.dumps(_plain(with_times(row)), default=str).encode()


def _plain(value: Any) -> Any:
    """Convert named tuples and Rows to dicts, so that fields keep their names."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if hasattr(value, "asDict"):
        return {name: _plain(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(part) for part in value]
    return value
