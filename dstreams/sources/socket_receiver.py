"""A receiver of what a TCP server sends, read by a function of the user's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, BinaryIO

from pyspark import StorageLevel

from dstreams.sources.receiver import Receiver

_CONNECT_SECONDS = 10.0

Converter = Callable[[BinaryIO], Iterable[Any]]


class SocketReceiver(Receiver):
    """Connects to *hostname*:*port* and stores each record that *converter* makes of the bytes.

    When the connection cannot be made, breaks or ends, or the converter fails, the receiver is
    restarted.

    Args:
        hostname: host to connect to.
        port: port to connect to.
        converter: from a binary file to records.
        storageLevel: as for every receiver.

    Semantics: SocketReceiver of Spark Streaming (4.3).
    """

    def __init__(
        self, hostname: str, port: int, converter: Converter, storageLevel: StorageLevel
    ) -> None:
        super().__init__(storageLevel)
        self._address = (hostname, port)
        self._converter = converter
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None  # noqa: TID251

    def onStart(self) -> None:
        """Connect and receive, on a thread."""
        self._thread = threading.Thread(  # noqa: TID251
            target=self._receive, name=f"socketStream {self._address}", daemon=True
        )
        self._thread.start()

    def onStop(self) -> None:
        """Close the connection and wait for the thread."""
        connection, thread = self._connection, self._thread
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if thread is not None:
            thread.join()

    def _receive(self) -> None:
        try:
            with socket.create_connection(self._address, timeout=_CONNECT_SECONDS) as connection:
                connection.settimeout(None)
                self._connection = connection
                if self.isStopped():  # onStop may have come before there was a connection
                    return
                with connection.makefile("rb") as stream:
                    for record in self._converter(stream):
                        if self.isStopped():  # perhaps the half of a record
                            return
                        self.store(record)
            self.restart("the server closed the connection")
        except Exception as error:
            self.restart(f"receiving from {self._address} failed", error)
