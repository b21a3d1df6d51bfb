"""Killed writers: the last committed versions always open."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint import CommitLog, open_files
from checkpoint.state_store.lmdb_backend import LmdbBackend, LocalSettings
from tests.support.replicas import close_unused
from tests.support.stores import named, require_open, store_of

STORES = (store_of(0, 2), store_of(1, 2))
ROOT = Path(__file__).parents[3]
WRITER = Path(__file__).with_name("state_writer.py")


@contextlib.contextmanager
def writer(path: Path, epoch: int) -> Iterator[subprocess.Popen[str]]:
    """Run a writer, and kill it at the end."""
    command = [sys.executable, str(WRITER), str(path / "files"), str(path / "local"), str(epoch)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def kill_at_random(path: Path, epoch: int, rng: random.Random) -> int:
    """Kill a writer at a random place, and return the last time that it reported."""
    told = 0
    with writer(path, epoch) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(rng.randint(1, 6)):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            told = int(line)
        threading.Event().wait(rng.random() * 0.02)  # not for time: for any place in a batch
        process.kill()
        return max([told, *map(int, process.stdout.read().split())])


def require_committed(path: Path, told: int, host: str) -> int:
    """Assert that the newest record is not older than reported, and that its versions open."""
    files = open_files(path / "files")
    latest = CommitLog(files).latest()
    assert latest is not None
    assert latest.batch_time_ms in (told, told + 1000)
    settings = LocalSettings(first_map_bytes=1 << 20)
    backend = LmdbBackend(files, str(path / host), settings=settings, caches_changelogs=True)
    for store, version_id in named(latest, STORES).items():
        assert version_id.version == latest.batch_time_ms // 1000
        require_open(backend, store, version_id)
    close_unused()
    return latest.batch_time_ms


@pytest.mark.deep
@pytest.mark.parametrize("kills", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_after_kill_9_the_last_committed_contents_open(tmp_path: Path, kills: int) -> None:
    """On the same host with its leftovers, and on a new one."""
    rng = random.Random(kills)
    newest = 0
    for epoch in range(1, kills + 1):
        told = kill_at_random(tmp_path, epoch, rng)
        assert told > newest
        newest = require_committed(tmp_path, told, "local")
        if epoch % 4 == 0:
            require_committed(tmp_path, told, f"new-{epoch}")


def test_a_process_that_reads_is_killed_and_another_applies(tmp_path: Path) -> None:
    """The reader slot of a dead process is freed, so the file stops growing."""
    with writer(tmp_path, 1) as first:
        assert first.stdout is not None
        assert int(first.stdout.readline())
        first.kill()
    with writer(tmp_path, 2) as second:
        assert second.stdout is not None
        times = [int(second.stdout.readline()) for _ in range(3)]
        second.kill()
        times += map(int, second.stdout.read().split())
    require_committed(tmp_path, times[-1], "local")
    sizes = [path.stat().st_size for path in (tmp_path / "local").rglob("data.mdb")]
    assert max(sizes) <= 4 << 20
