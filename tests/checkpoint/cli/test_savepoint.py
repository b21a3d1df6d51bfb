"""export and import: a stream in one file, which resumes elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest

from checkpoint import (
    CheckpointError,
    Files,
    RecoveryPlan,
    StorageRefusedError,
    open_files,
    read_plan,
)
from checkpoint.cli import savepoint
from checkpoint.cli.savepoint import Archive, export_stream, import_stream, open_archive
from checkpoint.errors import UntrustedFileError
from checkpoint.storage.open_location import open_files as open_any
from tests.checkpoint.cli.conftest import Run
from tests.support.faults import FaultyFiles, SimulatedCrash
from tests.support.stream_model import STREAM, Driver, PausedFiles, World, require_right


def import_from(directory: Path, files: Files) -> RecoveryPlan:
    with open_archive(open_any(directory), "save") as archive:
        return import_stream(archive, files)


def test_a_stream_goes_on_from_a_file(run: Run, url: Path, tmp_path: Path, world: World) -> None:
    """The imported stream resumes with its state; the original is unchanged."""
    before = {path: path.read_bytes() for path in url.rglob("*.*") if path.is_file()}
    status, data, _ = run("export", url, tmp_path / "save")
    assert status == 0
    assert (data["stream"], data["last_ms"]) == (STREAM, 7000)
    assert data["bytes"] == (tmp_path / "save").stat().st_size
    assert (tmp_path / "save").stat().st_mode & 0o777 == 0o600
    shutil.move(url, tmp_path / "moved")
    status, data, _ = run("import", tmp_path / "save", tmp_path / "other")
    assert (status, data["last_ms"]) == (0, 7000)
    assert run("verify", tmp_path / "other")[1]["problems"] == []
    driver = Driver(open_files(tmp_path / "other" / STREAM), world)
    driver.run(9000)
    require_right(world, driver)
    moved = [path.read_bytes() for path in (tmp_path / "moved").rglob("*.*") if path.is_file()]
    assert sorted(moved) == sorted(before.values())


def test_a_stream_with_stores_and_inputs_goes_on(run: Run, stored: Path, tmp_path: Path) -> None:
    """The archive includes inputs and the batch in flight."""
    assert run("export", stored, tmp_path / "save")[0] == 0
    assert run("import", tmp_path / "save", tmp_path / "other")[0] == 0
    plan, other = read_plan(open_files(stored)), tmp_path / "other" / STREAM
    assert read_plan(open_files(other)) == plan
    assert run("read", other)[1] == run("read", stored)[1]
    names = {path.relative_to(stored) for path in stored.rglob("*.*") if path.is_file()}
    found = {path.relative_to(other) for path in other.rglob("*.*") if path.is_file()}
    assert {str(name) for name in names - found} == {"epochs/0000000001.released"}


def test_a_file_is_written_once(run: Run, url: Path, tmp_path: Path) -> None:
    """An existing file is not replaced, and the name must be valid."""
    assert run("export", url, tmp_path / "save")[0] == 0
    status, _, error = run("export", url, tmp_path / "save")
    assert status == 1
    assert "save exists already; give another name" in error
    assert run("export", url, tmp_path / "a name")[0] == 2
    assert run("import", tmp_path / "missing", tmp_path / "x")[0] == 2


def test_a_stream_that_is_there_is_left_alone(run: Run, url: Path, tmp_path: Path) -> None:
    """Importing into a location of the same stream is refused."""
    assert run("export", url, tmp_path / "save")[0] == 0
    status, _, error = run("import", tmp_path / "save", url)
    assert status == 2
    assert "has another stream; import into an empty location" in error


@pytest.mark.parametrize("at", [0, 30, 0.1, 0.2, 0.3, 0.4, 0.5])
def test_a_damaged_file_is_refused_before_anything_is_written(
    run: Run, url: Path, tmp_path: Path, at: float
) -> None:
    """Damaged content or damaged names of an archive are detected first."""
    save = tmp_path / "save"
    assert run("export", url, save)[0] == 0
    content = bytearray(save.read_bytes())
    content[int(at if at > 1 else at * (len(content) - 1))] ^= 16
    save.write_bytes(content)
    status, _, error = run("import", save, tmp_path / "other")
    assert status == 1
    assert str(save) in error
    assert not list((tmp_path / "other").rglob("*.*"))


@pytest.mark.parametrize("size", [0, 10, 0.3, 0.99])
def test_a_truncated_file_is_refused(run: Run, url: Path, tmp_path: Path, size: float) -> None:
    """An archive that was copied in part."""
    save = tmp_path / "save"
    assert run("export", url, save)[0] == 0
    os.truncate(save, int(size if size > 1 else size * save.stat().st_size))
    status, _, error = run("import", save, tmp_path / "other")
    assert status == 1
    assert f"{save} cannot be read as an export" in error
    assert not (tmp_path / "other").exists()


def test_an_archive_can_be_read_by_other_programs(run: Run, url: Path, tmp_path: Path) -> None:
    """An export is a zip archive with a manifest and the files of the stream."""
    assert run("export", url, tmp_path / "save")[0] == 0
    with zipfile.ZipFile(tmp_path / "save") as archive:
        assert archive.testzip() is None
        manifest = json.loads(archive.read("savepoint.json"))
        assert manifest == {"stream_id": STREAM, "last_ms": 7000}
        for name in set(archive.namelist()) - {"savepoint.json"}:
            assert archive.read(name) == (url / STREAM / name).read_bytes()


@pytest.mark.parametrize(
    "pattern",
    ["state/sums/0000000000006000-p00001-*", "batches/*6000-e2.begin", "commits/*6000-e2.commit"],
)
@pytest.mark.parametrize("is_lost", [False, True], ids=["damaged", "lost"])
def test_of_a_damaged_stream_there_is_no_export(
    run: Run, url: Path, tmp_path: Path, pattern: str, is_lost: bool
) -> None:
    """Exporting a damaged stream names the file, and writes nothing."""
    (path,) = (url / STREAM).glob(pattern)
    if is_lost:
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 1)
    status, _, error = run("export", url, tmp_path / "save")
    assert status == 1
    assert str(path) in error
    assert not (tmp_path / "save").exists()


def test_an_export_of_a_damaged_stream_is_refused(
    run: Run, url: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing an archive of a damaged stream names the damage, and writes nothing."""
    (path,) = (url / STREAM).glob("state/sums/0000000000006000-p00001-*")
    os.truncate(path, path.stat().st_size - 1)
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "verify", lambda *_: None)
        assert run("export", url, tmp_path / "save")[0] == 0
    status, _, error = run("import", tmp_path / "save", tmp_path / "new" / "other")
    assert status == 1
    assert f"{path.name} ends after" in error
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("pattern", ["state/sums/*6000-p00001-*", "commits/*6000*", "epochs/*2.c*"])
def test_what_is_damaged_while_it_is_exported(
    run: Run, url: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """The written archive is verified: the export fails, and no file is left."""
    (path,) = (url / STREAM).glob(pattern)
    needed = savepoint.needed_files

    def then_damage(*arguments: Any) -> list[str]:
        names = needed(*arguments)
        os.truncate(path, path.stat().st_size - 1)
        return names

    monkeypatch.setattr(savepoint, "needed_files", then_damage)
    status, _, error = run("export", url, tmp_path / "save")
    assert status == 1
    assert f"{path} ends after" in error
    assert list(tmp_path.glob("*save*")) == list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("error", [StorageRefusedError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [1, 5, 20, 40])
def test_a_failed_import_leaves_nothing(
    run: Run, url: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, error: Any
) -> None:
    """After any error the files of the import are deleted, and older ones are kept."""
    assert run("export", url, tmp_path / "save")[0] == 0
    (tmp_path / "other").mkdir(mode=0o700)
    real = savepoint.open_files

    def failing(where: str) -> FaultyFiles:
        return FaultyFiles(real(where), at, error=lambda *_: error)

    monkeypatch.setattr(savepoint, "open_files", failing)
    status, _, said = run("import", tmp_path / "save", tmp_path / "other")
    assert status == (130 if isinstance(error, KeyboardInterrupt) else 1), said
    assert list((tmp_path / "other").iterdir()) == []
    monkeypatch.undo()
    assert run("import", tmp_path / "save", tmp_path / "other")[0] == 0


@pytest.mark.deep
@pytest.mark.parametrize("at", range(1, 160, 3))
def test_an_export_beside_a_driver_is_one_that_can_be_imported(tmp_path: Path, at: int) -> None:
    """An export alongside a running driver is consistent, or is repeated."""
    stream = open_files(tmp_path / "checkpoint" / STREAM)
    world = World()
    driver = Driver(stream, world)
    driver.run(7000)
    paused = PausedFiles(stream, at, lambda: driver.run(driver.time_ms + 4000))
    export_stream(cast("Files", paused), open_any(tmp_path), "save")
    plan = import_from(tmp_path, open_files(tmp_path / "other" / STREAM))
    assert plan.last_ms in (7000, 11000)
    Driver(open_files(tmp_path / "other" / STREAM), World())


def test_an_export_that_a_driver_is_always_ahead_of(tmp_path: Path) -> None:
    """The export fails with a remedy, and leaves no file."""
    stream = open_files(tmp_path / "checkpoint" / STREAM)
    driver = Driver(stream, World())
    driver.run(7000)

    def run_on() -> None:
        driver.run(driver.time_ms + 6000)
        paused.at = paused.count + 20

    paused = PausedFiles(stream, 20, run_on)
    with pytest.raises(CheckpointError):
        export_stream(cast("Files", paused), open_any(tmp_path), "save")
    assert not (tmp_path / "save").exists()


@pytest.mark.parametrize("at", range(1, 120, 7))
def test_an_import_that_was_cut_off_goes_on(run: Run, url: Path, tmp_path: Path, at: int) -> None:
    """A second import completes an interrupted one."""
    assert run("export", url, tmp_path / "save")[0] == 0
    files = open_files(tmp_path / "other" / STREAM)
    try:
        import_from(tmp_path, FaultyFiles(files, at))
    except SimulatedCrash:
        if files.list("epochs/0000000003"):
            return  # it was done but for the last word
        import_from(tmp_path, files)
    world = World()
    driver = Driver(files, world)
    assert driver.time_ms == 7000


def test_a_file_that_others_can_write_is_imported_only_when_asked_to(
    run: Run, url: Path, tmp_path: Path
) -> None:
    """Mode, owner and directories of the archive are checked, as its code will run."""
    save = tmp_path / "save"
    assert run("export", url, save)[0] == 0
    for path, mode in ((save, 0o666), (save, 0o660), (tmp_path, 0o777)):
        before = path.stat().st_mode & 0o7777
        path.chmod(mode)
        status, _, error = run("import", save, tmp_path / "other")
        assert status == 2
        assert f"{path} can be written by others (mode {mode:04o})" in error
        assert "import it with --trust" in error
        assert not (tmp_path / "other").exists()
        path.chmod(before)
    save.chmod(0o666)
    assert run("import", save, tmp_path / "other", "--trust")[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_imported_only_when_asked_to(
    run: Run, url: Path, tmp_path: Path
) -> None:
    """The owner can write the file, whatever its mode."""
    save = tmp_path / "save"
    assert run("export", url, save)[0] == 0
    os.chown(save, 12345, -1)
    status, _, error = run("import", save, tmp_path / "other")
    assert status == 2
    assert "save belongs to user id 12345" in error
    assert run("import", save, tmp_path / "other", "--trust")[0] == 0


def test_a_signed_file_is_imported_under_any_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signed archive is trusted whoever can write it, and may be renamed."""
    monkeypatch.setenv("CHECKPOINT_KEY", "a key of more than sixteen bytes")
    Driver(open_files(tmp_path / "signed" / STREAM), World()).run(4000)
    assert run("export", tmp_path / "signed", tmp_path / "save")[0] == 0
    renamed = (tmp_path / "save").rename(tmp_path / "save-monday")
    renamed.chmod(0o666)
    assert run("import", renamed, tmp_path / "other")[0] == 0
    [graph] = (tmp_path / "signed" / STREAM / "graph").iterdir()
    shutil.copy(graph, tmp_path / "graph")
    shutil.copy(renamed, graph)
    with pytest.raises(UntrustedFileError, match="forged, or was moved"):
        open_files(tmp_path / "signed" / STREAM).read(f"graph/{graph.name}")
    status, _, error = run("import", tmp_path / "graph", tmp_path / "more")
    assert status == 1
    assert "forged, or was moved" in error


def test_an_unsigned_file_is_imported_into_a_signed_checkpoint_only_when_asked_to(
    run: Run, url: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is signed on import; an existing signature is always verified."""
    save = tmp_path / "save"
    assert run("export", url, save)[0] == 0
    monkeypatch.setenv("CHECKPOINT_KEY", "a key of more than sixteen bytes")
    status, _, error = run("import", save, tmp_path / "other")
    assert status == 1
    assert "save is not signed" in error
    assert run("import", save, tmp_path / "other", "--trust")[0] == 0
    assert run("export", tmp_path / "other", tmp_path / "signed")[0] == 0
    content = bytearray((tmp_path / "signed").read_bytes())
    content[100] ^= 1
    (tmp_path / "signed").write_bytes(content)
    assert run("import", tmp_path / "signed", tmp_path / "more", "--trust")[0] == 1
