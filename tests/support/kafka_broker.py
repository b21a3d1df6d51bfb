"""A real Kafka broker of the tests' own: one KRaft node, in a process of its own, on loopback.

It ends with those who use it, however they end. Each holds a shared lock on a file; whoever started
the broker left a guard behind, which waits for the exclusive lock on that file and then kills the
broker.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from tests.support.jvms import PREFIX, SHORT_LIVED
from tests.support.kafka_cluster import KafkaCluster
from tests.support.maven_jars import KAFKA, class_path, java
from tests.support.ports import free_ports
from tests.support.waiting import wait_for

_UP_S, _DOWN_S = 300, 60
_TRIES = 3

# Started twice removed from its starter, which may end before the others who use the broker.
_GUARD = """
import fcntl, os, subprocess, sys, threading

users, *command = sys.argv[1:]
if os.fork():
    os._exit(0)
broker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, close_fds=True)
print(broker.pid, flush=True)
os.close(1)

def end():
    with open(users) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        broker.kill()

threading.Thread(target=end, daemon=True).start()
os._exit(abs(broker.wait()))
"""

# For one node that lives for minutes: nothing is copied, nobody is waited for.
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",  # records with old timestamps stay until a test deletes them
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.cleaner.backoff.ms": "100",
    # How soon a broker that was killed may come back, and one that was stopped counts as gone.
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "2000",
}

_LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n
"""


class KafkaBroker(KafkaCluster):
    """A broker with a directory and ports of its own, which starts, is killed and starts again.

    Args:
        directory: for its data, settings and log; empty, or of a broker before.
        settings: of the broker beside, or in place of, those of a fast single node.
        listeners: security protocols that the broker also listens by, on ports of their own.
        java_options: of the JVM.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        listeners: tuple[str, ...] = (),
        java_options: str = f"-Xmx384m {SHORT_LIVED}",
    ) -> None:
        self.directory = directory
        self._own_settings = dict(settings or {})
        self._listeners = ("PLAINTEXT", *listeners)
        self._java = [java(), *java_options.split(), "-cp", class_path(KAFKA, "broker")]
        self._java.append(f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}")
        self._users = _Users(directory / "users")
        self._process: psutil.Process | None = None
        self._was_up = False
        self._choose_ports()

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        return self._running().pid

    @property
    def log(self) -> str:
        """What the broker has said, over all its runs."""
        with suppress(FileNotFoundError):
            return (self.directory / "broker.log").read_text(encoding="utf-8", errors="replace")
        return ""

    def address(self, listener: str) -> str:
        """Return host and port of a listener, such as ``SASL_SSL``."""
        return f"127.0.0.1:{self._ports[listener]}"

    def start(self) -> None:
        """Start, and return when the broker answers.

        A broker that was never up takes other ports if somebody else has taken its own.
        """
        assert self._process is None, f"the broker on {self.bootstrap} runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _TRIES + 1):
            self._write_settings()
            if not (self.directory / "data" / "meta.properties").exists():
                self._format()
            self._users.enter()
            try:
                self._launch()
                wait_for(lambda: self._answers() or not self._is_alive(), _UP_S)
                if self._is_alive():
                    self._was_up = True
                    return
            except BaseException:
                self.kill()
                raise
            self.kill()
            if self._was_up or attempt == _TRIES or "Address already in use" not in self.log:
                raise AssertionError(f"the broker ended as it started: {self.log[-2000:]}")
            self._choose_ports()

    def stop(self) -> None:
        """Let the broker end in order."""
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                self._process.resume()
                self._process.terminate()
                with suppress(psutil.TimeoutExpired):
                    self._process.wait(_DOWN_S)
            self.kill()

    def kill(self) -> None:
        """End the broker at once, by SIGKILL."""
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                self._process.send_signal(signal.SIGKILL)
                self._process.wait(_DOWN_S)
            self._process = None
        self._users.leave()

    def restart(self) -> None:
        """Start again with the same ports and data; one that runs is stopped before."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Keep the broker from doing anything, with its connections open, by SIGSTOP."""
        process = self._running()
        process.suspend()
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED)

    def resume(self) -> None:
        """Let a broker that was paused go on."""
        self._running().resume()

    def _running(self) -> psutil.Process:
        assert self._process is not None, "the broker does not run"
        return self._process

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.is_running()

    def _choose_ports(self) -> None:
        names = (*self._listeners, "CONTROLLER")
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        super().__init__(self.address("PLAINTEXT"))

    def _write_settings(self) -> None:
        advertised = ",".join(f"{name}://{self.address(name)}" for name in self._listeners)
        settings = {
            **_SETTINGS,
            "controller.quorum.voters": f"1@{self.address('CONTROLLER')}",
            "listeners": f"{advertised},CONTROLLER://{self.address('CONTROLLER')}",
            "advertised.listeners": advertised,
            "log.dirs": str(self.directory / "data"),
            **self._own_settings,
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.directory / "server.properties").write_text(text, encoding="utf-8")
        (self.directory / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")

    def _format(self) -> None:
        """Make the storage of a broker: once for all of a run, which have the same node."""
        data = self.directory / "data"
        of_run = Path(tempfile.gettempdir())
        formatted = of_run / "kafka-formatted"
        if not formatted.exists():
            self._run_storage_tool()
            if not of_run.name.startswith(PREFIX):
                return  # a directory of others as well
            with tempfile.TemporaryDirectory(dir=of_run) as copy, suppress(OSError):
                shutil.copytree(data, f"{copy}/data")
                os.rename(f"{copy}/data", formatted)  # another process may have been first
        else:
            shutil.copytree(formatted, data, dirs_exist_ok=True)

    def _run_storage_tool(self) -> None:
        cluster = base64.urlsafe_b64encode(random.randbytes(16)).decode().rstrip("=")
        properties = str(self.directory / "server.properties")
        done = subprocess.run(
            [
                *(*self._java, "kafka.tools.StorageTool"),
                *("format", f"--cluster-id={cluster}", "--config", properties),
            ],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_UP_S,
        )
        assert done.returncode == 0, f"the storage of the broker was not formatted: {done.stdout}"

    def _launch(self) -> None:
        properties = str(self.directory / "server.properties")
        with (self.directory / "broker.log").open("ab") as log:
            guard = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", _GUARD, str(self._users.path)),
                    *(*self._java, "kafka.Kafka", properties),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
        with guard:
            assert guard.stdout is not None
            pid = guard.stdout.readline()
            assert pid, f"the broker was not started: {self.log[-2000:]}"
            self._process = psutil.Process(int(pid))

    def _answers(self) -> bool:
        host, port = self.bootstrap.split(":")
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) != 0:
                return False
        return self.is_up()


class _Users:
    """Those who use a broker, in any process: the broker lives as long as one of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def enter(self) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a")
            # A guard that has the exclusive lock ends the broker before this one is given.
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def shared_broker() -> Iterator[KafkaCluster]:
    """Use the broker of this run of the tests, which all its processes share.

    The first who asks starts it. It is none to stop or to kill.
    """
    directory = Path(tempfile.gettempdir(), "kafka")
    directory.mkdir(exist_ok=True)
    users = _Users(directory / "users")
    record = directory / "broker.json"
    with (directory / "starting").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        users.enter()
        try:
            cluster = _recorded(record)
            if cluster is None:
                broker = KafkaBroker(directory)
                broker.start()
                record.write_text(json.dumps({"pid": broker.pid, "bootstrap": broker.bootstrap}))
                cluster = KafkaCluster(broker.bootstrap)
                broker._users.leave()
        except BaseException:
            users.leave()
            raise
    try:
        yield cluster
    finally:
        cluster.close()
        users.leave()


def _recorded(record: Path) -> KafkaCluster | None:
    """Return the shared broker if it still runs."""
    with suppress(FileNotFoundError, ValueError):
        found = json.loads(record.read_text())
        if psutil.pid_exists(found["pid"]):
            return KafkaCluster(found["bootstrap"])
    return None
