"""A key's place is the same in every process, and partitioners know when they are equal."""

# ruff: noqa: DTZ001 - moments without a zone are keys too

from __future__ import annotations

import functools
import json
import zlib
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.rdd import Partitioner as PySparkPartitioner
from pyspark.rdd import portable_hash

from dstreams.errors import InvalidStreamError
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.stable_hash import STABLE_HASH_NAME, stable_hash
from tests.dstreams.rdd import placing
from tests.dstreams.rdd.children import VERSIONS, find_python, run_python
from tests.dstreams.rdd.sample_keys import (
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
    "flags": 1269322663152488416,
    "datetime": 842443154,
    "aware datetime": 1382139762,
}
START = datetime(2024, 1, 1, tzinfo=EAST)
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
    """Convert, None where there is no such conversion."""
    try:
        return kind(key)
    except (ValueError, OverflowError, ArithmeticError, TypeError):
        return None


@settings(max_examples=300, deadline=None)
@given(keys)
def test_equal_keys_have_equal_hashes(key: Any) -> None:
    """What == holds equal, whatever its type, goes to one partition."""
    for other in variants(key):
        if key == other:
            assert stable_hash(other) == stable_hash(key), (key, other)


@settings(max_examples=100, deadline=None)
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
    """Nothing is left out of a hash: all samples, and values that differ a little, differ."""
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


@pytest.mark.parametrize("version", VERSIONS)
def test_hash_does_not_depend_on_the_version(version: str) -> None:
    """Every supported Python agrees on every hash."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    expected = {name: stable_hash(key) for name, key in SAMPLES.items()}
    assert hashes_elsewhere(python, PYTHONHASHSEED="random") == expected


def hashes_elsewhere(*python: str, **environment: str) -> dict[str, int]:
    program = "from tests.dstreams.rdd.sample_keys import print_hashes; print_hashes()"
    lines = run_python(program, *python, **environment).splitlines()
    return {line.rpartition(": ")[0]: int(line.rpartition(": ")[2]) for line in lines}


def test_algorithm_is_the_one_that_its_name_stands_for() -> None:
    """Hashes are on disk: whoever changes one has to change STABLE_HASH_NAME as well."""
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
            "a key of type tests.dstreams.rdd.placing.Modulo is hashed by its address, which "
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
    """A kind of text that says what is equal and not how to hash it is no key."""

    class Loose(str):
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

    with pytest.raises(TypeError, match="a key of type Loose is unhashable"):
        stable_hash(Loose("a"))


FAMILIES: dict[str, Callable[[int], Any]] = {
    "int": lambda number: number,
    "text": lambda number: f"user-{number}",
    "bytes": lambda number: f"{number:08d}".encode(),
    "float": lambda number: number / 10,
    "tuple": lambda number: ("click", number),
    "round numbers": lambda number: (number * 3600, number * 1000),
    "frozenset": lambda number: frozenset({number, "x"}),
    "uuid": lambda number: UUID(int=number * 0x9E37_79B9_7F4A_7C15),
    "minutes": lambda number: datetime(2024, 1, 1) + timedelta(minutes=number),
    "minutes in a zone": lambda number: START + timedelta(minutes=number),
    "durations": lambda number: timedelta(minutes=number),
    "dataclass": lambda number: User(f"user-{number}", 0),
}


@pytest.mark.parametrize("partitions", [2, 7, 8])
@pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES)
def test_keys_are_spread_evenly(make: Callable[[int], Any], partitions: int) -> None:
    """No partition has a quarter more or less than its share of 10,000 keys."""
    place = StablePartitioner(partitions)
    counts = Counter(place(make(number)) for number in range(10_000))
    share = 10_000 / partitions
    assert sorted(counts) == list(range(partitions))
    assert all(0.75 * share < count < 1.25 * share for count in counts.values()), counts


def test_place_is_within_the_partitions() -> None:
    """Negative hashes and hashes larger than the number of partitions are places too."""
    place = StablePartitioner(3, lambda key: key)
    assert [place(key) for key in (-4, -1, 0, 2, 3, 10**30)] == [2, 2, 0, 2, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "numPartitions must be at least 1, got 0"),
        ((-2,), "numPartitions must be at least 1, got -2"),
        ((True,), "numPartitions must be an integer, got True"),
        ((2.0,), r"numPartitions must be an integer, got 2\.0"),
        (("2",), "numPartitions must be an integer, got '2'"),
        ((2, 5), "partitionFunc must be callable, got 5"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    """The number of partitions is a positive integer, the function can be called."""
    with pytest.raises(InvalidStreamError, match=message):
        StablePartitioner(*arguments)


def test_equality() -> None:
    """Equal are partitioners with equal numbers of partitions and equal names."""
    partitioner = StablePartitioner(4)
    assert partitioner == StablePartitioner(4)
    assert hash(partitioner) == hash(StablePartitioner(4))
    assert partitioner.name == STABLE_HASH_NAME
    assert repr(partitioner) == "StablePartitioner(4, stable-hash-1)"
    for other in (
        StablePartitioner(5),
        StablePartitioner(4, len),
        StablePartitioner(4, name="mine"),
        PySparkPartitioner(4, stable_hash),
        PySparkPartitioner(4, portable_hash),
        None,
    ):
        assert partitioner != other
        assert other != partitioner


def test_functions_known_by_name() -> None:
    """A function that a module has under its name is identified by that name."""
    named = {
        placing.by_length: "tests.dstreams.rdd.placing.by_length",
        zlib.crc32: "zlib.crc32",
        len: "builtins.len",
        int: "builtins.int",
        stable_hash: STABLE_HASH_NAME,
    }
    assert {func: StablePartitioner(2, func).name for func in named} == named


def test_own_name_is_kept() -> None:
    """A name that is given stands for the function, whatever that is."""
    one = StablePartitioner(2, lambda key: key, name="by shard")
    other = StablePartitioner(2, lambda key: key + 1, name="by shard")
    assert one == other
    assert one.jvm_id == other.jvm_id


@pytest.mark.parametrize("make", placing.MAKERS.values(), ids=placing.MAKERS)
def test_functions_without_a_name_of_their_own(make: Callable[[int], Any]) -> None:
    """The same function made twice is one identity, with another captured value another."""
    first, again, other = (StablePartitioner(2, make(number)).name for number in (4, 4, 5))
    assert first == again
    assert first != other


def test_use_does_not_change_the_identity() -> None:
    """Python specializes the code of functions that run often: that is no other code."""

    def place(key: Any) -> int:
        total = 0
        for number in range(key):
            total += number * key
        return total

    before = StablePartitioner(2, place).name
    for key in range(200):
        place(key)
    assert StablePartitioner(2, place).name == before


def test_code_and_globals_make_the_identity() -> None:
    """Functions under one name that do different things, or name other globals, differ."""

    def compiled(body: str, **names: Any) -> Any:
        scope: dict[str, Any] = {"__name__": "__main__", **names}
        exec(f"def helper(key): return {body}\ndef place(key): return helper(key)", scope)  # noqa: S102
        return scope["place"]

    bodies = ["key + 1", "key + 2", "key - 1", "(lambda k: k * 2)(key)", "(lambda k: k * 3)(key)"]
    names = [StablePartitioner(2, compiled(body)).name for body in bodies]
    assert len(set(names)) == len(names)
    assert all(name.startswith("__main__.place#") for name in names)
    tens = [StablePartitioner(2, compiled("key // TENS", TENS=tens)).name for tens in (10, 20, 10)]
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

    names = {StablePartitioner(2, place).name for _ in range(2)}
    later = 1
    names.add(StablePartitioner(2, place).name)
    assert len(names) == 2
    assert StablePartitioner(2, functools.partial(placing.by_length)).name != "functools.partial"


MAIN_PROGRAM = """
import json, sys
from dstreams.rdd.partitioner import StablePartitioner
from tests.dstreams.rdd.placing import MAKERS, by_length

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


def test_jvm_id_is_a_positive_long() -> None:
    """The id fits the JVM's signed 64 bits, and differs where the name does."""
    ids = {StablePartitioner(2, name=f"name {number}").jvm_id for number in range(1000)}
    assert len(ids) == 1000
    assert all(0 <= number < 1 << 63 for number in ids)
    assert StablePartitioner(2).jvm_id == StablePartitioner(9).jvm_id
