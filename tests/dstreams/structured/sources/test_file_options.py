"""Options of file sources: cleaning, subdirectories, and the age of files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.common.settings import Settings
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.sources.file_listing import HadoopDirectories
from dstreams.sources.source import SourceEnvironment
from dstreams.structured import StreamingQueryException, StreamSession
from dstreams.structured.sources.file_source import FileStreamSource, QueryFilesReader
from dstreams.structured.sources.query_formats import format_of
from dstreams.testing import ManualClock

Open = Callable[..., QueryFilesReader]


@pytest.fixture
def open_source(sc: SparkContext, clock: ManualClock, tmp_path: Path) -> Open:
    """Open a source of the directory ``in``, through Hadoop on request."""
    (tmp_path / "in").mkdir()

    def opened(*, hadoop: bool = False, **options: Any) -> QueryFilesReader:
        source = FileStreamSource(str(tmp_path / "in"), format_of("text"), **options)
        reader = source.open(SourceEnvironment(sc, clock, Settings(), 0, [].append))
        assert isinstance(reader, QueryFilesReader)
        if hadoop:
            reader._visible.listing = HadoopDirectories(
                f"file://{tmp_path}/in", sc, is_recursive=source.is_recursive
            )
        reader.start()
        return reader

    return opened


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*.txt"))


@pytest.mark.parametrize("hadoop", [False, True], ids=["local", "hadoop"])
@pytest.mark.parametrize("clean", ["off", "delete", "archive"])
def test_files_are_cleaned_after_their_commit(
    open_source: Open, tmp_path: Path, clean: str, hadoop: bool
) -> None:
    """A file stays until its batch is committed; one that cannot be moved stays for good."""
    directory, archive = tmp_path / "in", tmp_path / "archive"
    reader = open_source(clean=clean, archive=str(archive), max_files=1, hadoop=hadoop)
    for number, name in enumerate("ab"):
        (directory / f"{name}.txt").write_text(f"{name}\n")
        os.utime(directory / f"{name}.txt", (number, number))
    first = reader.plan(None, 0)
    assert reader.read(first).collect() == ["a"]
    second = reader.plan(first.end, 1)
    assert names(directory) == ["a.txt", "b.txt"]
    reader.commit(first.end)
    reader.release(first.end)
    assert names(directory) == (["a.txt", "b.txt"] if clean == "off" else ["b.txt"])
    assert reader.read(second).collect() == ["b"]
    reader.commit(second.end)
    archived = [f"{str(directory)[1:]}/{name}.txt" for name in "ab"]
    assert names(archive) == (archived if clean == "archive" else [])
    assert reader.plan(second.end, 2).end == second.end


@pytest.mark.parametrize("hadoop", [False, True], ids=["local", "hadoop"])
def test_a_file_that_cannot_be_archived(
    open_source: Open, tmp_path: Path, hadoop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays, nothing is overwritten, and the log says so."""
    (tmp_path / "in" / "a.txt").write_text("new\n")
    archived = Path(f"{tmp_path}/archive{tmp_path}/in/a.txt")
    archived.parent.mkdir(parents=True)
    archived.write_text("old\n")
    reader = open_source(clean="archive", archive=f"file://{tmp_path}/archive", hadoop=hadoop)
    planned = reader.plan(None, 0)
    reader.read(planned)
    with caplog.at_level(logging.WARNING):
        reader.commit(planned.end)
    assert (archived.read_text(), names(tmp_path / "in")) == ("old\n", ["a.txt"])
    assert "could not archive file:" in caplog.text
    assert "in/a.txt exists" in caplog.text


@pytest.mark.parametrize(
    ("directory", "archive", "is_allowed"),
    [
        ("/data/in", "/data/in", False),
        ("/data/in", "file:///data/in/old", False),
        ("/data/in", "/data/in-old", True),
        ("/data/*", "/data/old", False),
        ("/data/*", "/data-old", True),
        ("hdfs://one/in", "hdfs://one/in/old", False),
        ("hdfs://one/in", "hdfs://one/old", True),
        ("/data/in", None, False),
    ],
)
def test_where_the_archive_is(directory: str, archive: str | None, is_allowed: bool) -> None:
    """It must not be where the source would read its files again."""
    text = format_of("text")
    if is_allowed:
        FileStreamSource(directory, text, clean="archive", archive=archive)
        return
    with pytest.raises(InvalidStreamError, match="sourceArchiveDir"):
        FileStreamSource(directory, text, clean="archive", archive=archive)


def test_the_output_of_a_query_is_not_cleaned(open_source: Open, tmp_path: Path) -> None:
    """Its manifests list files that readers expect."""
    (tmp_path / "in" / "_committed").mkdir()
    (tmp_path / "in" / "_committed" / "query").write_text('{"queryId": "one"}')
    with pytest.raises(SourceError, match=r"has the output of a query.*set cleanSource to off"):
        open_source(clean="delete")


@pytest.mark.parametrize("hadoop", [False, True], ids=["local", "hadoop"])
def test_subdirectories(open_source: Open, tmp_path: Path, hadoop: bool) -> None:
    """Files of subdirectories are read on request, except those of hidden ones."""
    for name in ("a.txt", "one/b.txt", "one/two/c.txt", "_three/d.txt", ".four/e.txt"):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text(f"{name}\n")
    flat, deep = (open_source(is_recursive=is_deep, hadoop=hadoop) for is_deep in (False, True))
    assert flat.read(flat.plan(None, 0)).collect() == ["a.txt"]
    found = deep.read(deep.plan(None, 0)).collect()
    assert sorted(found) == ["a.txt", "one/b.txt", "one/two/c.txt"]


def test_old_files_cost_a_batch_nothing(open_source: Open, tmp_path: Path) -> None:
    """With an age, a batch looks at the files that it forgets, not at all that it remembers."""

    class Seen(dict[str, Any]):
        """Counts how often all files are walked."""

        walks = 0

        def items(self) -> Any:
            Seen.walks += 1
            return super().items()

        values = __iter__ = items

    reader = open_source(max_age_ms=10_000)
    reader._seen = Seen()
    end = None
    for number in range(20):
        path = tmp_path / "in" / f"{number}.txt"
        path.write_text("a\n")
        os.utime(path, (1000 + number, 1000 + number))
        end = reader.plan(end, number).end
    assert (end, Seen.walks) == (20, 0)
    assert reader.snapshot_size() == len(reader._by_age) == 11  # 19 to 9 seconds
    late = tmp_path / "in" / "late.txt"
    late.write_text("a\n")
    os.utime(late, (1008, 1008))
    assert reader.plan(end, 21).end == end


def test_a_failed_batch_keeps_its_files(session: StreamSession, tmp_path: Path) -> None:
    """Files are deleted by the run that commits their batch."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\n")
    seen: list[list[str]] = []

    def output(rows: Any, batch_id: int) -> None:
        seen.append(rows.collect())
        if len(seen) == 1:
            raise ValueError("no output")

    lines = session.readStream.text(tmp_path / "in", cleanSource="DELETE")
    writer = lines.writeStream.foreachBatch(output).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="no output"):
        writer.start().awaitTermination(60)
    assert names(tmp_path / "in") == ["a.txt"]
    assert writer.start().awaitTermination(60)
    assert (seen, names(tmp_path / "in")) == ([["a"], ["a"]], [])
