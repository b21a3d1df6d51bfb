"""What a restart takes up, by the cases of Spark's CheckpointSuite.

A run ends without a word, as if it had crashed: what it had not committed is not. The next one is
made from the directory alone; functions of this module are found again by name, so both runs write
into one notebook.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from operator import add as plus
from operator import sub as minus
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import CommitLog, LocalFiles, read_newest_graph
from checkpoint.cli import main
from checkpoint.graph_record import KEPT_GRAPHS, all_graphs
from dstreams import (
    BatchFailedError,
    DStream,
    InvalidStreamError,
    RestartError,
    Settings,
    SourceError,
    StateSpec,
    StreamingContext,
    StreamingContextState,
)
from dstreams.faults import Fault, FaultError
from dstreams.sources.file_stream import FileReader
from dstreams.streams.life_cycle import LifeCycle
from dstreams.testing import ManualClock
from tests.recovery.feeding import define as define_fed
from tests.recovery.feeding import feed, late

Seen = list[tuple[str, int, list[Any]]]

seen: Seen = []
"""(name, batch time in seconds, sorted records) of each output that ran, in all runs."""

failing: set[str] = set()
"""Outputs that fail."""


@pytest.fixture(autouse=True)
def notebook() -> Iterator[None]:
    seen.clear()
    failing.clear()
    yield
    active = StreamingContext.getActive()
    if active is not None:
        active.stop(stopSparkContext=False)


def note(name: str, time: Any, rdd: RDD[Any]) -> None:
    if name in failing:
        raise ValueError(f"{name} fails")
    seen.append((name, round(time.timestamp()), sorted(rdd.collect())))


def watch(stream: DStream[Any], name: str = "out") -> None:
    stream.foreachRDD(partial(note, name))


def total(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def count(key: str, value: int, state: Any) -> tuple[str, int]:
    state.update((state.getOption or 0) + value)
    return key, state.get


def never() -> StreamingContext:
    raise AssertionError("the set-up function must not be called")


Define = Callable[[DStream[Any]], None]


def begin(
    sc: SparkContext, directory: Path, batches: list[Any], define: Define
) -> StreamingContext:
    """Return a context, of batches of a second from zero on, that can be taken up again."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(directory))
    define(ssc.queueStream(batches, replayable=True))
    return ssc


def crash(ssc: StreamingContext) -> None:
    """End a context without a commit, a copy or a call of the user's functions."""
    ssc.stop(stopSparkContext=False)


def recover(directory: Path) -> StreamingContext:
    return StreamingContext.getOrCreate(str(directory), never)


def values_of(name: str = "out") -> list[Any]:
    return [records for known, _, records in seen if known == name]


def times_of(name: str = "out") -> list[int]:
    return [time for known, time, _ in seen if known == name]


def in_two_lives(
    sc: SparkContext,
    directory: Path,
    batches: list[Any],
    define: Define,
    lives: tuple[int, ...],
) -> None:
    """Run batches in several lives; no output may run twice, and none be left out."""
    ssc = begin(sc, directory, batches, define)
    ssc.step(lives[0])
    crash(ssc)
    for life in lives[1:]:
        ssc = recover(directory)
        ssc.step(life)
        crash(ssc)
    for name in {known for known, _, _ in seen}:
        assert times_of(name) == list(range(1, sum(lives) + 1))


def test_no_checkpoint_means_a_set_up(sc: SparkContext, tmp_path: Path) -> None:
    """A directory that does not exist is no error: the set-up function is called."""
    made = StreamingContext(sc, 1, clock=ManualClock())
    assert StreamingContext.getOrCreate(str(tmp_path / "none"), lambda: made) is made


def test_the_conf_is_recovered(
    sc: SparkContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What belongs to a process is that of the new one, its master wins, and so are secrets."""
    from pyspark import SparkConf  # noqa: PLC0415

    from dstreams.recovery.graph_snapshot import conf_of, describe_plan  # noqa: PLC0415

    ssc = begin(sc, tmp_path, [], watch)
    plan = ssc._graph.freeze(0, has_checkpoint_directory=True)
    before = SparkConf(loadDefaults=False).setAll(
        [
            ("spark.master", "local[7]"),
            ("spark.app.name", "then"),
            ("spark.mine", "kept"),
            ("spark.driver.host", "then"),
            ("spark.driver.port", "1"),
            ("spark.ui.port", "2"),
            ("spark.blockManager.port", "3"),
            ("spark.db.password", "hidden"),
            ("spark.hadoop.fs.azure.account.key.mine.blob.core.windows.net", "hidden"),
            ("spark.hadoop.fs.azure.sas.box.mine.blob.core.windows.net", "hidden"),
            ("spark.hadoop.fs.s3a.encryption.key", "hidden"),
            ("spark.executorEnv.CHECKPOINT_KEY", "hidden"),
            ("spark.driver.extraJavaOptions", "-Djavax.net.ssl.trustStorePassword=hidden"),
        ]
    )
    described = describe_plan(plan, before)
    assert "hidden" not in str(described)
    conf = conf_of(described, SparkConf(loadDefaults=False).set("spark.master", "local[1]"))
    assert dict(conf.getAll()) == {
        "spark.master": "local[1]",
        "spark.app.name": "then",
        "spark.mine": "kept",
    }
    assert conf_of(described, SparkConf(loadDefaults=False)).get("spark.master") == "local[7]"
    assert "spark.db.password, spark.driver.extraJavaOptions" in caplog.text
    given = SparkConf(loadDefaults=False).set("spark.db.password", "of now")
    assert conf_of(described, given).get("spark.db.password") == "of now"


def test_a_stream_without_state(sc: SparkContext, tmp_path: Path) -> None:
    """The batches after the last committed one, and none of those before."""
    batches = [["a", "a", "b"], ["", ""], []] * 2

    def define(words: DStream[Any]) -> None:
        watch(words.map(_one).reduceByKey(plus))

    in_two_lives(sc, tmp_path, batches, define, (3, 3))
    assert values_of() == [[("a", 2), ("b", 1)], [("", 2)], []] * 2


def _one(word: str) -> tuple[str, int]:
    return word, 1


def test_a_save_of_the_program_is_written_again(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies between the save and the end of the batch; the batch that repeats saves."""

    def define(words: DStream[Any]) -> None:
        watch(words)
        words.foreachRDD(partial(_save_below, str(tmp_path / "out")))

    ssc = begin(sc, tmp_path / "ck", [["a"], ["b"], ["c"]], define)
    monkeypatch.setitem(faults(), "commit.start", Fault(1, "raise"))
    ssc.step()
    with pytest.raises(FaultError):
        ssc.step()
    crash(ssc)
    recover(tmp_path / "ck").step(2)
    assert times_of() == [1, 2, 2, 3]
    saved = sorted((tmp_path / "out").iterdir())
    assert [(path.name, sc.textFile(str(path)).collect()) for path in saved] == [
        ("1", ["a"]),
        ("2", ["b"]),
        ("3", ["c"]),
    ]


def _save_below(directory: str, time: Any, rdd: RDD[Any]) -> None:
    rdd.saveAsTextFile(f"{directory}/{round(time.timestamp())}")


@pytest.mark.parametrize("interval", [2, 20])
def test_a_window_with_an_inverse(sc: SparkContext, tmp_path: Path, interval: int) -> None:
    """Its result goes on, from a copy or from all of its input."""

    def define(words: DStream[Any]) -> None:
        watch(words.map(_one).reduceByKeyAndWindow(plus, minus, 5).checkpoint(interval))

    in_two_lives(sc, tmp_path, [["a"]] * 10, define, (7, 3))
    assert values_of() == [[("a", n)] for n in (1, 2, 3, 4, 5, 5, 5, 5, 5, 5)]


@pytest.mark.parametrize("interval", [1, 3, 20])
def test_a_running_sum(sc: SparkContext, tmp_path: Path, interval: int) -> None:
    """1 to 10, each once, over three lives: with a copy at the end, some batches ago, or none."""

    def define(words: DStream[Any]) -> None:
        watch(words.map(_one).updateStateByKey(total).checkpoint(interval))

    in_two_lives(sc, tmp_path, [["a"]] * 10, define, (7, 1, 2))
    assert values_of() == [[("a", n)] for n in range(1, 11)]


def test_an_initial_state_waits_on(sc: SparkContext, tmp_path: Path) -> None:
    """It is in the checkpoint: neither its RDD nor the program that made it is asked again."""

    def define(words: DStream[Any]) -> None:
        initial = words.context().sparkContext.parallelize([("a", 10), ("z", 1)], 3)
        watch(words.map(_one).updateStateByKey(total, initialRDD=initial).checkpoint(20))

    in_two_lives(sc, tmp_path, [["a"]] * 4, define, (2, 2))
    assert values_of() == [[("a", n), ("z", 1)] for n in range(11, 15)]


def test_copies_of_an_initial_state_do_not_pile_up(sc: SparkContext, tmp_path: Path) -> None:
    """Each start writes one, and those of the graphs that are gone go with these."""

    def define(words: DStream[Any]) -> None:
        initial = words.context().sparkContext.parallelize([("a", 10)], 2)
        watch(words.map(_one).updateStateByKey(total, 1, initialRDD=initial).checkpoint(1))

    in_two_lives(sc, tmp_path, [["a"]] * 9, define, (1,) * 9)
    stream = stream_of(tmp_path)
    assert len(list(stream.glob("graph/*"))) == KEPT_GRAPHS
    assert len(list(stream.glob("rdds/**/*.state"))) == 2 * KEPT_GRAPHS
    assert values_of()[-1] == [("a", 19)]


def test_windows_over_state(sc: SparkContext, tmp_path: Path) -> None:
    """What a window still needs of a state is made from the copy before the window."""

    def define(words: DStream[Any]) -> None:
        pairs = words.map(_one)
        sums = pairs.updateStateByKey(total).checkpoint(2)
        watch(sums.window(3), "sums")
        watch(pairs.mapWithState(StateSpec.function(count)).window(3), "counts")

    in_two_lives(sc, tmp_path, [["a"]] * 9, define, (4, 3, 2))
    wanted = [[("a", m) for m in range(max(1, n - 2), n + 1)] for n in range(1, 10)]
    assert values_of("sums") == values_of("counts") == wanted


def test_stored_state_goes_on(sc: SparkContext, tmp_path: Path) -> None:
    """From the version of the last committed batch, with its snapshots for whoever looks."""

    def define(words: DStream[Any]) -> None:
        counts = words.map(_one).mapWithState(StateSpec.function(count))
        watch(counts, "counts")
        watch(counts.stateSnapshots(), "snapshots")

    in_two_lives(sc, tmp_path, [["a"], ["b"], ["a", "b"], []], define, (2, 2))
    assert values_of("counts") == [[("a", 1)], [("b", 1)], [("a", 2), ("b", 2)], []]
    assert values_of("snapshots")[1:3] == [[("a", 1), ("b", 1)], [("a", 2), ("b", 2)]]


def test_states_after_a_crash(sc: SparkContext, tmp_path: Path) -> None:
    """A crash after three batches: counts are as without it, and no batch is repeated."""

    def define(words: DStream[Any]) -> None:
        counts = words.map(_one).mapWithState(StateSpec.function(count)).checkpoint(3)
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
    watch(ssc.rateStream(3).map(_value))
    ssc.step(2)
    crash(ssc)
    recover(tmp_path).step(2)
    assert values_of() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def _value(row: tuple[Any, int]) -> int:
    return row[1]


def write(directory: Path, name: str, seconds: float) -> None:
    """Put a file there whose only line is its name, modified at a time."""
    path = directory / f".{name}"
    path.write_text(name)
    os.utime(path, (seconds, seconds))
    path.rename(directory / name)


def over_files(sc: SparkContext, directory: Path) -> tuple[StreamingContext, Path, DStream[str]]:
    """Return a context whose checkpoint is in ``ck``, the directory it reads, and its lines."""
    inputs = directory / "in"
    inputs.mkdir()
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(directory / "ck"))
    return ssc, inputs, ssc.textFileStream(str(inputs))


def test_files_are_read_once(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a batch in flight again, those written meanwhile, those after: each exactly once."""
    ssc, inputs, lines = over_files(sc, tmp_path)
    watch(lines, "lines")
    watch(lines.map(int).map(_to_a).updateStateByKey(total).checkpoint(2), "sums")
    for number in (1, 2, 3):
        write(inputs, str(number), number)
    ssc.step(2)
    monkeypatch.setitem(faults(), "out.start", Fault(2, "raise"))
    with pytest.raises(FaultError):
        ssc.step()
    crash(ssc)
    for number in (4, 5, 6):
        write(inputs, str(number), number)
    ssc = recover(tmp_path / "ck")
    ssc.step(4)
    for number in (7, 8, 9):
        write(inputs, str(number), number)
    ssc.step(3)
    assert values_of("lines") == [[str(n)] for n in range(1, 10)]
    assert values_of("sums") == [[("a", n * (n + 1) // 2)] for n in range(1, 10)]


def _to_a(number: int) -> tuple[str, int]:
    return "a", number


def faults() -> dict[str, Fault]:
    from dstreams import faults as module  # noqa: PLC0415

    return module._faults


def test_files_of_committed_batches_are_read_for_their_state_alone(
    sc: SparkContext, tmp_path: Path
) -> None:
    """Which files a batch had is in the checkpoint; a listing of now does not change it."""
    inputs = tmp_path / "in"
    inputs.mkdir()
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path / "ck"))
    watch(ssc.textFileStream(str(inputs)).window(3))
    for number in (1, 2, 3):
        write(inputs, str(number), number)
    ssc.step(3)
    crash(ssc)
    write(inputs, "2b", 2)
    recover(tmp_path / "ck").step(2)
    assert values_of()[-2:] == [["2", "2b", "3"], ["2b", "3"]]


def test_a_stream_that_two_others_share(sc: SparkContext, tmp_path: Path) -> None:
    """Is one stream again, made once in a batch."""

    def define(words: DStream[Any]) -> None:
        sums = words.map(_one).updateStateByKey(total).checkpoint(2)
        watch(sums.join(sums.mapValues(_negated)))

    in_two_lives(sc, tmp_path, [["a"]] * 4, define, (3, 1))
    assert values_of() == [[("a", (n, -n))] for n in range(1, 5)]
    ssc = StreamingContext.getActive() or recover(tmp_path)
    assert len(ssc._graph.outputs) == 1


def _negated(number: int) -> int:
    return -number


def stream_of(directory: Path) -> Path:
    (stream,) = (path for path in directory.glob("stream-0-*") if path.is_dir())
    return stream


def test_a_graph_that_is_written_later_counts(sc: SparkContext, tmp_path: Path) -> None:
    """Also that of an earlier batch, as after a rewind; both stay, and no name is written twice.

    Spark's case, a late snapshot of an older batch, does not occur: a graph is written when a
    driver starts, before its first batch, and only if there is none of that name.
    """
    ssc = begin(sc, tmp_path, [["a"]] * 9, lambda words: watch(words.map(_one)))
    ssc.step(3)
    crash(ssc)
    for life in (2, 1):
        ssc = recover(tmp_path)
        ssc.step(life)
        crash(ssc)
        if life == 2:
            assert main(["rewind", str(tmp_path), "--to", "1000"]) == 0
    assert times_of() == [1, 2, 3, 4, 5, 2]
    files = LocalFiles(str(stream_of(tmp_path)))
    assert [(graph.time_ms, graph.epoch) for graph in all_graphs(files)] == [
        (0, 1),
        (1000, 4),
        (3000, 2),
    ]
    newest = read_newest_graph(files)
    assert newest is not None
    assert (newest.time_ms, newest.epoch) == (1000, 4)


def test_what_has_the_name_of_a_checkpoint(sc: SparkContext, tmp_path: Path) -> None:
    """Directories called like our files, and files like our directories, are nothing to us."""
    directory = tmp_path / "checkpoint-1000" / "stream-9000-0a"
    ssc = begin(sc, directory, [["a"]] * 9, lambda words: watch(words.map(_one)))
    ssc.step(2)
    crash(ssc)
    (directory / "checkpoint-9000").mkdir()
    (directory / "stream-9000-0b").mkdir()
    (directory / "stream-9000-0c").touch()
    stream = stream_of(directory)
    for record in [*stream.glob("commits/*"), *stream.glob("graph/*"), *stream.glob("batches/*")]:
        number, rest = record.name.split("-", 1)
        Path(record.parent, f"{int(number) + 7000:0{len(number)}d}-{rest}").mkdir()
    recover(directory).step(1)
    assert times_of() == [1, 2, 3]


def test_a_damaged_graph_is_refused(sc: SparkContext, tmp_path: Path) -> None:
    """Spark falls back to an older one, which may be another program; here it is named."""
    ssc = begin(sc, tmp_path, [["a"]] * 6, lambda words: watch(words.map(_one)))
    ssc.step(2)
    crash(ssc)
    ssc = recover(tmp_path)
    ssc.step(1)
    crash(ssc)
    graphs = sorted(tmp_path.glob("stream-*/graph/*.graph"))
    assert len(graphs) == 2
    content = graphs[-1].read_bytes()
    _damage(graphs[-1])
    with pytest.raises(RestartError, match=f"{graphs[-1].name} is damaged"):
        recover(tmp_path)
    graphs[-1].unlink()
    with pytest.raises(RestartError, match=f"{graphs[-1].name} is missing"):
        recover(tmp_path)
    other = graphs[0].read_bytes()
    graphs[0].unlink()
    with pytest.raises(RestartError, match=r"graph is missing; .* copy or an export; without"):
        recover(tmp_path)
    graphs[0].write_bytes(other)
    graphs[-1].write_bytes(content)
    recover(tmp_path).step(1)
    assert times_of() == [1, 2, 3, 4]


def _damage(path: Path) -> None:
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("part", ["graph/*.graph", "commits/*.commit"])
def test_what_cannot_be_read(sc: SparkContext, tmp_path: Path, part: str) -> None:
    """Is an error that names it; with createOnError the set-up function is called."""
    ssc = begin(sc, tmp_path, [["a"]] * 3, lambda words: watch(words.map(_one)))
    ssc.step(1)
    crash(ssc)
    (path,) = tmp_path.glob(f"stream-*/{part}")
    _damage(path)
    with pytest.raises(RestartError, match=path.name):
        recover(tmp_path)
    made = StreamingContext(sc, 1, clock=ManualClock())
    assert StreamingContext.getOrCreate(str(tmp_path), lambda: made, createOnError=True) is made


def test_a_function_that_cannot_be_pickled(sc: SparkContext, tmp_path: Path) -> None:
    """Start fails, and names the output, the variable and its type."""
    lock = threading.Lock()

    def locked(rdd: RDD[Any]) -> None:
        with lock:
            rdd.count()

    ssc = begin(sc, tmp_path, [], lambda words: words.foreachRDD(locked))
    with pytest.raises(InvalidStreamError, match=r"foreachRDD at .*uses '.*lock', of type lock"):
        ssc.start()
    assert list(tmp_path.glob("stream-*/epochs/*")) == []


def test_without_a_checkpoint_directory_nothing_is_pickled(sc: SparkContext) -> None:
    """As in Spark: who does not want a restart may capture what he likes."""
    lock = threading.Lock()

    def locked(rdd: RDD[Any]) -> None:
        with lock:
            seen.append(("locked", 0, rdd.collect()))

    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.queueStream([[1]]).foreachRDD(locked)
    ssc.step()
    assert seen == [("locked", 0, [1])]


def test_a_function_that_refers_to_a_stream(sc: SparkContext, tmp_path: Path) -> None:
    """Start fails with "captured in a closure"."""

    def define(words: DStream[Any]) -> None:
        words.foreachRDD(lambda rdd: words.count())

    with pytest.raises(InvalidStreamError, match="was captured in a closure"):
        begin(sc, tmp_path, [], define).start()


def test_what_a_function_may_refer_to(sc: SparkContext, tmp_path: Path) -> None:
    """Contexts are those of the new program, RDDs and broadcast variables have their values."""
    factor = sc.broadcast(3)

    def define(words: DStream[Any]) -> None:
        ssc = words.context()

        def scale(rdd: RDD[Any]) -> RDD[Any]:
            assert ssc.sparkContext is rdd.context
            return rdd.union(sc.parallelize([7])).map(lambda number: number * factor.value)

        watch(words.transform(scale))

    in_two_lives(sc, tmp_path, [[1], [2]], define, (1, 1))
    assert values_of() == [[3, 21], [6, 21]]


def test_a_first_start_that_fails_leaves_nothing_to_take_up(
    sc: SparkContext, tmp_path: Path
) -> None:
    """The next one calls the set-up function, which is mended, and begins in its own time."""
    inputs, clock = tmp_path / "in", ManualClock(5000)
    inputs.touch()  # a file where a directory has to be

    def set_up() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=clock)
        ssc.checkpoint(str(tmp_path / "ck"))
        initial = sc.parallelize([("a", 10)], 1)
        lines = ssc.textFileStream(str(tmp_path / "others")).union(ssc.textFileStream(str(inputs)))
        watch(lines.map(_one).updateStateByKey(total, 1, initialRDD=initial))
        return ssc

    ssc = StreamingContext.getOrCreate(str(tmp_path / "ck"), set_up)
    with pytest.raises(SourceError, match="is not a directory"):
        ssc.step()
    (stream,) = (tmp_path / "ck").glob("stream-*")
    left = {path.relative_to(stream).parts[0] for path in stream.rglob("*") if path.is_file()}
    assert left == {"epochs"}
    assert (stream / "epochs" / "0000000001.released").exists()
    inputs.unlink()
    inputs.mkdir()
    clock.advance(60_000)
    StreamingContext.getOrCreate(str(tmp_path / "ck"), set_up).step()
    assert seen == [("out", 66, [("a", 10)])]


def test_the_batches_of_the_down_time(sc: SparkContext, tmp_path: Path) -> None:
    """All of those whose time has passed run at once, in order, and the committed one does not."""
    clock = ManualClock()
    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.checkpoint(str(tmp_path))
    watch(ssc.queueStream([["a"]] * 9, replayable=True).count())
    ssc.step(3)
    crash(ssc)
    ssc = recover(tmp_path)
    ssc.step(3)
    assert times_of() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("policy", "times", "values"),
    [
        (
            "all",
            [1, 2, 3, 4, 5, 6, 7],
            [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13]],
        ),
        ("merge", [1, 2, 6, 7], [[0, 1], [2, 3], [4, 5, 6, 7, 8, 9, 10, 11], [12, 13]]),
        ("skip", [1, 2, 6, 7], [[0, 1], [2, 3], [10, 11], [12, 13]]),
    ],
)
def test_batches_that_were_missed(
    sc: SparkContext, tmp_path: Path, policy: Any, times: list[int], values: list[list[int]]
) -> None:
    """All of them as in Spark, one in their place, or none; then a further restart goes on."""
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(missed_batches=policy))
    ssc.checkpoint(str(tmp_path))
    rows = ssc.rateStream(2).map(_value)
    watch(rows)
    watch(rows.map(_to_a).updateStateByKey(total).checkpoint(20), "sums")
    watch(rows.map(_to_a).reduceByKeyAndWindow(plus, minus, 5).checkpoint(20), "window")
    ssc.step(2)
    crash(ssc)
    ssc = recover(tmp_path)
    ssc._clock = ManualClock(6000)
    ssc.step(5 if policy == "all" else 1)
    crash(ssc)
    if policy != "all":
        ssc = recover(tmp_path)
        ssc._clock = ManualClock(6000)
        ssc.step(1)
    by_time = dict(zip(times, values, strict=True))
    assert (times_of(), values_of()) == (times, values)
    totals = [sum(map(sum, values[: n + 1])) for n in range(len(times))]
    assert values_of("sums") == [[("a", each)] for each in totals]
    windows = [sum(sum(by_time[t]) for t in times if time - 5 < t <= time) for time in times]
    assert values_of("window") == [[("a", each)] for each in windows]


@pytest.mark.parametrize("policy", ["merge", "skip"])
def test_keys_that_leave_a_window_in_a_gap(sc: SparkContext, tmp_path: Path, policy: Any) -> None:
    """They stay, with what is left of them, as over batches that are empty.

    So it is in Spark, which runs each of these batches; only the filter function drops a key.
    """
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(missed_batches=policy))
    ssc.checkpoint(str(tmp_path))
    words = ssc.queueStream([["a", "b"], ["a"], ["c"]], replayable=True).map(_one)
    window = partial(words.reduceByKeyAndWindow, plus, minus, 5)
    watch(window().checkpoint(20))
    watch(window(filterFunc=_is_positive).checkpoint(20), "filtered")
    ssc.step(2)
    crash(ssc)
    for now_ms in (7000, 7000):
        ssc = recover(tmp_path)
        ssc._clock = ManualClock(now_ms)
        ssc.step(1)
        crash(ssc)
    empty = [("a", 0), ("b", 0)]
    assert times_of() == [1, 2, 7, 8]
    first, second = [("a", 1), ("b", 1)], [("a", 2), ("b", 1)]
    # The window at 7 s begins after 2 s: nothing of before the gap is in it.
    assert values_of()[:2] == [first, second]
    assert [dict(rows) for rows in values_of()[2:]] == [{**dict(empty), "c": 1}] * 2
    assert values_of("filtered") == [first, second, [("c", 1)], [("c", 1)]]


def _is_positive(pair: tuple[str, int]) -> bool:
    return pair[1] > 0


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


def two_outputs(words: DStream[Any]) -> None:
    sums = words.map(_one).updateStateByKey(total).checkpoint(20)
    watch(sums, "first")
    watch(sums, "second")
    watch(words.map(_one).mapWithState(StateSpec.function(count)), "stored")


def fail_in(ssc: StreamingContext, *outputs: str) -> None:
    """Run a batch in which outputs fail."""
    failing.update(outputs)
    with pytest.raises(BatchFailedError):
        ssc.step(1)
    failing.clear()


def test_the_output_that_failed_does_not_run_again_by_itself(
    sc: SparkContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is committed; Spark says so nowhere, here record, log and ``show`` do."""
    ssc = begin(sc, tmp_path, [["a"]] * 6, two_outputs)
    ssc.step(1)
    fail_in(ssc, "first")
    ssc.step(1)
    crash(ssc)
    recover(tmp_path).step(1)
    assert times_of("first") == [1, 3, 4]
    assert times_of("second") == times_of("stored") == [1, 2, 3, 4]
    assert values_of("first")[-1] == [("a", 4)]
    log = CommitLog(LocalFiles(str(stream_of_now(tmp_path))))
    assert log.read(2000).failed_outputs == ("foreachRDD-0",)
    (said,) = (message for message in caplog.messages if "committed without" in message)
    assert said.startswith("outputs foreachRDD-0 of the batch at 2000 ms failed")


def test_a_failed_output_runs_again_after_a_rewind(
    sc: SparkContext,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the log says: with the same input, and so do the other outputs and later batches."""
    ssc, inputs, lines = over_files(sc, tmp_path)
    watch(lines, "first")
    watch(lines.map(int).map(_to_a).updateStateByKey(total).checkpoint(20), "second")
    for number in (1, 2, 3):
        write(inputs, str(number), number)
    ssc.step(1)
    fail_in(ssc, "first")
    ssc.step(1)
    crash(ssc)
    assert main(["show", str(tmp_path / "ck")]) == 0
    shown = capsys.readouterr().out
    assert "failed in the batch at 2000 ms: foreachRDD-0; to run it again: rewind --to" in shown
    (said,) = (message for message in caplog.messages if "committed without" in message)
    command = said.partition("python -m checkpoint ")[2].partition(",")[0].split()
    assert main(command) == 0
    seen.clear()
    write(inputs, "20", 2)  # which comes too late for the batch at 2 s
    recover(tmp_path / "ck").step(3)
    assert [(time, records) for name, time, records in seen if name == "first"] == [
        (2, ["2"]),
        (3, ["3"]),
        (4, ["20"]),
    ]
    assert values_of("second") == [[("a", 3)], [("a", 6)], [("a", 26)]]


def test_a_batch_that_failed_under_stop_runs_again_whole(
    sc: SparkContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither it nor its state is committed: a restart has it with the same input, all outputs."""
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(on_failure="stop"))
    ssc.checkpoint(str(tmp_path))
    two_outputs(ssc.queueStream([["a"]] * 6, replayable=True))
    ssc.step(1)
    fail_in(ssc, "second")
    assert ssc.getState() is StreamingContextState.STOPPED
    assert CommitLog(LocalFiles(str(stream_of_now(tmp_path)))).times() == [1000]
    assert "committed without" not in caplog.text
    ssc = recover(tmp_path)
    fail_in(ssc, "second")  # as often as it fails
    recover(tmp_path).step(2)
    # What stands behind the output that failed was not begun.
    assert times_of("first") == [1, 2, 2, 2, 3]
    assert times_of("second") == times_of("stored") == [1, 2, 3]
    for name in ("first", "second", "stored"):
        by_time = {time: records for known, time, records in seen if known == name}
        assert by_time == {n: [("a", n)] for n in (1, 2, 3)}


@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_an_input_that_could_not_be_read_is_not_lost(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_failure: Any
) -> None:
    """The batch has none of it, also when it runs again, and the next one has the files."""
    settings = Settings(on_failure=on_failure)
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=settings)
    ssc.checkpoint(str(tmp_path / "ck"))
    inputs = tmp_path / "in"
    inputs.mkdir()
    watch(ssc.textFileStream(str(inputs)).map(int).map(_to_a).updateStateByKey(total))
    write(inputs, "1", 1)
    ssc.step(1)
    write(inputs, "2", 2)
    with monkeypatch.context() as patch:
        patch.setattr(FileReader, "plan", _refused)
        with pytest.raises(BatchFailedError, match="not today"):
            ssc.step(1)
    if on_failure == "stop":
        ssc = recover(tmp_path / "ck")
    again = [2] if on_failure == "stop" else []
    ssc.step(len(again) + 1)
    assert times_of() == [1, *again, 3]
    assert values_of() == [[("a", 1)]] * (len(again) + 1) + [[("a", 3)]]


def _refused(reader: FileReader, time_ms: int) -> Any:
    raise OSError("not today")


def test_files_that_only_a_failed_output_would_read_may_be_gone(
    sc: SparkContext, tmp_path: Path
) -> None:
    """A restart asks for no more than the batches to come do."""
    ssc, inputs, lines = over_files(sc, tmp_path)
    watch(lines, "lines")
    watch(lines.window(2), "windows")
    for number in range(1, 6):
        write(inputs, str(number), number)
    for batches in (1, 2):
        ssc.step(batches)
        fail_in(ssc, "lines", "windows")
    crash(ssc)
    seen.clear()
    (inputs / "2").unlink()
    recover(tmp_path / "ck").step(1)
    assert seen == [("lines", 6, []), ("windows", 6, ["5"])]


def test_a_file_that_was_gone_when_its_batch_ran(sc: SparkContext, tmp_path: Path) -> None:
    """The state waits for it, over a restart too, and has all of it when it is there again."""
    inputs = tmp_path / "in"
    inputs.mkdir()
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path / "ck"))
    both = ssc.textFileStream(str(inputs)).union(ssc.queueStream([["10"]] * 9, replayable=True))
    watch(both.map(int).map(_to_a).updateStateByKey(total, 1).checkpoint(20))
    write(inputs, "1", 1)
    write(inputs, "2", 2)
    ssc.step(1)
    engine = ssc._engine
    assert engine is not None
    batch = engine.plan_batch()
    (inputs / "2").unlink()
    assert isinstance(engine.run_batch(batch).error, BatchFailedError)
    write(inputs, "3", 3)
    with pytest.raises(BatchFailedError, match="in/2"):
        ssc.step(1)
    crash(ssc)
    with pytest.raises(SourceError, match=r"in/2.* put it back, or go on without"):
        recover(tmp_path / "ck").step(1)
    write(inputs, "2", 2)
    for _ in range(2):
        ssc = recover(tmp_path / "ck")
        ssc.step(1)
        crash(ssc)
    assert values_of() == [[("a", n)] for n in (11, 46, 56)]


@pytest.mark.parametrize("step", ["state.done", "commit.start"])
def test_blocks_are_kept_until_their_batch_is_committed(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Those that come while a batch runs, or while its copy is written, are in the next one."""
    monkeypatch.setitem(late, 1, [2])
    ssc = define_fed(str(tmp_path), sc)
    ssc.step()
    feed([1])
    monkeypatch.setitem(faults(), step, Fault(1, "raise"))
    with pytest.raises(FaultError):
        ssc.step()
    crash(ssc)
    blocks = list(stream_of_now(tmp_path / "checkpoint").glob("received/*/*"))
    assert len(blocks) == (1 if step == "state.done" else 2)
    ssc = recover(tmp_path / "checkpoint")
    ssc.step(3)
    crash(ssc)
    lines = (tmp_path / "ledger").read_text().splitlines()
    rows = {(line["output"], line["batch"]): line["rows"] for line in map(json.loads, lines)}
    assert [rows["numbers", batch_id] for batch_id in (0, 1, 2)] == [[], [1], [2]]
    assert rows["sums", 2] == [[0, 2], [1, 1]]


def stream_of_now(directory: Path) -> Path:
    (stream,) = directory.glob("stream-*")
    return stream


STEPS = (
    "plan.start",
    "begin.start",
    "begin.done",
    "job.submit",
    "state.start",
    "state.done",
    "out.start",
    "out.done",
    "commit.start",
    "commit.done",
    "clean.start",
    "clean.done",
)


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_each_step(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Batch 3 crashes there: its output runs, once more at most, with the same records."""

    def define(words: DStream[Any]) -> None:
        pairs = words.map(_one)
        joined = (
            pairs.updateStateByKey(total)
            .checkpoint(2)
            .join(pairs.reduceByKeyAndWindow(plus, minus, 5).checkpoint(3))
        )
        watch(joined.join(pairs.mapWithState(StateSpec.function(count))))

    ssc = begin(sc, tmp_path, [["a"]] * 6, define)
    ssc.step(3)
    monkeypatch.setitem(faults(), step, Fault(3, "raise"))
    with pytest.raises(FaultError):
        ssc.step(1)
    crash(ssc)
    recover(tmp_path).step(2 if step in ("commit.done", "clean.start", "clean.done") else 3)
    times = [1, 2, 3, 4, 5, 6]
    if step in ("out.done", "commit.start"):
        times.insert(3, 4)
    assert times_of() == times
    assert dict(zip(times_of(), values_of(), strict=True)) == {
        n: [("a", ((n, min(n, 5)), n))] for n in range(1, 7)
    }


def test_a_queue_that_is_not_replayable(sc: SparkContext, tmp_path: Path) -> None:
    """Is refused by name, and nothing has been claimed."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path))
    watch(ssc.queueStream([[1]]))
    ssc.step()
    crash(ssc)
    with pytest.raises(RestartError, match=r"queueStream at test_recovery.py:\d+ cannot go on"):
        recover(tmp_path)
    assert len(list(tmp_path.glob("stream-*/epochs/*.claim"))) == 1


def test_a_directory_that_others_can_write(sc: SparkContext, tmp_path: Path) -> None:
    """Nothing is unpickled from there: who writes there would run code as this user."""
    ssc = begin(sc, tmp_path, [], watch)
    ssc.step()
    crash(ssc)
    (graph,) = tmp_path.glob("stream-*/graph/*.graph")
    graph.chmod(0o666)
    with pytest.raises(RestartError, match="can be written by others"):
        recover(tmp_path)


def test_two_drivers_on_one_checkpoint(sc: SparkContext, tmp_path: Path) -> None:
    """The newer one wins; the older one fails at its next batch, and names it."""
    older = begin(sc, tmp_path, [["a"]] * 6, lambda words: watch(words.map(_one)))
    older.step(2)
    (stream,) = tmp_path.glob("stream-*")
    LifeCycle.active = None  # as in another process
    newer = recover(tmp_path)
    newer.step(1)
    with pytest.raises(BatchFailedError, match=r"process \d+ on host .* has taken over"):
        older.step(1)
    newer.step(1)
    assert times_of() == [1, 2, 3, 4]
    assert CommitLog(LocalFiles(str(stream))).times() == [1000, 2000, 3000, 4000]
    crash(newer)
