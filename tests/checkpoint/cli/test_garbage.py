"""gc: obsolete files are deleted, and no others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from checkpoint import open_files
from checkpoint.storage import hdfs_files
from tests.checkpoint.cli.conftest import Run
from tests.support.hdfs import Hdfs
from tests.support.stream_model import STREAM, Driver, World, require_right


def leave_orphans(root: Path) -> list[Path]:
    """Create files as dead attempts leave them behind."""
    state = next(root.glob("state/sums/0000000000006000-p00000-*"))
    orphan = state.with_name(f"{state.name[:-6]}-dead.state")
    shutil.copy(state, orphan)
    temporary = root / "commits" / ".0123456789abcdef.tmp"
    temporary.write_bytes(b"half")
    return [orphan, temporary]


def test_orphans_are_deleted_and_nothing_else(run: Run, url: Path, world: World) -> None:
    """The stream resumes as if the orphans had never existed."""
    before = {path for path in url.rglob("*") if path.is_file()}
    orphans = leave_orphans(url / STREAM)
    status, data, _ = run("gc", url, "--dry-run")
    assert (status, len(data["files"]), data["done"]) == (0, 2, False)
    assert all(path.exists() for path in orphans)
    status, lines, _ = run("gc", url, as_json=False)
    assert (status, lines[-1]) == (0, "2 files deleted")
    assert {path for path in url.rglob("*") if path.is_file()} == before
    driver = Driver(open_files(url / STREAM), world)
    driver.run(9000)
    require_right(world, driver)


@pytest.mark.deep
def test_temporary_files_on_hdfs_are_deleted(hdfs: Hdfs, run: Run, world: World) -> None:
    """A killed writer leaves a hidden file, which is deleted as on a local disk."""
    url = hdfs.new_url()
    files = open_files(f"{url}/{STREAM}")
    assert isinstance(files, hdfs_files.HdfsFiles)
    Driver(files, world).run(3000)
    before = files.list("")
    temporary, _, _ = files._write(f"{files._root}/commits/one", [b"half"], "")
    assert run("gc", url, "--dry-run")[1]["files"] == [f"{hdfs.uri}{temporary}"]
    assert files.temporary() == [temporary.removeprefix(f"{files._root}/")]
    assert run("gc", url)[0] == 0
    assert (files.temporary(), files.list("")) == ([], before)


def test_void_records_go_on_demand(run: Run, url: Path) -> None:
    """--void deletes void records and their files; then the rewind cannot be undone."""
    assert run("rewind", url, "--to", 5000)[0] == 0
    assert run("gc", url)[1]["files"] == []
    deleted = run("gc", url, "--void")[1]["files"]
    assert sum("/commits/" in name for name in deleted) == 2
    assert sum("/state/" in name for name in deleted) == 4
    assert sum("/batches/" in name for name in deleted) == 0
    assert run("verify", url)[1] | {"checked_files": 0, "url": ""} == {
        "problems": [], "notes": [], "checked_files": 0, "url": ""
    }  # fmt: skip
    assert run("rewind", url, "--to", 7000)[0] == 2


def test_rdds_of_no_graph_are_deleted(run: Run, url: Path) -> None:
    """RDDs of failed starts are deleted, other RDDs only together with their graphs."""
    state = next((url / STREAM).glob("state/sums/*"))
    rdds = {epoch: url / STREAM / f"rdds/state/rdd-0/{0:016d}-p00000-e{epoch}-x.state"
            for epoch in (1, 2, 3)}  # fmt: skip
    rdds[1].parent.mkdir(parents=True)
    for path in rdds.values():
        shutil.copy(state, path)
    graphs = {int(path.stem.rpartition("-e")[2]) for path in (url / STREAM).glob("graph/*")}
    assert run("gc", url)[0] == 0
    left = {epoch for epoch, path in rdds.items() if path.exists()}
    assert left == {epoch for epoch in rdds if epoch in graphs or epoch > 2}


def test_orphans_of_stores_are_deleted(run: Run, stored: Path) -> None:
    """Changelogs of uncommitted attempts are deleted, except before the oldest record."""
    named = next(stored.glob("stores/sessions/default/p00000/0000000000000003-*.changes"))
    orphan = named.with_name("0000000000000003-00000001" + "ab" * 8 + ".changes")
    shutil.copy(named, orphan)
    foreign = named.with_name("0000000000000003-00000009" + "ab" * 8 + ".changes")
    shutil.copy(named, foreign)
    assert [Path(name).name for name in run("gc", stored)[1]["files"]] == [orphan.name]
    foreign.unlink()
    assert run("verify", stored)[1]["problems"] == []


def test_abandoned_streams_go_on_demand(run: Run, url: Path) -> None:
    """--other-streams deletes all streams but the newest one that can resume."""
    newer = "stream-9000-00000002"
    driver = Driver(open_files(url / newer), World())
    driver.owned.lease.release()
    assert run("gc", url)[1]["files"] == []
    assert run("gc", url, "--other-streams")[0] == 0
    assert [each["stream"] for each in run("list", url)[1]["streams"]] == [newer]
    assert run("gc", url / newer, "--other-streams")[0] == 2


def test_of_a_damaged_stream_nothing_is_deleted(run: Run, url: Path) -> None:
    """Nothing is deleted of a damaged stream, as a repair might need it."""
    leave_orphans(url / STREAM)
    (url / STREAM / "commits" / "0000000000007000-e2.commit").write_bytes(b"")
    before = sorted(url.rglob("*"))
    assert run("gc", url)[0] == 1
    assert sorted(url.rglob("*")) == before
