"""Replays: recorded batches of a stream run again in a copy of its checkpoint.

The copy begins after an earlier batch, so the batches after it are in flight there: a restart runs
them again with their recorded input, number, time and token. Nothing new is planned, no receiver is
started, and nothing is acknowledged to a source.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import RDD

from checkpoint import (
    CheckpointError,
    CommitLog,
    Files,
    RecordId,
    newest_stream,
    open_existing,
    open_files,
    open_stream,
    stream_ids,
    stream_url,
    without_secrets,
)
from checkpoint.cli import Fork, UsageError, fork_stream
from dstreams.common.durations import batch_datetime
from dstreams.common.manual_clock import ManualClock
from dstreams.engine.engine import Engine
from dstreams.engine.inputs import planned_in
from dstreams.engine.inspection import state_access
from dstreams.engine.recording import (
    RecordedReader,
    Recording,
    open_recording,
    write_recording,
)
from dstreams.engine.recovery.recover import Program, RecoveredStream, recover
from dstreams.engine.recovery.resume import batches_in_flight
from dstreams.engine.startup import CheckedGraph, EngineConfig
from dstreams.errors import InvalidStreamError, RestartError, SourceError
from dstreams.graph.node import OutputOperation
from dstreams.graph.plan import Plan, StreamGraph
from dstreams.monitoring.events import BatchInfo, ignore_event
from dstreams.monitoring.progress import TOTAL
from dstreams.monitoring.state_queries import LiveState, ReadableState, StateQueries
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sources.source import (
    InputDescription,
    PlannedInput,
    Source,
    SourceEnvironment,
    SourceReader,
    loss_with_driver,
)
from dstreams.spark.worker_python import require_shared, require_workers

logger = logging.getLogger(__name__)

_ALL_KEYS = 1 << 40

Take = Callable[[Any], object]
"""Receives the streaming context that a program starts."""

_takes: list[Take] = []


@contextmanager
def taking(take: Take) -> Iterator[None]:
    """Call *take* instead of starting what the program starts; it touches no checkpoint.

    Holds for all threads: a program that only defines streams for a replay must start nowhere.
    """
    _takes.append(take)
    try:
        yield
    finally:
        _takes.remove(take)


def taken() -> Take | None:
    """Return what takes the streams that are started now; None if they start."""
    return _takes[-1] if _takes else None


@dataclass(frozen=True)
class ReplayedBatch:
    """The result of a batch that ran again.

    Args:
        batch_id: its number.
        batch_time_ms: its time in milliseconds since the epoch.
        outputs: by uid, the records that each output received, in no particular order. An output
            without an RDD in this batch is missing.
        states: by uid, the state of each operator after the batch, by key. States of processors
            (``transformWithState``) are missing: :meth:`Replay.state` looks up their keys.
        duration_ms: how long it ran.
    """

    batch_id: int
    batch_time_ms: int
    outputs: Mapping[str, list[Any]]
    states: Mapping[str, dict[Any, Any]] = field(repr=False)
    duration_ms: int = 0


class Replay(ABC):
    """Recorded batches of a stream, which run again one by one in a copy of its checkpoint.

    Use it as a context manager, or call :meth:`close`; then the copy is deleted.

    Attributes:
        batch_time_ms: time of the batch after which the states are; None before the first batch.
        left_ms: times of the batches that have not run again, oldest first.
        files: the copy, and in it the records of the original by batch time, *original*.
        operators: a text about each operator by uid, in the order of the plan.
    """

    def __init__(
        self,
        copy: Copy,
        again_ms: Sequence[int],
        operators: Mapping[str, str],
        seen: dict[str, list[Any]],
        undo: ExitStack,
    ) -> None:
        self.files = copy.files
        self.original = copy.fork.original
        self.batch_time_ms = copy.fork.after_ms
        self.left_ms = list(again_ms)
        self.operators = operators
        self._seen = seen
        self._undo = undo

    def step(self, n: int = 1, *, states: bool = True) -> list[ReplayedBatch]:
        """Run the next *n* recorded batches, or those that are left.

        Args:
            n: number of batches.
            states: whether to return the states as well; they are read completely.

        Raises:
            BatchFailedError: a batch fails; it can run again in another replay.
        """
        return [self._step(states) for _ in range(min(n, len(self.left_ms)))]

    def _step(self, states: bool) -> ReplayedBatch:
        time_ms = self.left_ms[0]
        self._seen.clear()
        info = self._run(time_ms)
        self.batch_time_ms = self.left_ms.pop(0)
        return ReplayedBatch(
            info.batch_id,
            time_ms,
            dict(self._seen),
            self._states() if states else {},
            info.durations_ms[TOTAL],
        )

    @abstractmethod
    def _run(self, time_ms: int) -> BatchInfo:
        """Run the recorded batch of a time."""

    def state(self, uid: str | None = None) -> LiveState:
        """Return the state of an operator after the batch at :attr:`batch_time_ms`.

        Args:
            uid: the operator; None if only one has state.

        Raises:
            InvalidStreamError: no operator has this uid; the error lists the uids.
        """
        return self._queries.state(uid)

    def record(self, file: str, most_bytes: int = 100_000_000) -> int:
        """Write the batches that are left, with their input, to a file, before any of them runs.

        :func:`dstreams.testing.replay` runs them again from the file, on any machine and without
        the sources. The file is a zip archive with pickled records and functions.

        Args:
            file: path of the new file; only its owner can read it.
            most_bytes: the most bytes of content to write.

        Returns:
            The bytes of its content before compression.

        Raises:
            InvalidStreamError: the content is larger, the file exists, no batch is left, or the
                batches are those of a query.
        """
        raise InvalidStreamError("only batches of streams can be recorded, not those of a query")

    def commit_ids(self) -> dict[int, RecordId]:
        """Return the commit records of the copy by batch time."""
        return {one.time_ms: one for one in CommitLog(self.files).ids()}

    @property
    @abstractmethod
    def _queries(self) -> StateQueries:
        """The look-ups of the states."""

    def _states(self) -> dict[str, dict[Any, Any]]:
        queries = self._queries
        return {
            uid: dict(queries.range(uid, limit=_ALL_KEYS)[1])
            for uid, state in queries.states.items()
            if not (isinstance(state, ReadableState) and state.own is not None)
        }

    def close(self) -> None:
        """End the replay, and delete the copy."""
        self._undo.close()

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        at = "the start" if self.batch_time_ms is None else batch_datetime(self.batch_time_ms)
        return f"<replay at {at}, {len(self.left_ms)} batches left>"


class _StreamReplay(Replay):
    """A replay of streams."""

    def __init__(
        self,
        engine: Engine,
        copy: Copy,
        again_ms: Sequence[int],
        seen: dict[str, list[Any]],
        reads: Mapping[str, Mapping[int, PlannedInput]],
        undo: ExitStack,
    ) -> None:
        operators = {
            planned.uid: f"{node.operation} ({planned.uid})"
            for node, planned in engine.plan.nodes.items()
        }
        super().__init__(copy, again_ms, operators, seen, undo)
        self._engine = engine
        self._reads = reads

    def _run(self, time_ms: int) -> BatchInfo:
        engine = self._engine
        clock = engine.clock
        assert isinstance(clock, ManualClock), "a replay has its own clock"
        clock.advance(max(0, time_ms - clock.now_ms()))
        batch = engine.planner.plan_batch()
        assert batch.time_ms == time_ms, "the next batch is the recorded one"
        result = engine.runner.run(batch)
        if result.error is not None:
            raise result.error
        return result.info

    def record(self, file: str, most_bytes: int = 100_000_000) -> int:
        if not self.left_ms:
            raise InvalidStreamError("no batch is left to record")
        engine, uids = self._engine, self._engine.plan.input_uids
        inputs = {
            uids[stream]: {
                time_ms: reader.read(planned)
                for time_ms, planned in self._reads[uids[stream]].items()
                if time_ms <= self.left_ms[-1]
            }
            for stream, reader in engine.readers.items()
        }
        span = self.left_ms[0], self.left_ms[-1]
        return write_recording(file, engine.stream_id, self.files, inputs, span, most_bytes)

    @property
    def _queries(self) -> StateQueries:
        return state_access(self._engine) or StateQueries({})


def open_replay(
    checkpoint: str,
    define: Callable[[RecoveredStream], Program],
    recorded: Callable[[RecoveredStream], Program] | None = None,
    *,
    first_ms: int | None = None,
    last_ms: int | None = None,
    after_ms: int | None = None,
    fork: str | None = None,
    run_outputs: bool = False,
    record_operators: bool = False,
    write_states: bool = False,
    allow_removed: Iterable[str] = (),
) -> Replay:
    """Copy a checkpoint as of an earlier batch, and open the copy with other streams.

    Args:
        checkpoint: path or URL of the checkpoint directory; never written to.
        define: returns the streams that run the batches.
        recorded: returns the recorded streams, if *define* returns others: the states before the
            first batch are theirs, as after a graceful stop.
        first_ms: time of the first batch to run again; None for the oldest possible.
        last_ms: time of the last one; None for the newest that was begun.
        after_ms: instead of *first_ms*, time of the batch before it, whose states are wanted.
        fork: path or URL of an empty directory for the copy, which all executors can reach; it is
            not deleted. None: a temporary directory on this host.
        run_outputs: call the outputs as well, instead of only recording what they receive.
        record_operators: record the RDD of each operator as well.
        write_states: write all states to the copy after each batch, to compare them there.
        allow_removed: uids of operators and inputs whose state or progress may be discarded.

    Raises:
        InvalidStreamError: there is no such checkpoint, batch or empty directory.
        RestartError: the checkpoint is damaged or does not match the streams.
        SourceError: input of the batches is not available any more. Nothing has run.
    """
    removed = tuple(allow_removed)
    with ExitStack() as undo:
        scratch = undo.enter_context(TemporaryDirectory(prefix="dstreams-replay-"))
        copy = _copy(scratch, checkpoint, fork, first_ms, last_ms, after_ms)
        undo.enter_context(_naming_original(copy))
        found = recover(copy.directory)
        assert found is not None, "the copy has a graph, as the original"
        if copy.recording is not None:  # inputs are read from it, wherever the program has them
            found = _without_places(found)
        program = define(found)
        found = _fitting(found, program, removed, copy.url)
        if recorded is not None and _lacks_state(found):
            _write_last_state(scratch, copy, recorded(found), replace(found, added=None))
            again = recover(copy.directory)
            assert again is not None, "the copy is still there"
            again = again if copy.recording is None else _without_places(again)
            found = _fitting(again, program, removed, copy.url)
        seen: dict[str, list[Any]] = {}
        reads: dict[str, dict[int, PlannedInput]] = {}
        _record(program.graph, seen, run_outputs, record_operators)
        if write_states:
            _write_every_state(program.graph)
        plan = program.graph.freeze(found.zero_ms, has_checkpoint_directory=True)
        in_flight = batches_in_flight(found.records, plan)
        again_ms = [one for one in in_flight if copy.last_ms is None or one <= copy.last_ms]
        if not again_ms and after_ms is None:
            raise InvalidStreamError(
                f"{copy.url}: no batch up to {last_ms} ms can run again; these can: "
                f"{', '.join(map(str, in_flight)) or 'none'}"
            )
        engine = _open_engine(scratch, copy, program, plan, found, reads)
        undo.callback(engine.close)
        engine.garbage_collector.use_thread()
        engine.garbage_collector.close()  # the copy keeps what the original has, to compare
        _require_input(engine, found, again_ms)
        _make_states(engine, found)
        return _StreamReplay(engine, copy, again_ms, seen, reads, undo.pop_all())


def _lacks_state(found: RecoveredStream) -> bool:
    """Return whether a restart would compute a state again from earlier batches."""
    last_ms, newest = found.records.last_ms, found.records.snapshots
    copied = [part["uid"] for part in found.description["operators"] if part["state"] == "copied"]
    return last_ms is not None and any(
        uid not in newest or newest[uid].time_ms < last_ms for uid in copied
    )


def _write_last_state(scratch: str, copy: Copy, program: Program, found: RecoveredStream) -> None:
    """Write the state of the last batch to the copy, as the recorded code has made it."""
    plan = program.graph.freeze(found.zero_ms, has_checkpoint_directory=True)
    engine = _open_engine(scratch, copy, program, plan, found, {})
    try:
        _make_states(engine, found)
        last, committer = found.records.last, engine.committer
        assert last is not None, "a state is missing"
        assert committer is not None, "the copy is a checkpoint"
        committer.commit_state_of(last.batch_id, plan.batch_upto(last.batch_time_ms))
    finally:
        engine.close()


def _make_states(engine: Engine, found: RecoveredStream) -> None:
    """Make the RDDs of the states after the last committed batch."""
    plan = engine.plan
    for node in plan.stateful():
        last_ms = plan.turn_upto(node, found.records.last_ms or plan.zero_ms)
        if node not in plan.in_state_store() and last_ms > plan.zero_ms:
            engine.rdds.make([node], last_ms)


@dataclass(frozen=True)
class Copy:
    """A copy of a checkpoint: its directory, the files of its stream, and where it begins."""

    url: str
    directory: str
    stream_id: str
    files: Files
    fork: Fork
    last_ms: int | None
    recording: Recording | None


@contextmanager
def _naming_original(copy: Copy) -> Iterator[None]:
    """Let errors about the copy name the original."""
    try:
        yield
    except RestartError as error:
        original = copy.url.removesuffix(f"/{copy.stream_id}")
        text = str(error).replace(copy.files.url, copy.url).replace(copy.directory, original)
        raise RestartError(text) from error


def _copy(
    scratch: str,
    checkpoint: str,
    fork: str | None,
    first_ms: int | None,
    last_ms: int | None,
    after_ms: int | None,
) -> Copy:
    """Copy the checkpoint of a stream, or the one in a recording."""
    directory = os.path.join(scratch, "checkpoint") if fork is None else fork
    recording = None
    if os.path.isfile(checkpoint):
        recording = open_recording(checkpoint, os.path.join(scratch, "recording"))
        first_ms = None if after_ms is not None else max(recording.first_ms, first_ms or 0)
        last_ms = min(recording.last_ms, recording.last_ms if last_ms is None else last_ms)
        checkpoint = os.path.join(scratch, "recording")
    stream_id, files = _stream_of(checkpoint)
    into = open_files(stream_url(directory, stream_id))
    found = fork_into(directory, into, files, first_ms, after_ms)
    url = files.url if recording is None else recording.file
    return Copy(url, directory, stream_id, into, found, last_ms, recording)


def fork_into(
    directory: str,
    into: Files,
    files: Files,
    first_ms: int | None = None,
    after_ms: int | None = None,
    last_ms: int | None = None,
    setting: str = "spark.dstreams.history.batches",
) -> Fork:
    """Copy a stream or query into an empty directory; *setting* is the one that keeps more batches.

    Raises InvalidStreamError if a batch is not kept, or RestartError.
    """
    try:
        if open_files(directory).list(""):
            raise InvalidStreamError(f"{without_secrets(directory)} is not empty")
        return fork_stream(files, into, first_ms, after_ms, last_ms)
    except UsageError as error:
        raise InvalidStreamError(f"{error}; {setting} keeps more batches") from error
    except CheckpointError as error:
        raise RestartError(f"{files.url} cannot be replayed: {error}") from error


def _open_engine(
    scratch: str,
    copy: Copy,
    program: Program,
    plan: Plan,
    found: RecoveredStream,
    reads: dict[str, dict[int, PlannedInput]],
) -> Engine:
    """Open an engine on the copy; its graph is not written there."""
    settings = program.settings.replace(
        state_local_directory=os.path.join(scratch, "local"), on_failure="stop", catch_up="all"
    )
    config = EngineConfig(
        program.spark,
        ManualClock(found.records.last_ms or found.zero_ms),
        settings,
        copy.directory,
        lambda error: logger.warning("%s", error),
        ignore_event,
        program.context,
        recovered=found,
        classes=program.classes,
        open_source=partial(_open_source, copy.recording, reads),
    )
    require_workers(program.spark)
    require_shared(program.spark, copy.files)
    url = stream_url(copy.directory, copy.stream_id)
    return CheckedGraph(config, copy.stream_id, plan, url, pickled=None).open()


def _stream_of(checkpoint: str) -> tuple[str, Files]:
    """Open the newest stream of a checkpoint for reading."""
    try:
        files = open_existing(checkpoint)
        found = newest_stream(stream_ids(files), lambda one: open_stream(checkpoint, one))
    except (CheckpointError, FileNotFoundError, ValueError) as error:
        raise InvalidStreamError(
            f"the checkpoint {without_secrets(checkpoint)!r} cannot be opened: {error}"
        ) from error
    if found is None:
        raise InvalidStreamError(f"{files.url} has no stream to replay; is it a checkpoint?")
    return found


def _fitting(
    found: RecoveredStream, program: Program, removed: tuple[str, ...], url: str
) -> RecoveredStream:
    """Return the stream for other streams. Raises RestartError if they do not fit."""
    report, fitting = found.compare(program.graph, program.spark, removed)
    if report.refusals:
        raise RestartError(
            f"{url} cannot be replayed by these streams; nothing ran:"
            + "".join(f"\n- {refusal}" for refusal in report.refusals)
        )
    for note in report.notes:
        logger.info("%s", note)
    return fitting


def _record(
    graph: StreamGraph, seen: dict[str, list[Any]], run_outputs: bool, record_operators: bool
) -> None:
    """Let outputs record what they receive in *seen*, by uid; operators too, if requested."""
    plan = graph.draft()
    graph.outputs[:] = [
        replace(output, func=_Recorder(uid, seen, output.func if run_outputs else None))
        for uid, output in zip(plan.output_uids, plan.outputs, strict=True)
    ]
    if record_operators:
        graph.outputs += [
            OutputOperation(node, _Recorder(planned.uid, seen), node.operation)
            for node, planned in plan.nodes.items()
        ]


def _without_places(found: RecoveredStream) -> RecoveredStream:
    """Return a stream whose inputs may be anywhere."""
    inputs = [{**part, "place": None} for part in found.description["inputs"]]
    description = {**found.description, "inputs": inputs}
    return replace(found, snapshot=replace(found.snapshot, description=description))


def _write_every_state(graph: StreamGraph) -> None:
    """Let each state RDD be written after each batch, as state in stores is."""
    draft = graph.draft()
    for node in set(draft.stateful()).difference(draft.in_state_store()):
        graph.options_of(node).checkpoint_ms = node.slide_ms


@dataclass(frozen=True)
class _Recorder:
    """An output that keeps its records, and calls the output that it replaces, if any."""

    uid: str
    seen: dict[str, list[Any]]
    func: Callable[[OutputBatch, RDD[Any]], None] | None = None

    def __call__(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        self.seen[self.uid] = rdd.collect()
        if self.func is not None:
            self.func(batch, rdd)


def _require_input(engine: Engine, found: RecoveredStream, again_ms: Sequence[int]) -> None:
    """Raise SourceError if an input of the batches cannot be read again."""
    for stream, reader in engine.readers.items():
        planned = planned_in(found.records.begins, engine.plan.input_uids[stream])
        plans = [planned[time_ms] for time_ms in again_ms if time_ms in planned]
        loss = loss_with_driver(stream.source, reader)
        if loss is not None and any(one.records for one in plans):
            raise SourceError(f"{stream.operation} cannot be replayed: {loss}")
        reader.require_records(plans)


def _open_source(
    recording: Recording | None,
    reads: dict[str, dict[int, PlannedInput]],
    source: Source,
    environment: SourceEnvironment,
) -> SourceReader:
    """Open an input that only reads; *reads* gets its plans, by uid and batch time."""
    storage = environment.storage
    assert storage is not None, "a replay has a checkpoint"
    if recording is None:
        reader = source.open(environment)
    else:
        reader = RecordedReader(recording, environment.spark, storage.uid)
    return RecordedInput(reader, reads.setdefault(storage.uid, {}))


class RecordedInput(SourceReader):
    """A reader that only reads what an earlier run has planned, and acknowledges nothing."""

    def __init__(self, reader: SourceReader, reads: dict[int, PlannedInput]) -> None:
        self._reader = reader
        self._reads = reads

    @property
    def not_replayable_reason(self) -> str | None:
        return self._reader.not_replayable_reason

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        return PlannedInput(time_ms, start, start)

    def read(self, planned: PlannedInput) -> RDD[Any] | None:
        self._reads[planned.time_ms] = planned
        return self._reader.read(planned)

    def require_records(self, plans: Sequence[PlannedInput]) -> None:
        self._reads.update((planned.time_ms, planned) for planned in plans)
        self._reader.require_records([one for one in plans if one.start != one.end])

    def after_batch_info(self, planned: PlannedInput) -> InputDescription:
        return self._reader.after_batch_info(planned)

    def release(self, end: Any) -> None:
        self._reader.release(end)

    def error_hint(self, failure: str) -> str | None:
        return self._reader.error_hint(failure)

    def close(self) -> None:
        self._reader.close()
