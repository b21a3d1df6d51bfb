"""Load JSON lines into DuckDB, block by block, each batch exactly once across crashes.

    pip install '.[arrow]' duckdb
    python examples/blocks_to_duckdb.py DIRECTORY

Write files of such lines to DIRECTORY/input, under a hidden name, and rename them when complete:

    {"shop": "north", "cents": 1000}

Query the result with DuckDB's own program or from Python:

    duckdb DIRECTORY/sales.duckdb "SELECT shop, sum(cents) FROM sales GROUP BY shop"
    duckdb -c "SELECT shop, sum(cents) FROM 'DIRECTORY/parquet/*/*.parquet' GROUP BY shop"

The rows of a batch and its id are committed in one transaction, so a batch that runs again detects
its own commit. The same blocks are also written as Parquet files, one directory per batch. Kill the
program with ``kill -9`` at any time and start it again: it resumes where it stopped. Or let a drill
kill it again and again:

    dstreams drill --app examples/blocks_to_duckdb.py
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from dstreams import StreamingContext, tuned_context
from dstreams.sinks import TransactionalSink

SALE = {"shop": str, "cents": int}
WAIT_S = 30
CREATE = "CREATE TABLE IF NOT EXISTS sales (shop VARCHAR NOT NULL, cents BIGINT NOT NULL)"


class DuckDb:
    """A DuckDB connection with the interface that TransactionalSink needs.

    DuckDB's own connection commits each statement, and each of its cursors is another connection.
    Only one process at a time can open the file; opening waits for the others.
    """

    def __init__(self, path: str) -> None:
        self._database = opened(path)
        self._is_begun = False

    def cursor(self) -> DuckDb:
        return self

    def execute(self, statement: str) -> None:
        if not self._is_begun:
            self._database.begin()
            self._is_begun = True
        self._database.execute(statement)

    def insert(self, table: str, block: pa.RecordBatch) -> None:
        """Add the rows of a block. DuckDB reads the Arrow memory without a copy."""
        self._database.register("block", pa.Table.from_batches([block]))
        self.execute(f"INSERT INTO {table} BY NAME SELECT * FROM block")  # noqa: S608 - our table
        self._database.unregister("block")

    def fetchall(self) -> list[Any]:
        return self._database.fetchall()

    def commit(self) -> None:
        if self._is_begun:
            self._database.commit()
            self._is_begun = False

    def rollback(self) -> None:
        if self._is_begun:
            self._database.rollback()
            self._is_begun = False

    def close(self) -> None:
        self.rollback()
        self._database.close()


def opened(path: str, **options: Any) -> Any:
    """Open a database; wait while another process has it open."""
    for left in reversed(range(WAIT_S * 10)):
        try:
            return duckdb.connect(path, **options)
        except duckdb.IOException:
            if not left:
                raise
            time.sleep(0.1)
    raise AssertionError("unreachable: the loop returns or raises")


def add_blocks(cursor: DuckDb, blocks: Iterable[pa.RecordBatch]) -> None:
    """Write a batch to the table. TransactionalSink commits it together with its id."""
    for block in blocks:
        cursor.insert("sales", block)


def setup(directory: str) -> StreamingContext:
    """Define the streams. Called only at the first start."""
    with duckdb.connect(f"{directory}/sales.duckdb") as database:
        database.execute(CREATE)

    conf = {"spark.streaming.stopGracefullyOnShutdown": "true"}
    ssc = StreamingContext(tuned_context("blocks_to_duckdb", conf=conf), 1)
    ssc.checkpoint(f"{directory}/checkpoint")
    lines = ssc.fileStream(f"{directory}/input", newFilesOnly=False, maxFileAge=math.inf)
    sales = lines.toBlocks(SALE, format="json")
    sales.foreachRDD(TransactionalSink(partial(DuckDb, f"{directory}/sales.duckdb"), add_blocks))
    sales.saveAsParquetFiles(f"{directory}/parquet/sales")
    return ssc


# For dstreams drill ----------------------------------------------------------------------------

ROWS = 50


def feed(directory: str, number: int) -> None:
    """Add a file to the input directory."""
    hidden = Path(directory, "input", f".file-{number}")
    hidden.parent.mkdir(exist_ok=True)
    lines = (f'{{"shop": "shop-{number}", "cents": {cents}}}\n' for cents in range(ROWS))
    hidden.write_text("".join(lines))
    hidden.rename(hidden.with_name(f"file-{number}.json"))


def is_done(directory: str) -> bool:
    """Return whether the Parquet files, which are never locked, have the rows of all files."""
    wanted = ROWS * len(list(Path(directory, "input").glob("file-*.json")))
    return len(in_files(directory)) >= wanted


def check(directory: str) -> list[str]:
    """Return the differences of the database and the Parquet files from the input."""
    wanted = sorted(
        (f"shop-{path.stem.removeprefix('file-')}", cents)
        for path in Path(directory, "input").glob("file-*.json")
        for cents in range(ROWS)
    )
    found = {"the database": in_table(directory), "the Parquet files": in_files(directory)}
    return [
        f"{name}: {len(rows)} rows, which are not the {len(wanted)} of the input"
        for name, rows in found.items()
        if sorted(rows) != wanted
    ]


def in_table(directory: str) -> list[Any]:
    """Return the rows of the table."""
    with opened(f"{directory}/sales.duckdb", read_only=True) as database:
        return database.execute("SELECT shop, cents FROM sales").fetchall()


def in_files(directory: str) -> list[Any]:
    """Return the rows of the Parquet files, which DuckDB reads as one table."""
    files = f"{directory}/parquet/sales-*/*.parquet"
    if not list(Path(directory).glob("parquet/sales-*/*.parquet")):
        return []
    return duckdb.sql(f"SELECT shop, cents FROM '{files}'").fetchall()  # noqa: S608 - our files


if __name__ == "__main__":
    root = str(Path(sys.argv[1]).absolute())
    Path(root, "input").mkdir(parents=True, exist_ok=True)
    ssc = StreamingContext.getOrCreate(f"{root}/checkpoint", lambda: setup(root))
    ssc.start()
    ssc.awaitTermination()
