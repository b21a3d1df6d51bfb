"""The life cycle of a stream: start or step, wait, and stop."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

from pyspark import SparkContext

from dstreams.common.callables import call_site
from dstreams.common.clock import Clock, wait_in_steps
from dstreams.common.settings import Settings
from dstreams.engine.engine import Engine
from dstreams.engine.scheduler import Scheduler
from dstreams.engine.signals import FailureWatchdog, SignalStop, interruptible
from dstreams.errors import DurabilityError, IncompleteStopError, StreamLifecycleError
from dstreams.monitoring.events import BatchInfo, StreamingStarted
from dstreams.monitoring.listener_bus import ListenerBus
from dstreams.monitoring.monitor import Monitor
from dstreams.monitoring.registry import registry
from dstreams.spark.job_watch import JobWatch, watched
from dstreams.spark.spark_context import require_running

logger = logging.getLogger(__name__)

LISTENERS_S = 5.0
"""Seconds that a step and a stop wait for listeners to receive all events."""


class StreamingContextState(str, Enum):
    """The state of a context; it only moves forward."""

    INITIALIZED = "INITIALIZED"
    ACTIVE = "ACTIVE"
    STOPPED = "STOPPED"


class StreamRunner:
    """Runs the batches of a context, waits for them and stops them; one per process is active.

    *check* rejects streams that cannot run, changes nothing, and returns a function that opens
    them.
    """

    active: ClassVar[StreamRunner | None] = None
    _lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(
        self,
        context: object,
        check: Callable[[], Callable[[], Engine]],
        spark: SparkContext,
        settings: Settings,
        bus: ListenerBus,
        monitor: Monitor,
    ) -> None:
        self.context: Any = context
        self.state = StreamingContextState.INITIALIZED
        self.engine: Engine | None = None
        self.scheduler: Scheduler | None = None
        self.failure = FailureWatchdog()
        self.has_lasting_checkpoint = True  # else a rewind is not possible
        self._check = check
        self._spark = spark
        self._settings = settings
        self._bus = bus
        self._monitor = monitor
        hasten = self._stop_at_once_on_signal if settings.stop_gracefully_on_shutdown else None
        self._signals = SignalStop(self._stop_on_signal, hasten)
        self._started_at: str | None = None
        self._ended = threading.Condition()
        self._error: BaseException | None = None
        self._incomplete: IncompleteStopError | None = None
        self._was_awaited = False
        self._was_stopped = False
        self._stop_spark = False
        self._stepping: threading.Thread | None = None  # noqa: TID251
        self._stop_after_step = False
        self._stop_gracefully = False

    def require_initialized(self, what: str) -> None:
        """Raise for *what* if the context has been started or stopped."""
        if self.state is not StreamingContextState.INITIALIZED:
            when = "started" if self.state is StreamingContextState.ACTIVE else "stopped"
            raise StreamLifecycleError(
                f"{what} after the StreamingContext has been {when}; define everything before "
                "start() or the first step(), or create a new StreamingContext"
            )

    def start(self, clock: Clock) -> bool:
        """Run batches in real time; return False if they run already."""
        with StreamRunner._lock:
            if self.state is StreamingContextState.ACTIVE:
                if self.scheduler is None:
                    raise StreamLifecycleError(
                        "a context that is stepped cannot be started; continue with step(), or "
                        "stop it and resume its checkpoint with a new context"
                    )
                logger.warning("StreamingContext has already been started")
                return False
            watch = JobWatch(self._spark, clock, self._settings.task_timeout_ms)
            starting = SignalStop(self._stop_in_start)
            starting.install()
            try:
                with watch.watching():
                    engine = self._activate()
            finally:
                starting.remove()
            self.scheduler = Scheduler(
                engine,
                self._spark,
                clock,
                self._settings,
                watch,
                report=self.report,
                failed=self.failure.stream_failed,
                finished=self.finish,
            )
            self.scheduler.start()
        atexit.register(self._stop_at_exit)
        self._signals.install()
        return True

    def step(self, n: int, clock: Clock) -> list[BatchInfo]:
        """Run the next *n* batches on the calling thread."""
        with JobWatch(self._spark, clock, self._settings.task_timeout_ms).watching():
            self._begin_steps()
            try:
                return self._run_steps(n)
            finally:
                self._stepping = None

    def stop(self, stop_spark: bool, gracefully: bool) -> None:
        """Stop the streams, and Spark if *stop_spark*."""
        self._was_stopped = True
        scheduler = self.scheduler
        incomplete: IncompleteStopError | None = None
        is_listener = self._bus.is_own_thread() and self.state is StreamingContextState.ACTIVE
        is_in_step = is_listener or threading.current_thread() is self._stepping
        if is_in_step and scheduler is None:
            self._stop_spark, self._stop_gracefully = stop_spark, gracefully
            self._stop_after_step = True
            return
        if scheduler is None or self.state is StreamingContextState.STOPPED:
            if self.state is not StreamingContextState.ACTIVE:
                active = StreamRunner.active
                other = (
                    f"; another one is, started at {active._started_at}, which "
                    "StreamingContext.getActive() returns"
                    if active is not None
                    else ""
                )
                logger.warning("StreamingContext is not running, there is nothing to stop%s", other)
            elif self.engine is not None:
                self.engine.checkpoint_at_end(is_abandoned=not gracefully)
            self.finish()
        elif is_listener or scheduler.is_own_thread():
            self._stop_spark = stop_spark
            scheduler.request_stop(abandon=not gracefully)
            return
        else:
            scheduler.request_stop(abandon=not gracefully)
            scheduler.join(self._settings.stop_batch_timeout_ms / 1000)
            self.finish()
            incomplete = self._incomplete if gracefully else None
        if stop_spark:
            self._spark.stop()
        if incomplete is not None:
            raise incomplete

    def wait(self, timeout: float | None) -> bool:
        """Wait until the streams are stopped; raise what was reported, return False on timeout."""
        with self._ended:
            self._was_awaited = True
            wait_in_steps(
                self._ended,
                lambda: self._error is not None or self.state is StreamingContextState.STOPPED,
                timeout,
            )
        if self._error is not None:
            # The program may continue now, unless it is ending.
            self._was_awaited = self._error is self._incomplete
            self.failure.seen()
            raise self._error
        return self.state is StreamingContextState.STOPPED

    def report(self, error: BaseException, fatal: bool = False) -> None:
        """Let ``awaitTermination`` raise the first *error*; a *fatal* one fails the context."""
        with self._ended:
            if self._error is None:
                self._error = error
            self._ended.notify_all()
        self._monitor.failed(str(error), continues=not fatal)

    def finish(self) -> None:
        """Stop the context; calling it again is harmless."""
        with StreamRunner._lock:
            engine, self.engine = self.engine, None
            if engine is not None:
                newest = self._monitor.newest()
                ran = "no batch" if newest is None else f"batch {newest.batch_id} as the last one"
                logger.info("the streams have stopped, with %s", ran)
                self._report_unfinished_work(engine)
                engine.close(in_order=self._was_stopped)
            if StreamRunner.active is self:
                StreamRunner.active = None
        self._bus.close(LISTENERS_S)
        self._monitor.ended()
        registry().ended(self._monitor)
        self._signals.remove()
        atexit.unregister(self._stop_at_exit)
        with self._ended:
            self.state = StreamingContextState.STOPPED
            self._ended.notify_all()
        if self._stop_spark:
            self._spark.stop()

    def _activate(self) -> Engine:
        """Freeze the graph and open the sources; if they cannot be opened, stop the context.

        If the streams cannot run as they are defined, the context stays unchanged, and the program
        may define what is missing and try again.
        """
        if self.state is StreamingContextState.STOPPED:
            raise StreamLifecycleError(
                "the StreamingContext has already been stopped and cannot run again; create a "
                "new one"
            )
        with StreamRunner._lock:
            active = StreamRunner.active
            if active is not None:
                raise StreamLifecycleError(
                    "only one StreamingContext may be active in a process; the active one was "
                    f"started at {active._started_at}; stop it first: "
                    "StreamingContext.getActive().stop(stopSparkContext=False)"
                )
            require_running(self._spark)
            self._started_at = call_site()
            with watched("the start of the streams"):
                open_engine = self._check()
            try:
                with watched("the start of the streams"):
                    engine = open_engine()
            except BaseException as error:
                self._monitor.failed(str(error) or type(error).__name__)
                self.finish()
                raise
            StreamRunner.active = self
            self.engine = engine
            self.state = StreamingContextState.ACTIVE
            self._bus.post(StreamingStarted(engine.clock.now_ms()))
            return engine

    def _begin_steps(self) -> None:
        """Let only this thread step; a stop is postponed until the step has ended."""
        with StreamRunner._lock:
            if self.scheduler is not None:
                raise StreamLifecycleError(
                    "a context that was started cannot be stepped; its batches run in real time, "
                    "or give it a ManualClock"
                )
            if self._stepping is not None:
                raise StreamLifecycleError(
                    f"a step is running in thread {self._stepping.name}, and batches run one after "
                    "another; step again when it has returned"
                )
            if self.engine is None:
                self._activate()
            require_running(self._spark)
            self._stepping = threading.current_thread()

    def _run_steps(self, n: int) -> list[BatchInfo]:
        infos: list[BatchInfo] = []
        for _ in range(n):
            engine = self.engine
            if engine is None:
                raise StreamLifecycleError("the StreamingContext was stopped while it was stepped")
            with interruptible(self._spark) as is_interrupted:
                batch = engine.planner.plan_batch()
                result = engine.runner.run(batch, is_interrupted, "an interrupt")
            self._bus.drain(LISTENERS_S)
            infos.append(result.info)
            if result.info.outcome == "cancelled":
                if self._stop_after_step:
                    self._end_steps()
                raise KeyboardInterrupt(result.info.failure)
            if result.failed_outputs and self.has_lasting_checkpoint:
                logger.error("%s", result.failed_outputs)
            if result.ends_stream:  # another failure is in the batches, and in what is raised
                self._monitor.failed(str(result.error))
            if result.spark_ended or isinstance(result.error, DurabilityError):
                self.finish()
            elif self._stop_after_step or result.ends_stream:
                self._end_steps()
            if result.error is not None:
                result.error.batch_infos = tuple(infos)
                raise result.error
            if is_interrupted():
                raise KeyboardInterrupt
            if self._stop_after_step:
                break
        return infos

    def _end_steps(self) -> None:
        """Stop after a step, as requested during it."""
        if self.engine is not None:
            self.engine.checkpoint_at_end(is_abandoned=not self._stop_gracefully)
        self.finish()

    def _report_unfinished_work(self, engine: Engine) -> None:
        """Log what was left behind; after a graceful stop it is an error."""
        scheduler = self.scheduler
        batches = () if scheduler is None else scheduler.unfinished
        left = engine.unfinished_work(batches, resumable=engine.has_graph)
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
        self.report(self._incomplete, fatal=True)

    def _stop_on_signal(self) -> bool:
        if self.state is StreamingContextState.STOPPED:
            return False  # the signal is for the program, which does not wait any more
        graceful = self._settings.stop_gracefully_on_shutdown
        second = "; a second signal stops them at once" if graceful else ""
        logger.warning("stopping the streams because of a signal%s", second)
        self._stop_for_good()
        return self._was_awaited

    def _stop_in_start(self) -> bool:
        """Let a signal that comes before the streams run end the process."""
        logger.warning(
            "ending the process because of a signal while the streams were starting; the next "
            "start resumes from the checkpoint"
        )
        return False

    def _stop_at_once_on_signal(self) -> None:
        """Turn a graceful stop into a stop at once, on a second signal."""
        if self.scheduler is not None:
            logger.warning("stopping the streams at once because of a second signal")
            self.scheduler.request_stop(abandon=True, why="a second signal stopped it at once")

    def _stop_at_exit(self) -> None:
        logger.info("stopping the streams because the program has ended")
        self._stop_for_good()

    def _stop_for_good(self) -> None:
        """Stop because the process ends; its exit status shows if work was left unfinished."""
        graceful = self._settings.stop_gracefully_on_shutdown
        try:
            self.stop(stop_spark=False, gracefully=graceful)
        except IncompleteStopError:
            if not self._was_awaited:
                self.failure.lost_at_exit()
