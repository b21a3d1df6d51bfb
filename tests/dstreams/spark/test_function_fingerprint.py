"""Functions that do the same have one name in every process, others have others."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from dstreams.spark.function_fingerprint import identity_of
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.stable_hash import stable_hash
from tests.dstreams.spark import placing
from tests.dstreams.spark.children import run_python


def test_functions_known_by_name() -> None:
    """A function that a module has under its name is identified by that name."""
    named = {
        placing.by_length: "tests.dstreams.spark.placing.by_length",
        zlib.crc32: "zlib.crc32",
        len: "builtins.len",
        int: "builtins.int",
        stable_hash: "dstreams.spark.stable_hash.stable_hash",
    }
    assert {func: identity_of(func) for func in named} == named


@pytest.mark.parametrize("make", placing.MAKERS.values(), ids=placing.MAKERS)
def test_functions_without_a_name_of_their_own(make: Callable[[int], Any]) -> None:
    """The same function made twice is one identity, with another captured value another."""
    first, again, other = (identity_of(make(number)) for number in (4, 4, 5))
    assert first == again
    assert first != other


def test_use_does_not_change_the_identity() -> None:
    """Python specializes the code of functions that run often, which does not change the name."""

    def place(key: Any) -> int:
        total = 0
        for number in range(key):
            total += number * key
        return total

    before = identity_of(place)
    for key in range(200):
        place(key)
    assert identity_of(place) == before


def test_code_and_globals_make_the_identity() -> None:
    """Functions under one name that do different things, or name other globals, differ."""

    def compiled(body: str, **names: Any) -> Any:
        scope: dict[str, Any] = {"__name__": "__main__", **names}
        exec(f"def helper(key): return {body}\ndef place(key): return helper(key)", scope)  # noqa: S102
        return scope["place"]

    bodies = ["key + 1", "key + 2", "key - 1", "(lambda k: k * 2)(key)", "(lambda k: k * 3)(key)"]
    names = [identity_of(compiled(body)) for body in bodies]
    assert len(set(names)) == len(names)
    assert all(name.startswith("__main__.place#") for name in names)
    tens = [identity_of(compiled("key // TENS", TENS=tens)) for tens in (10, 20, 10)]
    assert tens[0] == tens[2] != tens[1]


def test_unusual_functions_have_an_identity() -> None:
    """Unassigned variables, cycles of values and objects without a repr do not disturb."""

    class Broken:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise RuntimeError("not to be pickled")

    cycle: list[Any] = []
    cycle.append(cycle)
    broken = Broken()

    def place(key: Any) -> int:
        return len(cycle) + later + len(str(broken))

    names = {identity_of(place) for _ in range(2)}
    later = 1
    names.add(identity_of(place))
    assert len(names) == 2
    assert identity_of(functools.partial(placing.by_length)) != "functools.partial"


MAIN_PROGRAM = """
import json, sys
from dstreams.spark.function_fingerprint import identity_of
from dstreams.spark.partitioner import StablePartitioner
from tests.dstreams.spark.placing import MAKERS, by_length

TENS = 10
WORDS = {"a", "b", "c"}

def helper(key):
    return key // TENS

def of_main(key):
    '''Place.'''
    return helper(key) if key in {"x", "y", "z", EDIT} else len(WORDS)

class Main:
    def __init__(self, modulus):
        self.modulus = modulus
    def __call__(self, key):
        return key % self.modulus

captured = {"x": [1, 2.5], "y": frozenset({"p", "q", "r"})}
functions = {name: make(4) for name, make in MAKERS.items()}
functions |= {"named": by_length, "of main": of_main, "object of main": Main(3),
              "lambda of main": lambda key: len(captured) + key}
partitioners = {name: StablePartitioner(3, func) for name, func in functions.items()}
print(json.dumps({name: [p.name, p.jvm_id] for name, p in partitioners.items()}))
"""


@pytest.mark.deep
def test_identity_is_equal_across_processes() -> None:
    """Two drivers with different hash seeds agree on the identity of every kind of function."""
    first, second, edited = (
        json.loads(run_python(MAIN_PROGRAM.replace("EDIT", edit), PYTHONHASHSEED=seed))
        for edit, seed in (("1", "1"), ("1", "2"), ("2", "1"))
    )
    assert first == second
    assert {name for name in first if first[name] != edited[name]} == {"of main"}
    assert len(set(map(tuple, first.values()))) == len(first)
    for name, make in placing.MAKERS.items():
        here = StablePartitioner(3, make(4))
        assert first[name] == [here.name, here.jvm_id]
