"""A full disk for the shuffled records of one machine: an error that names it, or no effect."""

from __future__ import annotations

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
