"""Preflight: missing state is detected before anything runs; small files are read completely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoint import (
    BeginRecord,
    CommitRecord,
    CorruptCheckpointError,
    DriverProcess,
    Files,
    GraphSnapshot,
    OperatorSnapshot,
    StateFileId,
    open_files,
    read_plan,
    take_over,
    write_state_file,
)
from checkpoint.log.batch_records import StoreCommit
from checkpoint.state_store import (
    EMPTY,
    DataValues,
    LmdbBackend,
    SnapshotRule,
    StateStore,
    StoreId,
    preflight,
    require_rdds,
    require_stored_state,
)
from checkpoint.state_store.maintenance import snapshot_if_due
from checkpoint.storage.files import PrefixedFiles

pytestmark = pytest.mark.usefixtures("no_sync")

STREAM = "stream-1"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A stream with a snapshot of one state, and five versions of another with two snapshots."""
    files = open_files(tmp_path / "stream")
    (tmp_path / "local").mkdir(mode=0o700)
    backend = LmdbBackend(files, str(tmp_path / "local"), 1)
    store, store_id = StateStore(backend, DataValues()), StoreId(STREAM, "counts", "default", 0, 1)
    owned = take_over(files, STREAM, DriverProcess.of_this_process(0))
    commits, version_id = owned.commits, EMPTY
    for number in range(5):
        with store.writer(store_id, version_id) as writer:
            writer.put("a", number)
            committed = writer.commit()
        version_id = committed.version_id
        if number == 1:
            snapshot_if_due(backend, store_id, version_id, SnapshotRule(1, 1))
        stores = (StoreCommit("counts", "default", "stable", (committed,)),)
        copies = {"sums": copied(files, 1000 * (number + 1))} if number == 3 else {}
        record = CommitRecord(STREAM, number, 1000 * (number + 1), 1, copies, {}, stores)
        owned.begins.begin(BeginRecord(STREAM, number, record.batch_time_ms, 1, {}))
        commits.commit(record)
    return files


def copied(files: Files, time_ms: int) -> OperatorSnapshot:
    file_id = StateFileId(STREAM, "sums", time_ms, 0, 1, "stable", 1, "one")
    return OperatorSnapshot("stable", (write_state_file(files, file_id, [(b"payload", 1)]),))


def lose(path: Path) -> None:
    path.unlink()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("pattern", "damage", "said"),
    [
        ("state/sums/*.state", lose, "is missing"),
        ("state/sums/*.state", flip, "is damaged"),
        ("stores/**/*5-*.changes", lose, "is missing; .* led to version 5, from version 3 on"),
        ("stores/**/*5-*.changes", flip, "is damaged"),
        ("stores/**/*4-*.changes", lose, "is missing; .* led to version 5, from version 3 on"),
    ],
)
def test_state_that_is_not_what_it_was_is_refused(
    files: Files, tmp_path: Path, pattern: str, damage: Callable[[Path], None], said: str
) -> None:
    """The error names the file; the state of removed operators is not checked."""
    plan = read_plan(files)
    require_stored_state(files, plan)
    (path,) = (tmp_path / "stream").glob(pattern)
    damage(path)
    with pytest.raises(CorruptCheckpointError, match=said):
        require_stored_state(files, plan)
    require_stored_state(files, plan, ())


def test_what_is_before_a_snapshot_is_not_needed(files: Files, tmp_path: Path) -> None:
    """Neither is a snapshot if all changelogs exist."""
    plan = read_plan(files)
    (first,) = (tmp_path / "stream").glob("stores/**/*1-*.changes")
    content = first.read_bytes()
    first.unlink()
    require_stored_state(files, plan)
    first.write_bytes(content)
    (snapshot,) = (tmp_path / "stream").glob("stores/**/*.snapshot")
    snapshot.unlink()
    require_stored_state(files, plan)


def test_of_large_files_the_tasks_read_the_rest(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large files only the header is read."""
    monkeypatch.setattr(preflight.ReadBudget.__init__, "__defaults__", (10,))
    plan = read_plan(files)
    (path,) = (tmp_path / "stream").glob("state/sums/*.state")
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    require_stored_state(files, plan)
    path.write_bytes(content[:20])
    with pytest.raises(CorruptCheckpointError, match="ends after 20 bytes"):
        require_stored_state(files, plan)


def test_the_rdds_of_a_graph_are_there(files: Files, tmp_path: Path) -> None:
    """The RDDs in the description of the graph are checked."""
    file_id = StateFileId(STREAM, "rdd-0", 0, 0, 1, "none", 1, "one")
    ref = write_state_file(PrefixedFiles(files, "rdds"), file_id, [(b"payload", 0)])
    graph = GraphSnapshot(STREAM, 0, 1, {"rdds": {"rdd-0": [ref]}}, b"")
    require_rdds(files, graph)
    require_rdds(files, replace(graph, description={}))
    flip(tmp_path / "stream" / "rdds" / ref.name)
    with pytest.raises(CorruptCheckpointError, match=r"-p00000-e1-one\.state"):
        require_rdds(files, graph)
