"""Parts of records: a field by its name, or a function of the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dstreams.common.callables import describe, require_function
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten

Spec = str | Callable[[Any], Any]
"""A field's name, or ``record -> value``."""


class UnknownFieldError(LookupError):
    """A record does not have a field."""


@dataclass(frozen=True)
class Field:
    """Function: the field of a dict, a Row, a named tuple or any other object."""

    name: str
    where: str

    def __call__(self, record: Any) -> Any:
        try:
            return record[self.name] if isinstance(record, dict) else getattr(record, self.name)
        except (KeyError, AttributeError):
            keys = f" with the keys {shorten(list(record))}" if isinstance(record, dict) else ""
            raise UnknownFieldError(
                f"{self.where}: a record has no field {self.name!r}: {shorten(record)} "
                f"({type(record).__name__}{keys}); use a field that all records have, or a function"
            ) from None


@dataclass(frozen=True)
class Fields:
    """Function: several parts of a record as a tuple."""

    parts: tuple[Callable[[Any], Any], ...]

    def __call__(self, record: Any) -> tuple[Any, ...]:
        return tuple(part(record) for part in self.parts)


def selector(
    spec: object, where: str, fields: tuple[str, ...] | None = None
) -> Callable[[Any], Any]:
    """Return the function of *spec*; *fields* are those of the records, None if unknown."""
    if isinstance(spec, str):
        if fields is not None and spec not in fields:
            raise InvalidStreamError(
                f"{where}: there is no field {spec!r}; the records have {', '.join(fields)}"
            )
        return Field(spec, where)
    if not callable(spec):
        raise InvalidStreamError(
            f"{where} takes the name of a field or a function of a record, got {spec!r} "
            f"({type(spec).__name__})"
        )
    require_function(spec, where, "f(record)")
    return spec


def key_selector(
    specs: Sequence[object], where: str, fields: tuple[str, ...] | None = None
) -> Callable[[Any], Any]:
    """Return the function that gives the key of a record: one part, or a tuple of parts."""
    parts = tuple(selector(spec, where, fields) for spec in specs)
    return parts[0] if len(parts) == 1 else Fields(parts)


def as_specs(subset: Spec | Sequence[Spec] | None, where: str) -> tuple[Spec, ...]:
    """Return the parts of a record as a tuple."""
    if subset is None:
        return ()
    if isinstance(subset, str) or callable(subset):
        return (subset,)
    if not isinstance(subset, (list, tuple)) or not subset:
        raise InvalidStreamError(
            f"{where} takes a field, a function, or a list of these, got {subset!r}; omit it to "
            "use the whole record"
        )
    return tuple(subset)


def show(spec: object) -> str:
    """Return the text of ``explain`` for a part of a record, or a window over one."""
    if isinstance(spec, str):
        return spec
    return describe(spec) if callable(spec) else repr(spec)
