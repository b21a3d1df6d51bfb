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

**Ranges.** A prefix is a text, bytes, or a tuple, and finds the keys that begin with it. A range
has two bounds of one kind whose encodings sort like the keys.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from numbers import Complex, Integral, Number, Rational, Real
from types import WrapperDescriptorType
from typing import Any
from uuid import UUID

from checkpoint.state_store.classes import Classes, compared_fields, fields_of

KEYS_NAME = "keys-1"
"""The name of this encoding on disk. A changed encoding needs another name."""

MAX_INLINE_BYTES = 480
MAX_KEY_BYTES = 64 << 10
KEPT_BYTES = 464
DIGEST_BYTES = 32

INT_BIAS = 1 << 63
_INT = struct.Struct(">cQ")
_pack_int = _INT.pack
_FLOAT = struct.Struct(">d")
_SIGNED = struct.Struct(">Q")
_U32 = struct.Struct(">I")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_MAX_EXPONENT = MAX_KEY_BYTES * 2
_UTC = timezone.utc
_EXACT = frozenset({str, int, bytes, type(None), UUID, timedelta, date})
_MICROSECOND = timedelta(microseconds=1)


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
    if set(map(type, keys)) == {str}:
        try:
            # One call for all. A key that contains a line end makes one part too many.
            raws = ("s" + "\ns".join(keys)).encode().split(b"\n")
        except UnicodeEncodeError:
            raws = []
        if len(raws) == len(keys) and max(map(len, raws)) <= MAX_INLINE_BYTES:
            return raws, True
    raws = list(map(encode_key, keys))
    return raws, are_plain(keys, raws, classes)


def are_plain(keys: list[Any], raws: list[bytes], classes: Classes | None = None) -> bool:
    """Return whether all keys are short and decode to themselves."""
    are_exact = set(map(type, keys)) <= {str, int} or all(comes_back(key, classes) for key in keys)
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


# The first and the last encoding of a kind, by the tag of a bound.
_KINDS = {tag: (bytes((tag,)), bytes((tag + 1,))) for tag in b"sbtdwmu"}
_KINDS |= dict.fromkeys(b"hij", (b"h", b"k"))


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
