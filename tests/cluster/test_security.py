"""Clusters and drivers whose connections are authenticated and encrypted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import ROOT, StandaloneCluster

pytestmark = pytest.mark.spark

SECRET, OTHER = "first-secret-of-test", "other-secret-of-test"
SECURE = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
_LIMIT_S = 600
BATCHES, ROWS, KEYS = 3, 20, 5

PROGRAM = f"""
import json, sys
from dstreams import StateSpec, StreamingContext, tuned_context
from dstreams.testing import ManualClock

master, directory, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
small = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
spark = tuned_context("secure", master, {{
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.default.parallelism": "2",
    "spark.local.dir": f"{{directory}}/local",
    "spark.executor.extraJavaOptions": small,
    "spark.driver.extraJavaOptions": small,
    "spark.dstreams.state.localDirectory": f"{{directory}}/replicas",
    "spark.python.daemon.module": "dstreams.spark.worker_daemon",
    **settings,
}})

def count(key, value, state):
    state.update((state.getOption or 0) + 1)
    return key, state.get

ssc = StreamingContext(spark, 1, clock=ManualClock())
ssc.checkpoint(f"{{directory}}/checkpoint")
pairs = ssc.rateStream({ROWS}, uid="rows").map(lambda row: (row[1] % {KEYS}, row[1]))
sums = pairs.updateStateByKey(lambda new, old: sum(new) + (old or 0), uid="sums")
counts = pairs.mapWithState(StateSpec.function(count), uid="counts").stateSnapshots()
for name, stream in (("sums", sums), ("counts", counts)):
    stream.foreachRDD(
        lambda rdd, name=name: print("ROWS", json.dumps([name, sorted(rdd.collect())]), flush=True)
    )
ssc.step({BATCHES})
ssc.stop()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """A cluster that asks for a secret and encrypts what it sends."""
    settings = {**SECURE, "spark.authenticate.secret": SECRET}
    with StandaloneCluster(tmp_path, settings=settings) as cluster:
        yield cluster


def run(cluster: StandaloneCluster, directory: Path, settings: dict[str, str]) -> Any:
    directory.mkdir()
    environment = {key: text for key, text in os.environ.items() if not key.startswith("SPARK_")}
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.url, str(directory), json.dumps(settings)],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )


def expected() -> list[list[Any]]:
    """What the outputs show, from the input alone."""
    found: list[list[Any]] = []
    for end in range(ROWS, ROWS * BATCHES + 1, ROWS):
        values = [list(range(key, end, KEYS)) for key in range(KEYS)]
        found.append(["sums", [[key, sum(each)] for key, each in enumerate(values)]])
        found.append(["counts", [[key, len(each)] for key, each in enumerate(values)]])
    return found


@pytest.mark.deep
def test_a_cluster_with_authentication_and_encryption(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """State in RDDs and in stores is exact, and no file has the secret."""
    done = run(cluster, tmp_path / "right", {**SECURE, "spark.authenticate.secret": SECRET})
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROWS ")]
    assert [json.loads(line.removeprefix("ROWS ")) for line in lines] == expected()
    written = [path for path in (tmp_path / "right").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


@pytest.mark.slow  # Spark asks the master for a minute
@pytest.mark.parametrize(
    "settings", [{**SECURE, "spark.authenticate.secret": OTHER}, {}], ids=["wrong", "none"]
)
def test_another_secret_is_named(
    cluster: StandaloneCluster, tmp_path: Path, settings: dict[str, str]
) -> None:
    """A driver that the cluster does not accept ends with an error that names the settings."""
    wrong = run(cluster, tmp_path / "wrong", settings)
    assert wrong.returncode == 1, wrong.stdout
    last = wrong.stderr.strip().splitlines()[-1]
    assert last.startswith("dstreams.errors.EnvironmentNotReadyError: Spark has ended"), last
    assert f"the master {cluster.url} did not accept it; check the address" in last
    assert "spark.authenticate.secret" in last
    for secret in (SECRET, OTHER):
        assert secret not in wrong.stdout + wrong.stderr
