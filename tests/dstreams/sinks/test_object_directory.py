"""Batches in a store without rename: parts by attempt, and a ``_SUCCESS`` that names them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import pytest
from pyspark import RDD

from checkpoint import FsspecFiles
from dstreams.sinks import object_directory
from dstreams.sinks.manifest import SUCCESS, Manifest
from dstreams.sinks.object_directory import ObjectDirectory
from dstreams.sinks.output_batch import OutputBatch
from tests.support.batches import batch_at


class Partitions:
    """As much of an RDD as the writer uses, in this process, where the store in memory is."""

    def __init__(self, *partitions: Iterable[Any]) -> None:
        self.partitions = partitions
        self.task: Callable[[int, Iterable[Any]], Iterator[str]] | None = None

    def mapPartitionsWithIndex(self, task: Any) -> Partitions:
        self.task = pickle.loads(pickle.dumps(task))
        return self

    def collect(self) -> list[str]:
        assert self.task is not None
        return [
            name for split, part in enumerate(self.partitions) for name in self.task(split, part)
        ]


@pytest.fixture
def files(request: pytest.FixtureRequest) -> FsspecFiles:
    return FsspecFiles(f"memory://{request.node.name.replace('[', '').replace(']', '')}/out-1000")


def write(files: FsspecFiles, batch: OutputBatch, *partitions: Iterable[Any]) -> bool:
    return ObjectDirectory(files.url, files).write(batch, cast(RDD[Any], Partitions(*partitions)))


def manifest(files: FsspecFiles) -> Manifest:
    found = Manifest.of_text(files.read(SUCCESS).decode())
    assert found is not None
    return found


def content(files: FsspecFiles) -> list[bytes]:
    return [files.read(name) for name in manifest(files).files]


def test_the_manifest_names_the_parts(files: FsspecFiles) -> None:
    """Lines as saveAsTextFile writes them, one file for each partition, in order."""
    assert write(files, batch_at(1000), ["a", 1, b"raw"], [], ["ü"])
    assert content(files) == [b"a\n1\nraw\n", b"", "ü\n".encode()]
    assert [name[:10] for name in manifest(files).files] == [f"part-{n:05}" for n in range(3)]
    assert files.list("") == sorted([SUCCESS, *manifest(files).files])


def test_a_batch_that_is_there_is_not_written_again(files: FsspecFiles) -> None:
    """Not even its tasks run."""
    write(files, batch_at(1000), ["a"])
    before = files.list("")
    assert not write(files, batch_at(1000), explode())
    assert (files.list(""), content(files)) == (before, [b"a\n"])


def explode() -> Iterator[str]:
    yield "first line"
    raise ValueError("no more")


def test_a_batch_that_failed_is_not_there(files: FsspecFiles) -> None:
    """What was written of it no manifest names, and the next run does not mind it."""
    with pytest.raises(ValueError, match="no more"):
        write(files, batch_at(1000), ["a"], explode())
    assert not files.exists(SUCCESS)
    assert len(files.list("part-")) == 1
    assert write(files, batch_at(1000), ["b"])
    assert content(files) == [b"b\n"]


def test_the_batch_of_another_stream_is_replaced(files: FsspecFiles) -> None:
    """A stream that begins anew overwrites, as saveAsTextFiles always did; old parts go."""
    write(files, batch_at(1000), ["a"], ["b"])
    assert write(files, batch_at(1000, "stream-other"), ["c"])
    assert content(files) == [b"c\n"]
    assert files.list("") == sorted([SUCCESS, *manifest(files).files])


def test_what_others_wrote_is_not_replaced(files: FsspecFiles) -> None:
    """The message names it."""
    files.create(SUCCESS, [b"somebody else's"])
    with pytest.raises(FileExistsError, match=r"out-1000: there is a _SUCCESS of another program"):
        write(files, batch_at(1000), ["a"])
    assert files.list("") == [SUCCESS]


def test_long_partitions_come_in_chunks(
    files: FsspecFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost or doubled where a chunk ends."""
    monkeypatch.setattr(object_directory, "_CHUNK_BYTES", 7)
    write(files, batch_at(1000), range(100))
    assert content(files) == ["".join(f"{n}\n" for n in range(100)).encode()]
