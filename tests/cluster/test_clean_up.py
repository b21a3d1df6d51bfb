"""A cluster and a driver end with the process that has started them, also if that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.cluster import ROOT, WITH_PARENT
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.spark]

_ENDS_S = 300

PROGRAM = """
import sys
from pathlib import Path

from tests.cluster.driver import stream_on
from tests.support.cluster import StandaloneCluster

directory = Path(sys.argv[1])
with (
    StandaloneCluster(directory, ("127.0.0.2",)) as cluster,
    stream_on(cluster, directory, str(directory / "checkpoint")) as run,
):
    run.gates.close("stored.state")
    run.begin()
    run.held("stored.state")
    print("held", flush=True)
    run.require_exact()
"""


def runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.skipif(not WITH_PARENT, reason="needs setpriv of util-linux")
def test_nothing_is_left_of_a_test_that_is_killed(tmp_path: Path) -> None:
    """Master, worker, executor and driver end, with their children, in the middle of a batch."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    try:
        wait_for(lambda: not [child for child in family if runs(child)], _ENDS_S)
    finally:
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()
