"""Hosts whose clocks differ by minutes: no effect.

The client of Kafka waits for minutes under libfaketime, so its program is left out.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from tests.cluster.driver import stream_on
from tests.support.clocks import shifted_clock
from tests.support.cluster import StandaloneCluster, kill_families

pytestmark = [pytest.mark.slow, pytest.mark.spark]

RIGHT, AHEAD, BEHIND = "127.0.0.2", "127.0.0.3", "127.0.0.4"
MINUTES = {RIGHT: 0, AHEAD: 7, BEHIND: -7}


def minutes_ahead(log: Path) -> float:
    """Return by how much the clock of the process that has just written a log is ahead."""
    *_, last = re.findall(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d", log.read_text(), re.MULTILINE)
    written = datetime.strptime(last, "%y/%m/%d %H:%M:%S").astimezone()
    return (written.timestamp() - time.time()) / 60


def test_clocks_that_differ_change_no_result(tmp_path: Path) -> None:
    """Executors, then drivers, replace others whose clocks are up to 14 minutes apart."""
    checkpoint = str(tmp_path / "checkpoint")
    with (
        shifted_clock(MINUTES[AHEAD], tmp_path / "ahead") as ahead,
        shifted_clock(MINUTES[BEHIND], tmp_path / "behind") as behind,
        StandaloneCluster(
            tmp_path, (*MINUTES,), prefixes={AHEAD: ahead, BEHIND: behind}
        ) as cluster,
        stream_on(cluster, tmp_path, checkpoint, prefix=ahead) as run,
    ):
        for host, minutes in MINUTES.items():
            assert minutes_ahead(tmp_path / f"{host}.log") == pytest.approx(minutes, abs=3)
        for gate in ("main.state", "query.state"):
            run.gates.close(gate)
            run.begin()
            kill_families([psutil.Process(run.held(gate).executor)])
            run.gates.open(gate)
            run.require_exact()
        cluster.kill(AHEAD)  # the others rebuild its replicas
        run.begin()
        run.require_exact()
        for prefix in (behind, ahead):
            run.gates.close("stored.output")
            run.begin()
            run.held("stored.output")
            run.driver.kill()
            run.gates.open("stored.output")
            run.prefix = prefix
            run.start(run.job)
            run.begin_again()
            run.require_exact()
            run.begin()
            run.require_exact()
