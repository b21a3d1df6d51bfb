"""A TCP server that sends one text to one client."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from dstreams import DStream, Settings, StreamingContext

_CHUNK_BYTES = 64 << 10
_ACCEPT_S = 0.1
_JOIN_S = 5.0


class TextServer:
    """Sends a text to the first client, as fast as it reads, and keeps the connection open.

    Nothing paces the sending but the client: when it stops reading, TCP makes the server wait.

    >>> with TextServer(b"to be\\n") as server:
    ...     lines = server.lines(ssc)
    """

    end_words = 1
    settings = Settings(
        on_failure="stop",
        # Small, so that the text fills many batches: what does not fit makes the server wait.
        receiver_max_buffer_bytes=1 << 20,
        max_queued_batches=1,
    )

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_ACCEPT_S)
        self.host: str
        self.port: int
        self.host, self.port = self._listener.getsockname()
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._sent_bytes = 0
        self._thread = threading.Thread(  # noqa: TID251
            target=self._serve, name="dstreams-demo-server", daemon=True
        )

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def sent_bytes(self) -> int:
        """How much of the text was handed to TCP so far."""
        return self._sent_bytes

    def lines(self, ssc: StreamingContext) -> DStream[str]:
        return ssc.socketTextStream(self.host, self.port)

    def lag(self) -> None:
        """Nobody knows what TCP has on its way."""

    def start(self) -> None:
        """Wait for the client, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Close the connection, whether everything was sent or not."""
        with self._lock:
            self._closing.set()
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        self._listener.close()

    def __enter__(self) -> TextServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        connection = self._accept()
        if connection is None:
            return
        with connection, suppress(OSError):  # the client went away, or the server was closed
            self._send(connection)
            self._closing.wait()

    def _accept(self) -> socket.socket | None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with self._lock:
                if not self._closing.is_set():
                    self._connection = connection
                    return connection
            connection.close()
        return None

    def _send(self, connection: socket.socket) -> None:
        text = memoryview(self._text)
        for start in range(0, len(text), _CHUNK_BYTES):
            chunk = text[start : start + _CHUNK_BYTES]
            connection.sendall(chunk)
            self._sent_bytes += len(chunk)
