"""Random batches of all types: state in blocks is what a dict of rows has, however they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from struct import unpack
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
pc = pytest.importorskip("pyarrow.compute")
pytest.importorskip("numpy", reason="pip install 'dstreams[arrow]'")

from dstreams.arrow.block_rdd import (  # noqa: E402 - needs pyarrow
    FRAME_BYTES,
    block_of_bytes,
    frames_of_block,
)
from dstreams.arrow.key_hash import buckets_of, hashes_of, partitions_of, sizes_of  # noqa: E402  # noqa: E402
from dstreams.arrow.key_numbers import number_keys  # noqa: E402
from dstreams.arrow.rows import BlocksToRows, RowsToBlocks  # noqa: E402
from dstreams.arrow.state_step import StateLayout, StateStep  # noqa: E402
from dstreams.arrow.state_update import BlockUpdate  # noqa: E402
from dstreams.spark.blocks import Side  # noqa: E402

KEYS = pa.schema({"text": pa.string(), "day": pa.date32()})
SMALL = st.integers(0, 9)
LISTS = st.lists(st.lists(st.none() | SMALL, max_size=2), max_size=2)
MAPS = st.dictionaries(st.text(max_size=2), SMALL, max_size=2).map(lambda of: list(of.items()))
TIMES = st.datetimes(
    datetime.fromisoformat("1990-01-01"),
    datetime.fromisoformat("2040-01-01"),
    timezones=st.just(timezone.utc),
)
VALUES = {
    "real": (pa.float64(), st.floats()),
    "amount": (pa.decimal128(9, 2), st.decimals(-1000, 1000, places=2)),
    "at": (pa.timestamp("us", "Europe/Berlin"), TIMES),
    "list": (pa.list_(pa.list_(pa.int64())), LISTS),
    "map": (pa.map_(pa.string(), pa.int64()), MAPS),
    "span": (pa.duration("us"), st.timedeltas(timedelta(0), timedelta(9))),
}
COLUMNS = {name: kind for name, (kind, _) in VALUES.items()}
RECORDS = pa.schema([*KEYS, *COLUMNS.items()])
STATE = pa.schema([("count", pa.int64()), *COLUMNS.items()])
PARTITIONS = 3

ROW = st.tuples(
    st.none() | st.sampled_from(["", "a", "ключ", "鍵", "a longer key"]),
    st.none() | st.dates().map(lambda day: day.replace(month=1, day=1)),
    *(st.none() | values for _, values in VALUES.values()),
)


def update(keys: Any, values: Any, state: Any) -> Any:
    """Count the records of a key, keep the last of each column, and drop what has nine or more."""
    count = pc.add(pc.fill_null(state.column("count"), 0), values.count())
    touched = pc.greater(values.count(), 0)
    lasts = [_chosen(touched, values.last(name), state.column(name)) for name in COLUMNS]
    dropped = pc.greater_equal(count, 9)
    columns = [
        _chosen(pc.invert(dropped), each, pa.nulls(len(each), each.type))
        for each in (count, *lasts)
    ]
    return pa.record_batch(columns, schema=STATE)  # fmt: skip


def _chosen(flags: Any, left: Any, right: Any) -> Any:
    """Take the left value where the flag is set: nested columns, too, which if_else has not."""
    rows = pc.if_else(flags, pa.array(range(len(left))), pa.array(range(len(left), 2 * len(left))))
    return pa.concat_arrays([left, right]).take(rows)


def update_row(count: int | None, rows: list[tuple[Any, ...]], last: Any) -> Any:
    count = (count or 0) + len(rows)
    return None if count >= 9 else (count, *(rows[-1] if rows else last))


BATCHES = st.lists(st.lists(ROW, max_size=12), max_size=4)


@pytest.mark.deep
@settings(max_examples=60)
@given(BATCHES, st.integers(1, 5))
def test_as_a_dict_of_rows(batches: list[list[tuple[Any, ...]]], rows_at_once: int) -> None:
    """A state of blocks equals a dict that is updated row by row."""
    run_as_a_dict(batches, rows_at_once)


@pytest.mark.deep
@settings(max_examples=60)
@given(BATCHES, st.integers(1, 20), st.sampled_from([-1, 3, 8]), st.sampled_from([100, 1000]))
def test_as_a_dict_in_buckets(
    batches: list[list[tuple[Any, ...]]], rows_at_once: int, worth: int, frame: int
) -> None:
    """So it is if some or all blocks are in bucket order, in frames of a few rows."""
    with (
        mock.patch.multiple("dstreams.arrow.key_hash", WORTH_ROWS=worth),
        mock.patch.multiple("dstreams.arrow.state_step", WORTH_ROWS=worth),
        mock.patch.multiple("dstreams.arrow.block_rdd", FRAME_BYTES=frame),
    ):
        for frames in run_as_a_dict(batches, rows_at_once):
            require_buckets(frames, always=worth < 0)


def require_buckets(frames: list[bytes], *, always: bool) -> None:
    """Each row of frames that say so is in the bucket of its key."""
    for block in map(block_of_bytes, frames):
        sizes = sizes_of(block)
        assert sizes is not None or not always
        if sizes is not None:
            places = buckets_of(hashes_of([block.column(name) for name in KEYS.names]))
            assert places.tolist() == [n for n, size in enumerate(sizes) for _ in range(size)]


def run_as_a_dict(batches: list[list[tuple[Any, ...]]], rows_at_once: int) -> list[list[bytes]]:
    """Compare blocks with a dict after each batch; returns the frames of the last state."""
    to_blocks = RowsToBlocks(RECORDS, "toBlocks", rows_at_once)
    step = StateStep(update, "updateStateByKey", StateLayout(KEYS, STATE))
    update_of = BlockUpdate(step, RECORDS)
    task = update_of.task(0, True, None)
    states: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    expected: dict[Any, Any] = {}
    for batch in batches:
        route = update_of.layout.route(PARTITIONS, Side.BATCH, "updateStateByKey")
        moved: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        for target, frame in _pairs(route(0, to_blocks(0, batch))):
            moved[target].append(frame)
        states = [
            list(task(number, [*frames, *state]))
            for number, (frames, state) in enumerate(zip(moved, states, strict=True))
        ]
        for key in dict.fromkeys([*expected, *(row[:2] for row in batch)]):
            rows = [row[2:] for row in batch if row[:2] == key]
            count, *last = expected.pop(key, (None,) * (1 + len(VALUES)))
            after = update_row(count, rows, last)
            if after is not None:
                expected[key] = after
        seen = [row for state in states for row in BlocksToRows()(0, map(block_of_bytes, state))]
        assert len({row[:2] for row in seen}) == len(seen)
        assert {row[:2]: comparable(row[2:]) for row in seen} == {
            key: comparable(state) for key, state in expected.items()
        }
    return states


def _pairs(routed: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    for address in routed:
        yield unpack("!q", address)[0], next(routed)


def comparable(row: Any) -> str:
    """Return a row as text: a NaN is one like another, and a time is that of any zone."""
    return repr(list(map(_comparable, row)))


def _comparable(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).replace(fold=0)
    return value


@given(
    st.lists(
        st.tuples(
            st.integers(),
            st.floats(),
            st.none() | st.decimals(allow_nan=False, allow_infinity=False),
        )
    )
)
def test_no_value_becomes_another(rows: list[tuple[Any, ...]]) -> None:
    """Records survive the conversion, or the error has the record."""
    schema = pa.schema({"n": pa.int64(), "x": pa.float64(), "d": pa.decimal128(20, 4)})
    try:
        blocks = list(RowsToBlocks(schema, "toBlocks")(0, rows))
    except Exception as error:
        assert "toBlocks cannot put the record" in str(error)  # noqa: PT017 - most rows fit
        return
    back = list(BlocksToRows()(0, blocks))
    assert [(n, repr(x), d) for n, x, d in back] == [(n, repr(x), d) for n, x, d in rows]
    assert all(isinstance(d, Decimal | None) for *_, d in back)


DAYS = ["2026-01-01", "2026-01-02"]


def _near(low: str, high: str, zone: Any = None) -> st.SearchStrategy[datetime]:
    return st.datetimes(datetime.fromisoformat(low), datetime.fromisoformat(high), timezones=zone)


KEY_TYPES: dict[Any, Any] = {
    pa.string(): st.sampled_from(["", "a", "ключ", "鍵", "مفتاح", "a key of more than 16 bytes"]),
    pa.large_string(): st.text(max_size=2),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["a", "b", "c"]),
    pa.binary(): st.binary(max_size=9),
    pa.int8(): st.integers(-3, 3),
    pa.uint64(): st.integers(2**64 - 3, 2**64 - 1),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("inf")]),
    pa.float16(): st.sampled_from([0.0, -0.0, 1.5]),
    pa.bool_(): st.booleans(),
    pa.decimal128(9, 2): st.decimals(-1, 1, places=1),
    pa.date32(): st.dates(date(2026, 1, 1), date(2026, 1, 3)),
    pa.timestamp("us", "Asia/Tokyo"): _near(
        "2026-01-01", "2026-01-01T00:00:00.000003", st.just(timezone.utc)
    ),
    pa.timestamp("ms"): st.sampled_from(list(map(datetime.fromisoformat, DAYS))),
    pa.duration("us"): st.timedeltas(timedelta(0), timedelta(microseconds=3)),
}


@pytest.mark.deep
@settings(max_examples=150)
@given(st.data())
def test_keys_of_all_types(data: st.DataObject) -> None:
    """Equal keys have one number and one partition, and other keys other numbers."""
    kinds = data.draw(st.lists(st.sampled_from(list(KEY_TYPES)), min_size=1, max_size=2))
    row = st.tuples(*(st.none() | KEY_TYPES[kind] for kind in kinds))
    known = data.draw(st.lists(row, max_size=5, unique=True))
    rows = data.draw(st.lists(row, max_size=12))

    def columns(of: list[Any]) -> list[Any]:
        return [pa.array([each[n] for each in of], kind) for n, kind in enumerate(kinds)]

    numbers = number_keys(columns(known), columns(rows))
    expected = {key: number for number, key in enumerate(known)}
    for key in rows:
        expected.setdefault(key, len(expected))
    assert numbers.of_rows.tolist() == [expected[key] for key in rows]
    assert [rows[row] for row in numbers.new_rows] == list(expected)[len(known) :]
    placed = [*known, *rows]
    places = partitions_of(hashes_of(columns(placed)), PARTITIONS).tolist()
    assert len(dict.fromkeys(zip(placed, places, strict=True))) == len(expected)


def test_a_block_over_many_frames() -> None:
    """A block that is too large for one frame goes in several, also where its rows differ."""
    for texts in (["x"] * 300_000, ["x"] * 1000 + ["y" * (1 << 20)] * 5 + ["z"] * 1000):
        block = pa.record_batch({"text": texts})
        frames = list(frames_of_block(block, Side.STATE))
        assert max(map(len, frames)) < 5 * FRAME_BYTES
        assert len(frames) <= 2 * block.nbytes // FRAME_BYTES + 10
        blocks = [block_of_bytes(frame) for frame in frames]
        assert pa.Table.from_batches(blocks).column("text").to_pylist() == texts
