"""Keys from bytes: the plainest key that equals the encoded one.

Numbers come back as int if they equal one, otherwise as float, otherwise as ``Fraction``; instances
of subclasses of builtin types as the builtin. Enum members and dataclasses come back as themselves
if the program registers their class (:class:`~checkpoint.state_store.classes.Classes`). No function
named by the bytes is called, so untrusted bytes can at most cause an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from fractions import Fraction
from typing import Any
from uuid import UUID

from checkpoint.errors import CheckpointError
from checkpoint.state_store.classes import LOADED, Classes, StoredClassError
from checkpoint.state_store.keys import INT_BIAS

_FLOAT = struct.Struct(">d")
_WORD = struct.Struct(">Q")
_U32 = struct.Struct(">I")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_INT, _STR = b"is"
_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)
_ZERO = timedelta(0)
_EARLIEST, _LATEST = datetime.min, datetime.max  # noqa: DTZ901 - wall times, as they are


class UndecodableKeyError(CheckpointError, ValueError):
    """Bytes that are not a key, or a key whose class is missing."""


def decode_key(whole: bytes, classes: Classes = LOADED) -> Any:
    """Return the plainest key that has this encoding. Raises UndecodableKeyError."""
    tag = whole[:1]
    if tag == b"s":
        return _text(whole[1:])
    if tag == b"i" and len(whole) == 9:
        return int.from_bytes(whole[1:], "big") - INT_BIAS
    try:
        return _decode_top(tag, whole, classes)
    except UndecodableKeyError:
        raise
    except StoredClassError as error:
        raise UndecodableKeyError(str(error)) from error
    except (ValueError, LookupError, OverflowError, RecursionError, struct.error) as error:
        raise UndecodableKeyError(f"no key has the encoding {whole[:80]!r}: {error}") from error


def decode_keys(wholes: list[bytes], classes: Classes = LOADED) -> list[Any]:
    """Return :func:`decode_key` of each; fast if all are text."""
    if {whole[:1] for whole in wholes} == {b"s"}:
        try:
            return [whole[1:].decode() for whole in wholes]
        except UnicodeDecodeError:
            pass
    return [decode_key(whole, classes) for whole in wholes]


def _decode_top(tag: bytes, whole: bytes, classes: Classes) -> Any:
    if tag == b"b":
        return whole[1:]
    if tag == b"t":
        flat = _flat_tuple(whole)
        return tuple(_Reader(whole, classes).until_end(1)) if flat is None else flat
    reader = _Reader(whole, classes)
    if tag == b"x":
        return frozenset(reader.until_end(1))
    key = reader.element()
    if reader.at != len(whole):
        raise ValueError(f"it continues after {reader.at} bytes")
    return key


def _flat_tuple(whole: bytes) -> tuple[Any, ...] | None:
    """Decode a tuple of texts and ints; None if it contains anything else."""
    items: list[Any] = []
    at, end = 1, len(whole)
    while at < end:
        tag = whole[at]
        if tag == _INT:
            stop = at + 9
            if stop > end:
                return None
            items.append(int.from_bytes(whole[at + 1 : stop], "big") - INT_BIAS)
            at = stop
        elif tag == _STR:
            stop = whole.find(0, at)
            if stop < 0 or whole[stop + 1 : stop + 2] == b"\xff":
                return None
            items.append(_text(whole[at + 1 : stop]))
            at = stop + 1
        else:
            return None
    return tuple(items)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        try:
            return raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise UndecodableKeyError(f"no text has the encoding {raw[:80]!r}") from error


class _Reader:
    """Reads the elements of an encoding in order."""

    def __init__(self, raw: bytes, classes: Classes) -> None:
        self.at = 0
        self._raw = raw
        self._classes = classes

    def element(self) -> Any:
        tag = self.take(1)
        decode = _DECODERS.get(tag)
        if decode is None:
            raise ValueError(f"tag {tag!r} at byte {self.at - 1}")
        return decode(self)

    def take(self, count: int) -> bytes:
        taken = self._raw[self.at : self.at + count]
        if len(taken) != count:
            raise ValueError(f"it ends after {len(self._raw)} bytes")
        self.at += count
        return taken

    def until_end(self, start: int) -> Iterator[Any]:
        self.at = start
        while self.at < len(self._raw):
            yield self.element()

    def until_zero(self) -> Iterator[Any]:
        while self._raw[self.at]:
            yield self.element()
        self.at += 1

    def escaped(self) -> bytes:
        start = self.at
        while True:
            self.at = self._raw.index(0, self.at) + 1
            if self._raw[self.at : self.at + 1] != b"\xff":
                return self._raw[start : self.at - 1].replace(b"\0\xff", b"\0")

    def text(self) -> str:
        return _text(self.escaped())

    def number(self) -> Any:
        number = self.element()
        if not isinstance(number, (int, float, Fraction)):
            raise ValueError(f"{number!r} instead of a number")
        return number

    def int64(self) -> int:
        return int.from_bytes(self.take(8), "big") - INT_BIAS

    def positive(self) -> int:
        (length,) = _U32.unpack(self.take(4))
        return int.from_bytes(self.take(length), "big")

    def negative(self) -> int:
        (flipped,) = _U32.unpack(self.take(4))
        return -int.from_bytes(bytes(255 - b for b in self.take(0xFFFFFFFF - flipped)), "big")

    def float(self) -> float:
        (bits,) = _WORD.unpack(self.take(8))
        raw = _WORD.pack(bits ^ _SIGN if bits & _SIGN else bits ^ _ALL)
        (number,) = _FLOAT.unpack(raw)
        return float(number)

    def fraction(self) -> Fraction:
        numerator, denominator = self.element(), self.element()
        if not isinstance(numerator, int) or not isinstance(denominator, int) or denominator < 2:
            raise ValueError(f"{numerator!r} and {denominator!r} instead of a fraction")
        return Fraction(numerator, denominator)

    def span(self) -> timedelta:
        return timedelta(microseconds=int.from_bytes(self.take(9), "big") - (1 << 71))

    def moment(self) -> datetime:
        return _EARLIEST + (self.span() - _DAY)

    def zoned_moment(self) -> datetime:
        wall, offset = _within(self.span(), _DAY, _DAY + (_LATEST - _EARLIEST))
        return (_EARLIEST + (wall - _DAY)).replace(tzinfo=timezone(offset))

    def time_of_day(self) -> time:
        return (_EARLIEST + self.span()).time()

    def zoned_time(self) -> time:
        wall, offset = _within(self.span(), _ZERO, _DAY - timedelta.resolution)
        return (_EARLIEST + wall).time().replace(tzinfo=timezone(offset))

    def class_name(self) -> tuple[str, str]:
        module, name = self.element(), self.element()
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError(f"{module!r} and {name!r} instead of a class")
        return module, name

    def member(self) -> Any:
        module, name = self.class_name()
        return self._classes.key_member(module, name, self.element())

    def instance(self) -> Any:
        module, name = self.class_name()
        return self._classes.key_instance(module, name, list(self.until_zero()))


def _within(moment: timedelta, first: timedelta, last: timedelta) -> tuple[timedelta, timedelta]:
    """Return wall time and offset of *moment*, in UTC if its wall time fits."""
    offset = _ZERO
    if moment < first:
        offset = -((moment - first) // _MINUTE) * _MINUTE
    elif moment > last:
        offset = ((last - moment) // _MINUTE) * _MINUTE
    return moment + offset, offset


_DECODERS: dict[bytes, Callable[[_Reader], Any]] = {
    b"n": lambda reader: None,
    b"i": _Reader.int64,
    b"j": _Reader.positive,
    b"h": _Reader.negative,
    b"f": _Reader.float,
    b"q": _Reader.fraction,
    b"c": lambda reader: complex(reader.number(), reader.number()),
    b"s": _Reader.text,
    b"b": _Reader.escaped,
    b"t": lambda reader: tuple(reader.until_zero()),
    b"x": lambda reader: frozenset(reader.until_zero()),
    b"d": lambda reader: date.fromordinal(_U32.unpack(reader.take(4))[0]),
    b"w": _Reader.moment,
    b"z": _Reader.zoned_moment,
    b"k": _Reader.time_of_day,
    b"l": _Reader.zoned_time,
    b"m": _Reader.span,
    b"u": lambda reader: UUID(bytes=reader.take(16)),
    b"e": _Reader.member,
    b"o": _Reader.instance,
}
