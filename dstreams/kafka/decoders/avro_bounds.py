"""Limits for values of Avro: fastavro has none.

It calls itself for each value within a value, until the stack of the process ends, and makes as
many items of an array as its count says, also if they take no bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dstreams.spark.nesting import MOST_NESTED

_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS = ("int", "long", "enum")
_TEXTS = ("bytes", "string")
_RECORDS = ("record", "error")
_WITH_VALUES = (*_RECORDS, "array", "map")
_SAFE_DEPTH = 20
_SAFE_EMPTY = 4
"""Values of a schema that take no bytes; more of them are counted in each record."""
_MOST_EMPTY = 65_536
_NULL = (0, 1, True)


class _UnboundedError(Exception):
    """A schema has values of any depth, or any number of values in no bytes."""


@dataclass(frozen=True)
class AvroBounds:
    """A check of the values of one schema, made before they are decoded.

    Attributes:
        schema: the schema, as fastavro parsed it.
        named: its named types, by full name.
    """

    schema: Any
    named: Mapping[str, Any]

    def is_needed(self) -> bool:
        """Return whether a value may be too deep, or much larger than its bytes."""
        try:
            depth, empty, _ = _Measured(self.named).of(self.schema)
        except (_UnboundedError, RecursionError):
            return True
        return depth > _SAFE_DEPTH or empty > _SAFE_EMPTY

    def require(self, data: bytes, start: int) -> None:
        """Check the value that begins at a byte.

        Raises:
            ValueError: it is nested too deep, has too many values that take no bytes, or ends
                early.
        """
        _Walk(self.named, data, start).skip(self.schema, 0)


class _Measured:
    """The depth of a schema, its values that take no bytes, and whether it is one of these."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._known: dict[str, tuple[int, int, bool] | None] = {}

    def of(self, schema: Any) -> tuple[int, int, bool]:
        """Return the measures of a schema.

        Raises:
            _UnboundedError: there is no limit.
        """
        if isinstance(schema, str) and schema in self._named:
            return self._of_name(schema)
        if isinstance(schema, list):
            parts = [self.of(each) for each in schema]
            depth = max((part[0] for part in parts), default=0)
            # Null within a union takes a byte: that of its place.
            return depth, max((part[1] for part in parts if part != _NULL), default=0), False
        kind = _kind_of(schema)
        if isinstance(kind, (dict, list)) or (schema is not kind and kind in self._named):
            return self.of(kind)
        if kind in _RECORDS:
            parts = [self.of(field["type"]) for field in schema["fields"]]
            is_empty = all(part[2] for part in parts)
            empty = sum(part[1] for part in parts) + is_empty
            return 1 + max((part[0] for part in parts), default=0), empty, is_empty
        if kind in ("array", "map"):
            depth, empty, is_empty = self.of(schema["items" if kind == "array" else "values"])
            if is_empty and kind == "array":
                raise _UnboundedError
            return 1 + depth, empty, False
        is_empty = kind == "null" or (kind == "fixed" and not schema["size"])
        return 0, int(is_empty), is_empty

    def _of_name(self, name: str) -> tuple[int, int, bool]:
        if name not in self._known:
            self._known[name] = None
            self._known[name] = self.of(self._named[name])
        known = self._known[name]
        if known is None:  # it is within itself
            raise _UnboundedError
        return known


class _Walk:
    """Goes over the bytes of one value, and makes nothing of them."""

    def __init__(self, named: Mapping[str, Any], data: bytes, start: int) -> None:
        self._named = named
        self._data = data
        self._at = start
        self._free = _MOST_EMPTY + 4 * len(data)

    def skip(self, schema: Any, depth: int) -> None:
        schema, kind = self._resolved(schema)
        if kind in _WITH_VALUES and depth == MOST_NESTED:
            raise ValueError(f"nested deeper than {MOST_NESTED} at byte {self._at + 1}")
        if kind in _RECORDS:
            if not schema["fields"]:
                self._count_one()
            for field in schema["fields"]:
                self.skip(field["type"], depth + 1)
        elif kind in ("array", "map"):
            self._skip_blocks(schema, kind, depth)
        elif kind in _NUMBERS:
            self._number()
        elif kind in _TEXTS:
            self._pass(self._number())
        else:
            size = schema["size"] if kind == "fixed" else _SIZES[kind]
            if not size:
                self._count_one()
            self._pass(size)

    def _resolved(self, schema: Any) -> tuple[Any, str]:
        """Return the schema of the value that comes next, which is no union, and its kind."""
        while True:
            if isinstance(schema, list):
                place = self._number()
                if not 0 <= place < len(schema):
                    raise ValueError(f"type {place} of a union of {len(schema)}")
                schema = schema[place]
            elif isinstance(schema, str) and schema in self._named:
                schema = self._named[schema]
            else:
                kind = _kind_of(schema)
                if isinstance(kind, str) and kind not in self._named:
                    return schema, kind
                schema = kind

    def _skip_blocks(self, schema: Any, kind: str, depth: int) -> None:
        items = schema["items" if kind == "array" else "values"]
        while count := self._number():
            if count < 0:
                count = -count
                self._number()  # bytes of the block
            for _ in range(count):
                if kind == "map":
                    self._pass(self._number())
                self.skip(items, depth + 1)

    def _number(self) -> int:
        value = shift = 0
        data, at = self._data, self._at
        while shift < 70:
            if at >= len(data):
                raise ValueError("it ends within its value")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._at = at
                value &= 0xFFFF_FFFF_FFFF_FFFF
                return (value >> 1) ^ -(value & 1)
            shift += 7
        raise ValueError(f"a number of more than 10 bytes at byte {self._at + 1}")

    def _pass(self, size: int) -> None:
        if size < 0 or size > len(self._data) - self._at:
            raise ValueError("it ends within its value")
        self._at += size

    def _count_one(self) -> None:
        self._free -= 1
        if self._free < 0:
            raise ValueError(f"more than {_MOST_EMPTY:,} values that take no bytes")


def _kind_of(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema
