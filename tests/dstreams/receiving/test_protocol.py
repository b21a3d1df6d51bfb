"""The connection between executor and driver: who may talk, and what may be said."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dstreams.receiving import protocol
from dstreams.receiving.protocol import (
    Channel,
    Kind,
    Outcome,
    ProtocolError,
    ack_body,
    block_body,
    new_token,
    rate_body,
    read_ack,
    read_block,
    read_rate,
    read_text,
    text_body,
)

TOKEN = new_token()


@dataclass
class Ends:
    """Two sockets that are connected."""

    driver: socket.socket
    executor: socket.socket


@pytest.fixture
def ends() -> Iterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        executor = socket.create_connection(server.getsockname())
        driver, _ = server.accept()
    with driver, executor:
        yield Ends(driver, executor)


class Answer:
    """What a call returned or raised on another thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    def get(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._value


def channels(ends: Ends) -> tuple[Channel, Channel]:
    """Both ends, as they are after the handshake."""
    driver = Answer(lambda: Channel.accept(ends.driver, TOKEN))
    executor = Channel.connect(ends.executor, TOKEN)
    return driver.get(), executor


# Who may talk ------------------------------------------------------------------------------------


def test_both_prove_to_know_the_token(ends: Ends) -> None:
    """Then messages go both ways."""
    driver, executor = channels(ends)
    executor.send(Kind.BLOCK, block_body(7, 3), b"payload")
    kind, body = driver.receive()
    assert (kind, read_block(body)) == (Kind.BLOCK, (7, 3, b"payload"))
    driver.send(Kind.STOP)
    assert executor.receive() == (Kind.STOP, b"")


def test_a_wrong_token_is_refused(ends: Ends) -> None:
    """And learns nothing but that."""
    driver = Answer(lambda: Channel.accept(ends.driver, TOKEN))
    executor = Answer(lambda: Channel.connect(ends.executor, new_token()))
    with pytest.raises(ProtocolError, match="the peer does not know the token"):
        driver.get()
    ends.driver.close()
    with pytest.raises(OSError, match=r"closed|reset"):
        executor.get()


def test_a_driver_without_the_token_is_refused(ends: Ends) -> None:
    """A program that took the driver's port does not get the blocks."""

    def impostor() -> None:
        ends.driver.sendall(b"DSRECV1\n" + b"n" * 32)
        assert len(ends.driver.recv(64, socket.MSG_WAITALL)) == 64
        ends.driver.sendall(b"p" * 32)

    posing = Answer(impostor)
    with pytest.raises(ProtocolError, match="the driver does not know the token"):
        Channel.connect(ends.executor, TOKEN)
    posing.get()


def test_the_proof_of_one_connection_is_no_use_in_another(ends: Ends) -> None:
    """Whoever has listened cannot repeat what was said: the driver's nonce is new each time."""
    heard = b"n" * 32 + protocol._proof(TOKEN, b"executor", b"d" * 32 + b"n" * 32)
    driver = Answer(lambda: Channel.accept(ends.driver, TOKEN))
    ends.executor.recv(40, socket.MSG_WAITALL)
    ends.executor.sendall(heard)
    with pytest.raises(ProtocolError, match="does not know the token"):
        driver.get()


def test_the_drivers_proof_is_no_proof_of_an_executor(ends: Ends) -> None:
    """What the driver answers cannot be sent back to it: each role has a proof of its own."""
    nonces = b"n" * 64
    roles = {protocol._proof(TOKEN, role, nonces) for role in (b"executor", b"driver")}
    assert len(roles) == 2


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n" * 4, b"\x80" * 64])
def test_garbage_is_refused(ends: Ends, garbage: bytes) -> None:
    """Before anything of it is interpreted."""
    driver = Answer(lambda: Channel.accept(ends.driver, TOKEN))
    ends.executor.sendall(garbage)
    with pytest.raises(ProtocolError, match="does not know the token"):
        driver.get()


def test_who_says_nothing_is_not_waited_for(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake has a time limit."""
    monkeypatch.setattr(protocol, "HANDSHAKE_SECONDS", 0.05)
    with pytest.raises(TimeoutError):
        Channel.accept(ends.driver, TOKEN)


def test_a_server_that_is_no_driver_is_noticed(ends: Ends) -> None:
    """Its greeting is another one."""
    ends.driver.sendall(b"220 mail.example.org ESMTP" + b" " * 40)
    with pytest.raises(ProtocolError, match="no driver of a receiver"):
        Channel.connect(ends.executor, TOKEN)


# What may be said --------------------------------------------------------------------------------


def test_an_announced_length_is_not_believed(ends: Ends) -> None:
    """No memory is asked for what would be too long."""
    driver, _ = channels(ends)
    ends.executor.sendall(struct.pack("<BI", Kind.BLOCK, 0xFFFFFFFF))
    with pytest.raises(ProtocolError, match="BLOCK of 4294967295 bytes, at most"):
        driver.receive()


def test_each_kind_has_its_limit(ends: Ends) -> None:
    """A text may not be as long as a block; the sender notices first."""
    driver, executor = channels(ends)
    with pytest.raises(ValueError, match="HELLO of 65537 bytes is over 65536"):
        executor.send(Kind.HELLO, b"x" * 65537)
    ends.executor.sendall(struct.pack("<BI", Kind.HELLO, 65537))
    with pytest.raises(ProtocolError, match="HELLO of 65537 bytes"):
        driver.receive()


def test_an_unknown_kind_is_refused(ends: Ends) -> None:
    """The message has its number."""
    driver, _ = channels(ends)
    ends.executor.sendall(struct.pack("<BI", 99, 0))
    with pytest.raises(ProtocolError, match="unknown kind 99"):
        driver.receive()


def test_a_torn_message_is_an_end(ends: Ends) -> None:
    """Half a block is none."""
    driver, _ = channels(ends)
    ends.executor.sendall(struct.pack("<BI", Kind.BLOCK, 100) + b"x" * 50)
    ends.executor.close()
    with pytest.raises(OSError, match="closed"):
        driver.receive()


def test_messages_of_many_threads_stay_whole(ends: Ends) -> None:
    """No message is mixed into another."""
    driver, executor = channels(ends)

    def send(number: int) -> None:
        for records in range(50):
            executor.send(Kind.BLOCK, block_body(number, records), bytes([number]) * 10_000)

    senders = [Answer(lambda number=number: send(number)) for number in range(4)]
    seen: dict[int, list[int]] = {number: [] for number in range(4)}
    for _ in range(200):
        kind, body = driver.receive()
        number, records, payload = read_block(body)
        assert (kind, payload) == (Kind.BLOCK, bytes([number]) * 10_000)
        seen[number].append(records)
    for sender in senders:
        sender.get()
    assert seen == {number: list(range(50)) for number in range(4)}


def test_bodies_are_read_as_they_were_written() -> None:
    """Numbers, texts and rates."""
    assert read_ack(ack_body(5, Outcome.FAILED, "disk full")) == (5, Outcome.FAILED, "disk full")
    assert read_rate(rate_body(12.5)) == 12.5
    assert read_text(text_body({"kind": "error", "stage": 3})) == {"kind": "error", "stage": 3}


@pytest.mark.parametrize("text", ["x" * 1_000_000, "\U0001f600" * 100_000, "\udc80" * 100_000])
def test_long_texts_are_cut_to_fit(text: str) -> None:
    """A traceback of any length can be sent; its end is kept."""
    body = text_body({"kind": "error", "message": text, "error": text + "end"})
    assert len(body) <= protocol.MAX_TEXT_BYTES
    assert read_text(body)["error"].endswith("end")
    assert len(ack_body(1, Outcome.FAILED, text)) <= protocol.MAX_TEXT_BYTES


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (read_block, b"short"),
        (read_ack, b""),
        (read_ack, struct.pack("<QB", 1, 77)),
        (read_rate, b"1234"),
        (read_text, b"\xff"),
        (read_text, b"[1]"),
        (read_text, b"[" * 60_000),
        (read_text, json.dumps("text").encode()),
    ],
)
def test_bodies_that_cannot_be_read_are_refused(read: Callable[[bytes], Any], body: bytes) -> None:
    """As any other breach of the protocol."""
    with pytest.raises(ProtocolError):
        read(body)
