"""Records as JSON: a struct declares the fields of a file, and decoding it is the only check.

A record must have the fields of its struct and no others, each with a valid value. Each record is
decoded once before it is written, so no file is written that a restart would reject.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from checkpoint.errors import RESTORE, CorruptCheckpointError, Damage

Count = Annotated[int, msgspec.Meta(ge=0)]
"""A number from 0."""

Text = Annotated[str, msgspec.Meta(min_length=1)]
"""A text that is not empty."""

T = TypeVar("T")


class JsonRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of records; rules between fields are checked in ``__post_init__`` (ValueError)."""


def encode(value: JsonRecord | Mapping[str, object]) -> bytes:
    """Return *value* as JSON in ASCII, the same bytes for equal values.

    Raises TypeError or ValueError.
    """
    # Not with msgspec, which writes NaN as null and bytes as text.
    options: dict[str, Any] = {"sort_keys": True, "separators": (",", ":"), "allow_nan": False}
    data = json.dumps(value, default=_plain, **options).encode("ascii")
    _read(data, type(value) if isinstance(value, JsonRecord) else dict)
    return data


def decode(data: bytes, kind: type[T], file: str, what: str) -> T:
    """Return JSON as a value of the type *kind*. Raises CorruptCheckpointError."""
    try:
        return _read(data, kind)
    except (ValueError, RecursionError) as error:  # msgspec raises subclasses of ValueError
        raise _makes_no_sense(file, error, what) from error


def convert(value: object, kind: type[T], file: str, what: str) -> T:
    """Return decoded JSON as a value of the type *kind*. Raises CorruptCheckpointError."""
    try:
        return msgspec.convert(value, kind)
    except ValueError as error:
        raise _makes_no_sense(file, error, what) from error


def _read(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # A file name that is not Unicode has lone surrogates, which msgspec does not accept.
        return msgspec.convert(json.loads(data), kind)


def _makes_no_sense(file: str, error: Exception, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        file, f"says: {error}", f"the JSON of {what}", RESTORE, Damage.DAMAGED
    )


def _plain(value: object) -> object:
    """Return a value that JSON lacks as one that it has."""
    if isinstance(value, msgspec.Struct):
        is_list = value.__struct_config__.array_like
        return msgspec.structs.astuple(value) if is_list else msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value):
        return vars(value)
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{value!r} of type {type(value).__name__} is not JSON")
