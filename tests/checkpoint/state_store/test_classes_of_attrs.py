"""Instances of attrs classes are restored as they were."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint.state_store.classes import Classes, StoredClassError
from checkpoint.state_store.keys import comes_back, decode_key, encode_key
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.values import DataValues
from dstreams.spark.stable_hash import stable_hash

attr: Any = pytest.importorskip("attr", reason="pip install -e '.[dev]'")

PLACE = 1684113573993359
"""Where a key of one field that is ``k`` is placed, for ever."""

SHAPES = Shapes()
CODEC = DataValues(Classes(frozenset({__name__})))


class Old:
    _private = attr.ib(converter=int)
    items = attr.ib(factory=list)
    size = attr.ib(default=attr.Factory(lambda self: self._private, takes_self=True))


class Defined:
    name: str
    count: int = 0


class Slotted:
    name: str


class InDict:
    name: str


class Noted:
    name: str
    note: str = attr.field(default="", eq=False)


class Caseless:
    name: str = attr.field(eq=str.lower)


Old = attr.s(Old)  # type: ignore[misc]
Defined = attr.define(Defined)  # type: ignore[misc]
Slotted = attr.frozen(Slotted, cache_hash=True)  # type: ignore[misc]
InDict = attr.frozen(InDict, cache_hash=True, slots=False)  # type: ignore[misc]


Noted = attr.frozen(Noted)  # type: ignore[misc]
Caseless = attr.frozen(Caseless)  # type: ignore[misc]


class Heir(InDict):
    def twice(self) -> str:
        return self.name * 2


@pytest.mark.parametrize(
    "value",
    [Old("7"), Old("7", ["x"], 3), Defined("d"), Slotted("h"), InDict("h")],  # type: ignore[call-arg]
    ids=repr,
)
def test_instances_of_attrs_come_back(value: Any) -> None:
    """All attributes are stored, including private ones and slots."""
    encode, decode = CODEC.encoder(SHAPES), CODEC.decoder(SHAPES)
    for found in (decode(encode(value)), decode(encode([value]))[0], decode(encode((1, value)))[1]):
        assert type(found) is type(value)
        assert found == value


@pytest.mark.parametrize("kind", [Slotted, InDict])
def test_hash_of_attrs_is_that_of_this_process(kind: Any) -> None:
    """A cached hash is not stored, as it differs between processes."""
    wanted = kind("h")
    hash(wanted)
    found = CODEC.decoder(SHAPES)(CODEC.encoder(SHAPES)(wanted))
    assert found._attrs_cached_hash is None
    assert hash(found) == hash(wanted)


KEYS = [
    (Slotted("k"), True),
    (InDict("k"), True),
    (Noted("k", "a"), False),  # type: ignore[call-arg]
    (Heir("k"), True),
]


@pytest.mark.parametrize(("key", "is_whole"), KEYS)
def test_instances_of_attrs_are_keys(key: Any, is_whole: bool) -> None:
    """They are the attributes that they compare; the others have their defaults when decoded.

    Their place does not depend on how Python hashes text in this process.
    """
    found = decode_key(encode_key(key), Classes(frozenset({__name__})))
    assert type(found) is type(key)
    assert found == key
    assert hash(found) == hash(key)
    assert comes_back(key) is is_whole
    assert encode_key(found) == encode_key(key)
    assert stable_hash(key) == PLACE


def test_attributes_that_compare_by_a_function_are_no_key() -> None:
    """It is unknown which other instances are equal."""
    with pytest.raises(TypeError, match="its class alone knows which keys are equal"):
        encode_key(Caseless("K"))  # type: ignore[call-arg]


def test_new_attributes_take_their_defaults() -> None:
    """A new attribute has its default, also one computed from others."""
    encode, decode = CODEC.encoder(SHAPES), CODEC.decoder(SHAPES)
    fields = encode(Old("7", ["x"], 3))[9:]  # type: ignore[call-arg]
    head = SHAPES.add(f"a{__name__} Old _private renamed size") or b""
    with pytest.raises(StoredClassError, match="it has _private, items, size now"):
        decode(head + fields)
    head = SHAPES.add(f"a{__name__} Old _private") or b""
    found = decode(head + b"\x80\x05K\x07\x85.")
    assert found == Old(7)  # type: ignore[call-arg]
