"""What all tests share: one SparkContext a session, and what older PySparks are forgiven."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pyspark
import pytest
from pyspark import SparkConf, SparkContext

from tests.support.temporary import use_own_directory

PYSPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


def pytest_configure(config: pytest.Config) -> None:
    """Set what all tests and their child processes run under."""
    # PySpark before 4.1 leaves the socket that results came by to the garbage collector.
    if PYSPARK < (4, 1):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    use_own_directory(config)


@pytest.fixture(scope="session")
def sc() -> Iterator[SparkContext]:
    """A local SparkContext: two cores, four attempts a task, two default partitions, no UI."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = (
        SparkConf(loadDefaults=False)
        .setMaster("local[2,4]")
        .setAppName("dstreams tests")
        .set("spark.default.parallelism", "2")
        # For a life of minutes: no second compiler and one collector take half the processor time.
        .set("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .set("spark.driver.bindAddress", "127.0.0.1")
        # Results over 1 MiB are fetched from this address, which must be the bound one.
        .set("spark.driver.host", "127.0.0.1")
        .set("spark.python.unix.domain.socket.enabled", "true")
        .set("spark.ui.enabled", "false")
        .set("spark.ui.showConsoleProgress", "false")
    )
    spark = SparkContext(conf=conf)
    spark.setLogLevel("ERROR")
    yield spark
    spark.stop()
