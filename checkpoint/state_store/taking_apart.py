"""Instances of classes of data taken apart: the schema of their class, and their fields."""

from __future__ import annotations

from collections.abc import Callable
from enum import Flag
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from checkpoint.state_store.schemas import (
    ENUM,
    HASH_CACHE,
    MEMBER,
    ROW,
    ROW_CLASS,
    Schema,
    fields_of,
    kind_of,
)

Take = Callable[[Any], tuple[Any, ...]]
_NOT_DATA = frozenset(("__orig_class__", HASH_CACHE))
_MAX_KNOWN = 1000


class Written(NamedTuple):
    """How instances of a class are written.

    Args:
        schema: of most instances; None where each has its own.
        text: the same as one text.
        take: takes the fields of an instance of that schema; raises ``LookupError`` or
            ``AttributeError`` for one that has others.
        apart: takes any instance apart: the text of its schema, and then its fields.
    """

    schema: Schema | None
    text: str
    take: Take
    apart: Take


def written(kind: type) -> Written | None:
    """Return how instances of a class are written, None if it is no class of data."""
    what = kind_of(kind)
    if what is None:
        return None
    if what == ENUM:
        text = _schema(kind, what, MEMBER).to_id()
        name = attrgetter("_value_" if issubclass(kind, Flag) else "_name_")
        return Written(None, text, tuple, lambda value: (text, name(value)))
    if what == ROW:
        return Written(None, "", tuple, _row_apart)
    schema = _schema(kind, what, tuple(fields_of(kind)))
    text = schema.to_id()
    take = _taker(kind, schema.fields)

    def apart(value: Any) -> tuple[Any, ...]:
        try:
            return (text, *take(value))
        except (LookupError, AttributeError):
            return _apart(value, schema)

    return Written(schema, text, take, apart)


def _schema(kind: type, what: str, fields: tuple[str, ...]) -> Schema:
    return Schema(what, kind.__module__, kind.__qualname__, fields)


def _taker(kind: type, fields: tuple[str, ...]) -> Take:
    """Return what takes the fields of an instance that has no other attributes."""
    count = len(fields)
    if issubclass(kind, tuple):
        has_room = bool(kind.__dictoffset__)

        def take_tuple(value: Any) -> tuple[Any, ...]:
            if len(value) != count or (has_room and vars(value)):
                raise LookupError
            return tuple(value)

        return take_tuple
    if not count:
        return lambda value: () if not getattr(value, "__dict__", None) else _no_fast_way()
    if not kind.__dictoffset__:
        get = attrgetter(*fields)
        return get if count > 1 else lambda value: (get(value),)
    pick: Any = itemgetter(*fields)

    def take_one(value: Any) -> tuple[Any, ...]:
        held = value.__dict__
        if len(held) != 1:
            raise LookupError
        return (pick(held),)

    def take(value: Any) -> tuple[Any, ...]:
        held = value.__dict__
        if len(held) != count:
            raise LookupError
        return pick(held)  # type: ignore[no-any-return]

    return take if count > 1 else take_one


def _no_fast_way() -> tuple[Any, ...]:
    raise LookupError


def _apart(value: Any, schema: Schema) -> tuple[Any, ...]:
    """Return schema and fields of an instance that has further attributes, or some in slots."""
    if isinstance(value, tuple):
        values = list(value)
        if len(values) != len(schema.fields):
            raise TypeError(f"a {schema.full_name} has {len(values)} items, not one for each field")
    else:
        values = []
        for name in schema.fields:
            try:
                values.append(getattr(value, name))
            except AttributeError:
                raise TypeError(f"field {name!r} of a {schema.full_name} is not set") from None
    held = getattr(value, "__dict__", {})
    others = tuple(name for name in held if name not in schema.fields and name not in _NOT_DATA)
    text = schema._replace(others=others).to_id()
    return (text, *values, *(held[name] for name in others))


def _row_apart(row: Any) -> tuple[Any, ...]:
    fields = getattr(row, "__fields__", None)  # a Row that only names fields has none
    names = () if fields is None else tuple(fields)
    if len(names) not in (0, len(row)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"a Row of {len(row)} values has the fields {names!r:.80}")
    return (_row_text(names), *row)


@lru_cache(maxsize=_MAX_KNOWN)
def _row_text(names: tuple[str, ...]) -> str:
    return Schema(ROW, *ROW_CLASS, names).to_id()
