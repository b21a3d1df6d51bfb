"""State in blocks: the same as that of rows, over restarts, and what is refused."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark import RDD, SparkContext

from dstreams import InvalidStreamError, StreamingContext, StreamLifecycleError
from dstreams.testing import BatchDriver, run_batches

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
pc = pytest.importorskip("pyarrow.compute")
pytest.importorskip("numpy", reason="pip install 'dstreams[arrow]'")


class Word(NamedTuple):
    text: str | None
    number: int


class Total(NamedTuple):
    total: int
    count: int


BATCHES: list[list[Any] | None] = [
    [("a", 1), ("b", 2), ("a", 3)],
    [],
    [(None, 7), ("c", 1), ("b", -2)],
    None,
    [("a", 10)],
]
TOTALS = [
    [("a", 4, 2), ("b", 2, 1)],
    [("a", 4, 2), ("b", 2, 1)],
    [("a", 4, 2), ("b", 0, 2), ("c", 1, 1), (None, 7, 1)],
    [("a", 4, 2), ("b", 0, 2), ("c", 1, 1), (None, 7, 1)],
    [("a", 14, 3), ("b", 0, 2), ("c", 1, 1), (None, 7, 1)],
]


def add(keys: Any, values: Any, state: Any) -> Any:
    """The running sum and count of each key."""
    total = pc.add(pc.fill_null(state.column("total"), 0), pc.fill_null(values.sum("number"), 0))
    count = pc.add(pc.fill_null(state.column("count"), 0), values.count())
    return pa.record_batch({"total": total, "count": count})


def touched(keys: Any, values: Any, state: Any) -> Any:
    after = add(keys, values, state)
    return after, pa.record_batch([*keys.columns, after.column("total")], names=["text", "now"])


def in_order(batches: list[list[Any] | None]) -> list[list[Any]]:
    return [sorted(batch or [], key=repr) for batch in batches]


def test_a_state_of_every_key(sc: SparkContext) -> None:
    """The function sees every key in every batch, also in those without records."""
    seen = run_batches(
        sc,
        BATCHES,
        lambda words: words.toBlocks(Word).updateStateByKey(add, key="text", state=Total).toRows(),
    )
    assert in_order(seen) == TOTALS


def test_a_look_at_the_state(sc: SparkContext) -> None:
    """The newest state is there as blocks, and that of a batch that is remembered."""
    with BatchDriver(sc) as driver:
        blocks = driver.input(BATCHES).toBlocks(Word)
        totals = blocks.updateStateByKey(add, key="text", state=Total)
        totals.foreachRDD(lambda rdd: None)
        driver.context.remember(10)
        with pytest.raises(StreamLifecycleError, match="no batch has run yet"):
            totals.stateStore()
        driver.run(3)
        newest, first = totals.stateStore().collect(), totals.stateStore(1).collect()
        with pytest.raises(InvalidStreamError, match="at 9000 ms is not remembered"):
            totals.stateStore(9)
    for found, expected in ((newest, TOTALS[2]), (first, TOTALS[0])):
        rows = [tuple(row.values()) for block in found for row in block.to_pylist()]
        assert sorted(rows, key=repr) == expected


def test_what_is_said_of_touched_keys(sc: SparkContext) -> None:
    """The function is called for the keys that have records, and says of them what it will."""
    output = {"text": str | None, "now": pa.int64()}
    seen = run_batches(
        sc,
        BATCHES,
        lambda words: (
            words.toBlocks(Word)
            .mapStateBlocks(touched, 3, key="text", state=Total, output=output)
            .toRows()
        ),
    )
    assert in_order(seen) == [
        [("a", 4), ("b", 2)],
        [],
        [("b", 0), ("c", 1), (None, 7)],
        [],
        [("a", 14)],
    ]


def test_states_behind_what_is_said(sc: SparkContext) -> None:
    """The states of all keys are there behind what is said of some."""
    output = {"text": str | None, "now": pa.int64()}
    seen = run_batches(
        sc,
        BATCHES,
        lambda words: (
            words.toBlocks(Word)
            .mapStateBlocks(touched, key=["text"], state=Total, output=output)
            .stateSnapshots()
            .toRows()
        ),
    )
    assert in_order(seen) == TOTALS


def test_a_restart_goes_on(sc: SparkContext, tmp_path: Path) -> None:
    """State is in the snapshots of a checkpoint as Arrow's own blocks, and a restart has it."""
    checkpoint, seen = str(tmp_path / "checkpoint"), tmp_path / "seen"

    def define() -> StreamingContext:
        ssc = StreamingContext(sc, 1)
        ssc.checkpoint(checkpoint)
        words = ssc.queueStream([batch or [] for batch in BATCHES], replayable=True)
        totals = words.toBlocks(Word).updateStateByKey(add, key="text", state=Total)
        totals.checkpoint(2)
        totals.toRows().foreachRDD(partial(write_line, seen))
        return ssc

    for batches in (3, 2):
        ssc = StreamingContext.getOrCreate(checkpoint, define)
        ssc.step(batches)
        ssc.stop(stopSparkContext=False)
    lines = [ast.literal_eval(line) for line in seen.read_text(encoding="utf-8").splitlines()]
    assert in_order(lines) == TOTALS


def write_line(path: Path, rdd: RDD[Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        print(rdd.collect(), file=file)
