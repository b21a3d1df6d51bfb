"""What a restart finds: which checkpoint, whether it can be read, and whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkContext

from checkpoint import CommitLog, LocalFiles
from dstreams import BatchFailedError, RestartError, SourceError, StreamingContext
from dstreams.engine.lifecycle import StreamRunner
from dstreams.testing import ManualClock
from tests.conformance.restarts import (
    begin,
    crash,
    recover,
    seen,
    stream_of,
    times_of,
    total,
    watch,
    with_one,
)

pytestmark = pytest.mark.usefixtures("notebook")


def test_no_checkpoint_means_a_set_up(sc: SparkContext, tmp_path: Path) -> None:
    """A directory that does not exist is no error: the set-up function is called."""
    made = StreamingContext(sc, 1, clock=ManualClock())
    assert StreamingContext.getOrCreate(str(tmp_path / "none"), lambda: made) is made


@pytest.mark.deep
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
        watch(lines.map(with_one).updateStateByKey(total, 1, initialRDD=initial))
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


def test_what_has_the_name_of_a_checkpoint(sc: SparkContext, tmp_path: Path) -> None:
    """Directories called like our files, and files like our directories, are nothing to us."""
    directory = tmp_path / "checkpoint-1000" / "stream-9000-0a"
    ssc = begin(sc, directory, [["a"]] * 9, lambda words: watch(words.map(with_one)))
    ssc.step(2)
    crash(ssc)
    (directory / "checkpoint-9000").mkdir()
    (directory / "stream-9000-0b").mkdir()
    (directory / "stream-9000-0c").touch()
    stream = stream_of(directory, "0")
    for record in [*stream.glob("commits/*"), *stream.glob("graph/*"), *stream.glob("batches/*")]:
        number, rest = record.name.split("-", 1)
        Path(record.parent, f"{int(number) + 7000:0{len(number)}d}-{rest}").mkdir()
    recover(directory).step(1)
    assert times_of() == [1, 2, 3]


@pytest.mark.deep
def test_a_damaged_graph_is_refused(sc: SparkContext, tmp_path: Path) -> None:
    """Spark falls back to an older one, which may be another program; here it is named."""
    ssc = begin(sc, tmp_path, [["a"]] * 6, lambda words: watch(words.map(with_one)))
    ssc.step(2)
    crash(ssc)
    ssc = recover(tmp_path)
    ssc.step(1)
    crash(ssc)
    graphs = sorted(tmp_path.glob("stream-*/graph/*.graph"))
    assert len(graphs) == 2
    content = graphs[-1].read_bytes()
    damage(graphs[-1])
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


def damage(path: Path) -> None:
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("part", ["graph/*.graph", "commits/*.commit"])
def test_what_cannot_be_read(sc: SparkContext, tmp_path: Path, part: str) -> None:
    """Is an error that names it; with createOnError the set-up function is called."""
    ssc = begin(sc, tmp_path, [["a"]] * 3, lambda words: watch(words.map(with_one)))
    ssc.step(1)
    crash(ssc)
    (path,) = tmp_path.glob(f"stream-*/{part}")
    damage(path)
    with pytest.raises(RestartError, match=path.name):
        recover(tmp_path)
    made = StreamingContext(sc, 1, clock=ManualClock())
    assert StreamingContext.getOrCreate(str(tmp_path), lambda: made, createOnError=True) is made


def test_a_queue_that_is_not_replayable(sc: SparkContext, tmp_path: Path) -> None:
    """Is refused by name, and nothing has been claimed."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(tmp_path))
    watch(ssc.queueStream([[1]]))
    ssc.step()
    crash(ssc)
    with pytest.raises(
        RestartError, match=r"queueStream at test_restart_find.py:\d+ cannot be resumed"
    ):
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
    older = begin(sc, tmp_path, [["a"]] * 6, lambda words: watch(words.map(with_one)))
    older.step(2)
    (stream,) = tmp_path.glob("stream-*")
    StreamRunner.active = None  # as in another process
    newer = recover(tmp_path)
    newer.step(1)
    with pytest.raises(BatchFailedError, match=r"process \d+ on host .* has taken over"):
        older.step(1)
    newer.step(1)
    assert times_of() == [1, 2, 3, 4]
    assert CommitLog(LocalFiles(str(stream))).times() == [1000, 2000, 3000, 4000]
    crash(newer)
