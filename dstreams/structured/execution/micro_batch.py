"""Micro-batch execution: runs a query as a sequence of batches, each exactly once.

A batch has the steps of :class:`dstreams.engine.batch.BatchRun`. An interrupted batch runs again
with the same input, time and watermarks, on the same state. All steps run on the caller's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark import RDD, SparkContext

from checkpoint import CheckpointError, ConcurrentWriterError, InputPast
from dstreams.common.clock import Clock
from dstreams.common.faults import fault, steps
from dstreams.common.settings import Settings
from dstreams.engine.batch import BatchRun
from dstreams.engine.garbage_collector import GarbageCollector
from dstreams.engine.inputs import REJECTED, InputOffsets, log_rejected, with_rejected
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
    PendingBatch,
    PlannedOutput,
    StateOperatorInfo,
    ignore_event,
)
from dstreams.monitoring.progress import PhaseTimer
from dstreams.monitoring.state_queries import ReadableState, StateQueries
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sources.source import (
    Source,
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
from dstreams.spark.state_version import StateMetrics, StateVersion
from dstreams.spark.worker_python import require_shared
from dstreams.state.group_state import OutputMode
from dstreams.state.processor_states import StateOfProcessor
from dstreams.state.state_versions import StateVersions
from dstreams.state.store_maintenance import open_store, require_trusted_values, values_of
from dstreams.structured.execution.description import QueryDefinition, describe_query
from dstreams.structured.execution.incremental import IncrementalExecution
from dstreams.structured.execution.query_checkpoint import QueryCheckpoint, Recovered
from dstreams.structured.execution.query_records import (
    QueryBatch,
    batch_end,
    batch_start,
    source_uid,
)
from dstreams.structured.execution.restart_checks import (
    describe_operators,
    differences,
    interrupted_moves,
)
from dstreams.structured.execution.state_reader import ShownState
from dstreams.structured.execution.static_data import StaticData
from dstreams.structured.execution.watermarks import SecondsWarning, WatermarkRule, Watermarks
from dstreams.structured.operators.execution_context import (
    EventTimeStats,
    ExecutionContext,
    StatefulOperatorStateInfo,
)
from dstreams.structured.operators.stateful_operator import StateStoreWriter
from dstreams.structured.operators.stateless import StreamingRelationExec
from dstreams.structured.operators.static_join import StaticPartitions, StaticTable
from dstreams.structured.operators.transform_with_state import TransformWithStateExec
from dstreams.structured.plan.planning import PlannedQuery, plan_query, watermark_name
from dstreams.structured.sinks.sink import Sink
from dstreams.structured.trees import from_sink

logger = logging.getLogger(__name__)

Write = Callable[[Sink, OutputBatch, "RDD[Any]", OutputMode], "int | None"]

_CLEAN_EVERY = 10
_KEPT_TIMES = 10


class MicroBatchExecution:
    """Runs the batches of a query.

    After a restart, all begun batches run again in order, even if several commits were lost. A
    processing-time timer causes a batch when it is due, not at every trigger.

    While the fence is checked after a commit, the next batch is planned and begun. The committed
    batch is reported after that, to sources, listeners and *report*.

    Semantics: MicroBatchExecution (Spark 4.3).
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
        open_source: Callable[
            [Source, SourceEnvironment], SourceReader
        ] = lambda source, environment: source.open(environment),
    ) -> None:
        self.definition = definition
        self.checkpoint = checkpoint
        self.run_id = run_id
        self._spark = spark
        self._clock, self._tell = clock, tell
        recovered = checkpoint.recovered()
        newest = recovered.newest
        conf = definition.conf if newest is None else definition.conf.restored(newest.conf)
        self.conf = conf
        self.planned: PlannedQuery = plan_query(definition.plan, definition.mode, conf)
        self._rule = WatermarkRule(
            tuple(step.delay_ms for step in self.planned.watermarks),
            conf.watermark_policy,
            tuple(step.idle_ms for step in self.planned.watermarks),
        )
        self._operators = describe_operators(self.planned)
        self._require_resumable(recovered)
        state_files = require_trusted_values(checkpoint.files, conf)
        if self.planned.names:
            require_shared(spark, state_files)
        description = describe_query(definition, self.planned, self._operators, conf)
        self.log = checkpoint.take_over(clock.now_ms(), description, definition.classes)
        recovered = checkpoint.recovered()
        if newest != recovered.newest:
            raise RestartError(
                "another run of this query has begun a batch while this one started; start the "
                "query again when the other run has stopped"
            )
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
        self._failure: SourceError | None = None
        self.report: Callable[[BatchInfo], None] = lambda _: None
        self.write: Write = lambda sink, *batch: sink.add_batch(*batch)
        self._trigger_ms: int | None = None
        self._since_trigger_ms: int | None = None
        if newest is not None:
            fault("rec.load")
        self._restore(recovered)
        if newest is not None:
            fault("rec.replay")
        self._static = StaticData(
            self.planned.static,
            spark,
            conf,
            None if checkpoint.is_scratch else self.log,
            values_of(conf, definition.classes),
        )
        self._static.refresh(clock.now_ms())
        self._open_source = open_source
        self._readers, self._ends = self._open_readers(settings, newest)

    def _require_resumable(self, recovered: Recovered) -> None:
        """Raise RestartError if the query cannot go on from its newest batch."""
        changed = interrupted_moves(recovered, self.checkpoint.location)
        if recovered.newest is not None:
            changed += differences(recovered.newest, self.planned, self.definition.conf)
        if changed:
            raise RestartError(
                f"this query cannot resume from the checkpoint: {'; '.join(changed)}"
            )

    def _restore(self, recovered: Recovered) -> None:
        count = len(self.planned.watermarks)
        self._unfinished = list(recovered.unfinished)
        self._done: tuple[Any, ...] = (None,) * len(self.planned.sources)
        self._latest = self._done
        self._watermarks = Watermarks.start(count)
        self._next_timeout_ms = -1
        self.batch_id = 0
        self._times_ms: dict[int, int] = {}
        """The times of the newest committed batches, by id."""
        self._unreported: tuple[_QueryBatchRun, BatchInfo] | None = None
        committed, commit = recovered.committed, recovered.commit
        if committed is not None and commit is not None:
            self.batch_id = committed.batch_id + 1
            self._times_ms[committed.batch_id] = committed.begun.batch_time_ms
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
                readers.append(self._open_source(source, environment))
            for reader in readers:
                reader.start()
            by_uid = {source_uid(number): reader for number, reader in enumerate(readers)}
            ends = InputOffsets(by_uid, self.log.plan.begins, self.log.newest_ms)
            self.log.begin_inputs(ends)
        except BaseException:
            close_all(readers)
            raise
        return readers, ends

    def require_records(self, batches: Sequence[QueryBatch]) -> None:
        """Raise SourceError if an input of these batches cannot be read any more."""
        for number, reader in enumerate(self._readers):
            reader.require_records([batch.inputs[number] for batch in batches])

    def _report(self, source: str, error: Exception) -> None:
        """Store an error that ends the query at its next trigger; called on any thread."""
        logger.error("%s", error)
        failure = SourceError(f"{source} failed: {error}")
        failure.__cause__ = error
        self._failure = failure

    def _past(self, uid: str) -> InputPast:
        """Return what earlier runs have read of a source, or raise RestartError if it is lost."""
        try:
            return self.log.past(uid)
        except CheckpointError as error:
            url = self.checkpoint.files.url
            raise RestartError(f"cannot resume from checkpoint {url}: {error}") from error

    @property
    def last_plan(self) -> str:
        """The physical plan of the newest batch; without a batch's facts before the first one."""
        plan = self.planned.prepared() if self._last is None else self._last.plan
        return plan.tree()

    @property
    def due_ms(self) -> int:
        """The time of the earliest timer, milliseconds since the epoch; -1 without a timer."""
        return self._next_timeout_ms

    @property
    def has_new_data(self) -> bool:
        """True if a source had unread records at the last trigger."""
        return bool(self._unfinished) or self._latest != self._done

    def state_access(self) -> StateQueries | None:
        """Return access to the states of the query, None for a query without state."""
        operators = (s for s in self.planned.root.walk() if isinstance(s, StateStoreWriter))
        states = {
            facts["uid"]: self._readable(facts, operator)
            for facts, operator in zip(self._operators, operators, strict=True)
        }
        return StateQueries(states, self._time_of) if states else None

    def _readable(self, facts: Mapping[str, Any], operator: StateStoreWriter) -> ReadableState:
        shown = ShownState.of(facts, self.conf.aggregation_state_format)
        own = None
        if isinstance(operator, TransformWithStateExec):
            own = StateOfProcessor.of(operator.groups)
        return ReadableState(
            facts["uid"],
            self.states,
            self._committed_id,
            shown.value,
            shown.key_of,
            shown.stored_of,
            StablePartitioner(self.conf.shuffle_partitions),
            own,
        )

    def _committed_id(self) -> int:
        last = self.log.commits.last
        return -1 if last is None else last.batch_id

    def _time_of(self, batch_id: int) -> int:
        return self._times_ms.get(batch_id, 0)

    def pin(self, *, in_one_batch: bool = False) -> None:
        """Limit batches to the records available now; *in_one_batch* ignores rate limits."""
        now_ms = self._clock.now_ms()
        for reader in self._readers:
            reader.pin(now_ms, in_one_batch=in_one_batch)

    def run_trigger(
        self, *, allows_no_data: bool = True, is_stopping: Callable[[], bool] = lambda: False
    ) -> bool:
        """Run the next batch if one is due, and return whether one was.

        The batch before it is reported; call :meth:`report_committed` for the last one. Without
        *allows_no_data*, timers and watermarks alone cause no batch. A batch that fails while
        *is_stopping* returns True counts as cancelled.
        """
        timer = PhaseTimer()
        now_ms, before_ms = self._clock.now_ms(), self._trigger_ms
        self._trigger_ms = now_ms
        self._since_trigger_ms = None if before_ms is None else now_ms - before_ms
        batch = self._unfinished[0] if self._unfinished else None
        try:
            if batch is not None:
                self._latest = batch.ends
            else:
                batch = self._begin(timer, allows_no_data=allows_no_data)
        finally:
            self.report_committed()
        if batch is None:
            return False
        run = _QueryBatchRun(self, batch, timer)
        self._tell(BatchSubmitted(run.pending))
        self._tell(BatchStarted(run.pending))
        try:
            begin_query_batch(
                self.definition.name, self.checkpoint.query_id, self.run_id, batch.batch_id
            )
            run.run_steps()
            self._unreported = run, run.info()
        except BaseException as error:
            outcome: Outcome = "cancelled" if is_stopping() else "failed"
            self._tell(BatchCompleted(run.ended(outcome, located(error))))
            raise
        finally:
            run.release()
        self._unfinished = self._unfinished[1:]
        return True

    def report_committed(self) -> None:
        """Report the last batch if it is not reported yet, once it is known that its commit counts.

        Raises ConcurrentWriterError if another driver has taken over; CheckpointError.
        """
        if self._unreported is None:
            return
        run, info = self._unreported
        self._unreported = None
        try:
            self.log.fence.wait()
            run.after_commit()
        except BaseException as error:
            self._tell(BatchCompleted(run.ended("failed", located(error))))
            raise
        self._tell(BatchCompleted(info))
        self.report(info)

    def explain(self, error: BaseException) -> str | None:
        """Return the remedy for an error of a batch, None if no source caused it."""
        return remedy_of(error, self._readers)

    def close(self, *, in_order: bool = False) -> None:
        """Stop the sources, and release resources; the query has ended *in_order* or failed."""
        self.garbage_collector.close()
        close_all(self._readers)
        self._static.close()
        self.states.release()
        has_state = bool(self.planned.names)
        self.states.close(
            is_scratch=self.checkpoint.is_scratch and has_state, in_order=in_order and has_state
        )

    def _begin(self, timer: PhaseTimer, *, allows_no_data: bool) -> QueryBatch | None:
        """Plan the next batch, and write its begin record."""
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
        with timer.phase("staticData") if self._static.is_due(now_ms) else nullcontext():
            self._static.refresh(now_ms)
        watermark_ms = self._watermarks.query_ms
        start = batch_start(
            now_ms,
            watermark_ms,
            0 if self._last is None else self._last.batch.watermark_ms,
            inputs,
            self.conf.pinned(),
            self._operators,
            self._static.versions(),
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

    def _commit(
        self,
        batch: QueryBatch,
        observed: dict[str, EventTimeStats | None],
        progress: dict[str, Any],
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
        self._times_ms[batch.batch_id] = batch.begun.batch_time_ms
        self._times_ms.pop(batch.batch_id - _KEPT_TIMES, None)
        self.log.commit(
            batch.batch_id,
            batch.begun.batch_time_ms,
            stores=[version.commit for version in versions],
            **batch_end(self._watermarks, self._next_timeout_ms, progress),
        )
        for name in self.planned.names:  # only now, as look-ups read the version before
            self.states.evict(name, batch.batch_id)
        self.batch_id = batch.batch_id + 1
        self._done = batch.ends

    def _after_commit(self, batch: QueryBatch) -> None:
        """Notify the sources, and clean up."""
        for reader, end in zip(self._readers, batch.ends, strict=True):
            reader.commit(end)
            reader.release(end)
        with steps("clean", batch.batch_id):
            self._clean_up(batch.batch_id)

    def _clean_up(self, batch_id: int) -> None:
        try:
            if batch_id % _CLEAN_EVERY == _CLEAN_EVERY - 1 and self.states.maintain():
                self.log.expect_snapshots()
        except ConcurrentWriterError:
            raise
        except Exception:
            logger.warning("failed to clean up after batch %d", batch_id, exc_info=True)
        if batch_id % _CLEAN_EVERY == 0:
            self.garbage_collector.post(f"batch {batch_id}", self._retire)

    def _retire(self) -> None:
        """Delete files that only batches before the retained ones needed; on any thread."""
        retire(self.log, self.conf.retained_batches, self._ends)
        self._static.retire()

    def _incremental(
        self,
        batch: QueryBatch,
        rdds: list[RDD[Any]] | None = None,
        static: Mapping[str, StaticTable | StaticPartitions] | None = None,
    ) -> IncrementalExecution:
        """Return the plan of a batch, with the state of each operator before it."""
        newest = self.states.newest(self.batch_id - 1)
        partitioner = StablePartitioner(self.conf.shuffle_partitions)
        infos = [
            StatefulOperatorStateInfo(
                self.checkpoint.location,
                self.run_id,
                number,
                newest[name][1] if name in newest else self.states.empty(name, partitioner),
            )
            for number, name in enumerate(self.planned.names)
        ]
        return IncrementalExecution(self.planned, batch, infos, rdds, static)


class _QueryBatchRun(BatchRun):
    """One batch of a query. If it fails, the query ends, and its next start runs it again."""

    def __init__(self, query: MicroBatchExecution, batch: QueryBatch, timer: PhaseTimer) -> None:
        spark, clock, fence = query._spark, query._clock, query.log.fence
        super().__init__(spark, clock, query._tell, batch.batch_id, timer, fence)
        self._query = query
        self._batch = batch
        self._rdds: list[RDD[Any]] = []
        self._counts: list[RecordCount | None] = []
        self._execution: IncrementalExecution
        self._context: ExecutionContext = ExecutionContext(spark)
        self._rows: RDD[Any]
        self._inputs: tuple[InputInfo, ...] = ()
        inputs = tuple(
            input_info(number, source.name, reader, planned)
            for number, (source, reader, planned) in enumerate(
                zip(query.planned.sources, query._readers, batch.inputs, strict=True)
            )
        )
        sinks = enumerate(query.definition.sinks)
        outputs = tuple(PlannedOutput(number, sink.name) for number, sink in sinks)
        now_ms = self.clock.now_ms()
        self.pending = PendingBatch(
            batch.batch_id, batch.timestamp_ms, inputs, outputs, now_ms, now_ms
        )

    def read(self) -> None:
        """Create the RDDs of the sources, with counters for sources of unknown size."""
        for reader, planned in zip(self._query._readers, self._batch.inputs, strict=True):
            rdd = reader.read(planned)
            if rdd is None:
                rdd = self.spark.emptyRDD()
            rdd, count = counted_unless_known(rdd, planned.records)
            self._rdds.append(rdd)
            self._counts.append(count)

    def make_state(self) -> None:
        """Execute the plan, which makes the new versions of all states."""
        query = self._query
        with self.timer.phase("queryPlanning"):
            self._execution = query._incremental(
                self._batch, self._rdds, query._static.of(self._batch)
            )
            time_ms = self._batch.begun.batch_time_ms
            self._context = ExecutionContext(self.spark, query.states, self.batch_id, time_ms)
        query._last = self._execution
        with self.timer.phase("addBatch"):
            self._rows = self._execution.plan.execute(self._context)

    def run_outputs(self) -> None:
        """Check the fence, and write the rows to their sinks, first those of the query itself."""
        query, begun = self._query, self._batch.begun
        batch = OutputBatch(
            begun.stream_id,
            begun.batch_id,
            begun.batch_time_ms,
            begun.beginning,
            newest=query.log.newest_id,
        )
        with self.timer.phase("addBatch"):
            self.require_newest()
            with steps("out", self.batch_id):
                label_jobs("")
                for planned, sink in zip(self.pending.outputs, query.definition.sinks, strict=True):
                    doing(f"output to {sink.name}")
                    rows, mode = self._rows, query.definition.mode
                    if planned.output_id:
                        rows, mode = self._context.rows_for(sink), OutputMode.Append
                    write = partial(query.write, sink, batch, rows, mode)
                    self.run_output(self._batch.timestamp_ms, planned, write)
            read = [
                reader.after_batch_info(planned)
                for reader, planned in zip(query._readers, self._batch.inputs, strict=True)
            ]
        self._inputs = tuple(map(merge_info, self.pending.inputs, read))

    def commit(self) -> None:
        """Commit the batch and advance the watermarks."""
        read = {source_uid(number): count for number, count in enumerate(self._row_counts())}
        progress = {"input_rows": read, "output_rows": self.outputs[0].rows}
        self._query._commit(self._batch, self._context.event_times(), progress)

    def release(self) -> None:
        """Unpersist what only this batch reads."""
        self._context.release()

    def after_commit(self) -> None:
        """Do what depends on the commit."""
        self._query._after_commit(self._batch)

    def info(self) -> BatchInfo:
        """Return the information about the committed batch."""
        stats = EventTimeStats.of_all(self._context.event_times().values())
        inputs = tuple(
            replace(given, records=count)
            for given, count in zip(self._inputs, self._row_counts(), strict=True)
        )
        inputs = self._with_rejected(inputs)
        times = None if stats is None else EventTimes(stats.max_ms, stats.min_ms, stats.avg_ms)
        return replace(
            self.ended("succeeded", None),
            records=_records(inputs),
            inputs=inputs,
            states=tuple(
                self._state_info(operator)
                for operator in from_sink(self._execution.plan)  # Spark's order, used by monitors
                if isinstance(operator, StateStoreWriter)
            ),
            event_times=times,
            observed=self._context.observed_metrics(),
            watermark_ms=self._batch.watermark_ms if self._query.planned.watermarks else None,
        )

    def _with_rejected(self, inputs: tuple[InputInfo, ...]) -> tuple[InputInfo, ...]:
        """Return the inputs with the records that were skipped, by the first source of each."""
        found = list(inputs)
        for operator, reports in self._context.rejected:
            facts = reports.facts()
            if facts:
                steps = (step for step in operator.walk())
                number = next(s.number for s in steps if isinstance(s, StreamingRelationExec))
                log_rejected(operator.where, f"{self.batch_id}", facts)
                found[number] = with_rejected(found[number], facts)
        return tuple(map(_with_metric, found))

    def ended(self, outcome: Outcome, failure: str | None) -> BatchInfo:
        """Return the information about a completed or failed batch."""
        pending = self.pending
        return BatchInfo(
            batch_id=pending.batch_id,
            batch_time_ms=pending.batch_time_ms,
            records=_records(pending.inputs),
            submitted_ms=pending.submitted_ms,
            started_ms=pending.submitted_ms,
            completed_ms=self.clock.now_ms(),
            outputs=tuple(self.outputs),
            outcome=outcome,
            failure=failure,
            inputs=pending.inputs,
            durations_ms=self.timer.durations_ms(),
            since_ms=self._query._since_trigger_ms,
        )

    def _row_counts(self) -> list[int | None]:
        """Return the number of records of each source, None if unknown."""
        return [
            planned.records if count is None else count.records()
            for count, planned in zip(self._counts, self._batch.inputs, strict=True)
        ]

    def _state_info(self, operator: StateStoreWriter) -> StateOperatorInfo:
        info = operator.getStateInfo()
        metrics = self._context.versions[info.operatorId].metrics or StateMetrics()
        name = self._query.planned.names[info.operatorId]
        return StateOperatorInfo(name, operator.shortName, info.numPartitions, metrics.as_dict())


def _with_metric(info: InputInfo) -> InputInfo:
    """Return the information about an input with its rejected records among Spark's metrics."""
    rejected = info.metadata.get(REJECTED)
    if rejected is None or info.offsets is None:
        return info
    metrics = {**info.offsets.metrics, REJECTED: str(rejected)}
    return replace(info, offsets=info.offsets._replace(metrics=metrics))


def retire(log: StreamCheckpoint, retained: int, ends: InputOffsets) -> None:
    """Delete files that only batches before the last *retained* ones needed; on any thread."""
    committed_ms = log.commits.times()
    if len(committed_ms) > retained + 1:
        log.retire(committed_ms[-retained - 1], ends)


def _records(inputs: Sequence[InputInfo]) -> dict[str, int | None]:
    return {given.name: given.records for given in inputs}
