"""Stored state in commit records: what is named, and what cannot be."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from checkpoint import (
    CommitLog,
    CommitRecord,
    ConcurrentWriterError,
    CorruptCheckpointError,
    StoreCommit,
    StoredPartition,
    open_files,
)
from checkpoint.framing import FileKind, read_frames, write_frames
from checkpoint.json_fields import dump_json, load_json
from checkpoint.state_store.commits import reference_of, store_id, stored_partition
from checkpoint.state_store.memory import MemoryBases
from checkpoint.state_store.reference import EMPTY, Reference, StoreId
from tests.support.stores import commit

UID = "00000001" + "ab" * 8


def stored(partition: int, version: int = 3, **other: object) -> StoredPartition:
    facts = {
        "partition": partition,
        "version": version,
        "uid": UID,
        "file": f"stores/a/b/p{partition:05d}/{version:016d}-{UID}.changes",
        "size_bytes": 100,
        "digest": "0" * 32,
        "count": 5,
        **other,
    }
    return StoredPartition(**facts)  # type: ignore[arg-type]


NOTHING = StoredPartition(2, 0, "", "", 0, "", 0)
COMMIT = StoreCommit("counts", "default", "stable", (stored(1), NOTHING, stored(0)))
RECORD = CommitRecord("stream-1", 3, 3000, 1, {}, {}, (COMMIT,))


def test_a_record_names_contents_and_files(tmp_path: Path) -> None:
    """What is written is read: partitions in order, those that are empty without a file."""
    log = CommitLog(open_files(tmp_path))
    other = dataclasses.replace(COMMIT, store="another", partitions=())
    record = dataclasses.replace(RECORD, stores=(COMMIT, other))
    log.commit(record)
    found = log.read(3000)
    assert found == record.after(None)
    assert [commit.store for commit in found.stores] == ["another", "default"]
    assert [part.partition for part in found.stores[1].partitions] == [0, 1, 2]
    assert found.file_names() == {stored(0).file, stored(1).file}


def test_another_content_for_the_same_batch_is_another_driver(tmp_path: Path) -> None:
    """The first record stands; committing it again is fine."""
    log = CommitLog(open_files(tmp_path))
    log.commit(RECORD)
    log.commit(RECORD)
    partitions = (stored(0), stored(1, uid="00000002" + "cd" * 8), NOTHING)
    rival = dataclasses.replace(
        RECORD, stores=(dataclasses.replace(COMMIT, partitions=partitions),)
    )
    with pytest.raises(ConcurrentWriterError):
        CommitLog(log.files).commit(rival)
    assert log.latest() == RECORD


def payload(path: Path) -> dict[str, object]:
    [file] = (path / "commits").iterdir()
    frames = read_frames([file.read_bytes()], FileKind.COMMIT, "record")
    return load_json(b"".join(data for data, _ in frames.blocks))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 4}, "is a record in format 4; expected format 3; read this checkpoint"),
        ({"format": "3"}, "field 'format' must be an integer"),
        ({"stores": {}}, "field 'stores' must be a list"),
        ({"stores": [[]]}, "store must be an object"),
        ({"stores": [{"operator_uid": "a", "store": "b", "partitioner": "c"}]}, "'partitions'"),
    ],
)
def test_a_record_of_another_shape_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """A record of a later format is not half understood."""
    files = open_files(tmp_path)
    CommitLog(files).commit(RECORD)
    changed = dump_json({**payload(tmp_path), **change})
    name = "commits/0000000000003000-e1.commit"
    files.delete(name)
    files.create(name, write_frames(FileKind.COMMIT, {}, [(changed, 1)]))
    with pytest.raises(CorruptCheckpointError, match=re.escape(message)):
        CommitLog(files).read(3000)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"size_bytes": -1}, "no negative number"),
        ({"uid": "../x"}, "uid of 8 to 64"),
        ({"digest": "xyz"}, "must be 32"),
        ({"file": "../x"}, "file name"),
        ({"version": 0}, "version 0 of stored state is empty"),
    ],
)
def test_impossible_partitions_are_refused(facts: dict[str, object], message: str) -> None:
    """When they are made, on the driver, before a record names them."""
    with pytest.raises(ValueError, match=message):
        stored(**{"partition": 0, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ((stored(0), stored(2)), r"each partition from 0 on once, got \[0, 2\]"),
        ((stored(0), stored(0)), r"got \[0, 0\]"),
        ((stored(0), stored(1, file=stored(0).file)), "more than one partition"),
    ],
)
def test_a_commit_has_each_partition_once(
    partitions: tuple[StoredPartition, ...], message: str
) -> None:
    """And no two of them in one file."""
    with pytest.raises(ValueError, match=message):
        StoreCommit("counts", "default", "stable", partitions)


def test_a_store_is_named_once() -> None:
    """Two entries for one store would be two truths."""
    with pytest.raises(ValueError, match="more than once"):
        dataclasses.replace(RECORD, stores=(COMMIT, COMMIT))
    with pytest.raises(ValueError, match="must not be empty"):
        dataclasses.replace(COMMIT, operator_uid="")


def test_what_a_task_reports_is_what_the_next_one_opens() -> None:
    """From the report to the record and back to the reference."""
    store = StoreId("stream-1", "counts", "default", 1, 3)
    committed = dataclasses.replace(
        commit(MemoryBases(), store, EMPTY), file="stores/x", digest="0" * 32, size_bytes=9
    )
    found = stored_partition(committed)
    assert reference_of(found) == committed.reference
    assert (found.partition, found.count, found.file) == (1, committed.count, "stores/x")
    assert reference_of(NOTHING) == Reference(0, "")
    assert store_id("stream-1", COMMIT, 1) == store
