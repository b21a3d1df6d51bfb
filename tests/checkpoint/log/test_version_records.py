"""Stored state in commit records: what is named, and what cannot be."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from checkpoint import (
    CommitLog,
    CommitRecord,
    ConcurrentWriterError,
    CorruptCheckpointError,
    FileRef,
    PartitionCommit,
    StoreCommit,
    open_files,
)
from checkpoint.log.batch_records import EMPTY, StoreId, VersionId
from checkpoint.state_store import MemoryBackend
from checkpoint.storage.framing import FileKind, read_frames, write_frames
from checkpoint.storage.json_records import convert, encode
from tests.support.stores import commit

UID = "00000001" + "ab" * 8


def stored(partition: int, uid: str = UID, name: str | None = None) -> PartitionCommit:
    name = name or f"stores/a/b/p{partition:05d}/0000000000000003-{uid}.changes"
    return PartitionCommit(partition, VersionId(3, uid), FileRef(name, 100, "0" * 32, 7), 5)


FILE = {
    "name": f"stores/a/b/p00000/0000000000000003-{UID}.changes",
    "size_bytes": 100,
    "digest": "0" * 32,
    "records": 7,
}
NOTHING = PartitionCommit(2, EMPTY, None, 0)
COMMIT = StoreCommit("counts", "default", "stable", (stored(0), stored(1), NOTHING))
RECORD = CommitRecord("stream-1", 3, 3000, 1, {}, {}, (COMMIT,))


def test_a_record_names_contents_and_files(tmp_path: Path) -> None:
    """Partitions are read back in order, empty ones without a file."""
    log = CommitLog(open_files(tmp_path))
    other = replace(COMMIT, store="another", partitions=())
    record = replace(RECORD, stores=(COMMIT, other))
    log.commit(record)
    found = log.read(3000)
    assert found == record.after(None)
    assert list(COMMIT.files()) == [stored(0).file, stored(1).file]
    assert found.file_names() == {ref.name for ref in COMMIT.files()}


def test_another_content_for_the_same_batch_is_another_driver(tmp_path: Path) -> None:
    """The first record stands; committing it again is fine."""
    log = CommitLog(open_files(tmp_path))
    log.commit(RECORD)
    log.commit(RECORD)
    partitions = (stored(0), stored(1, "00000002" + "cd" * 8), NOTHING)
    rival = replace(RECORD, stores=(replace(COMMIT, partitions=partitions),))
    with pytest.raises(ConcurrentWriterError):
        CommitLog(log.files).commit(rival)
    assert log.latest() == RECORD


def payload(path: Path) -> dict[str, object]:
    [file] = (path / "commits").iterdir()
    frames = read_frames([file.read_bytes()], FileKind.COMMIT, "record")
    found: dict[str, object] = json.loads(b"".join(data for data, _ in frames.blocks))
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stores": {}}, "Expected `array`, got `object` - at `$.stores`"),
        ({"stores": [[]]}, "Expected `object`, got `array` - at `$.stores[0]`"),
        ({"stores": [{"operator_uid": "a", "store": "b", "partitioner": "c"}]}, "`partitions`"),
    ],
)
def test_a_record_of_another_shape_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """It is not half understood."""
    files = open_files(tmp_path)
    CommitLog(files).commit(RECORD)
    changed = encode({**payload(tmp_path), **change})
    name = "commits/0000000000003000-e1.commit"
    files.delete(name)
    files.create(name, write_frames(FileKind.COMMIT, {"format": 1}, [(changed, 1)]))
    with pytest.raises(CorruptCheckpointError, match=re.escape(message)):
        CommitLog(files).read(3000)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"count": -1}, r"Expected `int` >= 0 - at `\$.count`"),
        ({"partition": "0"}, r"Expected `int`, got `str` - at `\$.partition`"),
        ({"version_id": {"version": 3, "uid": "../x"}}, "must be 8 to 64 hexadecimal digits"),
        ({"version_id": {"version": 0, "uid": ""}}, "version 0 of a store, and only it, is empty"),
        ({"file": None}, "version 0 of a store, and only it, is empty"),
        ({"file": {**FILE, "size_bytes": -1}}, r"Expected `int` >= 0 - at `\$.file.size_bytes`"),
        ({"file": {**FILE, "digest": "xyz"}}, r"matching regex .* - at `\$.file.digest`"),
        ({"file": {**FILE, "name": "../x"}}, r"matching regex .* - at `\$.file.name`"),
        ({"file": {**FILE, "name": "a/b\n"}}, r"matching regex .* - at `\$.file.name`"),
        ({"file": {**FILE, "name": "a//b"}}, r"matching regex .* - at `\$.file.name`"),
    ],
)
def test_impossible_partitions_are_refused(facts: dict[str, object], message: str) -> None:
    """Impossible commits of a partition are rejected."""
    good = {"partition": 0, "version_id": {"version": 3, "uid": UID}, "file": FILE, "count": 5}
    assert convert(good, PartitionCommit, "record", "a partition") == stored(0)
    with pytest.raises(CorruptCheckpointError, match=f"record says: .*{message}"):
        convert({**good, **facts}, PartitionCommit, "record", "a partition")


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ((stored(0), stored(2)), r"each partition from 0 on once, got \[0, 2\]"),
        ((stored(0), stored(0)), r"got \[0, 0\]"),
        ((stored(1), stored(0)), r"got \[1, 0\]"),
        ((stored(0, name="stores/x"), stored(1, name="stores/x")), "more than one partition"),
    ],
)
def test_a_commit_has_each_partition_once(
    partitions: tuple[PartitionCommit, ...], message: str
) -> None:
    """And no two of them in one file."""
    with pytest.raises(ValueError, match=message):
        StoreCommit("counts", "default", "stable", partitions)


def test_a_store_is_named_once() -> None:
    """Two entries for one store would be two truths."""
    with pytest.raises(ValueError, match="more than once"):
        replace(RECORD, stores=(COMMIT, COMMIT))
    with pytest.raises(ValueError, match="length >= 1"):
        encode(replace(COMMIT, operator_uid=""))


def test_what_a_task_reports_is_what_the_next_one_opens(tmp_path: Path) -> None:
    """Through a record, and pickled on its way to the driver."""
    store, backend = StoreId("stream-1", "counts", "default", 0, 1), MemoryBackend()
    reported = pickle.loads(pickle.dumps(commit(backend, store, EMPTY)))
    log = CommitLog(open_files(tmp_path))
    log.commit(replace(RECORD, stores=(StoreCommit("counts", "default", "stable", (reported,)),)))
    (found,) = log.read(3000).stores
    assert found.store_id("stream-1", 0) == store
    assert backend.open(store, found.partitions[0].version_id).count() == reported.count
