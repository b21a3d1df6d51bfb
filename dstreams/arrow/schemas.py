"""The schema of blocks, declared by a class of records, by names and types, or by Arrow itself.

>>> from typing import NamedTuple
>>> class Word(NamedTuple):
...     text: str
...     number: int
...     weight: float | None
>>> print(schema_of(Word, "toBlocks"))
text: string not null
number: int64 not null
weight: double
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, Union

from dstreams.arrow.library import require
from dstreams.errors import InvalidStreamError
from dstreams.state.ddl import parse_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BlockSchema: TypeAlias = "pa.Schema | type | Mapping[str, Any] | StructType | str"
"""Columns of blocks, as :meth:`~dstreams.DStream.toBlocks` takes them."""

_OF_TYPES = {
    int: "int64",
    float: "float64",
    bool: "bool_",
    str: "string",
    bytes: "binary",
    date: "date32",
    type(None): "null",
}
_IN_MICROSECONDS = {datetime: "timestamp", time: "time64", timedelta: "duration"}


def schema_of(declared: Any, operation: str) -> pa.Schema:
    """Return the Arrow schema that a user declared.

    Args:
        declared: a ``pyarrow.Schema``; a dataclass or NamedTuple, a column for each of its fields;
            a mapping from names to types; or a schema of Spark's, as a StructType or its text.
            Types are those of Arrow or of Python. A Python type is nullable only with ``| None``;
            ``Annotated[Decimal, pa.decimal128(12, 2)]`` adds what a type of Python lacks.
        operation: name for error messages.

    Raises:
        InvalidStreamError: *declared* is not a schema, has no column or a repeated one, or a type
            without an Arrow type.
    """
    arrow = require("pyarrow", operation)
    if isinstance(declared, arrow.Schema):
        schema = declared
    elif isinstance(declared, Mapping):
        schema = arrow.schema(_fields(declared, operation))
    elif is_record_class(declared):
        schema = arrow.schema(_fields(annotations_of(declared, operation), operation))
    else:
        schema = _schema_of_spark(declared, operation)
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated or not schema.names:
        what = f"the column {repeated[0]!r} more than once" if repeated else "no column"
        raise InvalidStreamError(f"the schema of {operation} has {what}")
    return schema


def is_record_class(thing: Any) -> bool:
    """Return whether *thing* is a dataclass or a NamedTuple: a class of records with fields."""
    is_class = isinstance(thing, type)
    return is_class and (dataclasses.is_dataclass(thing) or hasattr(thing, "_fields"))


def field_names(record_class: type) -> tuple[str, ...]:
    """Return the names of the fields of a class of records."""
    if dataclasses.is_dataclass(record_class):
        return tuple(field.name for field in dataclasses.fields(record_class))
    return tuple(record_class._fields)  # type: ignore[attr-defined]


def annotations_of(record_class: type, operation: str) -> dict[str, Any]:
    """Return the name and declared type of each field of a class of records."""
    try:
        hints = typing.get_type_hints(record_class, include_extras=True)
    except Exception as error:
        raise InvalidStreamError(
            f"the annotations of {record_class.__qualname__} cannot be resolved for {operation}: "
            f"{error}"
        ) from error
    names = field_names(record_class)
    missing = [name for name in names if name not in hints]
    if missing:
        raise InvalidStreamError(
            f"{operation} needs the type of each field of {record_class.__qualname__}, but "
            f"{missing[0]!r} has none; use typing.NamedTuple, or a schema of pyarrow"
        )
    return {name: hints[name] for name in names}


def _fields(declared: Mapping[Any, Any], operation: str) -> list[pa.Field]:
    return [_field(name, kind, operation) for name, kind in declared.items()]


def _field(name: Any, kind: Any, operation: str) -> pa.Field:
    arrow = require("pyarrow", operation)
    if not isinstance(name, str):
        raise InvalidStreamError(f"a column of {operation} must have a text as name, got {name!r}")
    made, nullable = _type_of(kind, f"column {name!r} of {operation}")
    return arrow.field(name, made, nullable=nullable)


def _type_of(kind: Any, where: str) -> tuple[pa.DataType, bool]:
    """Return the Arrow type of a declared type, and whether it is nullable."""
    arrow = require("pyarrow", where)
    if isinstance(kind, arrow.DataType):
        return kind, True
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        said = [each for each in args[1:] if isinstance(each, arrow.DataType)]
        return (said[0], _is_optional(args[0])) if said else _type_of(args[0], where)
    if origin in (Union, types.UnionType):
        others = [each for each in args if each is not type(None)]
        if len(others) == 1 and len(args) == 2:
            return _type_of(others[0], where)[0], True
    if kind in _OF_TYPES:
        return getattr(arrow, _OF_TYPES[kind])(), kind is type(None)
    if kind in _IN_MICROSECONDS:
        return getattr(arrow, _IN_MICROSECONDS[kind])("us"), False
    nested = _nested_type(kind, origin, args, where)
    if nested is not None:
        return nested, False
    hint = ""
    if kind is Decimal:
        hint = "; declare its precision: Annotated[Decimal, pa.decimal128(12, 2)]"
    elif isinstance(kind, str):
        hint = "; give a type and not its name, such as str, or one of pyarrow, such as pa.int32()"
    raise InvalidStreamError(f"no Arrow type is known for {kind!r} of {where}{hint}")


def _is_optional(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _nested_type(kind: Any, origin: Any, args: tuple[Any, ...], where: str) -> pa.DataType | None:
    arrow = require("pyarrow", where)
    if is_record_class(kind):
        return arrow.struct(_fields(annotations_of(kind, where), where))
    if origin is list or (origin is tuple and len(args) == 2 and args[1] is ...):
        element, nullable = _type_of(args[0], where)
        return arrow.list_(arrow.field("item", element, nullable=nullable))
    if origin is dict:
        key, _ = _type_of(args[0], where)
        value, nullable = _type_of(args[1], where)
        return arrow.map_(key, arrow.field("value", value, nullable=nullable))
    return None


def _schema_of_spark(declared: Any, operation: str) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - needs pyarrow
    from pyspark.sql.types import DataType, StructType  # noqa: PLC0415

    try:
        known: DataType = parse_schema(declared) if isinstance(declared, str) else declared
    except Exception as error:
        raise InvalidStreamError(
            f"the schema {declared!r} of {operation} is not one of Spark's: {error}"
        ) from error
    if not isinstance(known, StructType):
        raise InvalidStreamError(
            f"{operation} needs a schema: one of pyarrow, a dataclass or NamedTuple, a dict of "
            f"names and types, or one of Spark's; got {declared!r}"
        )
    has_zone = "timezone" in inspect.signature(to_arrow_schema).parameters  # newer releases
    options: dict[str, Any] = {"timezone": "UTC"} if has_zone else {}
    return to_arrow_schema(known, **options)
