"""Records as JSON: a struct says what a file may hold, and is the only check of what it does hold.

Whatever is read is required to have the fields of the struct and no others, each of its type and
possible. Whatever is written is read once before: nothing is on disk that a restart would refuse.
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
"""A number from 0 on."""

Text = Annotated[str, msgspec.Meta(min_length=1)]
"""A text that is not empty."""

T = TypeVar("T")


class JsonRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record whose fields are what its JSON may have.

    Fields with a default may be left out. What types and :class:`msgspec.Meta` cannot say, such as
    how fields go together, ``__post_init__`` requires with a ValueError.
    """


def encode(value: JsonRecord | Mapping[str, object]) -> bytes:
    """Write *value* as JSON in ASCII, the same bytes for equal values.

    Raises TypeError or ValueError.
    """
    # Not by msgspec, which writes NaN as null and bytes as a text.
    options: dict[str, Any] = {"sort_keys": True, "separators": (",", ":"), "allow_nan": False}
    data = json.dumps(value, default=_plain, **options).encode("ascii")
    _read(data, type(value) if isinstance(value, JsonRecord) else dict)
    return data


def decode(data: bytes, kind: type[T], file: str, what: str) -> T:
    """Read JSON as a value of the type *kind*. Raises CorruptCheckpointError."""
    try:
        return _read(data, kind)
    except (ValueError, RecursionError) as error:  # what msgspec raises is a ValueError
        raise _makes_no_sense(file, error, what) from error


def convert(value: object, kind: type[T], file: str, what: str) -> T:
    """Make a value of the type *kind* of JSON that was read already, as :func:`decode` does."""
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
        # A name of a file that is no Unicode has lone surrogates, which msgspec takes for damage.
        return msgspec.convert(json.loads(data), kind)


def _makes_no_sense(file: str, error: Exception, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        file, f"says: {error}", f"the JSON of {what}", RESTORE, Damage.DAMAGED
    )


def _plain(value: object) -> object:
    """Return what JSON has for a value that it does not know."""
    if isinstance(value, msgspec.Struct):
        is_list = value.__struct_config__.array_like
        return msgspec.structs.astuple(value) if is_list else msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value):
        return vars(value)
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{value!r} of type {type(value).__name__} is no JSON")
