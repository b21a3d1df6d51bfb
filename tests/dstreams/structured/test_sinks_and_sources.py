"""Sources of records and sinks of rows."""

from __future__ import annotations

import io
import json
import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from checkpoint import InputPast
from dstreams.common.settings import Settings
from dstreams.errors import RestartError, SourceError, StreamLifecycleError
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sources.file_listing import HadoopDirectories
from dstreams.sources.source import PlannedInput, SourceEnvironment
from dstreams.state.group_state import OutputMode
from dstreams.structured import StreamingDataset, StreamingQueryException, StreamSession
from dstreams.structured.sinks.file_sink import FileSink
from dstreams.structured.sinks.trial_sinks import ConsoleSink, table
from dstreams.structured.sources.committed_files import (
    VisibleFiles,
    committed_files,
    committed_lines,
)
from dstreams.structured.sources.file_source import FileStreamSource
from dstreams.structured.sources.query_formats import format_of
from dstreams.testing import ManualClock
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.runs import QueryRun
from tests.support.surroundings import Driven
from tests.support.waiting import wait_for

FIRST = OutputBatch("query", 0, 1000)


class Pair(NamedTuple):
    """A row with names."""

    word: str
    count: int


def test_console(sc: SparkContext) -> None:
    """Rows are printed as a table under the number of their batch."""
    out = io.StringIO()
    sink = ConsoleSink(rows=2, out=out)
    assert (
        sink.add_batch(
            replace(FIRST, batch_id=3), sc.parallelize([("a", 1), ("b", 22)], 2), OutputMode.Append
        )
        == 2
    )
    assert out.getvalue() == (
        "-------------------------------------------\n"
        "Batch: 3\n"
        "-------------------------------------------\n"
        "+---+---+\n"
        "| _1| _2|\n"
        "+---+---+\n"
        "|  a|  1|\n"
        "|  b| 22|\n"
        "+---+---+\n"
        "\n"
    )
    assert (
        sink.add_batch(replace(FIRST, batch_id=4), sc.parallelize(range(5), 2), OutputMode.Append)
        == 5
    )
    assert "only showing top 2 rows" in out.getvalue()


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ([], ["|value|"]),
        ([Pair("a", 1)], ["|word|count|", "|   a|    1|"]),
        ([{"a": 1}, {"b": 2}], ["|   a|   b|", "|   1|None|", "|None|   2|"]),
        (["x" * 30], ["|               value|", f"|{'x' * 17}...|"]),
        ([(1, 2), 3], ["| value|", "|(1, 2)|", "|     3|"]),
    ],
)
def test_tables(rows: list[Any], lines: list[str]) -> None:
    """Columns have the names of fields or keys, or numbers."""
    assert [line for line in table(rows).splitlines() if line.startswith("|")] == lines


class Failing:
    """Takes rows of the first partition only, and none that is bad."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.path = Path(self.directory, str(partition_id))
        return partition_id == 0

    def process(self, row: str) -> None:
        if row == "bad":
            raise ValueError("a bad row")
        self.path.write_text(row)

    def close(self, error: Exception | None) -> None:
        self.path.with_suffix(".end").write_text(repr(error))


def test_foreach_that_fails(session: StreamSession, tmp_path: Path) -> None:
    """A partition that is not opened is skipped, and a failed one is closed with its error."""
    words = session.memoryStream(partitions=2)
    query = words.toDS().writeStream.foreach(Failing(tmp_path)).start()
    words.addData("a", "b")
    query.processAllAvailable()
    assert query.lastProgress is not None
    assert query.lastProgress.sink.numOutputRows == 1
    words.addData("bad", "b")
    with pytest.raises(StreamingQueryException, match=r"failed in batch 1: .*a bad row"):
        query.processAllAvailable()
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"0": "a", "0.end": "ValueError('a bad row')", "1.end": "None"}


class Writer:
    """Writes rows to a file for each partition and batch."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.path = Path(self.directory, f"{epoch_id}-{partition_id}")
        self.rows: list[str] = []
        return True

    def process(self, row: Any) -> None:
        self.rows.append(str(row))

    def close(self, error: Exception | None) -> None:
        if self.rows:
            self.path.write_text(f"{error} {' '.join(self.rows)}")


def test_foreach(session: StreamSession, tmp_path: Path) -> None:
    """A writer is opened and closed for each partition and batch."""
    words = session.memoryStream(partitions=1)
    query = words.toDS().writeStream.foreach(Writer(tmp_path)).start()
    for word in ("a", "b"):
        words.addData(word)
        query.processAllAvailable()
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"0-0": "None a", "1-0": "None b"}


@pytest.mark.deep
def test_foreach_batch(session: StreamSession, sc: SparkContext) -> None:
    """A batch is passed as an RDD, or as a DataFrame on request."""
    seen: list[Any] = []
    words = session.memoryStream()
    plain = words.toDS().writeStream.foreachBatch(
        lambda rows, batch_id: seen.append((batch_id, sorted(rows.collect())))
    )
    frames = words.toDS().writeStream.foreachBatch(
        lambda rows, batch_id: seen.append((batch_id, rows.columns, rows.count())),
        "word string, count int",
    )
    query = plain.start()
    words.addData(("a", 1), ("b", 2))
    query.processAllAvailable()
    query.stop()
    query = frames.start()
    query.processAllAvailable()
    query.stop()
    assert seen == [(0, [("a", 1), ("b", 2)]), (0, ["word", "count"], 2)]


def test_the_last_sink_counts(session: StreamSession) -> None:
    """The sink is chosen by a format or by a function."""
    seen: list[int] = []
    words = session.memoryStream()
    words.addData("a")
    writer = words.toDS().writeStream.queryName("last")
    both = [
        writer.foreachBatch(lambda rows, batch_id: seen.append(batch_id)).format("memory"),
        writer.format("memory").foreachBatch(lambda rows, batch_id: seen.append(batch_id)),
    ]
    for writer in both:
        query = writer.start()
        query.processAllAvailable()
        query.stop()
    assert (session.table("last"), seen) == (["a"], [0])


def test_a_table_of_a_query_that_goes_on(session: StreamSession, tmp_path: Path) -> None:
    """It has each row once, also those of earlier runs; another query of that name starts empty."""
    run = QueryRun(session, itself, "append", tmp_path / "one")
    run.add("a")
    run.restart()
    run.add("b")
    assert session.table("run") == ["a", "b"]
    run.query.stop()
    other = QueryRun(session, itself, "append", tmp_path / "two")
    other.add("c")
    assert session.table("run") == ["c"]


def test_a_memory_stream_that_was_not_filled_again(
    make_session: MakeSession, tmp_path: Path
) -> None:
    """A new process without the earlier records fails with an error, and loses nothing."""
    run = QueryRun(make_session(), itself, "append", tmp_path)
    assert run.add("a") == ["a"]
    run.query.stop()
    with pytest.raises(RestartError, match="has 0 additions, but a batch of the checkpoint"):
        QueryRun(make_session(), itself, "append", tmp_path)


def itself(dataset: StreamingDataset) -> StreamingDataset:
    return dataset


@pytest.mark.deep
def test_frames_without_a_schema(session: StreamSession, sc: SparkContext) -> None:
    """The schema is found out where there are rows; a batch without any has no columns."""
    seen: list[Any] = []
    words = session.memoryStream()
    query = words.toDS().writeStream.foreachBatch(
        lambda frame, batch_id: seen.append((frame.columns, frame.count())), asDataFrame=True
    )
    running = query.start()
    for rows in ([("a", 1)], []):
        words.addAll(rows)
        running.processAllAvailable()
    assert seen == [(["_1", "_2"], 1), ([], 0)]


def test_data_frames_in(session: StreamSession, sc: SparkContext) -> None:
    """The rows of a DataFrame can be added to a memory stream."""
    frame = SparkSession(sc).createDataFrame([("a", 1), ("b", 2)], "word string, count int")
    words = session.memoryStream()
    words.addAll(frame)
    pairs = words.toDS().map(lambda row: (row.word, row["count"]))
    query = pairs.writeStream.format("memory").queryName("frames").start()
    query.processAllAvailable()
    assert sorted(session.table("frames")) == [("a", 1), ("b", 2)]


def test_file_sink(sc: SparkContext, tmp_path: Path) -> None:
    """A batch is written once, and only what its record names counts."""
    sink = FileSink(str(tmp_path), "json")
    sink.begin("query")
    rows = sc.parallelize([Pair("a", 1), Pair("b", 2)], 2)
    assert sink.add_batch(FIRST, rows, OutputMode.Append) == 2
    names = committed_files(str(tmp_path))[0]
    assert sink.add_batch(FIRST, rows, OutputMode.Append) is None
    (tmp_path / "part-0000000000-00009-dead.json").write_text("{}\n")
    assert committed_files(str(tmp_path)) == {0: names}
    lines = committed_lines(str(tmp_path))[0]
    assert [json.loads(line) for line in sorted(lines)] == [
        {"word": "a", "count": 1},
        {"word": "b", "count": 2},
    ]
    other = FileSink(str(tmp_path), "json")
    with pytest.raises(RestartError, match="written by query query, not by another query"):
        other.begin("another query")
    with pytest.raises(StreamLifecycleError, match="is not open; call begin before add_batch"):
        FileSink(str(tmp_path), "json").add_batch(FIRST, rows, OutputMode.Append)


def test_output_is_not_signed(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files for others to read are plain and theirs to read, also where checkpoints are signed."""
    monkeypatch.setenv("CHECKPOINT_KEY", "a key of more than sixteen bytes")
    sink = FileSink(str(tmp_path), "text")
    sink.begin("query")
    sink.add_batch(FIRST, sc.parallelize(["a"], 1), OutputMode.Append)
    (name,) = committed_files(str(tmp_path))[0]
    assert (tmp_path / name).read_text() == "a\n"
    own = tmp_path / "own"
    own.touch()
    assert (tmp_path / name).stat().st_mode == own.stat().st_mode


def test_committed_files_are_read(session: StreamSession, tmp_path: Path) -> None:
    """A source follows the records of the file sink that writes its directory, and no listing."""
    output = tmp_path / "output"
    words = session.memoryStream(partitions=1)
    writer = words.toDS().writeStream.format("text")
    writer = writer.option("checkpointLocation", str(tmp_path / "one")).queryName("writes")
    query = writer.start(output)
    wait_for((output / "_committed" / "query").exists)
    (output / "part-0000000000-00000-lost.txt").write_text("lost\n")
    lines = session.readStream.text(str(output)).writeStream.format("memory").queryName("reads")
    reading = lines.start()
    reading.processAllAvailable()
    for word in ("a", "b"):
        words.addData(word)
        query.processAllAvailable()
    reading.processAllAvailable()
    assert session.table("reads") == ["a", "b"]
    assert committed_lines(str(output)) == {0: ["a"], 1: ["b"]}
    assert session.read.text(output).collect() == ["a", "b"]


@pytest.mark.parametrize("pattern", ["out[12]", "{out1,out2}"])
def test_patterns_follow_no_records(session: StreamSession, tmp_path: Path, pattern: str) -> None:
    """Of several directories all files are read that are not hidden."""
    for name in ("out1", "out2"):
        (tmp_path / name / "_committed").mkdir(parents=True)
        (tmp_path / name / "_committed" / "query").write_text("{}")
        (tmp_path / name / "plain.txt").write_text(f"{name}\n")
    lines = session.readStream.text(f"{tmp_path}/{pattern}").writeStream.format("memory")
    query = lines.queryName("lines").trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert sorted(session.table("lines")) == ["out1", "out2"]


def test_records_on_any_file_system(sc: SparkContext, tmp_path: Path) -> None:
    """Records are found and read through Hadoop as they are on a local path."""
    sink = FileSink(str(tmp_path), "text")
    sink.begin("query")
    sink.add_batch(FIRST, sc.parallelize(["a"], 1), OutputMode.Append)
    local = VisibleFiles(str(tmp_path), sc)
    found = local.files()
    local.listing = HadoopDirectories(f"file://{tmp_path}", sc)
    local._records = local.listing.inside("_committed")
    local._read.clear()
    through_hadoop = local.files()
    assert found is not None
    assert through_hadoop is not None
    assert [stamp.path.rpartition("/")[2] for stamp in found] == [
        stamp.path.rpartition("/")[2] for stamp in through_hadoop
    ]
    assert len(found) == 1
    with pytest.raises(FileNotFoundError):
        local.listing.read(f"file://{tmp_path}/gone")


def test_empty_batch_in_files(sc: SparkContext, tmp_path: Path) -> None:
    """A batch without rows has a record and no file."""
    sink = FileSink(str(tmp_path), "text")
    sink.begin("query")
    assert sink.add_batch(FIRST, sc.emptyRDD(), OutputMode.Append) == 0
    assert committed_files(str(tmp_path)) == {0: []}


def test_text_files(session: StreamSession, tmp_path: Path) -> None:
    """Each file is read once, oldest first, up to a limit; a restart continues after them."""
    inputs, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    inputs.mkdir()

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)
        (tmp_path / name).rename(inputs / name)

    lines = session.readStream.text(str(inputs), maxFilesPerTrigger=1)
    writer = lines.writeStream.format("memory").queryName("lines")
    writer = writer.option("checkpointLocation", str(checkpoint))
    write("one", "a\nb\n")
    write("two", "c\n")
    write("_hidden", "no\n")
    query = writer.start()
    query.processAllAvailable()
    assert [len(rows) for _, rows in sorted(session.tableBatches("lines").items())] in (
        [2, 1],
        [1, 2],
    )
    query.stop()
    write("three", "d\n")
    query = writer.start()
    query.processAllAvailable()
    assert session.table("lines")[3:] == ["d"]
    assert query.lastProgress is not None
    assert query.lastProgress["batchId"] == 2
    assert query.lastProgress.numInputRows == 1


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_file_that_is_missing_is_named_or_skipped(
    sc: SparkContext,
    clock: ManualClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    format: Literal["text", "json"],
) -> None:
    """The error says what to do; with the setting the other files are read, and the log says so."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    for name in "ab":
        (inputs / name).write_text("1\n")

    errors: list[Exception] = []

    def opened(*, ignore_missing_files: bool) -> Any:
        settings = Settings(ignore_missing_files=ignore_missing_files)
        environment = SourceEnvironment(sc, clock, settings, 0, errors.append)
        reader = FileStreamSource(str(inputs), format_of(format)).open(environment)
        reader.start()
        return reader, reader.plan(None, 0)

    strict, reader = (opened(ignore_missing_files=is_ignoring) for is_ignoring in (False, True))
    for one, planned in strict, reader:
        assert (planned.end, len(one.read(planned).collect())) == (1, 2)
    (inputs / "a").unlink()
    one, planned = strict
    with pytest.raises(SourceError, match=r"inputs/a.*files\.ignoreMissingFiles=true"):
        one.read(planned)
    one, planned = reader
    assert len(one.read(planned).collect()) == 1
    assert "skipped 1 missing files of the batch at 0 ms" in caplog.text


@pytest.mark.deep
@pytest.mark.parametrize("trigger", [None, {"once": True}, {"availableNow": True}])
@pytest.mark.parametrize("format", ["text", "json"])
def test_a_file_that_vanishes_while_its_batch_runs_is_named(
    session: StreamSession, tmp_path: Path, format: str, trigger: dict[str, Any] | None
) -> None:
    """The error says which file of the batch it is, and what to do, under each trigger."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    for name in "ab":
        (inputs / name).write_text("1\n")

    def output(rdd: Any, batch_id: int) -> None:
        (inputs / "a").unlink()
        rdd.count()

    writer = session.readStream.format(format).load(str(inputs)).writeStream.foreachBatch(output)
    query = (writer if trigger is None else writer.trigger(**trigger)).start()
    with pytest.raises(StreamingQueryException, match="FileNotFoundException") as failure:
        query.processAllAvailable()
    assert re.search(
        r"inputs/a is input of the batch at \d+ ms; put it back, or continue without its records "
        r"with spark\.sql\.files\.ignoreMissingFiles=true$",
        str(failure.value),
    )


def test_with_a_setting_a_file_may_vanish_while_its_batch_runs(
    make_session: MakeSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tasks pass over it alone, and the log says that it vanished."""
    session = make_session(**{"spark.sql.files.ignoreMissingFiles": "true"})
    inputs, counts = tmp_path / "inputs", []
    inputs.mkdir()
    for name in "ab":
        (inputs / name).write_text("1\n")

    def output(rdd: Any, batch_id: int) -> None:
        (inputs / "a").unlink()
        counts.append(rdd.count())

    query = session.readStream.text(str(inputs)).writeStream.foreachBatch(output).start()
    query.processAllAvailable()
    assert counts == [1]
    (told,) = (record.getMessage() for record in caplog.records if "vanished" in record.msg)
    assert "1 files of the batch at" in told
    assert told.endswith("ran; skipped those not read yet: a")


def test_files_of_two_runs(sc: SparkContext, clock: ManualClock, tmp_path: Path) -> None:
    """A run continues after committed batches; files planned by another run are free."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()

    def opened(*batches: PlannedInput, facts: Any = None) -> Driven:
        said = {number: planned.to_record() for number, planned in enumerate(batches, 1)}
        environment = SourceEnvironment(
            sc, clock, Settings(), 0, [].append, past=lambda: InputPast(0, facts, said)
        )
        reader = FileStreamSource(str(inputs), format_of("text")).open(environment)
        reader.start()
        return Driven(reader, batches[-1].end if batches else None)

    older = opened()
    (inputs / "a.txt").write_text("a\n")
    assert older.plan(0).end == 1
    newer = opened()
    (inputs / "b.txt").write_text("b\n")
    assert older.plan(0).end == 2
    first = newer.plan(0)
    (inputs / "c.txt").write_text("c\n")
    second = newer.plan(0)
    assert (first.end, second.end) == (1, 2)
    assert sorted(newer.read(first).collect()) == ["a", "b"]
    again = opened(first, second)
    assert sorted(again.read(first).collect()) == ["a", "b"]
    assert again.read(second).collect() == ["c"]
    assert again.plan(0).end == 2
    assert len(again.snapshot(1)["files"]) == 2
    later = opened(second, facts=again.snapshot(1))
    (inputs / "d.txt").write_text("d\n")
    third = later.plan(0)
    assert (third.start, third.end) == (2, 3)
    assert later.read(third).collect() == ["d"]
    assert later.snapshot_size() == 4


def test_available_now_in_several_batches(session: StreamSession, tmp_path: Path) -> None:
    """Records available at the start are read in batches within the limits of the source."""
    for name in ("a.txt", "b.txt", "c.csv", "d.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    lines = session.readStream.text(tmp_path, MAXFILESPERTRIGGER=1, pathGlobFilter="*.txt")
    writer = lines.writeStream.format("memory").queryName("lines").trigger(availableNow=True)
    query = writer.start()
    assert query.awaitTermination(300)
    assert sorted(session.table("lines")) == ["a.txt", "b.txt", "d.txt"]
    assert [progress.numInputRows for progress in query.recentProgress] == [1, 1, 1]


def _aged(directory: Path, **ages_s: int) -> None:
    """Create files with one line, their names; each is so many seconds old."""
    for name, age_s in ages_s.items():
        path = directory / f"{name}.txt"
        path.write_text(f"{name}\n")
        os.utime(path, (1_800_000_000 - age_s,) * 2)


def test_the_latest_files_first(session: StreamSession, tmp_path: Path) -> None:
    """Within the limit of a batch, newer files are read before older ones, of any age."""
    _aged(tmp_path, old=30, newest=10, middle=20)
    lines = session.readStream.text(
        tmp_path, latestFirst=True, maxFilesPerTrigger=1, maxFileAge="1s"
    )
    writer = lines.writeStream.format("memory").queryName("lines").trigger(availableNow=True)
    assert writer.start().awaitTermination(300)
    assert list(session.tableBatches("lines").values()) == [["newest"], ["middle"], ["old"]]


def test_old_files_are_ignored(session: StreamSession, tmp_path: Path) -> None:
    """Files of any age are in the first batch, then only those near the newest one."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()

    def read() -> list[str]:
        lines = session.readStream.text(inputs, maxFileAge="10s")
        writer = lines.writeStream.format("memory").queryName("lines").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(300)
        rows: list[str] = sorted(session.table("lines"))
        session._tables.pop("lines")
        return rows

    _aged(inputs, first=100, second=50)
    assert read() == ["first", "second"]
    _aged(inputs, third=60, fourth=61)
    assert read() == ["third"]
    _aged(inputs, fifth=30, sixth=60)
    assert read() == ["fifth", "sixth"]
    assert read() == []  # the first file is forgotten, and not read again


def test_once_reads_all_in_one_batch(session: StreamSession, tmp_path: Path) -> None:
    """Limits of a batch are for those that are not the only one; also after a batch was cut off."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (inputs / name).write_text(f"{name}\n")
    broken = [True]

    def fail(rows: Any, batch_id: int) -> None:
        if broken:
            raise ValueError("broken")
        seen.append((batch_id, sorted(rows.collect())))

    seen: list[tuple[int, list[str]]] = []
    lines = session.readStream.text(inputs, maxFilesPerTrigger=1)
    writer = lines.writeStream.foreachBatch(fail)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="broken"):
        writer.start().awaitTermination(300)
    broken.clear()
    for name in ("d.txt", "e.txt"):
        (inputs / name).write_text(f"{name}\n")
    for _ in range(2):
        assert writer.trigger(once=True).start().awaitTermination(300)
    # The batch that was cut off has the file that it had.
    assert seen == [(0, ["a.txt"]), (1, ["b.txt", "c.txt", "d.txt", "e.txt"])]


def test_no_directory(session: StreamSession, tmp_path: Path) -> None:
    """A directory that is not there is refused at the start."""
    lines = session.readStream.text(str(tmp_path / "nothing"))
    with pytest.raises(SourceError, match="does not exist; create it before the query starts"):
        lines.writeStream.format("noop").start()
    assert session.streams.active == []


def test_json_files(session: StreamSession, tmp_path: Path) -> None:
    """Lines of JSON become dicts, whose fields have names."""
    (tmp_path / "one.json").write_text('{"user": "a", "n": 1}\n\n{"user": "b", "n": 2}\n')
    users = session.readStream.json(str(tmp_path)).groupByKey("user").count()
    query = users.writeStream.format("memory").queryName("users").outputMode("complete")
    query.trigger(availableNow=True).start().awaitTermination(300)
    assert sorted(session.table("users")) == [("a", 1), ("b", 1)]


def test_rate(session: StreamSession, clock: ManualClock, tmp_path: Path) -> None:
    """Rows are numbered without gaps, also over a restart, and their times are spread evenly."""
    rate = session.readStream.format("rate").option("rowsPerSecond", 4).load()
    writer = rate.writeStream.format("memory").queryName("rate")
    writer = writer.option("checkpointLocation", str(tmp_path))
    query = writer.start()
    query.processAllAvailable()
    clock.advance(1000)
    query.processAllAvailable()
    query.stop()
    clock.advance(1500)
    query = writer.start()
    query.processAllAvailable()
    rows = session.table("rate")
    assert [row.value for row in rows] == list(range(8))
    times = [round(row.timestamp.timestamp() * 1000) for row in rows]
    assert times == [1000 + 250 * number for number in range(8)]


def test_socket(session: StreamSession) -> None:
    """Lines that a server sends come in, in order."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        lines = session.readStream.format("socket").options(host="127.0.0.1", port=port).load()
        query = lines.writeStream.format("memory").queryName("socket").start()
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"one\ntwo\n")
            wait_for(lambda: len(session.table("socket")) == 2)
            connection.sendall(b"three\n")
            wait_for(lambda: len(session.table("socket")) == 3)
        assert session.table("socket") == ["one", "two", "three"]
        query.stop()


def test_a_line_that_is_too_long(make_session: MakeSession) -> None:
    """It is skipped, as with streams, and the lines after it come in."""
    session = make_session(**{"spark.dstreams.socket.maxLineBytes": "10"})
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = {"host": "127.0.0.1", "port": server.getsockname()[1]}
        lines = session.readStream.format("socket").options(**options).load()
        query = lines.writeStream.format("memory").queryName("socket").start()
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"more than ten bytes\nlast\n")
            wait_for(lambda: session.table("socket") == ["last"] or not query.isActive)
        assert query.exception() is None
        query.stop()
