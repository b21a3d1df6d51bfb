"""Decode lines of JSON objects to blocks.

:func:`json.loads` defines the meaning of a line. msgspec or Arrow reads many lines at once if the
result is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from dstreams.arrow.block_decoder import BlockDecoder, MisfitError, is_utf8
from dstreams.arrow.exact_numbers import (
    WHOLE_UP_TO,
    may_be_rounded,
    may_be_unscalable,
    null_in,
    scalable,
)
from dstreams.spark.blocks import shorten
from dstreams.spark.nesting import MOST_NESTED, require_shallow

_BLANKS = b" \t\r\n"
_FEW_COLUMNS = 4
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?", re.ASCII)
_types = pa.types


@dataclass(frozen=True)
class JsonLines(BlockDecoder):
    """Objects, one per line, whose members are columns; other members are ignored."""

    few: ClassVar[int] = 32

    def of_text(self, text: bytes) -> pa.RecordBatch | None:
        count = _objects_in(text)
        if not count or not is_utf8(text) or _may_be_deep(text, count):
            return None
        if may_be_unscalable(text, self.schema):
            return None
        try:
            columns = self._columns(text)
            if columns is None or len(columns[0]) != count:
                return None
            block = pa.record_batch(columns, schema=self.schema)
        except (pa.ArrowException, ValueError, ArithmeticError):
            return None
        is_exact = not any(map(may_be_rounded, columns))
        return block if is_exact and null_in(block, self.schema) is None else None

    def _columns(self, text: bytes) -> list[pa.Array] | None:
        """Return the columns of all objects in a text, None if they must be read one by one.

        Raises:
            ArithmeticError: a value does not fit its column.
            ValueError: a value does not fit its column, or the text is not JSON.
        """
        decode = _decoder_of_few(self.schema)
        if decode is not None:
            records = decode(text)
            values = ([getattr(each, name) for each in records] for name in _members(self.schema))
            return [
                _converted(pa.array(column, _as_read(field).type), field.type)
                for column, field in zip(values, self.schema, strict=True)
            ]
        if any(_has_map(field.type) for field in self.schema):
            return None
        table = arrow_json.read_json(
            pa.BufferReader(text),
            arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            arrow_json.ParseOptions(
                explicit_schema=pa.schema([_as_read(field) for field in self.schema]),
                unexpected_field_behavior="ignore",
            ),
        ).combine_chunks()
        return [_converted(_array(table, field.name), field.type) for field in self.schema]

    def alone(self, text: bytes | None) -> pa.RecordBatch:
        require_shallow(text or b"")
        value: Any = {} if text is None else json.loads(text.decode(), parse_float=Decimal)
        if not isinstance(value, dict):
            raise MisfitError(f"it is not an object: {shorten(value)}")
        columns = []
        for field in self.schema:
            member = value.get(field.name)
            plain = _plain(member, field, field.name)
            try:
                columns.append(pa.array([plain], type=field.type))
            except (pa.ArrowException, ValueError, OverflowError) as error:
                raise _misfit(field.name, field.type, member, str(error)) from None
        return pa.record_batch(columns, schema=self.schema)

    def stripped(self, text: bytes) -> bytes:
        return text.strip(_BLANKS)


@lru_cache(maxsize=8)
def _decoder_of_few(schema: pa.Schema) -> Callable[[bytes], list[Any]] | None:
    """Return a decoder of a few plain columns, None for other schemas.

    It skips members without a column faster than Arrow: one column takes little more than half of
    Arrow's time, four columns nine tenths.
    """
    if len(schema) > _FEW_COLUMNS:
        return None
    fields = []
    for name, field in zip(_members(schema), schema, strict=True):
        kind = _kind_in_json(field.type)
        if kind is None:
            return None
        fields.append((name, kind | None, None) if field.nullable else (name, kind))
    fields.sort(key=len)  # required members come first
    names = dict(zip(_members(schema), schema.names, strict=True))
    record = msgspec.defstruct("Record", fields, rename=names, gc=False)
    return msgspec.json.Decoder(record).decode_lines


def _members(schema: pa.Schema) -> list[str]:
    return [f"column_{number}" for number in range(len(schema))]


def _kind_in_json(kind: pa.DataType) -> Any:
    """Return the Python type of JSON values for a plain type, None for other types."""
    if _is_text(kind) or _is_time(kind):
        return str
    if _types.is_boolean(kind):
        return bool
    if _types.is_integer(kind):
        return int
    return float if kind in WHOLE_UP_TO else None


def unreadable(kind: pa.DataType) -> str | None:
    """Return a type within *kind* that JSON has no values for, None if it has all."""
    if _types.is_struct(kind):
        return next(filter(None, (unreadable(field.type) for field in kind)), None)
    if _types.is_list(kind) or _types.is_large_list(kind):
        return unreadable(kind.value_type)
    if _types.is_map(kind):
        is_text = _types.is_string(kind.key_type)
        return unreadable(kind.item_type) if is_text else f"{kind}, whose keys are not strings"
    known = (
        _types.is_integer(kind)
        or kind in WHOLE_UP_TO
        or _types.is_decimal(kind)
        or _types.is_boolean(kind)
        or _types.is_null(kind)
        or _is_text(kind)
        or _is_time(kind)
    )
    return None if known else str(kind)


def _objects_in(text: bytes) -> int:
    """Return the number of lines of a text, 0 if an object may span lines.

    None does if every line begins with ``{`` and ends with ``}``.
    """
    if text[:1] != b"{" or text[-1:] != b"}":
        return 0
    signs = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(signs == ord("\n"))
    are_between = (signs[ends - 1] == ord("}")).all() and (signs[ends + 1] == ord("{")).all()
    return len(ends) + 1 if are_between else 0


def _may_be_deep(text: bytes, count: int) -> bool:
    """Return whether one of *count* objects may be nested too deeply, by its number of brackets."""
    if len(text) - count < 2 * MOST_NESTED:
        return False
    if text.count(b"[") + text.count(b"{") - count < MOST_NESTED:
        return False
    return any(len(line) > 2 * MOST_NESTED and _is_deep(line) for line in text.split(b"\n"))


def _is_deep(line: bytes) -> bool:
    try:
        require_shallow(line)
    except ValueError:
        return True
    return False


def _array(table: pa.Table, name: str) -> pa.Array:
    chunks = table.column(name).chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _is_text(kind: pa.DataType) -> bool:
    return bool(_types.is_string(kind) or _types.is_large_string(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(_types.is_timestamp(kind) or _types.is_date(kind) or _types.is_time(kind))


def _has_map(kind: pa.DataType) -> bool:
    if _types.is_map(kind):
        return True
    if _types.is_struct(kind):
        return any(_has_map(field.type) for field in kind)
    return bool(_types.is_nested(kind) and _has_map(kind.value_type))


def _as_read(field: pa.Field) -> pa.Field:
    """Return a field with strings instead of times, because Arrow's reader ignores time zones."""
    kind = field.type
    if _is_time(kind):
        return field.with_type(pa.string())
    if _types.is_struct(kind):
        return field.with_type(pa.struct([_as_read(each) for each in kind]))
    if _types.is_list(kind):
        return field.with_type(pa.list_(_as_read(kind.value_field)))
    if _types.is_large_list(kind):
        return field.with_type(pa.large_list(_as_read(kind.value_field)))
    return field


def _converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array to its declared type."""
    if array.type == kind:
        return array
    if _is_time(kind):
        return parse_times(array, kind)
    if _types.is_struct(kind):
        parts = [
            _converted(part, field.type) for part, field in zip(array.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    lists = pa.ListArray if _types.is_list(kind) else pa.LargeListArray
    values = _converted(array.values, kind.value_type)
    return lists.from_arrays(array.offsets, values, type=kind, mask=array.is_null())


def parse_times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert strings of ISO 8601 to times; they have a zone if the type has one.

    Raises:
        ArrowInvalid: a string is not such a time, or finer than the type.
    """
    if not _types.is_time(kind):
        return pc.cast(texts, kind)
    unit = kind.unit
    return pc.cast(pc.binary_join_element_wise("1970-01-01T", texts, ""), pa.timestamp(unit)).cast(
        kind
    )


def _plain(value: Any, field: pa.Field, path: str) -> Any:
    """Convert a JSON value for a field of Arrow.

    Raises:
        MisfitError: the value has another type.
    """
    kind = field.type
    if value is None:
        if not field.nullable:
            raise MisfitError(f"{path} is missing or null, but it is not nullable")
        return None
    if _types.is_struct(kind) and isinstance(value, dict):
        return {
            each.name: _plain(value.get(each.name), each, f"{path}.{each.name}") for each in kind
        }
    if _types.is_map(kind) and isinstance(value, dict):
        item = kind.item_field
        return [(key, _plain(each, item, f"{path}.{key}")) for key, each in value.items()]
    if (_types.is_list(kind) or _types.is_large_list(kind)) and isinstance(value, list):
        of = kind.value_field
        return [_plain(each, of, f"{path}[{place}]") for place, each in enumerate(value)]
    if _types.is_nested(kind):
        raise _misfit(path, kind, value)
    return _leaf(value, kind, path)


def _leaf(value: Any, kind: pa.DataType, path: str) -> Any:
    made: Any
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    is_number = is_whole or isinstance(value, Decimal)
    if _is_time(kind) and isinstance(value, str):
        return _time(value, kind, path)
    if _types.is_decimal(kind):
        is_one = is_number or (isinstance(value, str) and _NUMBER.fullmatch(value))
        fits, made = is_one, _decimal(value, kind, path) if is_one else value
    elif kind in WHOLE_UP_TO and (is_number or isinstance(value, float)):  # float: NaN, Infinity
        fits, made = True, _real(value, kind, path)
    else:
        fits, made = (
            (
                (_is_text(kind) and isinstance(value, str))
                or (_types.is_boolean(kind) and isinstance(value, bool))
                or (_types.is_integer(kind) and is_whole)
            ),
            value,
        )
    if not fits:
        raise _misfit(path, kind, value)
    return made


def _decimal(value: Any, kind: pa.DataType, path: str) -> Any:
    try:
        return scalable(Decimal(value), kind)
    except (ValueError, ArithmeticError) as error:
        raise _misfit(path, kind, value, str(error)) from None


def _real(value: Any, kind: pa.DataType, path: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if not isinstance(value, float) and number in (float("inf"), -float("inf")):
        raise _misfit(path, kind, value, "it is too large")
    if isinstance(value, int) and pa.scalar(number, kind).as_py() != value:
        raise _misfit(path, kind, value, "it would be rounded")
    return number


def _time(value: str, kind: pa.DataType, path: str) -> Any:
    try:
        return parse_times(pa.array([value]), kind)[0]
    except (pa.ArrowException, ValueError) as error:
        raise _misfit(path, kind, value, str(error)) from None


def _misfit(path: str, kind: pa.DataType, value: Any, why: str = "") -> MisfitError:
    said = f"{value}" if isinstance(value, Decimal) else shorten(value)
    return MisfitError(f"{path} is {kind}, got {said}{f': {why}' if why else ''}")
