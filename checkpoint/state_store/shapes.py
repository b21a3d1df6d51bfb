"""Shapes: values that are instances of classes of data, or tuples with such directly in them.

A shape is written as one plain tuple of all the fields, with what they are of in front of it; see
:mod:`checkpoint.state_store.classes`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import repeat
from typing import Any, NamedTuple

from checkpoint.state_store.classes import Classes
from checkpoint.state_store.making import Maker
from checkpoint.state_store.schemas import Schema, schema_of_text
from checkpoint.state_store.taking_apart import Take, Written

SHAPE = 3
"""How a record of a shape begins."""

_SHAPE_BYTE = bytes((SHAPE,))
_HEAD = struct.Struct("<BH")
_MAX_HEAD_BYTES = 0xFFFF
_TUPLE, _NEXT = "(", "\n"

Flat = tuple[Any, ...]


class Shape(NamedTuple):
    """How values of one shape are written.

    Args:
        head: what their records begin with.
        flat: ``value -> its fields``; raises ``LookupError`` or ``AttributeError`` for a value
            whose instances have other attributes than most, or are of other classes.
    """

    head: bytes
    flat: Take


def shape_of(
    parts: list[Written | None], kinds: tuple[type, ...], *, is_tuple: bool
) -> Shape | None:
    """Return how to write values whose instances are written so; None if that is no shape.

    Args:
        parts: of each item of a tuple, or of the value itself; None for what is plain.
        kinds: their classes.
        is_tuple: whether they are items.
    """
    known = [part for part in parts if part is not None]
    if not known or any(part.schema is None for part in known):
        return None
    items = [part.schema.to_text() if part and part.schema else "" for part in parts]
    text = ((_TUPLE if is_tuple else "") + _NEXT.join(items)).encode()
    if len(text) > _MAX_HEAD_BYTES:
        return None
    head = _HEAD.pack(SHAPE, len(text)) + text
    return Shape(head, _flat_tuple(parts, kinds) if is_tuple else known[0].take)


def _flat_tuple(parts: list[Written | None], kinds: tuple[type, ...]) -> Take:
    """Return what takes the fields of a tuple with instances of these classes where they are."""
    width = len(parts)
    places = [
        (at, part.take, kind)
        for at, (part, kind) in enumerate(zip(parts, kinds, strict=True))
        if part is not None
    ]
    (first, take_first, first_kind), *further = reversed(places)

    def flat(value: Flat) -> Flat:
        item = value[first]
        if len(value) != width or type(item) is not first_kind:
            raise LookupError
        fields = value[:first] + take_first(item) + value[first + 1 :]
        for at, take, kind in further:  # from the last to the first, so that places stay
            item = value[at]
            if type(item) is not kind:
                raise LookupError
            fields = fields[:at] + take(item) + fields[at + 1 :]
        return fields

    return flat


def head_of(record: bytes) -> bytes:
    """Return the head of the record of a shape; the record of the fields follows it.

    Raises:
        ValueError: it has none.
        IndexError: it ends before that.
    """
    end = _HEAD.size + record[1] + (record[2] << 8)
    if end >= len(record):
        raise ValueError(f"the head of a shape ends {end + 1 - len(record)} bytes too late")
    return record[:end]


def common_head(records: list[bytes]) -> bytes | None:
    """Return the head that all records have, None if they have none or not one."""
    if not records or records[0][:1] != _SHAPE_BYTE:
        return None
    head = head_of(records[0])
    return head if all(map(bytes.startswith, records, repeat(head))) else None


class ShapeReader(NamedTuple):
    """How values of one shape are made.

    Args:
        one: of the fields of a value.
        many: the same for many, in less time.
    """

    one: Callable[[Flat], Any]
    many: Callable[[list[Flat]], list[Any]]


def reader_of(head: bytes, classes: Classes) -> ShapeReader:
    """Return what makes values of their fields.

    Raises:
        ValueError: it is no head.
        StoredClassError: a class is gone, has changed, or is not named.
    """
    text = head[_HEAD.size :].decode()
    is_tuple = text[:1] == _TUPLE
    items = text[1:].split(_NEXT) if is_tuple else [text]
    schemas = [schema_of_text(item) if item or not is_tuple else None for item in items]
    parts = [
        _Part(1, None) if schema is None else _Part(_width(schema), classes.maker(schema))
        for schema in schemas
    ]
    return _reader(parts, is_tuple=is_tuple)


def _width(schema: Schema) -> int:
    return len(schema.fields) + len(schema.others)


class _Part(NamedTuple):
    width: int
    maker: Maker | None


def _reader(parts: list[_Part], *, is_tuple: bool) -> ShapeReader:
    width = sum(part.width for part in parts)

    def several(flat: Flat) -> Any:
        items: list[Any] = []
        start = 0
        for count, maker in parts:
            end = start + count
            items.append(flat[start] if maker is None else maker.one(*flat[start:end]))
            start = end
        return tuple(items) if is_tuple else items[0]

    one = several if is_tuple else _only(parts[0])

    def checked(flat: Flat) -> Any:
        if type(flat) is not tuple or len(flat) != width:
            raise ValueError(f"{type(flat).__name__} in place of {width} fields")
        return one(flat)

    def many(flats: list[Flat]) -> list[Any]:
        if set(map(type, flats)) != {tuple} or set(map(len, flats)) != {width}:
            return list(map(checked, flats))
        columns = list(zip(*flats, strict=True))
        items: list[Any] = []
        start = 0
        for count, maker in parts:
            end = start + count
            if maker is None:
                items.append(columns[start])
            elif count:
                items.append(maker.many(columns[start:end]))
            else:
                items.append([maker.one() for _ in flats])
            start = end
        return list(zip(*items, strict=True)) if is_tuple else items[0]

    return ShapeReader(checked, many)


def _only(part: _Part) -> Callable[[Flat], Any]:
    make = part.maker.one if part.maker is not None else tuple
    return lambda flat: make(*flat)
