"""Receivers, stores and clocks for tests of what receives."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from dstreams.receiving.blocks import ReceivedBlock, decode_records
from dstreams.receiving.endpoint import BlockEndpoint
from dstreams.receiving.receiver import Receiver
from dstreams.receiving.supervisor import Notice, ReceiverSupervisor, ReceivingSettings
from dstreams.testing import ManualClock

SETTINGS = ReceivingSettings(
    block_interval_ms=200, max_queued_blocks=10, restart_delay_ms=1, max_rate=None
)


class Store:
    """Keeps blocks, and can be told to fail or to wait."""

    def __init__(self) -> None:
        self.blocks: list[ReceivedBlock] = []
        self.failures: list[Exception] = []
        self.open = threading.Event()
        self.open.set()

    def put(self, block: ReceivedBlock) -> None:
        assert self.open.wait(30)
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


class Acknowledging(Receiver):
    """Stores blocks, and writes down what it may acknowledge, as a reliable receiver does."""

    def __init__(self, acknowledged: str) -> None:
        super().__init__()
        self.acknowledged = acknowledged

    def onStart(self) -> None:
        self.thread = threading.Thread(target=self.send, daemon=True)
        self.thread.start()

    def onStop(self) -> None:
        self.thread.join(30)

    def send(self) -> None:
        number = 0
        while not self.isStopped():
            self.storeAll([(os.getpid(), number)])
            with open(self.acknowledged, "a", encoding="ascii") as file:
                file.write(f"{os.getpid()} {number}\n")
            number += 1


class ListeningEndpoint:
    """An endpoint on a free port, with the blocks that it stored and all that it was told."""

    def __init__(self, token: bytes) -> None:
        self.store = Store()
        self.connected: list[dict[str, object]] = []
        self.notices: list[Notice] = []
        self.endpoint = BlockEndpoint(
            "numbers",
            "127.0.0.1",
            token,
            self.store,
            connected=self.connected.append,
            notice=self.notices.append,
        )
        self.port = self.endpoint.start()


class Supervised:
    """A supervisor, with all that it needs and says."""

    def __init__(self, receiver: Receiver, **settings: Any) -> None:
        self.store = Store()
        self.clock = ManualClock()
        self.notices: list[Notice] = []
        values = {**vars(SETTINGS), **settings}
        self.supervisor = ReceiverSupervisor(
            receiver,
            "numbers",
            self.store,
            self.notices.append,
            self.clock,
            ReceivingSettings(**values),
        )

    @property
    def kinds(self) -> list[str]:
        return [notice.kind for notice in self.notices]

    def end(self) -> None:
        self.supervisor.stop("test over")
        assert self.supervisor.wait(60)
