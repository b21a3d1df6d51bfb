"""Recorded batches of a query run again in a copy of the checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from time import time_ns
from typing import Any
from uuid import uuid4

import pytest

from checkpoint import CommitLog, open_existing
from dstreams import GroupState, InvalidStreamError, RestartError, SourceError, StreamingContext
from dstreams.cli.replay import BatchReport, Comparison
from dstreams.errors import BatchFailedError, StreamLifecycleError
from dstreams.structured import StreamSession, session_window, window
from dstreams.structured.api.writer import DataStreamWriter
from dstreams.testing import ReplayedBatch, replay
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.test_transform_with_state import counted
from tests.dstreams.testing.test_replay import content
from tests.support.kafka_cluster import KafkaCluster, Sent

Word = Callable[[str], str]

FILES = ["1 a\n2 b", "12 a\n13 b\n3 a", "25 b", "40 a", "41 a\n1 a"]
"""Lines of seconds and a word; the last line is late."""

time_of = itemgetter(0)
word_of = itemgetter(1)


def same(word: str) -> str:
    return word


def big_b(word: str) -> str:
    return word.upper() if word == "b" else word


def failing(word: str) -> str:
    raise ValueError(f"no {word}")


def add_up(word: str, values: Iterator[Any], state: GroupState[int]) -> Iterator[tuple[str, int]]:
    state.update((state.getOption or 0) + len(list(values)))
    yield word, state.get


def add_up_b_twice(
    word: str, values: Iterator[Any], state: GroupState[int]
) -> Iterator[tuple[str, int]]:
    state.update((state.getOption or 0) + len(list(values)) * (2 if word == "b" else 1))
    yield word, state.get


def records(session: StreamSession, base: Path, word: Word) -> Any:
    def parse(line: str) -> tuple[int, str]:
        second, _, rest = line.partition(" ")
        return int(second) * 1000, word(rest)

    lines = session.readStream.text(f"{base}/input", maxFilesPerTrigger=1)
    return lines.map(parse)


def to(base: Path, dataset: Any, mode: str = "append") -> DataStreamWriter:
    writer = dataset.writeStream.format("memory").queryName("run").outputMode(mode)
    writer = writer.option("checkpointLocation", f"{base}/checkpoint")
    made: DataStreamWriter = writer.trigger(availableNow=True)
    return made


def windows(session: StreamSession, base: Path, word: Word = same) -> DataStreamWriter:
    """Count the words of each window of ten seconds."""
    marked = records(session, base, word).withWatermark(time_of, "5 seconds")
    return to(base, marked.groupByKey(window(time_of, "10 seconds"), word_of).count())


def groups(
    session: StreamSession, base: Path, func: Any = add_up, name: str = "sums", word: Word = same
) -> DataStreamWriter:
    """Count the words by a function."""
    keyed = records(session, base, word).groupByKey(word_of)
    return to(base, keyed.flatMapGroupsWithState(func, "update", name=name), "update")


def write(base: Path, files: list[str]) -> None:
    (base / "input").mkdir()
    for number, text in enumerate(files):
        path = base / "input" / f"{number:03}.txt"
        path.write_text(text)
        os.utime(path, (1_000 + number, 1_000 + number))


def run(session: StreamSession, writer: DataStreamWriter) -> list[list[Any]]:
    """Run a query over what there is, and return the rows of each batch."""
    query = writer.start()
    assert query.awaitTermination(300)
    return [sorted(rows) for _, rows in sorted(session.tableBatches("run").items())]


def rows_of(batches: list[ReplayedBatch]) -> list[list[Any]]:
    return [sorted(batch.outputs["sink"]) for batch in batches]


def test_windows_over_files(session: StreamSession, tmp_path: Path) -> None:
    """The same code gives the same rows, other code those of its words; nothing is written."""
    write(tmp_path, FILES)
    rows = run(session, windows(session, tmp_path))
    assert any(rows)
    before = content(tmp_path)
    checkpoint = str(tmp_path / "checkpoint")
    again = replay(checkpoint, lambda: windows(session, tmp_path))
    assert rows_of(again) == rows
    assert [batch.batch_id for batch in again] == list(range(len(rows)))
    changed = replay(checkpoint, lambda: windows(session, tmp_path, big_b))
    assert rows_of(changed) == [
        sorted((start, big_b(word), count) for start, word, count in batch) for batch in rows
    ]
    assert [len(*batch.states.values()) for batch in changed] == [
        len(*batch.states.values()) for batch in again
    ]
    assert content(tmp_path) == before


def test_state_by_key(session: StreamSession, tmp_path: Path) -> None:
    """One changed function changes exactly its keys, from the first batch that runs again."""
    write(tmp_path, ["1 a\n2 b", "3 a\n4 c", "5 b", "6 a"])
    checkpoint = str(tmp_path / "checkpoint")
    rows = run(session, groups(session, tmp_path))
    assert rows[2:] == [[("b", 2)], [("a", 3)]]
    again = replay(checkpoint, lambda: groups(session, tmp_path))
    assert rows_of(again) == rows
    third = again[2].batch_time_ms
    states = [batch.states["sums"] for batch in again]
    assert states[-1] == {"a": 3, "b": 2, "c": 1}
    changed = replay(checkpoint, lambda: groups(session, tmp_path, add_up_b_twice), (third, None))
    assert [batch.batch_id for batch in changed] == [2, 3]
    assert rows_of(changed) == [[("b", 3)], [("a", 3)]]
    assert changed[-1].states["sums"] == {**states[-1], "b": 3}
    second = replay(checkpoint, lambda: groups(session, tmp_path), (None, again[1].batch_time_ms))
    assert rows_of(second) == rows[:2]


def test_states_after_a_batch(session: StreamSession, tmp_path: Path) -> None:
    """at() has the states of then, and goes on from there with other code; the query stays."""
    write(tmp_path, ["1 a\n2 b", "3 a\n4 c", "5 b", "6 a"])
    writer = groups(session, tmp_path)
    run(session, writer)
    times = [one.batch_time_ms for one in replay(str(tmp_path / "checkpoint"), lambda: writer)]
    before = content(tmp_path)
    with groups(session, tmp_path, add_up_b_twice).at(times[1]) as then:
        assert then.state("sums").range() == [("a", 2), ("b", 1), ("c", 1)]
        assert rows_of(then.step()) == [[("b", 3)]]
        assert then.state("sums").get("b") == 3
    with writer.at(times[-1]) as newest:
        assert newest.state("sums").range() == [("a", 3), ("b", 2), ("c", 1)]
        assert newest.step(2) == []
    with pytest.raises(InvalidStreamError, match="keeps no state"):
        writer.at(times[-1] + 1)
    with pytest.raises(InvalidStreamError, match="checkpointLocation"):
        records(session, tmp_path, same).writeStream.format("noop").at(times[0])
    assert content(tmp_path) == before


def test_what_cannot_run_again(session: StreamSession, tmp_path: Path) -> None:
    """A program, a range or input that does not fit is an error before anything runs."""
    write(tmp_path, ["1 a", "2 b", "3 c"])
    checkpoint = str(tmp_path / "checkpoint")
    run(session, groups(session, tmp_path))
    times = [batch.batch_time_ms for batch in replay(checkpoint, lambda: groups(session, tmp_path))]

    with pytest.raises(RestartError, match=r"nothing ran: .*operator 'sums' .* is not in this"):
        replay(checkpoint, lambda: groups(session, tmp_path, name="others"))
    with pytest.raises(InvalidStreamError, match="which does not have its code"):
        replay(checkpoint)
    with pytest.raises(InvalidStreamError, match="must return a DataStreamWriter"):
        replay(checkpoint, lambda: StreamingContext(session.sparkContext, 1))
    with pytest.raises(StreamLifecycleError, match="starts its query"):
        replay(checkpoint, lambda: groups(session, tmp_path).start())  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidStreamError, match=r"no batch up to .*; those from .* can run again"):
        replay(checkpoint, lambda: groups(session, tmp_path), (times[1], times[0]))
    with pytest.raises(BatchFailedError, match=r"batch 0 failed: .*ValueError: no a"):
        replay(checkpoint, lambda: groups(session, tmp_path, word=failing))
    (tmp_path / "input" / "001.txt").unlink()
    with pytest.raises(SourceError, match=r"files of the batch at \d+ ms cannot be opened"):
        replay(checkpoint, lambda: groups(session, tmp_path))
    assert len(replay(checkpoint, lambda: groups(session, tmp_path), (times[2], None))) == 1


@pytest.mark.deep
def test_batches_that_are_not_kept(make_session: MakeSession, tmp_path: Path) -> None:
    """The error names the batches that are kept and the setting that keeps more."""
    session = make_session(**{"spark.sql.streaming.minBatchesToRetain": "3"})
    write(tmp_path, [f"{number} a" for number in range(33)])
    checkpoint = str(tmp_path / "checkpoint")
    writer = groups(session, tmp_path)
    query = writer.start()
    assert query.awaitTermination(300)
    times = [progress["timestamp"] for progress in query.recentProgress]
    assert len(times) >= 33
    again = replay(checkpoint, lambda: groups(session, tmp_path))
    assert 3 <= len(again) < 33
    assert again[-1].outputs["sink"] == [("a", 33)]
    gone_ms = again[0].batch_time_ms - 1
    kept = (
        r"those from .* to .* can run again; spark\.sql\.streaming\.minBatchesToRetain keeps more"
    )
    with pytest.raises(InvalidStreamError, match=kept):
        replay(checkpoint, lambda: groups(session, tmp_path), (gone_ms, None))


def test_files_that_are_cleaned_after_a_batch(session: StreamSession, tmp_path: Path) -> None:
    """A replay removes no file of the source, even if the query does."""
    write(tmp_path, ["1 a", "2 b"])
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "input", kept, copy_function=shutil.copy2)

    def define() -> DataStreamWriter:
        path = f"{tmp_path}/input"
        lines = session.readStream.text(path, maxFilesPerTrigger=1, cleanSource="delete")
        return to(tmp_path, lines)

    rows = run(session, define())
    assert not list((tmp_path / "input").iterdir())
    shutil.copytree(kept, tmp_path / "input", copy_function=shutil.copy2, dirs_exist_ok=True)
    assert rows_of(replay(f"{tmp_path}/checkpoint", define)) == rows
    assert len(list((tmp_path / "input").iterdir())) == 2


@pytest.fixture
def compared(session: StreamSession, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Compare another query with the states in the checkpoint of one that ran."""
    comparisons = []

    def compare(writer: DataStreamWriter, **options: bool) -> tuple[Comparison, list[BatchReport]]:
        comparisons.append(Comparison(str(tmp_path / "checkpoint"), writer))
        return comparisons[-1], comparisons[-1].run(**options)

    yield compare
    for comparison in comparisons:
        comparison.opened.close()


def test_states_in_the_checkpoint(
    session: StreamSession, tmp_path: Path, compared: Callable[..., Any]
) -> None:
    """Exactly the keys of a changed function differ from the states that the checkpoint keeps."""
    write(tmp_path, ["1 a\n2 b", "3 a\n4 c", "5 b"])
    run(session, groups(session, tmp_path))
    comparison, reports = compared(groups(session, tmp_path))
    assert [report.states for report in reports] == [{"sums": []}] * 3
    assert comparison.notes == []
    comparison, reports = compared(groups(session, tmp_path, add_up_b_twice))
    changed = [[(one["change"], one["key"]) for one in report.states["sums"]] for report in reports]
    assert changed == [[("~", "b")]] * 3
    assert comparison.notes == []  # two runs of it are equal


@pytest.mark.deep
def test_code_that_is_not_repeatable(
    session: StreamSession, tmp_path: Path, compared: Callable[..., Any]
) -> None:
    """If two runs differ, the first operator with other rows is named."""

    def chance(word: str) -> str:
        return f"{word}-{uuid4()}"

    write(tmp_path, ["1 a\n2 b", "3 a\n4 c"])
    for define in (groups, windows):
        shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)
        run(session, define(session, tmp_path, word=chance))
        comparison, _ = compared(define(session, tmp_path, word=chance))
        (note,) = comparison.notes
        assert "from batch 0 on, first in MapElements tests.dstreams" in note, note
        assert "parse:" in note

    def chance_of_group(
        word: str, values: Iterator[Any], state: GroupState[int]
    ) -> Iterator[tuple[str, int]]:
        state.update(time_ns())
        yield word, state.get

    shutil.rmtree(tmp_path / "checkpoint")
    run(session, groups(session, tmp_path, chance_of_group))
    comparison, _ = compared(groups(session, tmp_path, chance_of_group))
    (note,) = comparison.notes
    assert "first in FlatMapGroupsWithState (sums)" in note, note


@pytest.mark.deep
def test_outputs(session: StreamSession, tmp_path: Path, compared: Callable[..., Any]) -> None:
    """Late records are an output of their own; outputs are called only if requested."""
    late: list[Any] = []
    written: list[list[Any]] = []

    def define() -> DataStreamWriter:
        marked = records(session, tmp_path, same).withWatermark(
            time_of, "5 seconds", lateOutput=lambda rows, _: late.extend(rows.collect())
        )
        counts = marked.groupByKey(window(time_of, "10 seconds"), word_of).count()
        writer = counts.writeStream.foreachBatch(lambda rows, _: written.append(rows.collect()))
        return writer.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(
            availableNow=True
        )

    write(tmp_path, FILES)
    assert define().start().awaitTermination(300)
    before = [*late], [*written]
    assert all(before)
    late.clear()
    written.clear()
    again = replay(f"{tmp_path}/checkpoint", define)
    assert (late, written) == ([], [])
    assert [row for batch in again for row in batch.outputs["sink1"]] == before[0]
    assert [batch.outputs["sink"] for batch in again] == before[1]
    compared(define(), run_outputs=True)
    assert (late, written) == before


@pytest.mark.deep
def test_while_the_query_runs(session: StreamSession, tmp_path: Path) -> None:
    """The query continues as if there was no replay, in the same process too."""
    write(tmp_path, ["1 a", "2 b"])

    def define() -> DataStreamWriter:
        return groups(session, tmp_path).trigger(processingTime="0 seconds")

    query = define().start()
    query.processAllAvailable()
    checkpoint = str(tmp_path / "checkpoint")
    assert rows_of(replay(checkpoint, define)) == [[("a", 1)], [("b", 1)]]
    (tmp_path / "input" / "later.txt").write_text("3 a")
    query.processAllAvailable()
    query.stop()
    assert rows_of(replay(checkpoint, define)) == [[("a", 1)], [("b", 1)], [("a", 2)]]


@pytest.mark.slow
def test_a_hundred_batches(
    session: StreamSession, tmp_path: Path, compared: Callable[..., Any]
) -> None:
    """Over a long history, the same code makes the same rows and states."""
    write(tmp_path, [f"{number} {'abc'[number % 3]}" for number in range(100)])
    rows = run(session, groups(session, tmp_path))
    define = partial(groups, session, tmp_path)
    assert rows_of(replay(str(tmp_path / "checkpoint"), define)) == rows
    _, reports = compared(define())
    assert [report.states for report in reports] == [{"sums": []}] * 100


@pytest.mark.deep
def test_kinds_of_operators(session: StreamSession, tmp_path: Path) -> None:
    """Operators with state make the same rows again, also while each records its rows."""
    write(tmp_path, ["1 a\n2 b", "3 a\n4 b\n3 c", "30 b", "40 a"])
    clicks = [{"user": "ann", "page": "x"}, {"user": "bob", "page": "y"}]
    stream = session.memoryStream()
    stream.addAll(clicks)
    static = session.createDataset([("a", 1), ("b", 2)])
    marked = records(session, tmp_path, same).withWatermark(time_of, "5 seconds")
    others = records(session, tmp_path, same).withWatermark(time_of, "5 seconds")
    sessions = marked.groupByKey(session_window(time_of, "3 seconds"), word_of)
    for number, dataset in enumerate(
        [
            marked.join(others, word_of),
            marked.join(static, word_of, otherOn=time_of),
            marked.dropDuplicates(word_of).limit(2),
            sessions.count(),
            counted(stream.toDS()),
        ]
    ):
        base = tmp_path / f"query-{number}"
        mode = "update" if number == 4 else "append"
        writer = to(base, dataset, mode)
        query = writer.queryName(f"run-{number}").start()
        assert query.awaitTermination(300)
        rows = [*map(sorted_rows, session.tableBatches(f"run-{number}").values())]
        assert any(rows)
        for is_recorded in (False, True):
            with DataStreamWriter._replay(
                f"{base}/checkpoint", partial(to, base, dataset, mode), record_operators=is_recorded
            ) as opened:
                again = opened.step(len(opened.left_ms))
            assert [sorted_rows(batch.outputs["sink"]) for batch in again] == rows, number
            assert (len(again[0].outputs) > 3) is is_recorded


def sorted_rows(rows: list[Any]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.deep
def test_moved_state(session: StreamSession, tmp_path: Path) -> None:
    """Batches before and after a move of the state run again, the move itself does not."""
    write(tmp_path, ["1 a", "2 b"])
    checkpoint = str(tmp_path / "checkpoint")
    run(session, groups(session, tmp_path))
    session.repartitionState(checkpoint, 3)
    (tmp_path / "input" / "later.txt").write_text("3 a")
    run(session, groups(session, tmp_path))
    define = partial(groups, session, tmp_path)
    times = CommitLog(open_existing(checkpoint)).times()
    with pytest.raises(InvalidStreamError, match=r"over batch 2, .* moved the state .* end before"):
        replay(checkpoint, define, (times[0], None))
    assert rows_of(replay(checkpoint, define)) == [[("a", 2)]]
    assert rows_of(replay(checkpoint, define, (times[0], times[1]))) == [[("a", 1)], [("b", 1)]]
    assert rows_of(replay(checkpoint, define, (times[3], None))) == [[("a", 2)]]


PROGRAM = """
import sys
from dstreams import tuned_context
from dstreams.structured import StreamSession

base, rate = sys.argv[1], RATE

def add_up(word, lines, state):
    state.update((state.getOption or 0) + sum(rate if word == "b" else 1 for _ in lines))
    yield word, state.get

session = StreamSession(tuned_context("app", "local[2]"))
lines = session.readStream.text(f"{base}/input", maxFilesPerTrigger=1)
other = lines.writeStream.format("noop").queryName("other")
other.trigger(availableNow=True).start(checkpointLocation=f"{base}/other")
words = lines.groupByKey(lambda line: line.split()[1])
sums = words.flatMapGroupsWithState(add_up, "append", name="sums")
query = sums.writeStream.format("text").queryName("sums").trigger(availableNow=True)
query = query.start(f"{base}/output", checkpointLocation=f"{base}/checkpoint")
query.awaitTermination()
"""


@pytest.mark.deep
def test_two_programs(tmp_path: Path) -> None:
    """The command compares rows and states with those of the old program, batch by batch."""
    write(tmp_path, ["1 a\n2 b", "3 a", "5 b"])
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(PROGRAM.replace("RATE", "1"))
    new.write_text(PROGRAM.replace("RATE", "2"))

    def dstreams(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dstreams", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    checkpoint = tmp_path / "checkpoint"
    done = dstreams("run", "--quiet", old, tmp_path)
    assert done.returncode == 0, done.stderr
    before = content(tmp_path / "checkpoint") | content(tmp_path / "output")
    replayed = ("replay", checkpoint, "--json", "--app")
    done = dstreams(*replayed, old, "--old", old, "--", tmp_path)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(report["differs"], report["rows"]) for report in reports] == [
        (False, {"sink": 2}),
        (False, {"sink": 1}),
        (False, {"sink": 1}),
    ]
    done = dstreams(*replayed, new, "--old", old, "--", tmp_path)
    assert done.returncode == 4, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["outputs"]["sink"] for report in reports] == [
        [{"change": "~", "key": "b", "old": 1, "new": 2}],
        [],
        [{"change": "~", "key": "b", "old": 2, "new": 4}],
    ]
    keys = [[one["key"] for one in report["states"]["sums"]] for report in reports]
    assert keys == [["b"], ["b"], ["b"]]
    assert all(report["old_duration_ms"] > 0 for report in reports)
    assert content(tmp_path / "checkpoint") | content(tmp_path / "output") == before
    done = dstreams(*replayed, new, "--compare", "--", tmp_path)
    assert done.returncode == 1
    assert "does not have its code: --old with the program that made it" in done.stderr
    new.write_text(PROGRAM.replace("RATE", "1").replace('queryName("sums")', 'queryName("new")'))
    done = dstreams(*replayed, new, "--", tmp_path)
    assert done.returncode == 1
    assert "starts query other, query new, but " in done.stderr


@pytest.mark.deep
def test_sessions_over_kafka(session: StreamSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    """The recorded ranges are read again, and nothing after them; expired records are named."""
    topic = kafka.create_topic()

    def sessions(word: Word = same) -> DataStreamWriter:
        reader = session.readStream.format("kafka").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap)
        rows = reader.option("startingOffsets", "earliest").load()
        events = rows.map(lambda row: (row.timestamp, word(row.value.decode())))
        marked = events.withWatermark(time_of, "5 seconds")
        keys = session_window(time_of, "3 seconds"), word_of
        return to(tmp_path, marked.groupByKey(*keys).count())

    for seconds in ([1, 2, 9], [10, 30], [31, 60]):
        sent = [Sent(word, "k", 0, (), 1_000_000 + one * 1000) for one in seconds for word in "ab"]
        kafka.produce(topic, sent)
        rows = run(session, sessions())
    kafka.produce(topic, ["not recorded"])
    checkpoint = str(tmp_path / "checkpoint")
    again = replay(checkpoint, sessions)
    assert rows_of(again) == rows
    assert sum(map(len, rows)) > 4
    changed = replay(checkpoint, lambda: sessions(big_b))
    assert rows_of(changed) == [
        sorted((when, big_b(word), count) for when, word, count in batch) for batch in rows
    ]
    kafka.delete_records(topic, before=2)
    with pytest.raises(SourceError, match=f"{topic}-0 begins at 2, and offset 0 is needed"):
        replay(checkpoint, sessions)
