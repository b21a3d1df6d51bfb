"""An HDFS with two NameNodes that fail over while files are created and batches run."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from checkpoint import (
    AlreadyExistsError,
    Files,
    StorageRefusedError,
    StorageUncertainError,
    open_files,
)
from checkpoint.storage.hdfs_files import HdfsFiles
from tests.recovery.application import OUTPUTS
from tests.recovery.lives import ROOT, command_of, entries, environment_of, expected, values
from tests.recovery.test_remote_checkpoints import lines_of
from tests.support.hdfs import Hdfs, running_hdfs
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.deep]

WRITERS, NAMES = 4, 20
BATCHES = 4
SMALL, LARGE = 4, 17 << 20
_END_S = 300
_ADDRESS = "dfs.namenode.rpc-address.tests-ha.nn"


class Relay:
    """A port before a NameNode, which can lose the answer to a request and end the connection.

    Attributes:
        requests: how often a request had each of the names in :attr:`counted`.
        lose: the name of the next request whose answer is lost.
    """

    counted = (b"create", b"rename", b"mkdirs", b"delete")

    def __init__(self, name_node: str) -> None:
        host, _, port = name_node.partition(":")
        self._name_node = host, int(port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.requests: Counter[bytes] = Counter()
        self.lose = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        is_lost = threading.Event()
        with client, suppress(OSError), socket.create_connection(self._name_node) as name_node:
            answers = threading.Thread(
                target=self._send_answers, args=(name_node, client, is_lost), daemon=True
            )
            answers.start()
            while request := client.recv(1 << 16):
                self.requests.update(name for name in self.counted if name in request)
                if self.lose and self.lose in request:
                    self.lose = b""
                    is_lost.set()
                name_node.sendall(request)

    def _send_answers(
        self, name_node: socket.socket, client: socket.socket, is_lost: threading.Event
    ) -> None:
        with suppress(OSError):
            while (answer := name_node.recv(1 << 16)) and not is_lost.is_set():
                client.sendall(answer)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def ha(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """An HDFS of two NameNodes."""
    with running_hdfs(tmp_path_factory.mktemp("ha"), data_nodes=2, name_nodes=2) as hdfs:
        yield hdfs


@pytest.fixture
def configured(ha: Hdfs, monkeypatch: pytest.MonkeyPatch) -> Hdfs:
    """The HDFS, whose nameservice is in the configuration of clients."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(ha.conf))
    return ha


@pytest.fixture
def relays(configured: Hdfs) -> Iterator[list[Relay]]:
    """A relay before each NameNode."""
    conf = (configured.conf / "core-site.xml").read_text()
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(Relay(address)))
            for address in re.findall(rf"{_ADDRESS}\d</name><value>([^<]*)<", conf)
        ]


def through(relays: list[Relay]) -> dict[str, str]:
    """Return the configuration of a client of relays."""
    return {f"{_ADDRESS}{number}": relay.address for number, relay in enumerate(relays, 1)}


def fail_over(hdfs: Hdfs) -> None:
    """Stop the active NameNode; then the other one takes over."""
    hdfs.run("stop-active")
    hdfs.run("take-over")


def test_one_of_racing_writers_wins_each_name(configured: Hdfs) -> None:
    """Also while the NameNodes exchange their roles, and while the active one dies."""
    url = configured.new_url()
    begun, is_over = threading.Event(), threading.Event()

    def create(writer: int) -> tuple[set[str], set[str]]:
        """Return the names that a writer has won, and those that it may have won."""
        files = open_files(url, config={"tests.writer": str(writer)})  # a client of its own
        won, unknown = set(), set()
        number = 0
        while number < NAMES or not is_over.is_set():
            if number == NAMES // 4:
                begun.set()
            name = f"race/{number}"
            try:
                files.create(name, [b"%d" % writer])
                won.add(name)
            except AlreadyExistsError:
                pass
            except StorageUncertainError:
                unknown.add(name)
            except StorageRefusedError:
                continue
            number += 1
        return won, unknown

    with ThreadPoolExecutor(WRITERS) as threads:
        writers = [threads.submit(create, writer) for writer in range(WRITERS)]
        try:
            wait_for(lambda: begun.is_set() or any(each.done() for each in writers), _END_S)
            configured.run("swap")
            fail_over(configured)
        finally:
            is_over.set()
        found = [writer.result(_END_S) for writer in writers]
    files = open_files(url)
    names = files.list("race/")
    assert len(names) >= NAMES
    for name in names:
        winner = int(files.read(name))
        assert [writer for writer, (won, _) in enumerate(found) if name in won] in ([winner], [])
        assert name in found[winner][0] | found[winner][1]


def create_small(files: Files) -> None:
    assert files.create("small", [b"mine"]) == SMALL


def create_large(files: Files) -> None:
    chunks = (bytes([number]) * (1 << 20) for number in range(LARGE >> 20))
    assert files.create("large", chunks) == LARGE


def open_again(files: Files) -> None:
    assert isinstance(files, HdfsFiles)
    open_files(files.url, **files._options)


def delete(files: Files) -> None:
    files.delete("before")


@pytest.mark.parametrize(
    ("request_name", "action"),
    [
        (b"create", create_small),
        (b"create", create_large),
        (b"rename", create_small),
        (b"rename", create_large),
        (b"mkdirs", open_again),
        (b"delete", delete),
    ],
)
def test_an_answer_is_lost(
    configured: Hdfs, relays: list[Relay], request_name: bytes, action: Callable[[Files], None]
) -> None:
    """The connection ends after the request was carried out; it is not taken for that of others."""
    files = open_files(configured.new_url(), config=through(relays))
    files.create("before", [b"x"])
    for relay in relays:
        relay.lose = request_name
    before = sum((relay.requests for relay in relays), Counter())
    action(files)
    assert b"" in (relay.lose for relay in relays), "no answer was lost"
    assert sum((relay.requests for relay in relays), Counter())[request_name] > before[request_name]
    for name in files.list(""):
        size_bytes = {"before": 1, "small": SMALL, "large": LARGE}[name]
        assert sum(map(len, files.read_chunks(name, 1 << 20))) == size_bytes
    files.delete("before")
    assert files.create("before", [b"y"]) == 1


def test_no_name_node_is_active(configured: Hdfs) -> None:
    """The error says so after a number of attempts, and the next create works once one is."""
    config = {"dfs.client.failover.max.attempts": "2"}
    files = open_files(configured.new_url(), config=config)
    files.create("before", [b"x"])
    configured.run("no-active")
    try:
        for call in (lambda: files.create("a", [b"x"]), lambda: files.read("before")):
            with pytest.raises(StorageRefusedError, match="no NameNode is active: see") as refused:
                call()
            assert "\\n" not in str(refused.value)
    finally:
        configured.run("swap")
    assert files.create("a", [b"x"]) == 1
    assert files.list("") == ["a", "before"]


def test_no_name_node_is_active_for_a_moment(configured: Hdfs, relays: list[Relay]) -> None:
    """A create waits for the next active one."""
    files = open_files(configured.new_url(), config=through(relays))
    configured.run("no-active")
    before = [relay.requests[b"create"] for relay in relays]
    with ThreadPoolExecutor(1) as thread:
        try:
            created = thread.submit(files.create, "a", [b"x"])
            wait_for(
                lambda: all(
                    relay.requests[b"create"] > number
                    for relay, number in zip(relays, before, strict=True)
                ),
                _END_S,
            )
        finally:
            configured.run("swap")
        assert created.result(_END_S) == 1
    assert files.read("a") == b"x"


def test_the_next_name_node_takes_over_in_safe_mode(configured: Hdfs, relays: list[Relay]) -> None:
    """A create waits until it has left safe mode."""
    files = open_files(configured.new_url(), config=through(relays))
    configured.run("swap-in-safe-mode")
    before = sum(relay.requests[b"create"] for relay in relays)
    with ThreadPoolExecutor(1) as thread:
        try:
            created = thread.submit(files.create, "a", [b"x"])
            wait_for(
                lambda: (
                    created.done()
                    or sum(relay.requests[b"create"] for relay in relays) > before + 3
                ),
                _END_S,
            )
            assert not created.done(), created.result()
        finally:
            configured.run("safe-mode off")
        assert created.result(_END_S) == 1
    assert files.read("a") == b"x"


def test_a_stream_loses_no_batch(
    configured: Hdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on through a failover before a commit and another one before state is made.

    Workers write state, the driver records, and Spark's JVM the lines of each batch.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    url = configured.new_url()
    program = ("application", tmp_path, "1", str(BATCHES), f"{url}/checkpoint", f"{url}/lines")
    with subprocess.Popen(
        command_of(*program),
        cwd=ROOT,
        env=environment_of("commit.start@1:stop;begin.done@2:stop"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as driver:
        try:
            wait_until_stopped(driver)
            configured.run("stop-active")
            driver.send_signal(signal.SIGCONT)  # the commit waits for an active NameNode
            configured.run("take-over")
            wait_until_stopped(driver)
            configured.run("swap")
            driver.send_signal(signal.SIGCONT)
            output = driver.communicate(timeout=_END_S)[0]
        finally:
            driver.kill()
    assert driver.returncode == 0, output[-6000:]
    found = entries(tmp_path)
    for entry in found:
        assert entry.rows == expected(entry.output, entry.batch_id), entry
    seen = Counter((entry.output, entry.batch_id) for entry in found)
    assert seen == {(name, number): 1 for name in OUTPUTS for number in range(BATCHES)}
    assert lines_of(f"{url}/lines") == [list(values(number)) for number in range(BATCHES)]


def wait_until_stopped(driver: subprocess.Popen[str]) -> None:
    """Wait until a driver has stopped at a step."""
    _, status = os.waitpid(driver.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), (status, driver.stdout and driver.stdout.read())
