"""Lines and records from TCP servers."""

from __future__ import annotations

import json
import logging
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, BinaryIO, TypeAlias

import pytest
from pyspark import SparkContext, StorageLevel

from dstreams.errors import InvalidStreamError
from dstreams.monitoring.events import ReceiverStopped
from dstreams.sources.line_buffer import LineBuffer
from dstreams.sources.socket import (
    SocketReceiver,
    SocketTextReader,
    SocketTextSource,
    TakenLines,
    _lines_of,
)
from dstreams.sources.source import PlannedInput, SourceEnvironment
from tests.support.receiving import Supervised
from tests.support.surroundings import Driven, Surroundings
from tests.support.waiting import wait_for

HOUR_MS = 3_600_000

StartReader: TypeAlias = Callable[[int, SourceEnvironment], Driven]


class Server:
    """A TCP server whose test decides when it listens, accepts, sends and hangs up."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.settimeout(60)
        self.port = self.listening.getsockname()[1]

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.listening.close()

    def accept(self) -> socket.socket:
        return self.listening.accept()[0]

    def send(self, data: bytes) -> None:
        with self.accept() as connection:
            connection.sendall(data)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def start() -> Iterator[StartReader]:
    """Start a reader on a port, closed when the test ends."""
    readers: list[SocketTextReader] = []

    def started(port: int, environment: SourceEnvironment) -> Driven:
        reader = SocketTextSource("127.0.0.1", port).open(
            replace(
                environment,
                settings=environment.settings.replace(receiver_restart_delay_ms=1),
            )
        )
        readers.append(reader)
        reader.start()
        return Driven(reader)

    yield started
    for reader in readers:
        reader.close()
        assert not reader._receiver._thread.is_alive()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        return int(reserved.getsockname()[1])


def data_of(reader: Driven, planned: PlannedInput) -> bytes:
    """The lines of a batch."""
    if planned.start == planned.end:
        return b""
    lines: TakenLines = reader._taken[planned.end]
    return lines.data


def received(reader: Driven, data: bytes) -> list[PlannedInput]:
    """Plan batches until they hold *data* together."""
    planned: list[PlannedInput] = []

    def is_complete() -> bool:
        planned.append(reader.plan(1000 * (len(planned) + 1)))
        reader.release(planned[-1].end)
        return sum(len(data_of(reader, plan)) for plan in planned) >= len(data)

    wait_for(is_complete)
    assert b"".join(data_of(reader, plan) for plan in planned) == data
    return planned


@pytest.mark.parametrize("port", ["9999", 9.0, None, True])
def test_a_port_that_is_no_number_is_refused(port: Any) -> None:
    """The message names the parameter and its type."""
    with pytest.raises(InvalidStreamError, match="port of socketTextStream must be a whole number"):
        SocketTextSource("localhost", port)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    """A port is from 1 to 65535."""
    with pytest.raises(InvalidStreamError, match=f"from 1 to 65535, got {port}"):
        SocketTextSource("localhost", port)


@pytest.mark.parametrize("host", ["", " ", "a b", None, 1, "a..b", "a\0b", "x" * 64])
def test_a_host_that_can_be_no_host_is_refused(host: Any) -> None:
    """Also names that the resolver would choke on later."""
    with pytest.raises(InvalidStreamError, match="host of socketTextStream must be"):
        SocketTextSource(host, 9999)


def test_the_name_says_operation_and_place() -> None:
    """The name appears in messages and on the page."""
    assert SocketTextSource("localhost", 9999).name == "socketTextStream(localhost:9999)"


def test_a_batch_takes_no_more_lines_than_the_rate_allows(
    surroundings: Surroundings, server: Server, start: StartReader
) -> None:
    """The others wait for later batches, in order, also when the rate changes."""
    reader = start(server.port, surroundings.environment())
    reader.update_rate(2)
    data = b"".join(b"%d\n" % number for number in range(9))
    server.send(data)
    wait_for(lambda: reader._receiver._lines.complete_bytes == len(data))
    assert data_of(reader, reader.plan(1000)) == b"0\n1\n"
    assert reader.plan(2000).records == 2
    assert reader.has_pending()
    reader.update_rate(4)
    assert data_of(reader, reader.plan(3000)) == b"4\n5\n6\n7\n"
    assert data_of(reader, reader.plan(4000)) == b"8\n"
    assert not reader.has_pending()
    assert reader.plan(5000).records == 0


def test_lines_over_the_rate_make_the_sender_wait(
    surroundings: Surroundings, server: Server, start: StartReader
) -> None:
    """They count towards the buffer until a batch has taken them and made its RDD."""
    reader = start(server.port, surroundings.environment(receiver_max_buffer_bytes=4))
    reader.update_rate(1)
    with server.accept() as connection:
        connection.sendall(b"1\n2\n")
        wait_for(lambda: reader._receiver._lines.complete_bytes == 4)
        connection.sendall(b"3\n")
        assert data_of(reader, reader.plan(1000)) == b"1\n"
        assert reader._receiver._lines.complete_bytes == 2
        reader.release(reader.end)
        wait_for(lambda: reader._receiver._lines.complete_bytes == 4)
        assert data_of(reader, reader.plan(2000)) == b"2\n"


def test_a_batch_takes_whole_lines_and_leaves_the_unfinished_one(
    surroundings: Surroundings, server: Server, start: StartReader
) -> None:
    """An unfinished line belongs to a later batch; every line is in exactly one batch."""
    reader = start(server.port, surroundings.environment())
    with server.accept() as connection:
        connection.sendall(b"one\ntwo\nthr")
        wait_for(reader.has_pending)
        (first, *_) = received(reader, b"one\ntwo\n")
        assert not reader.has_pending()
        connection.sendall(b"ee\n")
        received(reader, b"three\n")
    assert first.time_ms == 1000
    assert surroundings.errors == []


def test_the_plan_counts_records_and_describes_them(
    surroundings: Surroundings, server: Server, start: StartReader
) -> None:
    """The number of lines is known without a job."""
    reader = start(server.port, surroundings.environment())
    with server.accept() as connection:
        connection.sendall(b"one\n\ntwo\n")
        wait_for(lambda: reader._receiver._lines.complete_bytes == 9)
        planned = reader.plan(1000)
    assert (planned.records, planned.description) == (3, "3 lines, 9 bytes")
    empty = reader.plan(2000)
    assert (data_of(reader, empty), empty.records) == (b"", 0)


def test_the_end_of_the_stream_ends_the_last_line(
    surroundings: Surroundings, server: Server, start: StartReader
) -> None:
    """A server that closes without a newline has still sent a line, as readLine sees it."""
    reader = start(server.port, surroundings.environment())
    server.send(b"one\ntwo")
    received(reader, b"one\ntwo\n")


def test_connects_again_after_the_server_closed(
    surroundings: Surroundings, server: Server, start: StartReader, caplog: pytest.LogCaptureFixture
) -> None:
    """Each end of a stream is followed by a new connection; nothing is lost between."""
    caplog.set_level(logging.INFO, "dstreams.sources.socket")
    reader = start(server.port, surroundings.environment())
    server.send(b"one\n")
    server.send(b"two\n")
    with server.accept() as connection:
        connection.sendall(b"three\n")
        received(reader, b"one\ntwo\nthree\n")
        messages = list(caplog.messages)
    place = f"socketTextStream(127.0.0.1:{server.port})"
    outage = f"{place}: no connection: the server closed the connection; trying again every 1 ms"
    connected = f"{place}: connected"
    assert messages == [connected, outage, connected, outage, connected]


def test_an_outage_is_logged_once_and_ends_with_the_connection(
    surroundings: Surroundings,
    start: StartReader,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refusing port is tried for ever; the log has one warning and one line when it is back."""
    caplog.set_level(logging.INFO, "dstreams.sources.socket")
    tries: list[object] = []
    connect = socket.create_connection

    def counted_connect(address: tuple[str, int], timeout: float) -> socket.socket:
        tries.append(address)
        return connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", counted_connect)
    port = closed_port()
    start(port, surroundings.environment())
    wait_for(lambda: len(tries) > 5)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with socket.create_server(("127.0.0.1", port)) as listening:
        listening.settimeout(60)
        with listening.accept()[0]:
            wait_for(lambda: len(caplog.records) > 1)
    refused, back = caplog.records[:2]
    assert f"127.0.0.1:{port}" in refused.message
    assert "refused" in refused.message
    assert (back.levelname, back.message.endswith(": connected")) == ("INFO", True)


def test_a_connection_to_itself_is_no_connection(
    surroundings: Surroundings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A free port can be chosen for our own end, which would then stay silent for ever."""

    def connect_to_itself(address: tuple[str, int], timeout: float) -> socket.socket:
        itself = socket.socket()
        itself.bind(address)
        itself.connect(address)
        return itself

    monkeypatch.setattr(socket, "create_connection", connect_to_itself)
    reader = SocketTextSource("127.0.0.1", closed_port()).open(
        surroundings.environment(receiver_restart_delay_ms=HOUR_MS)
    )
    reader.start()
    wait_for(lambda: "no connection: no server listens" in caplog.text)
    reader.close()


def test_a_reset_connection_drops_its_unfinished_line_and_says_so(
    surroundings: Surroundings, server: Server, start: StartReader, caplog: pytest.LogCaptureFixture
) -> None:
    """An unfinished line is dropped; the warning has the reason and the bytes."""
    reader = start(server.port, surroundings.environment())
    with server.accept() as connection:
        connection.sendall(b"one\nhalf")
        wait_for(reader.has_pending)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with server.accept() as connection:
        connection.sendall(b"two\n")
        received(reader, b"one\ntwo\n")
    assert "reset by peer; dropped 4 bytes of an unfinished line" in caplog.text


def send_beside(server: Server, data: bytes) -> threading.Thread:
    """Send in a thread of its own, which ends when all of *data* is on its way."""
    sender = threading.Thread(target=server.send, args=(data,), daemon=True)
    sender.start()
    return sender


def test_a_full_buffer_makes_the_sender_wait_and_drops_nothing(
    surroundings: Surroundings, server: Server, start: StartReader
) -> None:
    """Memory stays bounded while no batch is planned; no line is lost."""
    limit = 1_000_000
    reader = start(server.port, surroundings.environment(receiver_max_buffer_bytes=limit))
    data = b"".join(b"line %07d\n" % number for number in range(2_000_000))
    sender = send_beside(server, data)
    wait_for(lambda: reader._receiver._lines.complete_bytes >= limit)
    assert sender.is_alive()
    assert reader._receiver._lines.complete_bytes < limit + (64 << 10) + 20
    planned = received(reader, data)
    assert max(len(data_of(reader, plan)) for plan in planned) < limit + (64 << 10) + 20
    sender.join(60)
    assert not sender.is_alive()


def test_batches_that_wait_for_their_turn_count_towards_the_buffer(
    surroundings: Surroundings, server: Server, start: StartReader
) -> None:
    """Planning a batch makes no room for more; running it does."""
    limit = 1_000_000
    reader = start(server.port, surroundings.environment(receiver_max_buffer_bytes=limit))
    data = b"".join(b"line %07d\n" % number for number in range(2_000_000))
    sender = send_beside(server, data)
    wait_for(lambda: reader._receiver._lines.complete_bytes >= limit)
    first = reader.plan(1000)
    assert len(data_of(reader, first)) >= limit
    assert data_of(reader, reader.plan(2000)) == b""
    assert sender.is_alive()
    reader.release(reader.end)
    received(reader, data[len(data_of(reader, first)) :])
    sender.join(60)
    assert not sender.is_alive()


def test_a_line_longer_than_the_buffer_still_arrives(
    surroundings: Surroundings, server: Server, start: StartReader
) -> None:
    """The unfinished line does not count as waiting, or it could never be finished."""
    reader = start(server.port, surroundings.environment(receiver_max_buffer_bytes=10))
    line = b"x" * 200_000 + b"\n"
    sender = send_beside(server, line)
    received(reader, line)
    sender.join(60)


def test_lines_that_are_too_long_are_skipped_counted_and_reported(
    surroundings: Surroundings,
    server: Server,
    start: StartReader,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log has the place, number and setting once a minute; the stream continues."""
    surroundings.clock.time_ms = HOUR_MS
    reader = start(server.port, surroundings.environment(socket_max_line_bytes=1000))
    too_long = b"x" * 2000 + b"\n"
    with server.accept() as connection:
        connection.sendall(b"one\n" + b"x" * 500_000 + b"\n")
        wait_for(lambda: reader._receiver._lines.faults.too_long == 1)
        connection.sendall(too_long * 2 + b"two\n")
        wait_for(lambda: reader._receiver._lines.complete_bytes == 8)
        planned = reader.plan(1000)
        surroundings.clock.time_ms += 60_000
        connection.sendall(too_long + b"three\n")
        wait_for(lambda: len(caplog.messages) > 1)
        connection.sendall(too_long + b"four\n")
        wait_for(lambda: reader._receiver._lines.complete_bytes == 11)
    reader.close()
    assert data_of(reader, planned) == b"one\ntwo\n"
    assert planned.description == "2 lines, 8 bytes; skipped 3 lines longer than 1000 bytes"
    assert surroundings.errors == []
    assert re.findall(r"longer than 1000 bytes: (\d+);", caplog.text) == ["1", "3", "1"]
    assert f"socketTextStream(127.0.0.1:{server.port})" in caplog.messages[0]
    assert "spark.dstreams.socket.maxLineBytes" in caplog.messages[0]


def test_lines_that_are_no_utf8_are_counted_and_reported(
    surroundings: Surroundings,
    server: Server,
    start: StartReader,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They come with U+FFFD; the log and the description of the batch say how many."""
    reader = start(server.port, surroundings.environment())
    server.send(b"good\n\xff\xfe\xfabad\n\xc3\x28\n")
    wait_for(lambda: len(caplog.messages) > 0)
    planned = reader.plan(1000)
    assert planned.description == "3 lines, 15 bytes; received 2 lines with invalid UTF-8"
    assert "lines with invalid UTF-8, which became U+FFFD: 2" in caplog.text


def test_a_stream_of_a_gigabyte_without_an_end_of_line_is_never_held() -> None:
    """The bytes of a line that is too long do not stay in memory."""
    lines, piece, most = LineBuffer(1 << 20), bytes(64 << 10), 0
    for _ in range((1 << 30) // len(piece)):
        lines.add(piece)
        most = max(most, len(lines._unfinished) + lines.complete_bytes)
    assert most <= 1 << 20
    assert lines.faults.too_long == 1


def test_stop_receiving_ends_the_thread_and_keeps_what_waits(
    surroundings: Surroundings, server: Server, start: StartReader
) -> None:
    """A graceful stop can still process the lines that were received."""
    reader = start(server.port, surroundings.environment())
    with server.accept() as connection:
        connection.sendall(b"one\nhalf")
        wait_for(reader.has_pending)
        reader.stop_receiving()
        assert connection.recv(1) == b""
    assert not reader._receiver._thread.is_alive()
    assert reader.has_pending()
    assert reader.waiting_records() == 1
    assert data_of(reader, reader.plan(1000)) == b"one\n"
    assert not reader.has_pending()
    assert reader.waiting_records() == 0
    reader.stop_receiving()


def test_close_ends_a_thread_that_waits_to_connect_again(
    surroundings: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing does not wait for the delay between two tries."""
    reader = SocketTextSource("127.0.0.1", closed_port()).open(
        surroundings.environment(receiver_restart_delay_ms=HOUR_MS)
    )
    reader.start()
    wait_for(lambda: "no connection" in caplog.text)
    reader.close()
    assert not reader._receiver._thread.is_alive()


def test_close_ends_a_thread_that_waits_for_room(
    surroundings: Surroundings, server: Server, start: StartReader
) -> None:
    """A full buffer does not keep the thread, and what it held is gone."""
    reader = start(server.port, surroundings.environment(receiver_max_buffer_bytes=1))
    with server.accept() as connection:
        connection.sendall(b"one\n")
        wait_for(reader.has_pending)
        reader.close()
    assert not reader._receiver._thread.is_alive()
    assert not reader.has_pending()


def test_close_may_come_before_start(surroundings: Surroundings, server: Server) -> None:
    """A reader that was never started can be closed, and then receives nothing."""
    reader = SocketTextSource("127.0.0.1", server.port).open(surroundings.environment())
    reader.close()
    reader.close()
    reader.start()
    wait_for(lambda: not reader._receiver._thread.is_alive())
    assert not reader.has_pending()


def test_an_unexpected_failure_of_the_thread_is_reported(
    surroundings: Surroundings, server: Server, start: StartReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that dies says so, instead of leaving a stream that looks alive."""

    def explode(*_: object, **__: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(socket, "create_connection", explode)
    start(server.port, surroundings.environment())
    wait_for(lambda: surroundings.errors)
    (error,) = surroundings.errors
    assert "stopped receiving: ValueError('no such thing')" in str(error)
    assert isinstance(error.__cause__, ValueError)


def test_an_error_may_stop_the_stream_from_the_receiving_thread(
    surroundings: Surroundings, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context that stops at the first error calls back into the reader that reports it."""
    stopped = threading.Event()

    def stop(error: Exception) -> None:
        reader.stop_receiving()
        stopped.set()

    def explode(*_: Any, **__: Any) -> Any:
        raise ValueError("no such thing")

    monkeypatch.setattr(socket, "create_connection", explode)
    environment = surroundings.environment()
    reader = SocketTextSource("127.0.0.1", server.port).open(
        replace(environment, report_error=stop)
    )
    reader.start()
    assert stopped.wait(60)
    wait_for(lambda: not reader._receiver._thread.is_alive())


def lines_on_spark(reader: Driven, data: bytes) -> list[list[str]]:
    reader._taken[1] = TakenLines(data)
    lines: list[list[str]] = reader.read(PlannedInput(1000, None, 1)).glom().collect()
    return lines


def test_lines_are_decoded_on_the_workers(surroundings: Surroundings, sc: SparkContext) -> None:
    """Line ends are removed, invalid UTF-8 is replaced, empty lines are records."""
    reader = SocketTextSource("127.0.0.1", 9).open(surroundings.environment(sc))
    data = "grün\n\na\rb\r\nc\r\r\n\u2028\x0b\n".encode() + b"\xff\n\xe2\n"
    (lines,) = lines_on_spark(reader, data)
    assert lines == ["grün", "", "a\rb", "c\r", "\u2028\x0b", "\ufffd", "\ufffd"]


def test_a_batch_without_lines_has_no_partitions(
    surroundings: Surroundings, sc: SparkContext
) -> None:
    """Nothing received costs no task."""
    reader = SocketTextSource("127.0.0.1", 9).open(surroundings.environment(sc))
    assert lines_on_spark(reader, b"") == []


def test_a_big_batch_is_spread_evenly_and_stays_in_order(
    surroundings: Surroundings, sc: SparkContext
) -> None:
    """Every line comes once, in order, over the default number of partitions; twice the same."""
    reader = SocketTextSource("127.0.0.1", 9).open(surroundings.environment(sc))
    numbers = range(200_000)
    data = b"".join(b"line %d\n" % number for number in numbers)
    partitions = lines_on_spark(reader, data)
    assert [line for part in partitions for line in part] == [f"line {n}" for n in numbers]
    assert len(partitions) == sc.defaultParallelism
    sizes = [sum(len(line) + 1 for line in part) for part in partitions]
    assert max(sizes) - min(sizes) < 100
    assert lines_on_spark(reader, data) == partitions


def test_one_enormous_line_makes_one_partition(
    surroundings: Surroundings, sc: SparkContext
) -> None:
    """Lines are never cut, so there may be fewer partitions than the size suggests."""
    reader = SocketTextSource("127.0.0.1", 9).open(surroundings.environment(sc))
    assert lines_on_spark(reader, b"x" * 2_000_000 + b"\n") == [["x" * 2_000_000]]


def test_workers_read_their_whole_input_when_little_is_taken() -> None:
    """A worker that stopped early would be killed, and the next batch would start a new one."""
    pieces = iter([b"one\ntwo\n", b"three\n"])
    assert next(_lines_of(pieces)) == "one"
    assert next(pieces, None) is None


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
    server.listening.close()
    supervised = receive(lines)
    wait_for(lambda: supervised.kinds.count(ReceiverStopped) >= 3)
    assert any("ConnectionRefusedError" in info.last_error for info in supervised.infos)


def test_stop_ends_a_connection_that_says_nothing(server: Server, receive: Receive) -> None:
    """An incomplete record is not stored."""
    supervised = receive(lambda stream: iter(stream.readline, b""))
    with server.accept() as connection:
        connection.sendall(b"whole\nhalf")
        assert stored(supervised, 1) == [b"whole\n"]
        supervised.end()
    assert supervised.store.records == [b"whole\n"]
