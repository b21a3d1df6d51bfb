"""Each aggregate by tables, what is refused, and how near an estimate is."""

from __future__ import annotations

import importlib
import math
import sys
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
np = pytest.importorskip("numpy", reason="pip install 'dstreams[arrow]'")

from dstreams import EnvironmentNotReadyError, InvalidStreamError  # noqa: E402
from dstreams.arrow import aggregates  # noqa: E402
from dstreams.arrow.aggregates import (  # noqa: E402 - needs pyarrow
    ApproxDistinct,
    Count,
    First,
    Last,
    Max,
    Mean,
    Min,
    StdDev,
    Sum,
    TopK,
    Variance,
)
from dstreams.arrow.aggregates.aggregates_by_key import AggregatesByKey, MergedState, state_update  # noqa: E402
from dstreams.arrow.aggregates.functions import CollectList  # noqa: E402
from dstreams.arrow.block_rdd import together  # noqa: E402
from dstreams.spark.failures import UserFunctionError  # noqa: E402

NAN = math.nan
DECIMALS = pa.decimal128(6, 2)
TOKYO = pa.timestamp("us", "Asia/Tokyo")
NOON = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)


def by_key(kind: Any, aggregate: Any) -> AggregatesByKey:
    columns = pa.schema([("key", pa.string()), ("x", kind), ("by", pa.int64())])
    return AggregatesByKey.checked("test", columns, "key", {"made": aggregate})


def made_of(aggregate: Any, kind: Any, values: list[Any], by: list[Any] | None = None) -> Any:
    """Return the result for one key: of one block, and of a block for each value."""
    of = by_key(kind, aggregate)
    names = ["key", "x", "by"]
    columns = [pa.array(["a"] * len(values)), pa.array(values, kind)]
    columns.append(pa.array(by or [None] * len(values), pa.int64()))
    block = pa.record_batch(columns, names=names)
    at_once = of.results_of(of.partial(block))
    parts = [of.partial(block.slice(row, 1)) for row in range(len(values))]
    in_parts = of.results_of(of.merged(together(parts, "test")))
    assert at_once.schema == in_parts.schema == of.results
    assert repr(at_once.to_pylist()) == repr(in_parts.to_pylist())
    return at_once.column("made").to_pylist()[0]


@pytest.mark.parametrize(
    ("aggregate", "kind", "values", "result"),
    [
        (Count(), pa.int64(), [1, None, 3], 3),
        (Count("x"), pa.int64(), [1, None, 3], 2),
        (Count("x"), pa.null(), [None], 0),
        (Sum("x"), pa.int8(), [127, 127, None], 254),
        (Sum("x"), pa.int64(), [None, None], None),
        (Sum("x"), pa.int64(), [2**63 - 1, 5, -5], 2**63 - 1),
        (Sum("x"), pa.uint64(), [2**63, 2**62], 2**63 + 2**62),
        (Sum("x"), pa.float32(), [0.5, 0.25], 0.75),
        (Sum("x"), pa.float64(), [1.0, NAN], NAN),
        (Sum("x"), pa.float64(), [math.inf, -math.inf], NAN),
        (Sum("x"), DECIMALS, [Decimal("9999.99")] * 2, Decimal("19999.98")),
        (Sum("x"), pa.duration("s"), [timedelta(1), timedelta(2)], timedelta(3)),
        (Mean("x"), pa.int64(), [1, 2, None], 1.5),
        (Mean("x"), pa.float64(), [], None),
        (Mean("x"), DECIMALS, [Decimal("0.01"), Decimal("0.02")], Decimal("0.015000")),
        (Mean("x"), DECIMALS, [Decimal("-0.01"), 0, 0], Decimal("-0.003333")),
        (Mean("x"), DECIMALS, [Decimal("0.02"), 0, 0], Decimal("0.006667")),
        (Variance("x"), pa.int64(), [1, 2, 3, None], 1.0),
        (Variance("x", ddof=0), pa.float64(), [1.0, 3.0], 1.0),
        (Variance("x"), pa.float64(), [1.0], None),
        (Variance("x"), DECIMALS, [Decimal(1), Decimal(3)], 2.0),
        (StdDev("x"), pa.int64(), [1, 3, 5, None], 2.0),
        (StdDev("x"), pa.float64(), [1.0], None),
        (Min("x"), pa.float64(), [NAN, 1.0, -math.inf], -math.inf),
        (Min("x"), pa.float64(), [NAN, None], NAN),
        (Max("x"), pa.float64(), [NAN, math.inf], NAN),
        (Max("x"), pa.string(), ["Z", "a", "ä", None], "ä"),
        (Max("x"), pa.dictionary(pa.int8(), pa.string()), ["new", "old", "new"], "old"),
        (Min("x"), pa.bool_(), [True, False], False),
        (Max("x"), TOKYO, [NOON, NOON + timedelta(1)], NOON + timedelta(1)),
        (Min("x"), DECIMALS, [Decimal("2.00"), Decimal("-1.00")], Decimal("-1.00")),
        (First("x"), pa.int64(), [None, 1], None),
        (First("x", ignoreNulls=True), pa.int64(), [None, 1, 2], 1),
        (Last("x"), pa.list_(pa.int64()), [[1], [2, None]], [2, None]),
        (Last("x", ignoreNulls=True), pa.string(), ["a", "b", None], "b"),
        (TopK("x", 2), pa.float64(), [1.0, NAN, 3.0], [NAN, 3.0]),
        (TopK("x", 3), pa.string(), ["b", None, "a"], ["b", "a"]),
        (ApproxDistinct("x"), pa.float64(), [NAN, -NAN, 0.0, -0.0, None], 2),
        (ApproxDistinct("x"), pa.string(), [None], 0),
    ],
    ids=repr,
)
def test_results(aggregate: Any, kind: Any, values: list[Any], result: Any) -> None:
    """The result of an aggregate, of all values at once and one by one."""
    if values:
        assert repr(made_of(aggregate, kind, values)) == repr(
            pa.array([result], by_key(kind, aggregate).results.field("made").type).to_pylist()[0]
        )


def test_rows_by_another_column() -> None:
    """The value of the row with the least or greatest of another column."""
    values, by = ["a", "b", "c", "d"], [2, 1, None, 2]
    assert made_of(First("x", by="by"), pa.string(), values, by) == "b"
    assert made_of(Last("x", by="by"), pa.string(), values, by) == "d"
    assert made_of(First("x", by="by"), pa.string(), ["a", "b"], [None, None]) is None
    assert made_of(TopK("x", 2, by="by"), pa.string(), values, by) == [
        {"x": "a", "by": 2},
        {"x": "d", "by": 2},
    ]


COLUMNS = pa.schema(
    [("shop", pa.string()), ("x", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int8()))]
)


@pytest.mark.parametrize(
    ("key", "aggregates", "says"),
    [
        ("shop", {}, r"test needs an aggregate: test\('shop', sales=Count\(\)\)"),
        ("shop", {"a": Sum("cents")}, "a=.* needs the column 'cents'; the blocks have shop, x,"),
        ("shop", {"a": Last("x", by="at")}, "needs the column 'at'"),
        ("shop", {"a": Sum("text")}, "a=.* of test: values of string cannot be summed; use int"),
        ("shop", {"a": Mean("text")}, "values of string have no mean"),
        ("shop", {"a": Sum(len)}, "of must be the name of a column of the blocks, got <built-in"),
        ("shop", {"a": Max()}, "of must be the name of a column of the blocks, got None"),
        ("shop", {"a": CollectList("x")}, "must be an aggregate of columns, such as Sum"),
        ("shop", {"a": Variance("text")}, "values of string have no variance"),
        ("shop", {"a": Max("list")}, "values of list<.*> have no order"),
        ("shop", {"a": TopK("list", 3)}, "values of list<.*> have no order"),
        ("shop", {"a": Last("x", by="list")}, "values of list<.*> have no order"),
        ("shop", {"a": ApproxDistinct("list")}, "values of list<.*> have no hash"),
        ("shop", {"shop": Count()}, "a column of the key is named 'shop', too"),
        (
            "town",
            {"a": Count()},
            "key of test must be columns of its blocks, .* got 'town'",
        ),
        ("list", {"a": Count()}, "a column of list<.*> cannot be a key"),
        ("shop", {"a": "sum"}, "a='sum' of test must be an aggregate"),
        ("shop", {"a": Sum}, "must be an aggregate"),
    ],
)
def test_bad_definitions(key: str, aggregates: dict[str, Any], says: str) -> None:
    """Invalid arguments are rejected at the definition."""
    with pytest.raises(InvalidStreamError, match=says):
        AggregatesByKey.checked("test", COLUMNS, key, aggregates)


def test_blocks_without_a_schema() -> None:
    """Columns must be known before there are any."""
    with pytest.raises(InvalidStreamError, match="needs blocks of a declared schema"):
        AggregatesByKey.checked("test", None, "shop", {"a": Count()})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TopK("x", 0), "k of TopK must be a positive integer, got 0"),
        (lambda: Variance("x", ddof=2), "ddof of Variance must be 0 or 1, got 2"),
        (lambda: StdDev("x", ddof=2), "ddof of StdDev must be 0 or 1, got 2"),
        (lambda: ApproxDistinct("x", 0.9), r"must be from 0.0021 to 0.09, got 0.9"),
        (lambda: ApproxDistinct("x", 0.0), "relativeSD of ApproxDistinct must be from"),
    ],
)
def test_bad_parameters(make: Any, says: str) -> None:
    """Parameters of an aggregate are checked when it is made."""
    with pytest.raises(ValueError, match=says):
        make()


def test_a_sum_that_leaves_its_range() -> None:
    """The key and the column are named, in one block and where parts are merged."""
    of = AggregatesByKey.checked("test at app.py:7", COLUMNS, ["shop"], {"total": Sum("x")})
    columns = [["a", "b", "b"], [1, 2**62, 2**62], [None] * 3, [None] * 3]
    block = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, COLUMNS, strict=True)], schema=COLUMNS
    )
    says = (
        r"total=Sum\(of='x'\) of test at app.py:7: the sum of the column 'x' for the key "
        r"\{'shop': 'b'\} leaves the range of int64"
    )
    with pytest.raises(UserFunctionError, match=says):
        of.partial(block)
    parts = together([of.partial(block.slice(row, 1)) for row in range(3)], "test")
    with pytest.raises(UserFunctionError, match=says):
        of.merged(parts)
    update = state_update(MergedState(of))
    state, _ = update.step.next(None, of.partial(block.slice(1, 1)))
    with pytest.raises(UserFunctionError, match=says):
        update.step.next(state, of.partial(block.slice(2, 1)))


def test_an_aggregate_that_is_added() -> None:
    """Keys of a state that was kept without an aggregate begin with nothing of it."""
    every = {
        "sales": Count(), "total": Sum("x"), "mean": Mean("x"), "spread": Variance("x"),
        "most": Max("x"), "first": First("x"), "last": Last("x", by="x"), "top": TopK("x", 2),
        "about": ApproxDistinct("x"),
    }  # fmt: skip
    of = AggregatesByKey.checked("test", COLUMNS, "shop", every)
    schema = pa.schema([*of.keys, *state_update(MergedState(of)).step.layout.state])
    old = pa.record_batch([pa.nulls(1, each.type) for each in schema], schema=schema).set_column(
        0, "shop", pa.array(["a"])
    )
    old = old.set_column(old.num_columns - 1, ".seen", pa.array([True]))
    columns = [["a", "a"], [4, 6], [None] * 2, [None] * 2]
    block = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, COLUMNS, strict=True)], schema=COLUMNS
    )
    parts = of.partial(block).append_column(".place", pa.array([0]))
    state, _ = state_update(MergedState(of)).step.next(old, parts)
    assert of.results_of(old).to_pylist() == [
        {"shop": "a", "sales": None, "total": None, "mean": None, "spread": None, "most": None,
         "first": None, "last": None, "top": None, "about": 0}
    ]  # fmt: skip
    assert of.results_of(state).to_pylist() == [
        {"shop": "a", "sales": 2, "total": 10, "mean": 5.0, "spread": 2.0, "most": 6,
         "first": 4, "last": 6, "top": [6, 4], "about": 2}
    ]  # fmt: skip


SIZES = [1, 10, 100, 500, 1000, 2000, 5000, 20_000, 100_000]


@pytest.mark.deep
@pytest.mark.parametrize(("relative_sd", "bits"), [(0.09, 8), (0.05, 9), (0.01, 14)])
def test_estimates_are_near(relative_sd: float, bits: int) -> None:
    """Over fixed random values the error has the deviation that is stated, few values or many."""
    aggregate = ApproxDistinct("x", relative_sd)
    assert aggregate.bits == bits
    rng = np.random.default_rng(17)
    trials = 30 if bits < 14 else 8
    of = by_key(pa.int64(), aggregate)
    for size in SIZES if bits < 14 else SIZES[::2]:
        values = rng.integers(-(2**62), 2**62, size * trials)
        keys = np.repeat(np.arange(trials), size).astype(str)
        nothing = pa.nulls(len(values), pa.int64())
        block = pa.record_batch([pa.array(keys), values, nothing], names=["key", "x", "by"])
        seen = of.results_of(of.partial(block)).column("made").to_numpy()
        errors = seen / size - 1
        spread = float(np.sqrt(np.mean(errors**2)))
        assert spread <= relative_sd * (1 + 3 / math.sqrt(2 * trials)), (size, spread)
        assert abs(errors).max() <= 4 * relative_sd, (size, errors)


def test_registers_do_not_depend_on_the_cut() -> None:
    """The registers of a key do not depend on the order and number of merges."""
    of = by_key(pa.string(), ApproxDistinct("x"))
    values = [f"Wert {number % 4000}" for number in range(9000)]
    keys = [f"key {number % 3}" for number in range(9000)]
    block = pa.record_batch(
        [pa.array(keys), pa.array(values), pa.nulls(9000, pa.int64())], names=["key", "x", "by"]
    )
    whole = of.partial(block)
    for size in (1000, 4001):
        parts = [of.partial(block.slice(start, size)) for start in range(0, 9000, size)]
        merged = of.merged(together([*parts[::-1], *parts], "test"))
        assert sorted(map(repr, merged.to_pylist())) == sorted(map(repr, whole.to_pylist()))
    assert whole.schema.field("made.registers").type == pa.list_(pa.uint16())


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow, the error has the command to install it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentNotReadyError, match=r"Sum needs pyarrow.*'dstreams\[arrow\]'"):
        aggregates.__getattr__("Sum")
    with pytest.raises(AttributeError, match="no attribute 'Median'"):
        aggregates.__getattr__("Median")


def test_queries_and_blocks_have_the_same_classes() -> None:
    """Both packages give one class for each name, and the mean has two names."""
    queries = importlib.import_module("dstreams.structured.api.aggregates")
    shared = set(aggregates.__all__) & set(queries.__all__)
    names = ("Average", "Count", "First", "Last", "Max", "Mean", "Min", "StdDev", "Sum")
    assert shared == {*names, "Variance"}
    assert all(getattr(aggregates, name) is getattr(queries, name) for name in shared)
    assert aggregates.Mean is aggregates.Average
