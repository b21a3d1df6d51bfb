"""A TCP server's bytes, made records by a function of the user's."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import pytest
from pyspark import StorageLevel

from dstreams.monitoring.events import ReceiverStopped
from dstreams.sources.socket_receiver import SocketReceiver
from tests.support.receiving import Supervised
from tests.support.waiting import wait_for


class Server:
    """A TCP server that serves one connection after another, as the test tells it to."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(60)
        self.port: int = self.socket.getsockname()[1]

    def accept(self) -> socket.socket:
        return self.socket.accept()[0]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.socket.close()


@pytest.fixture
def receive(server: Server) -> Iterator[Callable[..., Supervised]]:
    """Receive from the server; the end of the test ends it."""
    made: list[Supervised] = []

    def start(converter: Callable[[BinaryIO], Iterable[Any]]) -> Supervised:
        receiver = SocketReceiver("127.0.0.1", server.port, converter, StorageLevel.MEMORY_ONLY)
        supervised = Supervised(receiver)
        made.append(supervised)
        supervised.supervisor.start()
        return supervised

    yield start
    for supervised in made:
        supervised.end()
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("socketStream")])


Receive = Callable[..., Supervised]


def lines(stream: BinaryIO) -> Iterator[Any]:
    for line in stream:
        yield json.loads(line)


def stored(supervised: Supervised, count: int) -> list[Any]:
    """Let block intervals pass until that many records are stored."""

    def is_complete() -> bool:
        supervised.clock.advance(200)
        return len(supervised.store.records) >= count

    wait_for(is_complete)
    return supervised.store.records


def test_the_converter_makes_the_records(server: Server, receive: Receive) -> None:
    """From a binary file, as they come: the connection stays open here."""
    supervised = receive(lines)
    with server.accept() as connection:
        connection.sendall(b'{"a": 1}\n[2, 3]\n"half')
        assert stored(supervised, 2) == [{"a": 1}, [2, 3]]


def test_it_connects_again_when_the_server_closes(server: Server, receive: Receive) -> None:
    """Each connection is a new file for the converter."""
    supervised = receive(lines)
    for number in range(3):
        with server.accept() as connection:
            connection.sendall(f"{number}\n".encode())
    assert stored(supervised, 3) == [0, 1, 2]
    assert "the server closed the connection" in {
        info.last_error_message for info in supervised.infos
    }


def test_a_converter_that_fails_restarts_it(server: Server, receive: Receive) -> None:
    """With the error; what came before counts."""
    supervised = receive(lines)
    with server.accept() as connection:
        connection.sendall(b"1\nno json\n")
        with server.accept() as other:
            other.sendall(b"2\n")
            assert stored(supervised, 2) == [1, 2]
    assert any("JSONDecodeError" in info.last_error for info in supervised.infos)


def test_a_server_that_is_not_there_is_tried_again(server: Server, receive: Receive) -> None:
    """For ever, with the pause of a restart."""
    server.socket.close()
    supervised = receive(lines)
    wait_for(lambda: supervised.kinds.count(ReceiverStopped) >= 3)
    assert any("ConnectionRefusedError" in info.last_error for info in supervised.infos)


def test_stop_ends_a_connection_that_says_nothing(server: Server, receive: Receive) -> None:
    """And the half of a record that came is no record."""
    supervised = receive(lambda stream: iter(stream.readline, b""))
    with server.accept() as connection:
        connection.sendall(b"whole\nhalf")
        assert stored(supervised, 1) == [b"whole\n"]
        supervised.end()
    assert supervised.store.records == [b"whole\n"]
