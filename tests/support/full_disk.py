"""A disk that really is full, or read-only: a small file system of its own in memory."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CHUNK = bytes(1 << 16)


class SmallDisk:
    """A mounted file system.

    Args:
        path: where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Leave not one byte."""
        with self._ballast.open("wb", buffering=0) as ballast:
            size = len(_CHUNK)
            while size:
                try:
                    ballast.write(_CHUNK[:size])
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def refuse_writes(self) -> None:
        """Let it be read-only."""
        _run("mount", "-o", "remount,ro", str(self.path))

    def recover(self) -> None:
        """Undo both."""
        _run("mount", "-o", "remount,rw", str(self.path))
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, size_mb: int = 32) -> Iterator[SmallDisk]:
    """Mount one at *path*; skips the test where nobody may mount."""
    if shutil.which("mount") is None:
        pytest.skip("there is no mount on this machine")
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "small-disk", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"this user may not mount a file system: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
