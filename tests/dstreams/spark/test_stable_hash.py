"""A key's hash is the same in every process, and equal keys have equal hashes."""

# ruff: noqa: DTZ001 - moments without a zone are keys too

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dstreams.spark.stable_hash import STABLE_HASH_NAME, stable_hash
from tests.dstreams.spark import placing
from tests.dstreams.spark.children import ROOT, VERSIONS, find_python, run_python
from tests.dstreams.spark.sample_keys import (
    AUTUMN,
    EAST,
    SAMPLES,
    Admin,
    Caseless,
    Cell,
    Colour,
    Device,
    Holiday,
    Level,
    Mail,
    Name,
    Point,
    Right,
    User,
    Word,
)

GOLDEN = {
    "text": 2635321133,
    "bytes": 2691950237,
    "minus big": -512,
    "half": 1152921504606846976,
    "nested": 252445425048348998,
    "flags": 371034516660652658,
    "datetime": 842443154,
    "aware datetime": 1382139762,
}
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ZONES = (timezone.utc, EAST, timezone(timedelta(hours=-11)), AUTUMN)

numbers = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.complex_numbers(allow_nan=False),
)
moments = st.datetimes(timezones=st.sampled_from((None, *ZONES)), allow_imaginary=True)
scalars = st.one_of(
    st.none(),
    st.text(),
    st.binary(),
    numbers,
    moments,
    st.dates(),
    st.times(timezones=st.sampled_from((None, timezone.utc, EAST))),
    st.timedeltas(),
    st.uuids(),
    st.sampled_from([*Colour, *Level, *Name, *Right, *Holiday]),
    st.builds(User, st.text(), st.integers(), st.text()),
)
keys = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple),
        st.frozensets(inner, max_size=4),
        st.builds(Point, st.floats(allow_nan=False), inner),
    ),
    max_leaves=8,
)


def variants(key: Any) -> list[Any]:  # noqa: PLR0911 - one return for each kind of key
    """Return what may equal *key* and is another object, of another type where there is one."""
    if isinstance(key, (int, float, Decimal, Fraction)):
        kinds: tuple[Callable[[Any], Any], ...] = (int, float, Decimal, Fraction, complex, bool)
        return [other for kind in kinds if (other := attempt(kind, key)) is not None]
    if isinstance(key, datetime):
        moved = [attempt(key.astimezone, zone) for zone in ZONES if key.tzinfo is not None]
        return [key.replace(fold=1 - key.fold), *(other for other in moved if other is not None)]
    if isinstance(key, time):
        return [key.replace(fold=1 - key.fold)]
    if isinstance(key, Holiday):
        return [date(key.year, key.month, key.day)]
    if isinstance(key, str):
        return [Word(key)]
    if isinstance(key, tuple):
        changed = [tuple(other) for other in zip(*map(variants, key), strict=False)]
        return [tuple(key), *changed, *([Point(*key)] if len(key) == 2 else [])]
    if isinstance(key, frozenset):
        backwards = frozenset(reversed(list(key)))
        return [backwards, frozenset(next(iter(variants(item)), item) for item in key)]
    if isinstance(key, User):
        return [User(key.name, key.number, f"{key.note}!")]
    if isinstance(key, UUID):
        return [UUID(int=key.int)]
    return []


def attempt(kind: Callable[[Any], Any], key: Any) -> Any:
    """Convert, or return None if the conversion is impossible."""
    try:
        return kind(key)
    except (ValueError, OverflowError, ArithmeticError, TypeError):
        return None


@pytest.mark.deep
@settings(PATIENT, max_examples=300)
@given(keys)
def test_equal_keys_have_equal_hashes(key: Any) -> None:
    """Equal keys of any type belong to the same partition."""
    for other in variants(key):
        if key == other:
            assert stable_hash(other) == stable_hash(key), (key, other)


@settings(PATIENT, max_examples=100)
@given(st.one_of(st.integers(), st.floats(allow_nan=False, width=16)))
def test_equal_numbers_of_every_type_have_equal_hashes(number: Any) -> None:
    """A number hashes alike as int, float, Decimal, Fraction, complex and inside of tuples."""
    equal = [other for other in variants(number) if other == number]
    assert len(equal) >= 2
    assert {stable_hash(other) for other in equal} == {stable_hash(number)}
    assert {stable_hash(("n", other)) for other in equal} == {stable_hash(("n", number))}
    assert {stable_hash(frozenset([other])) for other in equal} == {
        stable_hash(frozenset([number]))
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1.0),
        (-0.0, 0),
        (1 << 61, float(1 << 61)),
        (Level.HIGH, 7),
        (Level.LOW, True),
        (Name.ANNA, "anna"),
        (Holiday.NEW_YEAR, date(2024, 1, 1)),
        (Point(1, "y"), (1.0, "y")),
        (Word("spark"), "spark"),
        (Caseless("Spark"), Caseless("sPARK")),
        (User("anna", 7, "first"), User("anna", 7.0, "second")),  # type: ignore[arg-type]
        (Admin("anna", 7), Admin("anna", 7, "note")),
        (Device("door", 3), Device("door", 3)),
        (Mail("Anna@example.org"), Mail("anna@example.org")),
        (Cell(1, 2), Cell(1, 2)),
        (Right.READ | Right.WRITE, Right.WRITE | Right.READ),
        (
            datetime(2024, 10, 27, 2, 30, tzinfo=AUTUMN),
            datetime(2024, 10, 27, 2, 30, tzinfo=AUTUMN, fold=1),
        ),
        (
            datetime(2024, 7, 1, 12, tzinfo=AUTUMN),
            datetime(2024, 7, 1, 10, tzinfo=timezone.utc),
        ),
        (datetime(2024, 7, 1, 12), datetime(2024, 7, 1, 12, fold=1)),
        (time(12, tzinfo=EAST), time(6, 30, tzinfo=timezone.utc)),
    ],
)
def test_equal_keys_of_different_kinds(one: Any, other: Any) -> None:
    """Kinds that look different and are equal by the rules of Python."""
    assert one == other
    assert stable_hash(one) == stable_hash(other)


def test_different_keys_have_different_hashes() -> None:
    """A hash covers the whole value: all samples and slightly different values differ."""
    equal = {"empty text", "minus zero", "str subclass", "same hour again", "heir of a dataclass"}
    hashes = {name: stable_hash(key) for name, key in SAMPLES.items() if name not in equal}
    assert len(set(hashes.values())) == len(hashes)
    for one, other in [
        (("a", "b"), ("b", "a")),
        (("a", ("b",)), (("a",), "b")),
        (frozenset({1, 2}), frozenset({1, 3})),
        (timedelta(seconds=1), timedelta(microseconds=1)),
        (time(1), time(2)),
        (b"a", "a"),
        (User("a", 1), User("a", 2)),
        (Colour.RED, Colour.GREEN),
    ]:
        assert stable_hash(one) != stable_hash(other)


@pytest.mark.parametrize("seed", ["0", "1", "4242", "random"])
def test_hash_does_not_depend_on_the_seed(seed: str) -> None:
    """Another PYTHONHASHSEED changes no hash."""
    expected = {name: stable_hash(key) for name, key in SAMPLES.items()}
    assert hashes_elsewhere(PYTHONHASHSEED=seed) == expected


@pytest.mark.deep
@pytest.mark.parametrize("version", VERSIONS)
def test_hash_does_not_depend_on_the_version(version: str) -> None:
    """Every supported Python agrees on every hash."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    expected = {name: stable_hash(key) for name, key in SAMPLES.items()}
    assert hashes_elsewhere(python, PYTHONHASHSEED="random") == expected


def hashes_elsewhere(*python: str, **environment: str) -> dict[str, int]:
    # Without what else is in dstreams: compiled packages of this Python cannot be loaded by others.
    program = f"""
        import sys, types
        for name in ("dstreams", "dstreams.spark"):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [{str(ROOT)!r} + "/" + name.replace(".", "/")]
        from tests.dstreams.spark.sample_keys import print_hashes
        print_hashes()
        """
    lines = run_python(program, *python, **environment).splitlines()
    return {line.rpartition(": ")[0]: int(line.rpartition(": ")[2]) for line in lines}


def test_algorithm_is_the_one_that_its_name_stands_for() -> None:
    """Hashes are stored on disk, so a changed hash needs a new STABLE_HASH_NAME."""
    assert STABLE_HASH_NAME == "stable-hash-1"
    assert {name: stable_hash(SAMPLES[name]) for name in GOLDEN} == GOLDEN


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (float("nan"), "NaN cannot be a key, because it does not equal itself; map it to None"),
        (Decimal("NaN"), "NaN cannot be a key"),
        (Decimal("sNaN"), "NaN cannot be a key"),
        (complex("nanj"), "NaN cannot be a key"),
        (("a", (1, float("nan"))), "NaN cannot be a key"),
        ([1, 2], r"a key of type list is unhashable; use an immutable value, for example tuple\("),
        ({"a"}, r"a key of type set is unhashable; .* or frozenset\(key\) for a set"),
        ({"a": 1}, "a key of type dict is unhashable"),
        (("a", [1]), "a key of type list is unhashable"),
        (bytearray(b"a"), "a key of type bytearray is unhashable"),
        (object(), "a key of type builtins.object is hashed by its address"),
        (len.__class__, "a key of type builtins.type is hashed by its address"),
        (
            placing.Modulo(3),
            "a key of type tests.dstreams.spark.placing.Modulo is hashed by its address, which "
            "differs in every process; use a value, or make the class a frozen dataclass",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_keys_that_no_two_processes_would_place_alike_are_refused(key: Any, message: str) -> None:
    """NaN, unhashable values and identities are refused, with a remedy."""
    with pytest.raises(TypeError, match=message):
        stable_hash(key)


def test_unhashable_subclass_is_refused() -> None:
    """A str subclass with its own __eq__ and without __hash__ is not a key."""

    class Loose(str):
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

    with pytest.raises(TypeError, match="a key of type Loose is unhashable"):
        stable_hash(Loose("a"))
