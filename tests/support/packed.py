"""An environment with this checkout, and its archive by ``dstreams pack``: made once a run."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PARTS = ("checkpoint", "dstreams", "setup.cfg", "pyproject.toml", "README.md", "CHANGELOG.md")
_LIMIT_S = 600


def packed_environment() -> Path:
    """Return the archive of an environment; the first of all processes that asks makes it.

    It has dstreams and what it requires, in the versions that are installed here.
    """
    directory = Path(tempfile.gettempdir(), "packed")
    directory.mkdir(exist_ok=True)
    archive = directory / "environment.tar.gz"
    with (directory / "turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not archive.exists():
            home = directory / "environment"
            shutil.rmtree(home, ignore_errors=True)
            make_environment(home)
            _run(home / "bin" / "dstreams", "pack", archive)
    return archive


def make_environment(home: Path, python: str = sys.executable) -> None:
    """Install this checkout, not editable, to a new environment; skip without uv."""
    pytest.importorskip("build", reason="pip install -e '.[test]'")
    uv = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
    if uv is None:
        pytest.skip("this test needs uv; pip install uv")
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "source")
        source.mkdir()
        for name in _PARTS:  # a build leaves files beside its sources
            copy = shutil.copytree if (_ROOT / name).is_dir() else shutil.copyfile
            copy(_ROOT / name, source / name)
        _run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", directory, source)
        (wheel,) = Path(directory).glob("*.whl")
        here = _run(uv, "pip", "freeze", "--python", sys.executable).splitlines()
        versions = Path(directory, "versions.txt")
        versions.write_text("\n".join(line for line in here if "==" in line))
        _run(uv, "venv", "--python", python, home)
        install = (uv, "pip", "install", "--python", home / "bin" / "python")
        install = (*install, "--constraint", versions, f"dstreams[hdfs] @ {wheel.as_uri()}")
        # Most often the cache of uv has everything, and it need not build PySpark again.
        if _started(*install, "--offline").returncode != 0:
            _run(*install)


def _run(*command: object) -> str:
    done = _started(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _started(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
