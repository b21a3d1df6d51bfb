"""Numbers that Arrow converts to a column exactly.

Floats are exact below :data:`WHOLE_UP_TO`. Decimals must be scalable:

Arrow converts a number to the scale of its column by a power of ten from a table. It does not
check that the table has the power, nor always that the product fits: 1e-41 becomes 0, 4 becomes
0.597... in a column of 38 decimal places, and 1e-999999999 crashes the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DIGITS = {32: 9, 64: 18, 128: 38, 256: 76}
"""Digits of the largest number, by the bits of a type; also the largest power in Arrow's table."""
_EXACT = Context(prec=76, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact, InvalidOperation])
WHOLE_UP_TO = {pa.float32(): 2.0**24, pa.float64(): 2.0**53}
"""Bounds below which every integer is exact, by type of floats."""
_types = pa.types


def may_be_rounded(column: pa.Array) -> bool:
    """Return whether a float of a column, or within it, may have been rounded or be too large."""
    kind = column.type
    if _types.is_struct(kind):
        return any(map(may_be_rounded, column.flatten()))
    if _types.is_nested(kind):
        return may_be_rounded(column.flatten())
    most = WHOLE_UP_TO.get(kind)
    return most is not None and bool(pc.any(pc.invert(pc.less(pc.abs(column), most))).as_py())


def null_in(block: pa.RecordBatch, schema: pa.Schema) -> str | None:
    """Return the name of a column with a null that *schema* does not allow, None without one."""
    pairs = zip(block.columns, schema, strict=True)
    return next((f.name for column, f in pairs if column.null_count and not f.nullable), None)


def scalable(value: Any, kind: pa.DataType) -> Any:
    """Return a value that Arrow converts to a decimal type without a wrong result.

    Raises:
        ValueError: it is too large for the type, or would be rounded.
    """
    if not isinstance(value, (Decimal, int)):
        return value
    number = Decimal(value)
    if not number.is_finite():
        return value
    whole = number.adjusted() + 1 if number else 0
    if whole > _DIGITS[kind.bit_width] - kind.scale:
        raise ValueError("it is too large")
    exponent = number.as_tuple().exponent
    if number and -int(exponent) <= _DIGITS[kind.bit_width] + kind.scale:
        return value
    try:
        return number.quantize(Decimal((0, (1,), -kind.scale)), context=_EXACT)
    except ArithmeticError:
        raise ValueError(f"it has more than {kind.scale} decimal places") from None


def may_be_unscalable(text: bytes, schema: pa.Schema) -> bool:
    """Return whether a text of JSON or CSV may have a number that Arrow cannot scale."""
    signs = _signs(schema)
    if signs is None:
        return False
    flat = text.translate(_FLAT)
    if signs.whole in flat or signs.fraction in flat:
        return True
    if b"\\u00" in text and _ESCAPED.search(text) is not None:
        return True
    places = _exponents_in(flat)
    return any(
        signs.exponent.match(text, place)
        and _BEFORE.search(text, max(0, place - _LONG), place) is not None
        for place in places
    )


class _Signs(NamedTuple):
    """Patterns of a number that Arrow may not scale, in text with all digits replaced by 0."""

    whole: bytes
    fraction: bytes
    exponent: re.Pattern[bytes]


_FLAT = bytes.maketrans(b"123456789E.", b"000000000e.")
_ESCAPED = re.compile(rb'"[-+.0-9eE]*\\u00[2-6]')
_LONG = 200
_BEFORE = re.compile(rb"(?:[^0-9A-Za-z_.+-]|\A)[-+]?[0-9.]*\Z")
"""The part of a number before its exponent; does not match within a UUID or a hash."""


@lru_cache(maxsize=64)
def _signs(schema: pa.Schema) -> _Signs | None:
    kinds = [kind for field in schema for kind in _decimals_in(field.type)]
    if not kinds:
        return None
    most_whole = min(_DIGITS[kind.bit_width] - kind.scale for kind in kinds)
    most_places = min(_DIGITS[kind.bit_width] + kind.scale for kind in kinds)
    # Small real numbers are common: exponents down to -19 pass, if the columns have the room.
    free, least = (19, rb"(?:[2-9][0-9]|[1-9][0-9]{2})") if most_places >= 38 else (0, rb"[1-9]")
    exponent = rb"[eE](?:\+?0*[1-9]|-0*" + least + rb")[0-9]*(?![0-9A-Za-z-])"
    return _Signs(
        b"0" * (max(0, most_whole) + 1),
        b"." + b"0" * (max(0, most_places - free) + 1),
        re.compile(exponent),
    )


def _exponents_in(flat: bytes) -> list[int]:
    """Return the positions of ``e`` between digits in text with all digits replaced by 0."""
    if b"e" not in flat:
        return []
    signs = np.frombuffer(flat, np.uint8)
    places = np.flatnonzero(signs[1:-1] == ord("e")) + 1
    before, after = signs[places - 1], signs[places + 1]
    is_one = ((before == ord("0")) | (before == ord("."))) & (
        (after == ord("0")) | (after == ord("+")) | (after == ord("-"))
    )
    return places[is_one].tolist()  # type: ignore[no-any-return]


def _decimals_in(kind: pa.DataType) -> Iterator[pa.DataType]:
    if _types.is_decimal(kind):
        yield kind
    for place in range(kind.num_fields):
        yield from _decimals_in(kind.field(place).type)
