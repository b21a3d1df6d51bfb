"""Blocks: columns in bytes, values that never share, sizes that stay bounded."""

from __future__ import annotations

import copy
import pickle
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dstreams.spark.blocks import (
    MAX_BYTES,
    MAX_ROWS,
    TARGET_BYTES,
    Block,
    BlockBuilder,
    Columns,
    PairColumns,
    Side,
    UnpicklableError,
    columns_of,
    encode_block,
    shorten,
    two_columns,
)
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import Route

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
MIB = 1 << 20
SIDES = st.sampled_from([Side.BATCH, Side.STATE])
keys = st.one_of(st.text(), st.integers(), st.tuples(st.text(), st.integers()), st.none())
plain = st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.floats(allow_nan=False))
values = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.sets(st.integers(), max_size=4),
        st.tuples(inner, inner),
    ),
    max_leaves=8,
)


class Account:
    """A state of the user's own, which is changed in place."""

    def __init__(self, amounts: Any) -> None:
        self.amounts = amounts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and self.amounts == other.amounts

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.deep
@settings(PATIENT)
@given(SIDES, st.lists(st.tuples(keys, values), max_size=50))
def test_round_trip(side: Side, pairs: list[tuple[Any, Any]]) -> None:
    """Decoding returns the encoded pairs, and the header has their number."""
    data = encode_block(side, [key for key, _ in pairs], [value for _, value in pairs])
    for form in (data, memoryview(data), bytearray(data)):
        block = Block(form)  # type: ignore[arg-type]
        assert block.side is side
        assert block.rows == len(pairs)
        assert block.size == len(data)
        assert list(zip(block.keys(), block.values(), strict=True)) == pairs


@pytest.mark.deep
@settings(PATIENT)
@given(st.lists(st.tuples(keys, values, values), max_size=30))
def test_keys_are_kept_as_they_are(rows: list[tuple[Any, Any, Any]]) -> None:
    """A block made with the key column of another has its keys and the new values."""
    keys = [key for key, _, _ in rows]
    old = Block(encode_block(Side.BATCH, keys, [value for _, value, _ in rows]))
    data = encode_block(Side.STATE, [], [new for _, _, new in rows], old.key_column)
    block = Block(data)
    assert bytes(block.key_column) == bytes(old.key_column)
    assert block.keys() == old.keys() == keys
    assert block.values() == [new for _, _, new in rows]
    assert (block.side, block.rows) == (Side.STATE, len(rows))


def test_keys_are_not_unpickled_for_values() -> None:
    """Each column is decoded separately, on each access."""
    data = encode_block(Side.STATE, [], [[1], [2]], memoryview(b"no pickle at all"))
    block = Block(data)
    assert block.rows == 2
    first = block.values()
    first[0].append(5)
    assert block.values() == [[1], [2]]
    with pytest.raises(pickle.UnpicklingError):
        block.keys()


def change(value: Any) -> bool:
    """Change all that can be changed in *value*, in place; whether anything was."""
    if isinstance(value, list):
        inside = [change(item) for item in value]
        value.append("changed")
        return inside is not None
    if isinstance(value, dict):
        inside = [change(item) for item in value.values()]
        value["changed"] = True
        return inside is not None
    if isinstance(value, set):
        value.add("changed")
        return True
    if isinstance(value, Account):
        change(value.amounts)
        value.amounts = [value.amounts, "changed"]
        return True
    if isinstance(value, tuple):
        return [change(item) for item in value].count(True) > 0
    return False


@st.composite
def sharing_columns(draw: st.DrawFn) -> list[Any]:
    """Values among which are the same objects, at the top or inside of one another."""
    pool: list[Any] = draw(st.lists(values, min_size=1, max_size=3))
    wrappers: list[Callable[[Any], Any]] = [
        lambda value: value,
        lambda value: [value],
        lambda value: {"inside": value},
        lambda value: (1, (value,)),
        Account,
        lambda value: [value, value],
    ]
    choice = st.tuples(st.sampled_from(pool), st.sampled_from(wrappers))
    made = [wrap(value) for value, wrap in draw(st.lists(choice, min_size=1, max_size=8))]
    return draw(st.lists(st.sampled_from(made), min_size=1, max_size=8))


@pytest.mark.deep
@settings(PATIENT, max_examples=200)
@given(sharing_columns())
def test_changing_one_value_changes_no_other(column: list[Any]) -> None:
    """Each row has a copy of its own, also where the rows were given one object, however deep."""
    expected = copy.deepcopy(column)
    block = Block(encode_block(Side.STATE, list(range(len(column))), column))
    for row in range(len(column)):
        found = block.values()
        assert found == expected
        change(found[row])
        for other in range(len(column)):
            if other != row:
                assert found[other] == expected[other]


def test_sharing_within_a_row_is_kept() -> None:
    """An object that a value holds twice is still one object in that value."""
    inner = [1]
    other = [2]
    for column in ([[inner, inner], [other, other]], [[inner, inner], [inner, inner]]):
        for value in Block(encode_block(Side.STATE, [1, 2], column)).values():
            assert value[0] is value[1]


@pytest.mark.parametrize(
    "column",
    [
        ["x" * 50] * 1000,
        [(1, ("a", None))] * 1000,
        [frozenset({1, 2})] * 1000,
        [None, True, 1.5, b"b" * 50] * 250,
        [[number] for number in range(1000)],
        [{"count": number, "label": "x" * 50} for number in range(1000)],
        [datetime(2024, 1, 1, tzinfo=timezone.utc)] * 1000,
        [{"seen": datetime(2024, 1, 1, n % 24, tzinfo=timezone.utc)} for n in range(1000)],
        [int] * 1000,
        [{"side": Side.STATE} for _ in range(1000)],
    ],
    ids=lambda column: repr(column[0])[:30],
)
def test_values_that_cannot_change_are_stored_once(column: list[Any]) -> None:
    """Rows that share nothing that can be changed make one pickle, with nothing twice in it."""
    data = encode_block(Side.STATE, list(range(1000)), column)
    keys_only = encode_block(Side.STATE, list(range(1000)), [None] * 1000)
    assert len(data) - len(keys_only) <= len(pickle.dumps(column, 5))
    assert Block(data).values() == column


class Version(NamedTuple):
    """A tuple that is more than a tuple."""

    number: int


class Labelled(Version):
    """A tuple with attributes, which can be set."""


@pytest.mark.parametrize("kind", [Version, Labelled])
def test_named_tuples_in_several_values(kind: type[Version]) -> None:
    """A named tuple, such as a window, is stored once, unless something of it can be changed."""
    shared = kind(1)
    block = Block(encode_block(Side.STATE, [1, 2], [(shared, 1), (shared, 2)]))
    first, second = block.values()
    assert (first, second) == ((shared, 1), (shared, 2))
    assert (first[0] is second[0]) is (kind is Version)
    changed = Version([])  # type: ignore[arg-type]
    first, second = Block(encode_block(Side.STATE, [1, 2], [(changed,), (changed,)])).values()
    assert first[0] is not second[0]


@pytest.mark.parametrize(
    ("column", "has_columns"),
    [
        ([(n, f"name {n}") for n in range(100)], True),
        ([(n, (float(n), (None, b"x", n > 5))) for n in range(100)], True),
        ([(n, (n, (n, (n, (n, 1))))) for n in range(100)], False),  # too deep
        ([(1, 2), (1, 2, 3)], False),
        ([(1, 2), [1, 2]], False),
        ([(1, [2]), (3, [4])], False),
        ([(), (), ()], False),
        ([(Version(1), n) for n in range(100)], False),
        ([tuple(range(n, n + 40)) for n in range(100)], False),  # too wide
    ],
    ids=["flat", "nested", "deep", "lengths", "kinds", "mutable", "empty", "named", "wide"],
)
def test_fields_of_tuples_are_columns(column: list[Any], has_columns: bool) -> None:
    """Tuples of one length that hold plain values alone are written by their fields."""
    data = encode_block(Side.BATCH, list(range(len(column))), column)
    block = Block(data)
    packed = pickle.loads(data[10 + len(block.key_column) :])
    assert (type(packed) is tuple) is has_columns
    found = block.values()
    assert found == column
    kinds = [[type(field) for field in value] for value in column]
    assert [[type(field) for field in value] for value in found] == kinds


def blocks_of(pairs: Iterable[tuple[Any, Any]], by_columns: bool) -> list[bytes]:
    """Build blocks, pair by pair or by columns of 1000."""
    builder = BlockBuilder(Side.BATCH)
    blocks: list[bytes] = []
    if by_columns:
        rows = list(pairs)
        for start in range(0, len(rows), 1000):
            chunk = rows[start : start + 1000]
            blocks += builder.extend([key for key, _ in chunk], [value for _, value in chunk])
    else:
        blocks += filter(None, (builder.add(key, value) for key, value in pairs))
    return [*blocks, *builder.flush()]


def rows_of(blocks: Iterable[bytes]) -> list[tuple[Any, Any]]:
    """Return all pairs of *blocks*, in order."""
    decoded = map(Block, blocks)
    return [pair for block in decoded for pair in zip(block.keys(), block.values(), strict=True)]


SIZES: dict[str, list[int]] = {
    "nothing": [],
    "one": [10],
    "small": [10] * 30_000,
    "huge": [MIB // 2] * 100,
    "larger than a block": [3 * MIB] * 12,
    "small, then large": [10] * 64 + [100_000] * 400,
    "large, then small": [100_000] * 64 + [10] * 20_000,
    "a large one now and then": ([10] * 500 + [2 * MIB]) * 8,
}


@pytest.mark.deep
@pytest.mark.parametrize("by_columns", [False, True], ids=["pairs", "columns"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_blocks_are_bounded(sizes: list[int], by_columns: bool) -> None:
    """For any size of values, a block has at most a few MiB or one row."""
    pairs = [(number, number.to_bytes(4, "big") * (size // 4)) for number, size in enumerate(sizes)]
    blocks = blocks_of(pairs, by_columns)
    assert rows_of(blocks) == pairs
    for data in blocks:
        block = Block(data)
        assert 0 < block.rows <= MAX_ROWS
        assert block.size <= MAX_BYTES or block.rows == 1
    # Not many more than are needed: the sizes of rows are learned.
    needed = sum(sizes) / TARGET_BYTES + len(sizes) / MAX_ROWS
    assert len(blocks) <= 4 * needed + 20


@pytest.mark.parametrize("by_columns", [False, True], ids=["pairs", "columns"])
def test_nothing_is_kept_after_a_flush(by_columns: bool) -> None:
    """A builder goes on with the next rows only."""
    assert blocks_of([], by_columns) == []
    builder = BlockBuilder(Side.STATE)
    assert builder.add("a", 1) is None
    (first,) = builder.flush()
    assert list(builder.flush()) == []
    assert list(builder.extend(["b"], [2])) == []
    (second,) = builder.flush()
    assert rows_of([first, second]) == [("a", 1), ("b", 2)]
    assert Block(second).side is Side.STATE


def test_value_that_cannot_be_pickled_is_named_by_its_key() -> None:
    """The message has the key, the type and the reason, also when the keys are packed."""
    message = (
        "the value of type lock of key 'guilty' cannot be pickled "
        r"\(cannot pickle '_thread.lock' object\); use plain data"
    )
    values = [1, threading.Lock(), 3]
    keys = ["fine", "guilty", "later"]
    with pytest.raises(UnpicklableError, match=message):
        encode_block(Side.STATE, keys, values)
    packed = Block(encode_block(Side.STATE, keys, [1, 2, 3])).key_column
    with pytest.raises(UnpicklableError, match=message) as caught:
        encode_block(Side.STATE, [], values, packed)
    assert isinstance(caught.value.__cause__, TypeError)


def test_key_that_cannot_be_pickled_is_named() -> None:
    """A key may be at fault as well."""
    key = (1, threading.Lock())
    with pytest.raises(UnpicklableError, match=r"the key of type tuple of key \(1, <unlocked"):
        encode_block(Side.BATCH, ["a", key], [1, 2])


def test_shared_value_that_cannot_be_pickled_is_named_by_its_key() -> None:
    """The form for shared objects explains itself too."""
    shared = [threading.Lock()]
    with pytest.raises(UnpicklableError, match="the value of type list of key 7 cannot be pickled"):
        encode_block(Side.BATCH, [7, 8], [shared, shared])


def test_classes_that_no_module_has_travel_by_value() -> None:
    """Instances of a class of ``__main__`` or of a function are keys, values and shared values."""

    class Local(NamedTuple):
        number: int

    shared = Account([Local(1)])
    shared.label = Local  # type: ignore[attr-defined]
    column = [shared, shared, Account([Local(2)])]
    block = Block(encode_block(Side.STATE, [Local(1), Local(2), Local(3)], column))
    assert block.keys() == [(1,), (2,), (3,)]
    assert block.values() == column
    assert {type(key) for key in block.keys()} == {Local}  # noqa: SIM118 - no dict
    block.values()[0].amounts.append(3)
    assert block.values() == column


def test_a_key_beside_columns_of_fields_is_named() -> None:
    """As for values that were added as rows."""
    with pytest.raises(UnpicklableError, match="the key of type generator of key <generator"):
        encode_block(Side.BATCH, ["a", (_ for _ in ())], ([1, 2], ["x", "y"]))


class Once:
    """Can be pickled only the third time."""

    def __init__(self) -> None:
        self.attempts = 0

    def __reduce__(self) -> Any:
        self.attempts += 1
        if self.attempts <= 2:
            raise RuntimeError("not now")
        return Once, ()


def test_failure_without_a_culprit_is_reported() -> None:
    """If each value can be pickled separately, the error still has the reason."""
    with pytest.raises(UnpicklableError, match="values of a block cannot be pickled together") as e:
        encode_block(Side.BATCH, [1], [Once()])
    assert str(e.value.__cause__) == "not now"


class BadRepr:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", "'a'"),
        ("x" * 100, "'" + "x" * 76 + "..."),
        ("x" * 78, "'" + "x" * 78 + "'"),
        (BadRepr(), "<BadRepr, whose repr raises ZeroDivisionError>"),
        ([BadRepr()], "<list, whose repr raises ZeroDivisionError>"),
    ],
    ids=["short", "long", "just fits", "bad repr", "bad repr inside"],
)
def test_shorten(value: Any, expected: str) -> None:
    """A repr for a message is short and never fails."""
    assert shorten(value) == expected
    assert len(expected) <= 80


def test_equal_keys_of_a_block_stay_as_they_are() -> None:
    """A block keeps equal keys, unlike a dict."""
    rows = [(1, "a"), (1.0, "b"), (True, "c")]
    assert Counter(map(repr, rows_of(blocks_of(rows, False)))) == Counter(map(repr, rows))


KEYS = st.text(max_size=3) | st.integers(-3, 3)
PLAIN = st.integers() | st.text(max_size=3) | st.none() | st.tuples(st.integers(), st.text())
RECORDS = PLAIN | st.lists(st.integers(), max_size=2)
EVENTS = st.lists(st.tuples(KEYS, st.none() | st.integers(), RECORDS), max_size=30)


def in_columns(events: list[Any], at_once: int = 4) -> PairColumns:
    """Return (key, time, record) as pairs of key and event."""

    def columns() -> Iterator[Columns]:
        for start in range(0, len(events), at_once):
            keys, times, records = map(list, zip(*events[start : start + at_once], strict=True))
            yield keys, (times, records)

    return PairColumns(columns())


def moved(records: Any, partitions: int) -> dict[int, list[Any]]:
    """Return which pairs come to which partition."""
    frames = list(Route(StablePartitioner(partitions), Side.BATCH, "test")(0, records))
    found = defaultdict(list)
    for target, frame in zip(frames[::2], frames[1::2], strict=True):
        block = Block(frame)
        assert list(PairColumns([(block.keys(), block.column())])) == list(
            zip(block.keys(), block.values(), strict=True)
        )
        found[int.from_bytes(target, "big")] += zip(block.keys(), block.values(), strict=True)
    return found


@given(EVENTS, st.sampled_from([1, 2, 20]))
def test_columns_move_as_pairs_do(events: list[Any], partitions: int) -> None:
    """To the same partitions in the same order, for any records."""
    pairs = [(key, (time_us, record)) for key, time_us, record in events]
    assert list(in_columns(events)) == pairs
    assert moved(in_columns(events), partitions) == moved(iter(pairs), partitions)


def test_values_in_one_column_move_too() -> None:
    """Buffers of an aggregation have no fields."""
    columns = [(["a", "b"], [1, 2]), (["c"], [3])]
    assert moved(PairColumns(columns), 2) == moved([("a", 1), ("b", 2), ("c", 3)], 2)


def test_a_record_in_two_places_comes_out_twice() -> None:
    """A list that is shared before the shuffle is two lists after it, as with pairs."""
    shared = [1]
    columns = PairColumns([(["a", "b"], ([1, 2], [shared, shared]))])
    ((_, (_, first)), (_, (_, second))) = moved(columns, 1)[0]
    assert first == second == shared
    assert first is not second


def test_large_records_make_small_blocks() -> None:
    """The rows of a column may be in several blocks."""
    columns = PairColumns([(list(range(60)), ([0] * 60, ["x" * 1_000_000] * 30 + ["y"] * 30))])
    assert [key for key, _ in moved(columns, 1)[0]] == list(range(60))


def test_a_key_that_cannot_be_placed_is_named() -> None:
    """As for pairs."""
    columns = PairColumns([([["a"]], [1])])
    with pytest.raises(TypeError, match=r"test: the key \['a'\] cannot be placed"):
        moved(columns, 2)


def test_what_was_read_is_gone() -> None:
    """Pairs that were taken do not come again in columns, nor the other way round."""
    pairs = PairColumns([(["a"], [1]), (["b"], [2]), (["c"], [3])])
    assert next(pairs) == ("a", 1)
    assert next(columns_of(pairs)) == (["b"], [2])
    assert list(pairs) == [("c", 3)]


def test_fields_of_pairs() -> None:
    """Of rows and of columns, also of none."""
    assert two_columns([(1, "a"), (2, "b")]) == ([1, 2], ["a", "b"])
    assert two_columns(([1], (["a"], [2]))) == ([1], (["a"], [2]))
    assert two_columns([]) == ([], [])
