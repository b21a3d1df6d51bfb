"""Values are restored as they were, and reading plain data runs no code."""

# ruff: noqa: DTZ001 - moments without a zone are values too

from __future__ import annotations

import contextlib
import copyreg
import math
import os
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint.state_store.classes import Classes
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.values import (
    DataValues,
    PickleValues,
    UndecodableValueError,
    ValueCodec,
)

SHAPES = Shapes()
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

PLAIN = [
    None, True, 0, -(2**80), 0.1, math.inf, 1.5 - 2j, "", "text\n\n\x93", "\ud800", b"\n\x93\n",
    bytearray(b"x"), [], [[1], (2,)], {}, {"a": {1: None}}, set(), {1, 2.5}, frozenset({b"x"}),
    date(2024, 2, 29), datetime(2024, 1, 1), time(3, 4), timedelta(-3, 4, 5), timezone.utc,
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2))), Decimal("1.50"),
    Decimal("-Infinity"),
    datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")), Fraction(1, 3), UUID(int=7),
    Counter("aab"), OrderedDict(b=1, a=2), deque([1, 2], maxlen=3),
    defaultdict(int, a=1), defaultdict(None), defaultdict(list, {"a": [defaultdict(set)]}),
    "x" * 200_000, b"x" * 200_000,
    [b"x" * 70_000, "y" * 70_000, Decimal(1)],
]  # fmt: skip

atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.decimals(allow_nan=False), st.fractions(), st.uuids(), st.dates(), st.datetimes(),
)  # fmt: skip
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.text(), inner),
        st.lists(inner).map(deque),
    ),
    max_leaves=8,
)


class Point(NamedTuple):
    x: int


@dataclass
class Account:
    owner: str
    total: int


class Tally:
    """A class that is not a data class."""

    total = 0


@dataclass(unsafe_hash=True)
class Count:
    """A mutable class with a hash."""

    total: int


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def through(codec: ValueCodec, value: Any) -> Any:
    return codec.decoder(SHAPES)(codec.encoder(SHAPES)(value))


def stepper(codec: ValueCodec) -> Callable[..., list[bytes | None]]:
    """Decode, step and encode keys one after the other, as a writer does for many."""
    encode_many, decode_many = codec.many_encoder(SHAPES), codec.many_decoder(SHAPES)
    return lambda given, before, step: encode_many(map(step, given, decode_many(before)))


def same(found: Any, wanted: Any) -> bool:
    return type(found) is type(wanted) and repr(found) == repr(wanted)


@pytest.mark.parametrize("codec", [DataValues(), PickleValues()], ids=lambda codec: codec.name)
@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:30])
def test_plain_values(codec: ValueCodec, value: Any) -> None:
    """Plain data is restored with its types, and ends with a dot."""
    assert same(through(codec, value), value)
    assert codec.encoder(SHAPES)(value).endswith(b".")


@pytest.mark.deep
@PATIENT
@given(st.lists(values, max_size=5), st.binary(max_size=6))
def test_one_encoder_for_many(many: list[Any], behind: bytes) -> None:
    """Values of one encoder are independent, and following bytes are ignored."""
    for codec in (DataValues(), PickleValues()):
        encode, decode = codec.encoder(SHAPES), codec.decoder(SHAPES)
        encoded = [encode(value) for value in many + many]
        for raw, value in zip(encoded, many + many, strict=True):
            assert same(decode(raw + behind), value)


@pytest.mark.deep
@PATIENT
@given(st.lists(st.tuples(values, st.none() | values), max_size=5))
def test_stepper_is_decode_step_encode(pairs: list[tuple[Any, Any]]) -> None:
    """Stepping many values equals stepping each."""
    for codec in (DataValues(), PickleValues()):
        encode, decode, step_all = (
            codec.encoder(SHAPES),
            codec.decoder(SHAPES),
            stepper(codec),
        )
        given_ = [new for new, _ in pairs]
        before = [None if old is None else encode(old) for _, old in pairs]
        after = step_all(given_, before, lambda new, old: None if new is None else [new, old])
        for raw, (new, old) in zip(after, pairs, strict=True):
            if raw is None:
                assert new is None
            else:
                assert same(decode(raw), [new, old])


def test_stepper_with_large_values() -> None:
    """Values that pickle writes in pieces stay with their keys."""
    codec = DataValues()
    given_ = ["a", "b" * 100_000, "c", ["d" * 100_000, b"e" * 100_000], "f"]
    after = stepper(codec)(given_, [None] * 5, lambda new, old: new)
    assert [codec.decoder(SHAPES)(raw) for raw in after if raw is not None] == given_


def test_identity_inside_of_a_value() -> None:
    """Shared objects in a value stay shared, also in a cycle."""
    inner: list[Any] = [1]
    found = through(DataValues(), [inner, inner])
    assert found[0] is found[1]
    inner.append(inner)
    circle = through(DataValues(), inner)
    assert circle[1] is circle


@pytest.mark.parametrize(
    "value",
    [object(), print, int, len, lambda: 1, ValueError(), Tally(), [Tally()]],
    ids=lambda value: repr(value)[:20],
)
def test_refused_values(value: Any) -> None:
    """Values that are not plain are rejected with a remedy, and the encoder continues."""
    encode = DataValues().encoder(SHAPES)
    with pytest.raises(
        TypeError, match=r"in a tuple, a dict or a dataclass, or use PickleValues\(\)"
    ):
        encode(value)
    assert DataValues().decoder(SHAPES)(encode([1])) == [1]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_reading_runs_no_code(tmp_path: Path, protocol: int) -> None:
    """A pickle that would run code is rejected."""
    bomb = pickle.dumps(Payload(tmp_path / "made"), protocol)
    for raw in (
        bomb,
        bomb[:-1] + b"\n\n.",
        b"(S'a'\nios\nmkdir\n.",
        b"cos\nmkdir\n.",
        b"cos\nmkdir",
    ):
        with pytest.raises(UndecodableValueError):
            DataValues().decoder(SHAPES)(raw)
    assert not (tmp_path / "made").exists()
    PickleValues().decoder(SHAPES)(bomb)
    assert (tmp_path / "made").exists()


def test_extensions_are_looked_up(tmp_path: Path) -> None:
    """A class with a registered extension code is rejected as well."""
    copyreg.add_extension("posix", "mkdir", 240)
    try:
        bomb = pickle.dumps(Payload(tmp_path / "made"), 2)
        assert b"mkdir" not in bomb
        with pytest.raises(UndecodableValueError):
            DataValues().decoder(SHAPES)(bomb)
        assert through(DataValues(), [1]) == [1]
    finally:
        copyreg.remove_extension("posix", "mkdir", 240)
    with pytest.raises(UndecodableValueError):
        DataValues().decoder(SHAPES)(bomb)
    assert not (tmp_path / "made").exists()


@PATIENT
@given(values, st.data())
def test_damaged_values(value: Any, data: st.DataObject) -> None:
    """A damaged record is another value or the documented error."""
    raw = bytearray(DataValues().encoder(SHAPES)(value))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UndecodableValueError):
        DataValues().decoder(SHAPES)(bytes(raw))


@pytest.mark.parametrize(
    "arguments", [("1e99999999",), (1.5, 2), (1, 0)], ids=["text", "float", "zero"]
)
def test_fraction_of_anything_but_two_ints(arguments: tuple[Any, ...]) -> None:
    """A fraction cannot be made of text, which could take forever."""
    raw = DataValues().encoder(SHAPES)(Fraction(1, 3))
    made = pickle.dumps(arguments, 5)
    start = raw.index(b"K\x01K\x03\x86")
    with pytest.raises(UndecodableValueError):
        DataValues().decoder(SHAPES)(raw[:start] + made[2:-1].partition(b"\x94.")[0] + b"R.")


def test_any_value_with_pickle() -> None:
    """PickleValues accepts any object."""

    @dataclass
    class Local:
        x: int

    assert through(PickleValues(), Account("a", 1)) == Account("a", 1)
    assert through(PickleValues(), Local(3)).x == 3
    assert through(PickleValues(), lambda: 5)() == 5
    with pytest.raises(UndecodableValueError, match="read it with the codec"):
        PickleValues().decoder(SHAPES)(b"\x80\x05nothing")


def test_names() -> None:
    """Codecs have names on disk, and can be pickled."""
    for codec in (DataValues(), PickleValues(), DataValues(Classes(frozenset({__name__})))):
        assert pickle.loads(pickle.dumps(codec)) == codec
    assert (DataValues().name, PickleValues().name) == ("data-1", "pickle-5")


def test_stepping_rows_into_other_values() -> None:
    """Rows may become other values and the reverse, each with its key."""
    codec = DataValues()
    encode, step_all, decode = codec.encoder(SHAPES), stepper(codec), codec.decoder(SHAPES)
    news: list[Any] = [(1, 2.0), 3, None, [4], (5, "x"), None, {"a": 6}, 2**70]
    for before in ([1] * 8, [(1, 0.5)] * 8, [None, 1] * 4, ["a"] * 8, [None] * 8, [1, "a"] * 4):
        records = [None if value is None else encode(value) for value in before]
        seen: list[Any] = []
        after = step_all(news, records, lambda new, old, seen=seen: seen.append(old) or new)
        assert seen == before
        assert [None if raw is None else decode(raw) for raw in after] == news


def test_stepped_values_are_as_they_were_returned() -> None:
    """Later changes of a returned value have no effect."""
    codec = DataValues()
    scratch: list[int] = []

    def step(new: int, old: Any) -> Any:
        scratch.append(new)
        return (new, scratch) if new % 2 else scratch

    after = stepper(codec)(list(range(5)), [codec.encoder(SHAPES)(0)] * 5, step)
    found = [codec.decoder(SHAPES)(raw) for raw in after if raw is not None]
    assert found == [[0], (1, [0, 1]), [0, 1, 2], (3, [0, 1, 2, 3]), [0, 1, 2, 3, 4]]


def test_instances_with_a_hash_are_as_they_were_returned() -> None:
    """Also for mutable instances with a hash, alone and in tuples."""
    codec = DataValues(Classes(frozenset({__name__})))
    tally = Count(0)
    for wrap in (lambda found: found, lambda found: (found, 1), lambda found: (1, found, "a")):
        for old in (None, 0, "a", (1, 2)):
            tally.total = 0

            def step(new: int, old: Any, wrap: Any = wrap) -> Any:
                tally.total += new
                return wrap(tally)

            records = [None if old is None else codec.encoder(SHAPES)(old)] * 3
            after = stepper(codec)([1, 2, 3], records, step)
            found = [codec.decoder(SHAPES)(raw) for raw in after if raw is not None]
            assert found == [wrap(Count(1)), wrap(Count(3)), wrap(Count(6))]


def test_what_is_not_plain_is_refused_while_stepping() -> None:
    """Values that are not plain are rejected, and the codec continues."""
    codec = DataValues()
    for old in (1, "a", None):
        records = [None if old is None else codec.encoder(SHAPES)(old)] * 2
        for wrong in (Tally(), Point(1), (1, Point(1)), [object()], print, 1 + Point(1).x):
            step_all = stepper(codec)
            if wrong == 2:
                assert step_all([0, 0], records, lambda new, old: 2)[0] == codec.encoder(SHAPES)(2)
                continue
            with pytest.raises(TypeError, match=r"is not plain data|the program does not register"):
                step_all([0, 0], records, lambda new, old, wrong=wrong: wrong)


def test_moments_are_values_like_others() -> None:
    """Values of listed classes are mixed with others."""
    codec = DataValues()
    values = ["a", datetime(2024, 1, 1), 5, (1, Decimal(3)), "b", {"at": date(2024, 1, 1)}]
    encode = codec.encoder(SHAPES)
    records = [encode(value) for value in values]
    assert list(codec.many_decoder(SHAPES)(records)) == values
    assert stepper(codec)([None] * 6, list(records), lambda new, old: old) == [
        codec.encoder(SHAPES)(value) for value in values
    ]


@PATIENT
@given(st.lists(values, max_size=5))
def test_many_encoder_is_the_encoder_of_each(many: list[Any]) -> None:
    """Values encoded together are decoded one by one and together."""
    for codec in (DataValues(), PickleValues()):
        raws = codec.many_encoder(SHAPES)(many)
        assert [raw is None for raw in raws] == [value is None for value in many]
        there = [raw for raw in raws if raw is not None]
        values = [value for value in many if value is not None]
        assert all(map(same, map(codec.decoder(SHAPES), there), values))
        assert all(map(same, codec.many_decoder(SHAPES)(raws), many))


@pytest.mark.parametrize("first", [("a", 1), {"a": 1}, (1, 2), 1, ("a", date(2024, 1, 1))], ids=str)
def test_many_encoder_refuses_what_is_not_plain(first: Any) -> None:
    """Values that are not plain are rejected wherever they occur."""
    codec = DataValues()
    for wrong in (Tally(), Account("a", 1), (1, Point(1)), [object()], print):
        encode_many = codec.many_encoder(SHAPES)
        with pytest.raises(TypeError, match=r"is not plain data|the program does not register"):
            encode_many([first, wrong])
        assert list(codec.many_decoder(SHAPES)(encode_many([first, "b"]))) == [first, "b"]


def test_rows_among_tuples_of_other_things() -> None:
    """Tuples of numbers and others may alternate."""
    codec = DataValues()
    mixed: list[Any] = [("a", 1), (1, 2.0), 3, (1, None), (2, 1.0), {"b": 1}, (3, 4.0), 5.0]
    for many in (mixed, mixed[::-1], mixed[1:]):
        assert list(codec.many_decoder(SHAPES)(codec.many_encoder(SHAPES)(many))) == many
        records = stepper(codec)(
            many, [codec.encoder(SHAPES)("old")] * len(many), lambda new, _: new
        )
        assert list(map(codec.decoder(SHAPES), records)) == many  # type: ignore[arg-type]
