"""Selectors of parts of a record: a field name, or a function of the user."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import BuiltinMethodType, MethodType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from dstreams.common.callables import describe, require_function
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten

_METHODS = frozenset({BuiltinMethodType, MethodType})

Spec = str | Callable[[Any], Any]
"""A field's name, or ``record -> value``."""


class UnknownFieldError(LookupError):
    """A record lacks a field."""


@dataclass(frozen=True)
class Field:
    """Returns a field of a dict, a Row, a named tuple or any other object."""

    name: str
    where: str

    def __call__(self, record: Any) -> Any:
        try:
            if isinstance(record, dict):
                return record[self.name]
            value = getattr(record, self.name)
        except (KeyError, AttributeError):
            raise self._unknown(record) from None
        return self._behind_method(record) if type(value) in _METHODS else value

    def _behind_method(self, record: Any) -> Any:
        """Return the field of a Row of Spark, whose methods, such as count, hide fields."""
        names = getattr(record, "__fields__", ())
        if self.name not in names:
            raise self._unknown(record)
        return record[names.index(self.name)]

    def _unknown(self, record: Any) -> UnknownFieldError:
        keys = f" with the keys {shorten(list(record))}" if isinstance(record, dict) else ""
        return UnknownFieldError(
            f"{self.where}: a record has no field {self.name!r}: {shorten(record)} "
            f"({type(record).__name__}{keys}); use a field that all records have, or a function"
        )


@dataclass(frozen=True)
class Fields:
    """Returns several parts of a record as a tuple."""

    parts: tuple[Callable[[Any], Any], ...]

    def __call__(self, record: Any) -> tuple[Any, ...]:
        return tuple(part(record) for part in self.parts)


def selector(
    spec: object, where: str, fields: tuple[str, ...] | None = None
) -> Callable[[Any], Any]:
    """Return the function for *spec*; *fields* are those of the records, None if unknown."""
    if isinstance(spec, str):
        if fields is not None and spec not in fields:
            raise InvalidStreamError(
                f"{where}: unknown field {spec!r}; the records have {', '.join(fields)}"
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
    """Return the function from a record to its key: one part, or a tuple of parts."""
    parts = tuple(selector(spec, where, fields) for spec in specs)
    return parts[0] if len(parts) == 1 else Fields(parts)


def as_specs(subset: Spec | Sequence[Spec] | None, where: str) -> tuple[Spec, ...]:
    """Return *subset* as a tuple."""
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


def fields_of_results(func: Any, *, are_many: bool) -> tuple[str, ...] | None:
    """Return the names of the fields of what a function is declared to return; None if unknown.

    The function is a class, or its annotation names one: a data class, named tuple or TypedDict.
    With *are_many* it returns an iterable of instances.
    """
    if isinstance(func, type) and not are_many:
        return _fields_of(func)
    try:
        kind = get_type_hints(func).get("return")
    except Exception:  # a class that cannot be named here
        return None
    if are_many:
        origin, arguments = get_origin(kind), get_args(kind)
        if not isinstance(origin, type) or not issubclass(origin, Iterable) or not arguments:
            return None
        kind = arguments[0]
    return _fields_of(kind) if isinstance(kind, type) else None


def _fields_of(kind: type) -> tuple[str, ...] | None:
    if is_typeddict(kind):
        return tuple(kind.__annotations__)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = list(kind._fields)
    else:
        return None
    computed = (property, cached_property)
    return (
        *names,
        *(name for name, _ in inspect.getmembers(kind, lambda m: isinstance(m, computed))),
    )


def show(spec: object) -> str:
    """Return the text of ``explain`` for a selector, or for a window over one."""
    if isinstance(spec, str):
        return spec
    return describe(spec) if callable(spec) else repr(spec)
