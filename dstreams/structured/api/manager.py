"""StreamingQueryManager: the queries of a session."""

from __future__ import annotations

import logging
import threading
import uuid
from contextlib import ExitStack
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.common.clock import Clock, wait_in_steps
from dstreams.common.settings import Settings
from dstreams.engine.replay import Replay
from dstreams.engine.signals import stop_signal
from dstreams.errors import StreamLifecycleError
from dstreams.monitoring.listener_bus import ListenerBus
from dstreams.monitoring.monitor import Monitor, RunInfo
from dstreams.monitoring.registry import registry
from dstreams.spark.encryption import require_encrypted_files, require_encrypted_page
from dstreams.spark.job_watch import JobWatch, watched
from dstreams.spark.worker_python import require_workers
from dstreams.structured.api.listeners import CALLBACKS, StreamingQueryListener
from dstreams.structured.api.query import (
    QueryEnvironment,
    StreamingQuery,
    StreamingQueryException,
    Trigger,
    require_timeout,
    start_query,
)
from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.batch_execution import execute_batch
from dstreams.structured.execution.description import QueryDefinition, query_graph_nodes
from dstreams.structured.execution.micro_batch import MicroBatchExecution
from dstreams.structured.execution.query_checkpoint import QueryCheckpoint, claim_checkpoint
from dstreams.structured.execution.replay import open_query_replay
from dstreams.structured.plan.logical import LogicalPlan
from dstreams.structured.plan.planning import plan_batch
from dstreams.structured.plan.unsupported import check_supported

logger = logging.getLogger(__name__)

_RECENT_UPDATES = 1000
"""Number of batches in ``recentProgress``."""


class StreamingQueryManager:
    """The queries of a session.

    Semantics: pyspark.sql.streaming.StreamingQueryManager.
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
        """The running queries."""
        with self._changed:
            return list(self._queries.values())

    def get(self, id: str) -> StreamingQuery | None:
        """Return the running query with an id, None if missing."""
        with self._changed:
            return self._queries.get(id)

    def addListener(self, listener: StreamingQueryListener) -> None:
        """Notify a listener of all queries from now on.

        Raises:
            InvalidStreamError: *listener* has none of the callbacks.
        """
        self._listeners.add(listener)

    def removeListener(self, listener: StreamingQueryListener) -> None:
        """Stop notifying a listener."""
        self._listeners.remove(listener)

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until a query has ended since the last :meth:`resetTerminated`.

        SIGTERM during the wait stops all queries of the session, unless the program handles it.

        Args:
            timeout: seconds, 0 to return at once, None to wait without limit.

        Returns:
            With a timeout, whether a query has ended.

        Raises:
            StreamingQueryException: a query ended with an error.
            InvalidStreamError: *timeout* is not a number, or negative.
        """
        require_timeout(timeout, allows_zero=True)
        with stop_signal.noted() as is_to_stop, self._changed:
            wait_in_steps(self._changed, lambda: self._has_ended or is_to_stop(), timeout)
        if is_to_stop():
            logger.warning("received SIGTERM, stopping the queries")
            self.stop_all()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            return None if timeout is None else self._has_ended

    def resetTerminated(self) -> None:
        """Forget the queries that have ended."""
        with self._changed:
            self._has_ended, self._failure = False, None

    def start(
        self, definition: QueryDefinition, trigger: Trigger, location: str | None
    ) -> StreamingQuery:
        """Start a query; for :meth:`DataStreamWriter.start`, which documents the errors."""
        watch = JobWatch(self._spark, self._clock, definition.conf.task_timeout_ms)
        with watch.watching(), watched(f"the start of query {definition.name or ''}".rstrip()):
            query = self._open(definition, trigger, location, watch)
        with self._changed:
            self._queries[query.id] = query
        start_query(query)
        return query

    def replay(self, checkpoint: str, definition: QueryDefinition, **options: Any) -> Replay:
        """Open a replay of a checkpoint with a query; see :func:`open_query_replay`."""
        return open_query_replay(checkpoint, definition, self._spark, self._settings, **options)

    def rows_of_batch(self, plan: LogicalPlan, conf: QueryConf) -> RDD[Any]:
        """Return the rows of a batch dataset, for :class:`BatchActions`, which has the errors."""
        require_workers(self._spark)
        return execute_batch(plan_batch(plan, conf), conf, self._spark, self._clock.now_ms())

    def _open(
        self,
        definition: QueryDefinition,
        trigger: Trigger,
        location: str | None,
        watch: JobWatch,
    ) -> StreamingQuery:
        check_supported(definition.plan, definition.mode)
        require_encrypted_files(self._spark, definition.conf)
        require_encrypted_page(self._spark, self._settings)
        require_workers(self._spark)
        registry().show_dashboard(self._spark, self._settings)  # first, as a restart may take long
        run_id = str(uuid.uuid4())  # noqa: TID251
        with ExitStack() as undo:
            self._take_name(definition.name)
            undo.callback(self._free_name, definition.name)
            claimed = claim_checkpoint(location, f"query {definition.name or run_id}")
            undo.callback(claimed.release)
            checkpoint = QueryCheckpoint(location, str(uuid.uuid4()), run_id)  # noqa: TID251
            undo.callback(checkpoint.close)
            claimed.claim_id(checkpoint.query_id)
            monitor = Monitor(
                "query",
                definition.name or checkpoint.query_id,
                trigger.interval_ms or None,
                self._clock,
                _RECENT_UPDATES,
                registry().changed,
            )
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
            for sink in definition.sinks:
                sink.begin(checkpoint.query_id)
            undo.pop_all()

        def ended(query: StreamingQuery) -> None:
            claimed.release()
            self._ended(query)
            monitor.ended()
            registry().ended(monitor)

        nodes = query_graph_nodes(execution.planned, definition.sinks)
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

    def stop_all(self) -> None:
        """Stop all queries, and wait until they have ended."""
        for query in self.active:
            query.stop()

    def wait_until_told(self, seconds: float) -> bool:
        """Wait until listeners have received all events; return False if that takes longer."""
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
                    f"a query named {name!r} is already running; stop it first, or use another "
                    "queryName"
                )
            self._names.update(() if name is None else (name,))

    def _free_name(self, name: str | None) -> None:
        with self._changed:
            self._names.discard(name)
