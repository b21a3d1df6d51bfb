"""Stores are maintained when there is something to do, which the driver knows from commits."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest

from checkpoint import (
    CommitLog,
    CommitRecord,
    FileRef,
    LocalFiles,
    PartitionCommit,
    StoreCommit,
    open_files,
)
from checkpoint.state_store import (
    EMPTY,
    STORE_PREFIX,
    LmdbBackend,
    ReplicaMeta,
    SnapshotRule,
    StateStore,
    StoreId,
    VersionId,
)
from dstreams.common.settings import StateSettings
from dstreams.spark.state_version import StateVersion
from dstreams.state.state_versions import StateVersions
from dstreams.state.store_maintenance import (
    StoreUpkeep,
    delete_abandoned,
    moved_store,
    open_store,
)
from tests.support.stores import commit
from tests.support.temporary import PREFIX

RULE = SnapshotRule(min_changelogs=3, max_changelogs=6)


def uid(version: int) -> str:
    return f"{version:08x}"


def made(version: int, *sizes: int) -> StateVersion:
    """A version whose changelogs have these sizes, a partition each."""
    commits = tuple(
        PartitionCommit(
            number,
            VersionId(version, uid(version)),
            FileRef(f"p{number}/{version}", size, "0" * 32, 1),
            1,
        )
        for number, size in enumerate(sizes)
    )
    version_ids = tuple(VersionId(version, uid(version)) for _ in sizes)
    store_id = StoreId("stream-1", "counts", "default", 0, len(sizes))
    return StateVersion(store_id, "stable", version_ids, commits)


def snapshot(version: int, size_bytes: int) -> ReplicaMeta:
    """The progress of a replica just after a snapshot."""
    version_id = VersionId(version, uid(version))
    return ReplicaMeta(version_id, {}, version_id, size_bytes)


def test_a_new_state_is_due_by_its_changelogs() -> None:
    """The first snapshot is due after enough changelogs."""
    upkeep = StoreUpkeep(RULE, ask_every=100)
    due = []
    for version in range(1, 5):
        upkeep.made(made(version, 10, 10))
        due.append(upkeep.is_due())
    assert due == [False, False, True, True]


def test_the_next_one_is_due_when_changelogs_are_as_large() -> None:
    """As large as the last snapshot of a partition, or too many."""
    upkeep = StoreUpkeep(RULE, ask_every=100)
    upkeep.made(made(1, 10, 10))
    upkeep.done([snapshot(1, 1000), snapshot(1, 40)])
    due = []
    for version in range(2, 7):
        upkeep.made(made(version, 10, 10))
        due.append(upkeep.is_due())
    assert due == [False, False, False, True, True]
    upkeep.done([snapshot(6, 1000), snapshot(6, 1000)])
    due = []
    for version in range(7, 13):
        upkeep.made(made(version, 10, 10))
        due.append(upkeep.is_due())
    assert due == [False, False, False, False, False, True]


def test_what_an_earlier_run_has_left_is_asked_for() -> None:
    """Until the hosts have said where their copies stand."""
    upkeep = StoreUpkeep(RULE, ask_every=100)
    upkeep.made(made(8, 10, 10))
    assert upkeep.is_due()
    upkeep.done([snapshot(8, 1000), None])
    upkeep.made(made(9, 10, 10))
    assert upkeep.is_due()
    upkeep.done([snapshot(8, 1000).after(VersionId(9, uid(9)), {}, 10, None), snapshot(9, 1000)])
    upkeep.made(made(10, 10, 10))
    assert not upkeep.is_due()


def test_a_batch_that_made_nothing_of_what_is_known_is_asked_for() -> None:
    """As after a state that was restored meanwhile."""
    upkeep = StoreUpkeep(RULE, ask_every=100)
    upkeep.made(made(1, 10))
    upkeep.made(made(5, 10))
    assert upkeep.is_due()


def test_hosts_are_asked_now_and_then() -> None:
    """Only they know how large their copies have become."""
    upkeep = StoreUpkeep(RULE, ask_every=4)
    assert ReplicaMeta(EMPTY).changelogs == 0
    assert [upkeep.is_due() for _ in range(8)] == [False, False, False, True] * 2


def test_where_replicas_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas are below the temporary directory of each host, or in the directory of the setting.

    A stream with a scratch checkpoint deletes its own replicas.
    """
    files = open_files(tmp_path / "files")
    usual, said = (
        open_store(files, 1, StateSettings(state_local_directory=directory)).backend
        for directory in (None, str(tmp_path / "here"))
    )
    assert isinstance(usual, LmdbBackend)
    assert isinstance(said, LmdbBackend)
    assert os.path.dirname(usual.local_directory) == tempfile.gettempdir()
    assert PREFIX in usual.local_directory
    # A task on another host has its temporary files elsewhere; the copies are there.
    pickled = pickle.dumps((usual, said))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    usual_there, said_there = pickle.loads(pickled)
    assert os.path.dirname(usual_there.local_directory) == str(tmp_path / "elsewhere")
    assert said_there.local_directory == said.local_directory == str(tmp_path / "here")
    monkeypatch.undo()
    for stream in ("one", "two", "other"):
        with StateStore(said).writer(StoreId(stream, "o", "default", 0, 1), EMPTY) as writer:
            writer.put("a", 1)
            version_id = writer.commit().version_id
        said.open(StoreId(stream, "o", "default", 0, 1), version_id).close()
    spark: Any = None
    StateVersions(spark, StateStore(said), "one").close(is_scratch=True)
    assert sorted(os.listdir(tmp_path / "here")) == ["other", "two"]
    # In a temporary directory, a stopped stream deletes its replicas; a failed one keeps them.
    StateVersions(spark, StateStore(said), "two", is_local_temporary=True).close()
    StateVersions(spark, StateStore(said), "other").close(in_order=True)
    assert sorted(os.listdir(tmp_path / "here")) == ["other", "two"]
    StateVersions(spark, StateStore(said), "two", is_local_temporary=True).close(in_order=True)
    assert os.listdir(tmp_path / "here") == ["other"]


def test_replicas_that_nobody_uses(tmp_path: Path) -> None:
    """A driver that opens stores deletes replicas that were unused for a week, once."""
    left, found = tmp_path / "local" / "stream" / "boot", []
    for _ in range(2):
        left.mkdir(parents=True)
        for path in (left, left.parent):
            os.utime(path, (0, 0))
        settings = StateSettings(state_local_directory=str(tmp_path / "local"))
        open_store(open_files(tmp_path / "files"), 1, settings)
        found.append(left.exists())
    assert found == [False, True]


def test_what_no_record_names_is_deleted(tmp_path: Path) -> None:
    """Only moved state of earlier drivers is deleted, unless a record names a file of its store."""
    (tmp_path / "files").mkdir()
    files = LocalFiles(str(tmp_path / "files"))
    backend = LmdbBackend(files, str(tmp_path / "local"), 4)
    moved = [(2, 1000), (3, 1000), (3, 2000), (4, 2000)]
    names = ["default", *(moved_store(epoch, time_ms) for epoch, time_ms in moved)]
    made = {}
    for name in names:
        store = StoreId("stream-1", "counts", name, 0, 1)
        first = commit(backend, store, EMPTY)
        made[name] = commit(backend, store, first.version_id)
    for epoch, time_ms in ((2, 1000), (3, 2000)):
        name = moved_store(epoch, time_ms)
        stores = (StoreCommit("counts", name, "stable", (made[name],)),)
        CommitLog(files).commit(CommitRecord("stream-1", 1, time_ms, epoch, {}, {}, stores))
    assert delete_abandoned(files, 4) == 2
    assert delete_abandoned(files, 4) == 0
    kept = {name.split("/")[2] for name in files.list(STORE_PREFIX)}
    assert kept == {*names} - {moved_store(3, 1000)}
    assert len(files.list(STORE_PREFIX)) == 8
