"""Recorded batches run again in a copy of the checkpoint."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint import CommitLog, open_existing
from dstreams import (
    InvalidStreamError,
    Receiver,
    RestartError,
    SourceError,
    StreamingContext,
    StreamLifecycleError,
)
from dstreams.cli.drill import job, oracle
from dstreams.common.settings import Settings
from dstreams.kafka import ConsumerStrategies
from dstreams.testing import ManualClock, ReplayedBatch, replay
from tests.conformance.kafka_streams import parameters, stream_of
from tests.support.kafka_cluster import KafkaCluster
from tests.support.waiting import wait_for

Setup = Callable[[], StreamingContext]


def add_up(new: list[int], total: int | None) -> int:
    return sum(new) + (total or 0)


def add_up_double_b(new: list[tuple[str, int]], total: int | None) -> int:
    return sum(2 * one if word == "b" else one for word, one in new) + (total or 0)


def count_words(
    spark: SparkContext, base: Path, update: Callable[..., Any] = add_up, is_double: bool = False
) -> StreamingContext:
    """Define a count of words in files; if *is_double*, ``b`` counts twice."""
    ssc = StreamingContext(spark, 1, clock=ManualClock(1_000_000))
    ssc.checkpoint(str(base / "checkpoint"))
    words = ssc.fileStream(str(base / "input"), newFilesOnly=False, uid="words").flatMap(str.split)
    pairs = words.map(lambda word: (word, 2 if is_double and word == "b" else 1))
    pairs.updateStateByKey(update, uid="counts").pprint()
    return ssc


def write(base: Path, number: int, text: str) -> None:
    path = base / "input" / f"{number:03}.txt"
    path.write_text(text)
    os.utime(path, (1_000, 1_000))  # by the clock of the stream, which is not that of the disk


def record(setup: Setup, base: Path, texts: list[str]) -> None:
    """Run a batch for each text, and stop as a crash does: without a final snapshot."""
    (base / "input").mkdir()
    ssc = setup()
    for number, text in enumerate(texts):
        write(base, number, text)
        ssc.step()
    ssc.stop(stopSparkContext=False)


def content(directory: Path) -> dict[str, str]:
    """Return a digest of each file below a directory."""
    return {
        os.path.relpath(path, directory): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def counts_of(batches: list[ReplayedBatch]) -> list[dict[str, int]]:
    return [dict(batch.states["counts"]) for batch in batches]


TEXTS = ["a b", "b", "c", "a a", "b c"]
COUNTS = [
    {"a": 1, "b": 1},
    {"a": 1, "b": 2},
    {"a": 1, "b": 2, "c": 1},
    {"a": 3, "b": 2, "c": 1},
    {"a": 3, "b": 3, "c": 2},
]


@pytest.fixture
def recorded(sc: SparkContext, tmp_path: Path) -> Path:
    """A directory with the checkpoint and the input of five batches."""
    record(partial(count_words, sc, tmp_path), tmp_path, TEXTS)
    return tmp_path


def test_unchanged_and_changed_code(sc: SparkContext, recorded: Path) -> None:
    """The same code makes the same, other code what it must; the checkpoint is only read."""
    checkpoint = str(recorded / "checkpoint")
    before = content(recorded / "checkpoint")
    same = replay(checkpoint, partial(count_words, sc, recorded))
    assert counts_of(same) == COUNTS
    assert [sorted(batch.outputs["pprint-0"]) for batch in same] == [
        sorted(counts.items()) for counts in COUNTS
    ]
    assert [batch.batch_id for batch in same] == [0, 1, 2, 3, 4]
    doubled = replay(checkpoint, partial(count_words, sc, recorded, is_double=True))
    assert counts_of(doubled) == [{**counts, "b": 2 * counts["b"]} for counts in COUNTS]
    assert counts_of(replay(checkpoint)) == COUNTS
    assert content(recorded / "checkpoint") == before
    assert StreamingContext.getActive() is None


def test_a_range_of_batches(sc: SparkContext, recorded: Path) -> None:
    """Batches before the first one keep their results; the last one is the last to run."""
    checkpoint = str(recorded / "checkpoint")
    times = [batch.batch_time_ms for batch in replay(checkpoint)]
    setup = partial(count_words, sc, recorded, is_double=True)
    found = replay(checkpoint, setup, (times[3], times[4]))
    assert [batch.batch_time_ms for batch in found] == times[3:]


def test_what_cannot_run_again(sc: SparkContext, recorded: Path) -> None:
    """A missing file, batch or operator is reported before anything runs."""
    checkpoint = str(recorded / "checkpoint")
    setup = partial(count_words, sc, recorded)
    with pytest.raises(InvalidStreamError, match=r"does not keep the batch at .*; the nearest are"):
        replay(checkpoint, setup, (1_000_500, None))
    with pytest.raises(InvalidStreamError, match=r"cannot be opened: .* is not a directory"):
        replay(str(recorded / "nothing"), setup)

    def without_state() -> StreamingContext:
        ssc = StreamingContext(sc, 1)
        ssc.fileStream(str(recorded / "input"), uid="words").pprint()
        return ssc

    with pytest.raises(RestartError, match="nothing ran:\n- nothing has the uid 'counts'"):
        replay(checkpoint, without_state)
    (recorded / "input" / "002.txt").unlink()
    with pytest.raises(SourceError, match=r"files of the batch at \d+ ms cannot be opened"):
        replay(checkpoint, setup)


def test_time_travel(sc: SparkContext, recorded: Path) -> None:
    """States after an earlier batch can be looked up, and the next batches run with other code."""
    ssc = count_words(sc, recorded)
    times = CommitLog(open_existing(only_stream(recorded))).times()
    with ssc.at(times[2]) as then:
        assert then.state("counts").range() == sorted(COUNTS[2].items())
        assert then.batch_time_ms == times[2]
        (batch,) = then.step()
        assert (batch.batch_time_ms, batch.states["counts"]) == (times[3], COUNTS[3])
        assert then.state().get("a") == 3
    with ssc.at(times[2], partial(count_words, sc, recorded, is_double=True)) as then:
        assert counts_of(then.step(2)) == [COUNTS[3], {**COUNTS[4], "b": 4}]
        assert then.step() == []
    with ssc.at(times[4]) as then:
        assert dict(then.state().range()) == COUNTS[4]
        assert then.left_ms == []
    with pytest.raises(InvalidStreamError, match=r"keeps no state of .*; the nearest are"):
        ssc.at(times[2] + 1)
    with pytest.raises(StreamLifecycleError, match="needs the checkpoint directory"):
        StreamingContext(sc, 1).at(times[2])


def only_stream(base: Path) -> Path:
    (stream,) = (base / "checkpoint").glob("stream-*")
    return stream


def test_a_recording(sc: SparkContext, recorded: Path, tmp_path: Path) -> None:
    """Batches run again from one file, without the sources and the checkpoint they came from."""
    times = CommitLog(open_existing(only_stream(recorded))).times()
    file, other = str(tmp_path / "recording.zip"), tmp_path / "other"
    with count_words(sc, recorded).at(times[1]) as then:
        with pytest.raises(InvalidStreamError, match=r"exceeds 2000 bytes at .*record fewer"):
            then.record(file, 2000)
        assert not os.path.exists(file)
        assert then.record(file) > os.path.getsize(file)
        assert os.stat(file).st_mode & 0o777 == 0o600
        with pytest.raises(InvalidStreamError, match="exists already"):
            then.record(file)
    shutil.rmtree(recorded / "input")
    shutil.rmtree(recorded / "checkpoint")
    other.mkdir()
    assert counts_of(replay(file, partial(count_words, sc, other))) == COUNTS[2:]
    assert counts_of(replay(file, batches=(None, times[3]))) == COUNTS[2:4]
    Path(file).chmod(0o622)
    with pytest.raises(RestartError, match="can be written by others"):
        replay(file)


@pytest.mark.deep
def test_more_history(sc: SparkContext, tmp_path: Path) -> None:
    """The setting keeps batches, their input and the states before them, which no restart needs."""
    again = {}
    for kept in (0, 6):
        checkpoint = str(tmp_path / f"kept-{kept}")
        ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(history_batches=kept))
        ssc.checkpoint(checkpoint)
        words = ssc.queueStream([[("a", 1)]] * 10, replayable=True)
        words.updateStateByKey(add_up, uid="sums").checkpoint(1).foreachRDD(lambda rdd: None)
        ssc.step(10)
        ssc.stop(stopSparkContext=False)
        again[kept] = [batch.states["sums"]["a"] for batch in replay(checkpoint)]
    assert again[6][-6:] == [5, 6, 7, 8, 9, 10]
    assert len(again[0]) < 6


@pytest.mark.deep
def test_windows(sc: SparkContext, tmp_path: Path) -> None:
    """Each batch that is kept finds what its window reads; a lost record of that is an error."""
    checkpoint, outputs = str(tmp_path / "checkpoint"), []

    def setup() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock(1000))
        ssc.checkpoint(checkpoint)
        numbers = ssc.queueStream([[("a", n)] for n in range(25)], replayable=True, uid="numbers")
        sums = numbers.reduceByKeyAndWindow(
            lambda one, other: one + other, lambda one, other: one - other, 8, 1, 2, uid="sums"
        )
        sums.foreachRDD(lambda rdd: outputs.append(rdd.collect()))
        return ssc

    ssc = setup()
    ssc.step(25)
    ssc.stop(stopSparkContext=False)
    expected = list(outputs)
    oldest = replay(checkpoint)[0].batch_time_ms
    for define in (None, setup):
        for first_ms in (oldest, oldest + 1000, oldest + 5000):
            again = replay(checkpoint, define, (first_ms, None))
            found = {batch.batch_id: batch.outputs["foreachRDD-0"] for batch in again}
            assert found == dict(enumerate(expected[min(found) :], min(found)))
    assert oldest + 5000 < 21_000, "before the state that a restart begins with"
    for begin in (tmp_path / "checkpoint").glob("*/batches/*.begin"):
        if int(begin.name.partition("-")[0]) < oldest - 1000:
            begin.unlink()
    for define in (None, setup):
        missing = rf"^file://{checkpoint}/stream-\S+\.begin is missing, which says what queueStream"
        with pytest.raises(RestartError, match=missing):
            replay(checkpoint, define)


@pytest.mark.deep
def test_the_job_of_the_drill(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kinds of state and windows make the outputs again that they have written to files."""
    found = replay_of_drill(sc, tmp_path, monkeypatch, 9)
    directory = str(tmp_path)
    assert [batch.batch_id for batch in found] == list(range(found[0].batch_id, 9))
    assert len(found) >= 6
    states = {uid: sorted(map(list, pairs.items())) for uid, pairs in found[-1].states.items()}
    written = written_by(tmp_path, oracle.STATES, found[-1])
    assert written, "the last output of the last batch has states"
    for uid in (oracle.TOTALS, oracle.VISITS):
        assert len(states[uid]) == len(written)

    middle = found[len(found) // 2].batch_time_ms
    later = replay(f"{directory}/checkpoint", partial(job.setup, directory), (middle, None))
    assert [rows_of(batch) for batch in later] == [
        rows_of(batch) for batch in found if batch.batch_time_ms >= middle
    ]


@pytest.mark.slow
def test_a_hundred_batches_of_the_drill(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a long history, the same code makes the same outputs as it has written."""
    conf = sc.getConf().set("spark.dstreams.history.batches", "100")
    monkeypatch.setattr(sc, "getConf", lambda: conf)
    found = replay_of_drill(sc, tmp_path, monkeypatch, 100)
    assert [batch.batch_id for batch in found] == list(range(100))


def replay_of_drill(
    sc: SparkContext, base: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> list[ReplayedBatch]:
    """Run the job of the drill, and replay it: each output must be as it was written."""
    monkeypatch.setattr(job, "drill_context", lambda settings: sc)
    directory = str(base)
    ssc = job.setup(directory)
    for number in range(batches):
        job.feed(directory, number)
        ssc.step()
    ssc.stop(stopSparkContext=False)
    found = replay(f"{directory}/checkpoint", partial(job.setup, directory))
    names = [oracle.RECORDS, oracle.TOTALS, oracle.WINDOW, oracle.RECENT, oracle.VISITS]
    for batch in found:
        for number, name in enumerate([*names, oracle.STATES]):
            rows = [str(row) for row in batch.outputs[f"saveAsTextFiles-{number}"]]
            assert sorted(rows) == written_by(base, name, batch), (name, batch.batch_id)
    return found


def written_by(base: Path, name: str, batch: ReplayedBatch) -> list[str]:
    """Return what an output of the drill has written in a batch."""
    folder = base / "output" / f"{name}-{batch.batch_time_ms}"
    return sorted(line for part in folder.glob("part-*") for line in part.read_text().splitlines())


def rows_of(batch: ReplayedBatch) -> dict[str, list[str]]:
    return {uid: sorted(map(str, rows)) for uid, rows in batch.outputs.items()}


class Words(Receiver):
    """Stores two words each time it is started."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0

    def onStart(self) -> None:
        self.storeAll(["a", "b"])
        self.starts += 1

    def onStop(self) -> None:
        pass


@pytest.mark.deep
@pytest.mark.parametrize("is_logged", [True, False])
def test_received_records(sc: SparkContext, tmp_path: Path, is_logged: bool) -> None:
    """Blocks are read again and no receiver starts; without a log there is nothing to read."""
    receivers = []

    def setup() -> StreamingContext:
        settings = Settings(receiver_write_ahead_log=is_logged)
        ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=settings)
        ssc.checkpoint(str(tmp_path / "checkpoint"))
        receivers.append(Words())
        words = ssc.receiverStream(receivers[-1], uid="words").map(lambda word: (word, 1))
        words.updateStateByKey(add_up, uid="sums").foreachRDD(lambda rdd: None)
        return ssc

    ssc = setup()
    ssc.step()
    wait_for(lambda: receivers[0].starts == 1)
    ssc.step()
    ssc.stop(stopSparkContext=False)
    if not is_logged:
        with pytest.raises(SourceError, match=r"cannot be replayed: .* without a write-ahead log"):
            replay(str(tmp_path / "checkpoint"), setup)
        return
    found = replay(str(tmp_path / "checkpoint"), setup)
    assert found[-1].states["sums"] == {"a": 1, "b": 1}
    assert [receiver.starts for receiver in receivers] == [1, 0]


@pytest.mark.deep
def test_kafka(sc: SparkContext, kafka: KafkaCluster, tmp_path: Path) -> None:
    """The recorded ranges are read again and nothing is committed; expired records are named."""
    topic = kafka.create_topic()

    def setup() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock())
        ssc.checkpoint(str(tmp_path / "checkpoint"))
        given = parameters(kafka, group_id=f"group-of-{topic}", enable_auto_commit="false")
        records = stream_of(ssc, ConsumerStrategies.Subscribe([topic], given), uid="records")
        words = records.map(lambda record: (record.value.decode(), record.offset))
        words.updateStateByKey(add_up, uid="sums").foreachRDD(lambda rdd: None)
        return ssc

    ssc = setup()
    for words in (["a"], ["b", "a"], []):
        kafka.produce(topic, words)
        ssc.step()
    ssc.stop(stopSparkContext=False)
    kafka.produce(topic, ["not", "recorded"])
    before = kafka.committed(f"group-of-{topic}", topic)
    found = replay(str(tmp_path / "checkpoint"), setup)
    states = [{"a": 0}, {"a": 2, "b": 1}, {"a": 2, "b": 1}]
    assert [batch.states["sums"] for batch in found] == states
    assert kafka.committed(f"group-of-{topic}", topic) == before
    kafka.delete_records(topic, before=2)
    with pytest.raises(SourceError, match=f"{topic}-0 begins at 2, and offset 0 is needed"):
        replay(str(tmp_path / "checkpoint"), setup)
