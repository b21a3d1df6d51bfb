"""Finding a stream to resume in a checkpoint directory; nothing is changed.

Every record is read once, and the graph is unpickled once. A missing or damaged file is an error
that names it: no restart begins from less than was committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from pyspark import SparkContext

from checkpoint import (
    CheckpointError,
    Files,
    GraphSnapshot,
    RecoveryPlan,
    StreamLog,
    began_ms,
    newest_driver,
    newest_stream,
    open_existing,
    open_files,
    open_stream,
    plan_recovery,
    read_ahead,
    read_log,
    read_newest_graph,
    read_plan,
    require_trusted,
    stream_ids,
    stream_url,
    without_secrets,
)
from checkpoint.state_store import Classes, class_problems
from dstreams.common.durations import batch_datetime
from dstreams.common.settings import Settings
from dstreams.engine.recovery.compatibility import RestoreReport, added_uids, compare_graphs
from dstreams.engine.recovery.graph_snapshot import (
    GraphPayload,
    conf_of,
    decode_payload,
    describe_plan,
    read_graph_payload,
)
from dstreams.engine.recovery.spark_checkpoint import SPARK_GRAPH
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.graph.plan import StreamGraph
from dstreams.spark.spark_context import context_like

_STREAM = re.compile(r"(stream-[^/]+)/")
ADOPTS = "adopts"
"""Fact of a driver that only adopts a checkpoint of Spark: the location of that one."""

_WITHOUT_BATCH = ("/epochs/", "/inputs/", "/rdds/")
"""Files of a driver that ended before its first batch."""


@dataclass(frozen=True)
class Program:
    """The streams that a program has defined; *given* as in :class:`EngineConfig`."""

    graph: StreamGraph
    spark: SparkContext
    settings: Settings
    context: object
    classes: Classes
    given: Settings | None = None


@dataclass(frozen=True)
class RecoveredStream:
    """A stream of earlier runs, as its checkpoint describes it.

    Args:
        files: its directory, which no other user can write to.
        records: the state and the batches that a restart begins with.
        log: the records that this was read from.
        added: uids of the nodes that its graph lacks; None for its own graph.
    """

    files: Files
    zero_ms: int
    snapshot: GraphSnapshot
    records: RecoveryPlan
    log: StreamLog
    added: frozenset[str] | None = None

    @property
    def stream_id(self) -> str:
        """The id of the stream."""
        return self.snapshot.stream_id

    @property
    def description(self) -> dict[str, Any]:
        """The description of its graph."""
        return dict(self.snapshot.description)

    @cached_property
    def payload(self) -> GraphPayload:
        """Its pickled graph and settings."""
        return decode_payload(self.files, self.snapshot)

    def added_after(self, last_ms: int) -> dict[str, int]:
        """Return the batch after which each node was added that the first graph lacked, by uid."""
        earlier = {
            operator["uid"]: operator["began_after_ms"]
            for operator in self.description["operators"]
            if operator.get("began_after_ms") is not None
        }
        return {**earlier, **dict.fromkeys(self.added or (), last_ms)}

    def graph(self, spark: SparkContext, context: object) -> StreamGraph:
        """Unpickle its graph, which runs code of the program, and check its inputs."""
        graph = read_graph_payload(self.files, self.snapshot, self.payload, spark, context)
        places = {part["uid"]: part.get("place") for part in self.description["inputs"]}
        for stream, uid in graph.draft().input_uids.items():
            refusal = stream.source.restart_refusal
            if refusal is not None:
                raise RestartError(f"{stream.operation} cannot be resumed: {refusal}")
            was, place = places.get(uid), getattr(stream.source, "place", None)
            if None not in (was, place) and was != place:
                raise RestartError(
                    f"{stream.operation} read {was}, and would read {place} now, where the same "
                    "files would count again; start in the directory in which it was started "
                    "first, and give absolute paths to new streams"
                )
        return graph

    def compare(
        self,
        graph: StreamGraph,
        spark: SparkContext,
        allow_removed: tuple[str, ...],
        classes: Classes | None = None,
    ) -> tuple[RestoreReport, RecoveredStream]:
        """Report the effects of another graph on its state; return the stream for that graph.

        With *classes*, the report includes instances in the state that they cannot restore.
        """
        plan = graph.freeze(self.zero_ms, has_checkpoint_directory=True)
        now = describe_plan(plan, spark.getConf())
        report = compare_graphs(
            self.description, now, plan, self.records, self.stream_id, allow_removed
        )
        if classes is not None:
            kept = set(report.kept)
            problems = class_problems(self.log.files, self.records, classes, kept)
            report = replace(report, refusals=(*report.refusals, *problems))
        return report, replace(self, added=added_uids(self.description, now, plan))


def recover(
    directory: str, *, adopts: bool = False, creates: bool = True
) -> RecoveredStream | None:
    """Read the newest stream of a checkpoint directory; None if nothing was left there.

    With *adopts*, an adoption that was interrupted counts as nothing. Without *creates*, nothing is
    written. Raises RestartError if the stream cannot be resumed: it is damaged, others can write to
    it, or it is not of dstreams.
    """
    if not isinstance(directory, str) or not directory:
        raise InvalidStreamError(f"checkpointPath must be a path or URL, got {directory!r}")
    opened = open_files if creates else open_existing
    try:
        files = opened(directory)
        newest = newest_stream(
            stream_ids(files),
            lambda stream_id: read_ahead(opened(stream_url(directory, stream_id))),
        )
    except FileNotFoundError:
        return None
    except (CheckpointError, ValueError) as error:
        raise InvalidStreamError(
            f"the checkpoint directory {without_secrets(directory)!r} cannot be used: {error}"
        ) from error
    if newest is None:
        _require_empty(directory, files, adopts=adopts)
        return None
    stream_id, ahead = newest
    try:
        files = require_trusted(ahead.inner)
        log = read_log(replace(ahead, inner=files))
        records = plan_recovery(log)
        snapshot = read_newest_graph(log.files, records.graph, log.lineage)
    except (CheckpointError, FileNotFoundError) as error:
        raise _not_resumable(directory, error) from error
    if snapshot is None:
        raise RestartError(
            f"{files.url} has only a graph that was superseded; start in another directory"
        )
    return RecoveredStream(files, began_ms(stream_id), snapshot, records, log)


def interrupted_adoptions(directory: str, streams: Iterable[str]) -> dict[str, str]:
    """Return those of the *streams* without a graph that adopt a checkpoint of Spark, and which."""
    drivers = {one: newest_driver(open_stream(directory, one)) for one in streams}
    return {
        one: driver.facts[ADOPTS]
        for one, driver in drivers.items()
        if driver is not None and ADOPTS in driver.facts
    }


def _require_empty(directory: str, files: Files, *, adopts: bool) -> None:
    """Raise if a directory without a graph has something that a new stream would ignore."""
    try:
        require_no_stream_of_spark(files)
        names = files.list("")
        streams = sorted({match[1] for match in map(_STREAM.match, names) if match})
        interrupted = interrupted_adoptions(directory, streams)
        if interrupted and not adopts:
            [(stream_id, spark), *_] = interrupted.items()
            raise RestartError(
                f"the adoption of {spark} into the checkpoint directory "
                f"{without_secrets(directory)!r} was interrupted; start with adopt= (dstreams run "
                f"--adopt) again, which replaces what is there, or delete {stream_id} there to "
                "start from scratch"
            )
        streams = [one for one in streams if one not in interrupted]
        ends = [(read_plan(open_stream(directory, one)).last_ms, one) for one in streams]
    except CheckpointError as error:
        raise _not_resumable(directory, error) from error
    committed = [(last_ms, stream_id) for last_ms, stream_id in ends if last_ms is not None]
    begun = [
        name
        for name in names
        if name.partition("/")[0] in streams
        and ("/batches/" in name or not any(part in name for part in _WITHOUT_BATCH))
    ]
    if committed:
        last_ms, stream_id = max(committed)
        state = f"with state up to the batch at {last_ms} ms ({batch_datetime(last_ms)})"
        raise _without_graph(directory, f"{stream_id}, {state}")
    if begun:
        raise _without_graph(directory, f"{begun[-1].partition('/')[0]}, without committed state")


def _without_graph(directory: str, found: str) -> RestartError:
    return RestartError(
        f"the checkpoint directory {without_secrets(directory)!r} has {found}, but no graph to "
        "resume: it was lost, or ssc.checkpoint(directory) was not called for the context that "
        "wrote there; restore it from a copy or an export, or start in another directory: what "
        "dstreams checkpoint read shows of the state can be its initial state"
    )


def _not_resumable(directory: str, why: object) -> RestartError:
    return RestartError(
        f"cannot resume from the checkpoint directory {without_secrets(directory)!r}: {why}"
    )


# Checkpoints of Spark itself -----------------------------------------------------------------


_ELSEWHERE = (
    "dstreams writes nothing there; give another directory, and take over its state and offsets "
    "with"
)
_ADOPT_QUERY = f"{_ELSEWHERE} StreamSession.adopt"
_ADOPT_STREAM = (
    f"{_ELSEWHERE} StreamingContext.restore(directory, setup, adopt=SPARK_CHECKPOINT) or dstreams "
    "run --adopt SPARK_CHECKPOINT"
)


def require_no_query_of_spark(files: Files) -> None:
    """Refuse the checkpointLocation of a query of pyspark.sql.streaming."""
    if files.exists("metadata") and (offsets := files.list("offsets/")):
        raise RestartError(
            f"{files.url} is the checkpoint of a query of Spark itself, up to {offsets[-1]}: "
            f"{_ADOPT_QUERY}"
        )


def require_no_stream_of_spark(files: Files) -> None:
    """Refuse the checkpoint directory of a StreamingContext of pyspark.streaming."""
    graphs = [name for name in files.list("checkpoint-") if SPARK_GRAPH.fullmatch(name)]
    if graphs:
        raise RestartError(
            f"{files.url} is the checkpoint of a stream of pyspark.streaming, with {graphs[-1]}: "
            f"{_ADOPT_STREAM}"
        )


# The SparkContext ----------------------------------------------------------------------------


@contextmanager
def spark_for(description: Mapping[str, Any]) -> Iterator[SparkContext]:
    """Yield the active SparkContext, or create one with the settings of the earlier run.

    A SparkContext that was created is stopped if the block fails.
    """
    active = SparkContext._active_spark_context
    if active is not None:
        yield active
        return
    spark = context_like(partial(conf_of, description))
    try:
        yield spark
    except BaseException:
        spark.stop()
        raise


@contextmanager
def spark_of_setup(*, is_kept: bool) -> Iterator[None]:
    """Stop the SparkContext that the block creates if the block fails, or unless it *is_kept*."""
    before = SparkContext._active_spark_context
    try:
        yield
    except BaseException:
        is_kept = False
        raise
    finally:
        made = SparkContext._active_spark_context
        if not is_kept and made is not None and made is not before:
            made.stop()
