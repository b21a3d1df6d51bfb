"""The base of receivers that users write, and the supervisor that runs one.

A thread of the supervisor calls ``onStart`` and ``onStop``, by turns and never both, whoever asks
for it: a receiver may ask to be restarted from a thread that ``onStop`` waits for. ::

    --start--> started --restart--> stopped --delay--> started ...
                  +-------stop----> stopped, for good

The end of a receiver loses nothing: ``isStopped`` turns true, ``onStop`` runs (what it waits for
may store), then no more records are taken, the last block is made, and all blocks are stored.
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
from dstreams.sources.block_generator import BlockGenerator
from dstreams.sources.pickled_block import ReceivedBlock
from dstreams.sources.rate_limiter import RateLimiter
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
    call :meth:`store` or :meth:`storeAll`. ``onStop`` lets them end and waits until they have. Both
    may be called several times, by turns, as the receiver is restarted: after an exception in
    ``onStart``, or when it asks for it. What both need is made in ``onStart``: with a checkpoint
    directory the receiver is pickled before it starts, and a restart begins with that copy.

    Args:
        storageLevel: taken for compatibility; blocks wait in the driver until they are in a batch.

    Semantics: org.apache.spark.streaming.receiver.Receiver (4.3).
    """

    storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2
    # Of the class, so that a receiver that does not call this constructor works as well.
    _supervisor: ReceiverSupervisor | None = None
    _stream_id: int | None = None

    def __init__(self, storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2) -> None:
        self.storageLevel = storageLevel

    # To be defined by the user ----------------------------------------------------------------

    def onStart(self) -> None:
        """Begin to receive; must not block."""
        raise NotImplementedError(f"{type(self).__name__} must define onStart")

    def onStop(self) -> None:
        """End what :meth:`onStart` began, and wait for its end; what that stores still counts."""
        raise NotImplementedError(f"{type(self).__name__} must define onStop")

    @property
    def preferredLocation(self) -> str | None:
        """The host to run on, None for any; taken for compatibility: it is the driver's."""
        return None

    # To be called by the user -----------------------------------------------------------------

    def store(self, record: Any) -> None:
        """Store one record; it is in a block after ``spark.streaming.blockInterval``.

        Nothing says when it is safe: use :meth:`storeAll` to acknowledge what was received. Waits
        when ``spark.streaming.receiver.maxRate`` says so, and while batches take nothing. The
        record must not be changed afterwards.

        Args:
            record: any object that can be pickled; one that cannot be is left out and reported.

        Raises:
            StreamLifecycleError: the receiver has not been started, or has been stopped.
        """
        self._attached("store").generator.add(record)

    def storeAll(self, records: Iterable[Any]) -> None:
        """Store records and return when they count as received; then they may be acknowledged.

        With ``spark.streaming.receiver.writeAheadLog.enable`` they are in the checkpoint directory
        then, else in the memory of the driver. When it raises, some may have been stored: send them
        all again.

        Args:
            records: the records, in their order; all that are in memory at once.

        Raises:
            InvalidStreamError: a record cannot be pickled, or is larger than 64 MiB; none is
                stored.
            StreamLifecycleError: the receiver has not been started, or has been stopped.
            CheckpointError: the records could not be written.
        """
        self._attached("storeAll").generator.add_all(records)

    def reportError(self, message: str, error: BaseException | None = None) -> None:
        """Tell the log and listeners of an error; the receiver goes on.

        Args:
            message: what happened.
            error: the exception, None if there is none.
        """
        self._attached("reportError").report_error(message, error)

    def restart(
        self, message: str, error: BaseException | None = None, delay: float | None = None
    ) -> None:
        """Call ``onStop``, and ``onStart`` after a while; returns at once.

        Args:
            message: why.
            error: the exception that made it necessary, None if there is none.
            delay: seconds in between. None: two seconds.
        """
        delay_ms = None
        if delay is not None:
            delay_ms = 0 if delay == 0 else require_duration_ms(delay, "delay")
        self._attached("restart").restart(message, error, delay_ms)

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """Stop for good: ``onStop`` is called, and no restart follows; returns at once.

        Args:
            message: why.
            error: the exception that made it necessary; ``awaitTermination`` raises it then. None
                for an end that was to be expected.
        """
        self._attached("stop").stop(message, error)

    def isStarted(self) -> bool:
        """Whether the receiver was started, and not stopped since."""
        return self._supervisor is not None and self._supervisor.is_started

    def isStopped(self) -> bool:
        """Whether the receiver has to end what it does, also when it will be started again."""
        return self._supervisor is not None and self._supervisor.is_stopped

    @property
    def streamId(self) -> int:
        """Number of the input stream: 0, 1, 2, ... in order of definition.

        Raises:
            StreamLifecycleError: the receiver is in no stream yet.
        """
        if self._stream_id is None:
            raise StreamLifecycleError(
                f"{type(self).__name__} has no streamId; pass it to receiverStream first"
            )
        return self._stream_id

    # Below the surface ------------------------------------------------------------------------

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
    """Why a receiver has to end.

    Args:
        message: what was said.
        error: the exception that made it necessary.
        restart_ms: milliseconds until it starts again, None when it ends for good.
    """

    message: str
    error: BaseException | None
    restart_ms: int | None = None


class ReceiverSupervisor:
    """Runs a receiver, and takes what it stores.

    Args:
        receiver: the receiver; it is attached to this supervisor.
        info: what listeners are told of it; it has not started yet.
        store: keeps its blocks.
        environment: clock, settings, and who is told what becomes of it.
    """

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
                f"the receiver of {info.name} runs already, in another context; create one for each"
            )
        receiver._supervisor = self

    # For the source ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start the receiver, on a thread of its own."""
        self._ended.clear()
        self.generator.start()
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the receiver has ended and all blocks are stored; say whether it has."""
        return self._ended.wait(timeout_s)

    def abandon(self) -> None:
        """Drop what is not stored yet, and let nobody wait any more."""
        self.stop("abandoned")
        self.generator.discard()

    def update_rate(self, rate: float) -> None:
        """Set the rate in records a second; never above the maximum of the settings."""
        self._limiter.update(rate)

    # For the receiver -------------------------------------------------------------------------

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        """Report an error; the receiver goes on."""
        logger.warning("%s: %s", self._name, message, exc_info=error)
        self._tell(ReceiverError, message, error)

    def restart(
        self, message: str, error: BaseException | None = None, delay_ms: int | None = None
    ) -> None:
        """Stop the receiver and start it again after a while; returns at once.

        Nothing happens when it is being restarted or stopped already.
        """
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
        """Stop the receiver for good; returns at once. The first call says why."""
        with self._changed:
            if not self._is_over():
                self._end = _End(message, error)
                self._changed.notify_all()
        self._limiter.release()

    @property
    def is_started(self) -> bool:
        """Whether the receiver was started, and not stopped since."""
        return self._was_started and self._end is None

    @property
    def is_stopped(self) -> bool:
        """Whether the receiver has to end what it does."""
        return self._end is not None

    # The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            end = self._live()
            while end.restart_ms is not None:
                self._tell(ReceiverStopped, end.message, end.error)
                with self._changed:
                    self._changed.wait_for(self._is_over, end.restart_ms / 1000)
                end = self._live()
            self.generator.stop()
        except BaseException as error:
            logger.exception("%s: failed", self._name)
            end = self._end = _End(f"failed: {error!r}", error)
            self.generator.discard()
        self._tell(ReceiverStopped, end.message, end.error)
        if end.error is not None:
            failure = SourceError(
                f"{self._name} stopped for good: {end.message}; start the context anew"
            )
            failure.__cause__ = end.error
            self._environment.report_error(failure)
        self._ended.set()

    def _live(self) -> _End:
        """Start the receiver, wait until it has to end, and stop it; return why it ended."""
        with self._changed:
            if self._end is not None and self._is_over():
                return self._end
            self._was_started, self._end = True, None
        self._tell(ReceiverStarted)
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

    def _tell(
        self,
        event: Callable[[ReceiverInfo], ReceiverStarted | ReceiverError | ReceiverStopped],
        message: str = "",
        error: BaseException | None = None,
    ) -> None:
        with self._changed:  # so that events come in the order of what they say
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
