"""What a checkpoint directory has for a restart: found, read and judged; nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark import SparkContext

from checkpoint import (
    CheckpointError,
    Files,
    GraphSnapshot,
    RecoveryPlan,
    StreamLog,
    began_ms,
    newest_stream,
    open_files,
    open_stream,
    plan_recovery,
    read_graph,
    read_log,
    read_newest_graph,
    read_plan,
    require_trusted,
    stream_ids,
    without_secrets,
)
from dstreams.common.durations import batch_datetime
from dstreams.engine.recovery.compatibility import RestoreReport, begins_anew, compare_graphs
from dstreams.engine.recovery.graph_snapshot import conf_of, describe_plan
from dstreams.engine.recovery.restore_point import RestorePoint
from dstreams.engine.recovery.spark_checkpoint import require_no_stream_of_spark
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.graph.plan import StreamGraph
from dstreams.spark.context import context_like

_RUN = re.compile(r"(stream-[^/]+)/")
_OF_SPARK = re.compile(r"checkpoint-\d+(\.bk)?")


@dataclass(frozen=True)
class FoundStream:
    """A stream that a restart can go on with: its newest graph, and its records."""

    files: Files
    zero_ms: int
    snapshot: GraphSnapshot
    recovery: RecoveryPlan
    log: StreamLog

    @property
    def description(self) -> dict[str, Any]:
        """What the snapshot says of the graph."""
        return dict(self.snapshot.description)

    def restore_point(self, added: frozenset[str] | None = None) -> RestorePoint:
        """Return what a start goes on from, in its own graph or in one that has added streams."""
        began = {
            operator["uid"]: operator["began_after_ms"]
            for operator in self.description["operators"]
            if operator.get("began_after_ms") is not None
        }
        return RestorePoint(self.snapshot.stream_id, self.zero_ms, added, began, self.log)

    def trusted(self) -> FoundStream:
        """Return it from files that look again at what they open, before its code is run.

        Raises:
            RestartError: others can write there.
        """
        try:
            files = require_trusted(self.files)
            return replace(self, files=files, snapshot=read_graph(files, self.snapshot.record_id))
        except (CheckpointError, FileNotFoundError) as error:
            raise RestartError(f"{self.files.url} cannot be taken up: {error}") from error

    def require_same_places(self, graph: StreamGraph) -> None:
        """Refuse its own graph where that would read files elsewhere now.

        Raises:
            RestartError: a path that is no absolute one means another directory in this process.
        """
        plan = graph.freeze(self.zero_ms, has_checkpoint_directory=True)
        inputs = {part["uid"]: part.get("place") for part in self.description["inputs"]}
        for stream, uid in plan.input_uids.items():
            was, place = inputs.get(uid), stream.source.place
            if None not in (was, place) and was != place:
                raise RestartError(
                    f"{stream.operation} read {was}, and would read {place} now, where the same "
                    "files would count again; start in the directory in which it was started "
                    "first, and give absolute paths to new streams"
                )

    def compare(
        self, graph: StreamGraph, spark: SparkContext, allow_removed: tuple[str, ...]
    ) -> tuple[RestoreReport, RestorePoint]:
        """Say what becomes of it in another graph, and return what that graph goes on from.

        Raises:
            InvalidStreamError: the graph cannot run.
        """
        plan = graph.freeze(self.zero_ms, has_checkpoint_directory=True)
        now = describe_plan(plan, spark.getConf())
        report = compare_graphs(
            self.description, now, plan, self.recovery, self.snapshot.stream_id, allow_removed
        )
        return report, self.restore_point(begins_anew(self.description, now, plan))


def find_stream(directory: str) -> FoundStream | None:
    """Find the newest stream of a checkpoint directory; None when nothing was left there.

    Raises:
        InvalidStreamError: *directory* is no path, or cannot be used.
        RestartError: what is there cannot be taken up: it is damaged, or of something else.
    """
    if not isinstance(directory, str) or not directory:
        raise InvalidStreamError(f"checkpointPath must be a path or URL, got {directory!r}")
    try:
        files = open_files(directory)
        newest = newest_stream(stream_ids(files), partial(open_stream, directory))
    except (CheckpointError, ValueError) as error:
        raise InvalidStreamError(
            f"the checkpoint directory {without_secrets(directory)!r} cannot be used: {error}"
        ) from error
    if newest is None:
        _require_nothing(directory, files)
        return None
    stream_id, files = newest
    try:
        log = read_log(files)
        recovery = plan_recovery(log)
        snapshot = read_newest_graph(files, recovery.graph, log.lineage)
    except CheckpointError as error:
        raise _cannot_be_taken_up(directory, error) from error
    if snapshot is None:
        raise RestartError(f"{files.url} has a graph, and it does not count; begin anew")
    return FoundStream(files, began_ms(stream_id), snapshot, recovery, log)


def require_restartable(graph: StreamGraph) -> None:
    """Refuse a graph of which an input cannot go on.

    Raises:
        RestartError: there is one; it is named.
    """
    for stream in graph.inputs:
        refusal = stream.source.restart_refusal
        if refusal is not None:
            raise RestartError(f"{stream.operation} cannot go on after a restart: {refusal}")


@contextmanager
def spark_for(description: Mapping[str, Any]) -> Iterator[SparkContext]:
    """Give the SparkContext of this process, or make one as *description* says of the earlier run.

    A context that was made is stopped where the block fails: nobody else knows of it.
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


def _require_nothing(directory: str, files: Files) -> None:
    """Refuse a directory in which there is something that cannot be taken up."""
    try:
        require_no_stream_of_spark(files)
        names = files.list("")
        runs = sorted({match[1] for match in map(_RUN.match, names) if match})
        plans = [(run, read_plan(open_stream(directory, run)).last_ms) for run in runs]
    except CheckpointError as error:
        raise _cannot_be_taken_up(directory, error) from error
    committed = [(last_ms, run) for run, last_ms in plans if last_ms is not None]
    if committed:
        newest, run = max(committed)
        raise _nothing_to_go_on_with(
            directory,
            f"{run}, with state up to the batch at {newest} ms ({batch_datetime(newest)})",
        )
    # A driver that did not come to its first batch left a claim, and what its inputs begin with.
    nothing = ("/epochs/", "/inputs/", "/rdds/")
    others = [
        name
        for name in names
        if _RUN.match(name)
        and ("/batches/" in name or not any(directory in name for directory in nothing))
    ]
    if others:
        run = others[-1].partition("/")[0]
        raise _nothing_to_go_on_with(directory, f"{run}, without committed state")
    of_spark = [name for name in names if _OF_SPARK.fullmatch(name)]
    if of_spark:
        raise RestartError(
            f"the checkpoint directory {directory!r} holds {of_spark[-1]}, a checkpoint of Spark's "
            "own streaming, which cannot be read here; begin without that state by "
            "createOnError=True, by another directory, or by removing this one"
        )


def _nothing_to_go_on_with(directory: str, found: str) -> RestartError:
    return RestartError(
        f"the checkpoint directory {without_secrets(directory)!r} holds {found}, and no graph to "
        "go on with: it is lost, or ssc.checkpoint(directory) was not called for the context that "
        "wrote there; restore what is lost from a copy or an export, or begin anew in another "
        "directory: what dstreams checkpoint read shows of the state can be its initial state"
    )


def _cannot_be_taken_up(directory: str, why: object) -> RestartError:
    return RestartError(
        f"the checkpoint directory {without_secrets(directory)!r} cannot be taken up: {why}"
    )


@contextmanager
def spark_of_setup(*, is_kept: bool) -> Iterator[None]:
    """Stop the SparkContext that is made in the block, unless that goes well and it is kept."""
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
