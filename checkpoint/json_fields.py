"""Typed access to JSON that was read from disk and may hold anything."""

from __future__ import annotations

import json
from collections.abc import Mapping


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
