"""Opening a graph: from what a program has defined to an engine that can run its batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex

from pyspark import SparkContext

from checkpoint import open_files
from dstreams.clock import Clock
from dstreams.events import Event, Tell
from dstreams.graph.history import History
from dstreams.graph.input import InputDStream
from dstreams.graph.plan import Plan, StreamGraph
from dstreams.runtime.durability import StateDurability
from dstreams.runtime.engine import Engine
from dstreams.runtime.rate_control import RateControl, limit_rates
from dstreams.runtime.state_stores import open_states
from dstreams.settings import Settings
from dstreams.sources.source import SourceEnvironment, SourceReader, close_all


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
    """

    spark: SparkContext
    clock: Clock
    settings: Settings
    directory: str | None
    report: Callable[[BaseException], None]
    tell: Tell


def open_engine(graph: StreamGraph, around: Surroundings) -> Engine:
    """Freeze *graph*, open and start its sources, and return what runs its batches.

    Raises:
        InvalidStreamError: as in :meth:`StreamGraph.freeze`.
        Exception: whatever a source raises; all of them are closed then.
    """
    zero_ms = around.clock.now_ms() // graph.batch_ms * graph.batch_ms
    base = around.directory or around.spark.getCheckpointDir()
    plan = graph.freeze(zero_ms, has_checkpoint_directory=base is not None)
    # A run of its own: nothing of an earlier run on this directory is read or overwritten.
    run_id = f"stream-{plan.zero_ms}-{token_hex(4)}"
    url = None if base is None else f"{base.rstrip('/')}/{run_id}"
    # Spark's own directory alone does not ask for more than the state that needs one.
    has_state = bool(plan.checkpointed() or plan.stored())
    is_asked = around.directory is not None or has_state
    environment = SourceEnvironment(
        around.spark,
        around.clock,
        around.settings,
        graph.batch_ms,
        around.report,
        run_id=run_id,
        open_files=partial(open_files, url) if url is not None and is_asked else None,
        zero_ms=zero_ms,
        tell=around.tell,
    )
    readers, rates = _open_readers(plan, environment)

    def tell(event: Event) -> None:
        rates.observe(event)
        around.tell(event)

    states = open_states(plan, run_id, url, around.settings)
    history = History(plan, around.spark, unpersist=around.settings.unpersist, states=states)
    durability = None
    if url is not None and has_state:
        durability = StateDurability(open_files(url), run_id, plan, around.spark)
    return Engine(plan, history, readers, durability, around.clock, tell, run_id)


def _open_readers(
    plan: Plan, environment: SourceEnvironment
) -> tuple[Mapping[InputDStream, SourceReader], RateControl]:
    readers: dict[InputDStream, SourceReader] = {}
    try:
        for stream in plan.inputs:
            uid = f"{stream.operation.split(' ', 1)[0]}-{stream.stream_id}"
            readers[stream] = stream.source.open(replace(environment, uid=uid))
        rates = limit_rates(readers, environment.settings, environment.batch_ms)
        for reader in readers.values():
            reader.start()
    except BaseException:
        close_all(readers.values())
        raise
    return readers, rates
