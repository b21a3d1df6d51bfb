"""The exactly-once sink of databases: commits rows and batch id in one transaction."""

from __future__ import annotations

import re
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import RDD

from dstreams.common.callables import require_arity, require_picklable
from dstreams.common.settings import COUNT
from dstreams.errors import InvalidStreamError, OutputConflictError, StreamError
from dstreams.sinks.output_batch import BatchSink, DeliveryGuarantee, OutputBatch
from dstreams.spark.worker_gc import settle_worker

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_HEX = re.compile(r"[0-9a-f]{0,32}")
_BEGINNING = "beginning VARCHAR(32) DEFAULT '' NOT NULL"
_LOCK_WAIT_S = 60.0
_CLEAN_UP_BATCHES = 100
_WHOLE = -1
"""The partition number of a batch that is written in one transaction."""

Connect = Callable[[], Any]
Write = Callable[[Any, Iterator[Any]], Any]


class TransactionalSink(BatchSink):
    """Writes each batch into a database exactly once; pass it to ``foreachRDD``.

    The rows of a batch and its id become visible in one transaction. A batch whose id is already in
    the database is skipped without running a job; an interrupted batch has left nothing.

    The ids are in a separate table, which is created if missing, with one row per batch, or per
    partition of it. They belong to the stream: a stream that starts without the checkpoint of the
    earlier one writes its batches again. Each id has the token of its batch. If an older copy of
    the checkpoint was restored, the batches in the database are neither accepted nor duplicated:
    the stream stops with an error that says what to delete (:mod:`dstreams.sinks.output_batch`).

    >>> sink = TransactionalSink("results.db", "INSERT INTO counts VALUES (?, ?)")
    >>> counts.foreachRDD(sink)
    >>> def upsert(cursor, rows):
    ...     cursor.executemany(
    ...         "INSERT INTO totals VALUES (%s, %s) ON CONFLICT (word) DO UPDATE SET n = totals.n "
    ...         "+ excluded.n", rows)
    >>> new.foreachRDD(TransactionalSink(lambda: psycopg.connect("dbname=shop"), upsert))

    Args:
        connect: ``f() -> connection`` of a DB-API 2 driver that is not in autocommit mode, or the
            path of an SQLite database.
        write: ``f(cursor, rows)`` with an iterator over the records, which must not commit or roll
            back; or an SQL statement, which is executed with each record.
        name: distinguishes the sinks of a stream; two with the same name and table are refused.
        table: name of the table of ids, optionally with a schema.
        per_partition: False: the driver writes a batch in one transaction, and holds one partition
            of it at a time. True: each task writes its partition in its own transaction, in
            parallel; a reader may see some partitions of a batch before the others. A batch that
            runs again must then have the same partitions, which holds after every transformation
            except ``repartition``.
        keep_batches: number of batches whose ids are kept. None: all.

    Raises:
        InvalidStreamError: an argument is of the wrong kind, or cannot be sent to the workers.
    """

    def __init__(
        self,
        connect: Connect | str | Path,
        write: Write | str,
        *,
        name: str = "output",
        table: str = "dstreams_batches",
        per_partition: bool = False,
        keep_batches: int | None = 100_000,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidStreamError(
                f"name of TransactionalSink is {name!r}; use 1 to 100 of A-Z a-z 0-9 _ . : -"
            )
        if not isinstance(table, str) or not _TABLE.fullmatch(table):
            raise InvalidStreamError(
                f"table of TransactionalSink is {table!r}; use a plain name, or schema.name"
            )
        if keep_batches is not None:
            COUNT.require(keep_batches, "keep_batches of TransactionalSink")
        self.identity = f"name {name!r} and the table {table!r}"
        unit = "each partition of a batch" if per_partition else "a batch"
        self.promise = DeliveryGuarantee(
            "exactly once",
            f"the rows of {unit} and its id are committed in one transaction of the database, "
            f"which keeps the ids of {'all' if keep_batches is None else f'{keep_batches:,}'} "
            "batches; if an older copy of the checkpoint is restored, the stream stops",
        )
        self._ids = _Ids(name, table)
        self._connect = _connect_of(connect)
        self._write = _write_of(write)
        self._per_partition = per_partition
        self._keep_batches = keep_batches
        if per_partition:
            require_picklable(self._connect, "connect of TransactionalSink")
            require_picklable(self._write, "write of TransactionalSink")

    def write_batch(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        """Write one batch, unless it is already written.

        Raises:
            OutputConflictError: the database has the batch, or one that this stream has not begun,
                from another history of the checkpoint.
            StreamError: the connection is in autocommit mode; a batch that was partly written now
                has other partitions; or the table of ids has an earlier version.
        """
        done = self._done(batch)
        if _WHOLE in done:
            return
        parts = rdd.getNumPartitions() if self._per_partition else None
        if any(before != parts for before in done.values()):
            now = "is written as a whole" if parts is None else f"has {parts} partitions"
            raise StreamError(
                f"batch {batch.batch_id} of the sink {self._ids.sink!r} is in {self._ids.table} "
                f"with {len(done)} of {max(done.values())} partitions, and now {now}; run it as "
                "before, or delete its rows there and the records that it wrote"
            )
        task = _WritePartition(self._connect, self._ids, batch, parts or 1, self._write)
        if parts is None:
            task.write_once(_WHOLE, rdd.toLocalIterator)
        elif len(done) < parts:
            rdd.mapPartitionsWithIndex(task).collect()

    def _done(self, batch: OutputBatch) -> dict[int, int]:
        """Return the written partitions with their number; create the table if missing."""
        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            try:
                done = self._ids.done(cursor, batch)
            except OutputConflictError:
                raise
            except Exception:
                connection.rollback()
                cursor.execute(self._ids.creation())
                self._require_beginnings(connection, cursor)
                done = {}
            kept = self._keep_batches
            if kept is not None and batch.batch_id % _CLEAN_UP_BATCHES == 0:
                cursor.execute(self._ids.deletion(batch, batch.batch_id - kept))
            connection.commit()
        return done

    def _require_beginnings(self, connection: Any, cursor: Any) -> None:
        """Refuse a table of ids from before batch tokens."""
        try:
            cursor.execute(f"SELECT beginning FROM {self._ids.table} WHERE 1 = 0")  # noqa: S608
        except Exception as error:
            connection.rollback()
            raise StreamError(
                f"the table {self._ids.table} of a TransactionalSink has no column for the tokens "
                f"of batches; stop the stream and run ALTER TABLE {self._ids.table} ADD COLUMN "
                f"{_BEGINNING}, or give the sink another table"
            ) from error


@dataclass(frozen=True)
class _Ids:
    """The table of written batches. Statements have no parameters, because drivers differ."""

    sink: str
    table: str

    def creation(self) -> str:
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} (sink VARCHAR(100) NOT NULL, "
            "stream VARCHAR(200) NOT NULL, batch_id BIGINT NOT NULL, part INTEGER NOT NULL, "
            f"parts INTEGER NOT NULL, batch_time_ms BIGINT NOT NULL, {_BEGINNING}, "
            "PRIMARY KEY (sink, stream, batch_id, part))"
        )

    def done(self, cursor: Any, batch: OutputBatch) -> dict[int, int]:
        """Return the written partitions of a batch, each with the number of all partitions."""
        wanted = f"batch_id = {batch.batch_id}"
        if batch.left_out:
            wanted += f" OR batch_id BETWEEN {batch.left_out[0]} AND {batch.left_out[-1]}"
        if batch.newest is not None:
            wanted += f" OR batch_id > {batch.newest}"
        cursor.execute(
            f"SELECT batch_id, beginning, part, parts FROM {self.table} "  # noqa: S608 - names that were checked
            f"WHERE {self._stream(batch)} AND ({wanted}) ORDER BY batch_id"
        )
        found = cursor.fetchall()
        for batch_id, beginning, _, _ in found:
            after = f"{self._stream(batch)} AND batch_id >= {int(batch_id)}"
            batch.require_own(
                f"the table {self.table} of the sink {self.sink!r}",
                int(batch_id),
                str(beginning),
                "delete the records that it and later batches wrote, with their ids (DELETE FROM "  # noqa: S608
                f"{self.table} WHERE {after})",
            )
        return {int(part): int(parts) for _, _, part, parts in found}

    def insertion(self, batch: OutputBatch, part: int, parts: int) -> str:
        return (
            f"INSERT INTO {self.table} "  # noqa: S608 - names that were checked
            "(sink, stream, batch_id, part, parts, batch_time_ms, beginning) "
            f"VALUES ('{self.sink}', '{_stream_id(batch)}', {batch.batch_id}, {part}, "
            f"{parts}, {batch.time_ms}, '{_checked(batch.batch_token, _HEX, 'batch token')}')"
        )

    def deletion(self, batch: OutputBatch, before: int) -> str:
        return f"DELETE FROM {self.table} WHERE {self._stream(batch)} AND batch_id < {before}"  # noqa: S608

    def _stream(self, batch: OutputBatch) -> str:
        return f"sink = '{self.sink}' AND stream = '{_stream_id(batch)}'"


@dataclass(frozen=True)
class _WritePartition:
    connect: Connect
    ids: _Ids
    batch: OutputBatch
    parts: int
    write: Write

    def __call__(self, split: int, rows: Iterable[Any]) -> Iterator[int]:
        settle_worker()
        remaining = iter(rows)
        self.write_once(split, lambda: remaining)
        deque(remaining, maxlen=0)  # a worker whose input is left unread is not used again
        return iter(())

    def write_once(self, part: int, rows: Callable[[], Iterator[Any]]) -> None:
        """Commit rows and id in one transaction, unless the id exists."""
        ids, batch = self.ids, self.batch
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            try:
                _require_transactions(connection)
                if part in ids.done(cursor, batch):
                    return
                # First, so that another writer of this id waits here for this one, then fails.
                try:
                    cursor.execute(ids.insertion(batch, part, self.parts))
                except Exception:
                    connection.rollback()
                    if part in ids.done(cursor, batch):
                        return
                    raise
                self.write(cursor, rows())
                connection.commit()
            except BaseException:
                connection.rollback()
                raise


def _require_transactions(connection: Any) -> None:
    """Refuse a connection in autocommit mode, before anything is written."""
    mode = getattr(connection, "autocommit", False)
    if callable(mode):  # a setter in PyMySQL and mysqlclient
        mode = getattr(connection, "get_autocommit", bool)()
    commits = mode == 1  # True, or the database's 1; sqlite3 may have -1
    if isinstance(connection, sqlite3.Connection):
        is_legacy = getattr(connection, "autocommit", -1) == -1
        commits = commits or (is_legacy and connection.isolation_level is None)
    if commits:
        raise StreamError(
            "the connection of a TransactionalSink is in autocommit mode, so rows and batch id "
            "would not be one transaction; turn autocommit off in connect()"
        )


def _connect_of(connect: Connect | str | Path) -> Connect:
    if isinstance(connect, (str, Path)):
        return partial(_open_sqlite, str(Path(connect).absolute()))
    require_arity(connect, (0,), "connect of TransactionalSink", "f() -> connection")
    return connect


def _open_sqlite(path: str) -> sqlite3.Connection:
    # IMMEDIATE: a transaction waits for the lock before it writes, not in the middle.
    return sqlite3.connect(path, timeout=_LOCK_WAIT_S, isolation_level="IMMEDIATE")


def _write_of(write: Write | str) -> Write:
    if isinstance(write, str):
        return partial(_execute, write)
    require_arity(write, (2,), "write of TransactionalSink", "f(cursor, rows)")
    return write


def _execute(statement: str, cursor: Any, rows: Iterator[Any]) -> None:
    cursor.executemany(statement, rows)


def _stream_id(batch: OutputBatch) -> str:
    return _checked(batch.stream_id, _NAME, "stream id")


def _checked(value: str, pattern: re.Pattern[str], what: str) -> str:
    """Return a value that is safe to insert into a statement."""
    if not pattern.fullmatch(value):
        raise StreamError(
            f"the {what} of a TransactionalSink has characters that SQL might interpret, got "
            f"{value!r}"
        )
    return value
