"""A standalone Spark cluster of separate processes on this machine, from the pip package."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark

from tests.support.jvms import OF_SPARK
from tests.support.ports import free_port
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_UP_S, _DOWN_S = 300, 60

WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""The beginning of a command that is killed when the thread that has started it ends."""


class StandaloneCluster:
    """A master and workers with one core each; what is left of them is killed at the end.

    If this process is killed, they end too, and so do the executors, which watch their workers.

    Args:
        directory: for work directories and logs.
        hosts: loopback addresses of the workers.
        modules: directories of modules that every Python finds there.
        master_host: address of the master.
        prefixes: commands that start the processes of a host, such as in a network of its own.
        settings: of Spark, for the master and the workers.
    """

    def __init__(
        self,
        directory: Path,
        hosts: tuple[str, ...] = ("127.0.0.2", "127.0.0.3"),
        modules: tuple[Path, ...] = (ROOT, SPARK_HOME.parent),
        master_host: str = "127.0.0.1",
        prefixes: Mapping[str, Sequence[str]] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._conf = {}
        if settings:  # without a directory of its own, its JVMs share the classes of the tests
            conf = directory / "conf" / "spark-defaults.conf"
            conf.parent.mkdir()
            conf.write_text("".join(f"{key} {text}\n" for key, text in settings.items()))
            self._conf = {"SPARK_CONF_DIR": str(conf.parent)}
        self._modules = os.pathsep.join(map(str, modules))
        self._directory = directory
        self.hosts = list(hosts)
        self._master_host = master_host
        self._prefixes = prefixes or {}
        self._port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """The Spark master."""
        return f"spark://{self._master_host}:{self._port}"

    def __enter__(self) -> StandaloneCluster:
        try:
            port = str(self._port)
            self._start("master", self._master_host, _MASTER, "--port", port, "--webui-port", "0")
            wait_for(lambda: "started service 'sparkMaster'" in self._log("master"), _UP_S)
            for host in self.hosts:
                self.start_worker(host)
            wait_for(
                lambda: self._log("master").count("Registering worker") >= len(self.hosts), _UP_S
            )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_worker(self, host: str, modules: tuple[Path, ...] | None = None) -> None:
        """Start a worker, without waiting for it; its Pythons may find other modules."""
        work = str(self._directory / f"work-{host}")
        arguments = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", work)
        self._start(host, host, _WORKER, *arguments, self.url, modules=modules)

    def stop(self) -> None:
        """End all processes of the cluster, and their children."""
        for name in list(self._processes):
            self.kill(name)

    def kill(self, name: str) -> None:
        """Kill -9 the ``master`` or the worker of a host, with all its executors, for good."""
        process = self._processes.pop(name)
        if name in self.hosts:
            self.hosts.remove(name)
        family = _family(process.pid)
        process.kill()
        process.wait(_DOWN_S)
        _kill(family)

    def executors(self, *hosts: str) -> list[psutil.Process]:
        """The executors that run, on all hosts or on these."""
        return [
            child
            for host in hosts or tuple(self._processes)
            for child in _family(self._processes[host].pid)
            if _EXECUTOR in _command(child)
        ]

    def temporary(self, host: str) -> Path:
        """Return the directory of the temporary files of a host."""
        return self._directory / f"tmp-{host}"

    def shuffles(self, host: str) -> Path:
        """Return the directory of the shuffle files of a host."""
        return self._directory / f"local-{host}"

    def host_of(self, executor: int) -> str:
        """Return the host of an executor that runs."""
        found = (
            host
            for host in self._processes
            if executor in (process.pid for process in self.executors(host))
        )
        return next(found)

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
            chance.choice(running).kill()
            return True
        return False

    def _start(
        self, name: str, host: str, *command: str, modules: tuple[Path, ...] | None = None
    ) -> None:
        environment = {
            **{key: text for key, text in os.environ.items() if not key.startswith("SPARK_")},
            **self._conf,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": OF_SPARK,
            # Executors that are killed are started again for ever.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
            "SPARK_LOCAL_DIRS": str(self.shuffles(name)),
            "TMPDIR": str(self.temporary(name)),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": self._modules if modules is None else os.pathsep.join(map(str, modules)),
        }
        self.temporary(name).mkdir(exist_ok=True)
        log = (self._directory / f"{name}.log").open("wb")
        prefix = self._prefixes.get(host, ())
        program = str(SPARK_HOME / "bin" / "spark-class")
        with log:
            self._processes[name] = subprocess.Popen(
                [*WITH_PARENT, *prefix, program, command[0], "--host", host, *command[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")


def kill_families(executors: Sequence[psutil.Process]) -> None:
    """Kill -9 executors and their Pythons, which would otherwise run on until they notice."""
    _kill([*executors, *(child for executor in executors for child in _family(executor.pid))])


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_DOWN_S)


def _family(pid: int) -> list[psutil.Process]:
    """Return all descendants of a process."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def _command(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return " ".join(process.cmdline())
    return ""
