"""Opening a graph: from what a program has defined to an engine that can run its batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex  # noqa: TID251

from pyspark import SparkContext

from checkpoint import (
    CheckpointError,
    OwnedStream,
    drop_graphs,
    open_files,
    require_trusted,
    stream_url,
)
from checkpoint.cli import SILENT
from checkpoint.state_store import Classes, require_stored_state
from dstreams.common.clock import Clock
from dstreams.common.settings import CatchUp, Settings
from dstreams.engine.engine import Engine
from dstreams.engine.input_offsets import planned_in
from dstreams.engine.rate_control import limit_rates
from dstreams.engine.recovery.committed_state import last_batch_ms
from dstreams.engine.recovery.graph_snapshot import write_graph_snapshot
from dstreams.engine.recovery.replay import replay
from dstreams.engine.recovery.restore_point import RestorePoint
from dstreams.engine.restart_progress import RestartProgress
from dstreams.engine.transaction_log import TransactionLog
from dstreams.graph.history import History
from dstreams.graph.input import InputDStream
from dstreams.graph.pickling import PickledGraph, pickle_graph
from dstreams.graph.plan import Plan, StreamGraph
from dstreams.monitoring.events import Event, EventHandler
from dstreams.sources.source import SourceEnvironment, SourceReader, SourceStorage, close_all
from dstreams.spark import jvm
from dstreams.spark.worker_python import require_shared, require_workers
from dstreams.state.state_versions import StateVersions
from dstreams.state.store_maintenance import open_store, require_encrypted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineConfig:
    """What a graph runs with.

    Args:
        directory: the checkpoint directory that the user has set, None for none.
        report: told of errors that no batch will meet.
        tell: told of each step of each batch.
        restarts: told how far a restart is, in words; nothing once it has ended.
        context: the streaming context, for functions that refer to it.
        given: settings that the user gave instead of those of the SparkConf.
        point: what to go on from, None for a new stream.
        classes: the classes of data that the program names.
    """

    spark: SparkContext
    clock: Clock
    settings: Settings
    directory: str | None
    report: Callable[[BaseException], None]
    tell: EventHandler
    context: object
    given: Settings | None = None
    point: RestorePoint | None = None
    classes: Classes = field(default_factory=Classes)
    restarts: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class CheckedGraph:
    """A graph that can run, as far as that is known before anything is opened or claimed.

    *url* and *pickled* are None where nothing of the stream, or not its graph, is to be durable.
    """

    graph: StreamGraph
    config: EngineConfig
    point: RestorePoint
    plan: Plan
    url: str | None
    pickled: PickledGraph | None

    def open(self) -> Engine:
        """Open and start the sources, and return what runs the batches of the graph.

        The graph that a restart finds is that of the last start that went well. A first one writes
        it down before its sources receive anything, and deletes it where they cannot be started;
        later ones when nothing can fail any more.

        Raises:
            CheckpointError: the checkpoint directory cannot be read or written, or holds something
                else; or another driver takes over the same stream.
            RestartError: the stream cannot go on.
            Exception: whatever a source raises; all of them are closed then.
        """
        if self.url is None:
            with ExitStack() as undo:
                engine = _opened(self.plan, self.point, self.config, None, undo)
                undo.pop_all()
                return engine
        return _open_durable(self, self.url)


def check_graph(graph: StreamGraph, config: EngineConfig) -> CheckedGraph:
    """Freeze *graph*, and look for all that can keep it from running; nothing is left behind.

    Raises:
        InvalidStreamError: as in :meth:`StreamGraph.freeze` and :func:`require_encrypted`, or
            something cannot be pickled.
        EnvironmentNotReadyError: as in :func:`require_workers` and :func:`require_shared`.
        CheckpointError: as in :func:`require_shared`.
    """
    point = config.point or _new_stream(graph, config.clock)
    base = config.directory or config.spark.getCheckpointDir()
    plan = graph.freeze(point.zero_ms, has_checkpoint_directory=base is not None)
    if plan.in_state_store():
        require_encrypted(config.spark, config.settings)
    require_workers(config.spark)
    # Spark's own directory alone does not ask for more than the state that needs one.
    has_state = bool(plan.checkpointed() or plan.in_state_store())
    is_durable = base is not None and (config.directory is not None or has_state)
    url = stream_url(base, point.stream_id) if base is not None and is_durable else None
    if base is not None and has_state:
        require_shared(config.spark, open_files(base))
    pickled = None if config.directory is None else pickle_graph(graph, config.context)
    return CheckedGraph(graph, config, point, plan, url, pickled)


def warn_of_refusals(graph: StreamGraph) -> None:
    """Say what a restart from the checkpoint directory will be refused for."""
    for stream in graph.inputs:
        refusal = stream.source.restart_refusal
        if refusal is not None:
            logger.warning(
                "this stream cannot go on from its checkpoint after a restart: %s: %s",
                stream.operation,
                refusal,
            )


def _new_stream(graph: StreamGraph, clock: Clock) -> RestorePoint:
    zero_ms = clock.now_ms() // graph.batch_ms * graph.batch_ms
    return RestorePoint(f"stream-{zero_ms}-{token_hex(4)}", zero_ms)


def _open_durable(checked: CheckedGraph, url: str) -> Engine:
    """Take the stream over, and open an engine that goes on where the run before has ended."""
    plan, point, config, pickled = checked.plan, checked.point, checked.config, checked.pickled
    is_first = config.point is None
    files = open_files(url) if is_first else require_trusted(open_files(url))
    operators = {plan.nodes[node].uid for node in (*plan.checkpointed(), *plan.in_state_store())}
    restart: RestartProgress | None = None
    with ExitStack() as undo:
        if not is_first:
            restart = RestartProgress(
                point.stream_id,
                config.clock,
                on_terminal=config.settings.shows_console_progress,
                says=config.restarts,
            )
            undo.callback(restart.close)
        log = TransactionLog.take_over(
            files, point.stream_id, config.clock.now_ms(), point.log, operators=operators
        )
        undo.callback(_give_up, log, is_first)
        require_stored_state(files, log.plan, operators)

        def write_graph() -> None:
            if pickled is not None:
                began = point.began_after(last_batch_ms(log.plan, plan))
                log.graph = write_graph_snapshot(
                    log.owned, point.stream_id, plan, pickled, config.spark, config.given, began
                )

        engine = _opened(plan, point, config, log, undo, write_graph if is_first else None, restart)
        undo.pop_all()
        undo.callback(engine.close)
        with jvm.rewriting_outputs(config.spark):
            _go_on(engine, point, log.owned, config.settings.catch_up)
        if not is_first:
            write_graph()
        if restart is not None:
            restart.catch_up(*engine.planner.behind())
        undo.pop_all()
    return engine


def _give_up(log: TransactionLog, is_first: bool) -> None:
    """Let a stream go that could not be started, as it was before; never raises."""
    try:
        if is_first:
            drop_graphs(log.owned.lease)
    except CheckpointError as error:
        logger.warning("the graph of a stream that could not be started is left: %s", error)
    log.give_up()


def _opened(
    plan: Plan,
    point: RestorePoint,
    config: EngineConfig,
    log: TransactionLog | None,
    undo: ExitStack,
    before_start: Callable[[], None] | None = None,
    restart: RestartProgress | None = None,
) -> Engine:
    """Open and start the sources, and return an engine that knows nothing of earlier runs.

    *before_start* is called once all sources are open, before the first one receives anything;
    *undo* gets what closes them.
    """
    environment = _environment(plan, config, log)
    readers: dict[InputDStream, SourceReader] = {}
    undo.callback(close_all, readers.values())
    for stream in plan.inputs:
        uid = plan.input_uids[stream]
        of_input = environment
        if log is not None:
            planned = list(planned_in(log.plan.begins, uid).values())
            of_input = replace(
                environment,
                storage=SourceStorage(log.files, point.stream_id, uid, log.epoch),
                newest=planned[-1] if planned else None,
                past=partial(log.past, uid),
            )
        readers[stream] = stream.source.open(of_input)
    rates = limit_rates(readers, config.settings, plan.batch_ms)
    if before_start is not None:
        before_start()
    for reader in readers.values():
        reader.start()

    def tell(event: Event) -> None:
        rates.observe(event)
        if restart is not None:
            restart.observe(event)
        config.tell(event)

    states = None
    if log is not None and plan.in_state_store():
        store = open_store(log.files, log.epoch, config.settings, config.classes)
        states = StateVersions(
            config.spark,
            store,
            point.stream_id,
            is_local_temporary=config.settings.state_local_directory is None,
        )
    history = History(plan, config.spark, unpersist=config.settings.unpersist, states=states)
    engine = Engine(
        plan,
        history,
        readers,
        log,
        config.clock,
        tell,
        point.stream_id,
        stops_on_failure=config.settings.on_failure == "stop",
        rates=rates,
        restart=restart,
    )
    if log is not None:
        log.begin_inputs(engine.ends, plan.zero_ms)
    return engine


def _environment(plan: Plan, config: EngineConfig, log: TransactionLog | None) -> SourceEnvironment:
    begun = () if log is None else log.plan.begins
    return SourceEnvironment(
        config.spark,
        config.clock,
        config.settings,
        # A batch that was begun before an input was added has nothing of it.
        plan.batch_upto(max([plan.zero_ms, *begun])),
        config.report,
        plan.batch_ms,
        config.tell,
    )


def _go_on(engine: Engine, point: RestorePoint, owned: OwnedStream, catch_up: CatchUp) -> None:
    """Give an engine that has run nothing what an earlier run left."""
    committer = engine.committer
    if committer is None:
        return
    resumption = replay(
        point,
        owned,
        engine.plan,
        engine.history,
        engine.readers,
        committer.commit_between,
        SILENT if engine.restart is None else engine.restart.progress,
    )
    if resumption is None:
        return
    for node, time_ms in resumption.restorable:
        committer.snapshots.mark_restorable(node, time_ms)
    engine.planner.resume(resumption.last_ms, resumption.begins, resumption.in_flight)
    if catch_up != "all":
        engine.planner.leave_out_missed()
