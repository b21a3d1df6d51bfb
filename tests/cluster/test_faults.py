"""Programs of every kind on a cluster of three machines, under faults in chosen phases of a batch.

The rows of every batch are compared with a count that is made without Spark. One cluster and one
stream serve all tests of this file, which run in their order: each finds the cluster as the one
before has left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

import psutil
import pytest

from checkpoint import Files, open_files
from checkpoint.cli import run_tools
from checkpoint.state_store import LmdbBackend, StoreId
from tests.cluster.driver import SOON_LOST, Run, stream_on
from tests.cluster.expected import PROGRAMS
from tests.cluster.job import PARTITIONS
from tests.support.cluster import StandaloneCluster, kill_families
from tests.support.gates import HeldTask
from tests.support.hdfs import Hdfs
from tests.support.kafka_cluster import KafkaCluster
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.deep, pytest.mark.spark]

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
_ENDS_S = 300

ELASTIC = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "1s",
    "spark.scheduler.minRegisteredResourcesRatio": "0",
}
"""Speculation and dynamic allocation, both much faster than usual.

Executors go with their shuffle files a second after their last task, which on a slow machine may be
before the next stage reads them, again and again.
"""


@dataclass(frozen=True)
class Setting:
    """What the tests share: a stream, its cluster, and the files of its checkpoint."""

    cluster: StandaloneCluster
    run: Run
    files: Files


@pytest.fixture(scope="module")
def setting(
    tmp_path_factory: pytest.TempPathFactory, hdfs: Hdfs, kafka: KafkaCluster
) -> Iterator[Setting]:
    """A stream on three machines, with its checkpoint on HDFS."""
    directory, url = tmp_path_factory.mktemp("cluster"), hdfs.new_url()
    with (
        StandaloneCluster(directory, HOSTS) as cluster,
        stream_on(cluster, directory, url, kafka) as run,
    ):
        yield Setting(cluster, run, open_files(f"{url}/streams"))


Strike = Callable[[Setting, HeldTask], AbstractContextManager[None]]
"""A fault while a task is held; the block ends after the batch."""


@dataclass(frozen=True)
class Fault:
    """A fault in a batch.

    Args:
        name: what happens.
        gates: where tasks are held, one after the other.
        strike: what happens then, to each of them.
    """

    name: str
    gates: tuple[str, ...]
    strike: Strike


@contextmanager
def executor_killed(setting: Setting, task: HeldTask) -> Iterator[None]:
    kill_families([psutil.Process(task.executor)])
    yield


@contextmanager
def all_executors_killed(setting: Setting, task: HeldTask) -> Iterator[None]:
    kill_families(setting.cluster.executors())
    yield


@contextmanager
def executor_paused(setting: Setting, task: HeldTask) -> Iterator[None]:
    """Spark gives the executor up after a while, and runs the batch without it."""
    executor = psutil.Process(task.executor)
    family = [executor, *executor.children(recursive=True)]
    for process in family:
        process.suspend()
    yield
    for process in reversed(family):
        with suppress(psutil.NoSuchProcess):
            process.resume()


@contextmanager
def machine_gone(setting: Setting, task: HeldTask) -> Iterator[None]:
    setting.cluster.kill(setting.cluster.host_of(task.executor))
    yield


def phases(program: str) -> tuple[str, ...]:
    return tuple(f"{program}.{phase}" for phase in ("map", "state", "output"))


FAULTS = [
    *(
        Fault(f"{program}: an executor killed in each phase", phases(program), executor_killed)
        for program in PROGRAMS
    ),
    Fault("all executors killed in updateStateByKey", ("main.state",), all_executors_killed),
    Fault("all executors killed in mapWithState", ("stored.state",), all_executors_killed),
    Fault("an executor paused in mapWithState", ("stored.state",), executor_paused),
    Fault("a machine gone for good in mapWithState", ("stored.state",), machine_gone),
]

SLOW = ("groups: an executor killed in each phase", "all executors killed in updateStateByKey")
"""These differ least from other faults."""


def test_without_faults(setting: Setting) -> None:
    """The programs and the count agree."""
    setting.run.begin()
    setting.run.require_exact()


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=pytest.mark.slow if fault.name in SLOW else ()) for fault in FAULTS],
    ids=lambda fault: fault.name,
)
def test_a_fault_changes_no_result(setting: Setting, fault: Fault) -> None:
    """Nothing is lost, and nothing counts twice."""
    run = setting.run
    for gate in fault.gates:
        run.gates.close(gate)
    with ExitStack() as ends:
        run.begin()
        for gate in fault.gates:
            task = run.held(gate)
            ends.enter_context(fault.strike(setting, task))
            run.gates.open(gate)
        run.require_exact()


def test_replicas_follow_their_partitions(setting: Setting) -> None:
    """The machines that are left have a replica of each partition, at most a batch behind.

    The next batch adds the changes of this one, or maintenance does, after every tenth batch.
    """
    run = setting.run
    run.begin()
    run.require_exact()
    assert setting.cluster.hosts != [*HOSTS]
    for partition in range(PARTITIONS):
        assert newest_replica(setting, partition) >= run.batch - 1


def test_the_driver_moves_to_another_host(setting: Setting) -> None:
    """A host fails in a batch; a driver on another one, with other settings, runs it again."""
    run = setting.run
    run.gates.close("stored.state")
    run.begin()
    run.held("stored.state")
    run.driver.kill()
    run.gates.open("stored.state")
    run.start(replace(run.job, host="127.0.0.9", settings={**SOON_LOST, **ELASTIC}))
    run.begin_again()
    run.require_exact()


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param("main.state", marks=pytest.mark.slow),
        "stored.state",
        pytest.param("query.state", marks=pytest.mark.slow),
        "kafka.output",
    ],
)
def test_a_speculative_copy_overtakes_its_task(setting: Setting, gate: str) -> None:
    """The batch ends while the task is held, and has the rows of only one of the two."""
    run = setting.run
    run.gates.close(gate)
    run.begin()
    run.held(gate)
    run.require_exact()
    run.gates.open(gate)


def test_executors_that_are_given_back_and_taken_again(setting: Setting) -> None:
    """Dynamic allocation ends all executors between batches, and with them all state in memory."""
    for _ in range(2):
        wait_for(lambda: not setting.cluster.executors(), _ENDS_S)
        setting.run.begin()
        setting.run.require_exact()


def test_the_checkpoint_is_sound(setting: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    """After all of that, every file that a restart would read is there and whole."""
    setting.run.driver.kill()
    assert run_tools(["verify", setting.files.url], "dstreams checkpoint") == 0, capsys.readouterr()


def newest_replica(setting: Setting, partition: int) -> int:
    """Return the newest version of a partition of ``stored`` on the machines that are left."""
    versions = []
    for host in setting.cluster.hosts:
        for path in setting.cluster.temporary(host).glob("dstreams-state-*/*/*/stored"):
            root, stream = path.parents[2], path.parents[1].name
            store = StoreId(stream, "stored", "default", partition, PARTITIONS)
            replica = LmdbBackend(setting.files, str(root)).replica(store).meta()
            versions.append(0 if replica is None else replica.version_id.version)
    return max(versions)
