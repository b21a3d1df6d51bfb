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
from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from typing import Any

from checkpoint.state_store.keys import compared_fields
from checkpoint.state_store.making import (
    Maker,
    Upgrade,
    caches_hash,
    default_of,
    maker_of_class,
    member_maker,
    misfit,
    or_upgrade,
    upgrading,
)
from checkpoint.state_store.schemas import (
    ENUM,
    HASH_CACHE,
    MEMBER,
    Schema,
    StoredClassError,
    fields_of,
    kind_of,
    listed,
)


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
        problem = "the program names no such class" if kind is None else misfit(kind, schema)
        if kind is not None and problem is None:
            return or_upgrade(maker_of_class(kind, schema), self.upgrade, schema)
        if self.upgrade is not None:
            return upgrading(self.upgrade, schema)
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
        return member_maker(kind, Schema(ENUM, module, name, MEMBER)).one(member)

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
                object.__setattr__(made, field, default_of(kind, field, made))
        for field, value in zip(names, values, strict=True):
            object.__setattr__(made, field, value)
        if caches_hash(kind):
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
