"""A page over monitors that a test feeds by hand, and a client that says exactly what it says."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dstreams.common.clock import SystemClock
from dstreams.monitoring.events import BatchCompleted, BatchInfo, InputInfo
from dstreams.monitoring.monitor import Monitor, RunInfo
from dstreams.monitoring.registry import StreamRegistry
from dstreams.monitoring.state_queries import StateQueries
from dstreams.monitoring.status import GraphNode
from dstreams.monitoring.web.documents import ApplicationFacts
from dstreams.monitoring.web.server import Address, PageServer
from dstreams.testing import ManualClock

FACTS = ApplicationFacts("app", "local-1", "http://localhost:4040", "0.1.0", "4.3.0", 1000)


@dataclass(frozen=True)
class Reply:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def batch(number: int, **changes: Any) -> BatchInfo:
    """Return a batch of a second that took 10 ms."""
    time_ms = 1000 * (number + 1)
    fields = {
        "records": {"words": 3},
        "outputs": (),
        "outcome": "succeeded",
        "failure": None,
        "inputs": (InputInfo(0, "words", 3, "3 words"),),
    }
    return BatchInfo(
        number, time_ms, submitted_ms=time_ms, started_ms=time_ms + 1, completed_ms=time_ms + 11,
        **{**fields, **changes},
    )  # fmt: skip


def make_monitor(
    registry: StreamRegistry,
    run_id: str = "run-1",
    states: StateQueries | None = None,
    retained: int = 1000,
) -> Monitor:
    """Return the monitor of a stream that runs."""
    monitor = Monitor("stream", "app", 1000, ManualClock(5000), retained, registry.changed)
    monitor.started(RunInfo("stream-1", run_id, (GraphNode(0, "input", "words"),), states=states))
    registry.add(monitor)
    return monitor


def run_batches(monitor: Monitor, numbers: range) -> None:
    for number in numbers:
        monitor.record(BatchCompleted(batch(number)))


@contextmanager
def serving(
    registry: StreamRegistry, address: Address | None = None, facts: ApplicationFacts = FACTS
) -> Iterator[PageServer]:
    server = PageServer(address or Address(port=0), registry, facts, SystemClock())
    try:
        yield server
    finally:
        server.close()


def connect(server: PageServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=120)


def say(server: PageServer, text: bytes) -> Reply:
    """Send *text* as it is, and read what comes until the end."""
    with connect(server) as connection:
        connection.sendall(text)
        return read_reply(connection)


def read_reply(connection: socket.socket) -> Reply:
    received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    return Reply(int(first.split()[1]), {name: value for name, _, value in pairs}, body)


def get(server: PageServer, path: str, method: str = "GET", **headers: str) -> Reply:
    """Ask as a program does; ``Host`` and others are given with underscores for dashes."""
    return say(server, request(path, method, **{"Host": f"127.0.0.1:{server.port}", **headers}))


def request(path: str, method: str = "GET", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class Events:
    """An open page: it reads events one by one."""

    def __init__(self, server: PageServer, **headers: str) -> None:
        self.connection = connect(server)
        given = {"Host": f"127.0.0.1:{server.port}", **headers}
        self.connection.sendall(request("/events", **given))
        self._file = self.connection.makefile("rb")
        while self._file.readline().strip():
            pass

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.connection.close()

    def rest(self) -> bytes:
        return self._file.read()

    def line(self) -> bytes:
        return self._file.readline()

    def next(self) -> tuple[str, Any]:
        """Return id and document of the next event."""
        while True:
            fields: dict[str, str] = {}
            for line in iter(self._file.readline, b""):
                if line == b"\n":
                    break
                name, _, value = line.decode().rstrip("\n").partition(": ")
                fields[name] = value
            else:
                raise EOFError("the server has ended the events")
            if "data" in fields:
                assert fields["event"] == "status"
                return fields["id"], json.loads(fields["data"])
