"""Batches in a database, each row once: rows and batch id are committed in one transaction."""

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
from dstreams.common.configuration import COUNT
from dstreams.errors import InvalidStreamError, OutputConflictError, StreamError
from dstreams.sinks.output_batch import BatchSink, OutputBatch
from dstreams.sinks.promise import DeliveryGuarantee
from dstreams.spark.worker_gc import settle_worker

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_HEX = re.compile(r"[0-9a-f]{0,32}")
_BEGINNING = "beginning VARCHAR(32) DEFAULT '' NOT NULL"
_LOCK_WAIT_S = 60.0
_CLEAN_UP_BATCHES = 100
_WHOLE = -1
"""What stands for the partition where the batch was written as a whole."""

Connect = Callable[[], Any]
Write = Callable[[Any, Iterator[Any]], Any]


class TransactionalSink(BatchSink):
    """Writes each batch into a database exactly once, to be handed to ``foreachRDD``.

    The rows of a batch and its id become visible in one transaction. A batch whose id is there,
    because it ran before a crash, is skipped without running a job; one that was cut off has left
    nothing. So the output is exact whenever a driver dies.

    The ids are in a table of their own, which is made when it is missing, with one row a batch (or
    a partition of it). They belong to the stream: one that begins anew, without the checkpoint of
    the earlier one, writes its batches again. With each is the beginning of its batch: where an
    older copy of the checkpoint was put back, the batches that are in the database since are
    neither taken for those of now nor doubled, but an error that says what to delete
    (:mod:`dstreams.sinks.output_batch`).

    >>> sink = TransactionalSink("results.db", "INSERT INTO counts VALUES (?, ?)")
    >>> counts.foreachRDD(sink)
    >>> def upsert(cursor, rows):
    ...     cursor.executemany(
    ...         "INSERT INTO totals VALUES (%s, %s) ON CONFLICT (word) DO UPDATE SET n = totals.n "
    ...         "+ excluded.n", rows)
    >>> new.foreachRDD(TransactionalSink(lambda: psycopg.connect("dbname=shop"), upsert))

    Args:
        connect: ``f() -> connection`` of a DB-API 2 driver that is not in autocommit, or the path
            of an SQLite database.
        write: ``f(cursor, rows)`` with an iterator over the records, which neither commits nor
            rolls back; or an SQL statement, which is executed with each record.
        name: tells apart the sinks of one stream; two of one name and table are refused.
        table: name of the table of ids, with a schema if need be.
        per_partition: False: the driver writes a batch in one transaction, and holds one partition
            of it at a time. True: each task writes its partition in a transaction of its own, all
            at once; a reader may see some partitions of a batch before the others. Then a batch
            has to have the same partitions when it runs again, as it has after any transformation
            but ``repartition``.
        keep_batches: for how many batches ids are kept. None: for ever.

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
            "batches; where an older copy of the checkpoint is put back, the stream stops",
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
        """Write one batch, or nothing if it is there.

        Raises:
            OutputConflictError: the database has the batch, or one that this stream has not begun,
                from another history of the checkpoint.
            StreamError: the connection commits by itself; a batch that was written in part has
                other partitions now; or the table of ids is of an earlier version.
        """
        done = self._done(batch)
        if _WHOLE in done:
            return
        if not self._per_partition:
            if done:
                raise StreamError(_mixed(batch, self._ids, done))
            key = _Key(batch, _WHOLE, 1)
            write_once(self._connect, self._ids, key, self._write, rdd.toLocalIterator)
            return
        parts = rdd.getNumPartitions()
        if any(of != parts for of in done.values()):
            raise StreamError(_mixed(batch, self._ids, done, parts))
        if len(done) < parts:
            task = _WritePartition(self._connect, self._ids, batch, parts, self._write)
            rdd.mapPartitionsWithIndex(task).collect()

    def _done(self, batch: OutputBatch) -> dict[int, int]:
        """Partitions that are there, and of how many; the table is made if need be."""
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
        """Refuse a table of ids that was made before there were beginnings."""
        try:
            cursor.execute(f"SELECT beginning FROM {self._ids.table} WHERE 1 = 0")  # noqa: S608
        except Exception as error:
            connection.rollback()
            raise StreamError(
                f"the table {self._ids.table} of a TransactionalSink does not say how its batches "
                f"began; stop the stream and run ALTER TABLE {self._ids.table} ADD COLUMN "
                f"{_BEGINNING}, or give the sink another table"
            ) from error


@dataclass(frozen=True)
class _Key:
    batch: OutputBatch
    part: int
    parts: int


@dataclass(frozen=True)
class _Ids:
    """The table of the batches that are there. No statement has parameters: drivers differ."""

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
        """Partitions of a batch that are there, and of how many.

        Raises:
            OutputConflictError: they, or batches that the stream has not begun, are of another
                history of the checkpoint.
        """
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
                f"the table {self.table}, where the sink {self.sink!r} keeps its batches,",
                int(batch_id),
                str(beginning),
                "delete the records that it and later batches wrote, with their ids (DELETE FROM "  # noqa: S608
                f"{self.table} WHERE {after})",
            )
        return {int(part): int(parts) for _, _, part, parts in found}

    def insertion(self, key: _Key) -> str:
        batch = key.batch
        return (
            f"INSERT INTO {self.table} "  # noqa: S608 - names that were checked
            "(sink, stream, batch_id, part, parts, batch_time_ms, beginning) "
            f"VALUES ('{self.sink}', '{_stream_id(batch)}', {batch.batch_id}, {key.part}, "
            f"{key.parts}, {batch.time_ms}, '{_checked(batch.batch_token, _HEX, 'beginning')}')"
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
        key = _Key(self.batch, split, self.parts)
        write_once(self.connect, self.ids, key, self.write, lambda: remaining)
        deque(remaining, maxlen=0)  # a worker whose input is left unread is not used again
        return iter(())


def write_once(
    connect: Connect, ids: _Ids, key: _Key, write: Write, rows: Callable[[], Iterator[Any]]
) -> None:
    """Commit rows and key in one transaction, unless the key is there."""
    with closing(connect()) as connection, closing(connection.cursor()) as cursor:
        try:
            _require_transactions(connection)
            if key.part in ids.done(cursor, key.batch):
                return
            # First, so that another writer of this key waits here for our end, and then fails.
            try:
                cursor.execute(ids.insertion(key))
            except Exception:
                connection.rollback()
                if key.part in ids.done(cursor, key.batch):
                    return
                raise
            write(cursor, rows())
            connection.commit()
        except BaseException:
            connection.rollback()
            raise


def _require_transactions(connection: Any) -> None:
    """Refuse a connection that commits by itself, before anything is written."""
    said = getattr(connection, "autocommit", False)
    if callable(said):  # it sets, in PyMySQL and mysqlclient, where another method tells
        said = getattr(connection, "get_autocommit", bool)()
    commits = said == 1  # True, or as the database says it; that of sqlite3 may be -1
    if isinstance(connection, sqlite3.Connection):
        is_legacy = getattr(connection, "autocommit", -1) == -1
        commits = commits or (is_legacy and connection.isolation_level is None)
    if commits:
        raise StreamError(
            "the connection of a TransactionalSink is in autocommit, so rows and batch id would "
            "not be one transaction; let connect() return a connection that is not"
        )


def _connect_of(connect: Connect | str | Path) -> Connect:
    if isinstance(connect, (str, Path)):
        return partial(_open_sqlite, str(Path(connect).absolute()))
    require_arity(connect, (0,), "connect of TransactionalSink", "f() -> connection")
    return connect


def _open_sqlite(path: str) -> sqlite3.Connection:
    # IMMEDIATE: who has to wait does so before it has written anything.
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
    """Return what is to stand in a statement."""
    if not pattern.fullmatch(value):
        raise StreamError(f"the {what} {value!r} cannot stand in a database")
    return value


def _mixed(batch: OutputBatch, ids: _Ids, done: dict[int, int], parts: int | None = None) -> str:
    before = max(done.values())
    now = "is to be written as a whole" if parts is None else f"has {parts} partitions"
    return (
        f"batch {batch.batch_id} of the sink {ids.sink!r} is in {ids.table} with {len(done)} of "
        f"{before} partitions, and now {now}; run it as it was before, or delete its rows there "
        "and the records that it wrote"
    )
