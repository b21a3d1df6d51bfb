"""Starting a stream: from the graph of a program to an engine that can run its batches."""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex  # noqa: TID251

from pyspark import SparkContext

from checkpoint import CheckpointError, drop_graphs, open_files, require_trusted, stream_url
from checkpoint.cli import Progress, ProgressBar, ProgressLines, is_terminal
from checkpoint.state_store import Classes, StoredClassError, require_stored_state
from dstreams.common.clock import Clock
from dstreams.common.settings import Settings
from dstreams.engine.engine import Engine
from dstreams.engine.inputs import planned_in
from dstreams.engine.rate_control import limit_rates
from dstreams.engine.recovery.graph_snapshot import PickledGraph, pickle_graph, write_graph_snapshot
from dstreams.engine.recovery.recover import RecoveredStream
from dstreams.engine.recovery.resume import last_batch_ms, resume
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.errors import RestartError
from dstreams.graph.generated_rdds import GeneratedRdds
from dstreams.graph.node import InputDStream
from dstreams.graph.plan import Plan, StreamGraph
from dstreams.monitoring.events import BatchCompleted, Event, EventHandler
from dstreams.monitoring.registry import registry
from dstreams.sources.source import (
    Source,
    SourceEnvironment,
    SourceReader,
    SourceStorage,
    close_all,
)
from dstreams.spark import jvm
from dstreams.spark.encryption import require_encrypted_files, require_encrypted_page
from dstreams.spark.worker_python import require_shared, require_workers
from dstreams.state.state_versions import StateVersions
from dstreams.state.store_maintenance import open_store

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineConfig:
    """The environment of a graph.

    Args:
        directory: the checkpoint directory that the user has set, None if not set.
        report: called with errors that no batch raises.
        notify: receives every event.
        context: the streaming context, for functions that refer to it.
        given: settings that the user gave in place of those of the SparkConf.
        recovered: the stream to resume, None for a new stream.
        classes: the classes of data that the program names.
        restarts: called with the progress of a restart as text; empty once it has ended.
        open_source: opens the reader of an input.
    """

    spark: SparkContext
    clock: Clock
    settings: Settings
    directory: str | None
    report: Callable[[BaseException], None]
    notify: EventHandler
    context: object
    given: Settings | None = None
    recovered: RecoveredStream | None = None
    classes: Classes = field(default_factory=Classes)
    restarts: Callable[[str], None] = lambda _: None
    open_source: Callable[[Source, SourceEnvironment], SourceReader] = lambda source, environment: (
        source.open(environment)
    )


@dataclass(frozen=True)
class CheckedGraph:
    """A graph that can run, as far as that is known before anything is opened or claimed.

    *url* is missing if nothing of the stream is durable, *pickled* if its graph is not.
    """

    config: EngineConfig
    stream_id: str
    plan: Plan
    url: str | None
    pickled: PickledGraph | None

    def open(self) -> Engine:
        """Open and start the sources, and resume the stream that was recovered.

        A restart finds the graph of the last successful start. A first start writes the graph
        before its sources receive anything, and deletes it if they cannot be started; later starts
        write it when nothing can fail any more. On failure all sources are closed.
        """
        with ExitStack() as undo:
            if self.url is None:
                engine = self._open_engine(None, undo)
            elif self.config.recovered is None:
                engine = self._start(self.url, undo)
            else:
                engine = self._restart(self.url, self.config.recovered, undo)
            undo.pop_all()
        return engine

    def _start(self, url: str, undo: ExitStack) -> Engine:
        """Start a new stream."""
        checkpoint = self._take_over(url, None, undo)
        return self._open_engine(
            checkpoint, undo, before_start=partial(self._write_graph, checkpoint, None)
        )

    def _restart(self, url: str, recovered: RecoveredStream, undo: ExitStack) -> Engine:
        """Take over a stream and resume it. Compare Spark's ``JobGenerator.restart``."""
        config = self.config
        progress = RestartProgress(
            self.stream_id,
            config.clock,
            on_terminal=registry().shows_restarts,
            show_text=config.restarts,
        )
        undo.callback(progress.close)
        checkpoint = self._take_over(url, recovered, undo)
        engine = self._open_engine(checkpoint, undo, restart=progress)
        undo.pop_all()
        undo.callback(engine.close)  # includes what the callbacks before it undo
        with jvm.rewriting_outputs(config.spark):
            resume(engine, recovered, config.settings.catch_up, progress)
        self._write_graph(checkpoint, recovered)
        progress.catch_up(*engine.planner.behind())
        return engine

    def _take_over(
        self, url: str, recovered: RecoveredStream | None, undo: ExitStack
    ) -> StreamCheckpoint:
        plan, files = self.plan, open_files(url)
        operators = {plan.nodes[one].uid for one in (*plan.checkpointed(), *plan.in_state_store())}
        checkpoint = StreamCheckpoint.take_over(
            files if recovered is None else require_trusted(files),
            self.stream_id,
            self.config.clock.now_ms(),
            None if recovered is None else recovered.log,
            operators=operators,
        )
        undo.callback(_give_up, checkpoint, is_first=recovered is None)
        classes = self.config.classes
        try:
            require_stored_state(checkpoint.owned.ahead, checkpoint.plan, operators, classes)
        except StoredClassError as error:
            raise RestartError(f"{files.url} cannot be resumed: {error}") from error
        checkpoint.fence.wait()
        logger.info("took over stream %s in epoch %d", self.stream_id, checkpoint.epoch)
        return checkpoint

    def _write_graph(self, checkpoint: StreamCheckpoint, recovered: RecoveredStream | None) -> None:
        if self.pickled is None:
            return
        last_ms = last_batch_ms(checkpoint.plan, self.plan)
        checkpoint.fence.start()
        checkpoint.graph = write_graph_snapshot(
            checkpoint.owned,
            self.stream_id,
            self.plan,
            self.pickled,
            self.config.spark,
            self.config.given,
            {} if recovered is None else recovered.added_after(last_ms),
        )
        checkpoint.fence.wait()

    def _open_engine(
        self,
        checkpoint: StreamCheckpoint | None,
        undo: ExitStack,
        before_start: Callable[[], None] = lambda: None,
        restart: RestartProgress | None = None,
    ) -> Engine:
        """Open the sources, call *before_start*, start them, and return an engine without past."""
        plan, config = self.plan, self.config
        environment = self._environment(checkpoint)
        readers: dict[InputDStream, SourceReader] = {}
        undo.callback(close_all, readers.values())
        for stream, uid in plan.input_uids.items():
            of_input = environment
            if checkpoint is not None:
                planned = list(planned_in(checkpoint.plan.begins, uid).values())
                of_input = replace(
                    environment,
                    storage=SourceStorage(checkpoint.files, self.stream_id, uid, checkpoint.epoch),
                    newest=planned[-1] if planned else None,
                    past=partial(checkpoint.past, uid),
                )
            readers[stream] = config.open_source(stream.source, of_input)
        rates = limit_rates(readers, config.settings, plan.batch_ms)
        before_start()
        for reader in readers.values():
            reader.start()

        def notify(event: Event) -> None:
            rates.observe(event)
            if restart is not None:
                restart.observe(event)
            config.notify(event)

        states = None
        if checkpoint is not None and plan.in_state_store():
            store = open_store(checkpoint.files, checkpoint.epoch, config.settings, config.classes)
            is_temporary = config.settings.state_local_directory is None
            states = StateVersions(
                config.spark, store, self.stream_id, is_local_temporary=is_temporary
            )
        engine = Engine(
            plan,
            GeneratedRdds(plan, config.spark, unpersist=config.settings.unpersist, states=states),
            readers,
            checkpoint,
            config.clock,
            notify,
            self.stream_id,
            stops_on_failure=config.settings.on_failure == "stop",
            rates=rates,
            on_close=(lambda: None) if restart is None else restart.close,
            history_ms=config.settings.history_batches * plan.batch_ms,
        )
        if checkpoint is not None:
            checkpoint.begin_inputs(engine.offsets, plan.zero_ms)
        return engine

    def _environment(self, checkpoint: StreamCheckpoint | None) -> SourceEnvironment:
        plan, config = self.plan, self.config
        begun = () if checkpoint is None else checkpoint.plan.begins
        return SourceEnvironment(
            config.spark,
            config.clock,
            config.settings,
            # A batch that was begun before an input was added reads nothing of it.
            plan.batch_upto(max([plan.zero_ms, *begun])),
            config.report,
            plan.batch_ms,
            config.notify,
        )


def check_graph(graph: StreamGraph, config: EngineConfig) -> CheckedGraph:
    """Freeze *graph* and check everything that can keep it from running; nothing remains open."""
    recovered = config.recovered
    if recovered is None:
        zero_ms = config.clock.now_ms() // graph.batch_ms * graph.batch_ms
        stream_id = f"stream-{zero_ms}-{token_hex(4)}"
    else:
        zero_ms, stream_id = recovered.zero_ms, recovered.stream_id
    base = config.directory or config.spark.getCheckpointDir()
    plan = graph.freeze(zero_ms, has_checkpoint_directory=base is not None)
    require_encrypted_files(config.spark, config.settings)
    require_encrypted_page(config.spark, config.settings)
    require_workers(config.spark)
    # If only Spark's own directory is set, only state is durable.
    has_state = bool(plan.checkpointed() or plan.in_state_store())
    is_durable = base is not None and (config.directory is not None or has_state)
    url = stream_url(base, stream_id) if base is not None and is_durable else None
    if base is not None and has_state:
        require_shared(config.spark, open_files(base))
    pickled = None if config.directory is None else pickle_graph(graph, config.context)
    return CheckedGraph(config, stream_id, plan, url, pickled)


def warn_of_refusals(graph: StreamGraph) -> None:
    """Warn of inputs that cannot be resumed from the checkpoint."""
    for stream in graph.inputs:
        refusal = stream.source.restart_refusal
        if refusal is not None:
            logger.warning(
                "this stream cannot be resumed from its checkpoint: %s: %s",
                stream.operation,
                refusal,
            )


def _give_up(checkpoint: StreamCheckpoint, *, is_first: bool) -> None:
    """Release a stream that could not be started; never raises."""
    try:
        if is_first:
            drop_graphs(checkpoint.owned.lease)
    except CheckpointError as error:
        logger.warning("failed to delete the graph of a stream that did not start: %s", error)
    checkpoint.give_up()


class RestartProgress(Progress):
    """The progress of a restart until the stream has caught up, in the log or on the terminal.

    *show_text* receives each step as text, and an empty text at the end.
    """

    def __init__(
        self,
        stream_id: str,
        clock: Clock,
        *,
        on_terminal: bool,
        show_text: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._stream_id = stream_id
        self._until_ms: int | None = None
        self._show_text = show_text
        if on_terminal and is_terminal(sys.stderr):
            self._shown: ProgressBar | ProgressLines = ProgressBar(sys.stderr)
        else:
            self._shown = ProgressLines(
                lambda stage: logger.info("stream %s restarts: %s", stream_id, str(stage)),
                now_s=lambda: clock.now_ms() / 1000,
            )
        self.begin("restarting")
        atexit.register(self.close)

    def begin(self, stage: str, total: int | None = None) -> None:
        self._shown.begin(stage, total)
        self._show_text(str(self._shown))

    def advance(self, count: int = 1) -> None:
        self._shown.advance(count)
        self._show_text(str(self._shown))

    def catch_up(self, batches: int, until_ms: int) -> None:
        """Show the progress of *batches* up to a batch time."""
        if batches == 0:
            self.close()
            return
        self._until_ms = until_ms
        self.begin("batches to catch up", batches)

    def observe(self, event: Event) -> None:
        """Count a batch that has run."""
        if self._until_ms is None or not isinstance(event, BatchCompleted):
            return
        self.advance()
        if event.batch.batch_time_ms >= self._until_ms:
            done = self._shown.done
            logger.info("stream %s has caught up, in %d batches", self._stream_id, done)
            self.close()

    def close(self) -> None:
        """Stop showing progress; calling it again is harmless."""
        self._until_ms = None
        self._shown.close()
        self._show_text("")
        atexit.unregister(self.close)
