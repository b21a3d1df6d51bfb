"""A real YARN on loopback: a ResourceManager and a NodeManager in one JVM, from Maven Central."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.maven_jars import HADOOP, class_path, java
from tests.support.waiting import wait_for

_PROGRAM = HADOOP.parent / "MiniYarn.java"
_MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"
_UP_S, _DOWN_S = 300, 60


class Yarn:
    """A running YARN.

    Args:
        pid: of its JVM.
        directory: where it runs; containers have their output below.
    """

    def __init__(self, pid: int, directory: Path) -> None:
        self._pid = pid
        self._directory = directory
        self.configuration = directory / "conf"

    def printed(self) -> list[str]:
        """Return what each container has written to its standard output, in their order."""
        found = self._directory.glob("data/yarn/*/*logDir*/application_*/container_*/stdout")
        return [path.read_text() for path in sorted(found, key=lambda path: path.parent.name)]

    def application_masters(self) -> list[psutil.Process]:
        """Return the JVMs of drivers that run in the cluster."""
        return [one for one in descendants(self._pid) if _MASTER in _java_command(one)]


def descendants(pid: int) -> list[psutil.Process]:
    """Return the processes that a process has started, and that those have started."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def end(processes: list[psutil.Process]) -> None:
    """Kill -9 processes, and wait for their ends."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_DOWN_S)


@contextmanager
def running_yarn(directory: Path) -> Iterator[Yarn]:
    """Start a YARN that keeps its files in *directory*; skip without its parts."""
    jars, program = class_path(HADOOP, "minicluster"), Path(java()).resolve()
    hosts = directory / "hosts"  # names of this machine are of its loopback address
    hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    options += [f"-Djdk.net.hosts.file={hosts}", f"-Dtest.build.data={directory / 'data'}"]
    command = [program, *options, "-cp", jars, _PROGRAM]
    log = directory / "yarn.log"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, command), str(directory / "conf")],
            cwd=directory,
            env={**environment, "JAVA_HOME": str(program.parents[1])},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(
            lambda: b"\nREADY\n" in b"\n" + log.read_bytes() or process.poll() is not None, _UP_S
        )
        assert process.poll() is None, log.read_text(errors="replace")
        yield Yarn(process.pid, directory)
    finally:
        containers = descendants(process.pid)
        process.kill()
        process.communicate()
        end(containers)


def _java_command(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        command = process.cmdline()
        return " ".join(command) if command and command[0].endswith("java") else ""
    return ""
