"""Batches in a store without rename: parts by attempt, and a ``_SUCCESS`` that names them."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, cast

import pytest
from pyspark import RDD

from checkpoint.storage.object_files import ObjectFiles
from dstreams.errors import OutputConflictError
from dstreams.sinks import committed_directory
from dstreams.sinks.committed_directory import SUCCESS, Manifest
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sinks.text_files import ObjectDirectory
from tests.support.batches import batch_at
from tests.support.faults import Interrupted


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
def files(request: pytest.FixtureRequest) -> ObjectFiles:
    return ObjectFiles(f"memory://{request.node.name.replace('[', '').replace(']', '')}/out-1000")


def directory(files: ObjectFiles) -> ObjectDirectory:
    return ObjectDirectory(files.url, ObjectFiles)


def write(files: ObjectFiles, batch: OutputBatch, *partitions: Iterable[Any]) -> bool:
    return directory(files).write(batch, cast(RDD[Any], Partitions(*partitions)))


def manifest(files: ObjectFiles) -> Manifest:
    found = Manifest.of_text(files.read(SUCCESS).decode())
    assert found is not None
    return found


def content(files: ObjectFiles) -> list[bytes]:
    return [files.read(name) for name in manifest(files).files]


def test_the_manifest_names_the_parts(files: ObjectFiles) -> None:
    """Lines as saveAsTextFile writes them, one file for each partition, in order."""
    assert write(files, batch_at(1000), ["a", 1, b"raw"], [], ["ü"])
    assert content(files) == [b"a\n1\nraw\n", b"", "ü\n".encode()]
    assert [name[:10] for name in manifest(files).files] == [f"part-{n:05}" for n in range(3)]
    assert files.list("") == sorted([SUCCESS, *manifest(files).files])


def test_a_batch_that_is_there_is_not_written_again(files: ObjectFiles) -> None:
    """Not even its tasks run; what an attempt that lost has left is deleted."""
    write(files, batch_at(1000), ["a"])
    before = files.list("")
    files.create(f"part-00000-{0:016x}", [b"lost"])
    assert not write(files, batch_at(1000), explode())
    assert (files.list(""), content(files)) == (before, [b"a\n"])


def explode() -> Iterator[str]:
    yield "first line"
    raise ValueError("no more")


def test_a_batch_that_failed_is_not_there(files: ObjectFiles) -> None:
    """Its files are in no manifest; they are deleted when the next run has written one."""
    with pytest.raises(ValueError, match="no more"):
        write(files, batch_at(1000), ["a"], explode())
    assert not files.exists(SUCCESS)
    assert len(files.list("part-")) == 1
    assert write(files, batch_at(1000), ["b"])
    assert content(files) == [b"b\n"]
    assert files.list("") == sorted([SUCCESS, *manifest(files).files])


@pytest.mark.parametrize(
    "other", [batch_at(1000, "stream-other"), batch_at(1000, beginning="bb")], ids=str
)
def test_a_complete_output_is_never_replaced(files: ObjectFiles, other: OutputBatch) -> None:
    """That of another stream, or of another history of the checkpoint, stays as it was."""
    write(files, batch_at(1000, beginning="aa"), ["a"], ["b"])
    before = files.list("")
    with pytest.raises(OutputConflictError, match="out-1000 "):
        write(files, other, ["c"])
    assert (files.list(""), content(files)) == (before, [b"a\n", b"b\n"])


def write_quick(files: ObjectFiles, batch: OutputBatch) -> None:
    with suppress(OutputConflictError):  # it was no quicker
        write(files, batch, ["quick"], ["quick"])


@pytest.mark.parametrize("beginning", ["aa", "bb"])
def test_a_driver_that_was_quicker(files: ObjectFiles, beginning: str) -> None:
    """Wherever the slower one stands, the output of the quicker one stays; nothing is mixed."""
    quick = partial(write_quick, files, batch_at(1000, beginning=beginning))
    for at in itertools.count(1):
        slow = directory(files)
        slow._directory.files = interrupted = Interrupted(files, at, quick)
        try:
            written = slow.write(
                batch_at(1000, beginning="aa"), cast(RDD[Any], Partitions(["slow"]))
            )
        except OutputConflictError:
            assert beginning == "bb"
            written = False
        wanted = [b"slow\n"] if written else [b"quick\n", b"quick\n"]
        assert content(files) == wanted
        assert set(files.list("")) == {SUCCESS, *manifest(files).files}
        for name in files.list(""):
            files.delete(name)
        if not interrupted.fired:
            break
    assert at == 4


def test_a_manifest_of_which_the_news_was_lost(files: ObjectFiles) -> None:
    """A retried request finds the manifest: the files that it lists stay."""
    late = directory(files)
    once = ObjectFiles.create

    def twice(self: ObjectFiles, name: str, chunks: Iterable[Any]) -> int:
        content = list(chunks)
        once(self, name, content)
        return once(self, name, content) if name == SUCCESS else len(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectFiles, "create", twice)
        assert late.write(batch_at(1000), cast(RDD[Any], Partitions(["a"])))
    assert content(files) == [b"a\n"]


def test_batches_that_were_left_out(files: ObjectFiles) -> None:
    """Output of another history is found once, before the first batch after the gap."""
    write(files, batch_at(1000, beginning="aa"), ["a"])
    later = ObjectFiles(files.url.replace("out-1000", "out-9000"))
    gap = OutputBatch("stream-0-test", 8, 9000, "bb", range(8))
    with pytest.raises(
        OutputConflictError, match=r"out-1000 has batch 0 of stream-0-test with tok"
    ):
        write(later, gap, ["b"])
    assert later.list("") == []
    files.delete(SUCCESS)
    assert write(later, gap, ["b"])


def test_what_others_wrote_is_not_replaced(files: ObjectFiles) -> None:
    """The message names it."""
    files.create(SUCCESS, [b"somebody else's"])
    with pytest.raises(
        FileExistsError, match=r"out-1000/_SUCCESS is not the manifest of a batch: another"
    ):
        write(files, batch_at(1000), ["a"])
    assert files.list("") == [SUCCESS]


def test_long_partitions_come_in_chunks(
    files: ObjectFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost or doubled where a chunk ends."""
    monkeypatch.setattr(committed_directory, "_CHUNK_BYTES", 7)
    write(files, batch_at(1000), range(100))
    assert content(files) == ["".join(f"{n}\n" for n in range(100)).encode()]
