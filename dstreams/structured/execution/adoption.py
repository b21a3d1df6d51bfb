"""Adopting a query of pyspark.sql.streaming: a new checkpoint with its state and progress.

The newest complete batch of Spark becomes a batch of the same number here, with the states of Spark
and all that was read until then. A batch that Spark has begun and not completed is begun here. The
ordinary restart continues from there.

The begin records come first: until the commit record is written, which makes all of it count, no
query starts on them, and another call completes them.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from checkpoint import INPUT_FILES
from checkpoint.state_store import Classes
from dstreams.common.clock import Clock
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.errors import RestartError
from dstreams.kafka.offsets import Position, offsets_of_json
from dstreams.sources.file_listing import FileStamp, before_wildcards
from dstreams.sources.source import PlannedInput, Source
from dstreams.spark.failures import summarize
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.worker_python import require_workers
from dstreams.state.group_state import GroupStateTimeout, OutputMode
from dstreams.state.state_versions import StateVersions, load
from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.query_checkpoint import (
    QueryCheckpoint,
    Recovered,
    claim_checkpoint,
    read_checkpoint,
    recovered_of,
    take_over_state,
)
from dstreams.structured.execution.query_records import QueryBatch, batch_end, batch_start
from dstreams.structured.execution.restart_checks import describe_operators
from dstreams.structured.execution.spark_query import SparkOperator, SparkQuery, read_spark_query
from dstreams.structured.execution.spark_states import (
    NAMES,
    Entry,
    NotAdoptableError,
    entries_of,
    require_slide,
)
from dstreams.structured.execution.watermarks import Watermarks
from dstreams.structured.operators.stateful_operator import StateStoreWriter
from dstreams.structured.plan.logical import LogicalPlan
from dstreams.structured.plan.planning import PlannedQuery, plan_query
from dstreams.structured.plan.unsupported import check_supported
from dstreams.structured.sources.committed_files import VisibleFiles
from dstreams.structured.sources.file_source import FileStreamSource
from dstreams.structured.sources.kafka_row_source import KafkaRowSource
from dstreams.structured.trees import from_sink

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True)
class AdoptionReport:
    """A report of what a query takes over from a checkpoint of Spark, or why it cannot.

    Args:
        batchId: the newest complete batch of Spark, None without one.
        pendingBatchId: the batch that Spark has begun, which runs again; None without one.
        adopted: a line for each state and source.
        refusals: reasons for refusal; empty if the query can adopt the checkpoint.
    """

    batchId: int | None = None
    pendingBatchId: int | None = None
    adopted: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = []
        if self.batchId is not None:
            lines.append(f"continues after batch {self.batchId} of Spark")
        if self.pendingBatchId is not None:
            lines.append(f"runs batch {self.pendingBatchId} of Spark again, which is not complete")
        lines += [f"adopted: {line}" for line in self.adopted]
        lines += [f"refused: {line}" for line in self.refusals]
        return "\n".join(lines) or "nothing to adopt: the query has a checkpoint of its own"


@dataclass(frozen=True)
class _Adopted:
    """The state of an operator: its uid and operation, and entries for the store."""

    uid: str
    operation: str
    number: int
    frame: DataFrame
    convert: Callable[[Any], Entry]
    has_timers: bool
    check: Callable[[RDD[Entry]], None]

    def __str__(self) -> str:
        return f"operator {self.number} ({self.operation}) of Spark"

    def read(self, action: Callable[[RDD[Entry]], Result]) -> Result:
        """Return the result of an action on the entries.

        Raises:
            NotAdoptableError: Spark cannot read the state, or an entry does not fit.
        """
        try:
            entries = self.frame.rdd.map(self.convert)
            self.check(entries)
            return action(entries)
        except (Py4JJavaError, PySparkException) as error:
            raise NotAdoptableError(f"the state of {self}: {summarize(error)}") from error
        except NotAdoptableError as error:
            raise NotAdoptableError(f"the state of {self}: {error}") from error


def adopt_query(
    spark: SparkContext,
    location: str,
    url: str,
    plan: LogicalPlan,
    mode: OutputMode,
    conf: QueryConf,
    clock: Clock,
    classes: Classes,
    new_query_id: str,
    *,
    is_dry_run: bool = False,
) -> AdoptionReport:
    """Adopt a checkpoint; see :meth:`dstreams.structured.StreamSession.adopt`."""
    check_supported(plan, mode)
    existing = read_checkpoint(location)
    if existing is not None and not _is_open(recovered_of(existing[1], location)):
        return AdoptionReport()
    require_workers(spark)
    found = read_spark_query(url, spark)
    conf = _with_policy(conf, found)
    planned = plan_query(plan, mode, conf)
    states, refusals = _states(found, planned, spark)
    inputs, others = _inputs(found, planned, spark)
    refusals += others
    if planned.static and found.pending is not None:
        refusals.append(
            f"batch {found.pending.batch_id} is not complete, and would run again with other rows "
            "of a batch dataset; start the query of Spark once more and let it complete the batch"
        )
    if any(one.pending is None for one in inputs):
        found = replace(found, pending=None)  # the query plans this batch
    if is_dry_run:
        lines, unreadable = _counts(states)
        return _report(found, lines, inputs, refusals + unreadable)
    if refusals:
        raise _refused(found, refusals)
    starts = _starts(found, inputs, describe_operators(planned), conf)
    with ExitStack() as undo:
        claimed = claim_checkpoint(location, "adopt")
        undo.callback(claimed.release)
        checkpoint = QueryCheckpoint(location, new_query_id, "adopt")
        undo.callback(checkpoint.close)
        claimed.claim_id(checkpoint.query_id)
        begun = checkpoint.recovered().unfinished
        log, versions = take_over_state(spark, checkpoint, conf, clock.now_ms(), classes)
        batches = _begin(log, begun, starts, clock)
        if found.committed is not None:
            _commit(log, batches[0], versions, states, found, conf)
        log.fence.wait()
    logger.info("adopted %s in %s", found.url, location)
    return _report(found, [f"{one.uid}: {one}" for one in states], inputs, ())


def _report(
    found: SparkQuery, states: Sequence[str], inputs: Sequence[_Input], refusals: Sequence[str]
) -> AdoptionReport:
    if refusals:
        return AdoptionReport(refusals=tuple(refusals))
    return AdoptionReport(
        None if found.committed is None else found.committed.batch_id,
        None if found.pending is None else found.pending.batch_id,
        (*states, *(one.line for one in inputs)),
    )


def _counts(states: Sequence[_Adopted]) -> tuple[list[str], list[str]]:
    """Return a line with the number of keys of each state, and why others cannot be read."""
    lines, refusals = [], []
    for state in states:
        try:
            lines.append(f"{state.uid}: {state.read(RDD.count)} keys of {state}")
        except NotAdoptableError as error:
            refusals.append(str(error))
    return lines, refusals


def _refused(found: SparkQuery, reasons: Sequence[str]) -> RestartError:
    return RestartError(
        f"the checkpoint of Spark {found.url} cannot be adopted: {'; '.join(reasons)}"
    )


def _with_policy(conf: QueryConf, found: SparkQuery) -> QueryConf:
    """Return the settings with Spark's choice among several watermarks."""
    policy: Any = found.newest.conf.get("spark.sql.streaming.multipleWatermarkPolicy")
    return replace(conf, watermark_policy=policy) if policy in ("min", "max") else conf


def _starts(
    found: SparkQuery,
    inputs: Sequence[_Input],
    operators: Sequence[Mapping[str, Any]],
    conf: QueryConf,
) -> dict[int, dict[str, Any]]:
    """Return the begin records of the batches, by their number."""
    starts, late_ms = {}, 0
    if found.committed is not None:
        last = found.committed
        late_ms = last.watermark_ms
        starts[last.batch_id] = batch_start(
            last.timestamp_ms,
            last.watermark_ms,
            last.watermark_ms,
            [one.done for one in inputs],
            conf.pinned(),
            operators,
            adopts=found.url,
        )
    if found.pending is not None:
        starts[found.pending.batch_id] = batch_start(
            found.pending.timestamp_ms,
            found.pending.watermark_ms,
            late_ms,
            [one.pending for one in inputs if one.pending is not None],
            conf.pinned(),
            operators,
        )
    return starts


def _commit(
    log: StreamCheckpoint,
    batch: QueryBatch,
    versions: StateVersions,
    states: Sequence[_Adopted],
    found: SparkQuery,
    conf: QueryConf,
) -> None:
    """Write the states, and the commit record that names them; if a state fails, delete all."""
    partitioner = StablePartitioner(conf.shuffle_partitions)
    try:
        written = [
            state.read(partial(load, versions, state.uid, state.operation, partitioner, "default"))
            for state in states
        ]
    except NotAdoptableError as error:
        for name in log.files.list(""):
            log.files.delete(name)
        raise _refused(found, [str(error)]) from error
    watermarks = Watermarks(found.next_watermark_ms, (), ())
    # The next batch finds when the earliest timer is due.
    next_timeout_ms = 0 if any(state.has_timers for state in states) else -1
    log.commit(
        batch.batch_id,
        batch.begun.batch_time_ms,
        stores=[version.commit for version in written],
        **batch_end(watermarks, next_timeout_ms),
    )


def _is_open(recovered: Recovered) -> bool:
    """Return whether a checkpoint has no batches, or those of an interrupted adoption."""
    newest = recovered.newest
    is_begun = bool(recovered.unfinished) and recovered.unfinished[0].adopts is not None
    return newest is None or (recovered.committed is None and is_begun)


def _begin(
    log: StreamCheckpoint,
    begun: Sequence[QueryBatch],
    starts: Mapping[int, Mapping[str, Any]],
    clock: Clock,
) -> list[QueryBatch]:
    """Write the begin records that an interrupted call has not written yet."""
    batches = []
    for place, (batch_id, start) in enumerate(starts.items()):
        if place < len(begun):
            before = begun[place].begun
            written = {field: getattr(before, field) for field in start}
            if before.batch_id != batch_id or _as_json(written) != _as_json(start):
                raise RestartError(
                    f"an adoption in {log.files.url} was interrupted, and the checkpoint of Spark "
                    "or the query has changed since; delete this directory, and call adopt again"
                )
            batches.append(begun[place])
        else:
            time_ms = log.time_of_next(clock.now_ms())
            batches.append(QueryBatch(log.begin(batch_id, time_ms, **start)))
    return batches


def _as_json(part: object) -> str:
    return json.dumps(part, sort_keys=True, default=dict)


# States ----------------------------------------------------------------------------------------


def _states(
    found: SparkQuery, planned: PlannedQuery, spark: SparkContext
) -> tuple[list[_Adopted], list[str]]:
    """Match the operators of Spark, which are in the order from the sink, with those of a plan."""
    if found.committed is None:
        return [], []
    ordered = [step for step in from_sink(planned.root) if isinstance(step, StateStoreWriter)]
    if len(ordered) != len(found.operators):
        return [], [
            f"it has the stateful operators {_listed(one.name for one in found.operators)}, from "
            f"the sink to the sources, and the query has "
            f"{_listed(one.shortName for one in ordered)}; define the same operators"
        ]
    theirs = {id(one): there for one, there in zip(ordered, found.operators, strict=True)}
    own = [step for step in planned.root.walk() if isinstance(step, StateStoreWriter)]
    adopted, refusals = [], []
    for operator, facts in zip(own, describe_operators(planned), strict=True):
        there = theirs[id(operator)]
        try:
            adopted.append(_adopted(found, planned, spark, operator, facts, there))
        except NotAdoptableError as error:
            refusals.append(
                f"operator {there.number} ({there.name}) does not fit {facts['uid']!r} "
                f"({operator.shortName}): {error}"
            )
    return adopted, refusals


def _adopted(
    found: SparkQuery,
    planned: PlannedQuery,
    spark: SparkContext,
    operator: StateStoreWriter,
    facts: Mapping[str, Any],
    there: SparkOperator,
) -> _Adopted:
    if there.name not in NAMES:
        raise NotAdoptableError(f"only the state of {', '.join(NAMES)} can be taken")
    if type(operator) is not NAMES[there.name]:
        raise NotAdoptableError("they are different operators")
    frame = found.state(spark, there)
    convert = entries_of(frame, operator, planned)
    timeout = facts.get("timeoutConf") == GroupStateTimeout.ProcessingTimeTimeout.name
    assert found.committed is not None, "without a complete batch there is no state"
    check = partial(require_slide, operator, found.committed.watermark_ms)
    return _Adopted(facts["uid"], operator.shortName, there.number, frame, convert, timeout, check)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


# Sources ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Input:
    """The input of a source: what Spark has read, and the pending batch; None to plan that."""

    done: PlannedInput
    pending: PlannedInput | None
    line: str


def _inputs(
    found: SparkQuery, planned: PlannedQuery, spark: SparkContext
) -> tuple[list[_Input], list[str]]:
    """Match the sources of Spark with those of a plan."""
    sources, ends = planned.sources, found.newest.ends
    if len(sources) != len(ends):
        return [], [f"it has {len(ends)} sources, and the query has {len(sources)}"]
    inputs, refusals = [], []
    for number, source in enumerate(sources):
        name = f"source {number} ({source.name})"
        try:
            one = _input(found, source, number, spark)
            inputs.append(replace(one, line=f"{name}: {one.line}"))
        except NotAdoptableError as error:
            refusals.append(f"{name}: {error}")
    return inputs, refusals


def _input(found: SparkQuery, source: Source, number: int, spark: SparkContext) -> _Input:
    before = None if found.committed is None else found.committed.ends[number]
    after = found.newest.ends[number]
    is_of_files = after is None or (isinstance(after, Mapping) and set(after) == {"logOffset"})
    if isinstance(source, FileStreamSource) and is_of_files:
        return _files(found, source, number, spark)
    if isinstance(source, KafkaRowSource) and not is_of_files and isinstance(after, Mapping):
        begun = found.start_of(number) if before is None else before
        start, end = offsets_of_json(begun), offsets_of_json(after)
        position = Position(start, {}).to_json()
        done = PlannedInput(found.newest.timestamp_ms, position, position)
        pending = None
        if set(end) <= set(start):  # otherwise Spark has looked up where new partitions begin
            pending = replace(done, end=Position(end, {}).to_json(), records=None)
        return _Input(done, pending, f"continues at {begun}")
    raise NotAdoptableError(
        f"it is not the one of Spark, whose offset is {after}; only files and topics of Kafka can "
        "be continued, by the same kind of source"
    )


def _files(found: SparkQuery, source: FileStreamSource, number: int, spark: SparkContext) -> _Input:
    upto, last = (
        -1 if batch is None or batch.ends[number] is None else int(batch.ends[number]["logOffset"])
        for batch in (found.committed, found.newest)
    )
    time_ms = found.newest.timestamp_ms
    entries = found.files_of(number, last)
    visible = VisibleFiles(source.directory, spark, is_recursive=source.is_recursive)
    there = {_comparable(stamp.path): stamp for stamp in visible.files() or ()}
    stamps = [
        (there.get(_comparable(one.path), FileStamp(one.path, one.modified_ms, 0)), one.number)
        for one in entries
    ]
    base = _comparable(_base(source.directory))
    if entries and not any(_comparable(one.path).startswith(base) for one in entries):
        raise NotAdoptableError(
            f"the files of Spark are in other directories, such as {entries[-1].path}; "
            "read the same directory"
        )
    read = [stamp for stamp, batch in stamps if batch <= upto]
    next_ones = [stamp for stamp, batch in stamps if batch > upto]
    lost = [stamp.path for stamp in next_ones if _comparable(stamp.path) not in there]
    if lost:
        raise NotAdoptableError(
            f"batch {found.newest.batch_id} is not complete and has to read "
            f"{', '.join(lost)} again, which is missing; put it back"
        )
    end = 1 if read else None
    done = PlannedInput(time_ms, None, end, {INPUT_FILES: read} if read else {}, None)
    pending = PlannedInput(time_ms, end, end)
    if next_ones:
        facts = {INPUT_FILES: next_ones}
        pending = PlannedInput(time_ms, end, (end or 0) + 1, facts, source.format.count(next_ones))
    again = f"; {len(next_ones)} are read by the batch that runs again" if next_ones else ""
    return _Input(done, pending, f"{len(read)} files are known as read{again}")


def _comparable(path: str) -> str:
    """Return a path or URL that is equal for Spark and for the listing of a directory."""
    return f"/{path[5:].lstrip('/')}" if path.startswith("file:") else path


def _base(directory: str) -> str:
    """Return the beginning of the paths of a source."""
    has_scheme = ":" in directory.partition("/")[0]
    return before_wildcards(directory if has_scheme else os.path.abspath(directory))
