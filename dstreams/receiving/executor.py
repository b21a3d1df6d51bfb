"""The task that runs a receiver on an executor, and its end of the connection to the driver."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark import TaskContext

from dstreams.errors import SourceError
from dstreams.receiving.blocks import BlocksRefusedError, ReceivedBlock
from dstreams.receiving.protocol import (
    HANDSHAKE_SECONDS,
    Channel,
    Kind,
    Outcome,
    ProtocolError,
    block_body,
    read_ack,
    read_rate,
    text_body,
)
from dstreams.receiving.supervisor import (
    Notice,
    ReceiverSupervisor,
    ReceivingSettings,
    UserReceiver,
)

_END_SECONDS = 5.0


class MonotonicClock:
    """The machine's monotonic clock: on an executor it decides nothing but when to cut a block."""

    def now_ms(self) -> int:
        """Milliseconds since some moment."""
        return int(time.monotonic() * 1000)

    def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
        """Wait for *time_ms*; False when *interrupted* was set first."""
        return not interrupted.wait(max(0, time_ms - self.now_ms()) / 1000)


@dataclass
class _Waiting:
    """A block that was sent and not answered."""

    answered: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None
    text: str = ""


class DriverLink:
    """The store of a receiver on an executor: sends blocks to the driver and waits for its word."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._numbers = 0
        self._waiting: dict[int, _Waiting] = {}
        self.lost = threading.Event()
        self.changed = threading.Event()

    def put(self, block: ReceivedBlock) -> None:
        """Return when the driver has acknowledged *block*.

        Raises:
            BlocksRefusedError: the driver takes no more, or cannot be reached.
            SourceError: the driver could not store it.
        """
        waiting = _Waiting()
        with self._lock:
            number = self._numbers
            self._numbers += 1
            self._waiting[number] = waiting
        try:
            # Losing the connection sets `lost` first and then answers all that wait.
            if self.lost.is_set():
                raise BlocksRefusedError("the connection to the driver is lost")
            self._channel.send(Kind.BLOCK, block_body(number, block.records), block.payload)
            waiting.answered.wait()
        except OSError as error:
            raise BlocksRefusedError(f"the connection to the driver is lost: {error}") from error
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if waiting.outcome is None:
            raise BlocksRefusedError("the connection to the driver is lost")
        if waiting.outcome is Outcome.REFUSED:
            raise BlocksRefusedError(f"the driver takes no more blocks: {waiting.text}")
        if waiting.outcome is Outcome.FAILED:
            raise SourceError(f"the driver could not store a block: {waiting.text}")

    def report(self, notice: Notice) -> None:
        """Tell the driver what became of the receiver, if it can be reached."""
        fields = {"kind": notice.kind, "message": notice.message, "error": notice.error}
        try:
            self._channel.send(Kind.NOTICE, text_body(fields))
        except OSError:
            self._lose()

    def listen(self, supervisor: ReceiverSupervisor) -> None:
        """Obey the driver until the connection ends."""
        try:
            while True:
                kind, body = self._channel.receive()
                if kind is Kind.ACK:
                    self._answer(*read_ack(body))
                elif kind is Kind.RATE:
                    supervisor.update_rate(read_rate(body))
                elif kind is Kind.STOP:
                    supervisor.stop("stopped by the driver")
                else:
                    raise ProtocolError(f"{kind.name} is not for an executor")
        except OSError:
            pass
        finally:
            self._lose()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _answer(self, number: int, outcome: Outcome, text: str) -> None:
        with self._lock:
            waiting = self._waiting.get(number)
        if waiting is not None:
            waiting.outcome, waiting.text = outcome, text
            waiting.answered.set()

    def _lose(self) -> None:
        self.lost.set()
        self.changed.set()
        with self._lock:
            for waiting in self._waiting.values():
                waiting.answered.set()


@dataclass(frozen=True)
class RunReceiver:
    """The function of the task.

    Args:
        receiver: the receiver, pickled by cloudpickle.
        name: its name in messages.
        host: where the driver listens.
        port: its port.
        token: the secret they share.
        settings: settings.
    """

    receiver: bytes
    name: str
    host: str
    port: int
    token: bytes
    settings: ReceivingSettings

    def __repr__(self) -> str:
        return f"RunReceiver({self.name}, {self.host}:{self.port})"  # never the token

    def __call__(self, slots: Iterable[Any]) -> list[str]:
        """Run the receiver to its end; fails when the driver is lost."""
        for _ in slots:  # a worker whose input is left unread is not used again
            pass
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            threading.Event().wait(self.settings.restart_delay_ms / 1000)
        address = (self.host, self.port)
        connection = socket.create_connection(address, timeout=HANDSHAKE_SECONDS)
        try:
            channel = Channel.connect(connection, self.token)
            channel.send(Kind.HELLO, text_body(_identity()))
            return [self._run(DriverLink(channel))]
        finally:
            connection.close()

    def _run(self, link: DriverLink) -> str:
        receiver: UserReceiver = pickle.loads(self.receiver)
        supervisor = ReceiverSupervisor(
            receiver, self.name, link, link.report, MonotonicClock(), self.settings
        )
        threading.Thread(
            target=link.listen, args=(supervisor,), name=f"{self.name} link", daemon=True
        ).start()
        threading.Thread(
            target=self._tell_end, args=(supervisor, link), name=f"{self.name} end", daemon=True
        ).start()
        supervisor.start()
        link.changed.wait()
        if not supervisor.wait(0):
            supervisor.abandon()
            supervisor.wait(_END_SECONDS)
            raise SourceError(f"{self.name} lost the connection to the driver at {self.host}")
        link.close()
        return "stopped"

    def _tell_end(self, supervisor: ReceiverSupervisor, link: DriverLink) -> None:
        supervisor.wait()
        link.changed.set()


def _identity() -> dict[str, str | int]:
    """What the driver is told of this task."""
    context = TaskContext.get()
    return {
        "host": socket.gethostname(),
        "stage": -1 if context is None else context.stageId(),
        "attempt": -1 if context is None else context.attemptNumber(),
        "task": -1 if context is None else context.taskAttemptId(),
    }
