"""Equal keys have one encoding, different keys have different ones, in an order for scans."""

# ruff: noqa: DTZ001 - moments without a zone are keys too

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from checkpoint.errors import CheckpointError
from checkpoint.state_store.keys import (
    MAX_INLINE_BYTES,
    UndecodableKeyError,
    comes_back,
    decode_key,
    encode_key,
    encode_keys,
    encode_whole,
)
from dstreams.spark.stable_hash import stable_hash
from tests.dstreams.spark.sample_keys import AUTUMN, SAMPLES, Colour, Device, Mail, User

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
OWN_HASH = {"caseless", "dataclass with its own hash", "own hash"}
STORED = {name: key for name, key in SAMPLES.items() if name not in OWN_HASH}

numbers = st.one_of(
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.integers(-(2**66), 2**66),
    st.floats(allow_nan=False),
    st.sampled_from([0.0, -0.0, 1.0, 0.5, 2.0**63, -(2.0**63), 1e300, math.inf]),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.fractions(max_denominator=4),
    st.complex_numbers(allow_nan=False),
)
texts = st.one_of(
    st.text(max_size=4), st.text("a\0\uffff\U00010000", max_size=3), st.text("ab", max_size=600)
)
moments = st.one_of(
    st.dates(),
    st.datetimes(),
    st.times(),
    st.timedeltas(),
    st.datetimes(timezones=st.sampled_from([timezone.utc, timezone(timedelta(hours=-11))])),
    st.times(timezones=st.sampled_from([timezone.utc, timezone(timedelta(minutes=61))])),
)
leaves = st.one_of(
    numbers,
    texts,
    st.binary(max_size=4),
    st.none(),
    moments,
    st.uuids(),
    st.sampled_from(Colour),
    st.builds(User, texts, st.integers(0, 2), st.text(max_size=2)),
)
keys = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)
    ),
    max_leaves=6,
)


def in_other_words(key: Any) -> list[Any]:
    """Return objects that equal *key*."""
    if isinstance(key, tuple):
        return [tuple(in_other_words(item)[-1] for item in key)]
    if isinstance(key, frozenset):
        return [frozenset(in_other_words(item)[0] for item in key)]
    if type(key) not in (int, bool, float, Fraction) or abs(key) > 2**400:
        return [key]
    exact = Fraction(key)
    words: list[Any] = [exact, complex(exact), float(exact), Decimal(str(float(exact)))]
    if exact.denominator == 1:
        words.append(int(exact))
    return [word for word in words if word == key] or [key]


@PATIENT
@given(keys, keys)
def test_equal_keys_and_no_others_have_one_encoding(first: Any, second: Any) -> None:
    """Encodings are equal exactly if the keys are."""
    assert (encode_key(first) == encode_key(second)) == (first == second)


@PATIENT
@given(keys)
def test_other_words_for_a_key(key: Any) -> None:
    """Equal numbers are one key, also in tuples and sets."""
    for word in in_other_words(key):
        assert encode_key(word) == encode_key(key), word


@PATIENT
@given(keys)
def test_round_trip(key: Any) -> None:
    """Decoding returns an equal key, or the same one if that is promised."""
    decoded = decode_key(encode_whole(key))
    assert decoded == key
    assert encode_whole(decoded) == encode_whole(key)
    if comes_back(key):
        assert repr(decoded) == repr(key) or isinstance(key, (frozenset, tuple, User))
        assert type(decoded) is type(key)
    assert 1 <= len(encode_key(key)) <= 496


@pytest.mark.parametrize(
    "ordered",
    [
        st.integers(),
        st.text(),
        st.text("a\0\xff\uffff"),
        st.binary(),
        st.dates(),
        st.datetimes(),
        st.timedeltas(),
        st.tuples(st.text("a\0b", max_size=3), st.integers(-(2**65), 2**65), st.binary(max_size=3)),
        st.lists(st.text("a\0b", max_size=3), max_size=3).map(tuple),
        st.lists(st.lists(st.integers(0, 2), max_size=2).map(tuple), max_size=3).map(tuple),
    ],
    ids=str,
)
def test_order(ordered: st.SearchStrategy[Any]) -> None:
    """Encodings of one kind are in the order of the keys."""

    @PATIENT
    @given(ordered, ordered)
    def check(first: Any, second: Any) -> None:
        assert (encode_whole(first) < encode_whole(second)) == (first < second)

    check()


@PATIENT
@example(["a\nsb", "c"])
@example(["\n"])
@example([("a", "b\n"), ("",)])
@example([("a",), ()])
@given(
    st.lists(keys, max_size=4)
    | st.lists(st.text(max_size=3))
    | st.lists(st.lists(texts, max_size=3).map(tuple))
)
def test_many_at_once(many: list[Any]) -> None:
    """Encoding many keys gives the same bytes, and reports whether they are plain."""
    encoded = [encode_key(key) for key in many]
    are_plain = all(map(comes_back, many)) and all(len(e) < 481 for e in encoded)
    assert encode_keys(many) == (encoded, are_plain)


@pytest.mark.parametrize("name", STORED)
def test_what_has_a_place_can_be_stored(name: str) -> None:
    """Every kind of key of the stable hash has an encoding, and is restored."""
    key = STORED[name]
    for wrapped in (key, (key, "x"), frozenset({key}), ((key,),)):
        encoded = encode_key(wrapped)
        decoded = decode_key(encoded)
        assert encode_key(decoded) == encoded
        # In the hour that comes twice, Python holds a moment equal to no moment of another zone.
        assert decoded == wrapped or getattr(key, "tzinfo", None) is AUTUMN
        assert stable_hash(decoded) == stable_hash(wrapped)


def test_fields_that_do_not_count() -> None:
    """A dataclass is its compared fields; the others have their defaults when decoded."""
    assert encode_key(User("anna", 7, "a")) == encode_key(User("anna", 7, "b"))
    assert encode_key(Device("door", 1)) != encode_key(Device("door", 2))
    assert decode_key(encode_key(User("anna", 7, "a"))).note == ""


@dataclass
class Loose:
    name: str


@dataclass(frozen=True, eq=False)
class ByAddress:
    name: str


class EqualToAll:  # noqa: PLW1641 - so that it has no hash
    def __eq__(self, other: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (math.nan, "NaN cannot be a key"),
        (Decimal("nan"), "NaN cannot be a key"),
        (Decimal("snan"), "NaN cannot be a key"),
        (complex(math.nan, 1), "NaN cannot be a key"),
        (complex(1, math.nan), "NaN cannot be a key"),
        (("a", frozenset({math.nan})), "NaN cannot be a key"),
        ([1], "tuple(key) for a list"),
        (({1},), "frozenset(key) for a set"),
        ({}, "unhashable"),
        (bytearray(b"a"), "unhashable"),
        (Loose("a"), "unhashable"),
        pytest.param(EqualToAll(), "unhashable", id="equal-to-all"),
        pytest.param(object(), "equal by its address", id="plain-object"),
        (ByAddress("a"), "equal by its address"),
        (print, "use a tuple of what they are compared by"),
        (Mail("a@b"), "or make the class a frozen dataclass"),
        (SAMPLES["caseless"], "its class alone knows which keys are equal"),
    ],
    ids=repr,
)
def test_refused_keys(key: Any, says: str) -> None:
    """Unsupported keys are rejected with a remedy."""
    for wrapped in (key, (1, key)):
        with pytest.raises(TypeError) as caught:
            encode_key(wrapped)
        assert says in str(caught.value)


def test_refused_as_the_stable_hash_does() -> None:
    """NaN, unhashable keys and keys compared by address are rejected."""
    for key in (math.nan, [1], Loose("a"), object(), ByAddress("a")):
        for function in (encode_key, stable_hash):
            with pytest.raises(TypeError):
                function(key)


@pytest.mark.parametrize(
    "key",
    [
        "x" * 70_000,
        b"x" * 70_000,
        (1,) * 8_000,
        1 << 600_000,
        Decimal("1e999999"),
        Decimal("1e-999999"),
    ],
    ids=lambda key: f"{type(key).__name__}",
)
def test_keys_that_are_too_long(key: Any) -> None:
    """A key of more than 64 KiB is rejected, before its number is encoded."""
    with pytest.raises(ValueError, match=r"use (a digest|its text) as key"):
        encode_key(key)


@pytest.mark.parametrize("length", [99, 100, 479, 480, 5_000])
def test_long_keys(length: int) -> None:
    """A long key is shortened, and distinguished by a digest."""
    for key in ("x" * length, "\u00e9" * (length // 2), b"x" * length, ("x" * length, 1)):
        encoded = encode_key(key)
        whole = encode_whole(key)
        assert encoded == whole if len(whole) <= MAX_INLINE_BYTES else len(encoded) == 496
        assert encoded[:464] == whole[:464]
    assert encode_key("x" * length) != encode_key("x" * length + "y")


def test_moment_with_nanoseconds() -> None:
    """A time with nanoseconds is rejected."""

    class Stamp(datetime):
        nanosecond = 0

    exact = Stamp(2024, 1, 1)
    assert encode_key(exact) == encode_key(datetime(2024, 1, 1))
    exact.nanosecond = 5
    with pytest.raises(TypeError, match="nanoseconds has no encoding"):
        encode_key(exact)


@pytest.mark.parametrize(
    ("key", "exact"),
    [
        ("a", True),
        (1, True),
        (True, False),
        (1.0, False),
        (-0.0, False),
        (0.5, True),
        (Decimal("0.5"), False),
        (("a", 1), True),
        (("a", True), False),
        (Colour.RED, True),
        (SAMPLES["named tuple"], False),
        (SAMPLES["int enum"], False),
        (User("a", 1), False),
        (Device("a", 1), True),
        (date(2024, 1, 1), True),
        (time(1, fold=1), False),
        (datetime(2024, 1, 1, tzinfo=timezone.utc), True),
        (SAMPLES["aware datetime"], False),
    ],
    ids=repr,
)
def test_comes_back(key: Any, exact: bool) -> None:
    """comes_back returns whether decoding restores the key itself."""
    assert comes_back(key) is exact
    decoded = decode_key(encode_key(key))
    assert decoded == key
    if exact:
        assert (type(decoded), repr(decoded)) == (type(key), repr(key))


@PATIENT
@given(st.binary(max_size=40))
def test_bytes_that_are_no_key(raw: bytes) -> None:
    """Any bytes are a key with an equal encoding, or a documented error."""
    try:
        key = decode_key(raw)
    except UndecodableKeyError:
        return
    assert decode_key(encode_whole(key)) == key


@PATIENT
@given(keys, st.data())
def test_damaged_keys(key: Any, data: st.DataObject) -> None:
    """A damaged encoding is another key or a documented error."""
    raw = bytearray(encode_whole(key))
    at = data.draw(st.integers(0, len(raw) - 1))
    change: Callable[[], object] = data.draw(
        st.sampled_from([lambda: raw.pop(at), lambda: raw.insert(at, 7), raw.reverse])
    )
    change()
    assume(bytes(raw) != encode_whole(key))
    with contextlib.suppress(CheckpointError):
        assert decode_key(bytes(raw)) != key or encode_whole(key) != bytes(raw)


def test_class_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names a missing class; nothing is imported."""
    encoded = encode_key(Colour.RED)
    monkeypatch.delitem(sys.modules, Colour.__module__)
    with pytest.raises(UndecodableKeyError, match=r"is of class tests\..*\.sample_keys\.Colour, "):
        decode_key(encoded)
    assert Colour.__module__ not in sys.modules


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"sRED", b"sBLU"), (b"sColour", b"sLevel"), (b"sColour", b"sAUTUMN"), (b"sColour", b"sdate")],
)
def test_class_that_has_changed(old: bytes, new: bytes) -> None:
    """A missing member, or a class of another kind, is a documented error."""
    encoded = encode_key(Colour.RED).replace(old, new)
    with pytest.raises(UndecodableKeyError):
        decode_key(encoded)


def test_dataclass_that_has_changed() -> None:
    """A dataclass with another number of fields is a documented error."""
    encoded = encode_key(User("anna", 7)).replace(b"sUser\0", b"sDevice\0")
    assert decode_key(encoded) == Device("anna", 7)
    with pytest.raises(UndecodableKeyError, match="fields of dataclass"):
        decode_key(encoded[:-1] + encode_key(1) + b"\0")
