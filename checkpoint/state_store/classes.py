"""Classes of data in values: instances are stored as names and fields, and made without their code.

A class of data is a dataclass, a class of attrs, a ``NamedTuple``, an ``Enum`` or the ``Row`` of
Spark. Of an instance is stored what :class:`Schema` says of its class, as JSON, and the values of
its fields. It stands in a value in one of two ways:

- A value that is an instance, or a tuple with instances directly in it, is a **shape**: the schemas
  in front, and behind them one plain tuple of all the fields, which costs little more than the
  tuple does::

      03 | H length of the head | head: JSON | record of the flat tuple, by the rules of values

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
import json
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, Flag
from functools import lru_cache
from importlib import import_module
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from checkpoint.errors import CheckpointError
from checkpoint.state_store.keys import compared_fields

TAG = 0x93
"""A text that begins with this, in UTF-8, holds the byte by which pickles with classes are told."""

Take = Callable[[Any], tuple[Any, ...]]
Columns = Sequence[Sequence[Any]]
Upgrade = Callable[[str, dict[str, Any]], Any]

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
_ROW = ("pyspark.sql.types", "Row")
_ENUM, _ROW_KIND = "enum", "row"
_KINDS = ("dataclass", "attrs", "namedtuple", _ENUM, _ROW_KIND)
_HASH_CACHE = "_attrs_cached_hash"  # differs in each process
_NOT_DATA = frozenset(("__orig_class__", _HASH_CACHE))
_MEMBER = ("name",)
_MAX_KNOWN = 1000


class StoredClassError(CheckpointError, ValueError):
    """A stored instance is of a class that is gone, has changed, or that the program names not."""


class Schema(NamedTuple):
    """What is stored of a class.

    Args:
        kind: ``dataclass``, ``attrs``, ``namedtuple``, ``enum`` or ``row``.
        module: the module of the class.
        name: its qualified name there.
        fields: the names of its fields; of a member of an enum ``name``.
        others: names of further attributes that an instance had.
    """

    kind: str
    module: str
    name: str
    fields: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"

    def to_json(self) -> list[Any]:
        """Return what :meth:`from_json` takes."""
        parts: list[Any] = [self.kind, self.module, self.name, list(self.fields)]
        return [*parts, list(self.others)] if self.others else parts

    @classmethod
    def from_json(cls, found: Any) -> Schema:
        """Return the schema that JSON says.

        Raises:
            ValueError: it says none.
        """
        if not isinstance(found, list) or len(found) not in (4, 5) or found[0] not in _KINDS:
            raise ValueError(f"{found!r:.80} is no schema of a class")
        kind, module, name, *names = found
        texts = [module, name, *(text for part in names for text in part)]
        if not all(isinstance(part, list) for part in names) or not all(
            isinstance(text, str) for text in texts
        ):
            raise ValueError(f"{found!r:.80} is no schema of a class")
        return cls(kind, module, name, *map(tuple, names))

    def to_text(self) -> str:
        """Return the schema as one text."""
        return chr(TAG) + json.dumps(self.to_json(), separators=(",", ":"))


@lru_cache(maxsize=_MAX_KNOWN)
def schema_of_text(text: str) -> Schema:
    """Return the schema of :meth:`Schema.to_text`.

    Raises:
        ValueError: it is none.
    """
    if text[:1] != chr(TAG):
        raise ValueError(f"{text!r:.80} is no schema of a class")
    return Schema.from_json(json.loads(text[1:]))


class Maker(NamedTuple):
    """How instances of a class are made of what is stored of them.

    Args:
        one: ``f(*values of fields and others) -> instance``.
        many: the same for many, given a column for each field, in less time.
    """

    one: Callable[..., Any]
    many: Callable[[Columns], list[Any]]


def _maker_of(one: Callable[..., Any]) -> Maker:
    return Maker(one, lambda columns: list(map(one, *columns)))


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
            return _or_upgrade(_maker(kind, schema), self.upgrade, schema)
        if self.upgrade is not None:
            return _upgrading(self.upgrade, schema)
        raise StoredClassError(
            f"a stored {schema.kind} {schema.full_name} has the fields {_listed(schema.fields)}, "
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
        return _member_maker(kind, Schema(_ENUM, module, name, _MEMBER)).one(member)

    def key_instance(self, module: str, name: str, values: list[Any]) -> Any:
        """Return the instance of a dataclass that is a key.

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
                f"a key has {len(values)} fields of dataclass {module}.{name}, which compares "
                f"{names}; bring the class back as it was"
            )
        made: Any = object.__new__(kind)
        for field in dataclasses.fields(made):
            if field.name not in names and fields_of(kind)[field.name]:
                object.__setattr__(made, field.name, _default(kind, field.name, made))
        for name_, value in zip(names, values, strict=True):
            object.__setattr__(made, name_, value)
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


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "(none)"


def _upgrading(upgrade: Upgrade, schema: Schema) -> Maker:
    names = (*schema.fields, *schema.others)
    return _maker_of(
        lambda *values: upgrade(schema.full_name, dict(zip(names, values, strict=True)))
    )


@lru_cache(maxsize=_MAX_KNOWN)
def kind_of(kind: type) -> str | None:
    """Return which kind of class of data a class is, None if it is none."""
    if issubclass(kind, Enum):
        return _ENUM
    if issubclass(kind, tuple):
        fields = getattr(kind, "_fields", None)
        if isinstance(fields, tuple) and all(isinstance(name, str) for name in fields):
            return "namedtuple"
        return _ROW_KIND if (kind.__module__, kind.__qualname__) == _ROW else None
    is_made = all(base is object or base.__flags__ & _HEAP_TYPE for base in kind.__mro__)
    if is_made and dataclasses.is_dataclass(kind):
        return "dataclass"
    if is_made and isinstance(getattr(kind, "__attrs_attrs__", None), tuple):
        return "attrs"
    return None


def is_class_of_data(kind: type) -> bool:
    """Whether instances of a class can be stored by their fields."""
    return kind_of(kind) is not None


@lru_cache(maxsize=_MAX_KNOWN)
def fields_of(kind: type) -> dict[str, bool]:
    """Return the fields of a class of data, and whether each has a default."""
    found: Any = kind
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return {
            field.name: field.default is not missing or field.default_factory is not missing
            for field in dataclasses.fields(kind)
        }
    if issubclass(kind, tuple):
        return {name: name in found._field_defaults for name in getattr(found, "_fields", ())}
    nothing = sys.modules["attr"].NOTHING
    return {each.name: each.default is not nothing for each in found.__attrs_attrs__}


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
    if what == _ENUM:
        text = _schema(kind, what, _MEMBER).to_text()
        name = attrgetter("_value_" if issubclass(kind, Flag) else "_name_")
        return Written(None, text, tuple, lambda value: (text, name(value)))
    if what == _ROW_KIND:
        return Written(None, "", tuple, _row_apart)
    schema = _schema(kind, what, tuple(fields_of(kind)))
    text = schema.to_text()
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
    pick = itemgetter(*fields)

    def take(value: Any) -> tuple[Any, ...]:
        held = value.__dict__
        if len(held) != count:
            raise LookupError
        return pick(held) if count > 1 else (pick(held),)

    return take


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
    text = schema._replace(others=others).to_text()
    return (text, *values, *(held[name] for name in others))


def _row_apart(row: Any) -> tuple[Any, ...]:
    fields = getattr(row, "__fields__", None)  # a Row that only names fields has none
    names = () if fields is None else tuple(fields)
    if len(names) not in (0, len(row)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"a Row of {len(row)} values has the fields {names!r:.80}")
    return (_row_text(names), *row)


@lru_cache(maxsize=_MAX_KNOWN)
def _row_text(names: tuple[str, ...]) -> str:
    return Schema(_ROW_KIND, *_ROW, names).to_text()


def _misfit(kind: type, schema: Schema) -> str | None:
    """Return why a stored instance does not fit a class, None if it does."""
    what = kind_of(kind)
    if what is None:
        return f"{schema.full_name} is no class of data now"
    if (what in (_ENUM, _ROW_KIND) or schema.kind in (_ENUM, _ROW_KIND)) and what != schema.kind:
        return f"{schema.full_name} is of kind {what} now"
    if what in (_ENUM, _ROW_KIND):
        return None
    fields = fields_of(kind)
    unset = [name for name, has_default in fields.items() if not has_default]
    if set(schema.fields) <= set(fields) and set(unset) <= set(schema.fields):
        return None
    return f"it has {_listed(tuple(fields))} now"


def _maker(kind: type, schema: Schema) -> Maker:
    if schema.kind == _ENUM:
        return _member_maker(kind, schema)
    if schema.kind == _ROW_KIND:
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
                put(made, name, _default(kind, name, made))
            if has_cache:
                object.__setattr__(made, _HASH_CACHE, None)
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
        made = [new(kind) for _ in columns[0]]
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
    is_flag = issubclass(kind, Flag)

    def make(member: Any) -> Any:
        if is_flag and type(member) is int:
            return kind(member)
        known = kind._member_map_.get(member) if isinstance(member, str) else None
        if known is None:
            raise StoredClassError(
                f"a stored enum {schema.full_name} has the member {member!r:.80}, which it has not "
                f"now ({_listed(tuple(kind._member_map_))}); bring it back, or give a function "
                "upgrade(name, fields) that returns what is to stand in its place"
            )
        return known

    return _maker_of(make)


def _or_upgrade(maker: Maker, upgrade: Upgrade | None, schema: Schema) -> Maker:
    """Return *maker*, with members of an enum that are gone given to *upgrade*."""
    if upgrade is None or schema.kind != _ENUM:
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
    return _HASH_CACHE in getattr(code, "co_names", ())


def _default(kind: Any, name: str, made: Any) -> Any:
    """Return the default of a field: what the program says, not the bytes."""
    if dataclasses.is_dataclass(kind):
        field = next(each for each in dataclasses.fields(kind) if each.name == name)
        if field.default is not dataclasses.MISSING:
            return field.default
        factory: Any = field.default_factory
        return factory()
    default = next(each.default for each in kind.__attrs_attrs__ if each.name == name)
    factory = getattr(default, "factory", None)
    if factory is None or type(default).__module__.partition(".")[0] != "attr":
        return default
    return factory(made) if default.takes_self else factory()
