"""The driver's end of the connection to a receiver on an executor."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from dstreams.receiving.blocks import BlocksRefusedError, BlockStore, ReceivedBlock
from dstreams.receiving.protocol import (
    Channel,
    Kind,
    Outcome,
    ProtocolError,
    ack_body,
    rate_body,
    read_block,
    read_text,
)
from dstreams.receiving.supervisor import Notice

logger = logging.getLogger(__name__)

_MAX_STRANGERS = 16
"""Connections that may be proving who they are at the same time."""


class BlockEndpoint:
    """Listens for the receiver that knows *token*, and takes its blocks.

    One receiver is connected at a time. When Spark has started it anew, the old one may still be
    alive: the connection that came last counts, and the one before is closed.

    Args:
        name: of the receiver, for messages.
        host: address to listen at.
        token: the secret that the receiver proves to know.
        store: takes the blocks; a block is acknowledged when it has returned.
        connected: told what the receiver says of itself when it connects.
        notice: told what becomes of the receiver, also that the connection was lost.
    """

    def __init__(
        self,
        name: str,
        host: str,
        token: bytes,
        store: BlockStore,
        *,
        connected: Callable[[dict[str, object]], None],
        notice: Callable[[Notice], None],
    ) -> None:
        self._name = name
        self._host = host
        self._token = token
        self._store = store
        self._connected = connected
        self._notice = notice
        self._server: socket.socket | None = None
        self._lock = threading.Lock()
        self._session: Channel | None = None
        self._closed = False
        self._has_ended = False
        self._stop_sent = False
        self._rate: float | None = None
        self._strangers = threading.BoundedSemaphore(_MAX_STRANGERS)

    def start(self) -> int:
        """Listen; return the port."""
        server = self._server = socket.create_server((self._host, 0))
        threading.Thread(
            target=self._accept, args=(server,), name=f"{self._name} endpoint", daemon=True
        ).start()
        return int(server.getsockname()[1])

    def stop_receiver(self) -> None:
        """Ask the receiver to stop, now or as soon as it connects."""
        with self._lock:
            self._stop_sent = True
            session = self._session
        self._send(session, Kind.STOP)

    def update_rate(self, rate: float) -> None:
        """Tell the receiver its rate, now and whenever it connects."""
        with self._lock:
            self._rate = rate
            session = self._session
        self._send(session, Kind.RATE, rate_body(rate))

    def is_connected(self) -> bool:
        """Whether a receiver is connected."""
        return self._session is not None

    def close(self) -> None:
        """Close all connections. May come twice."""
        with self._lock:
            self._closed = True
            session, self._session = self._session, None
        if self._server is not None:
            with suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)  # wakes who accepts
            self._server.close()
        if session is not None:
            session.close()

    def _accept(self, server: socket.socket) -> None:
        while not self._closed:
            try:
                connection, address = server.accept()
            except OSError:
                if not self._closed:
                    logger.exception("%s: cannot accept connections any more", self._name)
                return
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection, address), name=self._name, daemon=True
            ).start()

    def _serve(self, connection: socket.socket, address: object) -> None:
        try:
            channel = self._welcome(connection)
        except Exception as error:
            logger.warning("%s: refused a connection from %s: %s", self._name, address, error)
            connection.close()
            return
        finally:
            self._strangers.release()
        try:
            while True:
                self._handle(channel, *channel.receive())
        except ProtocolError as error:
            logger.warning("%s: dropped the connection from %s: %s", self._name, address, error)
        except OSError as error:
            logger.debug("%s: connection from %s ended: %s", self._name, address, error)
        finally:
            channel.close()
            self._end(channel)

    def _end(self, channel: Channel) -> None:
        with self._lock:
            if self._session is not channel:
                return
            self._session = None
            has_ended, self._has_ended = self._has_ended, False
        if not has_ended:
            lost = "its connection was lost: the task or the executor has ended"
            self._notice(Notice("restarting", lost))

    def _welcome(self, connection: socket.socket) -> Channel:
        """Let the peer prove who it is, and make it the one that counts."""
        channel = Channel.accept(connection, self._token)
        kind, body = channel.receive()
        if kind is not Kind.HELLO:
            raise ProtocolError(f"the first message is {kind.name}")
        self._connected(read_text(body))
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("the stream has stopped")
            previous, self._session = self._session, channel
            self._has_ended = False
            rate, stop = self._rate, self._stop_sent
        if previous is not None:
            previous.close()
        if rate is not None:
            channel.send(Kind.RATE, rate_body(rate))
        if stop:
            channel.send(Kind.STOP)
        return channel

    def _handle(self, channel: Channel, kind: Kind, body: bytes) -> None:
        if kind is Kind.BLOCK:
            number, records, payload = read_block(body)
            outcome, text = self._put(channel, ReceivedBlock(payload, records))
            channel.send(Kind.ACK, ack_body(number, outcome, text))
        elif kind is Kind.NOTICE:
            self._notice_of(read_text(body))
        else:
            raise ProtocolError(f"{kind.name} is not for the driver")

    def _put(self, channel: Channel, block: ReceivedBlock) -> tuple[Outcome, str]:
        if self._session is not channel:
            return Outcome.REFUSED, "another receiver has taken over"
        try:
            self._store.put(block)
        except BlocksRefusedError as error:
            return Outcome.REFUSED, str(error)
        except Exception as error:
            return Outcome.FAILED, repr(error)
        return Outcome.STORED, ""

    def _notice_of(self, fields: dict[str, object]) -> None:
        kind, message, error = (str(fields.get(key, "")) for key in ("kind", "message", "error"))
        if kind in ("started", "error", "restarting", "stopped"):
            self._has_ended = kind == "stopped"
            self._notice(Notice(kind, message, error))  # type: ignore[arg-type]
        else:
            raise ProtocolError(f"notice of unknown kind {kind!r}")

    def _send(self, session: Channel | None, kind: Kind, *body: bytes) -> None:
        if session is not None:
            try:
                session.send(kind, *body)
            except OSError as error:
                logger.debug("%s: %s was not sent: %s", self._name, kind.name, error)
