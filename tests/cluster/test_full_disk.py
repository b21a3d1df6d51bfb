"""A full disk of one machine, for shuffled records or copies of state."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.driver import DriverEndedError, Run, stream_on
from tests.support.cluster import StandaloneCluster
from tests.support.full_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.slow, pytest.mark.spark]

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
EXCLUDE = {"spark.excludeOnFailure.taskAndStage.enabled": "true"}
_DISK_MB = 256


@dataclass(frozen=True)
class Setting:
    """A stream on a cluster, and the disk of one of its machines for shuffled records."""

    run: Run
    disk: SmallDisk


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    """Three machines; the shuffle files of one of them are on a small disk."""
    cluster = StandaloneCluster(tmp_path, HOSTS)
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(cluster.shuffles(HOSTS[0]), _DISK_MB))
        stack.enter_context(cluster)
        run = stack.enter_context(stream_on(cluster, tmp_path, str(tmp_path / "checkpoint")))
        for _ in range(2):
            run.begin()
            run.require_exact()
        yield Setting(run, disk)


def test_no_space_for_shuffles(setting: Setting) -> None:
    """Batches are exact: with a full disk, unless the driver names it, and afterwards."""
    run, disk = setting.run, setting.disk
    disk.fill()
    run.begin()
    error = None
    try:
        run.require_exact()
    except DriverEndedError as ended:
        error = str(ended)
    disk.recover()
    if error is not None:
        assert str(disk.path) in error
        run.driver.kill()
        run.start(run.job)
        run.begin_again()
        run.require_exact(is_partial=True)
    for _ in range(2):
        run.begin()
        run.require_exact()


def test_no_space_for_copies_of_state(tmp_path: Path) -> None:
    """Spark runs the tasks on other machines, if it may exclude the one where they failed."""
    cluster = StandaloneCluster(tmp_path, HOSTS)
    with ExitStack() as stack:
        disks = [
            stack.enter_context(small_disk(cluster.temporary(host), _DISK_MB)) for host in HOSTS
        ]
        stack.enter_context(cluster)
        checkpoint = str(tmp_path / "checkpoint")
        run = stack.enter_context(stream_on(cluster, tmp_path, checkpoint, settings=EXCLUDE))
        for _ in range(2):
            run.begin()
            run.require_exact()
        disk = next(disk for disk in disks if list(disk.path.glob("dstreams-state-*")))
        for copies in disk.path.glob("dstreams-state-*"):
            shutil.rmtree(copies)
        disk.fill()
        for _ in range(2):
            run.begin()
            run.require_exact()
        logs = [log.read_text() for log in tmp_path.glob("work-*/*/*/stderr")]
        assert any(f"the replica in {disk.path}/" in log for log in logs), "no task has failed"
        disk.recover()
        run.begin()
        run.require_exact()
