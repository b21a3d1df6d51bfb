"""StreamingQueryManager: the queries of a session."""

from __future__ import annotations

import logging
import threading
import uuid
from contextlib import ExitStack

from pyspark import SparkContext

from dstreams.common.clock import Clock
from dstreams.common.settings import Settings
from dstreams.common.waiting import wait_in_steps
from dstreams.engine.signals import stop_signal
from dstreams.errors import StreamLifecycleError
from dstreams.monitoring.listener_bus import ListenerBus
from dstreams.monitoring.monitor import Monitor, RunInfo
from dstreams.monitoring.registry import registry
from dstreams.spark.job_watch import JobWatch, watched
from dstreams.spark.worker_python import require_workers
from dstreams.structured.api.listeners import CALLBACKS, StreamingQueryListener
from dstreams.structured.api.query import (
    QueryEnvironment,
    StreamingQuery,
    StreamingQueryException,
    require_timeout,
    start_query,
)
from dstreams.structured.api.triggers import Trigger
from dstreams.structured.execution.active_queries import claim_checkpoint
from dstreams.structured.execution.graph_nodes import graph_nodes
from dstreams.structured.execution.micro_batch import MicroBatchExecution, QueryDefinition
from dstreams.structured.execution.query_checkpoint import QueryCheckpoint
from dstreams.structured.plan.unsupported import check_supported

logger = logging.getLogger(__name__)

_RECENT_UPDATES = 1000
"""Batches in ``recentProgress``."""


class StreamingQueryManager:
    """Starts queries, and knows those that run.

    Semantics: pyspark.sql.streaming.StreamingQueryManager.

    Args:
        spark: where tasks run.
        clock: the driver's clock.
        settings: of sources.
    """

    def __init__(self, spark: SparkContext, clock: Clock, settings: Settings) -> None:
        self._spark = spark
        self._clock = clock
        self._settings = settings
        self._listeners = ListenerBus(StreamingQueryListener, CALLBACKS, settings.max_queued_events)
        self._changed = threading.Condition()
        self._queries: dict[str, StreamingQuery] = {}
        self._names: set[str | None] = set()
        self._has_ended = False
        self._failure: StreamingQueryException | None = None

    @property
    def active(self) -> list[StreamingQuery]:
        """The queries that run."""
        with self._changed:
            return list(self._queries.values())

    def get(self, id: str) -> StreamingQuery | None:
        """Return the query that runs under an id, None if there is none."""
        with self._changed:
            return self._queries.get(id)

    def addListener(self, listener: StreamingQueryListener) -> None:
        """Tell a listener of all queries from now on.

        Raises:
            InvalidStreamError: it has none of the callbacks.
        """
        self._listeners.add(listener)

    def removeListener(self, listener: StreamingQueryListener) -> None:
        """Tell a listener nothing more."""
        self._listeners.remove(listener)

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until a query has ended since the last :meth:`resetTerminated`.

        SIGTERM meanwhile stops all queries of the session, unless the program handles it.

        Args:
            timeout: seconds, 0 to look only, None to wait for ever.

        Returns:
            With a timeout, whether one has.

        Raises:
            StreamingQueryException: one ended with an error.
            InvalidStreamError: *timeout* is no number, or negative.
        """
        require_timeout(timeout, allows_zero=True)
        with stop_signal.noted() as is_to_stop, self._changed:
            wait_in_steps(self._changed, lambda: self._has_ended or is_to_stop(), timeout)
        if is_to_stop():
            logger.warning("asked to end by SIGTERM, stopping the queries")
            self.stop_all()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            return None if timeout is None else self._has_ended

    def resetTerminated(self) -> None:
        """Forget queries that have ended."""
        with self._changed:
            self._has_ended, self._failure = False, None

    def start(
        self, definition: QueryDefinition, trigger: Trigger, location: str | None
    ) -> StreamingQuery:
        """Start a query.

        Args:
            definition: the query.
            trigger: when it looks for data.
            location: of its checkpoint, None for one that ends with the run.

        Raises:
            UnsupportedOperationError: it cannot be run as a stream.
            StreamLifecycleError: one of that name runs in this session, or one on that checkpoint,
                or on a copy of it, in this process.
            RestartError: it cannot go on from the checkpoint.
            EnvironmentNotReadyError: the Python workers lack what dstreams needs.
        """
        watch = JobWatch(self._spark, self._clock, definition.conf.task_timeout_ms)
        with watch.watching(), watched(f"the start of query {definition.name or ''}".rstrip()):
            query = self._open(definition, trigger, location, watch)
        with self._changed:
            self._queries[query.id] = query
        start_query(query)
        return query

    def _open(
        self,
        definition: QueryDefinition,
        trigger: Trigger,
        location: str | None,
        watch: JobWatch,
    ) -> StreamingQuery:
        check_supported(definition.plan, definition.mode)
        require_workers(self._spark)
        registry().show_dashboard(self._spark, self._settings)  # before a restart: it may be long
        run_id = str(uuid.uuid4())  # noqa: TID251
        with ExitStack() as undo:
            self._take_name(definition.name)
            undo.callback(self._free_name, definition.name)
            claimed = claim_checkpoint(location, f"query {definition.name or run_id}")
            undo.callback(claimed.release)
            checkpoint = QueryCheckpoint(location, str(uuid.uuid4()), run_id)  # noqa: TID251
            undo.callback(checkpoint.close)
            claimed.claim_id(checkpoint.query_id)
            monitor = self._monitor(definition, trigger, checkpoint.query_id)
            execution = MicroBatchExecution(
                definition,
                checkpoint,
                run_id,
                self._spark,
                self._clock,
                self._settings,
                monitor.record,
            )
            undo.callback(execution.close)
            definition.sink.begin(checkpoint.query_id)
            undo.pop_all()

        def ended(query: StreamingQuery) -> None:
            claimed.release()
            self._ended(query)
            monitor.ended()
            registry().ended(monitor)

        nodes = graph_nodes(execution.planned, definition.sink)
        states = execution.state_access()
        monitor.started(
            RunInfo(
                checkpoint.query_id,
                run_id,
                nodes,
                execution.log,
                states=states,
                local_state=None if states is None else execution.states.local_directory,
            )
        )
        registry().add(monitor)
        environment = QueryEnvironment(
            self._spark, self._clock, self._listeners, monitor, watch, ended, self.stop_all
        )
        return StreamingQuery(execution, trigger, environment)

    def _monitor(self, definition: QueryDefinition, trigger: Trigger, query_id: str) -> Monitor:
        return Monitor(
            "query",
            definition.name or query_id,
            trigger.interval_ms or None,
            self._clock,
            _RECENT_UPDATES,
            registry().changed,
        )

    def stop_all(self) -> None:
        """End all queries, and wait for that."""
        for query in self.active:
            query.stop()

    def wait_until_told(self, seconds: float) -> bool:
        """Wait until listeners have heard all that has happened; False when that takes longer."""
        return self._listeners.drain(seconds)

    def _ended(self, query: StreamingQuery) -> None:
        with self._changed:
            if self._queries.get(query.id) is query:
                del self._queries[query.id]
            self._names.discard(query.name)
            self._has_ended = True
            self._failure = query.exception() or self._failure
            self._changed.notify_all()

    def _take_name(self, name: str | None) -> None:
        with self._changed:
            if name is not None and name in self._names:
                raise StreamLifecycleError(
                    f"a query named {name!r} runs already; stop it first, or give another queryName"
                )
            self._names.update(() if name is None else (name,))

    def _free_name(self, name: str | None) -> None:
        with self._changed:
            self._names.discard(name)
