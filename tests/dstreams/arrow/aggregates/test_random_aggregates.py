"""Random batches of all types: aggregates are those of plain rows, however these are cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import ROUND_HALF_UP, Decimal
from itertools import chain
from struct import unpack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
pytest.importorskip("numpy", reason="pip install 'dstreams[arrow]'")

from dstreams.arrow.aggregates import (  # noqa: E402 - needs pyarrow
    ApproxDistinct,
    Count,
    First,
    Last,
    Max,
    Mean,
    Min,
    Sum,
    TopK,
    Variance,
)
from dstreams.arrow.aggregates.aggregates_by_key import (  # noqa: E402
    AggregatesByKey,
    MergedState,
    StateResults,
    _Merge,
    _Partial,
    state_update,
)
from dstreams.arrow.block_rdd import _Route, block_of_bytes  # noqa: E402
from dstreams.spark.blocks import Side  # noqa: E402

PARTITIONS = 2
TIMES = st.datetimes(
    datetime.fromisoformat("1990-01-01"),
    datetime.fromisoformat("2040-01-01"),
    timezones=st.just(timezone.utc),
)
VALUES = {
    "n": (pa.int64(), st.integers(-(2**40), 2**40)),
    "x": (pa.float64(), st.floats(-100, 100, width=16) | st.sampled_from([math.nan, math.inf])),
    "d": (pa.decimal128(9, 2), st.decimals(-1000, 1000, places=2)),
    "at": (pa.timestamp("us", "Europe/Berlin"), TIMES),
    "text": (pa.string(), st.sampled_from(["", "a", "B", "ключ", "鍵"])),
    "sort": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["new", "old"])),
    "flag": (pa.bool_(), st.booleans()),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | st.integers(0, 9), max_size=2)),
}
KEYS = {"shop": pa.string(), "day": pa.date32()}
RECORDS = pa.schema([*KEYS.items(), *((name, kind) for name, (kind, _) in VALUES.items())])
ORDERED = ("n", "x", "d", "at", "text", "sort", "flag")
NUMBERS = ("n", "x", "d")

AGGREGATES: dict[str, Any] = {
    "rows": Count(),
    **{f"count_{name}": Count(name) for name in VALUES},
    **{f"min_{name}": Min(name) for name in ORDERED},
    **{f"max_{name}": Max(name) for name in ORDERED},
    **{f"first_{name}": First(name) for name in VALUES},
    **{f"last_{name}": Last(name) for name in VALUES},
    **{f"first_there_{name}": First(name, ignoreNulls=True) for name in VALUES},
    **{f"last_by_{name}": Last(name, by="x") for name in VALUES},
    **{f"sum_{name}": Sum(name) for name in NUMBERS},
    **{f"mean_{name}": Mean(name) for name in NUMBERS},
    **{f"variance_{name}": Variance(name) for name in NUMBERS},
    **{f"top_{name}": TopK(name, 2) for name in ORDERED},
    "top_list_by_text": TopK("list", 2, by="text"),
    **{f"about_{name}": ApproxDistinct(name) for name in ORDERED},
}
BY_KEY = AggregatesByKey.checked("aggregateByKey", RECORDS, list(KEYS), AGGREGATES)
STATE = state_update(MergedState(BY_KEY))

ROW = st.tuples(
    st.none() | st.sampled_from(["", "a", "ключ", "a longer key"]),
    st.none() | st.dates().map(lambda day: day.replace(month=1, day=1)),
    *(st.none() | values for _, values in VALUES.values()),
)
BATCH = st.lists(st.lists(ROW, max_size=8), max_size=3)  # partitions of rows


def expected_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Aggregate the rows of one key, one by one."""
    there = {name: [row[name] for row in rows if row[name] is not None] for name in VALUES}
    of: dict[str, Any] = {"rows": len(rows)}
    for name in VALUES:
        of[f"count_{name}"] = len(there[name])
        of[f"first_{name}"] = rows[0][name]
        of[f"last_{name}"] = rows[-1][name]
        of[f"first_there_{name}"] = there[name][0] if there[name] else None
        latest = sorted((row for row in rows if row["x"] is not None), key=lambda r: order(r["x"]))
        of[f"last_by_{name}"] = latest[-1][name] if latest else None
    for name in ORDERED:
        in_order = sorted(there[name], key=order)
        of[f"min_{name}"] = in_order[0] if in_order else None
        of[f"max_{name}"] = in_order[-1] if in_order else None
        of[f"top_{name}"] = in_order[::-1][:2]
    for name in NUMBERS:
        values = there[name]
        of[f"sum_{name}"] = sum(values) if values else None
        of[f"mean_{name}"] = mean_of(values) if values else None
        of[f"variance_{name}"] = variance_of(list(map(float, values)))
    by_text = sorted((r for r in rows if r["text"] is not None), key=lambda r: order(r["text"]))
    greatest = sorted(by_text, key=lambda r: order(r["text"]), reverse=True)[:2]
    of["top_list_by_text"] = [{"list": row["list"], "text": row["text"]} for row in greatest]
    return of


def order(value: Any) -> Any:
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def mean_of(values: list[Any]) -> Any:
    if isinstance(values[0], Decimal):
        exact = sum(values) / len(values)
        return exact.quantize(Decimal("0.000001"), ROUND_HALF_UP)
    return float(sum(values)) / len(values)


def variance_of(values: list[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def blocks_of(rows: list[tuple[Any, ...]], size: int) -> list[Any]:
    """Cut rows into blocks."""
    starts = range(0, len(rows), size)
    return [block_of(rows[start : start + size]) for start in starts]


def block_of(rows: list[tuple[Any, ...]]) -> Any:
    columns = zip(*rows, strict=True) if rows else [()] * len(RECORDS)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, RECORDS, strict=True)]
    return pa.record_batch(arrays, schema=RECORDS)


def moved(batch: list[list[tuple[Any, ...]]], size: int) -> list[list[bytes]]:
    """The partial frames of a batch in each partition; later ones were delivered earlier."""
    frames: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for split, rows in enumerate(batch):
        partials = _Partial(BY_KEY, size)(split, blocks_of(rows, size))
        routed = _Route(tuple(KEYS), PARTITIONS, Side.BATCH, "test")(split, partials)
        for target, frame in addressed(routed):
            frames[target].insert(0, frame)
    return frames


def addressed(routed: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    for address in routed:
        yield unpack("!q", address)[0], next(routed)


def results(blocks: Any) -> dict[Any, dict[str, Any]]:
    rows = [row for block in blocks for row in block.to_pylist()]
    of_keys = {(row.pop("shop"), row.pop("day")): row for row in rows}
    assert len(of_keys) == len(rows)
    return of_keys


def require_same(seen: dict[Any, Any], batches: list[list[list[tuple[Any, ...]]]]) -> None:
    names = RECORDS.names
    records = [dict(zip(names, row, strict=True)) for row in chain.from_iterable(chain(*batches))]
    by_key: dict[Any, list[dict[str, Any]]] = {}
    for record in records:
        by_key.setdefault((record["shop"], record["day"]), []).append(record)
    assert seen.keys() == by_key.keys()
    whole = results([BY_KEY.results_of(BY_KEY.partial(block_of(list(chain(*chain(*batches))))))])
    for key, rows in by_key.items():
        for name, value in expected_of(rows).items():
            assert is_same(seen[key][name], value), (key, name, seen[key][name], value)
        for name in ORDERED:  # an estimate, but the same one however the rows are cut
            assert seen[key][f"about_{name}"] == whole[key][f"about_{name}"]


def is_same(left: Any, right: Any) -> bool:
    if isinstance(right, float) and isinstance(left, float):
        if math.isnan(right):
            return math.isnan(left)
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6)
    if isinstance(right, list) and isinstance(left, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    if isinstance(right, datetime) and isinstance(left, datetime):
        # In an hour that a clock repeats, times of two zones are never equal.
        return left.astimezone(timezone.utc) == right.astimezone(timezone.utc)
    return bool(left == right) and type(left) is type(right)


@pytest.mark.deep
@settings(max_examples=40, deadline=None)
@given(st.lists(BATCH, max_size=4), st.integers(1, 5))
def test_as_plain_rows(batches: list[list[list[tuple[Any, ...]]]], size: int) -> None:
    """Of each batch, each window of two and of all batches so far: what plain rows give."""
    states: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    window: list[list[list[Any]]] = []
    for number, batch in enumerate(batches):
        frames = moved(batch, size)
        of_batch = [list(_Merge(BY_KEY, True, True)(0, part)) for part in frames]
        require_same(results(chain(*of_batch)), [batch])
        window = [*window, [list(_Merge(BY_KEY, True, False)(0, part)) for part in frames]][-2:]
        of_window = [
            list(_Merge(BY_KEY, False, True)(0, chain(*parts)))
            for parts in zip(*window, strict=True)
        ]
        require_same(results(chain(*of_window)), batches[max(0, number - 1) : number + 1])
        states = [
            list(STATE.task(0, True, None)(0, [*part, *state]))
            for part, state in zip(frames, states, strict=True)
        ]
        kept = StateResults(BY_KEY)(0, map(block_of_bytes, chain(*states)))
        require_same(results(kept), batches[: number + 1])
