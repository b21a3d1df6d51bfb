"""A worker that is cut off from the network while it computes, until its network returns.

The checkpoint is on a disk that it still reaches: what its task writes there must not count. One
cluster and one stream serve all tests of this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cluster.driver import Run, stream_on
from tests.support.cluster import StandaloneCluster
from tests.support.gates import HeldTask
from tests.support.networks import Network, private_network
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.deep, pytest.mark.spark]

_ENDS_S = 300

SETTINGS = {
    "spark.rpc.io.connectionTimeout": "600s",
    "spark.shuffle.io.connectionTimeout": "5s",
    "spark.shuffle.io.maxRetries": "1",
}
"""An executor that is cut off does not end itself, and others soon stop to fetch from it."""


@dataclass(frozen=True)
class Setting:
    """What the tests share: a network, a cluster in it, and a stream with its checkpoint."""

    network: Network
    cluster: StandaloneCluster
    checkpoint: Path
    run: Run


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """A stream on three machines with addresses of their own."""
    directory = tmp_path_factory.mktemp("cut-off")
    checkpoint = directory / "checkpoint"
    with private_network(3) as network:
        center = network.address
        prefixes = {place: network.prefix(place) for place in (center, *network.hosts)}
        with (
            StandaloneCluster(
                directory, network.hosts, master_host=center, prefixes=prefixes
            ) as cluster,
            stream_on(
                cluster,
                directory,
                str(checkpoint),
                host=center,
                prefix=prefixes[center],
                settings=SETTINGS,
            ) as run,
        ):
            yield Setting(network, cluster, checkpoint, run)


def test_without_faults(setting: Setting) -> None:
    """The programs and the count agree."""
    setting.run.begin()
    setting.run.require_exact()


@pytest.mark.parametrize(
    "gate",
    [
        "stored.state",
        pytest.param("main.state", marks=pytest.mark.slow),
        pytest.param("query.state", marks=pytest.mark.slow),
    ],
)
def test_a_worker_without_network_changes_no_result(setting: Setting, gate: str) -> None:
    """Spark gives it up, the batch ends without it, and its task ends after the network returns."""
    with cut_off(setting, gate) as task:
        assert psutil.pid_exists(task.worker)
    setting.run.gates.open(gate)
    require_recovered(setting, task)


@pytest.mark.slow
def test_a_task_that_ends_without_network(setting: Setting) -> None:
    """It writes its changes to the checkpoint after Spark has given it up; they do not count."""
    with cut_off(setting, "stored.state") as task:
        pattern = f"streams/*/stores/stored/*/*/{setting.run.batch:016}-*.changes"
        before = {*setting.checkpoint.glob(pattern)}
        assert before
        setting.run.gates.open("stored.state")
        wait_for(lambda: {*setting.checkpoint.glob(pattern)} > before, _ENDS_S)
    require_recovered(setting, task)


@contextmanager
def cut_off(setting: Setting, gate: str) -> Iterator[HeldTask]:
    """Run a batch in which a task is held, without the network of its machine until the end.

    Yields the task once the batch has ended.
    """
    run, network = setting.run, setting.network
    run.gates.close(gate)
    run.begin()
    task = run.held(gate)
    host = setting.cluster.host_of(task.executor)
    network.cut(host)
    try:
        run.require_exact()
        yield task
    finally:
        network.join(host)


def require_recovered(setting: Setting, task: HeldTask) -> None:
    """Require exact batches, also after the executor of the task has ended and has a successor."""
    run, cluster = setting.run, setting.cluster
    for _ in range(2):
        run.begin()
        run.require_exact()
    wait_for(lambda: not psutil.pid_exists(task.executor), _ENDS_S)
    wait_for(lambda: len(cluster.executors()) == len(cluster.hosts), _ENDS_S)
    run.begin()
    run.require_exact()
