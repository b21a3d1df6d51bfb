"""Classes of data in values: instances are stored as names and fields, and made without their code.

A class of data is a dataclass, a class of attrs, a ``NamedTuple``, an ``Enum`` or the ``Row`` of
Spark. Of an instance is stored what :class:`Schema` says of its class, as a text, and the values of
its fields. It stands in a value in one of two ways:

- A value that is an instance, or a tuple with instances directly in it, is a **shape**: one plain
  tuple of all the fields, behind the digest of the schemas, which are stored once beside the
  content (:class:`~checkpoint.state_store.shapes.Shapes`)::

      03 | digest, eight bytes | record of the flat tuple, by the rules of values

- Anywhere else in a value it is a persistent id of its pickle: a tuple of schema and fields. An
  instance that occurs twice comes back as two.

**Who may be made.** Only classes that the program names (:class:`Classes`): nothing else is
imported, looked up or made, whatever the bytes say. What is made is made by ``object.__new__`` and
by setting its fields, or by ``tuple.__new__``: neither ``__init__`` nor ``__post_init__``,
``__setattr__``, ``__reduce__`` nor ``__setstate__`` of the class is called. So the fields are what
counts: a class that is pickled by rules of its own is stored by its fields all the same.

**Classes that have changed.** Stored fields go to the fields of their name, whatever their order. A
field that is new takes its default. A field that is gone or renamed, a new one without a default
and a class that is gone are refused by name, or given to the function that the program has for it
(:attr:`Classes.upgrade`). A member of an enum is stored by name, one of a ``Flag`` by its value.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, Flag
from importlib import import_module
from itertools import repeat
from typing import Any, NamedTuple

from checkpoint.state_store.keys import compared_fields
from checkpoint.state_store.schemas import (
    ENUM,
    HASH_CACHE,
    MEMBER,
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


def _maker_of(one: Callable[..., Any]) -> Maker:
    """Return the maker that makes many one by one."""
    return Maker(one, lambda columns: list(map(one, *columns)))


def _upgrading(upgrade: Upgrade, schema: Schema) -> Maker:
    """Return the maker that gives what is stored to the function of the program."""
    names = (*schema.fields, *schema.others)
    return _maker_of(
        lambda *values: upgrade(schema.full_name, dict(zip(names, values, strict=True)))
    )


def _misfit(kind: type, schema: Schema) -> str | None:
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


def _maker_of_class(kind: type, schema: Schema) -> Maker:
    """Return how instances of *kind* are made, which fits the schema."""
    if schema.kind == ENUM:
        return _member_maker(kind, schema)
    if schema.kind == ROW:
        return _row_maker(kind, schema)
    missing = [name for name in fields_of(kind) if name not in schema.fields]
    if issubclass(kind, tuple):
        return _tuple_maker(kind, schema, missing)
    names = (*schema.fields, *schema.others)
    has_cache = _caches_hash(kind)
    new, count = object.__new__, len(names)
    put = setattr if kind.__setattr__ is object.__setattr__ else object.__setattr__
    if missing or has_cache:

        def complete(*values: Any) -> Any:
            made = new(kind)
            for name, value in zip(names, values, strict=True):
                put(made, name, value)
            for name in missing:
                put(made, name, _default_of(kind, name, made))
            if has_cache:
                object.__setattr__(made, HASH_CACHE, None)
            return made

        return _maker_of(complete)
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

        return _maker_of(make)
    defaults: dict[str, Any] = getattr(kind, "_field_defaults", {})

    def complete(*values: Any) -> Any:
        given = dict(zip((*schema.fields, *schema.others), values, strict=True))
        given.update((name, defaults[name]) for name in missing)
        made: Any = new(kind, [given[name] for name in fields])
        for name in schema.others:
            object.__setattr__(made, name, given[name])
        return made

    return _maker_of(complete)


def _row_maker(kind: type, schema: Schema) -> Maker:
    def make(*values: Any) -> Any:
        row: Any = tuple.__new__(kind, values)
        if schema.fields:
            if len(values) != len(schema.fields):
                raise _wrong_count(len(values), schema)
            row.__fields__ = list(schema.fields)
        return row

    return _maker_of(make)


def _member_maker(kind: Any, schema: Schema) -> Maker:
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

    return _maker_of(make)


def _or_upgrade(maker: Maker, upgrade: Upgrade | None, schema: Schema) -> Maker:
    """Return *maker*, with members of an enum that are gone given to *upgrade*."""
    if upgrade is None or schema.kind != ENUM:
        return maker
    instead = _upgrading(upgrade, schema)

    def make_or_upgrade(member: Any) -> Any:
        try:
            return maker.one(member)
        except StoredClassError:
            return instead.one(member)

    return _maker_of(make_or_upgrade)


def _has_slot(kind: type, names: tuple[str, ...]) -> bool:
    """Whether some fields of a class are not in its ``__dict__``."""
    slots = {name for base in kind.__mro__ for name in _slot_names(base)}
    return not kind.__dictoffset__ or not slots.isdisjoint(names)


def _slot_names(base: type) -> tuple[str, ...]:
    names = vars(base).get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _caches_hash(kind: type) -> bool:
    """Whether attrs keeps the hash of an instance in an attribute."""
    code = getattr(kind.__hash__, "__code__", None)
    return HASH_CACHE in getattr(code, "co_names", ())


def _default_of(kind: Any, name: str, made: Any) -> Any:
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


@dataclasses.dataclass(frozen=True)
class Classes:
    """The classes of data that a program names: only these are stored, and made when read.

    Args:
        modules: names of modules of the program; a class that can be found in one of them by its
            qualified name is named. They are imported where that is needed.
        named: further classes, by module and qualified name, such as those of ``__main__``, which
            another process does not find by name.
        upgrade: ``f(name, fields) -> value``, for a stored instance whose class is gone or has
            other fields: gets module and name of the class and its fields as they were stored, and
            returns what stands in its place. None: it is refused.
    """

    modules: frozenset[str] = frozenset()
    named: Mapping[tuple[str, str], type] = dataclasses.field(default_factory=dict)
    upgrade: Upgrade | None = None

    def find(self, module: str, name: str) -> type | None:
        """Return the class of that name, None if the program names none."""
        known = self.named.get((module, name))
        if known is not None:
            return known
        if module not in self.modules:
            return None
        found: Any = sys.modules.get(module)
        try:
            found = found or import_module(module)
        except ImportError:
            return None
        for part in name.split("."):
            found = getattr(found, part, None)
        return found if isinstance(found, type) else None

    def maker(self, schema: Schema) -> Maker:
        """Return how instances are made.

        Raises:
            StoredClassError: the class is gone, has other fields, or is not named; and there is no
                function for that.
        """
        kind = self.find(schema.module, schema.name)
        problem = "the program names no such class" if kind is None else _misfit(kind, schema)
        if kind is not None and problem is None:
            return _or_upgrade(_maker_of_class(kind, schema), self.upgrade, schema)
        if self.upgrade is not None:
            return _upgrading(self.upgrade, schema)
        raise StoredClassError(
            f"a stored {schema.kind} {schema.full_name} has the fields {listed(schema.fields)}, "
            f"but {problem}; bring it back as it was, or give a function upgrade(name, fields) "
            "that returns what is to stand in its place"
        )

    def key_member(self, module: str, name: str, member: Any) -> Any:
        """Return the member of an enum that is a key.

        Raises:
            StoredClassError: there is none.
        """
        kind = self._class_of_key(module, name)
        if not issubclass(kind, Enum) or not isinstance(member, (str, int)):
            raise StoredClassError(f"a key is {member!r:.80} of {module}.{name}, which is no enum")
        return _member_maker(kind, Schema(ENUM, module, name, MEMBER)).one(member)

    def key_instance(self, module: str, name: str, values: list[Any]) -> Any:
        """Return the instance of a dataclass, or of a class of attrs, that is a key.

        Args:
            module: the module of its class.
            name: the name of its class.
            values: the fields that it is compared by.

        Raises:
            StoredClassError: its class is gone, or compares other fields.
        """
        kind = self._class_of_key(module, name)
        names = compared_fields(kind)
        if names is None or len(names) != len(values):
            raise StoredClassError(
                f"a key has {len(values)} fields of {kind_of(kind)} {module}.{name}, which "
                f"compares {names}; bring the class back as it was"
            )
        made: Any = object.__new__(kind)
        for field, has_default in fields_of(kind).items():
            if field not in names and has_default:
                object.__setattr__(made, field, _default_of(kind, field, made))
        for field, value in zip(names, values, strict=True):
            object.__setattr__(made, field, value)
        if _caches_hash(kind):
            object.__setattr__(made, HASH_CACHE, None)
        return made

    def _class_of_key(self, module: str, name: str) -> type:
        kind = self.find(module, name)
        if kind is None:
            raise StoredClassError(
                f"a key is of class {module}.{name}, which is not there or which the program does "
                "not name; bring it back, name it, or give keys plain values"
            )
        return kind


@dataclasses.dataclass(frozen=True)
class LoadedClasses(Classes):
    """All classes of modules that are loaded, for who trusts what is read."""

    def find(self, module: str, name: str) -> type | None:
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return found if isinstance(found, type) else None


LOADED = LoadedClasses()
