"""The bus: order, recipients, and listeners that are slow or raise. No Spark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dstreams import InvalidStreamError, StreamingListener
from dstreams.listener import CALLBACKS
from dstreams.monitoring.events import StreamingStarted
from dstreams.monitoring.listener_bus import BusStatistics, ListenerBus, load_listener
from tests.support.waiting import wait_for


class Times(StreamingListener):
    """Records the times of its events."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def onStreamingStarted(self, streamingStarted: Any) -> None:
        self.times.append(streamingStarted.time())


class Raising(Times):
    """Raises, after it has kept the time."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def onStreamingStarted(self, streamingStarted: Any) -> None:
        super().onStreamingStarted(streamingStarted)
        raise self.error("not today")


class Slow(Times):
    """Blocks until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.leave = threading.Event()

    def onStreamingStarted(self, streamingStarted: Any) -> None:
        self.entered.set()
        assert self.leave.wait(30)
        super().onStreamingStarted(streamingStarted)


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.leave.set()


def make_bus(max_queued: int) -> ListenerBus:
    return ListenerBus(StreamingListener, CALLBACKS, max_queued)


@pytest.fixture
def bus() -> Iterator[ListenerBus]:
    made = make_bus(max_queued=100)
    yield made
    made.close(0)


def post(bus: ListenerBus, *times: int) -> None:
    for time_ms in times:
        bus.post(StreamingStarted(time_ms))


def has_thread() -> bool:
    return any(thread.name == "dstreams-listeners" for thread in threading.enumerate())


def test_events_come_in_order(bus: ListenerBus) -> None:
    """Every listener gets every event, in the order they were posted."""
    first, second = Times(), Times()
    bus.add(first)
    bus.add(second)
    post(bus, *range(50))
    assert bus.drain(20)
    assert first.times == second.times == list(range(50))


def test_events_from_then_on(bus: ListenerBus, slow: Slow) -> None:
    """A listener added later gets what is posted later, not what still waits."""
    late = Times()
    bus.add(slow)
    post(bus, 1, 2)
    bus.add(late)
    post(bus, 3)
    slow.leave.set()
    assert bus.drain(20)
    assert (slow.times, late.times) == ([1, 2, 3], [3])


def test_removed(bus: ListenerBus, slow: Slow) -> None:
    """A listener that was removed gets nothing more, not even what waits."""
    gone = Times()
    bus.add(slow)
    bus.add(gone)
    post(bus, 1, 2)
    assert slow.entered.wait(60)
    bus.remove(gone)
    bus.remove(Times())
    slow.leave.set()
    assert bus.drain(20)
    assert (slow.times, gone.times) == ([1, 2], [])


def test_added_twice(bus: ListenerBus) -> None:
    """It gets each event once."""
    listener = Times()
    bus.add(listener)
    bus.add(listener)
    post(bus, 1)
    assert bus.drain(20)
    assert listener.times == [1]


def test_a_thread_lives_as_long_as_there_is_something_to_tell(bus: ListenerBus, slow: Slow) -> None:
    """Nothing is queued without listeners or delivered after the end."""
    wait_for(lambda: not has_thread())  # those of other tests
    post(bus, 1)
    assert not has_thread()
    bus.add(slow)
    slow.leave.set()
    for time_ms in (2, 3):
        post(bus, time_ms)
        assert bus.drain(20)
        wait_for(lambda: not has_thread())
    bus.close(20)
    post(bus, 4)
    assert not has_thread()
    assert slow.times == [2, 3]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_listener_that_raises(
    bus: ListenerBus, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """Its error is logged once, it gets further events, and others are unaffected."""
    raising, other = Raising(error), Times()
    bus.add(raising)
    bus.add(other)
    post(bus, 1, 2, 3)
    assert bus.drain(20)
    assert raising.times == other.times == [1, 2, 3]
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().endswith(
        "Raising raised on StreamingStarted; it gets further events, and its further errors are "
        "only counted"
    )
    assert record.exc_info is not None
    assert bus.statistics() == BusStatistics(dropped=0, failures=3)


def test_a_listener_too_slow(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    """When the queue is full, events are dropped and counted, with a warning now and at the end."""
    bus = make_bus(max_queued=2)
    bus.add(slow)
    post(bus, 1)
    assert slow.entered.wait(60)
    post(bus, 2, 3, 4, 5)
    assert bus.statistics() == BusStatistics(dropped=2, failures=0)
    slow.leave.set()
    assert bus.drain(20)
    post(bus, 6)
    bus.close(20)
    assert slow.times == [1, 2, 3, 6]
    assert [message.partition(": d")[0] for message in caplog.messages] == [
        "listeners are too slow",
        "listeners: 2 events were dropped and 0 callbacks raised",
    ]


def test_closing_delivers_what_waits(bus: ListenerBus) -> None:
    """Everything posted before the end is delivered; a second close does nothing."""
    listener = Times()
    bus.add(listener)
    post(bus, *range(20))
    bus.close(20)
    bus.close(20)
    assert listener.times == list(range(20))


def test_closing_does_not_wait_for_ever(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that never returns is abandoned, and no callback follows."""
    bus, other = make_bus(max_queued=100), Times()
    bus.add(slow)
    bus.add(other)
    post(bus, 1, 2, 3)
    assert slow.entered.wait(60)
    assert not bus.drain(0.01)
    bus.close(0.01)
    assert caplog.messages[0] == (
        "abandoned a listener that did not return within 0.01 s of the stop, and dropped 2 events"
    )
    slow.leave.set()
    wait_for(lambda: not has_thread())
    assert (slow.times, other.times) == ([1], [])


def test_a_callback_may_use_the_bus(bus: ListenerBus) -> None:
    """It can add and remove listeners, and waiting for itself returns at once."""
    added, drained = Times(), []

    class Changing(Times):
        def onStreamingStarted(self, streamingStarted: Any) -> None:
            super().onStreamingStarted(streamingStarted)
            drained.append(bus.drain(20))
            bus.add(added)
            bus.remove(self)

    changing = Changing()
    bus.add(changing)
    post(bus, 1)
    assert bus.drain(20)
    post(bus, 2)
    assert bus.drain(20)
    assert (changing.times, added.times, drained) == ([1], [2], [False])


@pytest.mark.parametrize(
    ("listener", "message"),
    [
        (Times, "a listener must be an object, got the class Times; add Times()"),
        (None, "a listener must have one of the callbacks onStreamingStarted, onReceiverStarted, "),
    ],
)
def test_what_is_no_listener(bus: ListenerBus, listener: Any, message: str) -> None:
    """Refused when it is added, not when a batch completes."""
    with pytest.raises(InvalidStreamError) as raised:
        bus.add(listener)
    assert str(raised.value).startswith(message)


def test_told_at_once(bus: ListenerBus) -> None:
    """An event can be delivered on the caller's thread, under the same rules."""
    raising, gone = Raising(SystemExit), Times()
    bus.add(gone)
    bus.remove(gone)
    bus.add(raising)
    bus.call_now(StreamingStarted(1))
    assert (raising.times, gone.times) == ([1], [])
    assert bus.statistics() == BusStatistics(dropped=0, failures=1)


def test_listeners_by_name() -> None:
    """A class by its name becomes a listener."""
    assert type(load_listener("dstreams.StatsReportListener")).__name__ == "StatsReportListener"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere.Listener", "No module named 'nowhere'"),
        ("dstreams.NoSuchListener", "no attribute 'NoSuchListener'"),
        ("Listener", "Empty module name"),
        ("dstreams.DStream", "required positional argument"),
        (
            "dstreams.Settings",
            "got dstreams.common.settings.Settings; derive it from StreamingListener",
        ),
    ],
)
def test_listeners_by_name_that_are_none(bus: ListenerBus, name: str, reason: str) -> None:
    """The message has the name, the reason and the remedy."""
    with pytest.raises(InvalidStreamError) as raised:
        bus.add(load_listener(name))
    assert reason in str(raised.value)
