"""Opening a graph: from what a program has defined to an engine that can run its batches."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex  # noqa: TID251

import pyspark
from pyspark import SparkContext

from checkpoint import (
    CheckpointError,
    DriverProcess,
    Files,
    OwnedStream,
    drop_graphs,
    open_files,
    require_trusted,
    stream_url,
    take_over,
)
from checkpoint.state_store import Classes, require_stored_state
from dstreams.clock import Clock
from dstreams.events import Event, Tell
from dstreams.faults import fault
from dstreams.graph.history import History
from dstreams.graph.input import InputDStream
from dstreams.graph.pickling import pickle_graph
from dstreams.graph.plan import Plan, StreamGraph
from dstreams.kernel.state_versions import StateVersions
from dstreams.kernel.store_upkeep import open_store
from dstreams.rdd import jvm
from dstreams.rdd.worker_python import require_workers
from dstreams.recovery.graph_snapshot import write_snapshot
from dstreams.recovery.replay import EarlierRun, last_batch_ms, resume
from dstreams.settings import Settings
from dstreams.sources.source import (
    SourceEnvironment,
    SourceReader,
    close_all,
    restart_refusal,
)
from dstreams.streams.clean_up import retiring_readers
from dstreams.streams.durability import StreamDurability
from dstreams.streams.engine import Engine
from dstreams.streams.rate_control import RateControl, limit_rates

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """What a graph runs in.

    Args:
        spark: the context.
        clock: the driver's clock.
        settings: settings of the streaming context.
        directory: the checkpoint directory that the user has set, None for none.
        report: told of errors that no batch will meet.
        tell: told of each step of each batch.
        context: the streaming context, for functions that refer to it.
        given: settings that the user gave instead of those of the SparkConf.
        earlier: the run to go on from, None for a new stream.
        classes: the classes of data that the program names.
    """

    spark: SparkContext
    clock: Clock
    settings: Settings
    directory: str | None
    report: Callable[[BaseException], None]
    tell: Tell
    context: object
    given: Settings | None = None
    earlier: EarlierRun | None = None
    classes: Classes = field(default_factory=Classes)


def open_engine(graph: StreamGraph, around: Surroundings) -> Engine:
    """Freeze *graph*, open and start its sources, and return what runs its batches.

    The graph that a restart finds is that of the last start that went well. A first one writes it
    down before its sources receive anything, and deletes it where they cannot be started; later
    ones when nothing can fail any more.

    Raises:
        InvalidStreamError: as in :meth:`StreamGraph.freeze`, or something cannot be pickled.
        EnvironmentNotReadyError: as in :func:`require_workers`.
        CheckpointError: the checkpoint directory cannot be read or written, or holds something
            else; or another driver takes over the same stream.
        RestartError: the stream cannot go on.
        Exception: whatever a source raises; all of them are closed then.
    """
    now_ms = around.clock.now_ms()
    zero_ms = now_ms // graph.batch_ms * graph.batch_ms
    if around.earlier is not None:
        zero_ms = around.earlier.zero_ms
    base = around.directory or around.spark.getCheckpointDir()
    plan = graph.freeze(zero_ms, has_checkpoint_directory=base is not None)
    require_workers(around.spark)
    earlier = around.earlier or EarlierRun(f"stream-{zero_ms}-{token_hex(4)}", zero_ms)
    url = None if base is None else stream_url(base, earlier.stream_id)
    # Spark's own directory alone does not ask for more than the state that needs one.
    has_state = bool(plan.checkpointed() or plan.in_state_store())
    if url is None or (around.directory is None and not has_state):
        return _opened(plan, earlier, around, None, None)
    pickled = None if around.directory is None else pickle_graph(graph, around.context)
    is_first = around.earlier is None
    files = open_files(url) if is_first else require_trusted(open_files(url))
    owned = _take_over(files, earlier, around)

    def write_graph() -> None:
        if pickled is not None:
            began = earlier.began_after(last_batch_ms(owned.plan, plan))
            spark, given = around.spark, around.given
            durability.graph = write_snapshot(
                owned, earlier.stream_id, plan, pickled, spark, given, began
            )

    try:
        durability = StreamDurability(owned, earlier.stream_id, plan)
        require_stored_state(files, owned.plan, durability.uids)
        before_start = write_graph if is_first else _nothing
        engine = _opened(plan, earlier, around, durability, files, before_start)
    except BaseException:
        _leave(owned, is_first)
        raise
    try:
        with jvm.rewriting_outputs(around.spark):
            resume(engine, durability, earlier, around.settings.missed_batches)
        if not is_first:
            write_graph()
    except BaseException:
        engine.close()
        raise
    return engine


def _nothing() -> None:
    pass


def warn_of_refusals(graph: StreamGraph) -> None:
    """Say what a restart from the checkpoint directory will be refused for."""
    for stream in graph.inputs:
        refusal = restart_refusal(stream.source)
        if refusal is not None:
            logger.warning(
                "this stream cannot go on from its checkpoint after a restart: %s: %s",
                stream.operation,
                refusal,
            )


def _leave(owned: OwnedStream, is_first: bool) -> None:
    """Let a stream go that could not be started, as it was before; never raises."""
    try:
        if is_first:
            drop_graphs(owned.lease)
    except CheckpointError as error:
        logger.warning("the graph of a stream that could not be started is left: %s", error)
    owned.lease.give_up()


def _opened(
    plan: Plan,
    earlier: EarlierRun,
    around: Surroundings,
    durability: StreamDurability | None,
    files: Files | None,
    before_start: Callable[[], None] = _nothing,
) -> Engine:
    """Open the sources, and return an engine that knows nothing of earlier runs."""
    environment = _environment(plan, earlier, around, durability, files)
    readers, rates = _open_readers(plan, environment, before_start)
    tell_others = around.tell

    def tell(event: Event) -> None:
        rates.observe(event)
        tell_others(event)

    epoch = 1 if durability is None else durability.owned.epoch
    states = None
    if files is not None and plan.in_state_store():
        store = open_store(files, epoch, around.settings, around.classes)
        states = StateVersions(around.spark, store, earlier.stream_id)
    history = History(plan, around.spark, unpersist=around.settings.unpersist, states=states)
    engine = Engine(
        plan,
        history,
        readers,
        durability,
        around.clock,
        tell,
        earlier.stream_id,
        stops_on_failure=around.settings.on_failure == "stop",
    )
    try:
        if durability is not None:
            durability.begin_inputs(retiring_readers(plan, readers))
    except BaseException:
        close_all(readers.values())
        raise
    return engine


def _take_over(files: Files, earlier: EarlierRun, around: Surroundings) -> OwnedStream:
    """Claim the stream."""
    facts = {"python": platform.python_version(), "pyspark": pyspark.__version__}
    driver = DriverProcess.of_this_process(around.clock.now_ms(), facts)
    owned = take_over(files, earlier.stream_id, driver, earlier.log)
    fault("rec.fence")
    return owned


def _environment(
    plan: Plan,
    earlier: EarlierRun,
    around: Surroundings,
    durability: StreamDurability | None,
    files: Files | None,
) -> SourceEnvironment:
    environment = SourceEnvironment(
        around.spark,
        around.clock,
        around.settings,
        plan.batch_ms,
        around.report,
        run_id=earlier.stream_id,
        zero_ms=plan.zero_ms,
        tell=around.tell,
    )
    if durability is None or files is None:
        return environment
    return replace(
        environment,
        open_files=lambda: files,
        epoch=durability.owned.epoch,
        past=durability.inputs.past,
    )


def _open_readers(
    plan: Plan, environment: SourceEnvironment, before_start: Callable[[], None]
) -> tuple[Mapping[InputDStream, SourceReader], RateControl]:
    readers: dict[InputDStream, SourceReader] = {}
    try:
        for stream in plan.inputs:
            uid = plan.input_uids[stream]
            readers[stream] = stream.source.open(replace(environment, uid=uid))
        rates = limit_rates(readers, environment.settings, environment.batch_ms)
        before_start()
        for reader in readers.values():
            reader.start()
    except BaseException:
        close_all(readers.values())
        raise
    return readers, rates
