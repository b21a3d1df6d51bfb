"""Order and equality of values as in SQL: None comes first, NaN is one value and the greatest.

>>> nan = float("nan")
>>> sorted([nan, 2.0, None, 1.0], key=sort_key)
[None, 1.0, 2.0, nan]
>>> is_before(2.0, nan), is_before(nan, 2.0)
(True, False)
>>> len({normalized(float("nan")), normalized(float("nan"))})
1

The same holds inside tuples and lists. Blocks follow this order in :mod:`dstreams.arrow.groups`.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from math import inf, isnan
from numbers import Integral, Number, Real
from typing import Any

_NONE = (0,)
_NAN = (1, inf, 1)  # after (1, inf), and not comparable with (1, text)
_NOT_NAN = frozenset((int, str, bool, bytes, date, datetime, timedelta))
_ONE_NAN = float("nan")
_EXACT = frozenset((int, float))
_DECIMALS = Context(prec=38)


def is_before(first: Any, second: Any) -> bool:
    """Return whether a value comes before another one; TypeError if they have no order."""
    kind = type(first)
    if kind is type(second):
        if kind in _NOT_NAN:
            return bool(first < second)
        if kind is float:
            return first < second or (isnan(second) and not isnan(first))
    return bool(sort_key(first) < sort_key(second))


def sort_key(value: Any) -> Any:
    """Return a key by which Python sorts values in this order; user classes keep their own."""
    if value is None:
        return _NONE
    kind: Any = type(value)
    if kind in _NOT_NAN:
        return (1, value)
    if kind.__lt__ is tuple.__lt__:
        return (1, tuple(map(sort_key, value)))
    if kind.__lt__ is list.__lt__:
        return (1, list(map(sort_key, value)))
    return _NAN if _is_nan(value) else (1, value)


def add(total: Any, value: Any) -> Any:
    """Return the sum of *total*, which is None before the first value, and a value.

    NumPy numbers, which may have few bits, are added as Python numbers, decimals to 38 digits.
    """
    if type(value) in _EXACT and type(total) in _EXACT:
        return total + value
    if isinstance(value, Integral):
        value = int(value)
    elif isinstance(value, Real) and hasattr(value, "dtype"):
        value = float(value)
    if total is None:
        return value
    is_decimal = isinstance(total, Decimal) or isinstance(value, Decimal)
    return _DECIMALS.add(total, value) if is_decimal else total + value


def mean(sum_of_values: Any, count: int) -> Any:
    """Return the sum of *count* values divided by their number."""
    if isinstance(sum_of_values, Decimal):
        return _DECIMALS.divide(sum_of_values, Decimal(count))
    return sum_of_values / count


def normalized(value: Any) -> Any:
    """Return the value to look up in a set: one NaN, and 0.0 for -0.0, also inside tuples."""
    kind: Any = type(value)
    if kind in _NOT_NAN:
        return value
    if kind is float:
        return _ONE_NAN if isnan(value) else value or 0.0
    if kind.__eq__ is tuple.__eq__:
        parts = list(map(normalized, value))
        if all(map(_is_same, parts, value)):
            return value
        return _with_items(value, parts)
    return _ONE_NAN if _is_nan(value) else value


def all_normalized(values: set[Any]) -> set[Any]:
    """Return a set of values that other processes normalized; unpickled NaNs are new objects."""
    return values if _NOT_NAN.issuperset(map(type, values)) else set(map(normalized, values))


def _is_nan(value: Any) -> bool:
    if isinstance(value, Decimal):
        return value.is_nan()  # comparing a signaling NaN raises
    return isinstance(value, Number) and bool(value != value)  # noqa: PLR0124


def _is_same(first: Any, second: Any) -> bool:
    return first is second


def _with_items(value: Any, items: list[Any]) -> Any:
    """Return a tuple of the same class, such as a named tuple or a Row, with other items."""
    new = tuple.__new__(type(value), items)
    if hasattr(value, "__dict__"):
        new.__dict__.update(value.__dict__)
    return new
