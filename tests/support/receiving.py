"""Receivers, stores and clocks for tests of what receives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dstreams.monitoring.events import (
    Event,
    ReceiverError,
    ReceiverInfo,
    ReceiverStarted,
    ReceiverStopped,
)
from dstreams.sources.received_blocks import ReceivedBlock, decode_records
from dstreams.sources.receiver import Receiver, ReceiverSupervisor
from dstreams.testing import ManualClock
from tests.support.surroundings import Surroundings


class Store:
    """Keeps blocks, and can be told to fail or to wait."""

    def __init__(self) -> None:
        self.blocks: list[ReceivedBlock] = []
        self.failures: list[Exception] = []
        self.open = threading.Event()
        self.open.set()

    def put(self, block: ReceivedBlock) -> None:
        assert self.open.wait(300)
        if self.failures:
            raise self.failures.pop(0)
        self.blocks.append(block)

    @property
    def records(self) -> list[Any]:
        return list(decode_records(block.payload for block in self.blocks))


class Calls(Receiver):
    """Notes what it is told to do; what it does on start is given."""

    def __init__(self, on_start: Callable[[Calls], object] | None = None) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.on_start = on_start

    def onStart(self) -> None:
        self.calls.append("start")
        if self.on_start is not None:
            self.on_start(self)

    def onStop(self) -> None:
        self.calls.append("stop")


class Supervised:
    """A supervisor, with all that it needs and says."""

    def __init__(self, receiver: Receiver, **settings: Any) -> None:
        self.store = Store()
        self.clock = ManualClock()
        self.events: list[Event] = []
        self.surroundings = Surroundings()
        self.supervisor = ReceiverSupervisor(
            receiver,
            ReceiverInfo(0, "numbers", False, "here", "driver"),
            self.store.put,
            replace(
                self.surroundings.environment(**{"receiver_restart_delay_ms": 1, **settings}),
                clock=self.clock,
                on_event=self.events.append,
            ),
        )

    @property
    def infos(self) -> list[ReceiverInfo]:
        """What listeners were told of the receiver, event by event."""
        return [event.receiver for event in self.events if isinstance(event, _EVENTS)]

    @property
    def kinds(self) -> list[type[Event]]:
        return [type(event) for event in self.events]

    def end(self) -> None:
        self.supervisor.stop("test over")
        assert self.supervisor.wait(300)


_EVENTS = (ReceiverStarted, ReceiverError, ReceiverStopped)
