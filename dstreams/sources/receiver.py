"""The base class of custom receivers, and the supervisor that runs one.

A thread of the supervisor calls ``onStart`` and ``onStop`` alternately, so a receiver may request a
restart from a thread that ``onStop`` waits for. ::

    --start--> started --restart--> stopped --delay--> started ...
                  +-------stop----> stopped for good

Stopping a receiver loses nothing: ``isStopped`` turns true, ``onStop`` runs (threads that it waits
for may still store records), then further records are rejected and the last blocks are stored.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark import StorageLevel

from dstreams.common.durations import require_duration_ms
from dstreams.common.redaction import masked
from dstreams.errors import InvalidStreamError, SourceError, StreamLifecycleError
from dstreams.monitoring.events import ReceiverError, ReceiverInfo, ReceiverStarted, ReceiverStopped
from dstreams.sources.rate_limit import RateLimiter
from dstreams.sources.received_blocks import BlockGenerator, ReceivedBlock
from dstreams.sources.source import SourceEnvironment

logger = logging.getLogger(__name__)


class Receiver:
    """Receives records from anywhere; derive from it, and pass it to ``ssc.receiverStream``.

    >>> class Numbers(Receiver):
    ...     def onStart(self):
    ...         self.thread = threading.Thread(target=self.receive)
    ...         self.thread.start()
    ...
    ...     def onStop(self):
    ...         self.thread.join()
    ...
    ...     def receive(self):
    ...         for number in itertools.count():
    ...             if self.isStopped():
    ...                 break
    ...             self.store(number)

    A receiver runs in the driver. ``onStart`` must not block: it starts threads, which receive and
    call :meth:`store` or :meth:`storeAll`. ``onStop`` stops the threads and waits for them. Both
    are called again when the receiver restarts: after an exception in ``onStart``, or after a call
    of :meth:`restart`. Create connections and threads in ``onStart``: with a checkpoint directory
    the receiver is pickled before it starts, and a recovered stream starts from that copy.

    Args:
        storageLevel: accepted for compatibility; blocks wait in the driver for their batch.

    Semantics: org.apache.spark.streaming.receiver.Receiver (4.3).
    """

    storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2
    # Class attributes, so that a receiver works without calling this constructor.
    _supervisor: ReceiverSupervisor | None = None
    _stream_id: int | None = None

    def __init__(self, storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2) -> None:
        self.storageLevel = storageLevel

    # Defined by the user ----------------------------------------------------------------------

    def onStart(self) -> None:
        """Start to receive; must not block."""
        raise NotImplementedError(f"{type(self).__name__} must define onStart")

    def onStop(self) -> None:
        """Stop what :meth:`onStart` started and wait for it; it may still store records."""
        raise NotImplementedError(f"{type(self).__name__} must define onStop")

    @property
    def preferredLocation(self) -> str | None:
        """The preferred host; ignored, because receivers run in the driver."""
        return None

    # Called by the user -----------------------------------------------------------------------

    def store(self, record: Any) -> None:
        """Store one record, which joins a block after ``spark.streaming.blockInterval``.

        Nothing reports when the record is durable: use :meth:`storeAll` before you acknowledge
        records. Waits while ``spark.streaming.receiver.maxRate`` is reached or the buffer is full.
        Do not change the record afterwards.

        Args:
            record: any object that can be pickled; others are skipped and reported.

        Raises:
            StreamLifecycleError: the receiver has not been started, or has been stopped.
        """
        self._attached("store").generator.add(record)

    def storeAll(self, records: Iterable[Any]) -> None:
        """Store records and return once they count as received and can be acknowledged.

        With ``spark.streaming.receiver.writeAheadLog.enable`` they are then in the checkpoint
        directory, otherwise in the memory of the driver. If this raises, some records may have been
        stored: send all of them again.

        Args:
            records: the records, in order; they must fit into memory.

        Raises:
            InvalidStreamError: a record cannot be pickled, or is larger than 64 MiB; none is
                stored.
            StreamLifecycleError: the receiver has not been started, or has been stopped.
            CheckpointError: the records could not be written.
        """
        self._attached("storeAll").generator.add_all(records)

    def reportError(self, message: str, error: BaseException | None = None) -> None:
        """Report an error to the log and to listeners; the receiver continues.

        Args:
            message: what happened.
            error: the exception, None if there is none.
        """
        self._attached("reportError").report_error(message, error)

    def restart(
        self, message: str, error: BaseException | None = None, delay: float | None = None
    ) -> None:
        """Call ``onStop`` and, after a delay, ``onStart``; returns at once.

        Args:
            message: the reason.
            error: the exception that caused the restart, None if there is none.
            delay: seconds in between; None for two seconds.
        """
        delay_ms = None
        if delay is not None:
            delay_ms = 0 if delay == 0 else require_duration_ms(delay, "delay")
        self._attached("restart").restart(message, error, delay_ms)

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """Call ``onStop`` and do not restart; returns at once.

        Args:
            message: the reason.
            error: the exception that caused the stop, which ``awaitTermination`` raises; None for
                an expected end.
        """
        self._attached("stop").stop(message, error)

    def isStarted(self) -> bool:
        """Return whether the receiver was started, and not stopped since."""
        return self._supervisor is not None and self._supervisor.is_started

    def isStopped(self) -> bool:
        """Return whether the receiver must stop, also before a restart."""
        return self._supervisor is not None and self._supervisor.is_stopped

    @property
    def streamId(self) -> int:
        """Number of the input stream, from 0, in order of definition.

        Raises:
            StreamLifecycleError: the receiver is not part of a stream yet.
        """
        if self._stream_id is None:
            raise StreamLifecycleError(
                f"{type(self).__name__} has no streamId; pass it to receiverStream first"
            )
        return self._stream_id

    # Internal ---------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_supervisor"}

    def _attached(self, method: str) -> ReceiverSupervisor:
        if self._supervisor is None:
            raise StreamLifecycleError(
                f"{type(self).__name__}.{method} was called on a receiver that was not started; "
                "call it from onStart on"
            )
        return self._supervisor


@dataclass(frozen=True)
class _End:
    """The reason why a receiver stops; *restart_ms* is None if it does not start again."""

    message: str
    error: BaseException | None
    restart_ms: int | None = None


class ReceiverSupervisor:
    """Runs a receiver, stores its blocks by *store*, and reports its events."""

    def __init__(
        self,
        receiver: Receiver,
        info: ReceiverInfo,
        store: Callable[[ReceivedBlock], None],
        environment: SourceEnvironment,
    ) -> None:
        clock, settings = environment.clock, environment.settings
        self._receiver = receiver
        self._name = info.name
        self._info = info
        self._environment = environment
        self._limiter = RateLimiter(settings.receiver_max_rate, clock)
        self.generator = BlockGenerator(
            info.name, store, self._limiter, clock, settings, self.report_error
        )
        self._changed = threading.Condition()
        self._was_started = False
        self._end: _End | None = None
        self._ended = threading.Event()
        self._ended.set()
        self._thread = threading.Thread(target=self._run, name=f"{info.name} life", daemon=True)  # noqa: TID251
        previous = receiver._supervisor
        if previous is not None and not previous.wait(0):
            raise InvalidStreamError(
                f"the receiver of {info.name} already runs in another context; create one for each"
            )
        receiver._supervisor = self

    # For the source ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start the receiver on its own thread."""
        self._ended.clear()
        self.generator.start()
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the receiver has stopped and its blocks are stored; return whether it has."""
        return self._ended.wait(timeout_s)

    def abandon(self) -> None:
        """Drop what is not stored yet, and release all waiting callers."""
        self.stop("abandoned")
        self.generator.discard()

    def update_rate(self, rate: float) -> None:
        """Set the rate in records per second, at most the maximum of the settings."""
        self._limiter.update(rate)

    # For the receiver -------------------------------------------------------------------------

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        """Report an error; the receiver continues."""
        logger.warning("%s: %s", self._name, message, exc_info=error)
        self._notify(ReceiverError, message, error)

    def restart(
        self, message: str, error: BaseException | None = None, delay_ms: int | None = None
    ) -> None:
        """Restart the receiver unless it is already restarting or stopped; returns at once."""
        if delay_ms is None:
            delay_ms = self._environment.settings.receiver_restart_delay_ms
        with self._changed:
            if not self.is_started:
                logger.debug("%s: not started, so not restarted: %s", self._name, message)
                return
            self._end = _End(message, error, delay_ms)
            self._changed.notify_all()
        cause = "" if error is None else f": {error!r}"
        logger.warning("%s: restarting in %d ms: %s%s", self._name, delay_ms, message, cause)

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """Stop the receiver for good; returns at once. The first call sets the reason."""
        with self._changed:
            if not self._is_over():
                self._end = _End(message, error)
                self._changed.notify_all()
        self._limiter.release()

    @property
    def is_started(self) -> bool:
        return self._was_started and self._end is None

    @property
    def is_stopped(self) -> bool:
        return self._end is not None

    # The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            end = self._live()
            while end.restart_ms is not None:
                self._notify(ReceiverStopped, end.message, end.error)
                with self._changed:
                    self._changed.wait_for(self._is_over, end.restart_ms / 1000)
                end = self._live()
            self.generator.stop()
        except BaseException as error:
            logger.exception("%s: failed", self._name)
            end = self._end = _End(f"failed: {error!r}", error)
            self.generator.discard()
        self._notify(ReceiverStopped, end.message, end.error)
        if end.error is not None:
            failure = SourceError(
                f"{self._name} stopped for good: {end.message}; restart the context"
            )
            failure.__cause__ = end.error
            self._environment.report_error(failure)
        self._ended.set()

    def _live(self) -> _End:
        """Start the receiver, wait for the reason to stop, stop it, and return the reason."""
        with self._changed:
            if self._end is not None and self._is_over():
                return self._end
            self._was_started, self._end = True, None
        self._notify(ReceiverStarted)
        try:
            self._receiver.onStart()
        except Exception as error:
            self.restart(f"onStart failed: {error!r}", error)
        with self._changed:
            while (end := self._end) is None:
                self._changed.wait()
        try:
            self._receiver.onStop()
        except Exception as error:
            self.report_error(f"onStop failed: {error!r}", error)
        return end

    def _is_over(self) -> bool:
        return self._end is not None and self._end.restart_ms is None

    def _notify(
        self,
        event: Callable[[ReceiverInfo], ReceiverStarted | ReceiverError | ReceiverStopped],
        message: str = "",
        error: BaseException | None = None,
    ) -> None:
        with self._changed:  # keeps the events in order
            if event is not ReceiverError:
                self._info = replace(self._info, active=event is ReceiverStarted)
            if message:
                origin = "" if error is None else "".join(traceback.format_exception(error))
                self._info = replace(
                    self._info,
                    last_error_message=masked(message),
                    last_error=masked(origin),
                    last_error_ms=self._environment.clock.now_ms(),
                )
            self._environment.on_event(event(self._info))
