"""Lines of text, or records of a user function, from a TCP server."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, BinaryIO

from pyspark import RDD, SparkContext, StorageLevel

from dstreams.common.clock import Clock
from dstreams.common.settings import Settings
from dstreams.errors import InvalidStreamError, RestartError, SourceError
from dstreams.sources.line_buffer import LineBuffer
from dstreams.sources.rate_limit import RateLimit, RepeatedWarning
from dstreams.sources.receiver import Receiver
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment, SourceReader

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 64 << 10
_CONNECT_SECONDS = 10.0
_JOIN_SECONDS = 5.0

# Detects within about a minute that the server has vanished.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

# A smaller batch is one task: a second task costs more than it saves.
_PARTITION_BYTES = 16 << 10

# Bytes that a worker decodes and splits at a time; its memory stays a few times this.
_PIECE_BYTES = 256 << 10


@dataclass(frozen=True)
class SocketTextSource(Source):
    """Lines that a TCP server at *host*:*port* sends, as ``str`` without line ends.

    A line ends at ``\\n`` or ``\\r\\n``, as in Spark's receiver. (Spark also ends a line at a lone
    ``\\r``, which stays in the line here: pyspark.streaming documents ``\\n``.) The last line of a
    connection that the server closes needs no end. Invalid UTF-8 becomes U+FFFD, as in Spark's
    receiver; the log and the description of the batch's input count these lines.

    ``spark.streaming.receiver.maxRate`` and backpressure limit the lines of a batch; the others
    wait.

    The driver reconnects forever, two seconds after a connection has ended. Lines wait for their
    batch in the driver, up to ``spark.dstreams.receiver.maxBufferBytes``; then the server waits.
    Lines longer than ``spark.dstreams.socket.maxLineBytes`` are skipped. The log, at most once a
    minute, and the description of the batch's input count them. A socket cannot replay, so lines
    that are received and not yet processed are lost when the driver dies.

    Args:
        host: name or address.
        port: 1 to 65535.

    Raises:
        InvalidStreamError: *host* or *port* is not valid.
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        if not isinstance(self.port, int) or isinstance(self.port, bool):
            raise InvalidStreamError(
                f"port of socketTextStream must be a whole number, got {self.port!r} "
                f"({type(self.port).__name__})"
            )
        if not 1 <= self.port <= 65535:
            raise InvalidStreamError(
                f"port of socketTextStream must be from 1 to 65535, got {self.port}"
            )
        if not _is_host(self.host):
            raise InvalidStreamError(
                f"host of socketTextStream must be a host name or address, got {self.host!r}"
            )

    @property
    def name(self) -> str:
        return f"socketTextStream({self.host}:{self.port})"

    def open(self, environment: SourceEnvironment) -> SocketTextReader:
        return SocketTextReader(self, environment)


@dataclass(frozen=True)
class TakenLines:
    """The lines of a batch, each with its end, and a description of them for people."""

    data: bytes = b""
    description: str = "0 lines, 0 bytes"

    @property
    def count(self) -> int:
        """Number of lines."""
        return self.data.count(b"\n")

    def rdd(self, spark: SparkContext) -> RDD[str]:
        """Return the lines without their ends."""
        if not self.data:
            return spark.emptyRDD()
        pieces, partitions = _cut(self.data, spark.defaultParallelism)
        return spark.parallelize(pieces, partitions).mapPartitions(_lines_of)


class LineReceiver:
    """Receives lines on a thread into a buffer of whole lines.

    ``_changed`` guards the buffer and the connection; the thread waits on it for room.
    """

    def __init__(
        self,
        source: SocketTextSource,
        settings: Settings,
        clock: Clock,
        report_error: Callable[[Exception], None],
    ) -> None:
        self._source = source
        self._settings = settings
        self._report_error = report_error
        self._lines = LineBuffer(settings.socket_max_line_bytes)
        self._connection: socket.socket | None = None
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._in_outage = False
        self._too_long = RepeatedWarning(
            logger,
            clock,
            "%s: skipped lines longer than %d bytes: %d; end lines with '\\n', or raise "
            "spark.dstreams.socket.maxLineBytes",
            source.name,
            settings.socket_max_line_bytes,
        )
        self._not_utf8 = RepeatedWarning(
            logger,
            clock,
            "%s: lines with invalid UTF-8, which became U+FFFD: %d",
            source.name,
        )
        self._taken_bytes: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name=source.name, daemon=True)  # noqa: TID251

    def start(self) -> None:
        """Start to receive."""
        self._thread.start()

    def take(self, number: int, most: int | None = None) -> TakenLines:
        """Take whole lines for a batch, at most *most* if given.

        Their bytes count against the buffer until :meth:`make_room` is called with *number*, which
        grows from call to call.
        """
        with self._changed:
            blocks, faults = self._lines.take(most)
            data = b"".join(blocks)
            self._taken_bytes[number] = len(data)
            self._changed.notify_all()
        lines = data.count(b"\n")
        description = f"{lines} lines, {len(data)} bytes"
        if faults.too_long:
            limit = self._settings.socket_max_line_bytes
            description += f"; skipped {faults.too_long} lines longer than {limit} bytes"
        if faults.not_utf8:
            description += f"; received {faults.not_utf8} lines with invalid UTF-8"
        return TakenLines(data, description)

    def make_room(self, upto: int) -> None:
        """Stop counting batches up to a number: their bytes are in Spark or no longer needed."""
        with self._changed:
            for number in [number for number in self._taken_bytes if number <= upto]:
                del self._taken_bytes[number]
            self._changed.notify_all()

    def stop(self) -> None:
        """Close the connection; received lines can still be taken."""
        with self._changed:
            self._stopping.set()
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def waiting_lines(self) -> int:
        """Return the number of received lines that are in no batch."""
        with self._changed:
            return self._lines.complete_lines

    def close(self) -> None:
        """Close the connection and drop received lines."""
        self.stop()
        with self._changed:
            self._lines.take()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                reason = self._receive_until_broken()
                if not self._stopping.is_set():
                    self._note_outage(reason)
                    self._stopping.wait(self._settings.receiver_restart_delay_ms / 1000)
            self._too_long.flush()
            self._not_utf8.flush()
            logger.info("%s: stopped receiving%s", self._source.name, self._drop_unfinished())
        except Exception as error:
            failure = SourceError(
                f"{self._source.name}: stopped receiving: {error!r}; create a new context"
            )
            failure.__cause__ = error
            self._report_error(failure)

    def _receive_until_broken(self) -> str:
        """Receive over one connection; return why it ended."""
        address = (self._source.host, self._source.port)
        try:
            with socket.create_connection(address, timeout=_CONNECT_SECONDS) as connection:
                self._begin(connection)
                while self._wait_for_room() and (data := connection.recv(_RECEIVE_BYTES)):
                    self._change(partial(self._lines.add, data))
        except OSError as error:
            return f"{error}{self._drop_unfinished()}"
        if not self._stopping.is_set():
            self._change(self._lines.end_stream)
        return "the server closed the connection"

    def _begin(self, connection: socket.socket) -> None:
        if connection.getsockname() == connection.getpeername():
            # If no server listens, the system may connect the socket to itself.
            raise ConnectionRefusedError("no server listens")
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        with self._changed:
            self._connection = connection
        self._in_outage = False
        logger.info("%s: connected", self._source.name)

    def _note_outage(self, reason: str) -> None:
        if not self._in_outage:
            self._in_outage = True
            logger.warning(
                "%s: no connection: %s; trying again every %d ms",
                self._source.name,
                reason,
                self._settings.receiver_restart_delay_ms,
            )

    def _wait_for_room(self) -> bool:
        """Wait until lines may be added; return False to stop receiving."""

        def may_receive() -> bool:
            # Planned batches count too, so that a slow stream makes the sender wait.
            waiting = self._lines.complete_bytes + sum(self._taken_bytes.values())
            return waiting < self._settings.receiver_max_buffer_bytes or self._stopping.is_set()

        with self._changed:
            self._changed.wait_for(may_receive)
        return not self._stopping.is_set()

    def _change(self, lines: Callable[[], None]) -> None:
        """Change the buffer and report new faults."""
        with self._changed:
            before = self._lines.faults
            lines()
            faults = self._lines.faults.since(before)
        if faults.too_long:
            self._too_long.add(faults.too_long)
        if faults.not_utf8:
            self._not_utf8.add(faults.not_utf8)

    def _drop_unfinished(self) -> str:
        with self._changed:
            dropped = self._lines.drop_unfinished()
        return f"; dropped {dropped} bytes of an unfinished line" if dropped else ""


class SocketTextReader(SourceReader):
    """Reads all received lines, up to the rate limit; an offset counts batches with lines."""

    rate_limit = "receiver"

    def __init__(self, source: SocketTextSource, environment: SourceEnvironment) -> None:
        self._source = source
        self._spark = environment.spark
        self._limit = RateLimit(environment.batch_ms)
        self._receiver = LineReceiver(
            source, environment.settings, environment.clock, environment.report_error
        )
        self._taken: dict[int, TakenLines] = {}
        self._is_pinned = False

    @property
    def not_replayable_reason(self) -> str:
        return "a socket cannot replay"

    def start(self) -> None:
        self._receiver.start()

    def update_rate(self, records_per_second: int) -> None:
        self._limit.update(records_per_second)

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        self._is_pinned = True

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        end = int(start or 0) + 1
        lines = self._taken.get(end)  # set if the previous plan was not begun
        if lines is None and not self._is_pinned:
            lines = self._receiver.take(end, self._limit.most(time_ms))
        if lines is None or not lines.count:
            description = TakenLines().description if lines is None else lines.description
            return PlannedInput(time_ms, start, start, description=description)
        self._taken[end] = lines
        return PlannedInput(time_ms, start, end, {}, lines.count, lines.description)

    def read(self, planned: PlannedInput) -> RDD[str]:
        if planned.start == planned.end:
            return self._spark.emptyRDD()
        lines = self._taken.get(planned.end)
        if lines is None:
            raise RestartError(
                f"{self._source.name}: cannot replay the lines of an unfinished batch; start with "
                "a new checkpoint"
            )
        self._receiver.make_room(planned.end)
        return lines.rdd(self._spark)

    def commit(self, end: Any) -> None:
        # Copied, because another thread may plan a batch.
        for number in tuple(self._taken):
            if number <= int(end or 0):
                del self._taken[number]

    def release(self, end: Any) -> None:
        self._receiver.make_room(int(end or 0))

    def stop_receiving(self) -> None:
        self._receiver.stop()

    def waiting_records(self) -> int:
        return self._receiver.waiting_lines()

    def close(self) -> None:
        self._receiver.close()


def _is_host(host: object) -> bool:
    if not isinstance(host, str) or not host or not host.isprintable() or " " in host:
        return False
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _cut(data: bytes, parallelism: int) -> tuple[list[bytes], int]:
    """Cut lines into pieces of similar size; return them and the number of partitions."""
    partitions = max(1, min(parallelism, len(data) // _PARTITION_BYTES))
    count = partitions * -(-len(data) // (partitions * _PIECE_BYTES))
    pieces = []
    start = 0
    for number in range(1, count + 1):
        end = data.find(b"\n", max(start, len(data) * number // count - 1)) + 1
        if end > start:
            pieces.append(data[start:end])
            start = end
    return pieces, min(partitions, len(pieces))


def _lines_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """Split the pieces of a partition; reads all input first, so that Spark reuses the worker."""
    return chain.from_iterable(map(_split, list(pieces)))


def _split(piece: bytes) -> list[str]:
    text = piece.decode("utf-8", "replace")
    lines = text.replace("\r\n", "\n").split("\n")
    lines.pop()
    return lines


class SocketReceiver(Receiver):
    """Connects to *hostname*:*port* and stores the records that *converter* reads.

    The receiver restarts if it cannot connect, if the connection ends or if the converter fails.

    Args:
        hostname: host to connect to.
        port: port to connect to.
        converter: function from a binary file to records.
        storageLevel: accepted for compatibility, as in every receiver.

    Semantics: SocketReceiver of Spark Streaming (4.3).
    """

    def __init__(
        self,
        hostname: str,
        port: int,
        converter: Callable[[BinaryIO], Iterable[Any]],
        storageLevel: StorageLevel,
    ) -> None:
        super().__init__(storageLevel)
        self._address = (hostname, port)
        self._converter = converter
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None  # noqa: TID251

    def onStart(self) -> None:
        """Connect and receive on a thread."""
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
                if self.isStopped():  # onStop may have run before the connection was open
                    return
                with connection.makefile("rb") as stream:
                    for record in self._converter(stream):
                        if self.isStopped():  # the record may be incomplete
                            return
                        self.store(record)
            self.restart("the server closed the connection")
        except Exception as error:
            self.restart(f"receiving from {self._address} failed", error)
