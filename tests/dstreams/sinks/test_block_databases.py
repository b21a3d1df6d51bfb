"""Blocks into databases, each batch once: DuckDB by the example, PostgreSQL by COPY."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark import RDD

from dstreams.errors import OutputConflictError
from dstreams.sinks import TransactionalSink
from tests.support.batches import batch_at
from tests.support.postgres import running_server

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
csv = pytest.importorskip("pyarrow.csv")

ROOT = Path(__file__).parents[3]
SHOPS = ["a", 'quoted "b", and', "ключ"]


class Blocks:
    """As much of an RDD of blocks as the sink uses."""

    def __init__(self, *blocks: Any, fails: bool = False) -> None:
        self.blocks = blocks
        self.fails = fails

    def toLocalIterator(self) -> Iterator[Any]:
        yield from self.blocks
        if self.fails:
            raise RuntimeError("a task failed")


def block_of(first: int) -> Any:
    return pa.record_batch({"shop": SHOPS, "cents": [first, first + 1, first + 2]})


def write(sink: TransactionalSink, time_ms: int, blocks: Blocks, beginning: str = "aa") -> None:
    sink.write_batch(batch_at(time_ms, beginning=beginning), cast(RDD[Any], blocks))


def write_batches(sink: TransactionalSink) -> None:
    """Two batches; the second one fails half-way, runs again, and once more."""
    write(sink, 1000, Blocks(block_of(0), block_of(3)))
    with pytest.raises(RuntimeError, match="a task failed"):
        write(sink, 2000, Blocks(block_of(6), fails=True))
    write(sink, 2000, Blocks(block_of(6)))
    write(sink, 2000, Blocks(block_of(6)))
    with pytest.raises(OutputConflictError):
        write(sink, 2000, Blocks(block_of(9)), beginning="bb")


ROWS = [(SHOPS[cents % 3], cents) for cents in range(9)]


def test_blocks_into_duckdb(tmp_path: Path) -> None:
    """By the functions of the example."""
    duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")
    spec = spec_from_file_location("blocks_to_duckdb", ROOT / "examples" / "blocks_to_duckdb.py")
    assert spec is not None
    assert spec.loader is not None
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    path = str(tmp_path / "sales.duckdb")
    with duckdb.connect(path) as database:
        database.execute(example.CREATE)
    write_batches(TransactionalSink(partial(example.DuckDb, path), example.add_blocks))
    assert sorted(example.in_table(str(tmp_path)), key=lambda row: row[1]) == ROWS


def copy_blocks(cursor: Any, blocks: Iterable[Any]) -> None:
    """Write blocks by COPY, as the page on blocks has it."""
    with cursor.copy("COPY sales (shop, cents) FROM STDIN (FORMAT csv)") as copy:
        for block in blocks:
            text = BytesIO()
            csv.write_csv(block, text, csv.WriteOptions(include_header=False))
            copy.write(text.getvalue())


@pytest.mark.deep
def test_blocks_into_postgresql() -> None:
    """By COPY, in the transaction of the batch's id."""
    psycopg = pytest.importorskip("psycopg", reason="pip install 'dstreams[postgres]'")
    with running_server() as dsn:
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE sales (shop text NOT NULL, cents bigint NOT NULL)")
        write_batches(TransactionalSink(partial(psycopg.connect, dsn), copy_blocks))
        with psycopg.connect(dsn) as connection:
            found = connection.execute("SELECT shop, cents FROM sales ORDER BY cents").fetchall()
    assert found == ROWS
