"""The server of the demo, read by plain sockets."""

from __future__ import annotations

import socket

import pytest

from dstreams.cli.demo.server import TextServer
from tests.support.waiting import wait_for

BIG = b"0123456789abcdef" * (2 << 20)  # 32 MiB: more than the buffers of two sockets hold


def connect(server: TextServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=60)


def receive(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (part := client.recv(1 << 16)):
        data += part
    return bytes(data)


def test_sends_the_text_and_keeps_the_connection() -> None:
    """A client gets the text, and no end after it until the server is closed."""
    text = b"to be\nor not\n"
    with TextServer(text) as server, connect(server) as client:
        assert receive(client, len(text)) == text
        wait_for(lambda: server.sent_bytes == len(text))
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.settimeout(60)
        server.close()
        assert client.recv(1) == b""


def test_waits_for_a_slow_client() -> None:
    """A client that does not read stops the server; when it reads, all arrives in order."""
    with TextServer(BIG) as server, connect(server) as client:
        wait_for(lambda: server.sent_bytes > 0)
        assert server.sent_bytes < len(BIG)
        assert receive(client, len(BIG)) == BIG
        wait_for(lambda: server.sent_bytes == len(BIG))


def test_closing_before_a_client_came() -> None:
    """A server nobody connected to ends, and its port is free."""
    server = TextServer(b"x\n")
    server.start()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        connect(server)


def test_closing_while_it_sends() -> None:
    """A server that waits for its client can be closed."""
    with TextServer(BIG) as server, connect(server) as client:
        wait_for(lambda: server.sent_bytes > 0)
        server.close()
        assert len(receive(client, len(BIG))) < len(BIG)


def test_client_that_leaves() -> None:
    """A client that goes away ends the sending, and nothing is raised."""
    with TextServer(BIG) as server, connect(server) as client:
        client.recv(1)
    assert server.sent_bytes < len(BIG)
