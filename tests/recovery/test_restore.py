"""restore(path, setup): what fits, what is refused by name, and what a dry run tells."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import add, sub
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint.cli.main import main
from dstreams import (
    BatchFailedError,
    DStream,
    RestartError,
    Settings,
    SourceError,
    State,
    StateSpec,
    StreamingContext,
    StreamingContextState,
)
from dstreams.common import faults
from dstreams.engine.recovery.compatibility import _is_elsewhere
from dstreams.sources.file_stream import FileSource
from dstreams.testing import ManualClock

pytestmark = pytest.mark.spark

seen: list[tuple[str, list[Any]]] = []

Define = Callable[[DStream[Any]], None]


def note(name: str, rdd: RDD[Any]) -> None:
    seen.append((name, sorted(rdd.collect())))


def watch(stream: DStream[Any], name: str) -> None:
    stream.foreachRDD(partial(note, name))


def total(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def count(key: str, value: int, state: Any) -> tuple[str, int]:
    state.update((state.getOption or 0) + value)
    return key, state.get


def before(pairs: DStream[Any]) -> None:
    watch(pairs.updateStateByKey(total, 2, uid="sums").checkpoint(2), "sums")
    watch(pairs.mapWithState(StateSpec.function(count).numPartitions(2), uid="counts"), "counts")


@pytest.fixture
def left_behind(sc: SparkContext, tmp_path: Path) -> Path:
    """A stream that did three batches, the sums as its last copy two of them."""
    seen.clear()
    ssc = setup(sc, tmp_path, before)()
    ssc.step(3)
    ssc.stop(stopSparkContext=False)
    return tmp_path


def setup(
    sc: SparkContext,
    directory: Path,
    define: Define,
    seconds: float = 1,
    settings: Settings | None = None,
    **options: Any,
) -> Callable[[], StreamingContext]:
    def make() -> StreamingContext:
        ssc = StreamingContext(sc, seconds, clock=ManualClock(), settings=settings)
        ssc.checkpoint(str(directory))
        options.setdefault("replayable", True)
        define(ssc.queueStream([[("a", n), ("b", 1)] for n in range(1, 9)], uid="in", **options))
        return ssc

    return make


def same(pairs: DStream[Any]) -> None:
    before(pairs)


def moved(pairs: DStream[Any]) -> None:
    """Other numbers of partitions."""
    watch(pairs.updateStateByKey(total, 3, uid="sums").checkpoint(2), "sums")
    watch(pairs.mapWithState(StateSpec.function(count).numPartitions(1), uid="counts"), "counts")


def removed(pairs: DStream[Any]) -> None:
    watch(pairs.mapWithState(StateSpec.function(count).numPartitions(2), uid="counts"), "counts")


def exchanged(pairs: DStream[Any]) -> None:
    watch(pairs.updateStateByKey(total, 2, uid="counts"), "sums")
    watch(pairs.mapWithState(StateSpec.function(count).numPartitions(2), uid="sums"), "counts")


def grown(pairs: DStream[Any]) -> None:
    before(pairs)
    watch(pairs.reduceByKeyAndWindow(add, sub, 5, uid="window"), "window")
    watch(pairs.mapWithState(StateSpec.function(count), uid="more"), "more")


@pytest.mark.deep
@pytest.mark.parametrize("define", [same, moved])
def test_state_goes_on(sc: SparkContext, left_behind: Path, define: Define) -> None:
    """Wherever its keys are placed now, and in a further restart."""
    for n in (4, 5):
        ssc = StreamingContext.restore(str(left_behind), setup(sc, left_behind, define))
        ssc.step()
        ssc.stop(stopSparkContext=False)
        wanted = [("a", n * (n + 1) // 2), ("b", n)]
        assert seen[-2:] == [("sums", wanted), ("counts", wanted)]


def snapshots(partitions: int, pairs: DStream[Any]) -> None:
    spec = StateSpec.function(count).numPartitions(partitions)
    watch(pairs.mapWithState(spec, uid="counts").stateSnapshots(), "states")


@pytest.mark.deep
def test_moved_state_is_there_when_it_was_moved_long_ago(sc: SparkContext, tmp_path: Path) -> None:
    """Also on another host, which has no copies: what the versions since are built on is kept."""
    seen.clear()
    values = [[("a", n), ("b", 1)] for n in range(1, 20)]
    for life, (partitions, batches) in enumerate([(2, 2), (3, 11), (3, 1)]):
        settings = Settings(state_local_directory=str(tmp_path / f"host-{life}"))

        def make(partitions: int = partitions, settings: Settings = settings) -> StreamingContext:
            ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=settings)
            ssc.checkpoint(str(tmp_path / "checkpoint"))
            snapshots(partitions, ssc.queueStream(values, uid="in", replayable=True))
            return ssc

        ssc = StreamingContext.restore(str(tmp_path / "checkpoint"), make)
        ssc.step(batches)
        ssc.stop(stopSparkContext=False)
    assert seen == [("states", [("a", n * (n + 1) // 2), ("b", n)]) for n in range(1, 15)]


def over_states(partitions: int, pairs: DStream[Any]) -> None:
    """Windows over both kinds of state."""
    sums = pairs.updateStateByKey(total, partitions, uid="sums").checkpoint(2)
    watch(sums.window(3), "sums")
    spec = StateSpec.function(count).numPartitions(partitions)
    watch(pairs.mapWithState(spec, uid="counts").window(3), "counts")


@pytest.mark.deep
def test_windows_over_state_that_is_placed_otherwise(sc: SparkContext, tmp_path: Path) -> None:
    """They still have what they had, and so they have in a further restart."""
    seen.clear()
    ssc = setup(sc, tmp_path, partial(over_states, 2))()
    ssc.step(4)
    ssc.stop(stopSparkContext=False)
    n = 4
    for partitions, batches in ((3, 1), (3, 1), (1, 2)):
        make = setup(sc, tmp_path, partial(over_states, partitions))
        ssc = StreamingContext.restore(str(tmp_path), make)
        ssc.step(batches)
        ssc.stop(stopSparkContext=False)
        n += batches
        totals = [("a", m * (m + 1) // 2) for m in range(n - 2, n + 1)]
        wanted = sorted([*totals, *(("b", m) for m in range(n - 2, n + 1))])
        assert seen[-2:] == [("sums", wanted), ("counts", wanted)]
    assert n == 8
    # Of versions that were moved for the windows alone nothing is left once these are past.
    ssc = StreamingContext.restore(str(tmp_path), setup(sc, tmp_path, partial(over_states, 1)))
    ssc.step(6)
    ssc.stop(stopSparkContext=False)
    (stores,) = tmp_path.glob("stream-*/stores/counts")
    used = [store.name for store in stores.iterdir() if list(store.glob("*/*"))]
    assert sum(name.startswith("epoch-4-") for name in used) == 1
    assert not any(name.startswith("epoch-5-") for name in used)


def reduced(window: int, slide: int, pairs: DStream[Any]) -> None:
    watch(pairs.reduceByKeyAndWindow(add, sub, window, slide, uid="window"), "window")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("window", "slide", "message"),
    [
        (6, 1, "'window' was over a window of 5000 ms, and is over one of 6000 ms now"),
        (10, 2, "'window' had an RDD every 1000 ms, and has one every 2000 ms now"),
    ],
)
def test_a_window_that_has_changed(
    sc: SparkContext, tmp_path: Path, window: int, slide: int, message: str
) -> None:
    """Its state is that of another window: the dry run says so, and nothing is touched."""
    ssc = setup(sc, tmp_path, partial(reduced, 5, 1))()
    ssc.step(2)
    ssc.stop(stopSparkContext=False)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    make = setup(sc, tmp_path, partial(reduced, window, slide))
    report = StreamingContext.restore(str(tmp_path), make, dryRun=True)
    assert message in str(report)
    with pytest.raises(RestartError, match=message):
        StreamingContext.restore(str(tmp_path), make)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


@pytest.mark.deep
def test_what_is_added_begins_empty(sc: SparkContext, left_behind: Path) -> None:
    """Windows too: they hold what came since they are there."""
    ssc = StreamingContext.restore(str(left_behind), setup(sc, left_behind, grown))
    ssc.step(4)
    ssc.stop(stopSparkContext=False)
    values = {name: [rows for known, rows in seen[6:] if known == name] for name, _ in seen}
    assert [rows[0] for rows in values["window"]] == [("a", n) for n in (4, 9, 15, 22)]
    assert [rows[0] for rows in values["more"]] == [("a", n) for n in (4, 9, 15, 22)]
    assert [rows[0] for rows in values["sums"]] == [("a", n) for n in (10, 15, 21, 28)]


def added(pairs: DStream[Any]) -> None:
    before(pairs)
    watch(pairs.updateStateByKey(total, 2, uid="late"), "late")
    watch(pairs.reduceByKeyAndWindow(add, sub, 5, uid="window"), "window")


@pytest.mark.deep
@pytest.mark.parametrize("is_restored", [True, False])
def test_what_is_added_stays_so_before_its_first_copy(
    sc: SparkContext, left_behind: Path, is_restored: bool
) -> None:
    """A restart makes it again of what came since it is there, not of all that there is."""
    for n in (4, 5, 6):
        make = setup(sc, left_behind, added)
        if is_restored or n == 4:
            ssc = StreamingContext.restore(str(left_behind), make)
        else:
            ssc = StreamingContext.getOrCreate(str(left_behind), never)
        ssc.step()
        ssc.stop(stopSparkContext=False)
    values = {name: [rows[0] for known, rows in seen[6:] if known == name] for name, _ in seen}
    assert values["late"] == values["window"] == [("a", n) for n in (4, 9, 15)]
    assert values["sums"] == values["counts"] == [("a", n) for n in (10, 15, 21)]


@pytest.mark.deep
def test_what_was_removed_and_is_added_again_begins_empty(
    sc: SparkContext, left_behind: Path
) -> None:
    """In a further restart too: the copies of before are none of its own."""
    lives: list[tuple[Define, tuple[str, ...]]] = [(removed, ("sums",)), (same, ()), (same, ())]
    for define, allowed in lives:
        make = setup(sc, left_behind, define)
        ssc = StreamingContext.restore(str(left_behind), make, allowRemoved=allowed)
        ssc.step()
        ssc.stop(stopSparkContext=False)
    assert [rows[0] for name, rows in seen[6:] if name == "sums"] == [("a", 5), ("a", 11)]


def long_window(pairs: DStream[Any]) -> None:
    watch(pairs.map(_same).window(3), "long")


def two_windows(pairs: DStream[Any]) -> None:
    watch(pairs.map(_same).window(2), "short")
    watch(pairs.map(_same).window(3), "long")


def test_a_window_in_front_of_another(sc: SparkContext, tmp_path: Path) -> None:
    """It takes nothing from the other one; the report says that it is new."""
    seen.clear()
    ssc = setup(sc, tmp_path, long_window)()
    ssc.step(3)
    ssc.stop(stopSparkContext=False)
    make = setup(sc, tmp_path, two_windows)
    (note_of_it,) = StreamingContext.restore(str(tmp_path), make, dryRun=True).notes
    assert note_of_it.startswith("window at ")
    assert note_of_it.endswith("is new (window-0): it may lack some or all of the earlier batches")
    ssc = StreamingContext.restore(str(tmp_path), make)
    ssc.step(2)
    ssc.stop(stopSparkContext=False)
    values: dict[str, list[list[int]]] = {"short": [], "long": []}
    for name, rows in seen:
        values[name].append([number for key, number in rows if key == "a"])
    assert values["long"] == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert values["short"][-1] == [4, 5]


@pytest.mark.deep
def test_an_inverse_that_is_added(sc: SparkContext, tmp_path: Path) -> None:
    """The window keeps what it had, made again of what it has read."""

    def windowed(inverse: Any, pairs: DStream[Any]) -> None:
        watch(pairs.reduceByKeyAndWindow(add, inverse, 5).filter(_is_of_a), "window")

    seen.clear()
    ssc = setup(sc, tmp_path, partial(windowed, None))()
    ssc.step(3)
    ssc.stop(stopSparkContext=False)
    ssc = StreamingContext.restore(str(tmp_path), setup(sc, tmp_path, partial(windowed, sub)))
    ssc.step(4)
    ssc.stop(stopSparkContext=False)
    assert [rows for _, rows in seen] == [[("a", n)] for n in (1, 3, 6, 10, 15, 20, 25)]


def _is_of_a(pair: tuple[str, int]) -> bool:
    return pair[0] == "a"


def sums_of(uids: list[str], streams: list[DStream[Any]]) -> None:
    for uid, stream in zip(uids, streams, strict=True):
        watch(stream.updateStateByKey(total, 2, uid=uid).checkpoint(50), uid)


def test_an_input_that_is_added_while_a_batch_is_in_flight(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch reads what it was begun with; the next one begins to read what was added."""

    def make(uids: list[str]) -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock())
        ssc.checkpoint(str(tmp_path))
        items = [[("a", n)] for n in range(1, 9)]
        streams = [ssc.queueStream(items, uid=f"of-{uid}", replayable=True) for uid in uids]
        sums_of(uids, streams)
        return ssc

    seen.clear()
    ssc = make(["old"])
    ssc.step()
    monkeypatch.setitem(faults._faults, "out.start", faults.Fault(1, "raise"))
    with pytest.raises(faults.FaultError):
        ssc.step()
    ssc._life.engine = None  # as after a kill: without the copy that a stop writes
    ssc.stop(stopSparkContext=False)
    for _ in range(2):
        ssc = StreamingContext.restore(str(tmp_path), partial(make, ["old", "new"]))
        ssc.step()
        ssc._life.engine = None
        ssc.stop(stopSparkContext=False)
    values = {name: [rows for known, rows in seen if known == name] for name in ("old", "new")}
    assert values == {"old": [[("a", 1)], [("a", 3)], [("a", 6)]], "new": [[], [("a", 1)]]}


@pytest.mark.deep
@pytest.mark.parametrize("start", ["restore", "getOrCreate"])
def test_a_directory_that_is_added_while_a_batch_is_in_flight(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """The batch has the files of before, and none of what was added; the next one has all of it."""
    uids, location = ["old", "new"], str(tmp_path / "checkpoint")

    def make(uids: list[str]) -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock())
        ssc.checkpoint(location)
        lines = [ssc.textFileStream(str(tmp_path / uid), uid=f"of-{uid}") for uid in uids]
        sums_of(uids, [stream.map(lambda line: (line, 1)) for stream in lines])
        return ssc

    def add_files(name: str, lines: int, time_s: float) -> None:
        for uid in uids:
            (tmp_path / uid).mkdir(exist_ok=True)
            (tmp_path / uid / name).write_text("a\n" * lines)
            os.utime(tmp_path / uid / name, (time_s, time_s))

    def crash_in_a_batch(ssc: StreamingContext) -> None:
        monkeypatch.setitem(faults._faults, "out.start", faults.Fault(1, "raise"))
        with pytest.raises(faults.FaultError):
            ssc.step()
        crash(ssc)

    def crash(ssc: StreamingContext) -> None:
        ssc._life.engine = None  # as after a kill: without the copy that a stop writes
        ssc.stop(stopSparkContext=False)

    seen.clear()
    add_files("1", 1, 0.5)
    ssc = make(["old"])
    ssc.step()
    add_files("2", 2, 1.5)
    crash_in_a_batch(ssc)
    crash_in_a_batch(StreamingContext.restore(location, partial(make, uids)))
    add_files("3", 4, 2.5)
    ssc = getattr(StreamingContext, start)(location, partial(make, uids))
    ssc.step(2)
    crash(ssc)
    assert [rows for name, rows in seen if name == "old"] == [[("a", 1)], [("a", 3)], [("a", 7)]]
    assert [rows for name, rows in seen if name == "new"][-1] == [("a", 7)]


def bill(is_down: bool, rdd: RDD[Any]) -> None:
    if is_down:
        raise OSError("the bills cannot be written")
    note("bills", rdd)


def billed(is_down: bool, pairs: DStream[Any]) -> None:
    pairs.foreachRDD(partial(bill, is_down))


def billed_and_watched(pairs: DStream[Any]) -> None:
    watch(pairs, "watched")
    pairs.foreachRDD(partial(bill, False))


@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_a_batch_of_which_an_output_failed_goes_on_in_changed_code(
    sc: SparkContext, tmp_path: Path, on_failure: Any
) -> None:
    """It runs again with the outputs of now where it was not committed, and else with none."""
    seen.clear()
    settings = Settings(on_failure=on_failure)
    ssc = setup(sc, tmp_path, partial(billed, True), settings=settings)()
    with pytest.raises(BatchFailedError, match="the bills cannot be written"):
        ssc.step()
    ssc.stop(stopSparkContext=False)
    ssc = StreamingContext.restore(str(tmp_path), setup(sc, tmp_path, billed_and_watched))
    ssc.step()
    ssc.stop(stopSparkContext=False)
    rows = [("a", 1), ("b", 1)] if on_failure == "stop" else [("a", 2), ("b", 1)]
    assert seen == [("watched", rows), ("bills", rows)]


REFUSALS: dict[str, tuple[Define, dict[str, Any], str]] = {
    "state that nothing takes": (removed, {}, "nothing has the uid 'sums' of updateStateByKey at"),
    "state of another kind": (exchanged, {}, "the state of 'sums' was made by updateStateByKey at"),
    "another batch duration": (
        same,
        {"seconds": 2},
        "batches were 1000 ms apart, and are 2000 ms now; the progress of 'in', 'sums', 'counts'",
    ),
    "a queue without its items": (same, {"replayable": False}, "cannot be resumed"),
}


@pytest.mark.deep
@pytest.mark.parametrize("case", REFUSALS)
def test_what_does_not_fit_is_refused(sc: SparkContext, left_behind: Path, case: str) -> None:
    """By name, and nothing is touched; a dry run says the same and raises nothing."""
    define, options, message = REFUSALS[case]
    files = {path: path.read_bytes() for path in left_behind.rglob("*") if path.is_file()}
    make = setup(sc, left_behind, define, **options)
    with pytest.raises(RestartError, match=message):
        StreamingContext.restore(str(left_behind), make)
    report = StreamingContext.restore(str(left_behind), make, dryRun=True)
    assert message in str(report)
    assert {path: path.read_bytes() for path in left_behind.rglob("*") if path.is_file()} == files


@pytest.mark.deep
def test_what_may_be_removed(sc: SparkContext, left_behind: Path) -> None:
    """Its state is left behind; the others go on."""
    make = setup(sc, left_behind, removed)
    report = StreamingContext.restore(str(left_behind), make, dryRun=True, allowRemoved=["sums"])
    assert (report.kept, report.removed, report.refusals) == (("in", "counts"), ("sums",), ())
    ssc = StreamingContext.restore(str(left_behind), make, allowRemoved=["sums"])
    ssc.step()
    ssc.stop(stopSparkContext=False)
    assert seen[-1] == ("counts", [("a", 10), ("b", 4)])


def copied(pairs: DStream[Any]) -> None:
    """Streams that are written to files, with and without state."""
    watch(pairs.updateStateByKey(total, 2, uid="kept").checkpoint(3), "kept")
    watch(pairs.updateStateByKey(total, 2, uid="sums").checkpoint(2), "sums")
    watch(pairs.map(_same).checkpoint(2), "pairs")


def _same(pair: Any) -> Any:
    return pair


def renamed(pairs: DStream[Any]) -> None:
    watch(pairs.updateStateByKey(total, 2, uid="kept").checkpoint(3), "kept")
    watch(pairs.updateStateByKey(total, 2, uid="totals").checkpoint(2), "sums")
    watch(pairs.map(_same), "pairs")


@pytest.mark.deep
@pytest.mark.parametrize("is_renamed", [True, False], ids=["renamed", "removed"])
def test_what_was_removed_is_not_missed_long_after(
    sc: SparkContext, tmp_path: Path, is_renamed: bool
) -> None:
    """When nothing is left of its state the stream goes on and on, and its files stay few."""
    define = renamed if is_renamed else kept_alone
    ssc = setup(sc, tmp_path, copied)()
    ssc.step(5)
    ssc.stop(stopSparkContext=False)
    make = setup(sc, tmp_path, define)
    ssc = StreamingContext.restore(str(tmp_path), make, allowRemoved=["sums"])
    ssc.step(21)
    ssc.stop(stopSparkContext=False)
    (stream,) = tmp_path.glob("stream-*")
    assert not [path for path in stream.glob("state/**/*") if "/sums/" in f"{path}"]
    assert len(list(stream.glob("commits/*"))) < 12
    assert len(list(stream.glob("batches/*"))) < 12
    seen.clear()
    for _ in range(2):
        assert main(["gc", str(tmp_path)]) == 0
        assert main(["verify", str(tmp_path)]) == 0
        StreamingContext.restore(str(tmp_path), make, dryRun=True)
        ssc = StreamingContext.getOrCreate(str(tmp_path), never)
        ssc.step(12)
        ssc.stop(stopSparkContext=False)
    assert {rows[0] for name, rows in seen if name == "kept"} == {("a", 36)}


def test_a_class_that_has_changed(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class without a stored field is refused before anything runs, or migrates."""

    def define(*names: str, **more: Any) -> Any:
        members = {"__annotations__": dict.fromkeys(names, int), "__module__": "__main__", **more}
        made = dataclass(type("Total", (), members))
        monkeypatch.setattr(sys.modules["__main__"], "Total", made, raising=False)
        return made

    def make_for(kind: Any) -> Callable[[], StreamingContext]:
        def keep(key: str, value: int, state: State[Any]) -> tuple[str, int]:
            before = 0 if state.getOption is None else next(iter(vars(state.get).values()))
            state.update(kind(before + value))
            return key, before + value

        spec = StateSpec.function(keep)
        return setup(sc, tmp_path, lambda pairs: watch(pairs.mapWithState(spec, uid="t"), "t"))

    def restored(kind: Any) -> StreamingContext:
        return StreamingContext.restore(str(tmp_path), make_for(kind))

    def run(ssc: StreamingContext) -> list[Any]:
        try:
            ssc.step()
        finally:
            ssc.stop(stopSparkContext=False)
        return seen[-1][1]

    assert run(restored(define("count"))) == [("a", 1), ("b", 1)]
    changed = define("total")
    problem = (
        r"the state of 't': a stored dataclass __main__\.Total has the fields count, but the field "
        "'count' is gone, the field 'total' is new and has no default: it has total now"
    )
    report = StreamingContext.restore(str(tmp_path), make_for(changed), dryRun=True)
    assert re.search(problem, "".join(report.refusals))
    with pytest.raises(RestartError, match=problem):
        run(restored(changed))

    def migrate(kind: Any, old: Any) -> Any:
        return kind(10 * old["count"])

    assert run(restored(define("total", migrate=classmethod(migrate)))) == [("a", 12), ("b", 11)]


def kept_alone(pairs: DStream[Any]) -> None:
    watch(pairs.updateStateByKey(total, 2, uid="kept").checkpoint(3), "kept")


def never() -> StreamingContext:
    raise AssertionError("the set-up function must not be called")


@pytest.mark.deep
def test_a_start_that_fails_changes_nothing(sc: SparkContext, left_behind: Path) -> None:
    """The code of before takes its state up again, also that which the new one let be removed."""

    def broken() -> StreamingContext:
        ssc = setup(sc, left_behind, removed)()
        watch(ssc.textFileStream(__file__), "lines")
        return ssc

    ssc = StreamingContext.restore(str(left_behind), broken, allowRemoved=["sums"])
    with pytest.raises(SourceError, match="is not a directory"):
        ssc.step()
    assert main(["gc", str(left_behind)]) == 0  # it refuses while a driver may be at work
    ssc = StreamingContext.restore(str(left_behind), setup(sc, left_behind, same))
    ssc.step()
    ssc.stop(stopSparkContext=False)
    wanted = [("a", 10), ("b", 4)]
    assert seen[-2:] == [("sums", wanted), ("counts", wanted)]


def test_places_that_do_not_tell(sc: SparkContext, tmp_path: Path) -> None:
    """Without uids a second operator of a kind could take the state of the first."""

    def unnamed(number: int, pairs: DStream[Any]) -> None:
        for _ in range(number):
            watch(pairs.updateStateByKey(total), "sums")

    ssc = setup(sc, tmp_path, partial(unnamed, 1))()
    ssc.step()
    ssc.stop(stopSparkContext=False)
    with pytest.raises(RestartError, match="were 1 updateStateByKey without a uid, and are 2"):
        StreamingContext.restore(str(tmp_path), setup(sc, tmp_path, partial(unnamed, 2)))


def test_nothing_to_restore(sc: SparkContext, tmp_path: Path) -> None:
    """The streams begin anew, so that a program can always call restore; a dry run only reads."""
    make = setup(sc, tmp_path / "new", before)
    report = StreamingContext.restore(str(tmp_path / "new"), make, dryRun=True)
    assert str(report) == "nothing to restore: the streams start empty"
    assert not (tmp_path / "new").exists()
    ssc = StreamingContext.restore(str(tmp_path / "new"), make)
    ssc.step()
    ssc.stop(stopSparkContext=False)
    assert len(list((tmp_path / "new").glob("stream-*"))) == 1


@pytest.mark.deep
@pytest.mark.parametrize("ends", ["dry run", "refused", "restored"])
def test_a_spark_context_of_the_setup_stays_only_where_it_is_needed(
    sc: SparkContext, left_behind: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A dry run, and a restore that is refused, leave nothing running, so another may follow."""
    stopped: list[str] = []

    def stop(context: SparkContext) -> None:
        monkeypatch.setattr(SparkContext, "_active_spark_context", None)
        stopped.append("stopped")

    def make() -> StreamingContext:
        monkeypatch.setattr(SparkContext, "_active_spark_context", sc)  # as if it were made here
        made.append(setup(sc, left_behind, removed if ends == "refused" else same)())
        return made[-1]

    made: list[StreamingContext] = []
    monkeypatch.setattr(SparkContext, "stop", stop)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    before_it = sorted(left_behind.rglob("*"))
    if ends == "refused":
        with pytest.raises(RestartError, match="nothing has the uid 'sums'"):
            StreamingContext.restore(str(left_behind), make)
    else:
        StreamingContext.restore(str(left_behind), make, dryRun=ends == "dry run")  # type: ignore[call-overload]
    assert stopped == ([] if ends == "restored" else ["stopped"])
    assert sorted(left_behind.rglob("*")) == before_it
    if ends == "dry run":
        assert made[0].getState() is StreamingContextState.STOPPED


def test_a_spark_context_of_before_outlives_a_dry_run(sc: SparkContext, left_behind: Path) -> None:
    """It is that of the program, and the restore after the dry run uses it."""
    make = setup(sc, left_behind, same)
    assert not StreamingContext.restore(str(left_behind), make, dryRun=True).refusals
    ssc = StreamingContext.restore(str(left_behind), make)
    ssc.step()
    ssc.stop(stopSparkContext=False)
    assert seen[-1] == ("counts", [("a", 10), ("b", 4)])


def lines_of(sc: SparkContext, checkpoint: Path, inputs: str, uid: str) -> StreamingContext:
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(checkpoint))
    lines: DStream[str] = ssc.fileStream(inputs, newFilesOnly=False, uid=uid)
    watch(lines.map(_with_one).updateStateByKey(total, 2, uid="sums"), "sums")
    return ssc


def _with_one(line: str) -> tuple[str, int]:
    return line, 1


def test_input_that_was_moved_is_not_counted_again(sc: SparkContext, tmp_path: Path) -> None:
    """The same files under another path are refused, until the user says that they are new."""
    for directory in ("here", "there"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "file").write_text("a\n")
        os.utime(tmp_path / directory / "file", (1, 1))
    checkpoint = tmp_path / "ck"
    ssc = lines_of(sc, checkpoint, str(tmp_path / "here"), "lines")
    ssc.step()
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    moved_to = partial(lines_of, sc, checkpoint, str(tmp_path / "there"))
    refusal = (
        f"input 'lines' has read {tmp_path}/here, and would read {tmp_path}/there now: files are "
        "identified by their paths, so the same files would count again; keep the path (a mount or "
        "a link will do), or start with a new input: give it another uid=, and drop the progress "
        "of this one (allowRemoved=['lines'])"
    )
    report = StreamingContext.restore(str(checkpoint), partial(moved_to, "lines"), dryRun=True)
    assert report.refusals == (refusal,)
    with pytest.raises(RestartError, match="would count again"):
        StreamingContext.restore(str(checkpoint), partial(moved_to, "lines"))
    ssc = StreamingContext.restore(
        str(checkpoint), partial(moved_to, "new"), allowRemoved=["lines"]
    )
    seen.clear()
    ssc.step()
    ssc.stop(stopSparkContext=False)
    assert seen == [("sums", [("a", 2)])]


@pytest.mark.parametrize(
    ("was", "now", "may"),
    [
        ("in", "in/", True),
        ("in", "other/../in", True),
        ("in", "file://CWD/in", True),
        ("in", "elsewhere", False),
        ("in", "in*", False),
        ("in/{a,b}", "in/{a,b,c}", True),
        ("in/a*", "in/*", True),
        ("in/*", "in/a*", False),
        ("in/*", "in/a", False),
        ("s3://bucket/a", "s3://bucket/{a,b}", True),
        ("s3://bucket/a", "s3://bucket/b", False),
    ],
)
def test_which_directories_are_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, was: str, now: str, may: bool
) -> None:
    """Those that are written otherwise, and patterns for more; nothing else."""
    monkeypatch.chdir(tmp_path)
    before_it, after = (
        {"place": FileSource(d.replace("CWD", str(tmp_path))).place} for d in (was, now)
    )
    assert _is_elsewhere(before_it, after) is not may


def test_the_same_code_in_another_directory(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is another one there: getOrCreate refuses to read other files."""
    for directory in ("first", "second"):
        (tmp_path / directory / "in").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "first")
    ssc = lines_of(sc, tmp_path / "ck", "in", "lines")
    ssc.step()
    ssc.stop(stopSparkContext=False)
    monkeypatch.chdir(tmp_path / "second")
    with pytest.raises(RestartError, match=rf"read {tmp_path}/first/in, and would read .*second"):
        StreamingContext.getOrCreate(str(tmp_path / "ck"), never)
    monkeypatch.chdir(tmp_path / "first")
    assert StreamingContext.getOrCreate(str(tmp_path / "ck"), never).getState().value


def test_what_has_changed_is_in_the_log_of_a_restore(
    sc: SparkContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in the report of a dry run."""

    def rows(rate: int) -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock())
        ssc.checkpoint(str(tmp_path))
        ssc.rateStream(rate, uid="rows").foreachRDD(_ignore)
        return ssc

    ssc = rows(1)
    ssc.step()
    ssc.stop(stopSparkContext=False)
    StreamingContext.restore(str(tmp_path), partial(rows, 2))
    assert "input rows was rateStream(1 rows/s), and is rateStream(2 rows/s) now" in caplog.messages


def _ignore(rdd: RDD[Any]) -> None:
    pass
