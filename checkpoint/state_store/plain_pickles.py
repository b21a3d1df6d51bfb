"""Pickles of plain data: they need no class but those of a short list, and no other is read.

C writes and reads; what is not plain is found by the few bytes by which a pickle can name a class.
Only where one of them is there, by chance or not, is every name looked up in the list.
"""

from __future__ import annotations

import copyreg
import pickle
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from types import FunctionType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

PROTOCOL = 5  # part of the format, whatever Python's default is

# A pickle names a class by STACK_GLOBAL; by GLOBAL or INST, which two lines follow; or by a number
# that the program itself has given to a class by copyreg.add_extension.
STACK_GLOBAL = 0x93
LINE_END = 0x0A
EXTENSIONS: Mapping[int, Any] = vars(copyreg)["_inverted_registry"]


def _fraction(numerator: int, denominator: int) -> Fraction:
    # Fraction itself also takes text, and "1e999999999" takes for ever.
    if type(numerator) is int and type(denominator) is int:
        return Fraction(numerator, denominator)
    raise pickle.UnpicklingError("a fraction is made of two ints")


def _zone(key: str) -> ZoneInfo:
    return ZoneInfo(key)


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


PLAIN: tuple[type, ...] = (
    date,
    datetime,
    time,
    timedelta,
    timezone,
    Decimal,
    complex,
    Counter,
    OrderedDict,
    deque,
)

_REBUILT: Mapping[type, Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    Fraction: lambda value: (_fraction, (value.numerator, value.denominator)),
    UUID: lambda value: (_uuid, (value.bytes,)),
    ZoneInfo: lambda value: (_zone, (_zone_key(value),)),
}

_MAKERS: tuple[Callable[..., Any], ...] = (_fraction, _uuid, _zone)


def _zone_key(value: ZoneInfo) -> str:
    if value.key is None:
        raise TypeError("a ZoneInfo without key cannot be stored; make it by ZoneInfo(name)")
    return value.key


def name_of(kind: Any) -> tuple[str, str]:
    """Return module and name by which a pickle names a class or function."""
    return (kind.__module__, kind.__qualname__)


class _DataPickler(pickle.Pickler):
    """Asked by C about every object that is not None, bool, number, text, bytes or a container."""

    def __init__(self, file: Any, allowed: frozenset[type], asked: set[type]) -> None:
        super().__init__(file, PROTOCOL)
        self._allowed = allowed
        self._asked = asked

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        self._asked.add(kind)
        if kind in self._allowed:
            return NotImplemented
        rebuild = _REBUILT.get(kind)
        if rebuild is not None:
            return rebuild(value)
        if (kind is type and value in self._allowed) or (kind is FunctionType and value in _MAKERS):
            return NotImplemented  # the class itself, on the way to the file
        raise TypeError(
            f"a value that holds a {kind.__module__}.{kind.__qualname__} is not plain data; store "
            "a tuple or dict of its fields, or allow the class by DataValues(allow=[...]), or "
            "take PickleValues(), which trusts whoever can write the checkpoint"
        )


def plain_names(allow: tuple[type, ...] = ()) -> dict[tuple[str, str], Any]:
    """Return what a pickle may name that is plain or allowed, by module and name."""
    return {name_of(kind): kind for kind in (*PLAIN, *_MAKERS, *allow)}


@lru_cache(maxsize=64)
def unpickler(allow: tuple[type, ...]) -> type[pickle.Unpickler]:
    """Return a class of unpicklers that find what is plain or allowed; it has no constructor."""
    allowed = plain_names(allow)

    class DataUnpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found = allowed.get((module, name))
            if found is None:
                raise pickle.UnpicklingError(f"it names {module}.{name}, which is not plain data")
            return found

    return DataUnpickler


class PlainPickler:
    """One pickler for the values of one writer: making one for each takes four times as long.

    Args:
        allow: classes that are taken beside plain data.
    """

    def __init__(self, allow: tuple[type, ...]) -> None:
        self.asked: set[type] = set()
        """Classes that the values had and that a pickle must name."""
        self._allowed = frozenset((*PLAIN, *allow))
        self._written: list[bytes] = []
        self.begin()

    def begin(self) -> None:
        """Forget what was written before; only needed after an error."""
        self._written.clear()
        self._pickler = _DataPickler(_Sink(self._written.append), self._allowed, self.asked)

    def encode(self, value: Any) -> bytes:
        """Return the pickle of one value.

        Raises:
            TypeError: it is not plain.
        """
        written, pickler = self._written, self._pickler
        try:
            pickler.dump(value)
        except BaseException:
            self.begin()
            raise
        pickler.clear_memo()
        # Large strings are written on their own.
        whole = written.pop() if len(written) == 1 else b"".join(written)
        written.clear()
        return whole


class _Sink:
    __slots__ = ("write",)

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write
