"""Triggers, and StreamingQuery: a query that runs on its own thread."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pyspark import InheritableThread, SparkContext  # noqa: TID251

from checkpoint import CheckpointError
from dstreams.common.clock import Clock, wait_in_steps
from dstreams.common.settings import duration
from dstreams.engine.signals import stop_signal
from dstreams.errors import InvalidStreamError, StreamError, StreamLifecycleError
from dstreams.monitoring.events import BatchInfo
from dstreams.monitoring.listener_bus import ListenerBus
from dstreams.monitoring.monitor import Monitor
from dstreams.monitoring.progress import (
    RecentProgress,
    StreamingQueryProgress,
    query_progress,
    spark_time,
)
from dstreams.monitoring.state_queries import LiveState
from dstreams.monitoring.status import StreamStatus
from dstreams.spark.failures import class_of, located, make_brief, summarize, with_code
from dstreams.spark.job_labels import labelled_jobs
from dstreams.spark.job_watch import JobWatch, watched
from dstreams.structured.api.listeners import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)
from dstreams.structured.execution.micro_batch import MicroBatchExecution
from dstreams.structured.trees import explained_plans

logger = logging.getLogger(__name__)

Kind = Literal["processingTime", "once", "availableNow"]

_INTERVAL = duration(least_ms=0)

_POLLING_DELAY_MS = 10
"""Pause before a query without an interval polls its sources again."""

_IDLE_EVENT_INTERVAL_MS = 10_000
"""Interval of events about an idle query."""

_CANCEL_S = 0.5


@dataclass(frozen=True)
class Trigger:
    """The condition for the next batch; an interval of 0 ms runs batches without pauses."""

    kind: Kind = "processingTime"
    interval_ms: int = 0

    def next_ms(self, now_ms: int) -> int:
        """Return the time of the batch after *now_ms*, a multiple of the interval since the epoch.

        Semantics: ProcessingTimeExecutor. A batch that takes longer than the interval skips some.
        """
        if not self.interval_ms:
            return now_ms
        return now_ms // self.interval_ms * self.interval_ms + self.interval_ms

    def __str__(self) -> str:
        if self.kind == "processingTime":
            return f"ProcessingTimeTrigger({self.interval_ms})"
        return {"once": "OneTimeTrigger", "availableNow": "AvailableNowTrigger"}[self.kind]


def make_trigger(
    processing_time: str | None,
    once: bool | None,
    available_now: bool | None,
    continuous: str | None = None,
    real_time: str | None = None,
) -> Trigger:
    """Return the trigger of the one argument that is set; the last two are not supported."""
    for name, value in (("continuous", continuous), ("realTime", real_time)):
        if value is not None:
            raise InvalidStreamError(
                f"trigger({name}={value!r}) is not supported: queries run in batches; use "
                "processingTime='0 seconds' for batches without pauses"
            )
    given = {"processingTime": processing_time, "once": once, "availableNow": available_now}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise InvalidStreamError(
            "trigger takes one of processingTime, once and availableNow, got "
            f"{' and '.join(named) if named else 'none of them'}"
        )
    for name in ("once", "availableNow"):
        if given[name] not in (None, True):
            raise InvalidStreamError(f"{name} of trigger must be True, got {given[name]!r}")
    if once:
        return Trigger("once")
    if available_now:
        return Trigger("availableNow")
    return Trigger(
        "processingTime", _INTERVAL.read(processing_time or "", "processingTime of trigger")
    )


class StreamingQueryException(StreamError, RuntimeError):  # noqa: N818 - as pyspark names it
    """A query ended with an error, which is the ``__cause__``.

    Message and cause are formatted as in :class:`~dstreams.errors.BatchFailedError`.
    """


@dataclass(frozen=True)
class QueryEnvironment:
    """Parts of the session of a query; *ended* is called at the end of the run."""

    spark: SparkContext
    clock: Clock
    listeners: ListenerBus
    monitor: Monitor
    watch: JobWatch
    ended: Callable[[StreamingQuery], None]
    stop_all: Callable[[], None]


class StreamingQuery:
    """A started query.

    Semantics: pyspark.sql.streaming.StreamingQuery. In contrast to Spark's, ``processAllAvailable``
    does not wait for timers that are not due.
    """

    def __init__(
        self, execution: MicroBatchExecution, trigger: Trigger, environment: QueryEnvironment
    ) -> None:
        self._execution = execution
        self._trigger = trigger
        self._environment = environment
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._error: StreamingQueryException | None = None
        self._triggers = 0
        self._idle_trigger = 0
        self._message = "Initializing sources"
        self._is_busy = False
        self._idle_since_ms = environment.clock.now_ms()
        execution.report = self._report
        self._thread = InheritableThread(
            target=self._run,
            name=f"stream execution thread for {self.name or self.id}",
            daemon=True,
        )

    @property
    def id(self) -> str:
        """Identity of the query, unchanged after a restart from its checkpoint."""
        return self._execution.checkpoint.query_id

    @property
    def runId(self) -> str:
        """Identity of this run."""
        return self._execution.run_id

    @property
    def name(self) -> str | None:
        """The ``queryName``, or None."""
        return self._execution.definition.name

    @property
    def isActive(self) -> bool:
        """True until the query has ended."""
        return not self._ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """The current status: message, isDataAvailable, isTriggerActive."""
        with self._changed:
            return {
                "message": self._message,
                "isDataAvailable": self._execution.has_new_data,
                "isTriggerActive": self._is_busy,
            }

    @property
    def recentProgress(self) -> RecentProgress[StreamingQueryProgress]:
        """The progress of the newest batches, in order."""
        return RecentProgress(
            self._progress_of(batch)
            for batch in self._environment.monitor.recent()
            if batch.outcome == "succeeded"
        )

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The progress of the newest batch, None before the first."""
        batches = reversed(self._environment.monitor.recent())
        newest = next((batch for batch in batches if batch.outcome == "succeeded"), None)
        return None if newest is None else self._progress_of(newest)

    def _repr_html_(self) -> str:
        return status_of(self)._repr_html_()

    def _progress_of(self, batch: BatchInfo) -> StreamingQueryProgress:
        return query_progress(batch, self.id, self.runId, self.name)

    def explain(self, extended: bool = False) -> None:
        """Print the physical plan of the newest batch.

        Args:
            extended: also print the logical plan.
        """
        sys.stdout.write(self.explanation(extended=extended))

    def explanation(self, *, extended: bool = False) -> str:
        """Return the text that :meth:`explain` prints."""
        logical = self._execution.definition.plan.tree()
        return explained_plans(logical, self._execution.last_plan, extended=extended)

    def state(self, uid: str | None = None) -> LiveState:
        """Return the state of an operator, for look-ups while the query runs.

        ::

            query.state("counts").get("alice")

        Args:
            uid: the operator, as in its ``name=``; None if only one has state.

        Raises:
            InvalidStreamError: no operator has this uid; the error lists the uids.
            StreamLifecycleError: the query has ended, or has no state;
                :class:`dstreams.CheckpointState` reads the checkpoint.
        """
        states = self._environment.monitor.states
        if states is None:
            raise StreamLifecycleError(
                f"there is no state to look up: query {self.name or self.id} has ended, or has no "
                "state; dstreams.CheckpointState(checkpointLocation) reads that of a checkpoint"
            )
        return states.state(uid)

    def exception(self) -> StreamingQueryException | None:
        """Return the error that ended the query, or None."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query has ended.

        SIGTERM during the wait stops all queries of the session, unless the program handles it.

        Args:
            timeout: seconds, None to wait without limit.

        Returns:
            With a timeout, whether the query has ended.

        Raises:
            StreamingQueryException: the query ended with an error.
            StreamLifecycleError: called in a batch of the query itself.
            InvalidStreamError: *timeout* is not a positive number.
        """
        require_timeout(timeout)
        self._require_other_thread("awaitTermination")
        with stop_signal.noted() as is_to_stop, self._changed:
            wait_in_steps(self._changed, lambda: self._ended.is_set() or is_to_stop(), timeout)
        if is_to_stop():
            logger.warning("received SIGTERM, stopping the queries")
            self._environment.stop_all()
        if self._ended.is_set() and self._error is not None:
            raise self._error
        return None if timeout is None else self._ended.is_set()

    def processAllAvailable(self) -> None:
        """Wait until all available records, and batches due to watermarks, are processed.

        Raises:
            StreamingQueryException: the query ended with an error.
            StreamLifecycleError: called in a batch of the query itself.
        """
        self._require_other_thread("processAllAvailable")
        with self._changed:
            begun = self._triggers
            # A running trigger may have polled the sources already, so wait for a later one.
            wait_in_steps(
                self._changed, lambda: self._idle_trigger > begun or self._ended.is_set(), None
            )
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop the query, and wait until it has ended; a running batch is cancelled."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if threading.current_thread() is self._thread:
            return
        while self._thread.is_alive() and not self._ended.is_set():
            # Repeatedly: a job may start just after the running ones were cancelled.
            self._cancel_jobs()
            with self._changed:
                wait_in_steps(self._changed, self._ended.is_set, _CANCEL_S)

    def __repr__(self) -> str:
        life = "active" if self.isActive else "failed" if self._error else "stopped"
        return f"<StreamingQuery {self.name or self.id}, {life}>"

    def _require_other_thread(self, call: str) -> None:
        if threading.current_thread() is self._thread:
            raise StreamLifecycleError(
                f"{call} was called in a batch of query {self.name or self.id}, which would wait "
                "for itself; call it on another thread, or call stop() to end the query"
            )

    def _cancel_jobs(self) -> None:
        try:
            self._environment.spark.cancelJobGroup(self.runId)
        except Exception:
            logger.warning("could not cancel the jobs of query %s", self.id, exc_info=True)

    def _run(self) -> None:
        try:
            self._environment.spark.setJobGroup(
                self.runId, f"streaming query {self.name or self.id}", interruptOnCancel=True
            )
            self._execution.garbage_collector.use_thread()
            if not self._stopping.is_set():
                with self._environment.watch.watching(), labelled_jobs(self._environment.spark):
                    self._run_triggers()
        except BaseException as error:
            if self._stopping.is_set() and not isinstance(error, CheckpointError):
                # Usually the error of a cancelled job.
                logger.info("stopped query %s during: %s", self.name or self.id, summarize(error))
            else:
                self._fail(error)
        finally:
            self._end()

    def _run_triggers(self) -> None:
        try:
            self._run_batches()
        finally:
            self._execution.report_committed()

    def _run_batches(self) -> None:
        kind = self._trigger.kind
        if kind == "once":
            self._execution.pin(in_one_batch=True)
            self._run_trigger(allows_no_data=False)
            return
        if kind == "availableNow":
            self._execution.pin()
            while not self._stopping.is_set() and self._run_trigger():
                pass
            return
        while not self._stopping.is_set():
            started_ms = self._environment.clock.now_ms()
            has_run = self._run_trigger()
            waits_for = "next trigger" if has_run else "data to arrive"
            self._say(f"Waiting for {waits_for}", busy=False)
            self._wait_for_next(started_ms, has_run=has_run)

    def _run_trigger(self, *, allows_no_data: bool = True) -> bool:
        with self._changed:
            self._triggers += 1
        self._say("Processing new data", busy=True)
        with watched(f"batch {self._execution.batch_id} of query {self.name or self.id}"):
            has_run = self._execution.run_trigger(
                allows_no_data=allows_no_data, is_stopping=self._stopping.is_set
            )
        now_ms = self._environment.clock.now_ms()
        if has_run:
            with self._changed:
                self._idle_since_ms = now_ms
                self._changed.notify_all()
            return True
        with self._changed:
            self._idle_trigger = self._triggers
            is_due = now_ms - self._idle_since_ms >= _IDLE_EVENT_INTERVAL_MS
            self._idle_since_ms = now_ms if is_due else self._idle_since_ms
            self._changed.notify_all()
        if is_due:
            self._environment.listeners.post(
                QueryIdleEvent(self.id, self.runId, spark_time(now_ms))
            )
        return False

    def _report(self, batch: BatchInfo) -> None:
        self._environment.listeners.post(QueryProgressEvent(self._progress_of(batch)))

    def _wait_for_next(self, started_ms: int, *, has_run: bool) -> None:
        """Wait for the next trigger; without an interval, pause only after an idle trigger."""
        clock = self._environment.clock
        if self._trigger.interval_ms:
            self._execution.report_committed()
            due_ms = self._trigger.next_ms(started_ms)
            while clock.wait_until(due_ms, self._stopping) and clock.now_ms() < due_ms:
                due_ms = self._trigger.next_ms(clock.now_ms())  # the clock was set back
        elif not has_run:
            self._stopping.wait(_POLLING_DELAY_MS / 1000)

    def _say(self, message: str, *, busy: bool) -> None:
        with self._changed:
            self._message, self._is_busy = message, busy
        self._environment.monitor.set_message(message)

    def _fail(self, error: BaseException) -> None:
        batch_id = self._execution.batch_id
        who = f"query {self.name or self.id} (run {self.runId})"
        message = f"{who} failed in batch {batch_id}: {located(error)}"
        if (remedy := self._execution.explain(error)) is not None:
            message = f"{message}; {remedy}"
        failure = StreamingQueryException(message)
        make_brief(error)
        failure.__cause__ = error
        self._error = failure
        self._environment.monitor.failed(message)
        logger.error("%s", with_code(failure))

    def _end(self) -> None:
        execution = self._execution
        close_execution = partial(execution.close, in_order=self._error is None)
        sinks = [sink.close for sink in execution.definition.sinks]
        closes: list[Callable[[], None]] = [close_execution, *sinks, execution.checkpoint.close]
        for close in closes:
            try:
                close()
            except Exception:
                logger.warning("could not release resources of query %s", self.id, exc_info=True)
        self._say("Terminated with exception" if self._error else "Stopped", busy=False)
        logger.info("stopped query %s after %d batches", self.name or self.id, execution.batch_id)
        self._environment.ended(self)
        error = self._error
        message, name = (str(error), class_of(error.__cause__ or error)) if error else (None, None)
        terminated = QueryTerminatedEvent(self.id, self.runId, message, name)
        self._environment.listeners.post(terminated)
        self._ended.set()
        with self._changed:
            self._changed.notify_all()


def require_timeout(timeout: object, *, allows_zero: bool = False) -> None:
    """Raise InvalidStreamError unless *timeout* is None or a positive number of seconds."""
    if timeout is None:
        return
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if is_number and (timeout > 0 or (allows_zero and timeout == 0)):  # type: ignore[operator]
        return
    wanted = "0 or a positive" if allows_zero else "a positive"
    raise InvalidStreamError(f"timeout must be {wanted} number of seconds, got {timeout!r}")


def status_of(query: StreamingQuery) -> StreamStatus:
    """Return the status of a query."""
    return query._environment.monitor.status()


def start_query(query: StreamingQuery) -> None:
    """Notify listeners of the start of a query, and start its thread."""
    environment = query._environment
    timestamp = spark_time(environment.clock.now_ms())
    started = QueryStartedEvent(query.id, query.runId, query.name, timestamp)
    environment.listeners.call_now(started)
    query._thread.start()
