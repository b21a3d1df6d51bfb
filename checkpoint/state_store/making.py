"""Instances of classes of data made of what is stored of them, without their code."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from enum import Flag
from itertools import repeat
from typing import Any, NamedTuple

from checkpoint.state_store.schemas import (
    ENUM,
    HASH_CACHE,
    ROW,
    Schema,
    StoredClassError,
    dataclass_fields,
    fields_of,
    is_missing,
    kind_of,
    listed,
)

Columns = Sequence[Sequence[Any]]
Upgrade = Callable[[str, dict[str, Any]], Any]


class Maker(NamedTuple):
    """How instances of a class are made of what is stored of them.

    Args:
        one: ``f(*values of fields and others) -> instance``.
        many: the same for many, given a column for each field, in less time.
    """

    one: Callable[..., Any]
    many: Callable[[Columns], list[Any]]


def maker_of(one: Callable[..., Any]) -> Maker:
    """Return the maker that makes many one by one."""
    return Maker(one, lambda columns: list(map(one, *columns)))


def upgrading(upgrade: Upgrade, schema: Schema) -> Maker:
    """Return the maker that gives what is stored to the function of the program."""
    names = (*schema.fields, *schema.others)
    return maker_of(
        lambda *values: upgrade(schema.full_name, dict(zip(names, values, strict=True)))
    )


def misfit(kind: type, schema: Schema) -> str | None:
    """Return why a stored instance does not fit a class, None if it does."""
    what = kind_of(kind)
    if what is None:
        return f"{schema.full_name} is no class of data now"
    if (what in (ENUM, ROW) or schema.kind in (ENUM, ROW)) and what != schema.kind:
        return f"{schema.full_name} is of kind {what} now"
    if what in (ENUM, ROW):
        return None
    fields = fields_of(kind)
    unset = [name for name, has_default in fields.items() if not has_default]
    if set(schema.fields) <= set(fields) and set(unset) <= set(schema.fields):
        return None
    return f"it has {listed(tuple(fields))} now"


def maker_of_class(kind: type, schema: Schema) -> Maker:
    """Return how instances of *kind* are made, which fits the schema."""
    if schema.kind == ENUM:
        return member_maker(kind, schema)
    if schema.kind == ROW:
        return _row_maker(kind, schema)
    missing = [name for name in fields_of(kind) if name not in schema.fields]
    if issubclass(kind, tuple):
        return _tuple_maker(kind, schema, missing)
    names = (*schema.fields, *schema.others)
    has_cache = caches_hash(kind)
    new, count = object.__new__, len(names)
    put = setattr if kind.__setattr__ is object.__setattr__ else object.__setattr__
    if missing or has_cache:

        def complete(*values: Any) -> Any:
            made = new(kind)
            for name, value in zip(names, values, strict=True):
                put(made, name, value)
            for name in missing:
                put(made, name, default_of(kind, name, made))
            if has_cache:
                object.__setattr__(made, HASH_CACHE, None)
            return made

        return maker_of(complete)
    in_slots = _has_slot(kind, names)

    def make(*values: Any) -> Any:
        if len(values) != count:
            raise _wrong_count(len(values), schema)
        made = new(kind)
        if in_slots:
            for name, value in zip(names, values):  # noqa: B905 (as many)
                put(made, name, value)
        else:
            made.__dict__.update(zip(names, values))  # noqa: B905 (as many)
        return made

    def make_many(columns: Columns) -> list[Any]:
        if len(columns) != count:
            raise _wrong_count(len(columns), schema)
        made = list(map(new, repeat(kind, len(columns[0]))))
        for name, column in zip(names, columns):  # noqa: B905 (as many)
            deque(map(put, made, repeat(name), column), maxlen=0)  # which calls each of them
        return made

    return Maker(make, make_many)


def _wrong_count(count: int, schema: Schema) -> ValueError:
    wanted = len(schema.fields) + len(schema.others)
    return ValueError(f"{count} values for {wanted} fields of {schema.full_name}")


def _tuple_maker(kind: type, schema: Schema, missing: list[str]) -> Maker:
    new, fields = tuple.__new__, tuple(fields_of(kind))
    if schema.fields == fields and not schema.others:

        def make(*values: Any) -> Any:
            if len(values) != len(fields):
                raise _wrong_count(len(values), schema)
            return new(kind, values)

        return maker_of(make)
    defaults: dict[str, Any] = getattr(kind, "_field_defaults", {})

    def complete(*values: Any) -> Any:
        given = dict(zip((*schema.fields, *schema.others), values, strict=True))
        given.update((name, defaults[name]) for name in missing)
        made: Any = new(kind, [given[name] for name in fields])
        for name in schema.others:
            object.__setattr__(made, name, given[name])
        return made

    return maker_of(complete)


def _row_maker(kind: type, schema: Schema) -> Maker:
    def make(*values: Any) -> Any:
        row: Any = tuple.__new__(kind, values)
        if schema.fields:
            if len(values) != len(schema.fields):
                raise _wrong_count(len(values), schema)
            row.__fields__ = list(schema.fields)
        return row

    return maker_of(make)


def member_maker(kind: Any, schema: Schema) -> Maker:
    """Return how members of an enum are found."""
    is_flag = issubclass(kind, Flag)

    def make(member: Any) -> Any:
        if is_flag and type(member) is int:
            return kind(member)
        known = kind._member_map_.get(member) if isinstance(member, str) else None
        if known is None:
            raise StoredClassError(
                f"a stored enum {schema.full_name} has the member {member!r:.80}, which it has not "
                f"now ({listed(tuple(kind._member_map_))}); bring it back, or give a function "
                "upgrade(name, fields) that returns what is to stand in its place"
            )
        return known

    return maker_of(make)


def or_upgrade(maker: Maker, upgrade: Upgrade | None, schema: Schema) -> Maker:
    """Return *maker*, with members of an enum that are gone given to *upgrade*."""
    if upgrade is None or schema.kind != ENUM:
        return maker
    instead = upgrading(upgrade, schema)

    def make_or_upgrade(member: Any) -> Any:
        try:
            return maker.one(member)
        except StoredClassError:
            return instead.one(member)

    return maker_of(make_or_upgrade)


def _has_slot(kind: type, names: tuple[str, ...]) -> bool:
    """Whether some fields of a class are not in its ``__dict__``."""
    slots = {name for base in kind.__mro__ for name in _slot_names(base)}
    return not kind.__dictoffset__ or not slots.isdisjoint(names)


def _slot_names(base: type) -> tuple[str, ...]:
    names = vars(base).get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)


def caches_hash(kind: type) -> bool:
    """Whether attrs keeps the hash of an instance in an attribute."""
    code = getattr(kind.__hash__, "__code__", None)
    return HASH_CACHE in getattr(code, "co_names", ())


def default_of(kind: Any, name: str, made: Any) -> Any:
    """Return the default of a field: what the program says, not the bytes."""
    if dataclasses.is_dataclass(kind):
        field = next(each for each in dataclass_fields(kind) if each.name == name)
        if not is_missing(field.default):
            return field.default
        factory: Any = field.default_factory
        return factory()
    default = next(each.default for each in kind.__attrs_attrs__ if each.name == name)
    factory = getattr(default, "factory", None)
    if factory is None or type(default).__module__.partition(".")[0] != "attr":
        return default
    return factory(made) if default.takes_self else factory()
