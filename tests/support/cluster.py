"""A standalone Spark cluster of separate processes on this machine, from the pip package."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark

from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_UP_S, _DOWN_S = 90, 20


class StandaloneCluster:
    """A master and workers with one core each; what is left of them is killed at the end.

    Args:
        directory: for work directories and logs.
        hosts: loopback addresses of the workers.
        modules: directories of modules that every Python finds there.
    """

    def __init__(
        self,
        directory: Path,
        hosts: tuple[str, ...] = ("127.0.0.2", "127.0.0.3"),
        modules: tuple[Path, ...] = (ROOT, SPARK_HOME.parent),
    ) -> None:
        self._modules = os.pathsep.join(map(str, modules))
        self._directory = directory
        self._hosts = hosts
        self._port = _free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """The Spark master."""
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> StandaloneCluster:
        try:
            port = str(self._port)
            self._start("master", "127.0.0.1", _MASTER, "--port", port, "--webui-port", "0")
            wait_for(lambda: _listens("127.0.0.1", self._port), _UP_S)
            for host in self._hosts:
                work = str(self._directory / f"work-{host}")
                arguments = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
                self._start(host, host, _WORKER, *arguments, "--work-dir", work, self.url)
            wait_for(
                lambda: self._log("master").count("Registering worker") >= len(self._hosts), _UP_S
            )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all processes of the cluster, and their children."""
        family = []
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                family += psutil.Process(process.pid).children(recursive=True)
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(_DOWN_S)
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(family, timeout=_DOWN_S)

    def executors(self) -> list[psutil.Process]:
        """The executors that run."""
        return [child for child in self._children() if _EXECUTOR in _command(child)]

    def python_workers(self) -> list[psutil.Process]:
        """The Python workers that run: children of a daemon, which is an executor's child."""
        found = []
        for executor in self.executors():
            with suppress(psutil.NoSuchProcess):
                for daemon in executor.children():
                    found += daemon.children()
        return found

    def kill_any(self, kind: str, chance: random.Random) -> bool:
        """Kill -9 one of the ``executor`` or ``python`` processes; False when there is none."""
        running = self.executors() if kind == "executor" else self.python_workers()
        if not running:
            return False
        with suppress(psutil.NoSuchProcess):
            chance.choice(running).send_signal(signal.SIGKILL)
            return True
        return False

    def _children(self) -> Iterator[psutil.Process]:
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                yield from psutil.Process(process.pid).children(recursive=True)

    def _start(self, name: str, host: str, *command: str) -> None:
        environment = {
            **{key: text for key, text in os.environ.items() if not key.startswith("SPARK_")},
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _SMALL_JVM,
            # Executors that are killed are started again for ever.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
            "SPARK_LOCAL_DIRS": str(self._directory / f"local-{name}"),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": self._modules,
        }
        log = (self._directory / f"{name}.log").open("wb")
        program = str(SPARK_HOME / "bin" / "spark-class")
        with log:
            self._processes.append(
                subprocess.Popen(
                    [program, command[0], "--host", host, *command[1:]],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def _command(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return " ".join(process.cmdline())
    return ""
