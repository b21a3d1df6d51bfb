"""Receivers, as their user meets them; which call follows which; and that an end loses nothing."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import StorageLevel, cloudpickle

import dstreams
from dstreams.errors import InvalidStreamError, SourceError, StreamLifecycleError
from dstreams.monitoring.events import ReceiverError, ReceiverStarted, ReceiverStopped
from dstreams.sources.receiver import Receiver
from tests.support.receiving import Calls, Supervised
from tests.support.waiting import wait_for

Supervise = Callable[..., Supervised]


@pytest.fixture
def supervise() -> Iterator[Supervise]:
    """Start a supervisor of a receiver, and end it with the test."""
    made: list[Supervised] = []

    def start(receiver: Calls, **settings: Any) -> Supervised:
        supervised = Supervised(receiver, **settings)
        made.append(supervised)
        supervised.supervisor.start()
        return supervised

    yield start
    for supervised in made:
        supervised.store.open.set()
        supervised.end()


def fail(receiver: Calls) -> None:
    raise ValueError("no such host")


def fail_once(receiver: Calls) -> None:
    if receiver.calls == ["start"]:
        raise ValueError("no such host")


def in_background(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


# The base class ----------------------------------------------------------------------------------


def test_it_is_public() -> None:
    """Users import it from dstreams."""
    assert dstreams.Receiver is Receiver


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("store", [1]),
        ("storeAll", [[1]]),
        ("reportError", ["x"]),
        ("restart", ["x"]),
        ("stop", ["x"]),
    ],
)
def test_it_has_to_be_started(method: str, arguments: list[Any]) -> None:
    """Methods that need the stream raise before the start."""
    with pytest.raises(StreamLifecycleError, match=f"Calls.{method} was called on a receiver that"):
        getattr(Calls(), method)(*arguments)


@pytest.mark.parametrize("method", ["onStart", "onStop"])
def test_both_callbacks_have_to_be_defined(method: str) -> None:
    """The message names class and method."""
    with pytest.raises(NotImplementedError, match=f"Receiver must define {method}"):
        getattr(Receiver(), method)()


def test_the_constructor_need_not_be_called() -> None:
    """A subclass with a constructor of its own works without super().__init__()."""

    class Forgetful(Receiver):
        def __init__(self) -> None:
            self.started = False

        def onStart(self) -> None:
            self.started = True

        def onStop(self) -> None:
            pass

    receiver = Forgetful()
    assert (receiver.isStarted(), receiver.isStopped()) == (False, False)
    assert receiver.preferredLocation is None
    supervised = Supervised(receiver)
    supervised.supervisor.start()
    supervised.end()
    assert supervised.kinds[-1] == ReceiverStopped


def test_the_storage_level_is_kept() -> None:
    """For programs that look at it."""
    assert Receiver(StorageLevel.MEMORY_ONLY).storageLevel == StorageLevel.MEMORY_ONLY


def test_a_stream_id_comes_with_the_stream() -> None:
    """streamId raises before that."""
    with pytest.raises(StreamLifecycleError, match="Calls has no streamId"):
        _ = Calls().streamId


def test_it_travels_without_what_runs_it() -> None:
    """A receiver that is attached here can be pickled, and is not attached there."""
    receiver = Calls()
    supervised = Supervised(receiver)
    receiver._stream_id = 3
    copy = pickle.loads(cloudpickle.dumps(receiver))
    assert copy.streamId == 3
    assert copy._supervisor is None
    supervised.end()


@pytest.mark.parametrize("delay", [-1, "2", float("nan")])
def test_a_delay_is_a_number_of_seconds(delay: Any) -> None:
    """Zero is allowed, less is not."""
    receiver = Calls()
    supervised = Supervised(receiver)
    with pytest.raises(InvalidStreamError, match="delay must be"):
        receiver.restart("again", delay=delay)
    supervised.end()


# From start to stop ------------------------------------------------------------------------------


def test_start_and_stop(supervise: Supervise) -> None:
    """onStart once, onStop once, and the states in between."""
    receiver = Calls()
    assert (receiver.isStarted(), receiver.isStopped()) == (False, False)
    supervised = supervise(receiver)
    wait_for(receiver.isStarted)
    assert not receiver.isStopped()
    supervised.supervisor.stop("done")
    assert supervised.supervisor.wait(60)
    assert receiver.isStopped()
    assert not receiver.isStarted()
    assert receiver.calls == ["start", "stop"]
    assert supervised.kinds == [ReceiverStarted, ReceiverStopped]
    assert supervised.infos[-1].last_error_message == "done"


def test_the_first_stop_says_why(supervise: Supervise) -> None:
    """Later ones change nothing."""
    receiver = Calls()
    supervised = supervise(receiver)
    receiver.stop("no more data", ValueError("end"))
    receiver.stop("again")
    assert supervised.supervisor.wait(60)
    assert supervised.infos[-1].last_error_message == "no more data"
    assert "ValueError: end" in supervised.infos[-1].last_error
    assert receiver.calls.count("stop") == receiver.calls.count("start")


def test_one_that_was_never_started_ends_at_once() -> None:
    """Nothing waits for a thread that there is not."""
    supervised = Supervised(Calls())
    supervised.supervisor.stop("done")
    assert supervised.supervisor.wait(0)
    assert supervised.events == []


def test_a_receiver_runs_once_at_a_time(supervise: Supervise) -> None:
    """A second context is rejected."""
    receiver = Calls()
    first = supervise(receiver)
    with pytest.raises(InvalidStreamError, match="the receiver of numbers already runs"):
        Supervised(receiver)
    first.end()
    supervise(receiver)
    wait_for(receiver.isStarted)


# Restart -----------------------------------------------------------------------------------------


def test_restart_stops_and_starts(supervise: Supervise) -> None:
    """From the receiver's own thread, which onStop waits for."""

    class Restarting(Calls):
        def onStart(self) -> None:
            super().onStart()
            self.thread = in_background(
                lambda: self.calls == ["start"] and self.restart("lost", OSError("reset"))
            )

        def onStop(self) -> None:
            self.thread.join(60)
            assert not self.thread.is_alive()
            super().onStop()

    receiver = Restarting()
    supervised = supervise(receiver)
    wait_for(lambda: receiver.calls == ["start", "stop", "start"])
    wait_for(receiver.isStarted)
    assert supervised.kinds == [ReceiverStarted, ReceiverStopped, ReceiverStarted]
    assert supervised.infos[1].last_error_message == "lost"
    assert "OSError: reset" in supervised.infos[1].last_error


def test_an_exception_in_on_start_restarts(supervise: Supervise) -> None:
    """After the restart delay, with onStop in between."""
    receiver = Calls(fail_once)
    supervised = supervise(receiver)
    wait_for(lambda: receiver.calls == ["start", "stop", "start"])
    assert "onStart failed: ValueError('no such host')" in supervised.infos[1].last_error_message
    assert "Traceback" in supervised.infos[1].last_error


def test_a_receiver_that_always_fails_can_be_stopped(supervise: Supervise) -> None:
    """Also within the pause before the next try."""
    receiver = Calls(fail)
    supervised = supervise(receiver, receiver_restart_delay_ms=3_600_000)
    wait_for(lambda: receiver.calls == ["start", "stop"])
    supervised.end()
    assert receiver.calls == ["start", "stop"]
    assert supervised.kinds == [ReceiverStarted, ReceiverStopped, ReceiverStopped]


def test_the_delay_of_a_restart_wins_over_the_setting(supervise: Supervise) -> None:
    """Seconds, given by the receiver."""
    receiver = Calls()
    supervise(receiver, receiver_restart_delay_ms=3_600_000)
    wait_for(receiver.isStarted)
    receiver.restart("at once", delay=0)
    wait_for(lambda: receiver.calls == ["start", "stop", "start"])


def test_restarts_at_the_same_time_are_one(supervise: Supervise) -> None:
    """Ten threads that notice one broken connection restart the receiver once."""
    receiver = Calls()
    supervised = supervise(receiver, receiver_restart_delay_ms=3_600_000)
    wait_for(receiver.isStarted)
    threads = [in_background(lambda: receiver.restart("lost")) for _ in range(10)]
    for thread in threads:
        thread.join(60)
    wait_for(lambda: ReceiverStopped in supervised.kinds)
    supervised.end()
    assert supervised.kinds == [ReceiverStarted, ReceiverStopped, ReceiverStopped]
    assert receiver.calls == ["start", "stop"]


def test_a_receiver_that_is_being_restarted_is_stopped(supervise: Supervise) -> None:
    """isStopped is true at once, so its threads end before onStop waits for them."""
    receiver = Calls()
    supervise(receiver, receiver_restart_delay_ms=3_600_000)
    wait_for(receiver.isStarted)
    receiver.restart("lost")
    assert receiver.isStopped()


def test_no_restart_after_stop(supervise: Supervise) -> None:
    """stop is final."""
    receiver = Calls()
    supervised = supervise(receiver)
    wait_for(receiver.isStarted)
    receiver.stop("done")
    receiver.restart("too late")
    assert supervised.supervisor.wait(60)
    assert receiver.calls == ["start", "stop"]


def test_an_exception_in_on_stop_is_reported(supervise: Supervise) -> None:
    """And the receiver ends all the same."""

    class Failing(Calls):
        def onStop(self) -> None:
            raise ValueError("cannot close")

    supervised = supervise(Failing())
    wait_for(lambda: supervised.kinds == [ReceiverStarted])
    supervised.end()
    assert supervised.kinds == [ReceiverStarted, ReceiverError, ReceiverStopped]
    assert "onStop failed: ValueError('cannot close')" in supervised.infos[1].last_error_message


def test_a_receiver_that_ends_its_thread_is_stopped_for_good(supervise: Supervise) -> None:
    """SystemExit in onStart stops the stream with an error instead of a restart."""

    def leave(receiver: Calls) -> None:
        raise SystemExit("no licence")

    receiver = Calls(leave)
    supervised = supervise(receiver)
    assert supervised.supervisor.wait(60)
    assert receiver.isStopped()
    assert supervised.kinds == [ReceiverStarted, ReceiverStopped]
    (error,) = supervised.surroundings.errors
    assert isinstance(error, SourceError)
    assert isinstance(error.__cause__, SystemExit)
    with pytest.raises(StreamLifecycleError, match="numbers has stopped"):
        receiver.storeAll([1])


def test_a_reported_error_changes_nothing(supervise: Supervise) -> None:
    """The receiver continues."""
    receiver = Calls()
    supervised = supervise(receiver)
    wait_for(receiver.isStarted)
    receiver.reportError("a bad record", ValueError("x"))
    assert supervised.kinds[-1] is ReceiverError
    assert receiver.isStarted()


# Records -----------------------------------------------------------------------------------------


def test_what_on_stop_waits_for_is_stored(supervise: Supervise) -> None:
    """The order of the end: isStopped, onStop, last block, all stored."""

    class Finishing(Calls):
        def onStop(self) -> None:
            for number in range(10):
                self.store(number)
            self.storeAll([10, 11])

    supervised = supervise(Finishing())
    wait_for(lambda: supervised.kinds == [ReceiverStarted])
    supervised.end()
    assert sorted(supervised.store.records) == list(range(12))


def test_records_after_the_end_are_refused(supervise: Supervise) -> None:
    """A thread that onStop did not wait for gets an error."""
    receiver = Calls()
    supervised = supervise(receiver)
    supervised.end()
    with pytest.raises(StreamLifecycleError, match="numbers has stopped and accepts no more"):
        receiver.store(1)
    with pytest.raises(StreamLifecycleError, match="numbers has stopped and accepts no more"):
        receiver.storeAll([1])


def test_store_all_returns_when_it_is_stored(supervise: Supervise) -> None:
    """So that the receiver may acknowledge; an error of the store is the caller's."""
    receiver = Calls()
    supervised = supervise(receiver)
    supervised.store.open.clear()
    storing = in_background(lambda: receiver.storeAll(iter([1, 2, 3])))
    storing.join(0.1)
    assert storing.is_alive()
    supervised.store.open.set()
    storing.join(60)
    assert supervised.store.records == [1, 2, 3]
    supervised.store.failures = [OSError("disk full")]
    with pytest.raises(OSError, match="disk full"):
        receiver.storeAll([4])


def test_the_end_waits_for_store_all(supervise: Supervise) -> None:
    """A block that is on its way when the receiver is stopped is stored first."""
    receiver = Calls()
    supervised = supervise(receiver)
    wait_for(receiver.isStarted)
    supervised.store.open.clear()
    storing = in_background(lambda: receiver.storeAll([1]))
    wait_for(lambda: supervised.supervisor.generator._storing == 1)
    supervised.supervisor.stop("done")
    assert not supervised.supervisor.wait(0.1)
    supervised.store.open.set()
    assert supervised.supervisor.wait(60)
    storing.join(60)
    assert supervised.store.records == [1]


def test_a_stop_lets_go_who_waits_for_the_rate(supervise: Supervise) -> None:
    """The clock stands still, and yet onStop can wait for the thread that stores."""

    class Limited(Calls):
        def onStart(self) -> None:
            self.thread = in_background(lambda: [self.store(number) for number in range(20)])

        def onStop(self) -> None:
            self.thread.join(60)

    supervised = supervise(Limited(), receiver_max_rate=1)
    wait_for(lambda: supervised.supervisor._limiter._tokens < 0)
    supervised.end()
    assert supervised.store.records == list(range(20))


def test_the_rate_holds_for_whole_blocks(supervise: Supervise) -> None:
    """A reliable receiver is limited as well: the second block waits for the first one's due."""
    receiver = Calls()
    supervised = supervise(receiver, receiver_max_rate=10)
    receiver.storeAll(range(20))
    storing = in_background(lambda: receiver.storeAll([20]))
    storing.join(0.1)
    assert storing.is_alive()
    supervised.clock.advance(2000)
    storing.join(60)
    assert supervised.store.records == list(range(21))


def test_abandoning_waits_for_nothing(supervise: Supervise) -> None:
    """Records that are not stored are dropped."""
    receiver = Calls()
    supervised = supervise(receiver)
    wait_for(receiver.isStarted)
    receiver.store(1)
    supervised.supervisor.abandon()
    assert supervised.supervisor.wait(60)
    assert supervised.store.records == []
