"""Typed access to JSON that was read from disk and may hold anything."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_DIGEST = re.compile(r"[0-9a-f]{32}")


def dump_json(value: Mapping[str, object]) -> bytes:
    """Write *value* as JSON in ASCII, the same bytes for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def load_json(data: bytes) -> dict[str, object]:
    """Read a JSON object.

    Raises:
        ValueError: the bytes are no JSON, or JSON of another type.
    """
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
    return require_object(value, "JSON")


def require_object(value: object, what: str) -> dict[str, object]:
    """Return *value* if it is a JSON object, else raise ValueError."""
    if isinstance(value, dict):
        return value
    raise ValueError(f"{what} must be an object, got {type(value).__name__}")


def object_field(data: Mapping[str, object], key: str) -> dict[str, object]:
    """Return the object under *key*, else raise ValueError."""
    return require_object(data.get(key), f"field {key!r}")


def list_field(data: Mapping[str, object], key: str) -> list[object]:
    """Return the list under *key*, else raise ValueError."""
    value = data.get(key)
    if isinstance(value, list):
        return value
    raise ValueError(f"field {key!r} must be a list, got {type(value).__name__}")


def int_field(data: Mapping[str, object], key: str) -> int:
    """Return the integer under *key*, else raise ValueError."""
    value = data.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"field {key!r} must be an integer, got {type(value).__name__}")


def text_field(data: Mapping[str, object], key: str) -> str:
    """Return the text under *key*, else raise ValueError."""
    value = data.get(key)
    if isinstance(value, str):
        return value
    raise ValueError(f"field {key!r} must be text, got {type(value).__name__}")


def optional_int_field(data: Mapping[str, object], key: str) -> int | None:
    """Return the integer under *key*, None for null and where there is none."""
    return None if data.get(key) is None else int_field(data, key)


def int_fields(data: Mapping[str, object], key: str) -> dict[str, int]:
    """Return the object of integers under *key*, empty where there is none."""
    values = object_field(data, key) if key in data else {}
    return {name: int_field(values, name) for name in values}


def text_fields(data: Mapping[str, object], key: str) -> dict[str, str]:
    """Return the object of texts under *key*."""
    values = object_field(data, key)
    return {name: text_field(values, name) for name in values}


def text_list_field(data: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return the list of texts under *key*, empty where there is none."""
    values = list_field(data, key) if key in data else []
    return tuple(text_field({key: value}, key) for value in values)


def plain_fields(cls: Any, data: Mapping[str, object]) -> dict[str, Any]:
    """Return what the fields of a dataclass of integers and texts are in *data*.

    Raises:
        ValueError: one of them is missing, or of another type.
    """
    readers: dict[str, Callable[[Mapping[str, object], str], object]]
    readers = {"int": int_field, "str": text_field}  # as the annotations are written
    fields = dataclasses.fields(cls)
    return {field.name: readers[str(field.type)](data, field.name) for field in fields}


def require_not_negative(subject: str, *numbers: int) -> None:
    """Raise ValueError if one of *numbers* is negative; *subject* says whose they are."""
    if min(numbers) < 0:
        raise ValueError(f"{subject} must have no negative number")


def require_digest(digest: str, subject: str) -> None:
    """Raise ValueError unless *digest* looks like one (:class:`checkpoint.framing.FrameTotals`)."""
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"digest {digest!r} of {subject} must be 32 hexadecimal digits")
