"""Rows and batch id in one transaction: skipped if present, absent if interrupted."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark import RDD, SparkContext

from dstreams import InvalidStreamError, OutputConflictError, StreamError
from dstreams.sinks import OutputBatch, TransactionalSink
from dstreams.testing import BatchDriver
from tests.dstreams.sinks.killed_writer import BATCHES, ROWS
from tests.support.batches import batch_at
from tests.support.jobs import count_jobs
from tests.support.postgres import connect as connect_postgres
from tests.support.postgres import running_server

ROOT = Path(__file__).parents[3]
INSERT = "INSERT INTO numbers VALUES (?, ?)"


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = str(tmp_path / "results.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER, batch INTEGER)")
        connection.commit()
    return path


def query(database: str, statement: str) -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(statement).fetchall()


def numbers(database: str) -> list[int]:
    return [number for (number,) in query(database, "SELECT number FROM numbers ORDER BY 1")]


def ids(database: str, table: str = "dstreams_batches") -> list[tuple[int, int, int]]:
    return query(database, f"SELECT batch_id, part, parts FROM {table} ORDER BY 1, 2")  # noqa: S608


class Rows:
    """As much of an RDD as the driver's way of writing uses."""

    def __init__(self, *rows: Any) -> None:
        self.rows = rows

    def toLocalIterator(self) -> Iterator[Any]:
        for row in self.rows:
            if isinstance(row, Exception):
                raise row
            yield row


def rows(*values: Any) -> RDD[Any]:
    return cast(RDD[Any], Rows(*values))


# A stream ------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_partition", [False, True])
def test_each_batch_of_a_stream_is_written(
    sc: SparkContext, database: str, per_partition: bool
) -> None:
    """Rows and id, as a whole or per partition; a batch without an RDD is not written."""
    sink = TransactionalSink(database, INSERT, per_partition=per_partition)
    with BatchDriver(sc) as driver:
        driver.input([[(1, 0), (2, 0), (3, 0)], None, [(4, 2)]]).foreachRDD(sink)
        driver.run(3)
    assert numbers(database) == [1, 2, 3, 4]
    parts = [(0, 2), (1, 2)] if per_partition else [(-1, 1)]
    assert ids(database) == [(batch, *part) for batch in (0, 2) for part in parts]


@pytest.mark.parametrize("per_partition", [False, True])
def test_a_batch_that_is_there_runs_no_job(
    sc: SparkContext, database: str, per_partition: bool
) -> None:
    """It was committed before the driver died."""
    sink = TransactionalSink(database, INSERT, per_partition=per_partition)
    sink.write_batch(batch_at(1000), sc.parallelize([(1, 0), (2, 0)], 2))
    again = sc.parallelize([(1, 0), (2, 0)], 2)
    assert count_jobs(sc, lambda: sink.write_batch(batch_at(1000), again)) == 0
    assert numbers(database) == [1, 2]


def fail_in_the_second(cursor: Any, rows: Iterable[Any]) -> None:
    for number, batch in rows:
        cursor.execute(INSERT, (number, batch))
        if number == 2:
            raise ValueError("not this one")


def test_partitions_that_are_there_are_not_written_again(sc: SparkContext, database: str) -> None:
    """Of a batch that was cut off between its partitions, the others come later."""
    rdd = sc.parallelize([(1, 0), (2, 0)], 2)
    broken = TransactionalSink(database, fail_in_the_second, per_partition=True)
    with pytest.raises(Exception, match="not this one"):
        broken.write_batch(batch_at(1000), rdd)
    assert numbers(database) == [1]
    whole = TransactionalSink(database, INSERT)
    with pytest.raises(StreamError, match=r"with 1 of 2 partitions, and now is written as"):
        whole.write_batch(batch_at(1000), rdd)
    apart = TransactionalSink(database, INSERT, per_partition=True)
    with pytest.raises(StreamError, match=r"batch 0 of the sink 'output' is in dstreams_batches "):
        apart.write_batch(batch_at(1000), rdd.coalesce(1))
    apart.write_batch(batch_at(1000), rdd)
    assert numbers(database) == [1, 2]


# One transaction -----------------------------------------------------------------------------


def test_a_failure_on_the_way_leaves_nothing(database: str) -> None:
    """Neither rows nor id, so the next run writes the batch."""
    sink = TransactionalSink(database, INSERT)
    with pytest.raises(ValueError, match="lost the rest"):
        sink.write_batch(batch_at(1000), rows((1, 0), ValueError("lost the rest")))
    assert (numbers(database), ids(database)) == ([], [])
    sink.write_batch(batch_at(1000), rows((1, 0), (2, 0)))
    assert (numbers(database), ids(database)) == ([1, 2], [(0, -1, 1)])


def test_sinks_and_streams_have_ids_of_their_own(database: str) -> None:
    """Two sinks of one stream write the same batch, and so does a stream without the checkpoint."""
    for name, stream in (("a", "stream-1-x"), ("b", "stream-1-x"), ("a", "stream-2-x")):
        sink = TransactionalSink(database, INSERT, name=name)
        for _ in range(2):
            sink.write_batch(batch_at(1000, stream), rows((1, 0)))
    assert numbers(database) == [1, 1, 1]


def test_two_sinks_of_one_name_are_refused(sc: SparkContext, database: str) -> None:
    """Each would find the batches of the other and skip its own."""
    with BatchDriver(sc) as driver:
        stream = driver.input([[(1, 0)]])
        stream.foreachRDD(TransactionalSink(database, INSERT))
        with pytest.raises(
            InvalidStreamError,
            match=r"TransactionalSink of the name 'output' and the table 'dstreams_batches', and "
            r"so has foreachRDD at .*; give each its own name",
        ):
            stream.map(str).foreachRDD(TransactionalSink("other.db", INSERT))
        stream.foreachRDD(TransactionalSink(database, INSERT, name="second"))
        driver.run(1)
    assert numbers(database) == [1, 1]


def test_two_writers_of_one_batch_write_it_once(database: str) -> None:
    """The second writer waits for the first, and finds the batch."""
    inside, leave = threading.Event(), threading.Event()

    def slowly(cursor: Any, given: Iterable[Any]) -> None:
        cursor.executemany(INSERT, given)
        inside.set()
        assert leave.wait(300)

    first = TransactionalSink(database, slowly)
    second = TransactionalSink(database, INSERT)
    second.write_batch(batch_at(1000), rows())  # makes the table
    writers = [
        threading.Thread(target=sink.write_batch, args=(batch_at(2000), rows((1, 1))))
        for sink in (first, second)
    ]
    writers[0].start()
    assert inside.wait(300)
    writers[1].start()
    writers[1].join(0.2)
    assert writers[1].is_alive()
    leave.set()
    for writer in writers:
        writer.join(300)
    assert numbers(database) == [1]


def test_old_ids_are_removed(database: str) -> None:
    """As many batches as asked for are kept, and those of other streams stay."""
    sink = TransactionalSink(database, INSERT, table="ids", keep_batches=2)
    sink.write_batch(OutputBatch("stream-other", 1, 2000), rows())
    for batch_id in (97, 98, 99, 100):
        sink.write_batch(OutputBatch("stream-1", batch_id, batch_id), rows())
    assert [batch for batch, _, _ in ids(database, "ids")] == [1, 98, 99, 100]


@pytest.mark.parametrize("per_partition", [False, True])
def test_a_batch_of_another_history_is_an_error(
    sc: SparkContext, database: str, per_partition: bool
) -> None:
    """An older copy of the checkpoint has other records in the batch: they are not skipped.

    The message has the statement that makes the rest of the way free.
    """
    sink = TransactionalSink(database, INSERT, per_partition=per_partition)
    for time_ms in (1000, 2000):
        sink.write_batch(batch_at(time_ms, beginning="aa"), sc.parallelize([(time_ms, 0)]))
    copy, other = batch_at(1000, beginning="bb"), sc.parallelize([(7, 0)])
    before = ids(database)

    def write() -> None:
        with pytest.raises(
            OutputConflictError, match=r"has batch 0 of .* with token aa; this is ba"
        ):
            sink.write_batch(copy, other)

    assert count_jobs(sc, write) == 0
    assert (numbers(database), ids(database)) == ([1000, 2000], before)
    with pytest.raises(OutputConflictError) as refused:
        sink.write_batch(copy, other)
    statement = str(refused.value).partition("(DELETE")[2].partition(")")[0]
    change(database, f"DELETE{statement}", "DELETE FROM numbers")
    sink.write_batch(copy, other)
    sink.write_batch(batch_at(2000, beginning="bb"), sc.parallelize([(8, 0)]))
    assert numbers(database) == [7, 8]


@pytest.mark.parametrize(
    "batch",
    [
        OutputBatch("stream-0-test", 9, 10_000, "bb", left_out=range(4, 9)),
        OutputBatch("stream-0-test", 2, 3000, "bb", newest=3),
    ],
    ids=["left out", "later"],
)
def test_a_batch_that_was_never_begun_is_an_error(database: str, batch: OutputBatch) -> None:
    """Skipped batches, and those after the newest, belong to another history."""
    sink = TransactionalSink(database, INSERT)
    sink.write_batch(batch_at(5000, beginning="aa"), rows((1, 0)))
    sink.write_batch(batch_at(4000), rows((0, 0)))
    with pytest.raises(
        OutputConflictError, match=r"has batch 4 of .* with token aa; this is batch "
    ):
        sink.write_batch(batch, rows((2, 0)))
    assert numbers(database) == [0, 1]
    change(database, "DELETE FROM dstreams_batches WHERE batch_id >= 4")
    sink.write_batch(batch, rows((2, 0)))
    assert numbers(database) == [0, 1, 2]


def change(database: str, *statements: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def test_a_table_without_beginnings_is_refused(database: str) -> None:
    """With the statement that adds them; batches from before then count where they run again."""
    old = "sink TEXT, stream TEXT, batch_id INT, part INT, parts INT, batch_time_ms INT"
    change(
        database,
        f"CREATE TABLE dstreams_batches ({old}, PRIMARY KEY (sink, stream, batch_id, part))",
        "INSERT INTO dstreams_batches VALUES ('output', 'stream-0-test', 0, -1, 1, 1000)",
    )
    sink = TransactionalSink(database, INSERT)
    with pytest.raises(
        StreamError, match=r"has no column for the tokens of batches; .* ALTER"
    ) as refused:
        sink.write_batch(batch_at(1000), rows((1, 0)))
    statement = str(refused.value).partition("ALTER")[2].partition(", or")[0]
    change(database, f"ALTER{statement}")
    sink.write_batch(batch_at(1000), rows((1, 0)))
    with pytest.raises(
        OutputConflictError, match=r"has batch 0 of .* with token unknown; this is "
    ):
        sink.write_batch(batch_at(1000, beginning="bb"), rows((1, 0)))
    sink.write_batch(batch_at(2000, beginning="bb"), rows((2, 0)))
    assert numbers(database) == [2]


class OtherDriver:
    """A connection of a driver in which ``autocommit`` is a method that sets."""

    def __init__(self, path: str, commits: bool) -> None:
        self._connection = sqlite3.connect(path)
        self._commits = commits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def autocommit(self, value: bool) -> None:
        self._commits = value

    def get_autocommit(self) -> bool:
        return self._commits


@pytest.mark.parametrize("commits", [False, True])
def test_a_driver_that_tells_of_autocommit_by_a_method(database: str, commits: bool) -> None:
    """As PyMySQL and mysqlclient do: refused while it commits by itself, used while it does not."""
    sink = TransactionalSink(partial(OtherDriver, database, commits), INSERT)
    expected = pytest.raises(StreamError, match="is in autocommit") if commits else nullcontext()
    with expected:
        sink.write_batch(batch_at(1000), rows((1, 0)))
    assert numbers(database) == ([] if commits else [1])


@pytest.mark.parametrize(
    "connect",
    [
        lambda path: sqlite3.connect(path, isolation_level=None),
        pytest.param(
            lambda path: sqlite3.connect(path, autocommit=True),
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="new in Python 3.12"),
        ),
    ],
)
def test_a_connection_in_autocommit_is_refused(
    database: str, connect: Callable[[str], Any]
) -> None:
    """Before anything is written: it would commit rows without their id."""
    sink = TransactionalSink(partial(connect, database), INSERT)
    with pytest.raises(StreamError, match="is in autocommit"):
        sink.write_batch(batch_at(1000), rows((1, 0)))
    assert (numbers(database), ids(database)) == ([], [])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("a.db", "x"), {"name": "a'b"}, r"name of TransactionalSink is \"a'b\"; use 1 to 100"),
        (("a.db", "x"), {"table": "a;b"}, r"table of TransactionalSink is 'a;b'; use a plain"),
        (("a.db", "x"), {"keep_batches": 0}, r"keep_batches of TransactionalSink is 0; use a"),
        (("a.db", "x"), {"keep_batches": True}, r"keep_batches of TransactionalSink is True"),
        ((3, "x"), {}, r"connect of TransactionalSink needs a function f\(\) -> connection, got 3"),
        (("a.db", lambda cursor: 0), {}, r"write of TransactionalSink calls f\(cursor, rows\)"),
        (
            (threading.Lock().acquire, "x"),
            {"per_partition": True},
            "connect of TransactionalSink cannot send",
        ),
    ],
)
def test_what_can_never_work_is_refused_at_once(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    """With the parameter, the value and the rule."""
    with pytest.raises(InvalidStreamError, match=message):
        TransactionalSink(*arguments, **options)


# Killed --------------------------------------------------------------------------------------


def kill(target: str, kills: int, how: str) -> int:
    """Kill a writer again and again, and return the id of its last batch."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.dstreams.sinks.killed_writer",
            target,
            str(kills),
            "7",
            how,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout)


@pytest.mark.deep
@pytest.mark.parametrize("how", ["whole", "apart"])
def test_a_writer_that_is_killed_writes_each_row_once(database: str, how: str) -> None:
    """At forty random moments, with the batch it was in run again each time."""
    last = kill(database, 40, how)
    assert last >= BATCHES
    assert numbers(database) == list(range((last + 1) * ROWS))


# PostgreSQL ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """A server, by its connection string."""
    with running_server() as dsn:
        yield dsn


def ask(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    with closing(connect_postgres(dsn)) as connection, closing(connection.cursor()) as cursor:
        found: list[tuple[Any, ...]] = []
        for statement in statements:
            cursor.execute(statement)
            found = cursor.fetchall() if statement.startswith("SELECT") else []
        connection.commit()
        return found


@pytest.fixture
def table(postgres: str) -> str:
    """The server with an empty table of numbers, and no table of ids."""
    ask(
        postgres,
        "DROP TABLE IF EXISTS numbers",
        "DROP TABLE IF EXISTS dstreams_batches",
        "CREATE TABLE numbers (number BIGINT, batch BIGINT)",
    )
    return postgres


@pytest.mark.deep
@pytest.mark.parametrize("per_partition", [False, True])
def test_a_stream_into_postgresql(sc: SparkContext, table: str, per_partition: bool) -> None:
    """The same promises by a server: written, and skipped when it is there."""
    sink = TransactionalSink(
        partial(connect_postgres, table),
        "INSERT INTO numbers VALUES (%s, %s)",
        per_partition=per_partition,
    )
    rdd = sc.parallelize([(1, 0), (2, 0), (3, 0)], 2)
    for _ in range(2):
        sink.write_batch(batch_at(1000), rdd)
    assert [int(n) for (n,) in ask(table, "SELECT number FROM numbers ORDER BY 1")] == [1, 2, 3]
    count = ask(table, "SELECT count(*) FROM dstreams_batches")
    assert int(count[0][0]) == (2 if per_partition else 1)


def test_another_history_in_postgresql(table: str) -> None:
    """A server says the same: what is there of another history is an error, and stays."""
    statement = "INSERT INTO numbers VALUES (%s, %s)"
    sink = TransactionalSink(partial(connect_postgres, table), statement)
    sink.write_batch(batch_at(1000, beginning="aa"), rows((1, 0)))
    sink.write_batch(batch_at(1000, beginning="aa"), rows((1, 0)))
    with pytest.raises(
        OutputConflictError, match="DELETE FROM dstreams_batches WHERE sink = 'outp"
    ):
        sink.write_batch(batch_at(1000, beginning="bb"), rows((2, 0)))
    assert [int(n) for (n,) in ask(table, "SELECT number FROM numbers")] == [1]
    ask(table, "ALTER TABLE dstreams_batches DROP COLUMN beginning")
    with pytest.raises(StreamError, match="ADD COLUMN beginning VARCHAR") as refused:
        sink.write_batch(batch_at(2000, beginning="bb"), rows((2, 0)))
    ask(table, "ALTER" + str(refused.value).partition("ALTER")[2].partition(", or")[0])
    sink.write_batch(batch_at(2000, beginning="bb"), rows((2, 0)))
    assert [int(n) for (n,) in ask(table, "SELECT number FROM numbers ORDER BY 1")] == [1, 2]


def test_two_writers_of_one_batch_into_postgresql(table: str) -> None:
    """The key that is not committed yet holds the second writer, who then finds the batch."""
    inside, leave = threading.Event(), threading.Event()
    connect = partial(connect_postgres, table)
    statement = "INSERT INTO numbers VALUES (%s, %s)"

    def slowly(cursor: Any, given: Iterable[Any]) -> None:
        cursor.executemany(statement, given)
        inside.set()
        assert leave.wait(300)

    TransactionalSink(connect, statement).write_batch(batch_at(1000), rows())
    writers = [
        threading.Thread(
            target=TransactionalSink(connect, write).write_batch,
            args=(batch_at(2000), rows((1, 1))),
        )
        for write in (slowly, statement)
    ]
    writers[0].start()
    assert inside.wait(300)
    writers[1].start()
    writers[1].join(0.3)
    assert writers[1].is_alive()
    leave.set()
    for writer in writers:
        writer.join(300)
    assert [int(n) for (n,) in ask(table, "SELECT number FROM numbers")] == [1]


@pytest.mark.deep
@pytest.mark.parametrize("how", ["whole", "apart"])
def test_a_killed_writer_into_postgresql(table: str, how: str) -> None:
    """Each row once, after forty kills at random moments."""
    last = kill(table, 40, how)
    assert last >= BATCHES
    found = ask(table, "SELECT number FROM numbers ORDER BY 1")
    assert [int(number) for (number,) in found] == list(range((last + 1) * ROWS))
