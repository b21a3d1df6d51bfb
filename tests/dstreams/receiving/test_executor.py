"""The task of a receiver, run on a thread against an endpoint, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from pyspark import cloudpickle

from dstreams.errors import SourceError, StreamLifecycleError
from dstreams.receiving.executor import MonotonicClock, RunReceiver
from dstreams.receiving.protocol import ProtocolError, new_token
from dstreams.receiving.receiver import Receiver
from dstreams.receiving.supervisor import ReceivingSettings
from tests.support.receiving import ListeningEndpoint
from tests.support.waiting import wait_for

TOKEN = new_token()
SETTINGS = ReceivingSettings(10, 10, 1, None)


class Counting(Receiver):
    """Stores numbers until it is stopped, then says goodbye."""

    def onStart(self) -> None:
        self.thread = threading.Thread(target=self.count, daemon=True)
        self.thread.start()

    def onStop(self) -> None:
        self.thread.join(60)

    def count(self) -> None:
        number = 0
        with suppress(StreamLifecycleError):
            while not self.isStopped():
                self.storeAll([number])
                number += 1
            self.store("goodbye")


class Failing(Receiver):
    """Cannot be unpickled anywhere but here; fails for good."""

    def onStart(self) -> None:
        self.reportError("a bad record")
        self.stop("no licence", ValueError("expired"))

    def onStop(self) -> None:
        pass


class Driver(ListeningEndpoint):
    """An endpoint and the tasks that talk to it."""

    def __init__(self) -> None:
        super().__init__(TOKEN)
        self.pool = ThreadPoolExecutor()

    def run(self, receiver: Receiver, token: bytes = TOKEN) -> Future[Any]:
        """Run the task of a receiver."""
        pickled = cloudpickle.dumps(receiver)
        task = RunReceiver(pickled, "numbers", "127.0.0.1", self.port, token, SETTINGS)
        return self.pool.submit(task, iter([0]))


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.store.open.set()
    made.endpoint.stop_receiver()
    made.endpoint.close()
    made.pool.shutdown()


def test_what_is_received_arrives(driver: Driver) -> None:
    """In order, until the driver stops it; the task then ends, and all is stored."""
    task = driver.run(Counting())
    wait_for(lambda: len(driver.store.blocks) > 20)
    driver.endpoint.stop_receiver()
    assert task.result(20) == ["stopped"]
    *numbers, goodbye = driver.store.records
    assert numbers == list(range(len(numbers)))
    assert goodbye == "goodbye"
    wait_for(lambda: [notice.kind for notice in driver.notices] == ["started", "stopped"])


def test_the_driver_knows_where_it_runs(driver: Driver) -> None:
    """Host and task are said first."""
    driver.run(Counting())
    wait_for(lambda: driver.connected)
    assert set(driver.connected[0]) == {"host", "stage", "attempt", "task"}


def test_what_becomes_of_it_is_told(driver: Driver) -> None:
    """Errors and the end, with the exception's text."""
    task = driver.run(Failing())
    assert task.result(20) == ["stopped"]
    wait_for(lambda: len(driver.notices) == 3)
    assert [notice.kind for notice in driver.notices] == ["started", "error", "stopped"]
    assert driver.notices[1].message == "a bad record"
    assert driver.notices[2].message == "no licence"
    assert "ValueError: expired" in driver.notices[2].error


def test_a_lost_driver_fails_the_task(driver: Driver) -> None:
    """So that Spark does not keep a core busy for nobody; the receiver is stopped first."""
    task = driver.run(Counting())
    wait_for(lambda: driver.store.blocks)
    driver.endpoint.close()
    with pytest.raises(SourceError, match="numbers lost the connection to the driver"):
        task.result(20)
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("numbers ")])


def test_a_wrong_token_fails_the_task(driver: Driver) -> None:
    """Nothing is unpickled before the driver has proved who it is."""
    with pytest.raises((ProtocolError, ConnectionError)):
        driver.run(Failing(), new_token()).result(20)
    assert driver.notices == []


def test_the_rate_reaches_the_receiver(driver: Driver) -> None:
    """A receiver that connects is told the rate at once."""
    driver.endpoint.update_rate(1)
    task = driver.run(Counting())
    wait_for(lambda: driver.store.blocks)
    driver.endpoint.stop_receiver()
    task.result(20)
    assert len(driver.store.blocks) < 20


def test_the_token_is_in_no_message(driver: Driver) -> None:
    """The task is shown in logs and errors."""
    task = RunReceiver(b"", "numbers", "host", 1, TOKEN, SETTINGS)
    assert repr(task) == "RunReceiver(numbers, host:1)"


@pytest.mark.parametrize("wait", [lambda clock, event: clock.wait_until(10**15, event)])
def test_the_clock_of_an_executor(wait: Callable[..., bool]) -> None:
    """It never goes back, and waiting for it can be interrupted."""
    clock = MonotonicClock()
    before = clock.now_ms()
    assert clock.wait_until(before + 5, threading.Event())
    assert clock.now_ms() >= before + 5
    interrupted = threading.Event()
    interrupted.set()
    assert not wait(clock, interrupted)
