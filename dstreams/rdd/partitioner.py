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
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import lru_cache, partial
from numbers import Number
from types import CodeType, FunctionType, ModuleType, WrapperDescriptorType
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
_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})


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
    # Low bits come from low bits alone: fold, or round numbers in tuples share few partitions.
    return mixed ^ mixed >> 32


def _hash_other(key: Any) -> int:  # noqa: PLR0911 - one return for each kind of key
    if key is None:
        return 0x6E6F6E65
    if isinstance(key, Number):  # before Enum: an IntEnum equals its number
        return _hash_number(key)
    if isinstance(key, (str, bytes, tuple, frozenset)):
        return _hash_object(key) if _says_what_is_equal(type(key)) else _hash_builtin(key)
    if isinstance(key, UUID):
        return hash(key.int)
    if isinstance(key, (date, time, timedelta)):
        return _hash_time(key)
    if isinstance(key, Enum):
        # Versions of Python differ in the names of combined flags.
        member = key.value if isinstance(key, Flag) else key.name
        return _combine((type(key).__module__, type(key).__qualname__, member), 0x656E756D)
    return _hash_object(key)


def _says_what_is_equal(kind: type) -> bool:
    """Whether a subclass of a builtin type has its own ``__hash__``, or none."""
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
    key = key.replace(fold=0)  # which == does not look at
    offset = key.utcoffset()
    if offset is None:
        return crc32(key.replace(tzinfo=None).isoformat().encode())
    # Not by a conversion to UTC: it fails for the first and the last hours of all.
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
    """Return the fields that a dataclass is hashed by, None if it has a hash written by hand."""
    owner = next(base for base in kind.__mro__ if "__hash__" in vars(base))
    if "__dataclass_params__" not in vars(owner):
        return None
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(owner)
    names = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
    code = getattr(owner.__hash__, "__code__", None)
    generated = isinstance(code, CodeType) and set(code.co_names) == {"hash", *names}
    return names if generated else None


class StablePartitioner(PySparkPartitioner):  # type: ignore[misc]
    """A partitioner whose identity is its number of partitions and the name of its function.

    Equal partitioners send equal keys to equal places, in this process and in every other one, so
    two RDDs that were partitioned by equal partitioners are united without a shuffle.

    Args:
        num_partitions: how many partitions, at least 1.
        func: ``key -> int``, taken modulo *num_partitions*. None: :func:`stable_hash`.
        name: identity of *func*. None: module and qualified name of *func* and, where several
            functions may share that name (lambdas, nested functions, methods, ``__main__``), a
            digest of its code, the values it captured and the globals it names. Give a name to
            keep the identity when such a function is edited or run by another version of Python.

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
        self.name = name or _identity(self.partitionFunc)

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
    if func is stable_hash:
        return STABLE_HASH_NAME
    if _is_known_by_name(func):
        return f"{func.__module__}.{func.__qualname__}"
    return f"{describe(func).rsplit(':', 1)[0]}#{_fingerprint(func, {}).hex()}"


def _is_known_by_name(func: Any) -> bool:
    """Whether no other function has this module and name."""
    module, qualname = getattr(func, "__module__", None), getattr(func, "__qualname__", "<")
    owner = getattr(func, "__self__", None)  # the module, for a function written in C
    return (
        module not in (None, "__main__")
        and "<" not in qualname
        and (owner is None or isinstance(owner, ModuleType))
        and not getattr(func, "__closure__", None)
    )


def _fingerprint(value: Any, known: dict[int, tuple[Any, bytes]]) -> bytes:
    """Return a digest that equal functions share in every process, and different ones do not.

    Code counts by its instructions, what it captured and the globals it names; other values by
    their repr or, where that would be their address, by their attributes. What has nothing but an
    address makes identities differ that need not: the price is a shuffle.

    Args:
        value: a function, or a part of one.
        known: digests so far, by address; a function may capture itself.
    """
    if id(value) in known:
        return known[id(value)][1]
    known[id(value)] = value, b""
    name, parts = _parts(value)
    prints = [_fingerprint(part, known) for part in parts]
    if isinstance(value, (set, frozenset, dict)):
        prints.sort()
    digest = hashlib.blake2b(b"%d %s" % (len(name), name), digest_size=8)
    digest.update(b"".join(prints))
    known[id(value)] = value, digest.digest()
    return digest.digest()


def _parts(value: Any) -> tuple[bytes, Iterable[Any]]:  # noqa: PLR0911 - one for each kind
    """Return what *value* is by itself, and what else counts."""
    kind = type(value)
    if kind in (tuple, list) and _PLAIN.issuperset(map(type, value)):
        return repr(value).encode("utf-8", "surrogatepass"), ()
    if kind in (tuple, list, set, frozenset, dict):
        return kind.__name__.encode(), value.items() if kind is dict else value
    if isinstance(value, CodeType):
        return value.co_code + repr(value.co_names).encode(), value.co_consts
    if isinstance(value, ModuleType):
        return value.__name__.encode(), ()
    if isinstance(value, type) or (callable(value) and _is_known_by_name(value)):
        return f"{value.__module__}.{value.__qualname__}".encode(), ()
    if isinstance(value, FunctionType):
        return b"function", _parts_of_function(value)
    if isinstance(value, partial):
        return b"partial", (value.func, value.args, value.keywords)
    if getattr(value, "__self__", None) is not None:
        return b"method", (getattr(value, "__func__", value.__name__), value.__self__)
    if hasattr(value, "__wrapped__"):
        return b"wrapper", (value.__wrapped__,)
    return _parts_of_object(value)


def _parts_of_function(func: FunctionType) -> Iterator[Any]:
    yield from (func.__code__, func.__defaults__, func.__kwdefaults__)
    for cell in func.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a variable that is not assigned yet
            yield None
    for name in _names(func.__code__):
        if name in func.__globals__:
            yield name, func.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _parts_of_object(value: Any) -> tuple[bytes, Iterable[Any]]:
    kind = type(value)
    if kind.__repr__ is vars(object)["__repr__"]:
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:  # of the user's, or it cannot be pickled
            reduced = None
        if isinstance(reduced, tuple):
            return b"object", (vars(kind).get("__call__"), *reduced[:3])
    return repr(value).encode("utf-8", "surrogatepass"), ()
