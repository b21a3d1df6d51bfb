"""Keys of blocks: where they belong, how they are numbered, and their values."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
np = pytest.importorskip("numpy", reason="pip install 'dstreams[arrow]'")

from dstreams.arrow.key_hash import UnplaceableKeyError, hashes_of, partitions_of  # noqa: E402
from dstreams.arrow.key_numbers import (  # noqa: E402 - needs pyarrow
    DuplicateStateKeyError,
    GroupedValues,
    number_keys,
)

TEXTS = st.text(max_size=20)
INTS = st.integers(-(2**63), 2**63 - 1)
KEYS = st.one_of(
    st.tuples(st.just(pa.string()), st.lists(st.none() | TEXTS)),
    st.tuples(st.just(pa.binary()), st.lists(st.none() | st.binary(max_size=20))),
    st.tuples(st.just(pa.int64()), st.lists(st.none() | INTS)),
    st.tuples(st.just(pa.float64()), st.lists(st.none() | st.floats(allow_nan=False))),
    st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans())),
    st.tuples(st.just(pa.date32()), st.lists(st.none() | st.dates())),
    st.tuples(st.just(pa.timestamp("us")), st.lists(st.none() | st.datetimes())),
    st.tuples(
        st.just(pa.decimal128(12, 2)), st.lists(st.none() | st.decimals(-(10**9), 10**9, places=2))
    ),
)


@pytest.mark.deep
@given(KEYS, st.integers(0, 5), st.integers(1, 9))
def test_equal_keys_have_one_place(keys: tuple[Any, list[Any]], cut: int, partitions: int) -> None:
    """The partition of a key does not depend on its row in a block."""
    kind, values = keys
    column = pa.array(values, kind)
    places = partitions_of(hashes_of([column]), partitions).tolist()
    of_keys: dict[Any, int] = {}
    for value, place in zip(column.to_pylist(), places, strict=True):
        assert 0 <= place < partitions
        assert of_keys.setdefault(value, place) == place
    assert hashes_of([column.slice(cut)]).tolist() == hashes_of([column]).tolist()[cut:]


def test_places_stay() -> None:
    """The places of all releases: state that was written is where it is looked for."""
    columns = {
        "text": pa.array(["", "a", "Grüße", "a longer text than a word", None]),
        "int64": pa.array([0, 1, -1, 2**62, None]),
        "float64": pa.array([0.0, 1.5, -1.0, 1e300, None]),
    }
    seen = {name: hashes_of([column]).tolist() for name, column in columns.items()}
    assert seen == PLACES


PLACES = {
    "text": [
        12035550249420947055,
        2032973259850375103,
        4117107498188768687,
        15496612744352651157,
        2361492071075283931,
    ],
    "int64": [
        12035550249420947055,
        6791897765849424158,
        6755974106381971767,
        13758858877095464340,
        2361492071075283931,
    ],
    "float64": [
        12035550249420947055,
        7640868585037623358,
        8304426954397450370,
        9370999698815003271,
        2361492071075283931,
    ],
}


def test_widths_do_not_matter() -> None:
    """Equal numbers and strings have one partition in columns of any width."""
    numbers = [0, 1, 100, None]
    assert (
        len(
            {
                tuple(hashes_of([pa.array(numbers, kind)]))
                for kind in (pa.int8(), pa.uint16(), pa.int64())
            }
        )
        == 1
    )
    texts = ["", "a", None]
    assert (
        len(
            {
                tuple(hashes_of([pa.array(texts, kind)]))
                for kind in (pa.string(), pa.large_string(), pa.binary())
            }
        )
        == 1
    )


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([1.0, float("nan")]), "NaN cannot be a key.*row 1"),
        (pa.array([[1]]), "a column of list<.*> cannot be a key"),
    ],
)
def test_what_cannot_be_a_key(column: Any, says: str) -> None:
    """A key that equals nothing, or that has no place, is refused."""
    with pytest.raises(UnplaceableKeyError, match=says):
        hashes_of([column])


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None, ""]), st.none() | st.integers(-9, 9), st.none() | INTS
    )
)


@given(ROWS, ROWS)
def test_keys_and_values_as_a_dict_has_them(state: list[Any], rows: list[Any]) -> None:
    """Keys of two columns, nulls among them, and every aggregate, against plain Python."""
    known = list(dict.fromkeys((k, n) for k, n, _ in state))
    columns = [[row[i] for row in rows] for i in range(3)]
    records = pa.record_batch(
        [
            pa.array(c, t)
            for c, t in zip(columns, (pa.string(), pa.int64(), pa.int64()), strict=True)
        ],
        names=["k", "n", "v"],
    )
    numbers = number_keys(
        [pa.array([k for k, _ in known], pa.string()), pa.array([n for _, n in known], pa.int64())],
        [records.column("k"), records.column("n")],
        unique=False,
    )
    keys = known + [rows[row][:2] for row in numbers.new_rows]
    assert keys == list(dict.fromkeys(known + [row[:2] for row in rows]))
    assert [keys[number] for number in numbers.of_rows] == [row[:2] for row in rows]
    values: defaultdict[Any, list[Any]] = defaultdict(list)
    for k, n, v in rows:
        values[k, n].append(v)
    groups = GroupedValues(records, numbers.of_rows, numbers.count)
    lists = [values[key] for key in keys]
    valid = [[v for v in each if v is not None] for each in lists]
    assert groups.count().to_pylist() == list(map(len, lists))
    assert groups.count("v").to_pylist() == list(map(len, valid))
    assert groups.lists("v").to_pylist() == lists
    assert groups.min("v").to_pylist() == [min(each, default=None) for each in valid]
    assert groups.max("v").to_pylist() == [max(each, default=None) for each in valid]
    assert groups.first("v").to_pylist() == [each[0] if each else None for each in lists]
    assert groups.last("v").to_pylist() == [each[-1] if each else None for each in lists]
    assert groups.sum("n").to_pylist() == [
        None if n is None or not each else n * len(each)
        for (_, n), each in zip(keys, lists, strict=True)
    ]


def test_nan_is_greater_than_all() -> None:
    """As in Spark, and as the aggregates Min and Max have it."""
    records = pa.record_batch({"x": [1.0, float("nan"), float("nan"), None, None]})
    groups = GroupedValues(records, np.array([0, 0, 1, 1, 2]), 3)
    assert repr(groups.min("x").to_pylist()) == "[1.0, nan, None]"
    assert repr(groups.max("x").to_pylist()) == "[nan, nan, None]"


def test_a_state_with_a_key_twice() -> None:
    """The error of a duplicate key has its rows."""
    with pytest.raises(DuplicateStateKeyError, match="row 2 of the state has the key of row 0"):
        number_keys([pa.array(["a", "b", "a"])], [pa.array(["a"])], unique=False)


@pytest.mark.parametrize("values", [[2**62, 2**62], [2**62, None, 2**62]])
def test_a_sum_beyond_its_range(values: list[Any]) -> None:
    """No sum comes out on the other side of its range."""
    records = pa.record_batch({"n": pa.array([1, *values])})
    groups = GroupedValues(records, np.array([0] + [1] * len(values)), 2)
    with pytest.raises(OverflowError, match=r"the sum of the column 'n' leaves .* int64 .* row 1"):
        groups.sum("n")
