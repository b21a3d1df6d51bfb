"""The processes of a driver, with a fake java."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dstreams.cli.drill import driver as drill_driver
from tests.support.waiting import wait_for

DRIVER = """
import subprocess, sys
jvm = subprocess.Popen([sys.argv[1], "-c", sys.argv[2]], stdin=subprocess.PIPE)
jvm.wait()
"""
JVM = """
sleep 100 & # a worker has a daemon as its parent
sh -c 'sleep 100 & wait' &
cat > /dev/null
kill 0
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")


def names_in(session: int) -> list[str]:
    with suppress(psutil.NoSuchProcess):
        return [psutil.Process(pid).name() for pid in drill_driver.session_pids(session)]
    return []


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    shell = shutil.which("sh")
    assert shell is not None
    java = tmp_path / "java"
    java.symlink_to(shell)
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(java), JVM], start_new_session=True
    )
    # The driver, its JVM, a daemon with a worker, a process that is none, and what reads the input.
    # A child of the JVM has its name until it runs a program of its own.
    wait_for(lambda: len(names := names_in(process.pid)) == 6 and names.count("java") == 1)
    yield process
    drill_driver.send_signal(drill_driver.session_pids(process.pid), signal.SIGKILL)
    process.wait()


def test_processes_of_a_session(driver: subprocess.Popen[bytes]) -> None:
    """The JVM is found by its name, a worker by the daemon between it and the JVM."""
    jvm = drill_driver.jvm_pid(driver.pid)
    assert jvm in drill_driver.session_pids(driver.pid)
    assert len(drill_driver.worker_pids(driver.pid)) == 1
    assert drill_driver.send_signal(drill_driver.worker_pids(driver.pid), signal.SIGKILL) == 1
    wait_for(lambda: not drill_driver.worker_pids(driver.pid))
    assert drill_driver.jvm_pid(driver.pid) == jvm


def test_a_jvm_that_does_not_see_its_driver_go(driver: subprocess.Popen[bytes]) -> None:
    """Its input stays open while it is held; then it ends."""
    jvm = drill_driver.jvm_pid(driver.pid)
    assert jvm is not None
    held = drill_driver.hold_input(driver.pid, jvm)
    assert held is not None
    driver.kill()
    driver.wait()
    assert drill_driver.jvm_pid(driver.pid) == jvm
    os.close(held)
    wait_for(lambda: drill_driver.jvm_pid(driver.pid) is None)


def test_processes_that_are_gone(driver: subprocess.Popen[bytes]) -> None:
    """They are not counted, and cannot be held."""
    jvm = drill_driver.jvm_pid(driver.pid)
    assert jvm is not None
    gone = drill_driver.session_pids(driver.pid)
    # Stopped, so that none ends by itself because another one has gone.
    assert drill_driver.send_signal(gone, signal.SIGSTOP) == 6
    assert drill_driver.send_signal(gone, signal.SIGKILL) == 6
    driver.wait()
    wait_for(lambda: not drill_driver.session_pids(driver.pid))
    assert drill_driver.send_signal([driver.pid], signal.SIGKILL) == 0
    assert drill_driver.hold_input(driver.pid, jvm) is None
    assert drill_driver.worker_pids(driver.pid) == []
