"""Names of the fields of results.

>>> from dstreams.structured.api.aggregates import Average, Count, CountDistinct, Sum
>>> list(map(name_of_aggregate, (Count(), Sum("price"), CountDistinct("item"), Sum(len))))
['count', 'sum_price', 'count_distinct_item', 'sum_len']
>>> name_of_key("user"), name_of_key(len), name_of_key(lambda record: record[0])
('user', 'len', 'key')
>>> each_once(["key", "key", "count"])
('key', 'key_2', 'count')
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dstreams.structured.window_function import SessionWindow, TimeWindow

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OF_SPARK = {"Average": "avg", "StdDev": "stddev"}


def name_of_key(key: Any) -> str:
    """Return the name of a key: without one ``key``, as in typed datasets of Spark."""
    if isinstance(key, TimeWindow):
        return "window"
    if isinstance(key, SessionWindow):
        return "session_window"
    return _name_of(key) or "key"


def name_of_aggregate(aggregate: Any) -> str:
    """Return the name of Spark's function, and behind it that of the value."""
    kind = type(aggregate).__name__
    function = _OF_SPARK.get(kind) or _WORD.sub("_", kind).lower()
    value = _name_of(getattr(aggregate, "of", None))
    return f"{function}_{value}" if value else function


def _name_of(spec: Any) -> str | None:
    """Return the name of a selector, None for a lambda or an object without a name."""
    name = spec if isinstance(spec, str) else getattr(spec, "__name__", None)
    return name if name and name != "<lambda>" else None


def each_once(names: Sequence[str]) -> tuple[str, ...]:
    """Return names that differ, with a number behind those that were there before."""
    found: list[str] = []
    for name in names:
        one, number = name, 1
        while one in found:
            number += 1
            one = f"{name}_{number}"
        found.append(one)
    return tuple(found)
