"""What an executor's receiver and the driver say to each other over a connection.

First each proves to the other that it knows the token of the receiver, without showing it::

    driver      8s greeting | 32s nonce
    executor    32s nonce | 32s HMAC-SHA256(token, "executor" nonces)
    driver      32s HMAC-SHA256(token, "driver" nonces)

All of fixed size, and nothing of it is interpreted. Then messages follow, little-endian::

    B kind | I length | body

    HELLO    executor  JSON                            who it is
    BLOCK    executor  Q number | I records | payload  a block; the driver never looks inside
    ACK      driver    Q number | B outcome | text     what became of the block
    NOTICE   executor  JSON                            what became of the receiver
    STOP     driver                                    stop the receiver
    RATE     driver    d                               records a second

The connection is not encrypted, as Spark's own is not unless it is told to be.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import threading
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from dstreams.errors import StreamError
from dstreams.receiving.blocks import MAX_PAYLOAD_BYTES

TOKEN_BYTES = 32
HANDSHAKE_SECONDS = 10.0
MAX_TEXT_BYTES = 64 << 10

_GREETING = b"DSRECV1\n"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_HEAD = struct.Struct("<BI")
_BLOCK = struct.Struct("<QI")
_ACK = struct.Struct("<QB")
_RATE = struct.Struct("<d")


class ProtocolError(StreamError, ConnectionError):
    """The peer did not prove who it is, or said what cannot be understood."""


class Kind(IntEnum):
    """The kinds of message."""

    HELLO = 1
    BLOCK = 2
    ACK = 3
    NOTICE = 4
    STOP = 5
    RATE = 6


class Outcome(IntEnum):
    """What became of a block."""

    STORED = 0
    FAILED = 1
    REFUSED = 2


_LIMITS = {
    Kind.HELLO: MAX_TEXT_BYTES,
    Kind.BLOCK: MAX_PAYLOAD_BYTES + _BLOCK.size,
    Kind.ACK: MAX_TEXT_BYTES,
    Kind.NOTICE: MAX_TEXT_BYTES,
    Kind.STOP: 0,
    Kind.RATE: _RATE.size,
}


def new_token() -> bytes:
    """Return the secret that a receiver and its driver share."""
    return secrets.token_bytes(TOKEN_BYTES)


class Channel:
    """Messages over a connection whose peer has proved who it is.

    Several threads may send; one receives.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    @classmethod
    def accept(cls, connection: socket.socket, token: bytes) -> Channel:
        """Let the executor prove that it knows *token*, as the driver.

        Raises:
            ProtocolError: it does not.
            OSError: the connection failed, or nothing came for ten seconds.
        """
        connection.settimeout(HANDSHAKE_SECONDS)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(_GREETING + nonce)
        answer = _receive(connection, _NONCE_BYTES + _PROOF_BYTES)
        nonces = nonce + answer[:_NONCE_BYTES]
        if not hmac.compare_digest(answer[_NONCE_BYTES:], _proof(token, b"executor", nonces)):
            raise ProtocolError("the peer does not know the token of this receiver")
        connection.sendall(_proof(token, b"driver", nonces))
        return cls._opened(connection)

    @classmethod
    def connect(cls, connection: socket.socket, token: bytes) -> Channel:
        """Prove to know *token*, and let the driver prove it, as the executor.

        Raises:
            ProtocolError: the peer does not know the token.
            OSError: the connection failed, or nothing came for ten seconds.
        """
        connection.settimeout(HANDSHAKE_SECONDS)
        greeting = _receive(connection, len(_GREETING) + _NONCE_BYTES)
        if not greeting.startswith(_GREETING):
            raise ProtocolError(f"the peer is no driver of a receiver, it says {greeting[:8]!r}")
        nonce = secrets.token_bytes(_NONCE_BYTES)
        nonces = greeting[len(_GREETING) :] + nonce
        connection.sendall(nonce + _proof(token, b"executor", nonces))
        proof = _receive(connection, _PROOF_BYTES)
        if not hmac.compare_digest(proof, _proof(token, b"driver", nonces)):
            raise ProtocolError("the driver does not know the token of this receiver")
        return cls._opened(connection)

    @classmethod
    def _opened(cls, connection: socket.socket) -> Channel:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}.items():
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connection)

    def send(self, kind: Kind, *body: bytes) -> None:
        """Send one message.

        Raises:
            ValueError: it is longer than its kind may be.
            OSError: the connection is broken.
        """
        length = sum(map(len, body))
        if length > _LIMITS[kind]:
            raise ValueError(f"{kind.name} of {length} bytes is over {_LIMITS[kind]}")
        with self._sending:
            self._connection.sendall(b"".join((_HEAD.pack(kind, length), *body)))

    def receive(self) -> tuple[Kind, bytes]:
        """Wait for the next message.

        Raises:
            ProtocolError: it is of no kind, or longer than its kind may be.
            OSError: the connection is broken, or was closed.
        """
        number, length = _HEAD.unpack(_receive(self._connection, _HEAD.size))
        try:
            kind = Kind(number)
        except ValueError as error:
            raise ProtocolError(f"message of unknown kind {number}") from error
        if length > _LIMITS[kind]:
            raise ProtocolError(f"{kind.name} of {length} bytes, at most {_LIMITS[kind]} may be")
        return kind, _receive(self._connection, length)

    def close(self) -> None:
        """Close the connection; who waits for a message gets an error. May come twice."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        finally:
            self._connection.close()


def block_body(number: int, records: int) -> bytes:
    """What stands before the payload of a BLOCK."""
    return _BLOCK.pack(number, records)


def read_block(body: bytes) -> tuple[int, int, bytes]:
    """Number, records and payload of a BLOCK; ProtocolError for anything else."""
    if len(body) < _BLOCK.size:
        raise ProtocolError(f"BLOCK of {len(body)} bytes")
    number, records = _BLOCK.unpack_from(body)
    return number, records, body[_BLOCK.size :]


def ack_body(number: int, outcome: Outcome, text: str = "") -> bytes:
    """The body of an ACK."""
    return _ACK.pack(number, outcome) + text.encode("utf-8", "replace")[: MAX_TEXT_BYTES - 64]


def read_ack(body: bytes) -> tuple[int, Outcome, str]:
    """Number, outcome and text of an ACK; ProtocolError for anything else."""
    try:
        number, outcome = _ACK.unpack_from(body)
        return number, Outcome(outcome), body[_ACK.size :].decode("utf-8", "replace")
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"ACK that cannot be read: {error}") from error


def rate_body(rate: float) -> bytes:
    """The body of a RATE."""
    return _RATE.pack(rate)


def read_rate(body: bytes) -> float:
    """The records a second of a RATE; ProtocolError for anything else."""
    if len(body) != _RATE.size:
        raise ProtocolError(f"RATE of {len(body)} bytes")
    return float(_RATE.unpack(body)[0])


def text_body(fields: Mapping[str, str | int]) -> bytes:
    """The body of a HELLO or a NOTICE; texts that are too long lose their beginning."""
    items = fields.items()
    limit = MAX_TEXT_BYTES // (16 * max(1, len(fields)))  # a character takes 12 bytes at most
    cut = {key: value[-limit:] if isinstance(value, str) else value for key, value in items}
    return json.dumps(cut).encode("ascii")


def read_text(body: bytes) -> dict[str, Any]:
    """The fields of a HELLO or a NOTICE; ProtocolError for anything else."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"text that cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise ProtocolError(f"text that is a {type(fields).__name__}")
    return fields


def _proof(token: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token, role + nonces, "sha256")


def _receive(connection: socket.socket, length: int) -> bytes:
    """Receive exactly *length* bytes; memory grows with what came, not with what was announced."""
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 1 << 20))
        if not part:
            raise ConnectionResetError("the peer closed the connection")
        parts += part
    return bytes(parts)
