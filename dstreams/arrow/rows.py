"""Records to Arrow blocks and back.

>>> import pyarrow as pa
>>> schema = pa.schema({"word": pa.string(), "number": pa.int64()})
>>> block = RowsToBlocks(schema, "toBlocks").block([("a", 1), {"number": 2, "word": "b"}])
>>> list(BlocksToRows()(0, [block]))
[('a', 1), ('b', 2)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import chain, islice
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from dstreams.arrow.block_functions import SchemaMismatchError, fitted
from dstreams.arrow.library import require
from dstreams.arrow.schemas import annotations_of, is_record_class
from dstreams.spark.blocks import shorten
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.worker_gc import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

_NOTHING: Any = object()

BLOCK_ROWS = 16_384
"""Number of records in a block, large enough to make the cost per block negligible."""


@dataclass(frozen=True)
class RowsToBlocks:
    """Task: records -> blocks of a schema.

    A record is a tuple or list of the columns in order, a named tuple, Row or mapping of their
    names, an object with attributes of these names, or the value of a single column. A mapping may
    lack nullable columns.
    Elements that are blocks stay as they are if they fit the schema.
    """

    schema: pa.Schema
    operation: str
    rows_at_once: int = BLOCK_ROWS

    def __call__(self, _: int, rows: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        remaining = iter(rows)
        first = next(remaining, _NOTHING)
        if isinstance(first, require("pyarrow", self.operation).RecordBatch):
            yield from map(self._fitting, chain((first,), remaining))
            return
        if first is not _NOTHING:
            remaining = chain((first,), remaining)
        while chunk := list(islice(remaining, self.rows_at_once)):
            yield self.block(chunk)

    def _fitting(self, block: Any) -> pa.RecordBatch:
        """Check and return an element of a partition of blocks."""
        arrow = require("pyarrow", self.operation)
        if not isinstance(block, arrow.RecordBatch):
            raise UserFunctionError(
                f"{self.operation}: blocks and records are mixed in one partition, got "
                f"{shorten(block)} ({type(block).__name__}) after blocks"
            )
        try:
            return fitted(block, self.schema)
        except SchemaMismatchError as error:
            raise UserFunctionError(f"{self.operation}: {error}") from error

    def block(self, rows: list[Any]) -> pa.RecordBatch:
        """Return one block of *rows*.

        Raises:
            UserFunctionError: a record does not fit the schema; the message has the first such
                record and the reason.
        """
        arrow = require("pyarrow", self.operation)
        try:
            columns = self._columns(rows)
            arrays = [
                _array(arrow, column, field)
                for column, field in zip(columns, self.schema, strict=True)
            ]
        except Exception as error:
            raise self._explain(rows, error) from error
        return arrow.record_batch(arrays, schema=self.schema)

    def _columns(self, rows: list[Any]) -> list[Any]:
        names = self.schema.names
        kinds = set(map(type, rows))
        if kinds <= {tuple, list}:
            return list(zip(*rows, strict=True)) if self._fit(rows) else self._columns_of_each(rows)
        if len(names) == 1 and not any(map(_has_fields, kinds)):
            return [rows]
        return self._columns_of_each(rows)

    def _fit(self, rows: list[Any]) -> bool:
        return set(map(len, rows)) == {len(self.schema.names)}

    def _columns_of_each(self, rows: list[Any]) -> list[Any]:
        names = self.schema.names
        return list(zip(*(fields_of(row, names) for row in rows), strict=True))

    def _explain(self, rows: list[Any], error: Exception) -> UserFunctionError:
        """Return the error of the first row that does not fit."""
        arrow = require("pyarrow", self.operation)
        for row in rows:
            try:
                columns = self._columns([row])
            except Exception as alone:
                return self._refused(row, str(alone))
            for column, field in zip(columns, self.schema, strict=True):
                try:
                    _array(arrow, column, field)
                except Exception as alone:
                    return self._refused(row, f"column {field.name!r} is {field.type}: {alone}")
        return UserFunctionError(f"{self.operation} cannot put records into a block: {error}")

    def _refused(self, row: Any, why: str) -> UserFunctionError:
        return UserFunctionError(
            f"{self.operation} cannot put the record {shorten(row)} into a block: {why}"
        )


class _DoesNotFitError(TypeError):
    """A value has another type than its column, which Arrow would accept."""


def _array(arrow: Any, values: Any, field: Any) -> Any:
    """Convert values to a column; reject values that Arrow would change."""
    kinds = set(map(type, values))
    if type(None) in kinds and not field.nullable:
        raise _DoesNotFitError("it is not nullable, got None")
    types = arrow.types
    if types.is_integer(field.type) and any(issubclass(kind, (float, Decimal)) for kind in kinds):
        raise _DoesNotFitError("a number with a fraction was given")
    if types.is_string(field.type) and any(issubclass(kind, bytes) for kind in kinds):
        raise _DoesNotFitError("bytes were given; decode them first")
    if types.is_timestamp(field.type) and field.type.tz is None and datetime in kinds:
        zoned = next((v for v in values if v is not None and v.tzinfo is not None), None)
        if zoned is not None:
            raise _DoesNotFitError(
                "a time with a zone was given; declare pa.timestamp('us', 'UTC') or another zone"
            )
    if types.is_decimal(field.type):
        from dstreams.arrow.exact_numbers import scalable  # noqa: PLC0415 - needs pyarrow

        values = [scalable(value, field.type) for value in values]
    elif types.is_nested(field.type):
        values = [_plain_of(types, value, field.type) for value in values]
    made = arrow.array(values, type=field.type)
    return made.combine_chunks() if isinstance(made, arrow.ChunkedArray) else made


def plain_value(value: Any, kind: pa.DataType) -> Any:
    """Convert a value of Python for an Arrow type."""
    return _plain_of(require("pyarrow", "a value in a block").types, value, kind)


def _plain_of(types: Any, value: Any, kind: Any) -> Any:
    """Convert a nested value for Arrow: records to dicts, mappings to pairs."""
    if value is None:
        return None
    if types.is_struct(kind):
        names = [field.name for field in kind]
        parts = zip(names, fields_of(value, names), kind, strict=True)
        return {name: _plain_of(types, part, field.type) for name, part, field in parts}
    if types.is_map(kind):
        return [(key, _plain_of(types, item, kind.item_type)) for key, item in dict(value).items()]
    if types.is_nested(kind):
        return [_plain_of(types, item, kind.value_type) for item in value]
    if types.is_decimal(kind):
        from dstreams.arrow.exact_numbers import scalable  # noqa: PLC0415 - needs pyarrow

        return scalable(value, kind)
    return value


def _has_fields(kind: type) -> bool:
    return issubclass(kind, (tuple, list, dict)) or is_record_class(kind)


def fields_of(row: Any, names: Sequence[str]) -> Iterable[Any]:
    """Return the values of the columns *names* of a record, or raise a TypeError."""
    if isinstance(row, dict):
        if not row.keys() <= set(names):
            unknown = sorted(map(str, row.keys() - set(names)))
            raise _DoesNotFitError(f"the schema has no column {unknown[0]!r}")
        return tuple(map(row.get, names))
    if isinstance(row, (tuple, list)):
        if len(row) != len(names):
            raise _DoesNotFitError(f"it has {len(row)} fields, but the schema has {len(names)}")
        own = getattr(type(row), "_fields", ()) or getattr(row, "__fields__", ())
        return tuple(row[own.index(name)] for name in names) if set(own) == set(names) else row
    if len(names) == 1 and not is_record_class(type(row)):
        return (row,)
    missing = [name for name in names if not hasattr(row, name)]
    if missing:
        raise _DoesNotFitError(f"it has no attribute {missing[0]!r}")
    return tuple(getattr(row, name) for name in names)


@dataclass(frozen=True)
class BlocksToRows:
    """Task: blocks -> records: tuples, or instances of a record class."""

    record_class: type | None = None
    operation: str = "toRows"

    def __call__(self, _: int, blocks: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        settle_worker()
        for block in blocks:
            yield from self.rows(block)

    def rows(self, block: pa.RecordBatch) -> Iterator[Any]:
        """Iterate over the records of a block."""
        if self.record_class is None:
            return zip(*(column.to_pylist() for column in block.columns), strict=True)
        kinds = annotations_of(self.record_class, self.operation)
        missing = [name for name in kinds if name not in block.schema.names]
        if missing:
            raise UserFunctionError(
                f"{self.operation} to {self.record_class.__name__}: the blocks have no column "
                f"{missing[0]!r}; they have {', '.join(block.schema.names)}"
            )
        columns = (_values(block.column(name), kind) for name, kind in kinds.items())
        return map(self.record_class, *columns)


def _values(column: pa.Array, kind: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    convert = _converter(kind)
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """Return the conversion of values of Arrow to a declared type, None without one."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _converter(args[0])
    if origin in (Union, UnionType):
        return _converter(next((each for each in args if each is not type(None)), None))
    if is_record_class(kind):
        fields = annotations_of(kind, "toRows")
        parts = [(name, _converter(of) or _itself) for name, of in fields.items()]
        return lambda struct: kind(*(convert(struct[name]) for name, convert in parts))
    if origin in (list, tuple):
        item = _converter(args[0]) or _itself
        return lambda values: origin(map(item, values))
    if origin is dict:
        value = _converter(args[1]) or _itself
        return lambda pairs: {key: value(each) for key, each in pairs}
    return None


def _itself(value: Any) -> Any:
    return value
