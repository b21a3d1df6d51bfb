"""Drivers, executors and Python workers killed at random moments, by where the checkpoint is."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpoint import open_files
from checkpoint.cli import run_tools
from tests.cluster.driver import stream_on
from tests.support.cluster import StandaloneCluster
from tests.support.kafka_cluster import KafkaCluster

if TYPE_CHECKING:
    from tests.support.hdfs import Hdfs
    from tests.support.s3_server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.spark]

KILLS = int(os.environ.get("DSTREAMS_DRILL_KILLS", "20"))
"""Kills of each kind."""
SEED = int(os.environ.get("DSTREAMS_DRILL_SEED", "20261128"))
_CALM_BATCHES = 3  # they show how long one takes
_IN_A_BATCH = 4
"""Kills in a batch, at most: another one would not end either."""

SETTINGS = {
    "spark.task.maxFailures": "100",
    "spark.shuffle.io.retryWait": "100ms",
}
"""Many kills in a row fail no batch, and what follows a kill takes less time than usual."""


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL on a server that is running, which the environment has credentials for."""
    if request.param == "hdfs":
        hdfs: Hdfs = request.getfixturevalue("hdfs")
        return hdfs.new_url()
    s3: S3Server = request.getfixturevalue("s3")
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return s3.new_url()


@pytest.mark.parametrize("checkpoint", ["hdfs", "s3"], indirect=True)
def test_kills_change_nothing(
    tmp_path: Path, checkpoint: str, kafka: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every batch, and the topic, has the rows of the count: nothing is lost, nothing doubled."""
    chance = random.Random(SEED)
    kinds = ["driver", "executor", "python"] * KILLS
    chance.shuffle(kinds)
    started = time.monotonic()
    print(f"seed {SEED}; the seconds of each kill:")
    with (
        StandaloneCluster(tmp_path) as cluster,
        stream_on(cluster, tmp_path, checkpoint, kafka, settings=SETTINGS) as run,
    ):
        usual_s = float("inf")
        for _ in range(_CALM_BATCHES):
            began = time.monotonic()
            run.begin()
            run.require_exact()
            usual_s = min(usual_s, time.monotonic() - began)
        while kinds:
            run.begin()
            left, is_partial = max(len(kinds) - _IN_A_BATCH, 0), False
            while len(kinds) > left and not run.driver.ends_within(chance.uniform(0, usual_s)):
                if kinds[-1] == "driver":
                    run.driver.kill()
                    run.start(run.job)
                    run.begin_again()
                    is_partial = True
                elif not cluster.kill_any(kinds[-1], chance):
                    continue
                print(f"{time.monotonic() - started:.0f} {kinds[-1]}")
                kinds.pop()
            run.require_exact(is_partial=is_partial)
            with capsys.disabled():
                seconds = time.monotonic() - started
                print(f"batch {run.batch}, {len(kinds)} kills left, {seconds:.0f} s", flush=True)
        run.begin()
        run.require_exact()
        run.driver.kill()
        files = open_files(f"{checkpoint}/streams")
        assert run_tools(["verify", files.url], "dstreams checkpoint") == 0, capsys.readouterr()
    seconds = time.monotonic() - started
    print(
        f"{KILLS} kills of each kind in {run.batch} batches with {checkpoint}, {seconds:.0f} s: "
        "nothing lost, nothing doubled"
    )
