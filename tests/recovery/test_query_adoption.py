"""Queries of pyspark.sql.streaming that are adopted and continued by dstreams.structured."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import py4j.java_gateway
import pyarrow.csv
import pyarrow.parquet
import pytest
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from checkpoint import open_output
from dstreams.common import faults
from dstreams.errors import RestartError
from dstreams.structured import StreamingDataset, StreamSession, window
from dstreams.structured.api.aggregates import (
    Average,
    Count,
    Max,
    Min,
    Sum,
    Variance,
)
from dstreams.structured.named_rows import Window
from dstreams.testing import replay
from tests.recovery.spark_killed_query import SCHEMA, distinct_counts
from tests.support.hdfs import Hdfs
from tests.support.kafka_cluster import KafkaCluster, Sent
from tests.support.maven_jars import KAFKA, class_path

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.deep, pytest.mark.spark]

COLUMNS = pyarrow.schema(
    [
        ("user", pyarrow.string()),
        ("at", pyarrow.timestamp("us", "UTC")),
        ("n", pyarrow.int32()),
        ("price", pyarrow.float64()),
        ("cost", pyarrow.decimal128(20, 2)),
    ]
)
FILES = 4
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
START_S = 1_767_225_600


@pytest.fixture(scope="module", autouse=True)
def errors_of_py4j() -> Iterator[None]:
    """Take back that a SparkSession gives errors of jobs another class."""
    known = py4j.java_gateway.get_return_value
    yield
    py4j.java_gateway.get_return_value = known


@dataclass(frozen=True)
class Case:
    """A query of Spark, and the same query here."""

    spark: Callable[[DataFrame], DataFrame]
    here: Callable[[StreamingDataset[Any]], StreamingDataset[Any]]
    mode: str = "update"
    format: str = "json"

    @property
    def options(self) -> dict[str, str]:
        return {"header": "true"} if self.format == "csv" else {}


def late(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("at", "10 seconds")


def marked(dataset: StreamingDataset[Any]) -> StreamingDataset[Any]:
    return dataset.withWatermark("at", "10 seconds")


def total_of(state: Any, count: int) -> int:
    """Change the state of a key by the number of its records; a timer ends it."""
    if state.hasTimedOut:
        total, _ = state.get
        state.remove()
        return -int(total)
    total = count + (state.get[0] if state.exists else 0)
    state.update((total, "seen"))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 15_000)
    return int(total)


def totals_of_frames(key: tuple[str], frames: Iterator[Any], state: Any) -> Iterator[Any]:
    import pandas  # noqa: PLC0415 - as in programs of Spark

    count = sum(map(len, frames))
    yield pandas.DataFrame({"user": [key[0]], "total": [total_of(state, count)]})


def totals(key: str, rows: Iterator[Any], state: Any) -> Iterator[tuple[str, int]]:
    yield key, total_of(state, len(list(rows)))


CASES = {
    "by key": Case(
        lambda rows: rows.groupBy("user").agg(
            f.count("*"),
            f.count("n"),
            f.sum("n"),
            f.sum("price"),
            f.sum("cost"),
            f.avg("n"),
            f.avg("price"),
            f.min("n"),
            f.max("at"),
            f.min("user"),
        ),
        lambda rows: rows.groupByKey("user").agg(
            Count(),
            Count("n"),
            Sum("n"),
            Sum("price"),
            Sum("cost"),
            Average("n"),
            Average("price"),
            Min("n"),
            Max("at"),
            Min("user"),
        ),
    ),
    "one aggregate of two keys": Case(
        lambda rows: rows.groupBy("n", "user").count(),
        lambda rows: (
            rows.groupByKey("user", lambda row: row.n)
            .count()
            .map(lambda row: (row[1], row[0], row[2]))
        ),
    ),
    "all records": Case(
        lambda rows: rows.agg(f.count("*"), f.var_samp("n")),
        lambda rows: rows.groupByKey().agg(Count(), Variance("n")),
        "complete",
    ),
    "windows": Case(
        lambda rows: late(rows).groupBy("user", f.window("at", "10 seconds")).count(),
        lambda rows: (
            marked(rows)
            .groupByKey("user", window("at", "10 seconds"))
            .count()
            .map(lambda row: (row[1], row[0], row[2]))
        ),
        "append",
    ),
    "sliding windows": Case(
        lambda rows: late(rows).groupBy(f.window("at", "10 seconds", "5 seconds")).agg(f.sum("n")),
        lambda rows: marked(rows).groupByKey(window("at", "10 seconds", "5 seconds")).agg(Sum("n")),
    ),
    "event times": Case(
        lambda rows: late(rows).groupBy("user", "at").agg(f.max("n")),
        lambda rows: marked(rows).groupByKey("user", "at").agg(Max("n")),
        "append",
    ),
    "duplicates": Case(
        lambda rows: rows.dropDuplicates(["user", "n"]).select("user", "n"),
        lambda rows: rows.dropDuplicates(["n", "user"]).map(lambda row: (row.user, row.n)),
        "append",
    ),
    "duplicate records": Case(
        lambda rows: rows.dropDuplicates(),
        lambda rows: rows.dropDuplicates(),
        "append",
    ),
    "duplicates of event times": Case(
        lambda rows: late(rows).dropDuplicates(["user", "at"]).select("user", "at"),
        lambda rows: (
            marked(rows).dropDuplicates(["user", "at"]).map(lambda row: (row.user, row.at))
        ),
        "append",
    ),
    "duplicates within the watermark": Case(
        lambda rows: late(rows).dropDuplicatesWithinWatermark(["user"]).select("user"),
        lambda rows: (
            marked(rows).dropDuplicatesWithinWatermark(["user"]).map(lambda row: (row.user,))
        ),
        "append",
    ),
    "two operators": Case(
        distinct_counts,
        lambda rows: (
            marked(rows)
            .dropDuplicates(["user", "at"])
            .groupByKey(window("at", "10 seconds"))
            .count()
        ),
        "append",
    ),
    "group states": Case(
        lambda rows: (
            late(rows)
            .groupBy("user")
            .applyInPandasWithState(
                totals_of_frames,
                "user string, total long",
                "total long, text string",
                "update",
                "EventTimeTimeout",
            )
        ),
        lambda rows: (
            marked(rows)
            .groupByKey("user")
            .flatMapGroupsWithState(totals, "update", "EventTimeTimeout")
        ),
    ),
    "no state": Case(
        lambda rows: rows.select("user", "n"),
        lambda rows: rows.map(lambda row: (row.user, row.n)),
        "append",
    ),
}


CASES["a key of Parquet"] = replace(CASES["by key"], format="parquet")
CASES["duplicate records of CSV"] = replace(CASES["duplicate records"], format="csv")


def write_input(directory: Path, number: int, format: str = "json") -> None:
    """Add a file, with records that repeat and some that are late."""
    rows: list[dict[str, Any]] = [
        {
            "user": f"u{(number * i) % 5}",
            "at": datetime.fromtimestamp(
                START_S + 12 * number + 3 * (i % 4) - 25 * (i == 7), timezone.utc
            ),
            "n": i % 3 if i % 4 else None,
            "price": i * 0.25,
            "cost": Decimal(f"{i}.25"),
        }
        for i in range(9)
    ]
    hidden = directory / f".{number}"
    table = pyarrow.Table.from_pylist(rows, COLUMNS)
    if format == "parquet":
        pyarrow.parquet.write_table(table, hidden)
    elif format == "csv":
        pyarrow.csv.write_csv(table, hidden)
    else:
        texts = [{**row, "at": row["at"].isoformat(), "cost": f"{row['cost']}"} for row in rows]
        hidden.write_text("".join(json.dumps(row) + "\n" for row in texts))
    os.utime(hidden, (START_S + number, START_S + number))
    hidden.rename(directory / f"file {number}")


def frames_of_idle(key: tuple[str], frames: Iterator[Any], state: Any) -> Iterator[Any]:
    import pandas  # noqa: PLC0415 - as in programs of Spark

    state.update((sum(map(len, frames)),))
    state.setTimeoutDuration(1)
    yield pandas.DataFrame({"user": [key[0]]})


def ended(key: str, rows: Iterator[Any], state: Any) -> Iterator[tuple[str, int]]:
    assert state.hasTimedOut
    yield key, state.get[0]
    state.remove()


def write_inputs(directory: Path, format: str = "json") -> None:
    (directory / "in").mkdir()
    for number in range(FILES):
        write_input(directory / "in", number, format)


def comparable(rows: list[Any]) -> list[Any]:
    """Return rows of Spark or of ours as sorted tuples of numbers and texts."""

    def value(one: Any) -> Any:
        if isinstance(one, Window):
            return one.start_ms, one.end_ms
        if isinstance(one, datetime):
            return round(one.timestamp() * 1000)
        return tuple(map(value, one)) if isinstance(one, tuple) else one

    return sorted(map(value, rows), key=repr)


def run_spark(
    sc: SparkContext,
    case: Case,
    place: str,
    take: Callable[[DataFrame, int], None],
    **trigger: bool,
) -> None:
    """Run the query of Spark, with ``in`` and ``spark`` below a URL."""
    spark = SparkSession(sc)
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    reader = spark.readStream.schema(SCHEMA).options(**case.options, maxFilesPerTrigger=1)
    frame = reader.format(case.format).load(f"{place}/in")
    writer = case.spark(frame).writeStream.outputMode(case.mode).foreachBatch(take)
    writer = writer.option("checkpointLocation", f"{place}/spark")
    writer.trigger(**(trigger or {"availableNow": True})).start().awaitTermination()


def rows_of_spark(
    sc: SparkContext, case: Case, directory: Path, **trigger: bool
) -> dict[int, list[Any]]:
    """Return the rows of each batch of Spark; ``killed-N`` is what a kill in batch N leaves."""
    found: dict[int, list[Any]] = {}

    def take(rows: DataFrame, number: int) -> None:
        shutil.copytree(directory / "spark", directory / f"killed-{number}")
        found[number] = comparable(rows.collect())

    run_spark(sc, case, f"file://{directory}", take, **trigger)
    return found


@pytest.fixture
def session(sc: SparkContext, tmp_path: Path) -> Iterator[StreamSession]:
    settings = {
        "spark.sql.shuffle.partitions": "3",
        "spark.dstreams.state.localDirectory": str(tmp_path / "local"),
    }
    made = StreamSession(sc, settings)
    yield made
    made.stop()


def dataset(
    session: StreamSession, case: Case, directory: Path | str, **options: object
) -> StreamingDataset[Any]:
    # Without a limit, only the range that Spark has planned keeps a pending batch as it was.
    reader = session.readStream.schema(SCHEMA).options(**case.options, **options)
    place = directory if isinstance(directory, str) else f"file://{directory}"
    return case.here(reader.format(case.format).load(f"{place}/in"))


def rows_after(
    session: StreamSession,
    case: Case,
    directory: Path | str,
    spark: Path | str,
    new: Path | str,
    **options: object,
) -> dict[int, list[Any]]:
    """Adopt a checkpoint of Spark, and return the rows of each batch after it."""
    found: dict[int, list[Any]] = {}
    query = dataset(session, case, directory, **options)
    session.adopt(query, case.mode, str(new), str(spark))
    writer = query.writeStream.outputMode(case.mode).option("checkpointLocation", str(new))
    running = writer.foreachBatch(
        lambda rows, number: found.__setitem__(number, comparable(rows.collect()))
    )
    running.trigger(availableNow=True).start().awaitTermination()
    return found


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_batches_after_an_adoption_run_again(
    sc: SparkContext, session: StreamSession, tmp_path: Path
) -> None:
    """A replay begins after the adoption, and makes the rows of the batches since then."""
    case = CASES["by key"]
    write_inputs(tmp_path)
    rows_of_spark(sc, case, tmp_path)
    new = tmp_path / "new"
    found = rows_after(session, case, tmp_path, tmp_path / "killed-2", new)
    before = contents(new)
    writer = dataset(session, case, tmp_path).writeStream.outputMode(case.mode).format("noop")
    again = replay(str(new), lambda: writer)
    assert {batch.batch_id: comparable(batch.outputs["sink"]) for batch in again} == found
    assert contents(new) == before


FILES_OF_STATE, ROCKS = "HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"
SLOW = {
    "all records",
    "duplicate records",
    "duplicate records of CSV",
    "duplicates of event times",
    "event times",
    "one aggregate of two keys",
    "sliding windows",
    "two operators",
}
"""Variants of others; the last one is what test_kills runs."""


@pytest.mark.parametrize(
    ("name", "stores"),
    [
        *(
            pytest.param(name, FILES_OF_STATE, marks=pytest.mark.slow if name in SLOW else ())
            for name in CASES
        ),
        ("windows", ROCKS),
    ],
)
def test_rows_are_those_of_an_uninterrupted_query(
    sc: SparkContext, session: StreamSession, tmp_path: Path, name: str, stores: str
) -> None:
    """After kills in a batch, and before one was begun, each batch has the rows of Spark."""
    case = CASES[name]
    settings = SparkSession(sc).conf
    settings.set(PROVIDER, f"org.apache.spark.sql.execution.streaming.state.{stores}")
    if name == "group states":
        pytest.importorskip("pandas", reason="applyInPandasWithState needs it: pip install pandas")
    write_inputs(tmp_path, case.format)
    expected = rows_of_spark(sc, case, tmp_path)
    settings.unset(PROVIDER)
    assert any(rows for number, rows in expected.items() if number >= 3)
    for number, is_begun in ((2, True), (3, False)):
        spark = tmp_path / f"killed-{number}"
        if not is_begun:
            (spark / "offsets" / f"{number}").unlink()
        before = contents(spark)
        found = rows_after(session, case, tmp_path, spark, tmp_path / f"new-{number}")
        assert found == {at: rows for at, rows in expected.items() if at >= number}
        assert contents(spark) == before


def test_kills(sc: SparkContext, session: StreamSession, tmp_path: Path) -> None:
    """After a SIGKILL at each moment, all later batches have the rows of an uninterrupted query."""
    case, whole, killed = CASES["two operators"], tmp_path / "whole", tmp_path / "killed"
    moments = ["planned", "state is written in part", "committed"]
    for directory in (whole, killed):
        (directory / "in").mkdir(parents=True)
        write_input(directory / "in", 0)
    program = [sys.executable, "-m", "tests.recovery.spark_killed_query", str(killed)]
    for number, moment in enumerate(moments, 1):
        write_input(killed / "in", number)
        with (tmp_path / "log").open("a") as log:
            command = [*program, moment, str(number)]
            ended = subprocess.run(command, check=False, stderr=log, cwd=ROOT, timeout=600)
        assert ended.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
        shutil.copytree(killed / "spark", tmp_path / f"spark-{number}")
    write_input(killed / "in", len(moments) + 1)
    for number in range(1, len(moments) + 2):
        write_input(whole / "in", number)
    expected = rows_of_spark(sc, case, whole)
    for number, moment in enumerate(moments, 1):
        spark, is_committed = tmp_path / f"spark-{number}", moment == "committed"
        assert (spark / "commits" / str(number)).exists() == is_committed
        if moment == "state is written in part":
            assert len(list(spark.glob(f"state/0/*/{number + 1}.delta"))) == 1
        new = tmp_path / f"new-{number}"
        found = rows_after(session, case, killed, spark, new, maxFilesPerTrigger=1)
        first = number + is_committed
        assert found == {at: rows for at, rows in expected.items() if at >= first}, moment


@pytest.mark.slow
def test_checkpoints_on_hdfs(
    sc: SparkContext, session: StreamSession, tmp_path: Path, hdfs: Hdfs
) -> None:
    """The input, the checkpoint of Spark, whose batch 2 fails, and the new one are on HDFS."""
    case, url = CASES["two operators"], hdfs.new_url()
    write_inputs(tmp_path)
    expected = rows_of_spark(sc, case, tmp_path)
    files = open_output(url)
    for name in sorted(path.name for path in (tmp_path / "in").iterdir()):
        files.create(f"in/{name.replace(' ', '-')}", [(tmp_path / "in" / name).read_bytes()])

    def fail(rows: DataFrame, number: int) -> None:
        assert (number, comparable(rows.collect())) == (number, expected[number])
        assert number < 2

    with pytest.raises(StreamingQueryException):
        run_spark(sc, case, url, fail)
    found = rows_after(session, case, url, f"{url}/spark", f"{url}/new")
    assert found == {at: rows for at, rows in expected.items() if at >= 2}


@pytest.fixture(scope="module")
def killed(sc: SparkContext, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with input, and what a kill of Spark in batch 2 leaves, of windows."""
    directory = tmp_path_factory.mktemp("killed")
    write_inputs(directory)
    rows_of_spark(sc, CASES["windows"], directory)
    return directory


def refused(
    session: StreamSession,
    directory: Path,
    spark: Path,
    case: Case | None = None,
    name: str = "in",
) -> str:
    """Return why a query cannot adopt a checkpoint. The dry run says it, too."""
    reader = session.readStream.schema(SCHEMA)
    query = (case or CASES["windows"]).here(reader.json(f"file://{directory}/{name}"))
    new = spark.parent / "refused"
    with pytest.raises(RestartError) as caught:
        session.adopt(query, "append", str(new), str(spark))
    try:
        report = session.adopt(query, "append", str(new), str(spark), dryRun=True)
    except RestartError:  # there is nothing that could be reported
        report = None
    if report is not None:
        assert report.refusals
        assert all(refusal in str(caught.value) for refusal in report.refusals)
    assert not new.exists()
    return str(caught.value)


OTHERS = {
    "other aggregates": (
        lambda rows: marked(rows).groupByKey("user", window("at", "10 seconds")).agg(Sum("n")),
        r"operator 0 \(stateStoreSave\) does not fit 'stateStoreSave-0' .*it computes "
        r"Sum\(of='n'\) here, and its values there are count",
    ),
    "more aggregates": (
        lambda rows: (
            marked(rows).groupByKey("user", window("at", "10 seconds")).agg(Count(), Count())
        ),
        r"its values there are count",
    ),
    "other keys": (
        lambda rows: marked(rows).groupByKey("n", window("at", "10 seconds")).count(),
        r"its keys are n here, and user there",
    ),
    "no window": (
        lambda rows: marked(rows).groupByKey("user", "at").count(),
        r"its keys are user, at here, and user, window there",
    ),
    "another operator": (
        lambda rows: marked(rows).dropDuplicates(["user", "at"]),
        r"does not fit 'dedupe-0' \(dedupe\): they are different operators",
    ),
    "no operator": (lambda rows: rows, r"stateful operators stateStoreSave.* the query has none"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_query(session: StreamSession, killed: Path, name: str) -> None:
    """A query that is not the one of Spark is refused, with both in the message."""
    here, expected = OTHERS[name]
    case = Case(CASES["windows"].spark, here)
    assert re.search(expected, refused(session, killed, killed / "killed-2", case))


SLIDES = {
    "another slide": (
        "4 seconds",
        r"it has the Window\(2026-01-01T\S+Z, \S+Z\), which is not one of the windows of 10000 ms "
        r"every 4000 ms of this program; define window\(\) with the size, slide and startTime of "
        r"Spark's query",
    ),
    "a slide that divides that of Spark": (
        "5 seconds",
        r"it has the Window\(2026-01-01T00:00:00Z, 2026-01-01T00:00:10Z\), but not the window "
        r"5000 ms before or after it, one of which has the same records in windows of 10000 ms "
        r"every 5000 ms, as this program has; those of Spark are every 10000 ms; define window\(\)",
    ),
}


@pytest.mark.parametrize("name", [*SLIDES, "a lost file of state"])
def test_state_that_cannot_be_read(
    session: StreamSession, killed: Path, tmp_path: Path, name: str
) -> None:
    """It is found when the state is read; nothing is left, and another call starts again."""
    case, spark, new = CASES["windows"], tmp_path / "spark", tmp_path / "new"
    other, expected = case, r"state of operator 0 \(stateStoreSave\) of Spark: .*does not exist"
    shutil.copytree(killed / "killed-2", spark)
    if name in SLIDES:
        slide, shown = SLIDES[name]
        expected = rf"state of operator 0 \(stateStoreSave\) of Spark: .*{shown}"
        other = replace(
            case,
            here=lambda rows: (
                marked(rows).groupByKey("user", window("at", "10 seconds", slide)).count()
            ),
        )
    else:
        (spark / "state" / "0" / "0" / "1.delta").unlink()
    query = dataset(session, other, killed)
    [refusal] = session.adopt(query, case.mode, str(new), str(spark), dryRun=True).refusals
    assert re.search(expected, refusal)
    with pytest.raises(RestartError, match=expected):
        session.adopt(query, case.mode, str(new), str(spark))
    assert not contents(new)
    assert rows_after(session, case, killed, killed / "killed-2", new)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "foreign": (shutil.rmtree, "is not a directory"),
    "no query": (
        lambda spark: shutil.rmtree(spark / "offsets"),
        "is not the checkpoint of a query",
    ),
    "no offsets of the commit": (
        lambda spark: (spark / "offsets" / "1").unlink(),
        "offsets/1 is damaged, missing or of a newer format: .*restore it from a copy",
    ),
    "truncated offsets": (
        lambda spark: (spark / "offsets" / "2").write_text('v1\n{"batchWater'),
        "offsets/2 is damaged",
    ),
    "a newer format": (
        lambda spark: (spark / "offsets" / "2").write_text("v9\n{}\n"),
        "offsets/2 is damaged, missing or of a newer format: its version is v9, not v1",
    ),
    "truncated commit": (lambda spark: (spark / "commits" / "1").write_text("v1\n"), "commits/1"),
    "lost commits": (lambda spark: (spark / "commits" / "1").unlink(), "offsets/2 is damaged"),
    "a lost log of files": (
        lambda spark: (spark / "sources" / "0" / "1").unlink(),
        "sources/0/1 is damaged, missing or of a newer format: it is missing",
    ),
    "a damaged log of files": (
        lambda spark: (spark / "sources" / "0" / "1").write_text('v1\n{"path":"x"}\n'),
        "sources/0/1 is damaged",
    ),
    "another source": (
        lambda spark: (spark / "offsets" / "2").write_text(
            "\n".join([*(spark / "offsets" / "2").read_text().splitlines()[:2], "17"])
        ),
        r"source 0 \(FileStreamSource.*\): it is not the one of Spark, whose offset is 17",
    ),
    "two sources": (
        lambda spark: (spark / "offsets" / "2").write_text(
            (spark / "offsets" / "2").read_text() + '\n{"logOffset":0}'
        ),
        "it has 2 sources, and the query has 1",
    ),
    "before release 4.0": (
        lambda spark: shutil.rmtree(spark / "state" / "0" / "_metadata"),
        "its state has no description, which Spark writes since release 4.0",
    ),
    "a damaged description": (
        lambda spark: (spark / "state" / "0" / "_metadata" / "metadata").write_text("v1\n{"),
        "state/ is damaged, missing or of a newer format",
    ),
    "a lost partition": (
        lambda spark: shutil.rmtree(spark / "state" / "0" / "1"),
        "state/0/1/ is damaged, missing or of a newer format: it is missing",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage(session: StreamSession, killed: Path, tmp_path: Path, name: str) -> None:
    """The error names the file of a checkpoint that is damaged."""
    damage, expected = DAMAGES[name]
    spark = tmp_path / "spark"
    shutil.copytree(killed / "killed-2", spark)
    for checksum in spark.rglob(".*.crc"):
        checksum.unlink()  # as of a copy by other tools
    damage(spark)
    assert re.search(expected, refused(session, killed, spark))


def test_other_input(session: StreamSession, killed: Path, tmp_path: Path) -> None:
    """Another directory, and a file that the pending batch has to read and that is missing."""
    spark = killed / "killed-2"
    (killed / "others").mkdir()
    assert "read the same directory" in refused(session, killed, spark, name="others")
    lost = killed / "in" / "file 2"
    lost.rename(tmp_path / "lost")
    try:
        found = refused(session, killed, spark)
    finally:
        (tmp_path / "lost").rename(lost)
    assert "batch 2 is not complete and has to read" in found
    assert "file 2 again, which is missing; put it back" in found


def test_dry_run(session: StreamSession, killed: Path) -> None:
    """It says what is taken over, with numbers of keys and files, and writes nothing."""
    query = dataset(session, CASES["windows"], killed)
    spark = str(killed / "killed-2")
    report = session.adopt(query, "append", str(killed / "dry"), spark, dryRun=True)
    lines = str(report).splitlines()
    assert lines[:2] == [
        "continues after batch 1 of Spark",
        "runs batch 2 of Spark again, which is not complete",
    ]
    assert re.fullmatch(r"adopted: stateStoreSave-0: [1-9]\d* keys of operator 0 .*", lines[2])
    assert lines[3].endswith("2 files are known as read; 1 are read by the batch that runs again")
    assert not (killed / "dry").exists()


def test_an_adopted_checkpoint_stays(session: StreamSession, killed: Path, tmp_path: Path) -> None:
    """Another call does nothing; the checkpoint of Spark itself is refused by the writer."""
    case, spark, new = CASES["windows"], killed / "killed-2", tmp_path / "new"
    assert set(rows_after(session, case, killed, spark, new)) >= {2, 3}
    again = session.adopt(dataset(session, case, killed), case.mode, str(new), str(spark))
    assert str(again) == "nothing to adopt: the query has a checkpoint of its own"
    assert rows_after(session, case, killed, spark, new) == {}
    with pytest.raises(RestartError, match=r"with StreamSession\.adopt"):
        session.adopt(dataset(session, case, killed), case.mode, str(spark), str(spark))


@pytest.mark.parametrize(
    ("name", "batch_id"),
    [("rec.fence", None), ("begin.done", 1), ("begin.done", 2), ("commit.start", 1)],
)
def test_a_crash(
    session: StreamSession,
    killed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    batch_id: int | None,
) -> None:
    """No query starts on what a crash leaves; another call completes it."""
    case, spark, new = CASES["windows"], killed / "killed-2", tmp_path / "new"
    query = dataset(session, case, killed)
    monkeypatch.setitem(faults._faults, name, faults.Fault(batch_id, "raise"))
    with pytest.raises(faults.FaultError):
        session.adopt(query, case.mode, str(new), str(spark))
    writer = query.writeStream.outputMode(case.mode).format("noop")
    if batch_id is not None:
        with pytest.raises(RestartError, match="was interrupted: complete it with adopt"):
            writer.option("checkpointLocation", str(new)).start()
        other = tmp_path / "other"
        shutil.copytree(spark, other)
        log = other / "offsets" / "2"
        log.write_text(log.read_text().replace('"batchTimestampMs":', '"batchTimestampMs":1'))
        if name != "begin.done" or batch_id == 2:
            with pytest.raises(RestartError, match="delete this directory, and call adopt again"):
                session.adopt(query, case.mode, str(new), str(other))
    found = rows_after(session, case, killed, spark, new)
    assert found == rows_after(session, case, killed, spark, tmp_path / "undisturbed")


def test_two_sources_with_watermarks_of_their_own(
    sc: SparkContext, session: StreamSession, tmp_path: Path
) -> None:
    """Each source continues with its own files, and the watermark is that of Spark."""
    write_inputs(tmp_path)
    shutil.copytree(tmp_path / "in", tmp_path / "others")
    place = f"file://{tmp_path}/others"
    reader = SparkSession(sc).readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    case = Case(
        lambda rows: (
            late(rows)
            .union(reader.json(place).withWatermark("at", "20 seconds"))
            .groupBy(f.window("at", "10 seconds"))
            .count()
        ),
        lambda rows: (
            marked(rows)
            .union(session.readStream.schema(SCHEMA).json(place).withWatermark("at", "20 seconds"))
            .groupByKey(window("at", "10 seconds"))
            .count()
        ),
        "append",
    )
    expected = rows_of_spark(sc, case, tmp_path)
    found = rows_after(session, case, tmp_path, tmp_path / "killed-2", tmp_path / "new")
    assert any(found.values())
    assert found == {at: rows for at, rows in expected.items() if at >= 2}


def test_timers_of_processing_time(
    sc: SparkContext, session: StreamSession, tmp_path: Path
) -> None:
    """A timer that Spark has set is due here, in a batch without data, and only once."""
    pytest.importorskip("pandas", reason="applyInPandasWithState needs it: pip install pandas")
    timeout = "ProcessingTimeTimeout"
    case = Case(
        lambda rows: rows.groupBy("user").applyInPandasWithState(
            frames_of_idle, "user string", "count long", "update", timeout
        ),
        lambda rows: rows.groupByKey("user").flatMapGroupsWithState(ended, "update", timeout),
    )
    (tmp_path / "in").mkdir()
    write_input(tmp_path / "in", 0)
    rows_of_spark(sc, case, tmp_path, once=True)  # it would have batches without data for ever
    spark, new = tmp_path / "spark", tmp_path / "new"
    [rows] = rows_after(session, case, tmp_path, spark, new).values()
    assert rows == [("u0", 9)]  # the records of the first file have one key
    assert rows_after(session, case, tmp_path, spark, new) == {}


def test_offsets_of_kafka(session: StreamSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    """A query of a topic goes on at its offsets; a pending batch has the records that it had."""
    topic = kafka.create_topic(2)
    words = ["a", "b", "a", "c", "b", "a", "a", "d", "c", "b", "a"]
    kafka.produce(topic, [Sent(word, None, place % 2) for place, word in enumerate(words)])
    jars = class_path(KAFKA, "peers")
    command = [sys.executable, "-m", "tests.recovery.spark_kafka_query", jars, kafka.bootstrap]
    with (tmp_path / "log").open("w") as log:
        subprocess.run([*command, topic, tmp_path], stderr=log, check=True, cwd=ROOT, timeout=600)
    rows = json.loads((tmp_path / "rows.json").read_text())
    expected = {int(number): sorted(map(tuple, of_batch)) for number, of_batch in rows.items()}
    assert len(expected) >= 4

    def here(number: int) -> dict[int, list[Any]]:
        reader = session.readStream.format("kafka").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap)
        records = reader.option("maxOffsetsPerTrigger", 3).load()
        query = records.groupByKey(lambda record: record.value.decode()).count()
        found: dict[int, list[Any]] = {}
        new = str(tmp_path / f"new-{number}")
        session.adopt(query, "update", new, str(tmp_path / f"killed-{number}"))
        writer = query.writeStream.outputMode("update").option("checkpointLocation", new)
        writer = writer.foreachBatch(
            lambda rows, at: found.__setitem__(at, sorted(map(tuple, rows.collect())))
        )
        writer.trigger(availableNow=True).start().awaitTermination()
        return found

    def last(found: dict[int, list[Any]]) -> dict[Any, int]:
        return {word: count for _, of_batch in sorted(found.items()) for word, count in of_batch}

    for number in (0, 2):
        found = here(number)
        assert found[number] == expected[number]
        # Later batches may be cut in another way, with the same counts in the end.
        later = {at: of_batch for at, of_batch in expected.items() if at >= number}
        assert last(found) == last(later)
    (tmp_path / "killed-3" / "offsets" / "3").unlink()
    assert last(here(3)) == last({at: of_batch for at, of_batch in expected.items() if at >= 3})
