"""Schemas: what is stored of a class of data, and what its fields are now."""

from __future__ import annotations

import dataclasses
import json
import sys
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from checkpoint.errors import CheckpointError

TAG = 0x93
"""A text that begins with this, in UTF-8, holds the byte by which pickles with classes are told."""
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
ROW_CLASS = ("pyspark.sql.types", "Row")
ENUM, ROW = "enum", "row"
_KINDS = ("dataclass", "attrs", "namedtuple", ENUM, ROW)
HASH_CACHE = "_attrs_cached_hash"  # differs in each process
MEMBER = ("name",)
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
