"""Keys as bytes: keys that compare equal in Python have one encoding, all others different ones.

1, 1.0, True, ``Decimal(1)`` and ``Fraction(1)`` are one key, as in a dict. Keys that cannot be
looked up reliably are rejected: NaN, which does not equal itself, and objects that are compared by
address. The kinds of key are those of the stable hash of ``dstreams``, except objects of a class
with a hand-written ``__hash__``: only that class knows what they equal.

===== ============================================================================================
tag   followed by
===== ============================================================================================
n     nothing: None
h i j int below, in and above 64 bits; every number that equals an int
f q   number that equals a float and no int, eight bytes; other fractions: two ints
c     complex number: two numbers
s b   text in UTF-8; bytes. Nested: zeros escaped as ``00 ff``, and a zero at the end
t x   tuple: its elements; frozenset: its elements, sorted. Nested: and a zero
d w z date; datetime without zone; datetime with zone, in UTC
k l m time without zone; time with zone; timedelta
u     UUID
e o   enum member: module, class, name (of a flag: value); instance of a dataclass or attrs class:
      module, class, fields, zero
===== ============================================================================================

Encodings sort like the keys for ints, text (by code point), bytes, dates, datetimes without zone
and timedeltas, and for tuples with one of these kinds in each place. Floats do not sort among ints.

An encoding of more than 480 bytes is cut after 464 bytes and followed by a digest of the whole, so
its length distinguishes it; the record contains the whole. Keys that agree in 464 bytes have no
meaningful order.

**Decoding** returns the plainest key that equals the encoded one: numbers as int if they equal one,
otherwise as float, otherwise as ``Fraction``; instances of subclasses of builtin types as the
builtin. Enum members and dataclasses come back as themselves if the program registers their class
(:class:`~checkpoint.state_store.classes.Classes`). No function named by the bytes is called, so
untrusted bytes can at most cause an error.

**Ranges.** A prefix is a text, bytes, or a tuple, and finds the keys that begin with it. A range
has two bounds of one kind whose encodings sort like the keys.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from itertools import chain, repeat
from numbers import Complex, Integral, Number, Rational, Real
from types import WrapperDescriptorType
from typing import Any
from uuid import UUID

from checkpoint.errors import CheckpointError
from checkpoint.state_store.classes import (
    LOADED,
    Classes,
    StoredClassError,
    compared_fields,
    fields_of,
)

KEYS_NAME = "keys-1"
"""The name of this encoding on disk. A changed encoding needs another name."""

MAX_INLINE_BYTES = 480
MAX_KEY_BYTES = 64 << 10
KEPT_BYTES = 464
DIGEST_BYTES = 32

INT_BIAS = 1 << 63

_pack_int = struct.Struct(">cQ").pack
_FLOAT = struct.Struct(">d")
_SIGNED = struct.Struct(">Q")
_U32 = struct.Struct(">I")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_MAX_EXPONENT = MAX_KEY_BYTES * 2
_UTC = timezone.utc
_EXACT = frozenset({str, int, bytes, type(None), UUID, timedelta, date})
_MICROSECOND = timedelta(microseconds=1)
# The first and the last encoding of a kind, by the tag of a bound.
_KINDS = {tag: (bytes((tag,)), bytes((tag + 1,))) for tag in b"sbtdwmu"}
_KINDS |= dict.fromkeys(b"hij", (b"h", b"k"))
_INT_TAG, _STR_TAG = b"is"
_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)
_ZERO = timedelta(0)
_EARLIEST, _LATEST = datetime.min, datetime.max  # noqa: DTZ901 - wall times, as they are


def encode_key(key: Any) -> bytes:
    """Return the encoding of *key*: 1 to 480 bytes, or 496 with a digest.

    Raises TypeError or ValueError.
    """
    if type(key) is str and len(key) < 100:  # then at most 400 bytes
        try:
            return b"s" + key.encode()
        except UnicodeEncodeError:
            return b"s" + key.encode("utf-8", "surrogatepass")
    raw = encode_whole(key)
    return raw if len(raw) <= MAX_INLINE_BYTES else cut_key(raw)


def encode_keys(keys: list[Any], classes: Classes | None = None) -> tuple[list[bytes], bool]:
    """Return the encoding of each key, and whether all are short and decode to themselves."""
    kinds = set(map(type, keys))
    raws = None
    if kinds == {str}:
        raws = _encode_texts(keys, "")
    elif kinds == {tuple} and len(set(map(len, keys))) == 1 and keys[0]:
        raws = _encode_tuples(keys)
    if raws and max(map(len, raws)) <= MAX_INLINE_BYTES:
        return raws, True
    raws = list(map(encode_key, keys))
    return raws, are_plain(keys, raws, classes)


def _encode_texts(texts: Sequence[str], end: str) -> list[bytes] | None:
    """Return the encodings of texts, each with an *end*; None if that takes one call for each."""
    try:
        # One call for all. A text that contains a line end makes one line too many.
        joined = ("s" + f"{end}\ns".join(texts) + end).encode()
    except UnicodeEncodeError:
        return None
    raws = joined.split(b"\n")
    are_whole = not end or joined.count(end.encode()) == len(texts)
    return raws if are_whole and len(raws) == len(texts) else None


def _encode_tuples(keys: list[Any]) -> list[bytes] | None:
    """Return the encodings of tuples of one length; None for other parts than texts and ints."""
    columns: list[Iterable[bytes]] = []
    for parts in zip(*keys, strict=True):
        kinds = set(map(type, parts))
        if kinds == {str}:
            is_one = parts[0] == parts[-1] and len(set(parts)) == 1
            encoded = _encode_texts(parts[:1] if is_one else parts, "\0")
            if encoded is None:
                return None
            columns.append(repeat(encoded[0], len(keys)) if is_one else encoded)
        elif kinds == {int} and min(parts) >= -INT_BIAS and max(parts) < INT_BIAS:
            columns.append([_pack_int(b"i", part + INT_BIAS) for part in parts])
        else:
            return None
    return list(map(b"".join, zip(repeat(b"t", len(keys)), *columns, strict=True)))


def are_plain(keys: list[Any], raws: list[bytes], classes: Classes | None = None) -> bool:
    """Return whether all keys are short and decode to themselves."""
    kinds = set(map(type, keys))
    if kinds == {tuple}:
        kinds = set(map(type, chain.from_iterable(keys)))
    are_exact = kinds <= _EXACT or all(comes_back(key, classes) for key in keys)
    return are_exact and max(map(len, raws), default=0) <= MAX_INLINE_BYTES


def encode_whole(key: Any) -> bytes:
    """Return the complete encoding of *key*."""
    kind = type(key)
    if kind is str:
        try:
            text: bytes = key.encode()
        except UnicodeEncodeError:
            text = key.encode("utf-8", "surrogatepass")
        return b"s" + text
    if kind is int and -INT_BIAS <= key < INT_BIAS:
        return _pack_int(b"i", key + INT_BIAS)
    if kind is tuple:
        return b"t" + b"".join(map(encode_element, key))
    return _encode_other(key)


def cut_key(whole: bytes) -> bytes:
    """Return the shortened form of an encoding of more than 480 bytes."""
    if len(whole) > MAX_KEY_BYTES:
        raise ValueError(
            f"a key must be at most {MAX_KEY_BYTES} bytes when encoded, got {len(whole)} bytes; "
            "use a digest as key, and store the key in the value"
        )
    return whole[:KEPT_BYTES] + hashlib.blake2b(whole, digest_size=DIGEST_BYTES).digest()


def encode_element(item: Any) -> bytes:
    """Return an encoding of *item* with a recognizable end."""
    kind = type(item)
    if kind is str:
        try:
            text: bytes = item.encode()
        except UnicodeEncodeError:
            text = item.encode("utf-8", "surrogatepass")
        return b"s" + (text.replace(b"\0", b"\0\xff") if b"\0" in text else text) + b"\0"
    if kind is int and -INT_BIAS <= item < INT_BIAS:
        return _pack_int(b"i", item + INT_BIAS)
    raw = encode_whole(item)
    if raw[0] in b"sb":
        return raw[:1] + raw[1:].replace(b"\0", b"\0\xff") + b"\0"
    return raw + b"\0" if raw[0] in b"tx" else raw


def _encode_other(key: Any) -> bytes:  # noqa: PLR0911 - one return for each kind of key
    if key is None:
        return b"n"
    if isinstance(key, Number):  # before Enum: an IntEnum equals its number
        return _encode_number(key)
    if isinstance(key, (str, bytes, tuple, frozenset)):
        if not isinstance(type(key).__hash__, WrapperDescriptorType):
            raise _refusal(key)
        return _encode_builtin(key)
    if isinstance(key, UUID):
        return b"u" + key.bytes
    if isinstance(key, (date, time, timedelta)):
        return _encode_time(key)
    if isinstance(key, Enum):
        member = key.value if isinstance(key, Flag) else key.name
        return b"e" + _encode_class(type(key)) + encode_element(member)
    kind: Any = type(key)
    names = compared_fields(kind)
    if names is None:
        raise _refusal(key)
    fields = [encode_element(getattr(key, name)) for name in names]
    return b"o" + _encode_class(type(key)) + b"".join(fields) + b"\0"


def _encode_builtin(key: Any) -> bytes:
    if isinstance(key, str):
        return b"s" + str.encode(key, "utf-8", "surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, tuple):
        return b"t" + b"".join(map(encode_element, key))
    return b"x" + b"".join(sorted(map(encode_element, key)))


def _encode_class(kind: type) -> bytes:
    return encode_element(kind.__module__) + encode_element(kind.__qualname__)


def _encode_number(key: Any) -> bytes:
    exact = _exact_number(key)
    if isinstance(exact, complex):
        return b"c" + _encode_number(exact.real) + _encode_number(exact.imag)
    if isinstance(exact, float):
        (bits,) = _SIGNED.unpack(_FLOAT.pack(exact))
        return b"f" + _SIGNED.pack(bits ^ _ALL if bits & _SIGN else bits | _SIGN)
    if isinstance(exact, Fraction):
        # By bytes, not by digits: Python limits the length of int(text).
        return b"q" + _encode_big(exact.numerator) + _encode_big(exact.denominator)
    if -INT_BIAS <= exact < INT_BIAS:
        return _pack_int(b"i", exact + INT_BIAS)
    return _encode_big(exact)


def _encode_big(number: int) -> bytes:
    magnitude = abs(number).to_bytes((number.bit_length() + 7) // 8 or 1, "big")
    if number >= 0:
        return b"j" + _U32.pack(len(magnitude)) + magnitude
    flipped = bytes(255 - byte for byte in magnitude)
    return b"h" + _U32.pack(0xFFFFFFFF - len(magnitude)) + flipped


def _exact_number(key: Any) -> int | float | Fraction | complex:
    """Return the int that *key* equals, else the float, else the fraction, else the complex."""
    exact: int | float | Fraction | complex
    if isinstance(key, Decimal):
        exact = _exact_decimal(key)
    elif isinstance(key, Integral):
        exact = int(key)
    elif isinstance(key, Rational):
        exact = Fraction(int(key.numerator), int(key.denominator))
    elif isinstance(key, Real):
        exact = float(key)
    elif isinstance(key, Complex):
        exact = complex(key)
        exact = exact if exact.imag else exact.real
    else:
        raise _refusal(key)
    _require_equal(key, exact)
    if isinstance(exact, float) and exact.is_integer():
        return int(exact)
    if isinstance(exact, Fraction):
        return _simplest(exact)
    return exact


def _exact_decimal(key: Decimal) -> int | float | Fraction:
    if key.is_nan():
        return math.nan
    if key.is_infinite():
        return math.copysign(math.inf, key)
    if key and not -_MAX_EXPONENT < key.adjusted() < _MAX_EXPONENT:
        raise ValueError(
            f"a key of {key.adjusted()} decimal places is longer than {MAX_KEY_BYTES} bytes when "
            "encoded; use its text as key"
        )
    return Fraction(key)


def _simplest(exact: Fraction) -> int | float | Fraction:
    if exact.denominator == 1:
        return exact.numerator
    try:
        rounded = float(exact)
    except OverflowError:
        return exact
    return rounded if rounded == exact else exact


def _require_equal(key: Any, exact: Any) -> None:
    if exact != exact:  # noqa: PLR0124
        raise TypeError(
            "NaN cannot be a key, because it does not equal itself; map it to None first"
        )
    if not exact == key:
        raise TypeError(
            f"a key of type {type(key).__name__} equals none of int, float, Fraction and complex, "
            "so it has no encoding; convert it to one of these"
        )


def _encode_time(key: date | time | timedelta) -> bytes:
    if getattr(key, "nanosecond", 0):
        raise TypeError(
            f"a key of type {type(key).__name__} with nanoseconds has no encoding; use a number "
            "of nanoseconds, or round it to microseconds"
        )
    if isinstance(key, timedelta):
        return b"m" + _biased(key // _MICROSECOND)
    if not isinstance(key, (datetime, time)):
        return b"d" + _U32.pack(key.toordinal())
    key = key.replace(fold=0)  # == ignores it
    offset = key.utcoffset()
    wall = timedelta(
        days=key.toordinal() if isinstance(key, datetime) else 0,
        hours=key.hour,
        minutes=key.minute,
        seconds=key.second,
        microseconds=key.microsecond,
    )
    tag = (b"w" if offset is None else b"z") if isinstance(key, datetime) else None
    if tag is None:
        tag = b"k" if offset is None else b"l"
    return tag + _biased((wall if offset is None else wall - offset) // _MICROSECOND)


def _biased(microseconds: int) -> bytes:
    # 9 bytes, because a timedelta may have 2**67 microseconds.
    return (microseconds + (1 << 71)).to_bytes(9, "big")


def _refusal(key: Any) -> TypeError:
    kind: Any = type(key)
    if kind.__hash__ is None:
        return TypeError(
            f"a key of type {kind.__name__} is unhashable; use an immutable value, for example "
            "tuple(key) for a list or frozenset(key) for a set"
        )
    name = f"{kind.__module__}.{kind.__qualname__}"
    if vars(object)["__hash__"] is kind.__hash__:
        return TypeError(
            f"a key of type {name} is equal by its address, which differs in every process; "
            "use a value, or make the class a frozen dataclass"
        )
    return TypeError(
        f"a key of type {name} cannot be stored: its class alone knows which keys are equal; use a "
        "tuple of what they are compared by, or make the class a frozen dataclass"
    )


def comes_back(  # noqa: PLR0911 - one for each kind of key
    key: Any, classes: Classes | None = None
) -> bool:
    """Return whether decoding gives *key* itself, not just an equal key."""
    kind: Any = type(key)
    if kind in _EXACT:
        return True
    if kind in (tuple, frozenset):
        return all(comes_back(item, classes) for item in key)
    if kind is float:
        return not key.is_integer()
    if kind in (datetime, time):
        return key.fold == 0 and (key.tzinfo is None or (kind is datetime and key.tzinfo is _UTC))
    if classes is not None and classes.find(kind.__module__, kind.__qualname__) is None:
        return False
    if isinstance(key, Enum):
        return not isinstance(key, (Number, str, bytes, tuple, frozenset, date, time, timedelta))
    names = compared_fields(kind)
    return (
        names is not None
        and len(names) == len(fields_of(kind))
        and all(comes_back(getattr(key, name), classes) for name in names)
    )


@dataclass(frozen=True)
class KeyRange:
    """Encodings from *start* to before *stop*, or to the end if *stop* is None.

    Bounds may be longer than a shortened key. Then :attr:`first` and :attr:`last` include too many
    keys, and :meth:`holds` checks the whole encoding.
    """

    start: bytes = b""
    stop: bytes | None = None

    @property
    def is_exact(self) -> bool:
        """True if no key from *first* to *last* is outside."""
        return max(len(self.start), len(self.stop or b"")) <= KEPT_BYTES

    @property
    def first(self) -> bytes:
        """The start of the scan."""
        return self.start[:KEPT_BYTES]

    @property
    def last(self) -> bytes | None:
        """The end of the scan, exclusive."""
        if self.stop is None or len(self.stop) <= KEPT_BYTES:
            return self.stop
        return after_prefix(self.stop[:KEPT_BYTES])

    def holds(self, whole: bytes) -> bool:
        """Return whether a whole encoding is in the range."""
        return self.start <= whole and (self.stop is None or whole < self.stop)


EVERYTHING = KeyRange()


def prefix_range(prefix: Any) -> KeyRange:
    """Return the range of the keys that begin with *prefix*. Raises TypeError."""
    if isinstance(prefix, (str, bytes, tuple)):
        whole = encode_whole(prefix)
        # A further element begins with a tag below 255; a byte of 255 continues the last text.
        is_tuple = isinstance(prefix, tuple)
        return KeyRange(whole, whole + b"\xff" if is_tuple else after_prefix(whole))
    raise TypeError(
        f"prefix {prefix!r} of type {type(prefix).__name__} must be a str, bytes, or a tuple of "
        "the first elements"
    )


def is_between(key: Any, start: Any, stop: Any) -> bool:
    """Return whether a key is from *start* to before *stop*; None for no bound."""
    try:
        return bool((start is None or key >= start) and (stop is None or key < stop))
    except TypeError:  # a key of another kind
        return False


def key_range(start: Any, stop: Any) -> KeyRange:
    """Return the range of the keys from *start* to before *stop*; None leaves a side open."""
    bounds = [None if bound is None else encode_whole(bound) for bound in (start, stop)]
    kinds = {_KINDS.get(bound[0]) for bound in bounds if bound is not None}
    if not kinds:
        raise TypeError("a range needs a start or a stop; use items() for all keys")
    if len(kinds) > 1 or None in kinds:
        raise TypeError(
            f"range from {start!r} to {stop!r} must be between two ints, texts, bytes, tuples, "
            "dates, datetimes without zone, timedeltas or UUIDs"
        )
    ((first, last),) = (kind for kind in kinds if kind is not None)
    return KeyRange(
        first if bounds[0] is None else bounds[0], last if bounds[1] is None else bounds[1]
    )


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the smallest bytes greater than everything that begins with *prefix*."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None


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
        if tag == _INT_TAG:
            stop = at + 9
            if stop > end:
                return None
            items.append(int.from_bytes(whole[at + 1 : stop], "big") - INT_BIAS)
            at = stop
        elif tag == _STR_TAG:
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
        (bits,) = _SIGNED.unpack(self.take(8))
        raw = _SIGNED.pack(bits ^ _SIGN if bits & _SIGN else bits ^ _ALL)
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
