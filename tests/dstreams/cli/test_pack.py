"""The command ``dstreams pack``: what it refuses, and an archive that works elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from dstreams.cli import pack
from dstreams.cli.main import main
from tests.support.packed import packed_environment


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that stands for the packages of this environment."""
    found = tmp_path / "site-packages"
    found.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(found))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return found


def refusal(capsys: pytest.CaptureFixture[str], archive: Path) -> str:
    """Return the error of a command that is not ready, and leaves nothing behind."""
    before = set(archive.parent.iterdir()) if archive.parent.exists() else None
    assert main(["pack", str(archive)]) == 3
    assert before == (set(archive.parent.iterdir()) if archive.parent.exists() else None)
    return capsys.readouterr().err


@pytest.mark.usefixtures("packages")
def test_another_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An archive is made on Linux."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "an archive for Linux is made on Linux, got darwin" in refusal(
        capsys, tmp_path / "environment.tar.gz"
    )


@pytest.mark.usefixtures("packages")
def test_no_virtual_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python of the system has packages of others, so an environment is asked for."""
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    said = refusal(capsys, tmp_path / "environment.tar.gz")
    assert f"{sys.executable} is not in a virtual environment; make one" in said


@pytest.mark.usefixtures("packages")
def test_conda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An environment of conda has a tool of its own."""
    (tmp_path / "conda-meta").mkdir()
    said = refusal(capsys, tmp_path / "environment.tar.gz")
    assert f"{tmp_path} is an environment of conda" in said
    assert "run conda-pack -o environment.tar.gz" in said


def test_editable(packages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of editable packages are elsewhere; those of a directory that was copied are not."""
    for name, origin in (
        ("clicks", {"url": "file:///src/clicks", "dir_info": {"editable": True}}),
        ("copied", {"url": "file:///src/copied", "dir_info": {}}),
        ("fetched", {"url": "https://example.org/fetched.whl", "archive_info": {}}),
    ):
        home = packages / f"{name}-1.dist-info"
        home.mkdir()
        (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (home / "direct_url.json").write_text(json.dumps(origin))
    said = refusal(capsys, tmp_path / "environment.tar.gz")
    assert f"clicks in {tmp_path}: installed as editable (pip install -e)" in said
    assert said.rstrip().endswith("install without -e")


@pytest.mark.usefixtures("packages")
def test_a_directory_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused before anything is copied."""
    archive = tmp_path / "absent" / "environment.tar.gz"
    said = refusal(capsys, archive)
    assert f"{archive}: cannot be written: No such file or directory; choose a directory" in said


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'no module named lmdb' >&2; exit 1", "no module named lmdb"),
        ("echo /usr", "it uses /usr in place of its own files"),
    ],
)
@pytest.mark.usefixtures("packages")
def test_a_copy_that_does_not_work(
    script: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is written, and an earlier archive stays."""

    def copy(root: Path, _: object) -> None:
        (root / "bin").mkdir(parents=True)
        python = root / "bin" / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)

    monkeypatch.setattr(pack, "_copy", copy)
    archive = tmp_path / "environment.tar.gz"
    archive.write_text("an earlier one")
    assert f"{tmp_path}: cannot run dstreams when copied: {words}" in refusal(capsys, archive)
    assert archive.read_text() == "an earlier one"


def test_another_ending(capsys: pytest.CaptureFixture[str]) -> None:
    """Spark unpacks a file by the ending of its name."""
    with pytest.raises(SystemExit):
        main(["pack", "environment.zip"])
    assert "'environment.zip' must end with .tar.gz or .tgz" in capsys.readouterr().err


def test_what_is_left_out(tmp_path: Path) -> None:
    """Patterns are of paths below the packages; files that were compiled are never taken."""
    for name in (
        "pyspark/jars/spark.jar",
        "pyspark/rdd.py",
        "pyspark/__pycache__/rdd.pyc",
        "polars/__init__.py",
        "polars_runtime/polars.so",
        "mine/pip/__init__.py",
        "mine/polars.py",
        "pip/__init__.py",
    ):
        (tmp_path / "from" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "from" / name).touch()
    exclude = (*pack._NOT_OF_PACKAGES, "polars*")
    pack._copy_tree(tmp_path / "from", tmp_path / "to", exclude)
    found = [path.relative_to(tmp_path / "to") for path in tmp_path.glob("to/**/*.*")]
    assert sorted(map(str, found)) == ["mine/pip/__init__.py", "mine/polars.py", "pyspark/rdd.py"]


LOADED = """
import json, sys
import dstreams, checkpoint, pyspark, lmdb, msgspec, zstandard, ssl, sqlite3, ctypes
maps = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "/" in line}
files = {vars(module).get("__file__") for module in list(sys.modules.values())}
print(json.dumps([sys.prefix, sys.base_prefix, sys.path, sorted(maps), sorted(files - {None})]))
"""


@pytest.mark.deep
def test_an_archive_runs_elsewhere(tmp_path: Path) -> None:
    """Nothing of Python is loaded from outside of the directory where it is unpacked."""
    home = tmp_path / "unpacked"
    home.mkdir()
    subprocess.run(["tar", "-xzf", packed_environment(), "-C", home], check=True)
    assert [*home.rglob("*.jar"), *home.rglob("*.pyc")] == []
    (tmp_path / "environment").symlink_to(home)  # as Spark does
    done = subprocess.run(
        ["environment/bin/python", "-c", LOADED],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    prefix, base_prefix, path, maps, files = json.loads(done.stdout)
    assert prefix == base_prefix == str(home)
    assert [one for one in (*path[1:], *files) if not one.startswith(prefix)] == []
    outside = [one for one in maps if not one.startswith(prefix)]
    assert [one for one in outside if "python" in one or not one.startswith(("/usr", "/lib"))] == []
