"""The directory of the Unix sockets of workers: none if it cannot be private."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from dstreams.spark import socket_directory as module
from dstreams.spark.socket_directory import socket_directory
from dstreams.spark.spark_context import UNIX_SOCKETS, tuned_settings


@pytest.fixture(autouse=True)
def _of_this_test(short: Path) -> Iterator[None]:
    module._directory_of.cache_clear()
    yield
    shutil.rmtree(socket_directory() or "", ignore_errors=True)
    module._directory_of.cache_clear()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=module._SHORT) as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def test_one_for_a_process(short: Path) -> None:
    """It is created once, and is private with any umask."""
    before = os.umask(0)
    try:
        made = socket_directory()
    finally:
        os.umask(before)
    assert made is not None
    assert Path(made).parent == short
    assert stat.S_IMODE(Path(made).stat().st_mode) == 0o700
    assert socket_directory() == made


def test_what_a_killed_driver_left_is_removed(short: Path) -> None:
    """Not what a living process has, what others may write to, and what is more than sockets."""
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    dead, living = int(done.stdout), os.getppid()

    def left(name: str, mode: int = 0o700) -> Path:
        path = short / name
        path.mkdir()
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path / "a.sock"))
        path.chmod(mode)
        return path

    gone = left(f"ds-{dead}-abcdefgh")
    kept = [left(f"ds-{living}-abcdefgh"), left(f"ds-{dead}-ijklmnop", 0o755), left("ds-abcdefgh"),
            left(f"ds-{dead}-toolonganame"), left(f"ds-{dead}-12345678")]  # fmt: skip
    (kept[-1] / "data").write_text("x")
    (short / f"ds-{dead}-00000000").symlink_to(kept[0])
    locked = left(f"ds-{dead}-abcd1234")
    held = module._hold(str(locked))
    assert held is not None
    kept.append(locked)
    made = socket_directory()
    os.close(held)
    assert made is not None
    assert not gone.exists()
    assert all((path / "a.sock").exists() for path in kept)
    assert (short / f"ds-{dead}-00000000").is_symlink()


def test_a_long_path_is_left_for_a_short_one(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a socket has 103 bytes at most."""
    long = short / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    made = socket_directory()
    assert made is not None
    assert Path(made).parent == Path(module._SHORT)
    assert list(long.iterdir()) == []


def test_where_others_can_put_another_in_its_place_there_is_none(
    short: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers use authenticated TCP connections instead, and the log has the remedy."""
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    short.chmod(0o777)
    make, seen = tempfile.mkdtemp, []

    def only_here(prefix: str, dir: str) -> str:
        seen.append(dir)
        if dir != str(short):
            raise PermissionError(13, "no")
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", only_here)
    assert tuned_settings("local[2]")[UNIX_SOCKETS] == "false"
    assert seen == [str(short), module._SHORT]
    assert "set TMPDIR to a directory with a short path" in caplog.text
    assert list(short.iterdir()) == []
