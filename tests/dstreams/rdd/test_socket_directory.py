"""Where the Unix sockets of workers are: nowhere, rather than where others can go."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from dstreams.rdd import socket_directory as module
from dstreams.rdd.context import UNIX_SOCKETS, tuned_settings
from dstreams.rdd.socket_directory import socket_directory


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
    """It is made once, and only its user can enter it, whatever the umask."""
    before = os.umask(0)
    try:
        made = socket_directory()
    finally:
        os.umask(before)
    assert made is not None
    assert Path(made).parent == short
    assert stat.S_IMODE(Path(made).stat().st_mode) == 0o700
    assert socket_directory() == made


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
    """Then workers talk over TCP, where PySpark asks a secret, and the log says what helps."""
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
    assert "set TMPDIR to a directory of a short path" in caplog.text
    assert list(short.iterdir()) == []
