"""StreamingQuery: a query that runs on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark import InheritableThread, SparkContext  # noqa: TID251

from checkpoint import CheckpointError
from dstreams.common.clock import Clock
from dstreams.common.waiting import wait_in_steps
from dstreams.engine.signals import stop_signal
from dstreams.errors import InvalidStreamError, StreamError, StreamLifecycleError
from dstreams.monitoring.events import BatchInfo
from dstreams.monitoring.listener_bus import ListenerBus
from dstreams.monitoring.monitor import Monitor
from dstreams.monitoring.progress import RecentProgress, StreamingQueryProgress, iso, query_progress
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
from dstreams.structured.api.triggers import Trigger
from dstreams.structured.execution.micro_batch import MicroBatchExecution
from dstreams.structured.trees import explanation

logger = logging.getLogger(__name__)

_POLLING_DELAY_MS = 10
"""Pause before a query without an interval looks for new records again."""

_IDLE_EVENT_INTERVAL_MS = 10_000
"""Interval of events about a query that has nothing to do."""

_CANCEL_S = 0.5


class StreamingQueryException(StreamError, RuntimeError):  # noqa: N818 - as pyspark names it
    """A query ended with an error; ``__cause__`` is what was raised.

    Message and cause are as those of :class:`~dstreams.errors.BatchFailedError`.

    Args:
        message: which query, in which batch, and why.
    """


@dataclass(frozen=True)
class QueryEnvironment:
    """What a query runs with.

    Args:
        watch: reports and ends what hangs.
        ended: called at the end of the run.
        stop_all: ends all queries of the session.
    """

    spark: SparkContext
    clock: Clock
    listeners: ListenerBus
    monitor: Monitor
    watch: JobWatch
    ended: Callable[[StreamingQuery], None]
    stop_all: Callable[[], None]


class StreamingQuery:
    """A query that was started.

    Semantics: pyspark.sql.streaming.StreamingQuery. ``processAllAvailable`` also returns where
    there are timers: it does not wait for those that are not due.

    Args:
        execution: makes the batches.
        trigger: when.
        environment: what it runs with.
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
        self._idle_told_ms = environment.clock.now_ms()
        self._thread = InheritableThread(
            target=self._run,
            name=f"stream execution thread for {self.name or self.id}",
            daemon=True,
        )

    @property
    def id(self) -> str:
        """Identity of the query, the same after a restart from its checkpoint."""
        return self._execution.checkpoint.query_id

    @property
    def runId(self) -> str:
        """Identity of this run."""
        return self._execution.run_id

    @property
    def name(self) -> str | None:
        """What the user calls it, None without ``queryName``."""
        return self._execution.definition.name

    @property
    def isActive(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """What it does now: message, isDataAvailable, isTriggerActive."""
        with self._changed:
            return {
                "message": self._message,
                "isDataAvailable": self._execution.has_new_data,
                "isTriggerActive": self._is_busy,
            }

    @property
    def recentProgress(self) -> RecentProgress[StreamingQueryProgress]:
        """The progress of the newest batches, the newest last."""
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
            extended: print the logical plan too.
        """
        import sys  # noqa: PLC0415 - looked up when it is printed, as print does

        sys.stdout.write(self.explanation(extended=extended))

    def explanation(self, *, extended: bool = False) -> str:
        """Return what :meth:`explain` prints."""
        logical = self._execution.definition.plan.tree()
        return explanation(logical, self._execution.last_plan, extended=extended)

    def exception(self) -> StreamingQueryException | None:
        """Return what the query failed with, None if it did not."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end.

        SIGTERM meanwhile stops all queries of the session, unless the program handles it.

        Args:
            timeout: seconds, None to wait for ever.

        Returns:
            With a timeout, whether it has ended.

        Raises:
            StreamingQueryException: it ended with an error.
            StreamLifecycleError: called in a batch of the query itself.
            InvalidStreamError: *timeout* is no positive number.
        """
        require_timeout(timeout)
        self._require_other_thread("awaitTermination")
        with stop_signal.noted() as is_to_stop, self._changed:
            wait_in_steps(self._changed, lambda: self._ended.is_set() or is_to_stop(), timeout)
        if is_to_stop():
            logger.warning("asked to end by SIGTERM, stopping the queries")
            self._environment.stop_all()
        if self._ended.is_set() and self._error is not None:
            raise self._error
        return None if timeout is None else self._ended.is_set()

    def processAllAvailable(self) -> None:
        """Wait until all that sources have now is processed, and what follows from watermarks.

        Raises:
            StreamingQueryException: the query ended with an error.
            StreamLifecycleError: called in a batch of the query itself.
        """
        self._require_other_thread("processAllAvailable")
        with self._changed:
            begun = self._triggers
            # A trigger under way may have looked at the sources already; a later one has not.
            wait_in_steps(
                self._changed, lambda: self._idle_trigger > begun or self._ended.is_set(), None
            )
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the query, and wait for that; a batch that runs is given up."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if threading.current_thread() is self._thread:
            return
        while self._thread.is_alive() and not self._ended.is_set():
            # Again and again: a job may begin just after those that ran were cancelled.
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
                "for itself; call it in another thread, or call stop() to end the query"
            )

    def _cancel_jobs(self) -> None:
        try:
            self._environment.spark.cancelJobGroup(self.runId)
        except Exception:
            logger.warning("jobs of query %s could not be cancelled", self.id, exc_info=True)

    def _start(self) -> None:
        started = QueryStartedEvent(
            self.id, self.runId, self.name, iso(self._environment.clock.now_ms())
        )
        self._environment.listeners.call_now(started)
        self._thread.start()

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
                # What a job says that was cancelled, as a rule.
                logger.info("query %s was stopped in: %s", self.name or self.id, summarize(error))
            else:
                self._fail(error)
        finally:
            self._end()

    def _run_triggers(self) -> None:
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
            batch = self._execution.run_trigger(
                allows_no_data=allows_no_data, is_stopping=self._stopping.is_set
            )
        now_ms = self._environment.clock.now_ms()
        if batch is not None:
            with self._changed:
                self._idle_told_ms = now_ms
                self._changed.notify_all()
            self._environment.listeners.post(QueryProgressEvent(self._progress_of(batch)))
            return True
        interval_ms = _IDLE_EVENT_INTERVAL_MS
        with self._changed:
            self._idle_trigger = self._triggers
            is_due = now_ms - self._idle_told_ms >= interval_ms
            self._idle_told_ms = now_ms if is_due else self._idle_told_ms
            self._changed.notify_all()
        if is_due:
            self._environment.listeners.post(QueryIdleEvent(self.id, self.runId, iso(now_ms)))
        return False

    def _wait_for_next(self, started_ms: int, *, has_run: bool) -> None:
        """Wait for the next trigger; without an interval, a moment if there was nothing to do."""
        clock = self._environment.clock
        if self._trigger.interval_ms:
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
        for close in (close_execution, execution.definition.sink.close, execution.checkpoint.close):
            try:
                close()
            except Exception:
                logger.warning("query %s could not give up all it held", self.id, exc_info=True)
        self._say("Terminated with exception" if self._error else "Stopped", busy=False)
        logger.info(
            "query %s has stopped, with %d batches", self.name or self.id, execution.batch_id
        )
        self._environment.ended(self)
        self._environment.listeners.post(self._terminated())
        self._ended.set()
        with self._changed:
            self._changed.notify_all()

    def _terminated(self) -> QueryTerminatedEvent:
        if self._error is None:
            return QueryTerminatedEvent(self.id, self.runId, None)
        cause = self._error.__cause__ or self._error
        return QueryTerminatedEvent(self.id, self.runId, str(self._error), class_of(cause))


def require_timeout(timeout: object, *, allows_zero: bool = False) -> None:
    """Refuse what is no time to wait.

    Raises:
        InvalidStreamError: it is neither None nor a positive number of seconds.
    """
    if timeout is None:
        return
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if is_number and (timeout > 0 or (allows_zero and timeout == 0)):  # type: ignore[operator]
        return
    wanted = "0 or a positive" if allows_zero else "a positive"
    raise InvalidStreamError(f"timeout must be {wanted} number of seconds, got {timeout!r}")


def status_of(query: StreamingQuery) -> StreamStatus:
    """Return how a query does."""
    return query._environment.monitor.status()


def start_query(query: StreamingQuery) -> None:
    """Let a query run."""
    query._start()
