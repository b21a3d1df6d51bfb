"""A state in blocks over changed programs: columns that come, what is refused, what tools see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark import SparkContext

from dstreams import DStream, InvalidStreamError, RestartError, StreamingContext
from dstreams.cli.main import main
from dstreams.testing import ManualClock, run_batches

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
pc = pytest.importorskip("pyarrow.compute")
pytest.importorskip("numpy", reason="pip install 'dstreams[arrow]'")

from dstreams.arrow.state_step import StateColumnsError, StateLayout, defaults_of  # noqa: E402

PAIRS = {"text": str, "number": int}

PROGRAM = """
import sys
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dstreams import StreamingContext, tuned_context
from dstreams.testing import ManualClock

version, checkpoint = int(sys.argv[1]), sys.argv[2]
BATCHES = [[("a", 1), ("b", 2)], [("a", 3)], [("c", 5), ("a", 4)]]


class Total(NamedTuple):
    total: int


class Grown(NamedTuple):
    label: str = "old"
    total: int = 0
    least: int | None = None


def add(keys, values, state):
    total = pc.add(pc.fill_null(state.column("total"), 0), pc.fill_null(values.sum("number"), 0))
    return pa.record_batch({"total": total})


def add_and_label(keys, values, state):
    total = add(keys, values, state).column("total")
    label = pc.fill_null(state.column("label"), "new")
    least = pc.min_element_wise(state.column("least"), values.min("number"))
    return pa.record_batch({"label": label, "total": total, "least": least})


def define():
    ssc = StreamingContext(tuned_context("app", "local[2]"), 1, clock=ManualClock())
    ssc.checkpoint(checkpoint)
    pairs = ssc.queueStream(BATCHES, replayable=True)
    func, state, partitions = ((add, Total, 2), (add_and_label, Grown, 3))[version - 1]
    blocks = pairs.toBlocks({"text": str, "number": int})
    states = blocks.updateStateByKey(func, partitions, key="text", state=state, uid="totals")
    states.toRows().foreachRDD(lambda rdd: print(sorted(rdd.collect()), flush=True))
    return ssc


ssc = StreamingContext.restore(checkpoint, define)
ssc.step(2 if version == 1 else 1)
ssc.stop(stopGraceFully=True)
"""


def run(program: Path, version: int, checkpoint: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(program), str(version), str(checkpoint)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def rows_of(capsys: pytest.CaptureFixture[str], *words: object) -> list[Any]:
    capsys.readouterr()
    assert main(["checkpoint", "read", *map(str, words), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda row: str(row["key"]))


@pytest.mark.deep
def test_a_changed_program_adds_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys of an earlier process have the declared defaults, also in other partitions."""
    program, checkpoint = tmp_path / "app.py", tmp_path / "checkpoint"
    program.write_text(PROGRAM, encoding="utf-8")
    assert run(program, 1, checkpoint)[-1] == "[('a', 4), ('b', 2)]"
    assert rows_of(capsys, checkpoint) == [
        {"key": "a", "value": {"total": 4}},
        {"key": "b", "value": {"total": 2}},
    ]
    assert rows_of(capsys, checkpoint, "--key", "b") == [{"key": "b", "value": {"total": 2}}]
    after = "[('a', 'old', 8, 4), ('b', 'old', 2, None), ('c', 'new', 5, 5)]"
    assert run(program, 2, checkpoint)[-1] == after
    assert rows_of(capsys, checkpoint)[0] == {
        "key": "a",
        "value": {"label": "old", "total": 8, "least": 4},
    }


def add(keys: Any, values: Any, state: Any) -> Any:
    """The running sum of each key."""
    total = pc.add(pc.fill_null(state.column("total"), 0), pc.fill_null(values.sum("number"), 0))
    return pa.record_batch({"total": total})


def touched(keys: Any, values: Any, state: Any) -> Any:
    after = add(keys, values, state)
    columns = [*keys.columns, after.column("total")]
    return after, pa.record_batch(columns, names=["text", "now"])


Define = Callable[[DStream[Any]], Any]


def totals(columns: Any = None, key: str = "text", state: Any = None) -> Define:
    blocks = columns or PAIRS
    return lambda pairs: pairs.toBlocks(blocks).updateStateByKey(
        add, 2, key=key, state=state or {"total": int}, uid="totals"
    )


def setup(sc: SparkContext, directory: Path, define: Define) -> Callable[[], StreamingContext]:
    def make() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock())
        ssc.checkpoint(str(directory))
        pairs = ssc.queueStream([[("a", 1)], [("b", 2)], [("a", 3)]], replayable=True)
        define(pairs).foreachRDD(lambda rdd: rdd.count())
        return ssc

    return make


REFUSED: dict[str, tuple[Define, str]] = {
    "another type": (
        totals(state={"total": float}),
        "the column 'total' of the state of 'totals' was int64, and is double in "
        r"updateStateByKey at .*; keep its type and add a column of the new one, or give another",
    ),
    "a column that is gone": (
        totals(state={"sum": int}),
        r"the column 'total' \(int64\) of the state of 'totals' is not declared in .* any more; "
        "declare it, even if unused",
    ),
    "another key": (
        totals({"number": int, "text": str}, key="number"),
        "the key of the state of 'totals' was text string, and is number int64 in .*, so no key "
        "would be found",
    ),
    "another type of key": (
        totals({"text": bytes, "number": int}),
        "the key of the state of 'totals' was text string, and is text binary in",
    ),
    "rows": (
        lambda pairs: pairs.updateStateByKey(lambda values, state: state, 2, uid="totals"),
        r"the state of 'totals' is kept in blocks, and .* keeps it in pairs; give another uid=, "
        r"and drop this state \(allowRemoved=\['totals'\]\)",
    ),
}


@pytest.mark.deep
def test_what_is_refused_before_a_batch_runs(sc: SparkContext, tmp_path: Path) -> None:
    """A state of other columns is named at restart, and is left as it is."""
    ssc = setup(sc, tmp_path, totals())()
    ssc.step(2)
    ssc.stop(stopSparkContext=False)
    for define, says in REFUSED.values():
        with pytest.raises(RestartError, match=says):
            StreamingContext.restore(str(tmp_path), setup(sc, tmp_path, define))
    grown = totals(state={"total": int, "count": pa.int64()})
    report = StreamingContext.restore(str(tmp_path), setup(sc, tmp_path, grown), dryRun=True)
    assert "the columns count are added to the state of totals" in str(report)
    ssc = StreamingContext.restore(str(tmp_path), setup(sc, tmp_path, totals()))
    ssc.step(1)
    ssc.stop(stopSparkContext=False)


class Defaults(NamedTuple):
    one: int = 7
    word: str = "x"
    none: float | None = None
    items: list[int] = [1, 2]  # noqa: RUF012 - a default as programs have it


@dataclass
class Inner:
    left: int
    right: str


@dataclass
class Declared:
    total: int
    inner: Inner = field(default_factory=lambda: Inner(1, "r"))


def test_defaults_that_are_declared() -> None:
    """Those of a NamedTuple and of a dataclass, nested ones as well."""
    from dstreams.arrow.schemas import schema_of  # noqa: PLC0415 - needs pyarrow

    old = pa.record_batch({"key": ["a", "b"], "total": [1, 2]})
    for declared, expected in (
        (Defaults, {"one": 7, "word": "x", "none": None, "items": [1, 2]}),
        (Declared, {"inner": {"left": 1, "right": "r"}}),
    ):
        state = schema_of(declared, "here")
        if "total" not in state.names:
            state = state.append(pa.field("total", pa.int64()))
        keys = pa.schema([("key", pa.string())])
        layout = StateLayout(keys, state, defaults_of(declared, state, "here"))
        grown = layout.grown(old, "here")
        assert grown.schema == layout.schema
        assert grown.to_pylist() == [
            {"key": "a", "total": 1, **expected},
            {"key": "b", "total": 2, **expected},
        ]


def test_wider_types() -> None:
    """Values of an earlier program are converted to a type that can represent all of them."""
    old = pa.record_batch(
        {"key": ["a"], "total": pa.array([5], pa.int32()), "rate": pa.array([0.5], pa.float32())}
    )
    keys = pa.schema([("key", pa.string())])
    layout = StateLayout(keys, pa.schema([("total", pa.float64()), ("rate", pa.float64())]))
    assert layout.grown(old, "here").to_pylist() == [{"key": "a", "total": 5.0, "rate": 0.5}]
    narrower = StateLayout(keys, pa.schema([("total", pa.int16()), ("rate", pa.float32())]))
    with pytest.raises(StateColumnsError, match=r"'total' .* is int32, but int16 is declared"):
        narrower.grown(old, "here")


def test_what_a_block_of_another_schema_is() -> None:
    """Named where no description of the state was there to compare."""
    layout = StateLayout(pa.schema([("key", pa.string())]), pa.schema([("total", pa.int64())]))
    with pytest.raises(StateColumnsError, match="has a column 'sum', which is no longer declared"):
        layout.grown(pa.record_batch({"key": ["a"], "sum": [1]}), "here")
    with pytest.raises(StateColumnsError, match=r"'total' .* is string, but int64 is declared"):
        layout.grown(pa.record_batch({"key": ["a"], "total": ["1"]}), "here")


class Wrong(NamedTuple):
    total: int = "none"  # type: ignore[assignment]


def test_a_default_that_does_not_fit() -> None:
    """It is refused where it is declared."""
    with pytest.raises(InvalidStreamError, match="default 'none' of the column 'total' of here"):
        defaults_of(Wrong, pa.schema([("total", pa.int64())]), "here")


def test_blocks_as_they_come(sc: SparkContext) -> None:
    """A stream whose elements are blocks already is one of blocks, if they fit."""
    block = pa.record_batch({"text": ["a", "b"], "number": [1, 2]})
    seen = run_batches(sc, [[block]], lambda blocks: blocks.toBlocks(PAIRS).toRows())
    assert sorted(seen[0]) == [("a", 1), ("b", 2)]
    with pytest.raises(
        Exception, match=r"toBlocks at .*: the column 'number' is int64, but string was declared"
    ):
        run_batches(sc, [[block]], lambda blocks: blocks.toBlocks({"text": str, "number": str}))
    mixed = sc.parallelize([block, ("c", 1)], 1)
    with pytest.raises(Exception, match="blocks and records are mixed in one partition"):
        run_batches(sc, [mixed], lambda blocks: blocks.toBlocks(PAIRS))
