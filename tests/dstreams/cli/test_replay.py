"""dstreams replay: what differs between a program and the recorded code, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import random
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import CheckpointState, InvalidStreamError, State, StateSpec, StreamingContext
from dstreams.cli.replay import BatchReport, Comparison, _compared
from dstreams.testing import ManualClock

BATCHES = [["a", "b"], ["a"], [], ["b", "c"]]


def add_up(new: list[int], total: int | None) -> int:
    return sum(new) + (total or 0)


def running(key: str, value: int | None, state: State[int]) -> tuple[str, int]:
    state.update((state.getOption or 0) + (value or 0))
    return key, state.get


def one(word: str) -> int:
    return 1


def ten_for_b(word: str) -> int:
    return 10 if word == "b" else 1


def chance(word: str) -> float:
    return random()


def collected(rdd: RDD[Any]) -> None:
    rdd.collect()


def note_old(rdd: RDD[Any]) -> None:
    written["old"].append(dict(rdd.collect()))


def note_new(rdd: RDD[Any]) -> None:
    written["new"].append(dict(rdd.collect()))


written: dict[str, list[dict[str, int]]] = {"old": [], "new": []}
"""What the outputs of the recorded and of the new code have written."""


def define(
    sc: SparkContext,
    base: Path,
    weight: Callable[[str], Any],
    stored: Callable[[str], Any] = one,
    output: Callable[[RDD[Any]], None] = collected,
) -> StreamingContext:
    """Two states of the same words: one in snapshots, one in a store."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(base / "checkpoint"))
    words = ssc.queueStream(BATCHES, replayable=True, uid="words")
    pairs = words.map(lambda word: (word, weight(word)))
    pairs.updateStateByKey(add_up, uid="sums").foreachRDD(output)
    others = words.map(lambda word: (word, stored(word)))
    others.mapWithState(StateSpec.function(running), uid="stored").foreachRDD(collected)
    return ssc


def run_batches(ssc: StreamingContext) -> None:
    ssc.step(len(BATCHES))
    ssc.stop(stopSparkContext=False, stopGraceFully=True)


@pytest.fixture
def compared(
    sc: SparkContext, tmp_path: Path
) -> Iterator[Callable[..., tuple[Comparison, list[BatchReport]]]]:
    """Record batches of one program, and compare another one with it."""
    comparisons = []

    def compare(
        recorded: dict[str, Any], changed: dict[str, Any], fork: str | None = None, **options: Any
    ) -> tuple[Comparison, list[BatchReport]]:
        run_batches(define(sc, tmp_path, **recorded))
        context = define(sc, tmp_path / "unused", **changed)
        comparison = Comparison(str(tmp_path / "checkpoint"), context, fork=fork)
        comparisons.append(comparison)
        return comparison, comparison.run(**options)

    yield compare
    for comparison in comparisons:
        comparison.opened.close()


def test_one_changed_function(compared: Any) -> None:
    """Exactly the rows and keys that the function changes differ; the other state does not."""
    comparison, reports = compared({"weight": one}, {"weight": ten_for_b}, compare=True)
    assert comparison.notes == []
    changed_b = [{"change": "~", "key": "b", "old": 1, "new": 10}]
    assert [report.outputs for report in reports] == [
        {"foreachRDD-0": changed_b, "foreachRDD-1": []},
        {"foreachRDD-0": changed_b, "foreachRDD-1": []},
        {"foreachRDD-0": changed_b, "foreachRDD-1": []},
        {"foreachRDD-0": [{"change": "~", "key": "b", "old": 2, "new": 20}], "foreachRDD-1": []},
    ]
    assert [report.states for report in reports] == [
        {"sums": report.outputs["foreachRDD-0"], "stored": []} for report in reports
    ]
    assert [report.rows["foreachRDD-0"] for report in reports] == [2, 2, 2, 3]
    text = list(reports[3].lines(samples=1))
    assert text[1:] == [
        "  output foreachRDD-0: 1 changed",
        '    ~ "b": 2 -> 20',
        "  state sums: 1 changed",
        '    ~ "b": 2 -> 20',
    ]
    assert ", recorded code " in text[0]


@pytest.mark.deep
def test_kept_states(compared: Any) -> None:
    """Without a run of the recorded code, states are compared with those in the checkpoint."""
    comparison, reports = compared({"weight": one}, {"weight": one, "stored": ten_for_b})
    assert "that the checkpoint keeps" in comparison.with_what
    stored = [report.states["stored"] for report in reports]
    # Rows as they are stored: the state, and when it was last used.
    assert stored[0] == [{"change": "~", "key": "b", "old": [1, 1000], "new": [10, 1000]}]
    assert [[one["new"] for one in found] for found in stored[1:]] == [
        [[10, 1000]],
        [[10, 1000]],
        [[20, 4000]],
    ]
    assert reports[0].states["sums"] is None, "its snapshot was not due"
    assert _compared(reports) == "sums in 0 of 4, stored in 4 of 4"


@pytest.mark.deep
def test_code_that_is_not_repeatable(compared: Any) -> None:
    """If the recorded code makes other states than it did, the operator is named."""
    comparison, _ = compared(
        {"weight": one, "stored": chance}, {"weight": one, "stored": chance}, compare=True
    )
    (note,) = comparison.notes
    assert "from batch 0 on, first in map at " in note
    assert "(map-1)" in note


@pytest.mark.deep
@pytest.mark.parametrize("run_outputs", [True, False])
def test_outputs(compared: Any, run_outputs: bool) -> None:
    """Those of the new code run if that is asked for; those of the recorded code never do."""
    for made in written.values():
        made.clear()
    recorded, changed = (
        {"weight": w, "output": o} for w, o in ((one, note_old), (ten_for_b, note_new))
    )
    _, reports = compared(recorded, changed, compare=True, run_outputs=run_outputs)
    before = [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 2, "b": 1}, {"a": 2, "b": 2, "c": 1}]
    assert written["old"] == before, "before the replay"
    after = [{**sums, "b": 10 * sums["b"]} for sums in before]
    assert written["new"] == (after if run_outputs else [])
    assert [len(report.outputs["foreachRDD-0"]) for report in reports] == [1, 1, 1, 1]


@pytest.mark.deep
def test_copies_that_are_kept(compared: Any, tmp_path: Path) -> None:
    """They have the states of both programs after the last batch; the original is as before."""
    fork = str(tmp_path / "fork")
    comparison, _ = compared({"weight": one}, {"weight": ten_for_b}, fork=fork, compare=True)
    comparison.opened.close()
    states = {}
    for url in (str(tmp_path / "checkpoint"), f"{fork}/old", f"{fork}/new"):
        with CheckpointState(url) as found:
            looked = [found.state(uid).look_up("b") for uid in ("sums", "stored")]
        states[url] = [(one.value, one.batch_time_ms) for one in looked]
    original, old, new = states.values()
    assert original == [(2, 4001), (2, 4001)], "as it was stopped, a millisecond later"
    assert old == [(2, 4000), (2, 4000)]
    assert new == [(20, 4000), (2, 4000)]
    with pytest.raises(InvalidStreamError, match="fork/new is not empty"):
        comparison.run()
