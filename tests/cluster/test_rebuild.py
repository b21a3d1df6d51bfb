"""A machine with a third of a large stored state is lost; others rebuild its replicas."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import pytest

from tests.cluster.driver import Driver
from tests.cluster.large_state import TOUCHED
from tests.support.cluster import StandaloneCluster
from tests.support.gates import Gates

pytestmark = [pytest.mark.slow, pytest.mark.spark]

KEYS = int(os.environ.get("DSTREAMS_DRILL_KEYS", "1000000"))


def test_lost_replicas_of_a_large_state(tmp_path: Path) -> None:
    """No key is lost. Prints the seconds of batches: before, with the rebuild, and after."""
    hosts = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
    with StandaloneCluster(tmp_path, hosts) as cluster:
        program = (
            "tests.cluster.large_state",
            cluster.url,
            str(KEYS),
            str(tmp_path / "checkpoint"),
        )
        driver = Driver(program, "127.0.0.1", Gates(tmp_path / "gates"), tmp_path / "driver.log")

        def seconds(batch: int) -> float:
            driver.run(batch)
            answer = driver.answer()
            assert (answer["rows"], answer["keys"]) == ([KEYS if batch == 1 else TOUCHED], KEYS)
            return float(answer["seconds"])

        try:
            assert "ready" in driver.answer()
            seconds(1)
            before = median(seconds(batch) for batch in range(2, 8))
            cluster.kill(hosts[0])
            rebuild = seconds(8)
            after = median(seconds(batch) for batch in range(9, 15))
        finally:
            driver.kill()
    print(f"{KEYS} keys: {before:.2f} s before, {rebuild:.2f} s with rebuild, {after:.2f} s after")
