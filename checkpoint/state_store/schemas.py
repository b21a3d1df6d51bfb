"""Schemas: what is stored of a class of data, what its fields are now, and how they are taken."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from enum import Enum, Flag
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from checkpoint.errors import CheckpointError

# In UTF-8 it holds the byte STACK_GLOBAL, by which a pickle with classes in it is told.
_MARK = "\x93"
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
ROW_CLASS = ("pyspark.sql.types", "Row")
ENUM, ROW = "enum", "row"
_KINDS = {kind[0]: kind for kind in ("dataclass", "attrs", "namedtuple", ENUM, ROW)}
_BARE = re.compile(r"[\w.<>-]+")
HASH_CACHE = "_attrs_cached_hash"  # differs in each process
MEMBER = ("name",)
_NOT_DATA = frozenset(("__orig_class__", HASH_CACHE))
_MAX_KNOWN = 1000

Take = Callable[[Any], tuple[Any, ...]]


class StoredClassError(CheckpointError, ValueError):
    """A stored instance is of a class that is gone, has changed, or that the program names not."""


class Schema(NamedTuple):
    """What is stored of a class."""

    kind: str
    module: str
    name: str
    fields: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"

    def to_text(self) -> str:
        """Return what :func:`schema_of_text` takes: ``dapp.states Total count total  cached``.

        That is the first letter of the kind, then words: the module, the name, the fields, and
        behind two spaces the others. A word that is no name of Python is one of JSON.
        """
        text = self.kind[0] + _words((self.module, self.name, *self.fields))
        return f"{text}  {_words(self.others)}" if self.others else text

    def to_id(self) -> str:
        """Return the text by which pickles have the schema."""
        return _MARK + self.to_text()


@lru_cache(maxsize=_MAX_KNOWN)
def schema_of_text(text: str) -> Schema:
    """Return the schema of :meth:`Schema.to_text`. Raises ValueError."""
    kind = _KINDS.get(text[:1])
    needed, has_others, others = text[1:].partition("  ")
    names = _names(needed)
    if kind is None or len(names) < 2:
        raise ValueError(f"{text!r:.80} is no schema of a class")
    module, name, *fields = names
    return Schema(kind, module, name, tuple(fields), _names(others) if has_others else ())


def schema_of_id(text: str) -> Schema:
    """Return the schema of :meth:`Schema.to_id`. Raises ValueError."""
    if text[:1] != _MARK:
        raise ValueError(f"{text!r:.80} is no schema of a class")
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
        raise ValueError(f"{word!r:.80} is no name")
    return str(json.loads(word))


def listed(names: tuple[str, ...]) -> str:
    """Return names as a message has them."""
    return ", ".join(names) or "(none)"


@lru_cache(maxsize=_MAX_KNOWN)
def kind_of(kind: type) -> str | None:
    """Return which kind of class of data a class is, None if it is none."""
    if issubclass(kind, Enum):
        return ENUM
    if issubclass(kind, tuple):
        fields = getattr(kind, "_fields", None)
        if isinstance(fields, tuple) and all(isinstance(name, str) for name in fields):
            return "namedtuple"
        return ROW if (kind.__module__, kind.__qualname__) == ROW_CLASS else None
    is_made = all(base is object or base.__flags__ & _HEAP_TYPE for base in kind.__mro__)
    if is_made and dataclasses.is_dataclass(kind):
        return "dataclass"
    if is_made and isinstance(getattr(kind, "__attrs_attrs__", None), tuple):
        return "attrs"
    return None


def is_class_of_data(kind: type) -> bool:
    """Whether instances of a class can be stored by their fields."""
    return kind_of(kind) is not None


def dataclass_fields(kind: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass.

    So does ``dataclasses.fields``, which tells them by the identity of a mark. A class of
    ``__main__`` that the cloudpickle of PySpark 3.5 has sent to a worker has a copy of that mark.
    """
    fields = kind.__dataclass_fields__.values()
    return [field for field in fields if field._field_type.name == "_FIELD"]


def is_missing(default: object) -> bool:
    """Whether that says of a field of a dataclass that it has no default; a copy says so too."""
    return isinstance(default, type(dataclasses.MISSING))


@lru_cache(maxsize=_MAX_KNOWN)
def fields_of(kind: type) -> dict[str, bool]:
    """Return the fields of a class of data, and whether each has a default."""
    found: Any = kind
    if dataclasses.is_dataclass(kind):
        return {
            field.name: not is_missing(field.default) or not is_missing(field.default_factory)
            for field in dataclass_fields(kind)
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
