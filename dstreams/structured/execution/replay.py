"""Replays of queries: recorded batches run again in a copy of the checkpoint, with other code."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import RDD, SparkContext

from checkpoint import (
    CheckpointError,
    RecoveryPlan,
    open_files,
    read_newest_graph,
    without_secrets,
)
from dstreams.common.manual_clock import ManualClock
from dstreams.common.settings import Settings
from dstreams.engine.replay import Copy, RecordedInput, Replay, fork_into
from dstreams.errors import BatchFailedError, InvalidStreamError, RestartError
from dstreams.monitoring.events import BatchInfo
from dstreams.monitoring.state_queries import StateQueries
from dstreams.sinks.output_batch import OutputBatch
from dstreams.spark.encryption import require_encrypted_files
from dstreams.spark.failures import located, make_brief
from dstreams.spark.worker_python import require_workers
from dstreams.state.group_state import OutputMode
from dstreams.structured.execution.description import QueryDefinition, output_uid
from dstreams.structured.execution.micro_batch import MicroBatchExecution
from dstreams.structured.execution.query_checkpoint import QueryCheckpoint, read_checkpoint
from dstreams.structured.execution.query_records import QueryBatch
from dstreams.structured.operators.exchange import ShuffleExchangeExec
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import (
    Ordering,
    Partitioning,
    PhysicalOperator,
    UnaryExec,
)
from dstreams.structured.operators.stateful_operator import StateStoreReader, StateStoreWriter
from dstreams.structured.plan.planning import PlannedQuery
from dstreams.structured.plan.unsupported import check_supported
from dstreams.structured.sinks.sink import Sink

_SETTING = "spark.sql.streaming.minBatchesToRetain"


def query_in(location: str) -> str | None:
    """Return the name of the query in a checkpoint, "" without a name; None without a query.

    Raises RestartError if the checkpoint is damaged.
    """
    found = None if os.path.isfile(location) else read_checkpoint(location)
    if found is None or found[1].stream_id is None:
        return None
    files, plan = found
    try:
        graph = read_newest_graph(files, plan.graph, plan.lineage)
    except CheckpointError as error:
        raise RestartError(f"{files.url} cannot be replayed: {error}") from error
    return "" if graph is None else str(graph.description.get("query") or "")


def open_query_replay(
    checkpoint: str,
    definition: QueryDefinition,
    spark: SparkContext,
    settings: Settings,
    *,
    first_ms: int | None = None,
    last_ms: int | None = None,
    after_ms: int | None = None,
    fork: str | None = None,
    run_outputs: bool = False,
    record_operators: bool = False,
) -> Replay:
    """Copy the checkpoint of a query as of an earlier batch, and start another query on the copy.

    The arguments after *settings* are those of :func:`dstreams.engine.replay.open_replay`, which
    has the errors. The states of a query are always written.
    """
    check_supported(definition.plan, definition.mode)
    require_encrypted_files(spark, definition.conf)
    require_workers(spark)
    with ExitStack() as undo:
        scratch = undo.enter_context(TemporaryDirectory(prefix="dstreams-replay-"))
        directory = os.path.join(scratch, "checkpoint") if fork is None else fork
        found = read_checkpoint(checkpoint)
        if found is None or found[1].stream_id is None:
            raise InvalidStreamError(f"{without_secrets(checkpoint)} has no checkpoint of a query")
        files, into = found[0], open_files(directory)
        if first_ms is None and after_ms is None:
            first_ms = _after_moves(found[1])
        made = fork_into(directory, into, files, first_ms, after_ms, last_ms, _SETTING)
        copy = Copy(files.url, directory, found[1].stream_id, into, made, last_ms, None)
        taken = QueryCheckpoint(directory, "", str(uuid.uuid4()))  # noqa: TID251
        undo.callback(taken.close)
        batches = taken.recovered().unfinished
        _require_no_move(copy, batches)
        local = os.path.join(scratch, "local")
        definition = replace(definition, conf=definition.conf.replace(state_local_directory=local))
        clock = ManualClock(batches[0].timestamp_ms if batches else made.after_ms or 0)
        try:
            execution = MicroBatchExecution(
                definition,
                taken,
                str(uuid.uuid4()),  # noqa: TID251
                spark,
                clock,
                settings,
                open_source=lambda source, environment: RecordedInput(source.open(environment), {}),
            )
        except RestartError as error:
            raise RestartError(
                f"{files.url} cannot be replayed by this query; nothing ran: {error}"
            ) from error
        undo.callback(execution.close)
        execution.garbage_collector.use_thread()
        execution.garbage_collector.close()  # the copy keeps what the original has, to compare
        execution.require_records(batches)
        if run_outputs:
            for sink in definition.sinks:
                sink.begin(taken.query_id)
                undo.callback(sink.close)
        seen: dict[str, list[Any]] = {}
        if record_operators:
            execution.planned = _RecordedQuery.of(execution.planned, seen)
        return _QueryReplay(execution, clock, copy, batches, seen, run_outputs, undo.pop_all())


def _after_moves(plan: RecoveryPlan) -> int | None:
    """Return the time of the batch after the last one without data, if there are both."""
    batches = [QueryBatch(begun) for _, begun in sorted(plan.begins.items())]
    moves = [batch for batch in batches if batch.moves_state or batch.adopts is not None]
    later = (batch for batch in batches if moves and batch.batch_id > moves[-1].batch_id)
    return next((batch.begun.batch_time_ms for batch in later), None)


def _require_no_move(copy: Copy, batches: Sequence[QueryBatch]) -> None:
    for batch in batches:
        if batch.moves_state or batch.adopts is not None:
            done = "moved the state into other partitions" if batch.moves_state else "adopted it"
            raise InvalidStreamError(
                f"{copy.url} cannot be replayed over batch {batch.batch_id}, at "
                f"{batch.begun.batch_time_ms} ms, which {done}; end before it, or begin after it"
            )


class _QueryReplay(Replay):
    """A replay of a query."""

    def __init__(
        self,
        execution: MicroBatchExecution,
        clock: ManualClock,
        copy: Copy,
        batches: Sequence[QueryBatch],
        seen: dict[str, list[Any]],
        run_outputs: bool,
        undo: ExitStack,
    ) -> None:
        planned = execution.planned
        times = [batch.begun.batch_time_ms for batch in batches]
        operators = dict(map(_described, planned.root.walk(), _uids(planned)))
        super().__init__(copy, times, operators, seen, undo)
        self._batches = list(batches)
        self._execution = execution
        self._clock = clock
        self._runs_outputs = run_outputs
        self._infos: list[BatchInfo] = []
        execution.report = self._infos.append
        execution.write = self._write

    def _run(self, time_ms: int) -> BatchInfo:
        execution, batch = self._execution, self._batches[len(self._batches) - len(self.left_ms)]
        self._clock.advance(max(0, batch.timestamp_ms - self._clock.now_ms()))
        try:
            execution.run_trigger()
            execution.report_committed()
        except Exception as error:
            message = f"batch {batch.batch_id} failed: {located(error)}"
            if (remedy := execution.explain(error)) is not None:
                message = f"{message}; {remedy}"
            make_brief(error)
            raise BatchFailedError(message, time_ms) from error
        return self._infos.pop()

    def _write(
        self, sink: Sink, batch: OutputBatch, rows: RDD[Any], mode: OutputMode
    ) -> int | None:
        """Record the rows of a sink, and write them if requested."""
        found = rows.collect()
        self._seen[output_uid(self._execution.definition.sinks.index(sink))] = found
        return sink.add_batch(batch, rows, mode) if self._runs_outputs else len(found)

    @property
    def _queries(self) -> StateQueries:
        return self._execution.state_access() or StateQueries({})


def _uids(planned: PlannedQuery) -> list[str]:
    """Return the uid of each operator of a plan, in its order: that of its state, or a number."""
    names, numbers = iter(planned.names), count()
    return [
        next(names) if isinstance(operator, StateStoreWriter) else f"operator-{next(numbers)}"
        for operator in planned.root.walk()
    ]


def _described(operator: PhysicalOperator, uid: str) -> tuple[str, str]:
    if isinstance(operator, StateStoreWriter):
        return uid, f"{operator.nodeName} ({uid})"
    return uid, operator.describe()


@dataclass(frozen=True)
class _RecordedQuery(PlannedQuery):
    """A plan whose operators record their rows, by uid; it is executed one operator by one."""

    seen: dict[str, list[Any]] | None = None

    @classmethod
    def of(cls, planned: PlannedQuery, seen: dict[str, list[Any]]) -> _RecordedQuery:
        return cls(**{**vars(planned), "fuses": False, "seen": seen})

    def prepared(self, plan: PhysicalOperator | None = None) -> PhysicalOperator:
        uids = iter(_uids(self))

        def recorded(operator: PhysicalOperator) -> PhysicalOperator:
            uid = next(uids)
            # Others look for these among the operators below them.
            if isinstance(operator, (StateStoreReader, ShuffleExchangeExec)):
                return operator
            return RecordedExec(operator, uid, self.seen)

        return (self.root if plan is None else plan).transform(recorded)


@dataclass(frozen=True)
class RecordedExec(UnaryExec):
    """An operator that passes on the rows of another one and records them."""

    uid: str
    seen: dict[str, list[Any]] | None

    @property
    def outputPartitioning(self) -> Partitioning:
        return self.child.outputPartitioning

    @property
    def outputOrdering(self) -> Ordering:
        return self.child.outputOrdering

    def execute(self, context: ExecutionContext) -> RDD[Any]:
        rows = self.child.execute(context)
        if self.seen is not None:
            self.seen[self.uid] = rows.collect()
        return rows
