"""What a restart goes on with: states, windows and inputs are as if there had been none."""

from __future__ import annotations

from functools import partial
from operator import add as plus
from operator import sub as minus
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import DStream, StateSpec, StreamingContext
from dstreams.testing import ManualClock
from tests.conformance.restarts import (
    begin,
    count,
    crash,
    crash_in,
    in_two_lives,
    over_files,
    recover,
    to_a,
    total,
    value_of,
    values_of,
    watch,
    with_one,
    write,
)

pytestmark = pytest.mark.usefixtures("notebook")


@pytest.mark.deep
def test_a_stream_without_state(sc: SparkContext, tmp_path: Path) -> None:
    """The batches after the last committed one, and none of those before."""
    batches = [["a", "a", "b"], ["", ""], []] * 2

    def define(words: DStream[Any]) -> None:
        watch(words.map(with_one).reduceByKey(plus))

    in_two_lives(sc, tmp_path, batches, define, (3, 3))
    assert values_of() == [[("a", 2), ("b", 1)], [("", 2)], []] * 2


@pytest.mark.deep
@pytest.mark.parametrize("interval", [2, 20])
def test_a_window_with_an_inverse(sc: SparkContext, tmp_path: Path, interval: int) -> None:
    """Its result goes on, from a copy or from all of its input."""

    def define(words: DStream[Any]) -> None:
        watch(words.map(with_one).reduceByKeyAndWindow(plus, minus, 5).checkpoint(interval))

    in_two_lives(sc, tmp_path, [["a"]] * 10, define, (7, 3))
    assert values_of() == [[("a", n)] for n in (1, 2, 3, 4, 5, 5, 5, 5, 5, 5)]


@pytest.mark.deep
@pytest.mark.parametrize("interval", [1, 3, 20])
def test_a_running_sum(sc: SparkContext, tmp_path: Path, interval: int) -> None:
    """1 to 10, each once, over three lives: with a copy at the end, some batches ago, or none."""

    def define(words: DStream[Any]) -> None:
        watch(words.map(with_one).updateStateByKey(total).checkpoint(interval))

    in_two_lives(sc, tmp_path, [["a"]] * 10, define, (7, 1, 2))
    assert values_of() == [[("a", n)] for n in range(1, 11)]


def test_an_initial_state_waits_on(sc: SparkContext, tmp_path: Path) -> None:
    """It is in the checkpoint: neither its RDD nor the program that made it is asked again."""

    def define(words: DStream[Any]) -> None:
        initial = words.context().sparkContext.parallelize([("a", 10), ("z", 1)], 3)
        watch(words.map(with_one).updateStateByKey(total, initialRDD=initial).checkpoint(20))

    in_two_lives(sc, tmp_path, [["a"]] * 4, define, (2, 2))
    assert values_of() == [[("a", n), ("z", 1)] for n in range(11, 15)]


@pytest.mark.deep
def test_windows_over_state(sc: SparkContext, tmp_path: Path) -> None:
    """What a window still needs of a state is made from the copy before the window."""

    def define(words: DStream[Any]) -> None:
        pairs = words.map(with_one)
        sums = pairs.updateStateByKey(total).checkpoint(2)
        watch(sums.window(3), "sums")
        watch(pairs.mapWithState(StateSpec.function(count)).window(3), "counts")

    in_two_lives(sc, tmp_path, [["a"]] * 9, define, (4, 3, 2))
    wanted = [[("a", m) for m in range(max(1, n - 2), n + 1)] for n in range(1, 10)]
    assert values_of("sums") == values_of("counts") == wanted


def test_stored_state_goes_on(sc: SparkContext, tmp_path: Path) -> None:
    """From the version of the last committed batch, with its snapshots for whoever looks."""

    def define(words: DStream[Any]) -> None:
        counts = words.map(with_one).mapWithState(StateSpec.function(count))
        watch(counts, "counts")
        watch(counts.stateSnapshots(), "snapshots")

    in_two_lives(sc, tmp_path, [["a"], ["b"], ["a", "b"], []], define, (2, 2))
    assert values_of("counts") == [[("a", 1)], [("b", 1)], [("a", 2), ("b", 2)], []]
    assert values_of("snapshots")[1:3] == [[("a", 1), ("b", 1)], [("a", 2), ("b", 2)]]


@pytest.mark.deep
def test_states_after_a_crash(sc: SparkContext, tmp_path: Path) -> None:
    """A crash after three batches: counts are as without it, and no batch is repeated."""

    def define(words: DStream[Any]) -> None:
        counts = words.map(with_one).mapWithState(StateSpec.function(count)).checkpoint(3)
        watch(counts, "counts")
        watch(counts.stateSnapshots(), "snapshots")

    batches = [list(text) for text in ("", "a", "ab", "abc", "ab", "a", "")]
    in_two_lives(sc, tmp_path, batches, define, (3, 4))
    assert values_of("snapshots") == [
        [],
        [("a", 1)],
        [("a", 2), ("b", 1)],
        [("a", 3), ("b", 2), ("c", 1)],
        [("a", 4), ("b", 3), ("c", 1)],
        [("a", 5), ("b", 3), ("c", 1)],
        [("a", 5), ("b", 3), ("c", 1)],
    ]


def test_rates_are_limited_after_a_restart(sc: SparkContext, tmp_path: Path) -> None:
    """The numbered rows go on where they were, in the batches that were begun too."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path))
    watch(ssc.rateStream(3).map(value_of))
    ssc.step(2)
    crash(ssc)
    recover(tmp_path).step(2)
    assert values_of() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


@pytest.mark.deep
def test_files_are_read_once(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a batch in flight again, those written meanwhile, those after: each exactly once."""
    ssc, inputs, lines = over_files(sc, tmp_path)
    watch(lines, "lines")
    watch(lines.map(int).map(to_a).updateStateByKey(total).checkpoint(2), "sums")
    for number in (1, 2, 3):
        write(inputs, str(number), number)
    ssc.step(2)
    crash_in(ssc, monkeypatch, "out.start", 2)
    for number in (4, 5, 6):
        write(inputs, str(number), number)
    ssc = recover(tmp_path / "ck")
    ssc.step(4)
    for number in (7, 8, 9):
        write(inputs, str(number), number)
    ssc.step(3)
    assert values_of("lines") == [[str(n)] for n in range(1, 10)]
    assert values_of("sums") == [[("a", n * (n + 1) // 2)] for n in range(1, 10)]


def test_files_of_committed_batches_are_read_for_their_state_alone(
    sc: SparkContext, tmp_path: Path
) -> None:
    """Which files a batch had is in the checkpoint; a listing of now does not change it."""
    ssc, inputs, lines = over_files(sc, tmp_path)
    watch(lines.window(3))
    for number in (1, 2, 3):
        write(inputs, str(number), number)
    ssc.step(3)
    crash(ssc)
    write(inputs, "2b", 2)
    recover(tmp_path / "ck").step(2)
    assert values_of()[-2:] == [["2", "2b", "3"], ["2b", "3"]]


def test_a_graceful_stop_leaves_nothing_to_do_again(sc: SparkContext, tmp_path: Path) -> None:
    """A final copy of the state is there; the next start computes no batch again."""
    calls = tmp_path / "calls"

    def define(words: DStream[Any]) -> None:
        watch(words.map(partial(_counted, str(calls))).updateStateByKey(total).checkpoint(20))

    ssc = begin(sc, tmp_path / "ck", [["a"]] * 6, define)
    ssc.step(3)
    assert ssc._engine is not None
    ssc._engine.checkpoint_now()
    crash(ssc)
    before = len(calls.read_text())
    recover(tmp_path / "ck").step(1)
    assert values_of() == [[("a", n)] for n in range(1, 5)]
    assert len(calls.read_text()) == before + 1


def _counted(calls: str, word: str) -> tuple[str, int]:
    with Path(calls).open("a", encoding="utf-8") as out:
        out.write(".")
    return word, 1
