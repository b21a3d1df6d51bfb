"""Which partition a key belongs to: one answer in every process, after restarts and upgrades.

Python's own ``hash`` of a string depends on ``PYTHONHASHSEED`` and differs between 3.10 and 3.11,
and PySpark identifies a partitioner by the ``id`` of a function, which no other process shares.
Here the hash is computed from the key's value, and a partitioner's identity from its name:

>>> from dstreams.rdd.partitioner import StablePartitioner
>>> StablePartitioner(4)("spark"), StablePartitioner(4)(17), StablePartitioner(4)(17.0)
(1, 1, 1)
>>> StablePartitioner(4) == StablePartitioner(4)
True

Keys that Python holds equal (1, 1.0 and True) get one hash. NaN, and objects whose hash is their
address, are refused: no two processes would agree on them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from numbers import Number
from types import CodeType
from typing import Any
from uuid import UUID
from zlib import crc32

from pyspark.rdd import Partitioner as PySparkPartitioner

from dstreams.callables import describe
from dstreams.errors import InvalidStreamError

STABLE_HASH_NAME = "stable-hash-1"
"""Name of :func:`stable_hash` in identities and on disk; another algorithm gets another name."""

_MASK = (1 << 61) - 1
_MIX = 1_000_003


def stable_hash(key: Any) -> int:
    """Return a hash of *key* that depends on nothing but its value.

    Args:
        key: str, bytes, number, None, date or time, UUID, Enum, a tuple or frozenset of such, a
            frozen dataclass of such, or an object of a class with its own ``__hash__``.

    Returns:
        An integer of at most 64 bits; it may be negative.

    Raises:
        TypeError: the key is unhashable, NaN, or hashed by its address.
    """
    kind = key.__class__
    if kind is str:
        return crc32(key.encode("utf-8", "surrogatepass"))
    if kind is int:
        return hash(key)  # value modulo 2**61 - 1: part of the language's definition of numbers
    if kind is tuple:
        return _combine(key, 0x345678)
    return _hash_other(key)


def _combine(items: Any, start: int) -> int:
    mixed = start
    for item in items:
        mixed = (mixed * _MIX ^ stable_hash(item)) & _MASK
    return mixed


def _hash_other(key: Any) -> int:  # noqa: PLR0911 - one return for each kind of key
    if key is None:
        return 0x6E6F6E65
    if isinstance(key, Number):  # before Enum: an IntEnum equals its number
        return _hash_number(key)
    if isinstance(key, str):
        return crc32(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return crc32(key, 1)
    if isinstance(key, tuple):
        return _combine(key, 0x345678)
    if isinstance(key, frozenset):
        # A sum does not depend on the order of iteration.
        return _combine([sum(map(stable_hash, key)) & _MASK, len(key)], 0x66736574)
    if isinstance(key, UUID):
        return hash(key.int)
    if isinstance(key, Enum):
        return _combine((type(key).__module__, type(key).__qualname__, key.name), 0x656E756D)
    if isinstance(key, (date, time, timedelta)):
        return _hash_time(key)
    return _hash_object(key)


def _hash_number(key: Any) -> int:
    if key != key:  # noqa: PLR0124 - the definition of NaN, for every numeric type
        raise TypeError(
            "NaN cannot be a key, because it does not equal itself; map it to None first"
        )
    if isinstance(key, (bool, int, float, complex, Decimal, Fraction)) or math.isfinite(abs(key)):
        return hash(key)
    return hash(float(key))


def _hash_time(key: date | time | timedelta) -> int:
    if isinstance(key, datetime):
        if key.utcoffset() is None:
            return crc32(key.replace(fold=0).isoformat().encode())
        return crc32(key.astimezone(timezone.utc).isoformat().encode(), 1)
    if isinstance(key, date):
        return crc32(key.isoformat().encode(), 2)
    if isinstance(key, timedelta):
        return _combine((key.days, key.seconds, key.microseconds), 0x646C7461)
    offset = key.utcoffset()
    wall = timedelta(
        hours=key.hour, minutes=key.minute, seconds=key.second, microseconds=key.microsecond
    )
    return _hash_time(wall if offset is None else wall - offset)


def _hash_object(key: Any) -> int:
    kind = type(key)
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
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is not None and parameters.eq and "__hash__" in vars(kind) and parameters.frozen:
        fields = [f for f in dataclasses.fields(key) if (f.compare if f.hash is None else f.hash)]
        return _combine([getattr(key, field.name) for field in fields], 0x64617461)
    return hash(key)


class StablePartitioner(PySparkPartitioner):  # type: ignore[misc]
    """A partitioner whose identity is its number of partitions and the name of its function.

    Equal partitioners send equal keys to equal places, in this process and in every other one, so
    two RDDs that were partitioned by equal partitioners are united without a shuffle.

    Args:
        num_partitions: how many partitions, at least 1.
        func: ``key -> int``, taken modulo *num_partitions*. None: :func:`stable_hash`.
        name: identity of *func*. None: module and qualified name of *func* and, where several
            functions may share that name (lambdas, nested functions, ``__main__``), a digest of its
            code and captured values. Give a name to keep the identity when such a function is
            edited or run by another version of Python.

    Raises:
        InvalidStreamError: *num_partitions* is no positive integer, or *func* is not callable.
    """

    def __init__(
        self,
        num_partitions: int,
        func: Callable[[Any], int] | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(num_partitions, bool) or not isinstance(num_partitions, int):
            raise InvalidStreamError(f"numPartitions must be an integer, got {num_partitions!r}")
        if num_partitions < 1:
            raise InvalidStreamError(f"numPartitions must be at least 1, got {num_partitions}")
        if func is not None and not callable(func):
            raise InvalidStreamError(f"partitionFunc must be callable, got {func!r}")
        super().__init__(num_partitions, stable_hash if func is None else func)
        self.name = name or (STABLE_HASH_NAME if func is None else _identity(func))

    @property
    def jvm_id(self) -> int:
        """Identity as the JVM compares it, a positive signed 64-bit integer."""
        digest = hashlib.blake2b(self.name.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def __call__(self, key: Any) -> int:
        place: int = self.partitionFunc(key) % self.numPartitions
        return place

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, StablePartitioner)
            and self.numPartitions == other.numPartitions
            and self.name == other.name
        )

    def __hash__(self) -> int:
        return hash((self.numPartitions, self.name))

    def __repr__(self) -> str:
        return f"StablePartitioner({self.numPartitions}, {self.name})"


def _identity(func: Callable[[Any], int]) -> str:
    module = getattr(func, "__module__", None) or type(func).__module__
    qualname = getattr(func, "__qualname__", None)
    if qualname is not None and "<" not in qualname and module != "__main__":
        return f"{module}.{qualname}"
    digest = hashlib.blake2b(digest_size=8)
    _digest_value(digest, func)
    return f"{describe(func).rsplit(':', 1)[0]}#{digest.hexdigest()}"


def _digest_value(digest: Any, value: Any) -> None:
    """Feed *value* to *digest*: code by its instructions, everything else by its repr.

    A repr that contains an address makes identities differ that need not: the price is a shuffle.
    """
    code = getattr(value, "__code__", value if isinstance(value, CodeType) else None)
    if not isinstance(code, CodeType):
        digest.update(repr(value).encode())
        return
    digest.update(code.co_code + repr(code.co_names).encode())
    for constant in code.co_consts:
        _digest_value(digest, constant)
    for default in getattr(value, "__defaults__", None) or ():
        _digest_value(digest, default)
    for cell in getattr(value, "__closure__", None) or ():
        _digest_value(digest, cell.cell_contents)
