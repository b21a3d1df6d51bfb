"""Data classes: instances are stored as schema and fields, and restored without running their code.

A data class is a dataclass, an attrs class, a ``NamedTuple``, an ``Enum`` or Spark's ``Row``.

**Which classes.** Only classes that the program registers (:class:`Classes`) are stored or
restored; the bytes cannot select any other. Instances are created with ``object.__new__`` and by
setting their fields, or with ``tuple.__new__``. Neither ``__init__`` nor ``__post_init__``,
``__setattr__``, ``__reduce__`` or ``__setstate__`` of the class is called.

**Changed classes.** Stored fields are matched by name; a new field gets its default. A class may
have a version, the number ``state_version`` (1 without one), and a class or static method
``migrate(old)``. It gets the stored fields (:class:`OldFields`) of an instance of an earlier
version, of one that has a field that was removed or renamed, and of one that lacks a new field
without a default. It returns the value to use instead. Without it, :attr:`Classes.upgrade` does, or
reading fails. An enum member is stored by its name, a ``Flag`` by its value.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, Flag
from functools import lru_cache
from importlib import import_module
from inspect import getattr_static
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from checkpoint.errors import CheckpointError

# Its UTF-8 contains the byte STACK_GLOBAL, which marks pickles that may hold classes.
_MARK = "\x93"
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: created by a class statement
_ROW_CLASS = ("pyspark.sql.types", "Row")
ENUM, ROW = "enum", "row"
_KINDS = {kind[0]: kind for kind in ("dataclass", "attrs", "namedtuple", ENUM, ROW)}
_BARE = re.compile(r"[\w.<>-]+")
_HASH_CACHE = "_attrs_cached_hash"  # differs between processes
_MEMBER = ("name",)
_VERSION = "@"  # not in names of Python
_NOT_DATA = frozenset(("__orig_class__", _HASH_CACHE))
_MAX_KNOWN = 1000

Take = Callable[[Any], tuple[Any, ...]]
Columns = Sequence[Sequence[Any]]
Upgrade = Callable[[str, dict[str, Any]], Any]


class StoredClassError(CheckpointError, ValueError):
    """A stored instance has a class that is gone, has changed or is not registered."""


class OldFields(dict[str, Any]):
    """The stored fields of an instance, by name, and the *version* of its class at that time."""

    def __init__(self, fields: Mapping[str, Any], version: int) -> None:
        super().__init__(fields)
        self.version = version


class Schema(NamedTuple):
    """The kind, name, fields and version of a class, as they are stored."""

    kind: str
    module: str
    name: str
    fields: tuple[str, ...]
    others: tuple[str, ...] = ()
    version: int = 1

    @property
    def full_name(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"

    def to_text(self) -> str:
        """Return the text of a schema, such as ``dapp.states Total count total  cached``.

        It is the first letter of the kind, then the words: module, name, fields, and after two
        spaces the others. The name of a version from 2 on ends with it, such as ``Total@2``. A word
        that is not a Python name is written as JSON.
        """
        name = self.name if self.version == 1 else f"{self.name}{_VERSION}{self.version}"
        text = self.kind[0] + _words((self.module, name, *self.fields))
        return f"{text}  {_words(self.others)}" if self.others else text

    def to_id(self) -> str:
        """Return the text that pickles contain."""
        return _MARK + self.to_text()


@lru_cache(maxsize=_MAX_KNOWN)
def schema_of_text(text: str) -> Schema:
    """Parse :meth:`Schema.to_text`. Raises ValueError."""
    kind = _KINDS.get(text[:1])
    needed, has_others, others = text[1:].partition("  ")
    names = _names(needed)
    if kind is None or len(names) < 2:
        raise ValueError(f"{text!r:.80} is not a schema of a class")
    module, name, *fields = names
    name, _, version = name.partition(_VERSION)
    more = _names(others) if has_others else ()
    return Schema(kind, module, name, tuple(fields), more, int(version or 1))


def schema_of_id(text: str) -> Schema:
    """Parse :meth:`Schema.to_id`. Raises ValueError."""
    if text[:1] != _MARK:
        raise ValueError(f"{text!r:.80} is not a schema of a class")
    return schema_of_text(text[1:])


def _words(names: tuple[str, ...]) -> str:
    return " ".join(
        name if _BARE.fullmatch(name) else json.dumps(name).replace(" ", "\\u0020")
        for name in names
    )


def _names(words: str) -> tuple[str, ...]:
    return tuple(map(_name, words.split(" ")))


def _name(word: str) -> str:
    if _BARE.fullmatch(word):
        return word
    if word[:1] != '"':
        raise ValueError(f"{word!r:.80} is not a name")
    return str(json.loads(word))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "(none)"


@lru_cache(maxsize=_MAX_KNOWN)
def kind_of(kind: type) -> str | None:
    """Return the kind of a data class, None for any other class."""
    if issubclass(kind, Enum):
        return ENUM
    if issubclass(kind, tuple):
        fields = getattr(kind, "_fields", None)
        if isinstance(fields, tuple) and all(isinstance(name, str) for name in fields):
            return "namedtuple"
        return ROW if (kind.__module__, kind.__qualname__) == _ROW_CLASS else None
    # A subclass of dict, for example, holds more than its fields.
    is_plain = all(base is object or base.__flags__ & _HEAP_TYPE for base in kind.__mro__)
    if is_plain and dataclasses.is_dataclass(kind):
        return "dataclass"
    if is_plain and isinstance(getattr(kind, "__attrs_attrs__", None), tuple):
        return "attrs"
    return None


def is_class_of_data(kind: type) -> bool:
    """Return whether instances of a class can be stored by their fields."""
    return kind_of(kind) is not None


def _dataclass_fields(kind: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass.

    ``dataclasses.fields`` compares a marker by identity, and a class of ``__main__`` that the
    cloudpickle of PySpark 3.5 sent to a worker has a copy of the marker.
    """
    fields = kind.__dataclass_fields__.values()
    return [field for field in fields if field._field_type.name == "_FIELD"]


def _is_missing(default: object) -> bool:
    """Return whether a dataclass field has no default; the marker may be a copy."""
    return isinstance(default, type(dataclasses.MISSING))


@lru_cache(maxsize=_MAX_KNOWN)
def fields_of(kind: type) -> dict[str, bool]:
    """Return the fields of a data class, and whether each has a default."""
    found: Any = kind
    if dataclasses.is_dataclass(kind):
        return {
            field.name: not _is_missing(field.default) or not _is_missing(field.default_factory)
            for field in _dataclass_fields(kind)
        }
    if issubclass(kind, tuple):
        return {name: name in found._field_defaults for name in getattr(found, "_fields", ())}
    nothing = sys.modules["attr"].NOTHING
    return {each.name: each.default is not nothing for each in found.__attrs_attrs__}


@lru_cache(maxsize=256)
def compared_fields(kind: type) -> tuple[str, ...] | None:
    """Return the fields by which instances of a dataclass or attrs class are compared.

    Returns None for other classes, and if the class defines equality itself.
    """
    if kind.__hash__ is None:
        return None
    hashed_by, compared_by = (_generated_in(kind, name) for name in ("__hash__", "__eq__"))
    if hashed_by is None or compared_by is None:
        return None
    if "__dataclass_params__" in vars(compared_by):
        return tuple(field.name for field in _dataclass_fields(compared_by) if field.compare)
    compared = [each for each in compared_by.__attrs_attrs__ if each.eq]
    if any(getattr(each, "eq_key", None) is not None for each in compared):
        return None
    return tuple(each.name for each in compared)


def _generated_in(kind: type, method: str) -> Any:
    """Return the base class for which a method was generated, None if it was written by hand."""
    owner = next(base for base in kind.__mro__ if method in vars(base))
    code = getattr(vars(owner)[method], "__code__", None)
    file = getattr(code, "co_filename", "")
    if "__dataclass_params__" in vars(owner):
        return owner if file == "<string>" else None  # code generated by dataclasses has no file
    is_generated = "__attrs_attrs__" in vars(owner) and file.startswith("<attrs generated")
    return owner if is_generated else None


class Written(NamedTuple):
    """The encoding of instances of a class.

    Args:
        schema: the schema of most instances; None if it differs between instances.
        take: returns the fields of an instance with that schema; raises ``LookupError`` or
            ``AttributeError`` for an instance with other attributes.
        apart: returns the text of its schema and the fields of any instance.
    """

    schema: Schema | None
    take: Take
    apart: Take


def written(kind: type) -> Written | None:
    """Return how instances of a class are written, None if it is not a data class."""
    what = kind_of(kind)
    if what is None:
        return None
    if what == ENUM:
        text = _schema(kind, what, _MEMBER).to_id()
        name = attrgetter("_value_" if issubclass(kind, Flag) else "_name_")
        return Written(None, tuple, lambda value: (text, name(value)))
    if what == ROW:
        return Written(None, tuple, _row_apart)
    schema = _schema(kind, what, tuple(fields_of(kind)))
    text = schema.to_id()
    take = _taker(kind, schema.fields)

    def apart(value: Any) -> tuple[Any, ...]:
        try:
            return (text, *take(value))
        except (LookupError, AttributeError):
            return _apart(value, schema)

    return Written(schema, take, apart)


def _schema(kind: type, what: str, fields: tuple[str, ...]) -> Schema:
    name = kind.__qualname__
    return Schema(what, kind.__module__, name, fields, version=version_of(kind))


@lru_cache(maxsize=_MAX_KNOWN)
def version_of(kind: type) -> int:
    """Return the ``state_version`` of a class, 1 without one.

    Raises:
        StoredClassError: it is not a whole number of at least 1.
    """
    if kind_of(kind) in (None, ENUM, ROW) or "state_version" in fields_of(kind):
        return 1
    found = getattr(kind, "state_version", 1)
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise StoredClassError(
            f"state_version of {kind.__module__}.{kind.__qualname__} must be a whole number of at "
            f"least 1, got {found!r:.80}"
        )
    return found


def _migrate_of(kind: type) -> Callable[[OldFields], Any] | None:
    """Return the ``migrate`` of a class, None if it has no such class or static method."""
    found = getattr_static(kind, "migrate", None)
    is_callable = isinstance(found, (classmethod, staticmethod))
    return getattr(kind, "migrate") if is_callable else None  # noqa: B009 - not of every class


def _taker(kind: type, fields: tuple[str, ...]) -> Take:
    """Return a function for the fields of an instance without other attributes."""
    count = len(fields)
    if issubclass(kind, tuple):
        has_room = bool(kind.__dictoffset__)

        def take_tuple(value: Any) -> tuple[Any, ...]:
            if len(value) != count or (has_room and vars(value)):
                raise LookupError
            return tuple(value)

        return take_tuple
    if count and not kind.__dictoffset__:
        get = attrgetter(*fields)
        return get if count > 1 else lambda value: (get(value),)
    pick: Any = itemgetter(*fields) if count else lambda held: ()

    def take(value: Any) -> tuple[Any, ...]:
        held = getattr(value, "__dict__", ())
        if len(held) != count:
            raise LookupError
        return (pick(held),) if count == 1 else pick(held)

    return take


def _apart(value: Any, schema: Schema) -> tuple[Any, ...]:
    """Return schema and fields of an instance that has other attributes, or some in slots."""
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
    fields = getattr(row, "__fields__", None)  # missing in a Row that only names fields
    names = () if fields is None else tuple(fields)
    if len(names) not in (0, len(row)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"a Row of {len(row)} values has the fields {names!r:.80}")
    return (_row_text(names), *row)


@lru_cache(maxsize=_MAX_KNOWN)
def _row_text(names: tuple[str, ...]) -> str:
    return Schema(ROW, *_ROW_CLASS, names).to_id()


class Maker(NamedTuple):
    """The constructor of instances from stored fields.

    Args:
        one: ``f(*values of fields and others) -> instance``.
        many: creates many instances from one column per field, faster than one by one.
    """

    one: Callable[..., Any]
    many: Callable[[Columns], list[Any]]


def _maker_of(one: Callable[..., Any]) -> Maker:
    return Maker(one, lambda columns: list(map(one, *columns)))


def _misfit(kind: type, schema: Schema) -> str | None:
    """Return why a stored instance does not fit a class, None if it does."""
    what = kind_of(kind)
    if what is None:
        return f"{schema.full_name} is not a class of data now"
    if (what in (ENUM, ROW) or schema.kind in (ENUM, ROW)) and what != schema.kind:
        return f"{schema.full_name} is of kind {what} now"
    if what in (ENUM, ROW):
        return None
    fields, now = fields_of(kind), version_of(kind)
    gone = [name for name in schema.fields if name not in fields]
    unset = [
        name for name, has_default in fields.items() if not (has_default or name in schema.fields)
    ]
    problems = [f"the field {name!r} is gone" for name in gone]
    problems += [f"the field {name!r} is new and has no default" for name in unset]
    if schema.version != now:
        problems.append(f"it was stored by version {schema.version} of the class, which is {now}")
    if not problems:
        return None
    return f"{', '.join(problems)}: it has {_listed(tuple(fields))} now"


def _maker_of_class(kind: type, schema: Schema) -> Maker:
    """Return how instances of *kind* are created; the schema must fit it."""
    if schema.kind == ENUM:
        return _maker_of(_member_maker(kind, schema))
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
        made = list(map(new, repeat(kind, len(columns[0]))))
        for name, column in zip(names, columns):  # noqa: B905 (as many)
            deque(map(put, made, repeat(name), column), maxlen=0)  # calls each of them
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


def _member_maker(kind: Any, schema: Schema) -> Callable[[Any], Any]:
    """Return a function from the stored name or value of a member to the member."""
    is_flag = issubclass(kind, Flag)

    def make(member: Any) -> Any:
        if is_flag and type(member) is int:
            return kind(member)
        known = kind._member_map_.get(member) if isinstance(member, str) else None
        if known is None:
            raise StoredClassError(
                f"a stored enum {schema.full_name} has the member {member!r:.80}, which is not "
                f"one of its members now ({_listed(tuple(kind._member_map_))}); restore the "
                "member, or pass a function upgrade(name, fields) that returns a replacement"
            )
        return known

    return make


def _migrated(
    migrate: Callable[[OldFields], Any], schema: Schema, names: tuple[str, ...]
) -> Callable[..., Any]:
    """Return a function from the stored values of an instance to the result of *migrate*."""

    def make(*values: Any) -> Any:
        old = OldFields(dict(zip(names, values, strict=True)), schema.version)
        try:
            return migrate(old)
        except Exception as error:
            raise StoredClassError(
                f"migrate of {schema.full_name} failed for an instance of version "
                f"{schema.version} with the fields {_listed(names)}: "
                f"{type(error).__name__}: {error}; let it accept these fields"
            ) from error

    return make


def _has_slot(kind: type, names: tuple[str, ...]) -> bool:
    """Return whether some fields of a class are not in its ``__dict__``."""
    slots: set[str] = set()
    for base in kind.__mro__:
        names_of_base = vars(base).get("__slots__", ())
        slots.update((names_of_base,) if isinstance(names_of_base, str) else names_of_base)
    return not kind.__dictoffset__ or not slots.isdisjoint(names)


def _caches_hash(kind: type) -> bool:
    """Return whether attrs caches the hash of an instance in an attribute."""
    code = getattr(kind.__hash__, "__code__", None)
    return _HASH_CACHE in getattr(code, "co_names", ())


def _default_of(kind: Any, name: str, made: Any) -> Any:
    """Return the default of a field, as the program defines it now."""
    if dataclasses.is_dataclass(kind):
        field = next(each for each in _dataclass_fields(kind) if each.name == name)
        if not _is_missing(field.default):
            return field.default
        factory: Any = field.default_factory
        return factory()
    default = next(each.default for each in kind.__attrs_attrs__ if each.name == name)
    factory = getattr(default, "factory", None)
    if factory is None or type(default).__module__.partition(".")[0] != "attr":
        return default
    return factory(made) if default.takes_self else factory()


def _attribute_of(module: Any, name: str) -> type | None:
    """Return the class with a qualified name, None if it does not exist."""
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


@dataclasses.dataclass(frozen=True)
class Classes:
    """The data classes that a program registers: only these are stored and restored.

    Args:
        modules: names of modules of the program; every class that can be found in one of them by
            its qualified name is registered. They are imported when needed.
        named: further classes, by module and qualified name, such as those of ``__main__``, which
            another process cannot import.
        upgrade: ``f(name, fields) -> value``, called for a stored instance whose class is gone or
            has other fields, with the full name of the class and its stored fields. Returns the
            value to use instead. If None, such an instance is an error.
    """

    modules: frozenset[str] = frozenset()
    named: Mapping[tuple[str, str], type] = dataclasses.field(default_factory=dict)
    upgrade: Upgrade | None = None

    def find(self, module: str, name: str) -> type | None:
        """Return the registered class with that name, None if it is not registered."""
        known = self.named.get((module, name))
        if known is not None:
            return known
        if module not in self.modules:
            return None
        try:
            return _attribute_of(sys.modules.get(module) or import_module(module), name)
        except ImportError:
            return None

    def maker(self, schema: Schema) -> Maker:
        """Return how instances of a schema are created.

        Raises:
            StoredClassError: the class is gone, has other fields or is not registered, and the
                program has no upgrade function.
        """
        kind = self.find(schema.module, schema.name)
        problem = "the program registers no such class" if kind is None else _misfit(kind, schema)
        names, upgrade = (*schema.fields, *schema.others), self.upgrade

        def upgraded(*values: Any) -> Any:
            assert upgrade is not None, "called only if there is an upgrade function"
            return upgrade(schema.full_name, dict(zip(names, values, strict=True)))

        if kind is not None and problem is None:
            maker = _maker_of_class(kind, schema)
            if upgrade is None or schema.kind != ENUM:
                return maker

            def member_or_upgraded(member: Any) -> Any:
                try:
                    return maker.one(member)
                except StoredClassError:
                    return upgraded(member)

            return _maker_of(member_or_upgraded)
        migrate = None if kind is None else _migrate_of(kind)
        if kind is not None and migrate is not None and schema.version <= version_of(kind):
            return _maker_of(_migrated(migrate, schema, names))
        if upgrade is not None:
            return _maker_of(upgraded)
        remedy = "restore the class as it was, give it a class method migrate(old)"
        if kind is not None and schema.version > version_of(kind):
            remedy = "deploy that version of the class or a later one"
        raise StoredClassError(
            f"a stored {schema.kind} {schema.full_name} has the fields {_listed(schema.fields)}, "
            f"but {problem}; {remedy}, or pass a function upgrade(name, fields) that returns a "
            "replacement"
        )

    def key_member(self, module: str, name: str, member: Any) -> Any:
        """Return the member of an enum that is a key. Raises StoredClassError."""
        kind = self._class_of_key(module, name)
        if not issubclass(kind, Enum) or not isinstance(member, (str, int)):
            raise StoredClassError(
                f"a key is {member!r:.80} of {module}.{name}, which is not an enum"
            )
        return _member_maker(kind, Schema(ENUM, module, name, _MEMBER))(member)

    def key_instance(self, module: str, name: str, values: list[Any]) -> Any:
        """Return the dataclass or attrs instance that is a key, given its compared fields.

        Raises:
            StoredClassError: its class is gone, or compares other fields.
        """
        kind = self._class_of_key(module, name)
        names = compared_fields(kind)
        if names is None or len(names) != len(values):
            raise StoredClassError(
                f"a key has {len(values)} fields of {kind_of(kind)} {module}.{name}, which "
                f"compares {names}; restore the class as it was"
            )
        made: Any = object.__new__(kind)
        for field, has_default in fields_of(kind).items():
            if field not in names and has_default:
                object.__setattr__(made, field, _default_of(kind, field, made))
        for field, value in zip(names, values, strict=True):
            object.__setattr__(made, field, value)
        if _caches_hash(kind):
            object.__setattr__(made, _HASH_CACHE, None)
        return made

    def _class_of_key(self, module: str, name: str) -> type:
        kind = self.find(module, name)
        if kind is None:
            raise StoredClassError(
                f"a key is of class {module}.{name}, which is gone or not registered; restore or "
                "register it, or use plain values as keys"
            )
        return kind


@dataclasses.dataclass(frozen=True)
class LoadedClasses(Classes):
    """All classes of loaded modules, for readers that trust the checkpoint."""

    def find(self, module: str, name: str) -> type | None:
        return _attribute_of(sys.modules.get(module), name)


LOADED = LoadedClasses()
