"""The HTTP server of the page: one thread for all connections, never one that runs batches.

A connection has one request and one answer, or events while the page is open. Documents are made
on other threads, at most four times a second for all clients together.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shlex
import socket
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import TypeVar, cast

from dstreams.common.clock import Clock
from dstreams.monitoring.graph_drawing import graph_svg
from dstreams.monitoring.metrics import render_metrics
from dstreams.monitoring.registry import StreamRegistry
from dstreams.monitoring.status import StreamStatus
from dstreams.monitoring.web.documents import (
    HEARTBEAT_S,
    JSON,
    LEAST_INTERVAL_S,
    MOST_BATCHES,
    USUAL_BATCHES,
    ApplicationFacts,
    Document,
    EventStream,
    Page,
    StateQueryHandler,
    status_document,
    to_json,
)
from dstreams.monitoring.web.requests import (
    MOST_HEAD_BYTES,
    TEXT,
    Answer,
    Guard,
    Request,
    RequestError,
    parse_request,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Answer]]

MORE_PORTS = 16
"""Ports to try after the configured one, as Spark does."""

_REQUEST_S, _ANSWER_S, _WRITE_S, _LINGER_S, _CLOSE_S = 10.0, 120.0, 30.0, 1.0, 5.0
_WAIT_FOR_SLOT_S = 2.0  # a page requests all its files at the same time
_STAGES = 4  # connections are idle, wait for a slot, have one, or receive events
_STATE = "/state/"
_EVENTS, _EVENT_STREAM = "/events", "text/event-stream; charset=utf-8"
_TOO_LONG = Answer.text(431, f"a request has at most {MOST_HEAD_BYTES} bytes")
_TOO_MANY = Answer.text(503, "too many open pages; close one, or try again", Retry_After="5")
_NO_METRICS = Answer.text(
    501,
    "metrics need the package prometheus-client, which is missing in the driver's Python; run: "
    f"{shlex.quote(sys.executable)} -m pip install prometheus-client, and restart the program",
)
_NO_PAGE = Answer.text(404, "not found; see /")


INDEX = "index.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": TEXT,
}


def static_files() -> Mapping[str, Answer]:
    """Return the answers with the files of the page, by file name."""
    directory = files("dstreams.monitoring.web").joinpath("static")
    found = directory.iterdir() if directory.is_dir() else ()
    return {
        file.name: Answer(200, file.read_bytes(), _TYPES[suffix])
        for file in found
        if (suffix := f".{file.name.rpartition('.')[2]}") in _TYPES
    }


@dataclass(frozen=True)
class Address:
    """The address and limits of a server.

    Args:
        host: name or address.
        port: the first port to try; 0 for any free one.
        token: the required token; None if none is required.
        max_connections: limit of concurrent requests, of open pages, and of idle connections, of
            which the oldest is closed for a new one. A client may have a quarter of the pages.
    """

    host: str = "127.0.0.1"
    port: int = 4050
    token: str | None = None
    max_connections: int = 64


class PageServer:
    """Answers requests until it is closed, independently of the batches.

    Args:
        address: where it listens.
        registry: the streams and queries to show.
        facts: facts about this process; may be replaced while it runs.
        clock: the driver's clock.

    Raises:
        OSError: the port and the ones after it are taken, or the host is invalid.
    """

    def __init__(
        self, address: Address, registry: StreamRegistry, facts: ApplicationFacts, clock: Clock
    ) -> None:
        self.facts = facts
        self._registry = registry
        self._clock = clock
        self._max_connections = address.max_connections
        self._slots = asyncio.Semaphore(address.max_connections)
        listener = _listen(address.host, address.port)
        self.port: int = listener.getsockname()[1]
        self.host = address.host
        self._guard = Guard(address.host, self.port, address.token)
        self._files = static_files()
        self._state_queries = StateQueryHandler(registry)
        self._events = EventStream(self._document, time.monotonic)
        self._routes: Mapping[str, Handler] = {
            "/": self._file(INDEX),
            "/status.json": self._status,
            "/metrics": self._metrics,
            "/state": self._question(self._state_queries.state),
            "/graph.svg": self._graph,
            "/largest": self._question(self._state_queries.largest),
            **{f"/static/{name}": self._file(name) for name in self._files},
        }
        self._made: dict[str, tuple[float, asyncio.Future[Answer]]] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._idle: dict[_Connection, asyncio.Task[None]] = {}
        """Connections without an accepted request, oldest first."""
        self._pages: Counter[str] = Counter()
        """Open pages by client address."""
        self._failures: set[str] = set()
        self._closing = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._process = os.getpid()
        _listeners.add(listener)
        self._threads = [
            _start(partial(self._serve, listener), "dstreams-ui"),
            _start(self._watch, "dstreams-ui-watch"),
        ]

    @property
    def url(self) -> str:
        """The address of the page, without the token."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def close(self) -> None:
        """Close all connections; does nothing the second time, and in a forked process."""
        if os.getpid() != self._process:
            return
        self._closing.set()
        self._registry.changed()  # wakes the watcher
        self._call_soon(self._stop.set)
        for thread in self._threads:
            thread.join(_CLOSE_S)

    def _serve(self, listener: socket.socket) -> None:
        try:
            self._loop.run_until_complete(self._accept(listener))
        except Exception:
            logger.warning("live page: server failed; streams continue", exc_info=True)
        finally:
            listener.close()
            self._loop.close()

    async def _accept(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._connected, sock=listener, limit=MOST_HEAD_BYTES)
        await self._stop.wait()
        # Accept and drop pending connections first: a closed server would leave them open.
        self._loop.remove_reader(listener)
        for _ in range(5):
            await asyncio.sleep(0)
        server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # lets their sockets close

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stop.is_set() or len(self._connections) >= _STAGES * self._max_connections:
            writer.transport.abort()
            return
        if len(self._idle) >= self._max_connections:
            oldest = next(iter(self._idle))
            self._idle.pop(oldest).cancel()
            oldest.close()  # wait_for in Python 3.11 can lose the cancellation
        connection = _Connection(reader, writer)
        task = self._loop.create_task(self._converse(connection))
        self._idle[connection] = task
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: self._ended(connection))  # even if it never started

    def _ended(self, connection: _Connection) -> None:
        self._idle.pop(connection, None)
        connection.close()

    async def _converse(self, connection: _Connection) -> None:
        try:
            request = await connection.receive()
            refused = self._guard.refuse(request)
            if refused is not None:  # stays idle, so that others can replace it
                await connection.send(refused, has_body=request.method != "HEAD")
                return
            self._idle.pop(connection, None)
            if request.path == _EVENTS and request.method == "GET":
                await self._admit_page(connection, request)
            else:
                await self._admit_request(connection, request)
        except RequestError as refused_request:
            await connection.send(refused_request.answer)
        except (OSError, EOFError, asyncio.TimeoutError):
            pass  # the client is gone or too slow
        except Exception:
            self._failed("live page: a connection failed")

    async def _admit_request(self, connection: _Connection, request: Request) -> None:
        """Answer a request once a slot is free."""
        try:
            await asyncio.wait_for(self._slots.acquire(), _WAIT_FOR_SLOT_S)
        except asyncio.TimeoutError:
            await connection.send(_TOO_MANY)
            return
        try:
            answer = await self._answer(request)
            await connection.send(answer, has_body=request.method != "HEAD")
        finally:
            self._slots.release()

    async def _admit_page(self, connection: _Connection, request: Request) -> None:
        """Send events unless too many pages are open, of this client or in total."""
        client = connection.client
        of_one, of_all = self._pages[client], self._pages.total()
        if of_one >= max(1, self._max_connections // 4) or of_all >= self._max_connections:
            await connection.send(_TOO_MANY)
            return
        self._pages[client] += 1
        try:
            await self._stream(connection, request)
        finally:
            self._pages[client] -= 1
            self._pages += Counter()  # keeps the positive ones

    async def _answer(self, request: Request) -> Answer:
        if request.path == _EVENTS:
            return Answer(200, content_type=_EVENT_STREAM)
        handler = self._routes.get(request.path)
        if handler is None and request.path.startswith(_STATE):
            handler = self._state_at
        if handler is None:
            return _NO_PAGE
        try:
            return await asyncio.wait_for(handler(request), _ANSWER_S)
        except asyncio.TimeoutError:
            return Answer.text(504, f"no answer within {_ANSWER_S:g} s; try again later")
        except Exception:
            self._failed(f"live page: {request.path} failed")
            return Answer.text(500, "internal error; see the log of the driver")

    async def _stream(self, connection: _Connection, request: Request) -> None:
        answer = Answer(200, content_type=_EVENT_STREAM, headers={"X-Accel-Buffering": "no"})
        transport = connection.writer.transport
        transport.write(answer.head(has_length=False))
        page = Page(transport, request.headers.get("last-event-id", ""))
        self._events.add(page)
        self._registry.changed()  # wakes the watcher, which makes its first event
        try:
            await connection.reader.read(1)  # returns when the client closes
        finally:
            self._events.remove(page)

    def _file(self, name: str) -> Handler:
        async def answer(request: Request) -> Answer:
            return self._files.get(name, _NO_PAGE)

        return answer

    def _question(self, ask: Callable[[Mapping[str, str]], Answer]) -> Handler:
        def answer(request: Request) -> Awaitable[Answer]:
            return self._in_thread(partial(ask, request.query))

        return answer

    def _state_at(self, request: Request) -> Awaitable[Answer]:
        path = request.path.removeprefix(_STATE)
        return self._in_thread(partial(self._state_queries.at_path, path, request.query))

    async def _status(self, request: Request) -> Answer:
        given = request.query.get("batches", str(USUAL_BATCHES))
        if not given.isascii() or not given.isdecimal() or int(given[:9]) > MOST_BATCHES:
            return Answer.text(
                400, f"batches must be an integer from 0 to {MOST_BATCHES}, got {given[:20]!r}"
            )
        batches = int(given)

        def make() -> Answer:
            document = self._document(self._registry.statuses(), lambda _: batches)
            return Answer(200, to_json(document), JSON)

        return await self._shared(f"status {batches}", make)

    async def _graph(self, request: Request) -> Answer:
        monitor = self._registry.find(request.query.get("stream", ""))
        if monitor is None:
            return Answer.text(404, "no stream or query has this run id")
        return Answer(200, graph_svg(monitor.graph, is_live=True).encode(), _TYPES[".svg"])

    async def _metrics(self, request: Request) -> Answer:
        accept = request.headers.get("accept", "")

        def make() -> Answer:
            try:
                content_type, body = render_metrics(accept)
            except ModuleNotFoundError as error:
                if error.name is None or error.name.partition(".")[0] != "prometheus_client":
                    raise
                return _NO_METRICS
            return Answer(200, body, content_type)

        return await self._shared(f"metrics {accept}", make)

    def _document(
        self, statuses: Collection[StreamStatus], batches: Callable[[StreamStatus], int]
    ) -> Document:
        return status_document(self.facts, statuses, self._clock.now_ms(), batches)

    def _shared(self, name: str, make: Callable[[], Answer]) -> Awaitable[Answer]:
        """Return the recent answer of this name, or make one for all concurrent requests."""
        now_s = self._loop.time()
        for other, (made_s, _) in list(self._made.items()):
            if now_s - made_s > LEAST_INTERVAL_S:
                del self._made[other]
        if name not in self._made:
            self._made[name] = (now_s, self._in_thread(make))
        return asyncio.shield(self._made[name][1])

    def _watch(self) -> None:
        seen = -1
        while not self._closing.is_set():
            changes = self._registry.wait_for_change(seen, HEARTBEAT_S)
            if changes == seen:
                self._call_soon(self._events.beat)
            elif self._events.has_pages:
                try:
                    statuses = self._registry.statuses()
                    self._call_soon(partial(self._publish, statuses))
                except Exception:
                    self._failed("live page: cannot update open pages")
            seen = changes
            self._closing.wait(LEAST_INTERVAL_S)

    def _publish(self, statuses: Collection[StreamStatus]) -> None:
        try:
            self._events.publish(statuses)
        except Exception:
            self._failed("live page: cannot update open pages")

    def _failed(self, what: str) -> None:
        """Log the current exception, as a warning only once: pages repeat their requests."""
        is_new = what not in self._failures
        self._failures.add(what)
        level = logging.WARNING if is_new else logging.DEBUG
        logger.log(level, "%s; streams continue", what, exc_info=True)

    def _in_thread(self, make: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(cast(T, result))
            else:
                done.set_exception(error)

        def run() -> None:
            result, error = None, None
            try:
                result = make()
            except Exception as raised:
                error = raised
            self._call_soon(partial(settle, result, error))

        _start(run, "dstreams-ui-answer")
        return done

    def _call_soon(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)


class _Connection:
    """A connection: one request, and one answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def receive(self) -> Request:
        """Return the request.

        Raises:
            RequestError: it is malformed.
            EOFError, OSError, asyncio.TimeoutError: it did not arrive.
        """
        try:
            head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), _REQUEST_S)
        except asyncio.LimitOverrunError:
            raise RequestError(_TOO_LONG) from None
        return parse_request(head)

    async def send(self, answer: Answer, *, has_body: bool = True) -> None:
        """Write an answer and wait until it is sent; a client that does not read is dropped."""
        transport = self.writer.transport
        transport.set_write_buffer_limits(0)
        body = answer.body if has_body else b""
        self.writer.write(answer.head() + body)
        with suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self.writer.drain(), _WRITE_S)
            self.writer.write_eof()
            # Closing with unread input would reset the connection and lose the answer.
            await asyncio.wait_for(self._read_to_end(), _LINGER_S)

    async def _read_to_end(self) -> None:
        while await self.reader.read(MOST_HEAD_BYTES):
            pass

    @property
    def client(self) -> str:
        """The address of the client, without its port."""
        peer = self.writer.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def close(self) -> None:
        """Close the connection immediately."""
        self.writer.transport.abort()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, port + MORE_PORTS + 1 if port else 1):
        try:
            return socket.create_server((host, candidate), family=family, backlog=128)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"ports {port} to {port + MORE_PORTS} of {host} are in use")


def _start(run: Callable[[], None], name: str) -> threading.Thread:  # noqa: TID251
    thread = threading.Thread(target=run, name=name, daemon=True)  # noqa: TID251
    thread.start()
    return thread


_listeners: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _forget_listeners() -> None:
    """Close the ports in a forked process, which would keep them in use."""
    for listener in list(_listeners):
        listener.close()


os.register_at_fork(after_in_child=_forget_listeners)
