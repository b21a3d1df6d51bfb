"""Partition functions of many kinds, importable by any process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

TENS = 10


def by_length(key: Any) -> int:
    return len(key)


def by_index(values: Any) -> Callable[[Any], int]:
    """Return a function that captures *values*."""
    return lambda key: list(values).index(key)


def by_self(first: int) -> Callable[[Any], int]:
    """Return a function that captures itself."""

    def place(key: Any) -> int:
        return first if isinstance(key, int) else place(len(key))

    return place


def by_default(shift: int) -> Callable[[Any], int]:
    def place(key: int, by: int = shift) -> int:
        return key + by

    return place


def by_keyword_default(shift: int) -> Callable[[Any], int]:
    def place(key: int, *, by: int = shift) -> int:
        return key + by

    return place


def named_like_another(values: Any) -> Callable[[Any], int]:
    """Return a function with the name of :func:`by_length` that does something else."""

    @functools.wraps(by_length)
    def place(key: Any) -> int:
        return by_length(key) + len(values)

    return place


class Modulo:
    """Places by a modulus: as an object that can be called, and by its methods."""

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus

    def __call__(self, key: int) -> int:
        return key % self.modulus

    def place(self, key: int) -> int:
        return key % self.modulus

    @classmethod
    def of_class(cls, key: int) -> int:
        return key % len(cls.__name__)


class OtherModulo(Modulo):
    pass


class Slotted:
    __slots__ = ("modulus",)

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus

    def __call__(self, key: int) -> int:
        return key % self.modulus


FUNCTIONS = {"stable": None, "named": by_length, "captured": by_index("abcdefghij")}


def keys_of(name: str) -> list[Any]:
    """Return keys that the function of that name in FUNCTIONS can place."""
    if name == "captured":
        return list("abcdefghij")
    words = [f"{n:x}" * (n % 5 + 1) for n in range(300)]
    return words if name == "named" else [*words, *range(300), None, ("a", 1.5), b"b"]


MAKERS: dict[str, Callable[[int], Callable[[Any], int]]] = {
    "lambda": lambda n: lambda key: key % n,
    "captured list": lambda n: by_index([n, 1.5, None]),
    "captured set": lambda n: by_index({"a", "b", "c", str(n)}),
    "captured dict": lambda n: by_index({"a": [n], "b": (1, {"c"})}),
    "captured function": lambda n: by_index(by_index([n])),
    "captured object": lambda n: by_index(Modulo(n)),
    "captures itself": by_self,
    "default": by_default,
    "default of a keyword": by_keyword_default,
    "name of another": lambda n: named_like_another("x" * n),
    "partial": lambda n: functools.partial(pow, n),
    "partial with keywords": lambda n: functools.partial(int, base=n),
    "method": lambda n: Modulo(n).place,
    "class method": lambda n: (Modulo, OtherModulo)[n % 2].of_class,
    "method of a builtin": lambda n: {"a": n}.get,
    "method of a string": lambda n: f"{n}abc".find,
    "object": Modulo,
    "object with slots": Slotted,
    "cached": lambda n: functools.lru_cache(lambda key: key % n),
}
