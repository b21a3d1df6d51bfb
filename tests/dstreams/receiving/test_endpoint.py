"""The driver's end: which connection counts, and when a block is acknowledged."""

from __future__ import annotations

import logging
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from dstreams.receiving.blocks import BlocksRefusedError, encode_records
from dstreams.receiving.protocol import (
    Channel,
    Kind,
    Outcome,
    ProtocolError,
    block_body,
    new_token,
    read_ack,
    read_rate,
    text_body,
)
from dstreams.receiving.supervisor import Notice
from tests.support.receiving import ListeningEndpoint
from tests.support.waiting import wait_for

TOKEN = new_token()


class Driver(ListeningEndpoint):
    """An endpoint, with all that it was told."""

    def __init__(self) -> None:
        super().__init__(TOKEN)
        self.channels: list[Channel] = []

    def connect(self, token: bytes = TOKEN, host: str = "worker-1") -> Channel:
        """Connect as an executor; return when the driver has taken note."""
        count = len(self.connected)
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        try:
            channel = Channel.connect(connection, token)
        except OSError:
            connection.close()
            raise
        self.channels.append(channel)
        channel.send(Kind.HELLO, text_body({"host": host}))
        wait_for(lambda: len(self.connected) > count and self.endpoint.is_connected())
        return channel


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.store.open.set()
    made.endpoint.close()
    for channel in made.channels:
        channel.close()


class Bomb:
    """Sets a mark when it is unpickled."""

    exploded = False

    def __reduce__(self) -> Any:
        return (setattr, (Bomb, "exploded", True))


def test_a_block_is_acknowledged_when_it_is_stored(driver: Driver) -> None:
    """Not before."""
    channel = driver.connect()
    driver.store.open.clear()
    (block,) = encode_records([1, 2, 3])
    channel.send(Kind.BLOCK, block_body(5, 3), block.payload)
    channel._connection.settimeout(0.1)
    with pytest.raises(TimeoutError):
        channel.receive()
    channel._connection.settimeout(60)
    driver.store.open.set()
    kind, body = channel.receive()
    assert (kind, read_ack(body)) == (Kind.ACK, (5, Outcome.STORED, ""))
    assert driver.store.records == [1, 2, 3]


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (OSError("disk full"), Outcome.FAILED),
        (BlocksRefusedError("the stream has stopped"), Outcome.REFUSED),
    ],
)
def test_a_block_that_is_not_stored_is_said_to_be(
    driver: Driver, failure: Exception, outcome: Outcome
) -> None:
    """With the reason, and the connection goes on."""
    channel = driver.connect()
    driver.store.failures = [failure]
    for number in range(2):
        channel.send(Kind.BLOCK, block_body(number, 1), b"x")
    number, found, text = read_ack(channel.receive()[1])
    assert (number, found) == (0, outcome)
    assert str(failure) in text
    assert read_ack(channel.receive()[1]) == (1, Outcome.STORED, "")


def test_nothing_is_unpickled(driver: Driver) -> None:
    """Not even what an executor sends that has proved who it is."""
    channel = driver.connect()
    channel.send(Kind.BLOCK, block_body(0, 1), pickle.dumps([Bomb()]))
    assert read_ack(channel.receive()[1]) == (0, Outcome.STORED, "")
    assert not Bomb.exploded


def test_strangers_are_refused(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong token, or none, gets nowhere, and is in the log."""
    with pytest.raises(OSError, match=r"closed|reset"):
        driver.connect(new_token())
    with socket.create_connection(("127.0.0.1", driver.port), timeout=60) as stranger:
        stranger.sendall(pickle.dumps(Bomb()).ljust(64, b"."))
        assert len(stranger.recv(40, socket.MSG_WAITALL)) == 40
        with suppress(ConnectionResetError):  # as what came after the proof was not read
            assert stranger.recv(1) == b""
    wait_for(lambda: caplog.text.count("refused a connection from") == 2)
    assert not Bomb.exploded
    assert driver.connected == []


def test_strangers_do_not_keep_the_receiver_out(driver: Driver) -> None:
    """Connections that say nothing are limited in number, and make room when they close."""
    silent = [socket.create_connection(("127.0.0.1", driver.port)) for _ in range(30)]
    for connection in silent:
        connection.close()

    def connects() -> bool:
        try:
            driver.connect()
        except OSError:
            return False
        return True

    wait_for(connects)


def test_the_first_message_says_who_it_is(driver: Driver) -> None:
    """Anything else ends the connection."""
    connection = socket.create_connection(("127.0.0.1", driver.port), timeout=60)
    with connection:
        channel = Channel.connect(connection, TOKEN)
        channel.send(Kind.BLOCK, block_body(0, 1), b"x")
        with pytest.raises(OSError, match=r"closed|reset"):
            channel.receive()
    assert driver.store.blocks == []


def test_a_breach_of_the_protocol_ends_the_connection(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """What an executor may not say is not obeyed."""
    channel = driver.connect()
    channel.send(Kind.STOP)
    with pytest.raises(OSError, match=r"closed|reset"):
        channel.receive()
    assert "STOP is not for the driver" in caplog.text


def test_the_connection_that_came_last_counts(driver: Driver) -> None:
    """An executor that was given up, and lives, can store nothing any more."""
    old = driver.connect(host="old")
    new = driver.connect(host="new")
    with pytest.raises(OSError, match=r"closed|reset"):
        old.receive()
    new.send(Kind.BLOCK, block_body(0, 1), b"x")
    assert read_ack(new.receive()[1])[1] is Outcome.STORED
    assert driver.notices == []
    assert [said["host"] for said in driver.connected] == ["old", "new"]


def test_a_connection_that_breaks_is_told(driver: Driver) -> None:
    """The receiver is being started again."""
    driver.connect().close()
    wait_for(lambda: driver.notices)
    (notice,) = driver.notices
    assert notice.kind == "restarting"
    assert "its connection was lost" in notice.message
    assert not driver.endpoint.is_connected()


def test_a_receiver_that_stopped_is_not_lost(driver: Driver) -> None:
    """Its own word comes first, and is the last."""
    channel = driver.connect()
    channel.send(Kind.NOTICE, text_body({"kind": "stopped", "message": "done", "error": ""}))
    channel.close()
    wait_for(lambda: not driver.endpoint.is_connected())
    assert driver.notices == [Notice("stopped", "done", "")]


def test_the_receiver_is_told_to_stop_and_its_rate(driver: Driver) -> None:
    """Now, and again whoever connects later."""
    first = driver.connect()
    driver.endpoint.update_rate(12.5)
    driver.endpoint.stop_receiver()
    second = driver.connect()
    for channel in (first, second):
        kind, body = channel.receive()
        assert (kind, read_rate(body)) == (Kind.RATE, 12.5)
        assert channel.receive() == (Kind.STOP, b"")


def test_close_ends_all(driver: Driver) -> None:
    """Connections, and the wish to connect; no thread is left."""
    channel = driver.connect()
    driver.endpoint.close()
    driver.endpoint.close()
    with pytest.raises(OSError, match=r"closed|reset"):
        channel.receive()
    with pytest.raises(OSError, match=r"refused|closed|reset"):
        driver.connect()
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("numbers")])


def test_a_notice_of_no_known_kind_ends_the_connection(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver does not guess."""
    caplog.set_level(logging.WARNING)
    channel = driver.connect()
    channel.send(Kind.NOTICE, text_body({"kind": "exploded", "message": "", "error": ""}))
    with pytest.raises(OSError, match=r"closed|reset"):
        channel.receive()
    assert issubclass(ProtocolError, OSError)
    assert "unknown kind 'exploded'" in caplog.text
