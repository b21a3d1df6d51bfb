"""Pickles shown without running anything: plain data as it is, the rest by its name and parts.

Unpickling a user's object would import and run the user's code. Here only the classes of a short
list are made; any other becomes an :class:`Opaque`, which remembers what the pickle gives it.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from checkpoint.state_store.plain_pickles import plain_names

_PLAIN = plain_names()

# Payload of a block of pairs: side, form, rows and length of the key column, then the columns; a
# column is a pickled list, in form 1 that of values is a list of pickles, and in form 2 a tuple of
# the columns of their fields, which are lists or again such tuples.
_COLUMNS = struct.Struct("<BBII")
_SIDES = 2
_COMMON, _SEPARATE, _FIELDS = _FORMS = range(3)

Loads = Callable[[bytes], Any]


class Opaque:
    """An object of a class that is not made here: its class, and what its pickle says of it."""

    name = "?"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._take(*arguments, **named)

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Make one with what the pickle passes."""
        made = super().__new__(cls)
        made._take(*arguments, **named)
        return made

    def _take(self, *arguments: Any, **named: Any) -> None:
        if arguments or named or "arguments" not in vars(self):
            vars(self).update(arguments=arguments, named=named, state=None, items=[])

    def __setstate__(self, state: Any) -> None:
        vars(self)["state"] = state

    def append(self, item: Any) -> None:
        """Take an item, as a subclass of list does."""
        vars(self)["items"].append(item)

    def extend(self, items: Any) -> None:
        """Take items, as a subclass of list does."""
        vars(self)["items"].extend(items)

    def add(self, item: Any) -> None:
        """Take an item, as a subclass of set does."""
        self.append(item)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.append((key, value))

    def __call__(self, *arguments: Any, **named: Any) -> Opaque:
        """Return what a function that is not called would have made."""
        made = Opaque(*arguments)
        vars(made)["named"] = named
        return made


class _PlainUnpickler(pickle.Unpickler):
    """Makes plain data, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        plain = _PLAIN.get((module, name))
        if plain is not None:
            return plain
        return type("Opaque", (Opaque,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it refers to {pid!r}, which is not in it")


def plain_loads(data: bytes) -> Any:
    """Read a pickle and run nothing that it names.

    Raises:
        ValueError: it is no pickle, or one that cannot be shown.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise ValueError(f"it cannot be shown without unpickling it: {error}") from error


def pairs_of(payload: bytes, loads: Loads) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and values of a block of a state file.

    Args:
        payload: the block: columns of pairs, or one pickle of a list.
        loads: what reads a pickle.

    Raises:
        ValueError: it is neither.
    """
    columns = _columns(payload)
    if columns is None:
        yield from map(_pair, _as_list(loads(payload)))
        return
    keys, values, form = columns
    key_list, value_list = loads(keys), loads(values)
    if form == _SEPARATE:
        value_list = list(map(loads, value_list))
    elif form == _FIELDS:
        value_list = _rows(value_list)
    yield from zip(key_list, value_list, strict=True)


def _rows(column: Any) -> list[Any]:
    return column if isinstance(column, list) else list(zip(*map(_rows, column), strict=True))


def _columns(payload: bytes) -> tuple[bytes, bytes, int] | None:
    if len(payload) < _COLUMNS.size:
        return None
    # A pickle begins with other bytes than a side and a form.
    side, form, _, key_bytes = _COLUMNS.unpack_from(payload)
    end = _COLUMNS.size + key_bytes
    is_known = side < _SIDES and form in _FORMS and end <= len(payload)
    return (payload[_COLUMNS.size : end], payload[end:], form) if is_known else None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pair(record: Any) -> tuple[Any, Any]:
    if isinstance(record, tuple) and len(record) == 2:
        return record
    return record, None


def shown(value: Any) -> Any:
    """Return *value* as JSON shows it best: JSON as it is, the rest by name."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    for kind, show in _SHOWN.items():
        if isinstance(value, kind):
            return show(value)
    return {type(value).__name__: str(value)}


def _shown_dict(value: dict[Any, Any]) -> Any:
    if all(isinstance(key, str) for key in value):
        return {key: shown(item) for key, item in value.items()}
    return {"pairs": [[shown(key), shown(item)] for key, item in value.items()]}


def _shown_list(value: Any) -> list[Any]:
    return [shown(item) for item in value]


def _shown_set(value: Any) -> dict[str, Any]:
    return {"set": sorted(map(shown, value), key=repr)}


def _shown_type(value: Any) -> dict[str, Any]:
    return {"name": getattr(value, "name", value.__qualname__)}


def _shown_opaque(value: Opaque) -> dict[str, Any]:
    parts = vars(value)
    found = {
        key: shown(parts[key]) for key in ("arguments", "named", "state", "items") if parts.get(key)
    }
    return {"class": value.name, **found}


_SHOWN: Mapping[Any, Callable[[Any], Any]] = {
    float: lambda value: value if math.isfinite(value) else {"float": repr(value)},
    Opaque: _shown_opaque,
    type: _shown_type,
    (bytes, bytearray): lambda value: {"bytes": bytes(value).hex()},
    dict: _shown_dict,
    (list, tuple, deque): _shown_list,
    (set, frozenset): _shown_set,
}
