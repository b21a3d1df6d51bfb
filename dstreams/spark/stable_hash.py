"""A hash of keys that is the same in every process and version of Python.

Python's own ``hash`` of a string depends on ``PYTHONHASHSEED`` and differs between 3.10 and 3.11.
This hash is computed from the key's value.

>>> from dstreams.spark.stable_hash import stable_hash
>>> stable_hash(17) == stable_hash(17.0)
True

Keys that are equal in Python (1, 1.0 and True) have the same hash. NaN and objects that are hashed
by their address are refused, because their hash differs between processes. For a class with a
handwritten ``__hash__``, the hash is as stable as that method.
"""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import lru_cache
from numbers import Number
from types import CodeType, WrapperDescriptorType
from typing import Any
from uuid import UUID
from zlib import crc32

STABLE_HASH_NAME = "stable-hash-1"
"""Name of :func:`stable_hash` in identities and on disk; a new algorithm needs a new name."""

_MASK = (1 << 61) - 1
_MIX = 1_000_003


def stable_hash(key: Any) -> int:
    """Return a hash of *key* that depends only on its value.

    Args:
        key: str, bytes, number, None, date or time, UUID, Enum, a tuple or frozenset of such, a
            frozen dataclass or class of attrs of such, or an object of a class with its own
            ``__hash__``.

    Returns:
        An integer of at most 64 bits; it may be negative.

    Raises:
        TypeError: the key is unhashable, NaN, or hashed by its address.
    """
    kind = key.__class__
    if kind is str:
        return crc32(key.encode("utf-8", "surrogatepass"))
    if kind is int:
        return hash(key)  # value modulo 2**61 - 1, as Python documents it
    if kind is tuple:
        return _combine(key, 0x345678)
    return _hash_other(key)


def stable_hashes(keys: list[Any]) -> list[int]:
    """Return :func:`stable_hash` of each key; faster for strings."""
    if set(map(type, keys)) == {str}:
        try:
            return list(map(crc32, map(str.encode, keys)))
        except UnicodeEncodeError:  # lone surrogates
            pass
    return list(map(stable_hash, keys))


def _combine(items: Any, start: int) -> int:
    mixed = start
    for item in items:
        mixed = (mixed * _MIX ^ stable_hash(item)) & _MASK
    # Low bits depend on low bits only: fold, or tuples of round numbers share few partitions.
    return mixed ^ mixed >> 32


def _hash_other(key: Any) -> int:  # noqa: PLR0911 - one return for each kind of key
    if key is None:
        return 0x6E6F6E65
    if isinstance(key, Number):  # before Enum: an IntEnum equals its number
        return _hash_number(key)
    if isinstance(key, (str, bytes, tuple, frozenset)):
        return _hash_object(key) if _has_own_hash(type(key)) else _hash_builtin(key)
    if isinstance(key, UUID):
        return hash(key.int)
    if isinstance(key, (date, time, timedelta)):
        return _hash_time(key)
    if isinstance(key, Enum):
        # Versions of Python differ in the names of combined flags.
        member = key.value if isinstance(key, Flag) else key.name
        return _combine((type(key).__module__, type(key).__qualname__, member), 0x656E756D)
    return _hash_object(key)


def _has_own_hash(kind: type) -> bool:
    """Return whether a subclass of a builtin type overrides ``__hash__``."""
    return not isinstance(kind.__hash__, WrapperDescriptorType)


def _hash_builtin(key: Any) -> int:
    if isinstance(key, str):
        return crc32(str.encode(key, "utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return crc32(key, 1)
    if isinstance(key, tuple):
        return _combine(key, 0x345678)
    # A sum does not depend on the order of iteration.
    return _combine([sum(map(stable_hash, key)) & _MASK, len(key)], 0x66736574)


def _hash_number(key: Any) -> int:
    is_nan = key.is_nan() if isinstance(key, Decimal) else key != key  # noqa: PLR0124
    if is_nan:
        raise TypeError(
            "NaN cannot be a key, because it does not equal itself; map it to None first"
        )
    if isinstance(key, (bool, int, float, complex, Decimal, Fraction)) or math.isfinite(abs(key)):
        return hash(key)
    return hash(float(key))


def _hash_time(key: date | time | timedelta) -> int:
    if isinstance(key, timedelta):
        return _hash_timedelta(key)
    if not isinstance(key, (datetime, time)):
        return crc32(key.isoformat().encode(), 2)
    key = key.replace(fold=0)  # == ignores fold
    offset = key.utcoffset()
    if offset is None:
        return crc32(key.replace(tzinfo=None).isoformat().encode())
    # Converting to UTC would fail near the minimum and maximum datetime.
    wall = timedelta(
        days=key.toordinal() if isinstance(key, datetime) else 0,
        hours=key.hour,
        minutes=key.minute,
        seconds=key.second,
        microseconds=key.microsecond,
    )
    return _hash_timedelta(wall - offset)


def _hash_timedelta(key: timedelta) -> int:
    return crc32(b"%d %d %d" % (key.days, key.seconds, key.microseconds), 1)


def _hash_object(key: Any) -> int:
    kind: Any = type(key)
    if kind.__hash__ is None:
        raise TypeError(
            f"a key of type {kind.__name__} is unhashable; use an immutable value, for example "
            "tuple(key) for a list or frozenset(key) for a set"
        )
    if vars(object)["__hash__"] is kind.__hash__:
        raise TypeError(
            f"a key of type {kind.__module__}.{kind.__qualname__} is hashed by its address, which "
            "differs in every process; use a value, or make the class a frozen dataclass"
        )
    names = _fields_of_generated_hash(kind)
    if names is None:
        return hash(key)
    return _combine([getattr(key, name) for name in names], 0x64617461)


@lru_cache(maxsize=256)
def _fields_of_generated_hash(kind: type) -> list[str] | None:
    """Return the fields in the generated hash of a dataclass or attrs class, else None."""
    owner: Any = next(base for base in kind.__mro__ if "__hash__" in vars(base))
    if "__attrs_attrs__" in vars(owner):
        return _fields_of_attrs(owner)
    if "__dataclass_params__" not in vars(owner):
        return None
    # dataclasses.fields fails in PySpark 3.5 workers: the marker of a field is a copy there.
    fields = [f for f in owner.__dataclass_fields__.values() if f._field_type.name == "_FIELD"]
    names = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
    code = getattr(owner.__hash__, "__code__", None)
    generated = isinstance(code, CodeType) and set(code.co_names) == {"hash", *names}
    return names if generated else None


def _fields_of_attrs(owner: Any) -> list[str] | None:
    code = getattr(owner.__hash__, "__code__", None)
    if not isinstance(code, CodeType) or not code.co_filename.startswith("<attrs generated"):
        return None
    fields = owner.__attrs_attrs__
    hashed = [each for each in fields if (each.eq if each.hash is None else each.hash)]
    if any(getattr(each, "eq_key", None) is not None for each in hashed):
        return None
    return [each.name for each in hashed]
