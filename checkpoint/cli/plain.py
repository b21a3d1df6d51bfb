"""Values of a checkpoint as JSON: plain data directly, everything else as class name and parts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from checkpoint.cli.unpickling import Instance, Opaque, Parts, TooManyPartsError
from checkpoint.log.block_formats import (
    PairBlock,
    PairForm,
    arrow_pairs,
    is_arrow_block,
    rows_of_fields,
)

_CHARACTERS_OF_PART = 64  # of text that count as one part
_DECIMAL_BITS = 10_000  # an int up to this size is shown in decimal

_MOST_PARTS, _LEAST_PARTS = 1_000_000, 1_000

Loads = Callable[[bytes], Any]


class NotShown(dict[str, str]):
    """The JSON of a value that cannot be shown: ``{"not shown": reason}``."""

    @classmethod
    def because(cls, reason: str) -> NotShown:
        """Return a placeholder with a reason."""
        return cls({"not shown": reason})

    @property
    def reason(self) -> str:
        """The reason."""
        return self["not shown"]


@dataclass(frozen=True)
class Unshown:
    """A placeholder for a value that cannot be read."""

    reason: str

    def __repr__(self) -> str:
        return f"<not shown: {self.reason}>"


def pairs_of(payload: bytes, loads: Loads) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and values of a block of a state file.

    An unreadable value becomes :class:`Unshown`; so does the key of an unreadable block.
    """
    try:
        yield from _pairs(payload, loads)
    except Exception as error:
        yield Unshown(str(error)), None


def _pairs(payload: bytes, loads: Loads) -> Iterator[tuple[Any, Any]]:
    if is_arrow_block(payload):
        yield from arrow_pairs(payload)
        return
    block = _block_of(payload)
    if block is None:
        yield from map(_pair, _as_list(loads(payload)))
        return
    key_list = loads(bytes(block.key_column))
    try:
        value_list = loads(bytes(block.value_column))
    except Exception as error:
        value_list = [Unshown(str(error))] * len(key_list)
    else:
        if block.form is PairForm.SEPARATE:
            value_list = [_loaded(loads, value) for value in value_list]
        elif block.form is PairForm.FIELDS:
            value_list = rows_of_fields(value_list)
    yield from zip(key_list, value_list, strict=True)


def _loaded(loads: Loads, value: bytes) -> Any:
    try:
        return loads(value)
    except Exception as error:
        return Unshown(str(error))


def _block_of(payload: bytes) -> PairBlock | None:
    """Return the block of a payload, None for a pickle."""
    if payload[:1] > b"\x01":
        return None
    try:
        return PairBlock(payload)
    except ValueError:
        return None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pair(record: Any) -> tuple[Any, Any]:
    if isinstance(record, tuple) and len(record) == 2:
        return record
    return record, None


def shown(value: Any) -> Any:
    """Return *value* as JSON; see :meth:`Shower.shown`."""
    return Shower().shown(value)


class Shower:
    """Converts values to JSON.

    A value may have a million parts. Each value with more halves the limit for the next one, so a
    small file of many such values takes bounded time.
    """

    def __init__(self) -> None:
        self._most_parts = _MOST_PARTS

    def shown(self, value: Any) -> Any:
        """Return *value* as JSON; :class:`NotShown` if it is too large or nests too deeply."""
        try:
            return _Show(Parts(self._most_parts)).show(value)
        except TooManyPartsError as error:
            self._most_parts = max(self._most_parts // 2, _LEAST_PARTS)
            return NotShown.because(str(error))
        except Exception as error:
            return NotShown.because(str(error) or type(error).__name__)


def printed(value: Any) -> str:
    """Return ``repr(value)``, or the reason why it cannot be shown."""
    try:
        Parts(_MOST_PARTS).take_all([value])
        return repr(value)
    except Exception as error:
        return repr(Unshown(str(error) or type(error).__name__))


class _Show:
    """Converts one value."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def show(self, value: Any) -> Any:
        self._parts.take()
        if value is None or isinstance(value, bool):
            return value
        for kind, show in _SHOWN.items():
            if isinstance(value, kind):
                return show(self, value)
        return {type(value).__name__: str(value)}

    def _int(self, value: int) -> Any:
        self._parts.take(value.bit_length() // _DECIMAL_BITS)
        return value if value.bit_length() <= _DECIMAL_BITS else {"int": hex(value)}

    def _str(self, value: str) -> str:
        self._parts.take(len(value) // _CHARACTERS_OF_PART)
        return value

    def _float(self, value: float) -> Any:
        return value if math.isfinite(value) else {"float": repr(value)}

    def _bytes(self, value: bytes | bytearray) -> dict[str, Any]:
        self._parts.take(len(value) // _CHARACTERS_OF_PART)
        return {"bytes": bytes(value).hex()}

    def _dict(self, value: dict[Any, Any]) -> Any:
        if all(isinstance(key, str) for key in value):
            return {self._str(key): self.show(item) for key, item in value.items()}
        return {"pairs": [[self.show(key), self.show(item)] for key, item in value.items()]}

    def _list(self, value: Any) -> list[Any]:
        return [self.show(item) for item in value]

    def _set(self, value: Any) -> dict[str, Any]:
        return {"set": sorted(map(self.show, value), key=repr)}

    def _type(self, value: Any) -> dict[str, Any]:
        return {"name": getattr(value, "name", value.__qualname__)}

    def _instance(self, value: Instance) -> dict[str, Any]:
        fields = value.fields
        shown = self._dict(fields) if isinstance(fields, dict) else self._list(fields)
        return {"class": self._str(value.name), "fields": shown}

    def _opaque(self, value: Opaque) -> dict[str, Any]:
        parts = vars(value)
        found = {
            key: self.show(parts[key])
            for key in ("arguments", "named", "state", "items")
            if parts.get(key)
        }
        return {"class": value.name, **found}


_SHOWN: Mapping[Any, Callable[[_Show, Any], Any]] = {
    int: _Show._int,
    str: _Show._str,
    float: _Show._float,
    Instance: _Show._instance,
    Opaque: _Show._opaque,
    type: _Show._type,
    (bytes, bytearray): _Show._bytes,
    dict: _Show._dict,
    (list, tuple, deque): _Show._list,
    (set, frozenset): _Show._set,
    Unshown: lambda _, value: NotShown.because(value.reason),
}
