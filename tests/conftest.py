"""What all tests share: one SparkContext a session, and what older PySparks are forgiven."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import py4j.java_gateway
import pyspark
import pytest
from hypothesis import HealthCheck, settings
from pyspark import SparkConf, SparkContext

from dstreams import StreamingContext
from tests.support.jvms import ENVIRONMENT, SHORT_LIVED, record_classes
from tests.support.shared_spark import forget_all
from tests.support.temporary import use_own_directory
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.support.hdfs import Hdfs
    from tests.support.kafka_broker import KafkaBroker
    from tests.support.kafka_cluster import KafkaCluster
    from tests.support.s3_server import S3Server

PYSPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

DURABILITY = Path(__file__).parent / "checkpoint"


def pytest_configure(config: pytest.Config) -> None:
    """Set what all tests and their child processes run under."""
    # Before any fixture: child processes inherit them whether Spark runs here by then or not.
    os.environ.update(ENVIRONMENT, PYSPARK_PYTHON=sys.executable)
    # Hundreds of processes import the same modules: the first one compiles them, for two seconds.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell started the tests in the background; programs that they interrupt are to end.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes is up to the machine. The same code meets the same examples;
    # --hypothesis-profile=new-examples draws others.
    profile = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("same-examples", profile, derandomize=True)
    settings.register_profile("new-examples", profile, derandomize=False)
    settings.load_profile("same-examples")
    # PySpark before 4.1 leaves the socket that results came by to the garbage collector.
    if PYSPARK < (4, 1):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    # Files of few tests, which are the long ones, are not to come last: see below.
    config.option.loadscopereorder = False
    use_own_directory(config)
    record_classes(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what needs the SparkContext; put files that end soon without one behind the others."""
    for item in items:
        if "sc" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    yield
    items.sort(key=lambda item: item.path.is_relative_to(DURABILITY))


@pytest.fixture(scope="session")
def sc() -> Iterator[SparkContext]:
    """A local SparkContext: two cores, four attempts a task, two default partitions, no UI."""
    conf = (
        SparkConf(loadDefaults=False)
        .setMaster("local[2,4]")
        .setAppName("dstreams tests")
        .set("spark.default.parallelism", "2")
        .set("spark.driver.extraJavaOptions", SHORT_LIVED)
        .set("spark.driver.bindAddress", "127.0.0.1")
        # Results over 1 MiB are fetched from this address, which must be the bound one.
        .set("spark.driver.host", "127.0.0.1")
        .set("spark.python.daemon.module", "dstreams.spark.worker_daemon")
        .set("spark.python.unix.domain.socket.enabled", "true")
        # How long a job that failed or was cancelled waits for the other tasks of its stage.
        .set("spark.python.task.killTimeout", "200ms")
        .set("spark.ui.enabled", "false")
        .set("spark.ui.showConsoleProgress", "false")
    )
    spark = SparkContext(conf=conf)
    spark.setLogLevel("ERROR")
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """The real Kafka broker of this run, shared by its processes: none to stop or to kill."""
    from tests.support.kafka_broker import shared_broker  # noqa: PLC0415 - skips without parts

    with shared_broker() as cluster:
        yield cluster


@pytest.fixture
def kafka_broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A real Kafka broker of this test alone, to be killed, paused and started again."""
    from tests.support.kafka_broker import KafkaBroker  # noqa: PLC0415 - skips without parts

    with KafkaBroker(tmp_path / "kafka") as broker:
        yield broker


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server of this process; skipped where obstore or moto is missing."""
    from tests.support.s3_server import running_s3  # noqa: PLC0415 - skips without parts

    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """An HDFS of three DataNodes; skipped where hdfs-native, Java or Maven is missing."""
    from tests.support.hdfs import running_hdfs  # noqa: PLC0415 - skips without parts

    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


@pytest.fixture
def active_stopped() -> Iterator[None]:
    """The streaming context that is active at the end is stopped."""
    yield
    active = StreamingContext.getActive()
    if active is not None:
        active.stop(stopSparkContext=False)


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Each file leaves the process as it was: any other one may run in it afterwards."""
    before, threads = surroundings(), set(threading.enumerate())
    yield
    wait_for(lambda: not [thread for thread in threading.enumerate() if is_left(thread, threads)])
    assert surroundings() == before
    if SparkContext._active_spark_context is not None:
        forget_all(SparkContext._active_spark_context)


def surroundings() -> dict[str, object]:
    """Return what the tests of a process share, apart from what PySpark sets for itself."""
    own = ("PYTEST_", "SPARK_", "_RJEM_")  # the last is what polars sets for its allocator
    return {
        "environment": {k: v for k, v in os.environ.items() if not k.startswith(own)},
        "directory": Path.cwd(),
        "active streams": StreamingContext.getActive(),
        "errors of Py4J": py4j.java_gateway.get_return_value,  # a SparkSession puts its own there
    }


def is_left(thread: threading.Thread, before: set[threading.Thread]) -> bool:
    return thread not in before and (not thread.daemon or thread.name.startswith("dstreams-"))
