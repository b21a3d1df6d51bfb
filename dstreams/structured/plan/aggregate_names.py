"""Names of aggregates and keys on disk; a restart compares them to notice a change.

>>> from operator import itemgetter
>>> from dstreams.structured.api.aggregates import Count, First, Sum
>>> [name_of(one) for one in (Count(), Sum(itemgetter("price")), First(ignoreNulls=True))]
['Count()', "Sum(of=operator.itemgetter('price'))", 'First(ignoreNulls=True)']

A function that can be imported, or that is defined at the top level of the program, is identified
by its name, so its code may change. A lambda or nested function is identified by a digest of its
code and of the plain values that it uses. Digests of different versions of Python are not compared.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from operator import attrgetter, itemgetter, methodcaller
from types import FunctionType
from typing import Any

from dstreams.arrow.aggregates.functions import Several, UserAggregator
from dstreams.spark.function_fingerprint import digest_of
from dstreams.spark.selectors import Field
from dstreams.structured.operators.time_windows import WindowOfRecord

_DIGEST = re.compile(r"#(\d+\.\d+)-[0-9a-f]+")


def names_of(aggregate: Any) -> list[str]:
    """Return the names of the functions of an aggregate."""
    functions = aggregate.functions if isinstance(aggregate, Several) else (aggregate,)
    return [name_of(function) for function in functions]


def name_of(aggregate: Any) -> str:
    """Return the name of an aggregate function, with parameters if this package defines it."""
    kind = type(aggregate)
    if kind.__module__ != UserAggregator.__module__ or not is_dataclass(aggregate):
        return _qualified(kind)
    # The state does not depend on how a buffer is finished.
    ignored = ("finish",) if isinstance(aggregate, UserAggregator) else ()
    given = [
        f"{field.name}={value_name(getattr(aggregate, field.name))}"
        for field in fields(aggregate)
        if field.name not in ignored and getattr(aggregate, field.name) != field.default
    ]
    return f"{kind.__name__}({', '.join(given)})"


def are_same(before: str, now: str) -> bool:
    """Return whether two names denote the same aggregate function, as far as can be known."""
    if set(_DIGEST.findall(before)) == set(_DIGEST.findall(now)):
        return before == now
    return _DIGEST.sub("", before) == _DIGEST.sub("", now)


def value_name(value: Any) -> str:
    """Return the name of a parameter of an aggregate, or of a key function."""
    if isinstance(value, Field):
        return repr(value.name)
    if isinstance(value, WindowOfRecord):
        windows = value.windows
        of = value_name(value.time.func)
        return f"window({of}, {windows.size_ms} ms from {windows.start_ms} ms)"
    if isinstance(value, (itemgetter, attrgetter, methodcaller)) or not callable(value):
        return repr(value)
    if isinstance(value, partial):
        given = [value_name(value.func), *map(value_name, value.args)]
        given += [f"{name}={value_name(one)}" for name, one in value.keywords.items()]
        return f"partial({', '.join(given)})"
    name = _qualified(value if hasattr(value, "__qualname__") else type(value))
    if not isinstance(value, FunctionType) or "<" not in value.__qualname__:
        return name
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{name.rpartition('.')[2]}#{python}-{digest_of(value)}"


def _qualified(named: Callable[..., Any]) -> str:
    module = getattr(named, "__module__", None)
    name: str = named.__qualname__
    return name if module in (None, "__main__", "builtins") else f"{module}.{name}"
