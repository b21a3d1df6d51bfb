"""Instances of classes of data as tools show them: by name and fields, without their class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checkpoint.state_store import Classes
from checkpoint.state_store.classes import Maker
from checkpoint.state_store.schemas import Schema, schema_of_id


class Instance:
    """What is stored of an instance, or of a member of an enum."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: dict[str, Any] | list[Any]) -> None:
        self.name = name
        self.fields = fields

    @classmethod
    def of(cls, schema: Schema, values: tuple[Any, ...]) -> Instance:
        """Return what is stored of an instance. Raises ValueError."""
        names = (*schema.fields, *schema.others)
        if not names or len(set(names)) < len(names):  # rows may be so
            return cls(schema.full_name, list(values))
        return cls(schema.full_name, dict(zip(names, values, strict=True)))

    @classmethod
    def of_text(cls, text: str, values: tuple[Any, ...]) -> Instance:
        """Return the same for a schema as one text."""
        return cls.of(schema_of_id(text), values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fields.values() if isinstance(self.fields, dict) else self.fields)

    def __repr__(self) -> str:
        if isinstance(self.fields, dict):
            return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.fields.items())})"
        return f"{self.name}({', '.join(map(repr, self.fields))})"


class ShownClasses(Classes):
    """Classes that are not made: what is stored of an instance stands in its place."""

    def maker(self, schema: Schema) -> Maker:
        def make(*values: Any) -> Instance:
            return Instance.of(schema, values)

        return Maker(make, lambda columns: list(map(make, *columns)))

    def key_member(self, module: str, name: str, member: Any) -> Instance:
        return Instance(f"{module}.{name}", {"name": member})

    def key_instance(self, module: str, name: str, values: list[Any]) -> Instance:
        return Instance(f"{module}.{name}", values)
