"""Several drivers on one cluster, with their checkpoints below one directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.driver import Run
from tests.cluster.job import Job
from tests.support.cluster import StandaloneCluster

pytestmark = [pytest.mark.deep, pytest.mark.spark]

ONE_CORE = {"spark.cores.max": "1", "spark.scheduler.mode": "FAIR"}


def started(cluster: StandaloneCluster, directory: Path, name: str) -> Run:
    """Start a driver with a core of the cluster."""
    own = directory / name
    (own / "files").mkdir(parents=True)
    checkpoint, files = str(directory / "checkpoints" / name), str(own / "files")
    return Run(Job(cluster.url, "127.0.0.1", checkpoint, files, settings=ONE_CORE), own)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[Run]]:
    """Two drivers on two machines; their replicas of stored state are in the same directories."""
    with StandaloneCluster(tmp_path) as cluster, ExitStack() as stack:
        found = []
        for name in ("one", "two"):
            run = started(cluster, tmp_path, name)
            stack.callback(lambda run=run: run.driver.kill())  # type: ignore[misc]
            found.append(run)
        yield found


def test_drivers_of_one_cluster_and_root_are_independent(runs: list[Run]) -> None:
    """Batches run at the same time are exact, also while another driver is killed and resumes."""
    one, two = runs
    for run in runs:
        run.begin()
    for run in runs:
        run.require_exact()
    for run in runs:
        run.begin()
    one.driver.kill()
    two.require_exact()
    two.begin()
    two.require_exact()
    one.start(one.job)
    one.begin_again()
    one.require_exact(is_partial=True)
    for run in runs:
        run.begin()
    for run in runs:
        run.require_exact()
