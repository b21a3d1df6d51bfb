"""The methods of StreamingContext that wait for the streams and end them."""

from __future__ import annotations

import atexit
import logging
import threading
from enum import Enum
from typing import Any, ClassVar

from pyspark import SparkContext

from dstreams.errors import IncompleteStopError
from dstreams.graph.plan import StreamGraph
from dstreams.kernel.listener_bus import ListenerBus
from dstreams.runtime.cut_off import cut_off
from dstreams.runtime.engine import Engine
from dstreams.runtime.scheduler import Scheduler
from dstreams.runtime.signals import SignalStop
from dstreams.runtime.unseen_failure import UnseenFailure
from dstreams.settings import Settings

logger = logging.getLogger(__name__)

LISTENERS_S = 5.0
"""Seconds that a step and a stop wait for listeners that have not been told everything yet."""


class StreamingContextState(str, Enum):
    """Where a context is in its life; it never goes back."""

    INITIALIZED = "INITIALIZED"
    ACTIVE = "ACTIVE"
    STOPPED = "STOPPED"


class LifeCycleMethods:
    """How a context that runs is waited for and stopped.

    Semantics: pyspark.streaming.StreamingContext (4.3).
    """

    _active: ClassVar[Any] = None
    _active_lock: ClassVar[threading.RLock] = threading.RLock()

    _sc: SparkContext
    _graph: StreamGraph
    _settings: Settings
    _engine: Engine | None
    _scheduler: Scheduler | None
    _signals: SignalStop
    _failure: UnseenFailure
    _bus: ListenerBus
    _state: StreamingContextState
    _ended: threading.Condition
    _error: BaseException | None
    _incomplete: IncompleteStopError | None
    _checkpoint_directory: str | None
    _was_awaited: bool
    _stop_spark: bool
    _stepping: threading.Thread | None  # noqa: TID251
    _stop_after_step: bool
    _stop_gracefully: bool

    def stop(self, stopSparkContext: bool = True, stopGraceFully: bool = False) -> None:
        """Stop the streams.

        Args:
            stopSparkContext: stop the SparkContext too, also when the streams were stopped before.
            stopGraceFully: run what was received to its end first: the running batch, those that
                are planned, and what is in no batch yet. After
                ``spark.dstreams.stop.waitForBatches`` (an hour) the running batch is cancelled, and
                so it is two seconds after a stop at once that is asked for meanwhile. False: let
                the running batch finish within two seconds, else cancel it, and run no other.

        What is left out is named in the log, with its batches and the number of records of each
        input: what is lost, and what the next start from the checkpoint directory runs again.

        With a checkpoint directory a last copy of the state is written, within ten seconds: after a
        graceful stop, so that the next start has it at once, and after every stop where that could
        not read again what the state was made of, as with sockets.

        Called inside a batch, or by a listener, it returns at once, and the context stops after the
        running batch. Otherwise listeners have been told of all batches when it returns; a
        listener that takes more than five seconds for that is left behind, with a warning.

        A context that is stepped by hand runs no further batch in a stop.

        Raises:
            IncompleteStopError: a graceful stop left out batches or received records; the context,
                and the SparkContext where that was asked for, are stopped nevertheless. Where stop
                was called inside a batch, by a listener or by a signal,
                :meth:`awaitTermination` raises it.

        Semantics: pyspark.streaming.StreamingContext.stop (4.3), which waits for batches as long.
        """
        self._failure.seen()
        self._stop(stopSparkContext, stopGraceFully)

    def _stop(self, stopSparkContext: bool, stopGraceFully: bool) -> None:
        scheduler = self._scheduler
        incomplete: IncompleteStopError | None = None
        is_listener = self._bus.is_own_thread() and self._state is StreamingContextState.ACTIVE
        is_in_step = is_listener or threading.current_thread() is self._stepping
        if is_in_step and scheduler is None:
            self._stop_spark, self._stop_gracefully = stopSparkContext, stopGraceFully
            self._stop_after_step = True
            return
        if scheduler is None or self._state is StreamingContextState.STOPPED:
            if self._state is not StreamingContextState.ACTIVE:
                logger.warning("StreamingContext is not running, there is nothing to stop")
            elif self._engine is not None:
                self._engine.checkpoint_at_end(is_abandoned=not stopGraceFully)
            self._finish()
        elif is_listener or scheduler.is_own_thread():
            self._stop_spark = stopSparkContext
            scheduler.request_stop(abandon=not stopGraceFully)
            return
        else:
            scheduler.request_stop(abandon=not stopGraceFully)
            scheduler.join(self._settings.wait_for_batches_ms / 1000)
            self._finish()
            incomplete = self._incomplete if stopGraceFully else None
        if stopSparkContext:
            self._sc.stop()
        if incomplete is not None:
            raise incomplete

    def awaitTermination(self, timeout: float | None = None) -> None:
        """Wait until the streams are stopped.

        Args:
            timeout: seconds to wait at most. None: no limit.

        Raises:
            BatchFailedError: a batch failed, now or before; with several, the first.
            IncompleteStopError: a graceful stop left out batches or received records.
        """
        self.awaitTerminationOrTimeout(timeout)

    def awaitTerminationOrTimeout(self, timeout: float | None = None) -> bool:
        """Wait until the streams are stopped, and say whether they are.

        Args:
            timeout: seconds to wait at most. None: no limit.

        Raises:
            BatchFailedError: a batch failed, now or before; with several, the first.
            IncompleteStopError: a graceful stop left out batches or received records.
        """
        with self._ended:
            self._was_awaited = True
            self._ended.wait_for(
                lambda: self._error is not None or self._state is StreamingContextState.STOPPED,
                timeout,
            )
        if self._error is not None:
            # The program goes on, and may do something else now, unless it was asked to end.
            self._was_awaited = self._error is self._incomplete
            self._failure.seen()
            raise self._error
        return self._state is StreamingContextState.STOPPED

    def getState(self) -> StreamingContextState:
        """Return where the context is in its life."""
        if self._state is StreamingContextState.STOPPED:
            self._failure.seen()
        return self._state

    # Below the surface -----------------------------------------------------------------------

    def _report(self, error: BaseException) -> None:
        """Let ``awaitTermination`` raise *error*, unless an earlier one stands."""
        with self._ended:
            if self._error is None:
                self._error = error
            self._ended.notify_all()

    def _end_steps(self) -> None:
        """Stop after a step in which that was asked for, as after any other batch."""
        if self._engine is not None:
            self._engine.checkpoint_at_end(is_abandoned=not self._stop_gracefully)
        self._finish()

    def _finish(self) -> None:
        """End the life of the context; called by whoever comes first, and harmless after."""
        with LifeCycleMethods._active_lock:
            engine, self._engine = self._engine, None
            if engine is not None:
                self._tell_what_is_left(engine)
                engine.close()
            if LifeCycleMethods._active is self:
                LifeCycleMethods._active = None
        self._bus.close(LISTENERS_S)
        self._signals.remove()
        atexit.unregister(self._stop_at_exit)
        with self._ended:
            self._state = StreamingContextState.STOPPED
            self._ended.notify_all()
        if self._stop_spark:
            self._sc.stop()

    def _tell_what_is_left(self, engine: Engine) -> None:
        """Name what no batch has run to its end, and let who asked for all of it be told."""
        scheduler = self._scheduler
        batches = () if scheduler is None else scheduler.unfinished
        left = cut_off(engine, batches, goes_on=self._checkpoint_directory is not None)
        if not left:
            return
        why = "" if scheduler is None else scheduler.why_abandoned
        if scheduler is None or not scheduler.is_graceful:
            level = logging.WARNING if left.lost else logging.INFO
            logger.log(level, "the streams stopped (%s); %s", why or "between two steps", left)
            return
        message = f"a graceful stop did not run all that was received ({why}); {left}"
        logger.error("%s", message)
        self._incomplete = IncompleteStopError(message, left.batch_times_ms, left.lost, left.again)
        self._report(self._incomplete)

    def _stop_on_signal(self) -> bool:
        if self._state is StreamingContextState.STOPPED:
            return False  # nobody waits for the streams any more, and the program is meant
        logger.info("asked to end by a signal, stopping the streams")
        self._stop_at_exit()
        return self._was_awaited

    def _stop_at_once_on_signal(self) -> None:
        """A second signal: what a graceful stop has not run by now is left out, and named."""
        if self._scheduler is not None:
            logger.warning("asked to end by a second signal, stopping the streams at once")
            self._scheduler.request_stop(abandon=True, why="a second signal asked to end at once")

    def _stop_at_exit(self) -> None:
        """Stop because the process ends, and let its exit status say what was left out."""
        graceful = self._settings.stop_gracefully_on_shutdown
        try:
            self._stop(stopSparkContext=False, stopGraceFully=graceful)
        except IncompleteStopError:
            if not self._was_awaited:
                self._failure.told_to_nobody()
