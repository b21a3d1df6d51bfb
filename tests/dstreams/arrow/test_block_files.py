"""Blocks as files of Parquet and Arrow: each batch once, whole, and for others to read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark import SparkContext, TaskContext

from dstreams import BatchFailedError, InvalidStreamError
from dstreams.errors import OutputConflictError
from dstreams.sinks.text_files import EncodedFilesWriter
from dstreams.testing import BatchDriver
from tests.dstreams.arrow import killed_files
from tests.recovery.lives import environment_of
from tests.support.batches import batch_at
from tests.support.waiting import wait_for

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
pq = pytest.importorskip("pyarrow.parquet")

from dstreams.arrow.file_bytes import ArrowFile, ParquetFile  # noqa: E402 - needs pyarrow

ROOT = Path(__file__).parents[3]


class Sale(NamedTuple):
    shop: str
    cents: int | None


SCHEMA = pa.schema([pa.field("shop", pa.string(), nullable=False), ("cents", pa.int64())])
SALES = [Sale("a", 1), Sale("ü", None), Sale("c", 3)]


def block_of(*cents: int) -> Any:
    return pa.record_batch([pa.array(["s"] * len(cents)), pa.array(cents)], schema=SCHEMA)


def rows_of(directory: Path) -> list[tuple[Any, ...]]:
    """The rows of a directory, without files that readers ignore."""
    tables = [
        pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
        for path in sorted(directory.glob("part-*"))
    ]
    table = pa.concat_tables(tables)
    assert table.schema.names == SCHEMA.names
    assert table.schema.types == SCHEMA.types
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.deep
@pytest.mark.parametrize(("name", "ending"), [("Parquet", "parquet"), ("Arrow", "arrow")])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_files_of_a_stream(
    sc: SparkContext, tmp_path: Path, name: str, ending: str, compression: str | None
) -> None:
    """A directory for each batch with an RDD, whose files have the columns that were declared."""
    options = {} if compression is None else {"compression": compression}
    with BatchDriver(sc) as driver:
        blocks = driver.input([SALES, None, []]).toBlocks(Sale)
        save = getattr(blocks, f"saveAs{name}Files")
        save(f"{tmp_path}/sales", **options)
        driver.run(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sales-1000", "sales-3000"]
    assert sorted(rows_of(tmp_path / "sales-1000"), key=str) == sorted(SALES, key=str)
    assert rows_of(tmp_path / "sales-3000") == []
    parts = [path for path in (tmp_path / "sales-1000").iterdir() if path.name[0] not in "._"]
    assert {path.suffix for path in parts} == {f".{ending}"}
    assert len(parts) == 2
    if compression is None and name == "Parquet":
        assert pq.read_table(tmp_path / "sales-1000").num_rows == 3  # as a data set


def test_what_state_is_can_be_saved(sc: SparkContext, tmp_path: Path) -> None:
    """The columns of a state, without what the engine says of its blocks."""

    def last(keys: Any, values: Any, state: Any) -> Any:
        return pa.record_batch({"cents": values.last("cents")})

    with BatchDriver(sc) as driver:
        blocks = driver.input([[Sale("a", 1), Sale("a", 2)]]).toBlocks(SCHEMA)
        state = blocks.updateStateByKey(last, key="shop", state={"cents": int | None})
        state.saveAsParquetFiles(f"{tmp_path}/last", "pq")
        driver.run(1)
    assert rows_of(tmp_path / "last-1000.pq") == [("a", 2)]


def test_an_attempt_that_fails_leaves_nothing(sc: SparkContext, tmp_path: Path) -> None:
    """A task that is tried again writes under another name, and the first file is gone."""
    seen = str(tmp_path)

    def first_fails(split: int, blocks: Any) -> Any:
        yield block_of(split)
        yield from ()
        context = TaskContext.get()
        if split == 0 and context is not None and context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        visible = [name for name in os.listdir(seen) if not name.startswith(".")]
        yield block_of(len(visible))

    write = EncodedFilesWriter(
        f"{tmp_path}/out",
        None,
        "saveAsParquetFiles",
        ParquetFile(SCHEMA, "save", "none"),
        ".parquet",
    )
    blocks = sc.parallelize([0, 1], 2).mapPartitionsWithIndex(first_fails)
    write(batch_at(1000), blocks)
    assert [path.name for path in tmp_path.iterdir()] == ["out-1000"]
    names = sorted(path.name for path in (tmp_path / "out-1000").iterdir())
    assert [name[:10] for name in names if not name.startswith("._")] == [
        "_SUCCESS", "part-00000", "part-00001",
    ]  # fmt: skip
    # Directories stay invisible while they are written: the second block counts them.
    assert sorted(rows_of(tmp_path / "out-1000")) == [("s", 0), ("s", 0), ("s", 0), ("s", 1)]


def test_a_batch_that_runs_again_changes_nothing(sc: SparkContext, tmp_path: Path) -> None:
    """And one of another history is refused, by the name of the operation."""
    write = EncodedFilesWriter(
        f"{tmp_path}/out", None, "saveAsArrowFiles", ArrowFile(SCHEMA, "save", "none"), ".arrow"
    )
    write(batch_at(1000, beginning="aa"), sc.parallelize([block_of(1)], 1))
    before = sorted(path.name for path in (tmp_path / "out-1000").iterdir())
    write(batch_at(1000, beginning="aa"), sc.parallelize([block_of(2)], 1))
    assert sorted(path.name for path in (tmp_path / "out-1000").iterdir()) == before
    assert rows_of(tmp_path / "out-1000") == [("s", 1)]
    with pytest.raises(OutputConflictError, match="out-1000 has batch 0"):
        write(batch_at(1000, beginning="bb"), sc.parallelize([block_of(2)], 1))
    (tmp_path / "out-2000").mkdir()
    with pytest.raises(FileExistsError, match="saveAsArrowFiles cannot write"):
        write(batch_at(2000), sc.parallelize([block_of(2)], 1))


@pytest.mark.deep
def test_blocks_of_two_schemas(sc: SparkContext, tmp_path: Path) -> None:
    """A file has one: the error says both, and what to do."""

    def either(block: Any) -> Any:
        return block if block.column("cents")[0].as_py() else block.select(["shop"])

    with BatchDriver(sc) as driver:
        blocks = driver.input([[Sale("a", 1), Sale("b", 0)]]).repartition(1).toBlocks(SCHEMA, 1)
        blocks.mapBlocks(either).saveAsParquetFiles(f"{tmp_path}/out")
        with pytest.raises(BatchFailedError, match=r"must have one schema.*mapBlocks\(f, schema\)"):
            driver.run(1)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_defined(sc: SparkContext) -> None:
    """Refused where it is called."""
    with BatchDriver(sc) as driver:
        blocks = driver.input([]).toBlocks(Sale)
        with pytest.raises(InvalidStreamError, match="prefix of saveAsParquetFiles must be a str"):
            blocks.saveAsParquetFiles(Path("x"))  # type: ignore[arg-type]
        with pytest.raises(InvalidStreamError, match="compression of saveAsArrowFiles is 'snappy'"):
            blocks.saveAsArrowFiles("x", compression="snappy")


def test_a_store_without_rename() -> None:
    """The manifest names complete files."""
    from dstreams.sinks.text_files import ObjectDirectory  # noqa: PLC0415
    from tests.dstreams.sinks.test_object_directory import Partitions, manifest  # noqa: PLC0415

    object_files = pytest.importorskip("checkpoint.storage.object_files")
    files = object_files.ObjectFiles("memory://test_block_files/out-1000")
    directory = ObjectDirectory(
        files.url, object_files.ObjectFiles, ParquetFile(SCHEMA, "save", "none"), ".parquet"
    )
    partitions: Any = Partitions([block_of(1), block_of(2)], [])
    assert directory.write(batch_at(1000), partitions)
    assert not directory.write(batch_at(1000), partitions)
    names = manifest(files).files
    assert all(name.endswith(".parquet") for name in names)
    tables = [pq.read_table(pa.BufferReader(files.read(name))) for name in names]
    assert [table.num_rows for table in tables] == [2, 0]


LIVES = [("task", ""), ("rename", ""), ("", "out.done:kill9"), ("", "commit.done:kill9")]
"""The points at which each life is killed; one more life ends well."""


def live_and_read(directory: Path, place: str, faults: str) -> int:
    """Run the program; look at its output as long as it runs, and return how it ended."""
    with (
        (directory / "stderr").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.dstreams.arrow.killed_files", str(directory), "3", place],
            cwd=ROOT,
            env=environment_of(faults),
            stdout=subprocess.DEVNULL,
            stderr=errors,
        ) as program,
    ):
        try:
            wait_for(lambda: (whole(directory), program.poll())[1] is not None, 300)
        finally:
            program.kill()
    return program.returncode


def whole(directory: Path) -> list[Path]:
    """The directories that a reader sees, each with all rows of its batch."""
    found = sorted(directory.glob("out/sales-*"), key=lambda path: int(path.name[6:]))
    for path in found:
        first = killed_files.ROWS * found.index(path)
        numbers = sorted(row[1] for row in rows_of(path))
        assert numbers == list(range(first, first + killed_files.ROWS)), path
    return found


@pytest.mark.deep
def test_a_driver_that_is_killed_writes_each_batch_once(tmp_path: Path) -> None:
    """In a task, before a rename, behind it and behind the commit; readers see whole batches."""
    for place, faults in LIVES:
        ended = live_and_read(tmp_path, place, faults)
        assert ended == -signal.SIGKILL, (tmp_path / "stderr").read_text()[-3000:]
    assert live_and_read(tmp_path, "", "") == 0, (tmp_path / "stderr").read_text()[-3000:]
    assert len(whole(tmp_path)) >= 6
    tables = [pq.read_table(path) for path in whole(tmp_path)]
    assert {table.schema.field("cents").nullable for table in tables} == {False}
    assert list(tmp_path.glob("out/.sales*")) == []
