"""The server of the page over real sockets. No Spark."""

from __future__ import annotations

import configparser
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dstreams.common.clock import SystemClock
from dstreams.monitoring.events import BatchCompleted
from dstreams.monitoring.registry import StreamRegistry
from dstreams.monitoring.web import documents
from dstreams.monitoring.web.server import MORE_PORTS, Address, PageServer, static_files
from tests.support.pages import (
    FACTS,
    Events,
    batch,
    connect,
    get,
    make_monitor,
    read_reply,
    request,
    run_batches,
    serving,
)
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[4]


def test_a_status_has_everything_and_events_what_is_new() -> None:
    """The first event is whole; the next one has the batches that have ended since."""
    registry = StreamRegistry()
    monitor = make_monitor(registry)
    run_batches(monitor, range(3))
    with serving(registry) as server:
        reply = get(server, "/status.json")
        assert reply.status == 200
        document = reply.json
        assert [batch["batch_id"] for batch in document["streams"][0]["recent"]] == [0, 1, 2]
        assert document["application"]["name"] == "app"
        with Events(server) as events:
            _, whole = events.next()
            assert whole["is_delta"] is False
            assert len(whole["streams"][0]["recent"]) == 3
            run_batches(monitor, range(3, 5))
            told: list[int] = []
            while told != [3, 4]:
                _, delta = events.next()
                assert delta["is_delta"] is True
                told += [batch["batch_id"] for batch in delta["streams"][0]["recent"]]


def test_ports_are_tried_as_spark_does() -> None:
    """The next ones are tried where one is taken; a server that is closed gives its port back."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(StreamRegistry(), Address(port=port)) as server:
            assert port < server.port <= port + MORE_PORTS
            free = server.port
        with serving(StreamRegistry(), Address(port=free)) as again:
            assert again.port == free
            assert again.url == f"http://127.0.0.1:{free}"


def test_no_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the ports in use."""
    monkeypatch.setattr("dstreams.monitoring.web.server.MORE_PORTS", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"ports {port} to {port} of 127.0.0.1 are in use"):
            PageServer(Address(port=port), StreamRegistry(), FACTS, SystemClock())


def test_a_closed_server_leaves_no_thread_and_no_connection() -> None:
    """The connections of open pages end."""
    before = set(threading.enumerate())
    with serving(StreamRegistry()) as server:
        events = Events(server)
        events.next()
        idle = connect(server)
    wait_for(lambda: set(threading.enumerate()) <= before)
    with suppress(ConnectionError):
        assert events.rest() == b""
    events.connection.close()
    idle.close()
    server.close()


def test_a_program_that_is_started_inherits_no_socket() -> None:
    """Neither the one that listens nor a connection: they would outlive the driver."""
    show = "import os; os.system(f'ls -l /proc/{os.getpid()}/fd')"
    with serving(StreamRegistry()) as server, Events(server) as events:
        events.next()
        child = [sys.executable, "-c", show]
        done = subprocess.run(child, close_fds=False, capture_output=True, text=True, check=True)
    assert "socket" not in done.stdout


FORK = """
import os, socket, sys, threading
from dstreams.monitoring.registry import StreamRegistry
from tests.support.pages import serving
with serving(StreamRegistry()) as server:
    to_child, of_parent = os.pipe()
    to_parent, of_child = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(of_child, b"-")
        os.close(of_parent)
        os.read(to_child, 1)
        server.close()
        os._exit(0)
port = server.port
os.read(to_parent, 1)
socket.create_server(("127.0.0.1", port)).close()
os.close(of_parent)
assert os.waitpid(child, 0)[1] == 0
print("free")
"""


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore")
def test_a_forked_process_keeps_no_port() -> None:
    """A restarted driver finds its port free, also while a child of the first one lives."""
    child = [sys.executable, "-W", "ignore", "-c", FORK]
    done = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout, done.returncode) == ("free\n", 0), done.stderr


def test_one_page_too_many() -> None:
    """A client's 17th page is refused, in words, and gets a place as soon as another one ends.

    Requests are answered all the time.
    """
    with serving(StreamRegistry()) as server, ExitStack() as pages:
        opened = [pages.enter_context(Events(server)) for _ in range(16)]
        for page in opened:
            page.next()
        reply = get(server, "/events")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
        for path in ("/status.json", "/metrics"):
            assert get(server, path).status == 200
        opened[0].close()
        wait_for(lambda: server._pages.total() == 15)
        with Events(server) as another:
            another.next()


def test_a_request_waits_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page requests all files at once, and each is answered in turn."""
    monkeypatch.setattr("dstreams.monitoring.web.server._WAIT_FOR_SLOT_S", 60)
    registry, asked, may_answer = StreamRegistry(), threading.Event(), threading.Event()

    def statuses() -> tuple[()]:
        asked.set()
        assert may_answer.wait(300)
        return ()

    monkeypatch.setattr(registry, "statuses", statuses)
    address = Address(port=0, max_connections=1)
    with serving(registry, address) as server, connect(server) as first:
        first.sendall(request("/status.json", Host="localhost"))
        assert asked.wait(300)
        with connect(server) as second:
            second.sendall(request("/", Host="localhost"))
            wait_for(lambda: len(server._connections) == 2 and not server._idle)
            may_answer.set()
            assert read_reply(first).status == 200
            assert read_reply(second).status == 200


def test_a_request_without_a_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, in words."""
    monkeypatch.setattr("dstreams.monitoring.web.server._WAIT_FOR_SLOT_S", 0.05)
    registry, may_answer = StreamRegistry(), threading.Event()
    monkeypatch.setattr(registry, "statuses", lambda: () if may_answer.wait(300) else None)
    address = Address(port=0, max_connections=1)
    with serving(registry, address) as server, connect(server) as first:
        first.sendall(request("/status.json", Host="localhost"))
        wait_for(server._slots.locked)
        assert get(server, "/").status == 503
        may_answer.set()
        assert read_reply(first).status == 200


@pytest.mark.parametrize("says", [b"", b"GET / HTTP/1.1\r\nHost: a", b"GET / HTTP/1.1\r\n\r\n"])
def test_strangers_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch, says: bytes) -> None:
    """Of connections without a request that is answered the oldest is closed for a new one."""
    monkeypatch.setattr("dstreams.monitoring.web.server._REQUEST_S", 60)
    monkeypatch.setattr("dstreams.monitoring.web.server._LINGER_S", 60)
    address = Address("0.0.0.0", 0, "a-token-nobody-knows", max_connections=4)  # noqa: S104
    with serving(StreamRegistry(), address) as server, ExitStack() as stack:
        strangers = []
        for _ in range(12):
            strangers.append(stack.enter_context(connect(server)))
            strangers[-1].sendall(says)
        wait_for(lambda: len(server._idle) == 4 == len(server._connections))
        bearer = {"Authorization": "Bearer a-token-nobody-knows"}
        assert get(server, "/metrics", **bearer).status == 200
        with suppress(ConnectionError):
            while strangers[0].recv(1000):
                pass


def test_more_than_may_wait_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of waiting requests is bounded."""
    monkeypatch.setattr("dstreams.monitoring.web.server._WAIT_FOR_SLOT_S", 60)
    registry, may_answer = StreamRegistry(), threading.Event()
    monkeypatch.setattr(registry, "statuses", lambda: () if may_answer.wait(300) else None)
    with serving(registry, Address(port=0, max_connections=1)) as server, ExitStack() as stack:
        for number in range(4):
            waiting = stack.enter_context(connect(server))
            waiting.sendall(request(f"/status.json?batches={number}", Host="localhost"))
            opened = number + 1
            wait_for(lambda n=opened: len(server._connections) == n and not server._idle)
        with connect(server) as more, suppress(ConnectionError):
            assert more.recv(1) == b""
        may_answer.set()


def test_who_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent and incomplete requests time out; others are answered."""
    monkeypatch.setattr("dstreams.monitoring.web.server._REQUEST_S", 2)
    with serving(StreamRegistry()) as server, connect(server) as idle, connect(server) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost:")
        assert get(server, "/status.json").status == 200
        assert idle.recv(1) == b""
        assert slow.recv(1) == b""


@pytest.mark.deep
def test_a_page_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other pages and batches do not wait for it."""
    monkeypatch.setattr("dstreams.monitoring.web.documents._MOST_WAITING_BYTES", 1 << 16)
    monkeypatch.setattr("dstreams.monitoring.web.server.LEAST_INTERVAL_S", 0.01)
    registry = StreamRegistry()
    monitor = make_monitor(registry)
    long = "x" * (1 << 20)
    with serving(registry) as server, Events(server) as quick, Events(server) as slow:
        quick.next()
        slow.next()

        def is_dropped() -> bool:
            monitor.record(BatchCompleted(batch(0, failure=long)))
            quick.next()
            return len(server._events._pages) == 1

        wait_for(is_dropped)


def first_with_a_batch(page: Events) -> tuple[str, Any]:
    event = page.next()
    while not event[1]["streams"][0]["recent"]:
        event = page.next()
    return event


def test_an_event_is_made_once_for_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and never on the thread that runs the batches."""
    registry = StreamRegistry()
    monitor = make_monitor(registry)
    threads: list[str] = []
    make = documents.status_document

    def counted(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return make(*arguments)

    monkeypatch.setattr("dstreams.monitoring.web.server.status_document", counted)
    with serving(registry) as server, ExitStack() as stack:
        pages = [stack.enter_context(Events(server)) for _ in range(16)]
        for page in pages:
            page.next()
        del threads[:]
        run_batches(monitor, range(1))
        events = [first_with_a_batch(page) for page in pages]
        assert all(event == events[0] for event in events)
        assert set(threads) == {"dstreams-ui"}
        assert len(threads) < len(pages)


def test_many_who_ask_at_once_get_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapes beyond four a second cost a batch nothing."""
    monkeypatch.setattr("dstreams.monitoring.web.server.LEAST_INTERVAL_S", 3600)
    calls: list[str] = []

    def render(accept: str) -> tuple[str, bytes]:
        calls.append(accept)
        return "text/plain", b"metrics"

    monkeypatch.setattr("dstreams.monitoring.web.server.render_metrics", render)
    with serving(StreamRegistry()) as server:
        assert {get(server, "/metrics").body for _ in range(50)} == {b"metrics"}
        assert get(server, "/metrics", Accept="text/html").status == 200
    assert calls == ["", "text/html"]


def test_metrics_without_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer says what to install, and the page still works."""
    monkeypatch.setitem(sys.modules, "prometheus_client.exposition", None)
    with serving(StreamRegistry()) as server:
        answer = get(server, "/metrics")
        assert answer.status == 501
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert b"-m pip install prometheus-client" in answer.body
        assert get(server, "/status.json").status == 200


def test_a_page_that_comes_back_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the batches since its last event; an event of another run is ignored."""
    registry = StreamRegistry()
    monitor = make_monitor(registry)
    run_batches(monitor, range(3))
    with serving(registry) as server:
        with Events(server) as events:
            last, _ = events.next()
        run_batches(monitor, range(3, 6))
        with Events(server, Last_Event_ID=last) as events:
            _, delta = events.next()
            assert delta["is_delta"] is True
            assert [each["batch_id"] for each in delta["streams"][0]["recent"]] == [3, 4, 5]
        for unknown in (f"other-{last}", "", "1", "\xe4"):
            with Events(server, Last_Event_ID=unknown) as events:
                _, whole = events.next()
                assert whole["is_delta"] is False
                assert len(whole["streams"][0]["recent"]) == 6


def test_as_many_batches_as_asked_for() -> None:
    """200 by default, and 1000 at most."""
    registry = StreamRegistry()
    run_batches(make_monitor(registry, retained=1500), range(1200))
    with serving(registry) as server:

        def batches(query: str) -> int:
            [stream] = get(server, f"/status.json{query}").json["streams"]
            return len(stream["recent"])

        assert batches("") == 200
        assert batches("?batches=1000") == 1000
        assert batches("?batches=0") == 0
        for bad in ("1001", "-1", "", "all", "1e3", "9" * 400, "\u0661"):
            assert get(server, f"/status.json?batches={quote(bad)}").status == 400


def test_a_page_that_fails_is_told_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets an error without details, and the next one is answered."""
    registry = StreamRegistry()
    monitor = make_monitor(registry)
    with serving(registry) as server:
        with monkeypatch.context() as patch:
            patch.setattr(monitor, "status", lambda: 1 / 0)
            reply = get(server, "/status.json")
            assert reply.status == 500
            assert b"Zero" not in reply.body
            with Events(server):
                wait_for(lambda: "cannot update open pages" in caplog.text)
        wait_for(lambda: get(server, "/status.json").status == 200)
    assert "live page: /status.json failed" in caplog.text


def test_what_fails_again_and_again_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pages are updated as soon as it works again."""
    monkeypatch.setattr("dstreams.monitoring.web.server.LEAST_INTERVAL_S", 0.01)
    registry = StreamRegistry()
    monitor = make_monitor(registry)
    calls: list[int] = []

    def fail(*_: Any) -> Any:
        calls.append(0)
        monitor.record(BatchCompleted(batch(len(calls))))
        raise ValueError("no document")

    with serving(registry) as server:
        with monkeypatch.context() as patch:
            patch.setattr("dstreams.monitoring.web.server.status_document", fail)
            events = Events(server)
            wait_for(lambda: len(calls) > 3)
        _, whole = events.next()
        assert whole["is_delta"] is False
        events.close()
    assert caplog.text.count("live page: cannot update open pages; streams continue") == 1


def test_silence_is_broken_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments keep proxies from closing the connection."""
    monkeypatch.setattr("dstreams.monitoring.web.server.HEARTBEAT_S", 0.05)
    monkeypatch.setattr("dstreams.monitoring.web.server.LEAST_INTERVAL_S", 0.01)
    with serving(StreamRegistry()) as server, Events(server) as events:
        events.next()
        assert events.line().startswith(b": ")


def test_the_files_of_the_page_are_packaged_and_served() -> None:
    """Every file is served under its name, with its type."""
    directory = ROOT / "dstreams" / "monitoring" / "web" / "static"
    there = {path.name for path in directory.iterdir()}
    assert set(static_files()) == there
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    assert setup["options.package_data"]["dstreams.monitoring.web"] == "static/*"
    with serving(StreamRegistry()) as server:
        for name in there:
            reply = get(server, f"/static/{name}")
            assert reply.body == (directory / name).read_bytes()
        assert get(server, "/").body == (directory / "index.html").read_bytes()
        assert get(server, "/").headers["Content-Type"] == "text/html; charset=utf-8"
