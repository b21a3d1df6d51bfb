"""Names of functions that are equal in every process if and only if the functions are equal.

Module and name identify a function that can be imported. Lambdas, nested functions, methods and
functions of ``__main__`` may share a name, so their names contain a digest of code, captured values
and named globals, which changes if the function is edited or run by another version of Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from dstreams.common.callables import captured, describe, named_globals

_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})
_PartsOf = Callable[[Any], tuple[bytes, Iterable[Any]]]


def identity_of(func: Callable[..., Any]) -> str:
    """Return the unique name of *func*."""
    if _is_known_by_name(func):
        return f"{func.__module__}.{func.__qualname__}"
    return f"{describe(func).rsplit(':', 1)[0]}#{_fingerprint(func, {}, _parts).hex()}"


def digest_of(func: FunctionType) -> str:
    """Return a digest of a function's code and of the plain values that it uses."""
    return _fingerprint(_parts_of_function(func), {}, _plain_parts).hex()


def _is_known_by_name(func: Any) -> bool:
    """Return whether module and name identify *func*."""
    module, qualname = getattr(func, "__module__", None), getattr(func, "__qualname__", "<")
    owner = getattr(func, "__self__", None)  # the module, for a function written in C
    return (
        module not in (None, "__main__")
        and "<" not in qualname
        and (owner is None or isinstance(owner, ModuleType))
        and not getattr(func, "__closure__", None)
    )


def _fingerprint(value: Any, known: dict[int, tuple[Any, bytes]], parts_of: _PartsOf) -> bytes:
    """Return a digest of *value* that is the same in every process.

    It covers the instructions, captured values and named globals of code. For other values it
    covers the repr or, if that contains an address, the attributes. *known* has the digests so far
    by address, because a function may capture itself.
    """
    if id(value) in known:
        return known[id(value)][1]
    known[id(value)] = value, b""
    name, parts = parts_of(value)
    prints = [_fingerprint(part, known, parts_of) for part in parts]
    if isinstance(value, (set, frozenset, dict)):
        prints.sort()
    digest = hashlib.blake2b(b"%d %s" % (len(name), name), digest_size=8)
    digest.update(b"".join(prints))
    known[id(value)] = value, digest.digest()
    return digest.digest()


def _parts(value: Any) -> tuple[bytes, Iterable[Any]]:  # noqa: PLR0911 - one for each kind
    """Return the bytes of *value* itself, and its parts."""
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


def _plain_parts(value: Any) -> tuple[bytes, Iterable[Any]]:
    """Return the parts of code and plain values, and ignore all other values."""
    is_plain = type(value) in {*_PLAIN, tuple, frozenset, CodeType}
    return _parts(value) if is_plain else (b"", ())


def _parts_of_function(func: FunctionType) -> tuple[Any, ...]:
    return func.__code__, *captured(func), *named_globals(func)


def _parts_of_object(value: Any) -> tuple[bytes, Iterable[Any]]:
    kind = type(value)
    if kind.__repr__ is vars(object)["__repr__"]:
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:  # cannot be pickled, or the user's method fails
            reduced = None
        if isinstance(reduced, tuple):
            return b"object", (vars(kind).get("__call__"), *reduced[:3])
    return repr(value).encode("utf-8", "surrogatepass"), ()
