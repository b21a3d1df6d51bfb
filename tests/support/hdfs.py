"""A real HDFS on loopback: NameNodes and DataNodes from Maven Central, in a process of its own."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path

import pytest

from tests.support.maven_jars import HADOOP, class_path, java
from tests.support.waiting import wait_for

_PROGRAM = HADOOP.parent / "MiniHdfs.java"
_JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_UP_S, _COMMAND_S, _DOWN_S = 300, 300, 60

_names = itertools.count(1)


class Hdfs:
    """A running HDFS.

    Args:
        process: its JVM.
        log: what it prints.
        conf: the directory with the configuration of clients, for ``HADOOP_CONF_DIR``.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path, conf: Path) -> None:
        self._process = process
        self._log = log
        self.conf = conf
        self.uri = ""

    def wait_until_ready(self) -> None:
        self.uri = self._answer("READY ", _UP_S)

    def new_url(self) -> str:
        """Return a URL below which nothing exists yet."""
        return f"{self.uri}/tests/{next(_names)}"

    def run(self, command: str) -> None:
        """Run a command of MiniHdfs.java and wait until it is done."""
        assert self._process.stdin is not None
        before = len(self._log.read_text())
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        self._answer(f"OK {command}", _COMMAND_S, before)

    def _answer(self, begin: str, limit_s: float, before: int = 0) -> str:
        def printed() -> str | None:
            text = self._log.read_text()[before:]
            lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
            return next((line for line in lines if line.startswith((begin, "ERROR"))), None)

        wait_for(lambda: printed() or self._process.poll() is not None, limit_s)
        line = printed()
        assert line is not None, self._log.read_text()
        assert line.startswith(begin), line
        return line.removeprefix(begin).strip()


@contextmanager
def running_hdfs(
    directory: Path,
    data_nodes: int = 3,
    name_nodes: int = 1,
    kerberos: Kerberos | None = None,
) -> Iterator[Hdfs]:
    """Start an HDFS that keeps its files in *directory*; skip without its parts."""
    pytest.importorskip("hdfs_native", reason="pip install 'dstreams[hdfs]'")
    jars = class_path(HADOOP, "minicluster")
    dfs = directory / "dfs"
    command = [
        *(java(), *_JVM, *(kerberos.jvm_options if kerberos else ())),
        *("-cp", jars, str(_PROGRAM), str(dfs), str(data_nodes), str(name_nodes)),
        *(kerberos.settings if kerberos else ()),
    ]
    log = directory / "hdfs.log"
    with _running(command, log) as process:
        hdfs = Hdfs(process, log, dfs)
        hdfs.wait_until_ready()
        yield hdfs


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program until its standard input is closed, or kill it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True, cwd=log.parent
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_DOWN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Kerberos:
    """A running key distribution center with the principals of an HDFS and of a user.

    Args:
        directory: has the keytab with the keys of all.
    """

    user = "clicks@EXAMPLE.COM"

    def __init__(self, directory: Path) -> None:
        self.keytab = directory / "all.keytab"
        self.conf = directory / "krb5.conf"

    @property
    def jvm_options(self) -> list[str]:
        return [f"-Djava.security.krb5.conf={self.conf}"]

    @property
    def settings(self) -> list[str]:
        """Settings of HDFS: everyone must authenticate, and transfers are protected."""
        settings = {
            "hadoop.security.authentication": "kerberos",
            "dfs.block.access.token.enable": "true",
            "dfs.data.transfer.protection": "privacy",
            "ignore.secure.ports.for.testing": "true",
            "dfs.web.authentication.kerberos.principal": "HTTP/localhost@EXAMPLE.COM",
            "dfs.web.authentication.kerberos.keytab": str(self.keytab),
        }
        for node in ("namenode", "datanode"):
            settings[f"dfs.{node}.kerberos.principal"] = f"{getuser()}/localhost@EXAMPLE.COM"
            settings[f"dfs.{node}.keytab.file"] = str(self.keytab)
        return [f"{key}={value}" for key, value in settings.items()]


@contextmanager
def running_kerberos(directory: Path) -> Iterator[Kerberos]:
    """Start a key distribution center that keeps its files in *directory*."""
    jars, log = class_path(HADOOP, "minikdc"), directory / "kdc.log"
    kerberos, properties = Kerberos(directory), directory / "kdc.properties"
    properties.touch()
    command = [
        *(java(), *_JVM, "-cp", jars, "org.apache.hadoop.minikdc.MiniKdc"),
        *(str(directory), str(properties), str(kerberos.keytab)),
        # The first one is that of clients which name none.
        *(kerberos.user.partition("@")[0], f"{getuser()}/localhost", "HTTP/localhost"),
    ]
    with _running(command, log) as process:
        wait_for(lambda: kerberos.conf.exists() or process.poll() is not None, _UP_S)
        wait_for(lambda: "Running at" in log.read_text() or process.poll() is not None, _UP_S)
        assert process.poll() is None, log.read_text()
        yield kerberos
        process.terminate()  # it reads nothing
