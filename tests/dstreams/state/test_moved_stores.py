"""Stores that a restart has moved state into, and no record names: a later driver deletes them."""

from __future__ import annotations

from pathlib import Path

from checkpoint import CommitLog, CommitRecord, LocalFiles, StoreCommit
from checkpoint.log.version_records import EMPTY
from checkpoint.state_store import STORE_PREFIX, LmdbBackend, StoreId
from dstreams.state.moved_stores import delete_abandoned, moved_store
from tests.support.stores import commit


def test_what_no_record_names_is_deleted(tmp_path: Path) -> None:
    """Of earlier drivers, and of moved state alone; a store of which anything is named stays."""
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
