"""The life of one receiver, in the process it runs in: started, restarted, stopped.

A thread of its own calls ``onStart`` and ``onStop``, one after the other and never both, whoever
asks for it: a receiver may ask to be restarted from a thread that ``onStop`` waits for. ::

    INITIALIZED --start--> STARTED --restart--> STOPPED --delay--> STARTED ...
                              +-------stop----> STOPPED, for good

The end of a receiver loses nothing: ``isStopped`` turns true, ``onStop`` runs (what it waits for
may store), then no more records are taken, the last block is made, and all blocks are stored.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol, TypeAlias

from dstreams.clock import Clock
from dstreams.errors import InvalidStreamError, StreamLifecycleError
from dstreams.receiving.block_generator import BlockGenerator
from dstreams.receiving.blocks import BlockStore, encode_records
from dstreams.receiving.rate_limiter import RateLimiter

logger = logging.getLogger(__name__)

ERROR_TEXT_LENGTH = 10_000

NoticeKind = Literal["started", "error", "restarting", "stopped"]


@dataclass(frozen=True)
class Notice:
    """What became of a receiver.

    Args:
        kind: it was started, reported an error, was stopped to be restarted, or for good.
        message: what it said.
        error: the exception with its traceback, empty without one.
    """

    kind: NoticeKind
    message: str = ""
    error: str = ""


Report: TypeAlias = Callable[[Notice], None]


class UserReceiver(Protocol):
    """What the supervisor asks of a receiver: see :class:`dstreams.Receiver`."""

    _supervisor: Any  # None, or the supervisor it is attached to

    def onStart(self) -> None: ...

    def onStop(self) -> None: ...


@dataclass(frozen=True)
class ReceivingSettings:
    """The settings that apply where a receiver runs; small, because they travel there.

    Args:
        block_interval_ms: milliseconds that a block collects.
        max_queued_blocks: blocks that wait to be stored.
        restart_delay_ms: pause before a restart, and before a block is stored again.
        max_rate: records a second, None for no limit.
    """

    block_interval_ms: int
    max_queued_blocks: int
    restart_delay_ms: int
    max_rate: float | None


class _State(Enum):
    INITIALIZED = "initialized"
    STARTED = "started"
    STOPPED = "stopped"


class ReceiverSupervisor:
    """Runs a receiver, and takes what it stores.

    Args:
        receiver: the receiver; it is attached to this supervisor.
        name: its name in messages.
        store: keeps its blocks.
        report: told of all that happens, in order, on several threads.
        clock: tells block interval and rate.
        settings: settings.
    """

    def __init__(
        self,
        receiver: UserReceiver,
        name: str,
        store: BlockStore,
        report: Report,
        clock: Clock,
        settings: ReceivingSettings,
    ) -> None:
        self._receiver = receiver
        self._name = name
        self._store = store
        self._report = report
        self._settings = settings
        self._limiter = RateLimiter(settings.max_rate, clock)
        self._generator = BlockGenerator(
            name,
            store,
            clock,
            interval_ms=settings.block_interval_ms,
            max_blocks=settings.max_queued_blocks,
            retry_ms=settings.restart_delay_ms,
            report=self.report_error,
        )
        self._changed = threading.Condition()
        self._state = _State.INITIALIZED
        self._is_running = False
        self._is_begun = False
        self._restart: tuple[Notice, int] | None = None
        self._last = Notice("stopped")
        self._storing = 0
        self._accepting = True
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name} life", daemon=True)
        previous = receiver._supervisor
        if previous is not None and not previous.wait(0):
            raise InvalidStreamError(
                f"the receiver of {name} runs already, in another context; create one for each"
            )
        receiver._supervisor = self

    # For who runs the receiver ----------------------------------------------------------------

    def start(self) -> None:
        """Start the receiver, on a thread of its own."""
        with self._changed:
            self._is_running = True
        self._generator.start()
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the receiver has ended and all blocks are stored; say whether it has."""
        return self._ended.wait(timeout_s)

    def abandon(self) -> None:
        """Drop what is not stored yet, and let nobody wait any more."""
        self.stop("abandoned")
        self._generator.discard()

    def update_rate(self, rate: float) -> None:
        """Set the rate in records a second; never above the maximum of the settings."""
        self._limiter.update(rate)

    # For the receiver -------------------------------------------------------------------------

    def store(self, record: Any) -> None:
        """Take one record into the current block."""
        self._limiter.acquire()
        self._generator.add(record)

    def store_all(self, records: Iterable[Any]) -> None:
        """Take records as blocks of their own; return when they count as received.

        Raises:
            StreamLifecycleError: the receiver has stopped.
        """
        kept = list(records)
        blocks = encode_records(kept)
        with self._changed:
            if not self._accepting:
                raise StreamLifecycleError(
                    f"{self._name} has stopped and takes no more records; a receiver's threads end "
                    "when isStopped() says so"
                )
            self._storing += 1
        try:
            self._limiter.acquire(len(kept))
            for block in blocks:
                self._store.put(block)
        finally:
            with self._changed:
                self._storing -= 1
                self._changed.notify_all()

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        """Report an error; the receiver goes on."""
        logger.warning("%s: %s", self._name, message, exc_info=error)
        self._report(Notice("error", message, error_text(error)))

    def restart(
        self, message: str, error: BaseException | None = None, delay_ms: int | None = None
    ) -> None:
        """Stop the receiver and start it again after a while; returns at once.

        Nothing happens when it is being restarted or stopped already.
        """
        delay_ms = self._settings.restart_delay_ms if delay_ms is None else delay_ms
        with self._changed:
            if self._state is not _State.STARTED:
                logger.debug("%s: not started, so not restarted: %s", self._name, message)
                return
            self._state = _State.STOPPED
            self._restart = (Notice("restarting", message, error_text(error)), delay_ms)
            self._changed.notify_all()
        cause = "" if error is None else f": {error!r}"
        logger.warning("%s: restarting in %d ms: %s%s", self._name, delay_ms, message, cause)

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """Stop the receiver for good; returns at once. The first call says why."""
        with self._changed:
            if self._stopping.is_set():
                return
            self._last = Notice("stopped", message, error_text(error))
            self._state = _State.STOPPED
            self._stopping.set()
            if not self._is_running:
                self._ended.set()
            self._changed.notify_all()
        self._limiter.release()

    @property
    def is_started(self) -> bool:
        """Whether the receiver was started, and not stopped since."""
        return self._state is _State.STARTED

    @property
    def is_stopped(self) -> bool:
        """Whether the receiver has to end what it does."""
        return self._state is _State.STOPPED

    # The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._begin()
            while (restart := self._next_restart()) is not None:
                notice, delay_ms = restart
                self._end()
                self._report(notice)
                if not self._stopping.wait(delay_ms / 1000):
                    self._begin()
            self._end()
            with self._changed:
                self._accepting = False
                self._changed.wait_for(lambda: self._storing == 0)
            self._generator.stop()
        except BaseException as error:
            logger.exception("%s: failed", self._name)
            self._last = Notice("stopped", f"failed: {error!r}", error_text(error))
            self._generator.discard()
        finally:
            self._report(self._last)
            self._ended.set()

    def _next_restart(self) -> tuple[Notice, int] | None:
        """Wait for what is to be done next; None is the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._restart is not None or self._stopping.is_set())
            restart, self._restart = self._restart, None
            return None if self._stopping.is_set() else restart

    def _begin(self) -> None:
        with self._changed:
            if self._stopping.is_set():
                return
            self._state = _State.STARTED
            self._is_begun = True
        self._report(Notice("started"))
        try:
            self._receiver.onStart()
        except Exception as error:
            self.restart(f"onStart failed: {error!r}", error)

    def _end(self) -> None:
        if not self._is_begun:
            return
        self._is_begun = False
        try:
            self._receiver.onStop()
        except Exception as error:
            self.report_error(f"onStop failed: {error!r}", error)


def error_text(error: BaseException | None) -> str:
    """The traceback of *error*, its end if it is long; empty for None."""
    if error is None:
        return ""
    return "".join(traceback.format_exception(error))[-ERROR_TEXT_LENGTH:]
