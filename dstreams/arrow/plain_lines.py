"""Decode lines of CSV and of text to blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from dstreams.arrow.block_decoder import BlockDecoder, MisfitError
from dstreams.arrow.exact_numbers import (
    WHOLE_UP_TO,
    may_be_rounded,
    may_be_unscalable,
    null_in,
    scalable,
)
from dstreams.spark.blocks import shorten

_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)
_ROW = re.compile(r"Row #\d+: ")
_types = pa.types


@dataclass(frozen=True)
class CsvLines(BlockDecoder):
    """Values of the columns in order; an empty value is null, ``""`` is the empty string.

    Attributes:
        sep: separator of values, one character.
    """

    sep: str = ","

    def of_text(self, text: bytes) -> pa.RecordBatch | None:
        if not text or b"\r" in text or self._may_be_unscalable(text):
            return None
        if b'"' in text and any(line.count(b'"') % 2 for line in text.split(b"\n")):
            return None
        try:
            block = self._read(text, self.schema)
        except pa.ArrowException:
            return None
        fits = block.num_rows == text.count(b"\n") + 1 and null_in(block, self.schema) is None
        return block if fits and not any(map(may_be_rounded, block.columns)) else None

    def alone(self, text: bytes | None) -> pa.RecordBatch:
        if text is None:
            block = pa.record_batch(
                [pa.nulls(1, field.type) for field in self.schema], names=self.schema.names
            )
        else:
            block = self._one(text)
        lacking = null_in(block, self.schema)
        if lacking is not None:
            raise MisfitError(f"{lacking} is missing, but it is not nullable")
        return pa.record_batch(block.columns, schema=self.schema)

    def _one(self, text: bytes) -> pa.RecordBatch:
        if b"\n" in text or b"\r" in text:
            raise MisfitError("it contains a line end")
        if text.count(b'"') % 2:
            raise MisfitError("it has an unclosed quotation mark")
        try:
            block = (
                self._with_decimals(text)
                if self._may_be_unscalable(text)
                else self._read(text, self.schema)
            )
        except pa.ArrowException as error:
            raise MisfitError(_ROW.sub("", str(error))) from None
        if block.num_rows != 1:
            raise MisfitError("it has no value")
        for column, field in zip(block.columns, block.schema, strict=True):
            if may_be_rounded(column):
                self._require_exact(text, column[0].as_py(), field)
        return block

    def _require_exact(self, text: bytes, number: float, field: pa.Field) -> None:
        """Reject a number that was rounded."""
        place = self.schema.names.index(field.name)
        as_text = self.schema.set(place, pa.field(field.name, pa.string()))
        number_text = self._read(text, as_text).column(place)[0].as_py()
        if "inf" not in number_text.lower() and number in (float("inf"), -float("inf")):
            raise MisfitError(f"{field.name} is {field.type}, got {number_text}: it is too large")
        if _WHOLE.fullmatch(number_text) and int(number_text) != number:
            raise MisfitError(
                f"{field.name} is {field.type}, got {number_text}: it would be rounded"
            )

    def _may_be_unscalable(self, text: bytes) -> bool:
        sep = self.sep.encode()
        if sep.isalnum() or sep in b"_.+-":  # may be a part of a number or word
            text = text.replace(sep, b"\n")
        return may_be_unscalable(text, self.schema)

    def _with_decimals(self, text: bytes) -> pa.RecordBatch:
        """Return the row of one line, with decimals read by Python.

        Raises:
            MisfitError: a number has too many decimal places.
        """
        as_text = pa.schema(
            [
                field.with_type(pa.string()) if _types.is_decimal(field.type) else field
                for field in self.schema
            ]
        )
        block = self._read(text, as_text)
        columns = [
            pa.array([_decimal(value, field) for value in column.to_pylist()], field.type)
            if _types.is_decimal(field.type)
            else column
            for column, field in zip(block.columns, self.schema, strict=True)
        ]
        return pa.record_batch(columns, names=self.schema.names)

    def _read(self, data: bytes, schema: pa.Schema) -> pa.RecordBatch:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(
                use_threads=False, block_size=len(data) + 1, column_names=self.schema.names
            ),
            arrow_csv.ParseOptions(delimiter=self.sep, ignore_empty_lines=True),
            arrow_csv.ConvertOptions(
                column_types=schema,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        ).combine_chunks()
        batches = table.to_batches()
        arrays = batches[0].columns if batches else [pa.array([], field.type) for field in schema]
        return pa.record_batch(arrays, names=self.schema.names)


def unreadable(kind: pa.DataType) -> str | None:
    """Return the type if CSV has no values of it, None if it has."""
    known = (
        _types.is_integer(kind)
        or kind in WHOLE_UP_TO
        or _types.is_decimal(kind)
        or _types.is_boolean(kind)
        or _types.is_string(kind)
        or _types.is_large_string(kind)
        or _types.is_timestamp(kind)
        or _types.is_date(kind)
        or _types.is_time(kind)
    )
    return None if known else str(kind)


def _decimal(text: str | None, field: pa.Field) -> Any:
    if text is None:
        return None
    try:
        if _NUMBER.fullmatch(text) is None:
            raise ValueError("it is not a number")
        return scalable(Decimal(text.strip()), field.type)
    except (ValueError, ArithmeticError) as error:
        raise MisfitError(f"{field.name} is {field.type}, got {shorten(text)}: {error}") from None


@dataclass(frozen=True)
class TextLines(BlockDecoder):
    """Strings as they are; an empty line is a record too."""

    def at_once(self, lines: Sequence[Any]) -> pa.RecordBatch | None:
        (field,) = self.schema
        if not lines:
            return None
        try:
            texts = pa.array(lines, pa.binary() if isinstance(lines[0], bytes) else pa.string())
            texts = texts.cast(field.type)
        except (pa.ArrowException, TypeError, ValueError):
            return None
        is_whole = field.nullable or not texts.null_count
        return pa.record_batch([texts], schema=self.schema) if is_whole else None

    def of_text(self, text: bytes) -> pa.RecordBatch | None:
        (field,) = self.schema
        lines = pc.split_pattern(pa.array([text], pa.binary()), b"\n").flatten()
        try:
            return pa.record_batch([lines.cast(field.type)], schema=self.schema)
        except pa.ArrowException:
            return None

    def alone(self, text: bytes | None) -> pa.RecordBatch:
        (field,) = self.schema
        if text is None and not field.nullable:
            raise MisfitError(f"{field.name} is missing, but it is not nullable")
        value = None if text is None else text.decode()
        return pa.record_batch([pa.array([value], field.type)], schema=self.schema)

    def stripped(self, text: bytes) -> bytes:
        return text
