"""Micro-batch execution: a query as a sequence of batches, each exactly once.

A batch takes the course of :mod:`dstreams.engine.stream_checkpoint`. One that was interrupted runs
again with the same input, time and watermarks, on the same state. All of it runs on the caller's
thread: a query's own, or that of a test.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark import RDD, SparkContext

from checkpoint import CheckpointError, ConcurrentWriterError, InputPast
from checkpoint.state_store import Classes
from dstreams.common.clock import Clock
from dstreams.common.faults import fault, steps
from dstreams.common.settings import Settings
from dstreams.engine.batch_run import BatchRun
from dstreams.engine.garbage_collector import GarbageCollector
from dstreams.engine.input_offsets import InputOffsets
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.errors import RestartError, SourceError
from dstreams.monitoring.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    BatchSubmitted,
    EventHandler,
    EventTimes,
    InputInfo,
    Outcome,
    OutputOperationInfo,
    PendingBatch,
    PlannedOutput,
    StateOperatorInfo,
    ignore_event,
)
from dstreams.monitoring.progress import PhaseTimer
from dstreams.monitoring.state_jobs import StateAccess, StateJobs, StoredState
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sources.source import (
    InputDescription,
    PlannedInput,
    SourceEnvironment,
    SourceReader,
    close_all,
    input_info,
    merge_info,
    remedy_of,
)
from dstreams.spark.counting import RecordCount, counted_unless_known
from dstreams.spark.failures import located
from dstreams.spark.job_labels import (
    begin_query_batch,
    doing,
    label_jobs,
)
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.state_metrics import StateMetrics
from dstreams.spark.state_version import StateVersion
from dstreams.spark.worker_python import require_shared
from dstreams.state.group_state import OutputMode
from dstreams.state.state_versions import StateVersions
from dstreams.state.store_maintenance import open_store, require_encrypted, require_trusted_values
from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.batch_records import (
    QueryBatch,
    batch_end,
    batch_start,
    source_uid,
)
from dstreams.structured.execution.description import describe_query
from dstreams.structured.execution.event_seconds import SecondsWarning
from dstreams.structured.execution.incremental import IncrementalExecution
from dstreams.structured.execution.query_checkpoint import QueryCheckpoint, Recovered
from dstreams.structured.execution.restart_checks import describe_operators, require_same_query
from dstreams.structured.execution.state_reader import ShownState
from dstreams.structured.execution.watermarks import WatermarkRule, Watermarks
from dstreams.structured.operators.execution_context import (
    EventTimeStats,
    ExecutionContext,
    StatefulOperatorStateInfo,
)
from dstreams.structured.operators.stateful_operator import StateStoreWriter
from dstreams.structured.plan import logical
from dstreams.structured.plan.planning import PlannedQuery, plan_query, watermark_name
from dstreams.structured.sinks.sink import Sink
from dstreams.structured.trees import from_sink

logger = logging.getLogger(__name__)

_CLEAN_EVERY = 10


@dataclass(frozen=True)
class QueryDefinition:
    """What a query is."""

    plan: logical.LogicalPlan
    mode: OutputMode
    sink: Sink
    name: str | None
    conf: QueryConf
    classes: Classes = field(default_factory=Classes)


class MicroBatchExecution:
    """Runs the batches of a query.

    All batches that were begun before a restart run again, one after the other, also where several
    commits were lost. A timer of processing time asks for a batch when it is due, not at every
    trigger.

    Semantics: MicroBatchExecution (Spark 4.3).

    Raises:
        RestartError: the checkpoint is of a query that this one cannot go on from.
        InvalidStreamError: as in :func:`require_encrypted`.
        EnvironmentNotReadyError: executors do not share the checkpoint with the driver.
    """

    def __init__(
        self,
        definition: QueryDefinition,
        checkpoint: QueryCheckpoint,
        run_id: str,
        spark: SparkContext,
        clock: Clock,
        settings: Settings,
        tell: EventHandler = ignore_event,
    ) -> None:
        self.definition = definition
        self.checkpoint = checkpoint
        self.run_id = run_id
        self._spark = spark
        self._clock = clock
        self._tell = tell
        recovered = checkpoint.recovered()
        newest = recovered.newest
        conf = definition.conf if newest is None else definition.conf.restored(newest.conf)
        self.conf = conf
        self.planned: PlannedQuery = plan_query(definition.plan, definition.mode, conf)
        self._rule = _rule_of(self.planned, conf)
        self._operators = describe_operators(self.planned)
        if newest is not None:
            require_same_query(newest, self._operators, len(self.planned.sources), definition.conf)
        state_files = require_trusted_values(checkpoint.files, conf)
        if self.planned.names:
            require_encrypted(spark, conf)
            require_shared(spark, state_files)
        self.log = checkpoint.take_over(clock.now_ms(), self._description())
        recovered = checkpoint.recovered()
        _require_same_records(newest, recovered.newest)
        store = open_store(state_files, self.log.epoch, conf, definition.classes)
        self.states = StateVersions(
            spark,
            store,
            checkpoint.query_id,
            is_local_temporary=conf.state_local_directory is None,
        )
        self.garbage_collector = GarbageCollector()
        self._last: IncrementalExecution | None = None
        self._seconds = SecondsWarning(definition.name or checkpoint.query_id)
        self._counts: list[RecordCount | None] = []
        self._outputs: list[OutputOperationInfo] = []
        self._failure: SourceError | None = None
        self._trigger_ms: int | None = None
        self._since_trigger_ms: int | None = None
        if newest is not None:
            fault("rec.load")
        self._restore(recovered)
        if newest is not None:
            fault("rec.replay")
        self._readers, self._ends = self._open_readers(settings, newest)

    def _description(self) -> dict[str, object]:
        what = self.definition
        return describe_query(
            what.name, what.plan, self.planned, self._operators, what.sink, self.conf
        )

    def _restore(self, recovered: Recovered) -> None:
        count = len(self.planned.watermarks)
        self._unfinished = list(recovered.unfinished)
        self._done: tuple[Any, ...] = (None,) * len(self.planned.sources)
        self._latest = self._done
        self._watermarks = Watermarks.start(count)
        self._next_timeout_ms = -1
        self.batch_id = 0
        committed, commit = recovered.committed, recovered.commit
        if committed is not None and commit is not None:
            self.batch_id = committed.batch_id + 1
            self._done = self._latest = committed.ends
            self._watermarks = commit.watermarks.fitted(count)
            self._next_timeout_ms = commit.next_timeout_ms
            self._last = self._incremental(committed)
            for store in self.log.plan.stores:
                version = StateVersion.committed(self.checkpoint.query_id, store)
                self.states.restore(store.operator_uid, committed.batch_id, version)

    def _open_readers(
        self, settings: Settings, newest: QueryBatch | None
    ) -> tuple[list[SourceReader], InputOffsets]:
        readers: list[SourceReader] = []
        try:
            for number, source in enumerate(self.planned.sources):
                environment = SourceEnvironment(
                    self._spark,
                    self._clock,
                    settings,
                    self._clock.now_ms(),
                    partial(self._report, source.name),
                    newest=None if newest is None else newest.inputs[number],
                    past=partial(self._past, source_uid(number)),
                )
                readers.append(source.open(environment))
            for reader in readers:
                reader.start()
            by_uid = {source_uid(number): reader for number, reader in enumerate(readers)}
            ends = InputOffsets(by_uid, self.log.plan.begins, self.log.newest_ms)
            self.log.begin_inputs(ends)
        except BaseException:
            close_all(readers)
            raise
        return readers, ends

    def _report(self, source: str, error: Exception) -> None:
        """Take note of what ends the query at its next trigger; on any thread."""
        logger.error("%s", error)
        failure = SourceError(f"{source} failed: {error}")
        failure.__cause__ = error
        self._failure = failure

    def _past(self, uid: str) -> InputPast:
        """Return what earlier runs have read of a source.

        Raises:
            RestartError: it is lost.
        """
        try:
            return self.log.past(uid)
        except CheckpointError as error:
            raise RestartError(
                f"{self.checkpoint.files.url} cannot be taken up: {error}"
            ) from error

    @property
    def last_plan(self) -> str:
        """The physical plan of the newest batch; before the first one its facts are unknown."""
        plan = self.planned.prepared() if self._last is None else self._last.plan
        return plan.tree()

    @property
    def due_ms(self) -> int:
        """When a timer asks for a batch, milliseconds since the epoch; -1 for never."""
        return self._next_timeout_ms

    @property
    def has_new_data(self) -> bool:
        """Whether a source has records that no batch has read, as of the last trigger."""
        return bool(self._unfinished) or self._latest != self._done

    def state_access(self) -> StateAccess | None:
        """Return what looks into the states of the query; None where it has none."""
        shown = {facts["uid"]: ShownState.of(facts) for facts in self._operators}
        states = {
            uid: StoredState(uid, self.states, self._committed_id, one.value, one.key_of)
            for uid, one in shown.items()
        }
        return StateJobs(states, self._time_of) if states else None

    def _committed_id(self) -> int:
        last = self.log.commits.last
        return -1 if last is None else last.batch_id

    def _time_of(self, batch_id: int) -> int:
        last = self.log.commits.last
        return 0 if last is None or last.batch_id != batch_id else last.batch_time_ms

    def pin(self, *, in_one_batch: bool = False) -> None:
        """Let batches read what there is now, and no more; *in_one_batch* whatever the limits."""
        now_ms = self._clock.now_ms()
        for reader in self._readers:
            reader.pin(now_ms, in_one_batch=in_one_batch)

    def run_trigger(
        self, *, allows_no_data: bool = True, is_stopping: Callable[[], bool] = lambda: False
    ) -> BatchInfo | None:
        """Run the next batch, if there is reason for one, and return what it did.

        Without *allows_no_data* timers and watermarks alone are no reason. *is_stopping* is asked
        where a batch fails, which then was cut off.
        """
        timer = PhaseTimer()
        now_ms, before_ms = self._clock.now_ms(), self._trigger_ms
        self._trigger_ms = now_ms
        self._since_trigger_ms = None if before_ms is None else now_ms - before_ms
        batch = self._unfinished[0] if self._unfinished else None
        if batch is not None:
            self._latest = batch.ends
        else:
            batch = self._begin(timer, allows_no_data=allows_no_data)
        if batch is None:
            return None
        self._outputs = []
        pending = self._pending(batch, self._clock.now_ms())
        self._tell(BatchSubmitted(pending))
        self._tell(BatchStarted(pending))
        try:
            info = self._run(batch, pending, timer)
        except BaseException as error:
            outcome: Outcome = "cancelled" if is_stopping() else "failed"
            self._tell(BatchCompleted(self._ended(pending, timer, outcome, located(error))))
            raise
        self._tell(BatchCompleted(info))
        self._unfinished = self._unfinished[1:]
        return info

    def explain(self, error: BaseException) -> str | None:
        """Return what to do about an error of a batch, None where no source has to do with it."""
        return remedy_of(error, self._readers)

    def close(self, *, in_order: bool = False) -> None:
        """Stop the sources, and give up what is held; the query has ended *in_order* or failed."""
        self.garbage_collector.close()
        close_all(self._readers)
        self.states.release()
        has_state = bool(self.planned.names)
        self.states.close(
            is_scratch=self.checkpoint.is_scratch and has_state, in_order=in_order and has_state
        )

    def _begin(self, timer: PhaseTimer, *, allows_no_data: bool) -> QueryBatch | None:
        """Decide what the next batch is, and write that down."""
        now_ms = self._clock.now_ms()
        with timer.phase("latestOffset"):
            if self._failure is not None:
                raise self._failure
            inputs = tuple(
                reader.plan(start, now_ms)
                for reader, start in zip(self._readers, self._done, strict=True)
            )
            self._latest = tuple(planned.end for planned in inputs)
        if self._latest == self._done and not (allows_no_data and self._wants_no_data(now_ms)):
            return None
        fault("plan.start", self.batch_id)
        watermark_ms = self._watermarks.query_ms
        start = batch_start(
            now_ms,
            watermark_ms,
            0 if self._last is None else self._last.batch.watermark_ms,
            inputs,
            self.conf.pinned(),
            self._operators,
        )
        with timer.phase("walCommit"):
            time_ms = self.log.time_of_next(now_ms)
            batch = QueryBatch(self.log.begin(self.batch_id, time_ms, **start))
            ends = {source_uid(number): end for number, end in enumerate(self._latest)}
            self._ends.begun(time_ms, ends)
        return batch

    def _wants_no_data(self, now_ms: int) -> bool:
        if self._last is None or not self.conf.no_data_batches:
            return False
        if 0 <= self._next_timeout_ms < now_ms:
            return True
        return self._last.should_run_another_batch(self._watermarks.query_ms)

    def _run(self, batch: QueryBatch, pending: PendingBatch, timer: PhaseTimer) -> BatchInfo:
        ids = (self.checkpoint.query_id, self.run_id, batch.batch_id)
        begin_query_batch(self.definition.name, *ids)
        run = _QueryBatchRun(self, batch, timer)
        self._outputs = run.outputs
        run.run_steps()
        pending = replace(pending, inputs=tuple(map(merge_info, pending.inputs, run.noticed)))
        return self._info(batch, pending, timer, run.execution, run.context)

    def _info(
        self,
        batch: QueryBatch,
        pending: PendingBatch,
        timer: PhaseTimer,
        execution: IncrementalExecution,
        context: ExecutionContext,
    ) -> BatchInfo:
        stats = EventTimeStats.of_all(context.event_times().values())
        counts = self._row_counts(batch.inputs)
        inputs = tuple(
            replace(given, records=count)
            for given, count in zip(pending.inputs, counts, strict=True)
        )
        states = tuple(
            _state_info(self.planned.names, operator, context)
            for operator in from_sink(execution.plan)  # as Spark, whose monitors go by position
            if isinstance(operator, StateStoreWriter)
        )
        return replace(
            self._ended(pending, timer, "succeeded", None),
            records=_records(inputs),
            inputs=inputs,
            states=states,
            event_times=None
            if stats is None
            else EventTimes(stats.max_ms, stats.min_ms, stats.avg_ms),
            watermark_ms=batch.watermark_ms if self.planned.watermarks else None,
        )

    def _ended(
        self, pending: PendingBatch, timer: PhaseTimer, outcome: Outcome, failure: str | None
    ) -> BatchInfo:
        """Return what is known of any batch at its end."""
        now_ms = self._clock.now_ms()
        return BatchInfo(
            batch_id=pending.batch_id,
            batch_time_ms=pending.batch_time_ms,
            records=_records(pending.inputs),
            submitted_ms=pending.submitted_ms,
            started_ms=pending.submitted_ms,
            completed_ms=now_ms,
            outputs=tuple(self._outputs),
            outcome=outcome,
            failure=failure,
            inputs=pending.inputs,
            durations_ms=timer.durations_ms(),
            since_ms=self._since_trigger_ms,
        )

    def _read(self, inputs: Sequence[PlannedInput]) -> list[RDD[Any]]:
        """Return the records of the sources, counted where a source does not know their number."""
        rdds: list[RDD[Any]] = []
        self._counts = []
        for reader, planned in zip(self._readers, inputs, strict=True):
            rdd = reader.read(planned)
            if rdd is None:
                rdd = self._spark.emptyRDD()
            rdd, count = counted_unless_known(rdd, planned.records)
            rdds.append(rdd)
            self._counts.append(count)
        return rdds

    def _commit(
        self,
        batch: QueryBatch,
        observed: dict[str, EventTimeStats | None],
        known: dict[str, Any],
    ) -> None:
        latest_ms = {}
        for number, step in enumerate(self.planned.watermarks):
            stats = observed.get(watermark_name(number, step))
            if stats is not None:
                latest_ms[number] = stats.max_ms
                self._seconds.look_at(step, stats.max_ms)
        self._watermarks = self._watermarks.advance(self._rule, latest_ms, batch.timestamp_ms)
        newest = self.states.newest()
        versions = [newest[name][1] for name in self.planned.names]
        timers = [version.metrics.nextTimeoutMs for version in versions if version.metrics]
        self._next_timeout_ms = min((time for time in timers if time >= 0), default=-1)
        for name in self.planned.names:
            self.states.forget(name, batch.batch_id)
        self.log.commit(
            batch.batch_id,
            batch.begun.batch_time_ms,
            stores=[version.commit for version in versions],
            **batch_end(self._watermarks, self._next_timeout_ms, known),
        )
        self.batch_id = batch.batch_id + 1
        self._done = batch.ends
        for reader, end in zip(self._readers, self._done, strict=True):
            reader.commit(end)
            reader.release(end)
        with steps("clean", batch.batch_id):
            self._clean_up(batch.batch_id)

    def _row_counts(self, inputs: Sequence[PlannedInput]) -> list[int | None]:
        """Return how many records each source had; None where nobody counted."""
        return [
            planned.records if count is None else count.records()
            for count, planned in zip(self._counts, inputs, strict=True)
        ]

    def _known_rows(
        self, inputs: Sequence[PlannedInput], output_rows: int | None
    ) -> dict[str, Any]:
        """Return what the commit record says of the progress, for people."""
        counts = enumerate(self._row_counts(inputs))
        read = {source_uid(number): count for number, count in counts}
        return {"input_rows": read, "output_rows": output_rows}

    def _clean_up(self, batch_id: int) -> None:
        try:
            if batch_id % _CLEAN_EVERY == _CLEAN_EVERY - 1 and self.states.maintain():
                self.log.expect_snapshots()
        except ConcurrentWriterError:
            raise
        except Exception:
            logger.warning("cleaning up after batch %d failed", batch_id, exc_info=True)
        if batch_id % _CLEAN_EVERY == 0:
            clean_up = partial(retire, self.log, self.conf.retained_batches, self._ends)
            self.garbage_collector.post(f"batch {batch_id}", clean_up)

    def _incremental(
        self, batch: QueryBatch, rdds: list[RDD[Any]] | None = None
    ) -> IncrementalExecution:
        return IncrementalExecution(self.planned, batch, self._state_infos(), rdds)

    def _state_infos(self) -> list[StatefulOperatorStateInfo]:
        """Return the state that each operator begins the next batch with."""
        newest = self.states.newest(self.batch_id - 1)
        partitioner = StablePartitioner(self.conf.shuffle_partitions)
        return [
            StatefulOperatorStateInfo(
                self.checkpoint.location,
                self.run_id,
                number,
                newest[name][1] if name in newest else self.states.empty(name, partitioner),
            )
            for number, name in enumerate(self.planned.names)
        ]

    def _pending(self, batch: QueryBatch, now_ms: int) -> PendingBatch:
        inputs = tuple(
            self._input_info(number, planned, planned.records)
            for number, planned in enumerate(batch.inputs)
        )
        sink = PlannedOutput(0, self.definition.sink.name)
        return PendingBatch(batch.batch_id, batch.timestamp_ms, inputs, (sink,), now_ms, now_ms)

    def _input_info(self, number: int, planned: PlannedInput, records: int | None) -> InputInfo:
        name, reader = self.planned.sources[number].name, self._readers[number]
        return input_info(number, name, reader, replace(planned, records=records))


class _QueryBatchRun(BatchRun):
    """One batch of a query. A failure ends the query, and its next start runs the batch again."""

    execution: IncrementalExecution
    context: ExecutionContext
    noticed: list[InputDescription]

    def __init__(self, query: MicroBatchExecution, batch: QueryBatch, timer: PhaseTimer) -> None:
        super().__init__(query._spark, query._clock, query._tell, batch.batch_id, timer)
        self._query = query
        self._batch = batch
        self._rdds: list[RDD[Any]] = []
        self._rows: RDD[Any]

    def read(self) -> None:
        """Create the RDDs of the sources."""
        self._rdds = self._query._read(self._batch.inputs)

    def make_state(self) -> None:
        """Execute the plan, which makes the new versions of all states."""
        query = self._query
        with self.timer.phase("queryPlanning"):
            self.execution = query._incremental(self._batch, self._rdds)
            self.context = ExecutionContext(self.spark, query.states, self.batch_id)
        query._last = self.execution
        with self.timer.phase("addBatch"):
            self._rows = self.execution.plan.execute(self.context)

    def run_outputs(self) -> None:
        """Check the fence, and write the rows to the sink."""
        query, begun, sink = self._query, self._batch.begun, self._query.definition.sink
        seen = OutputBatch(
            begun.stream_id,
            begun.batch_id,
            begun.batch_time_ms,
            begun.beginning,
            newest=query.log.newest_id,
        )
        with self.timer.phase("addBatch"):
            query.log.require_newest()
            with steps("out", self.batch_id):
                label_jobs("")
                doing(f"output to {sink.name}")
                planned = PlannedOutput(0, sink.name)
                write = partial(sink.add_batch, seen, self._rows, query.definition.mode)
                self.run_output(self._batch.timestamp_ms, planned, write)
            self.noticed = [
                reader.after_batch_info(read)
                for reader, read in zip(query._readers, self._batch.inputs, strict=True)
            ]

    def commit(self) -> None:
        """Commit the batch and advance the watermarks."""
        known = self._query._known_rows(self._batch.inputs, self.outputs[-1].rows)
        self._query._commit(self._batch, self.context.event_times(), known)


def retire(log: StreamCheckpoint, retained: int, ends: InputOffsets) -> None:
    """Delete what only batches before the last *retained* ones needed; on any thread.

    Raises:
        CheckpointError: it cannot be read or written.
    """
    committed_ms = log.commits.times()
    if len(committed_ms) > retained + 1:
        log.retire(committed_ms[-retained - 1], ends)


def _state_info(
    names: Sequence[str], operator: StateStoreWriter, context: ExecutionContext
) -> StateOperatorInfo:
    info = operator.getStateInfo()
    metrics = context.versions[info.operatorId].metrics or StateMetrics()
    return StateOperatorInfo(
        names[info.operatorId], operator.shortName, info.numPartitions, metrics.as_dict()
    )


def _records(inputs: Sequence[InputInfo]) -> dict[str, int | None]:
    return {given.name: given.records for given in inputs}


def _require_same_records(before: QueryBatch | None, after: QueryBatch | None) -> None:
    """Refuse to go on from a batch that another run has begun since the checks were made."""
    if before != after:
        raise RestartError(
            "another run of this query has begun a batch while this one started; start it again, "
            "when the other one has stopped"
        )


def _rule_of(planned: PlannedQuery, conf: QueryConf) -> WatermarkRule:
    return WatermarkRule(
        tuple(step.delay_ms for step in planned.watermarks),
        conf.watermark_policy,
        tuple(step.idle_ms for step in planned.watermarks),
    )
