"""A queue of batches as a source, for tests, notebooks and demonstrations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from reprlib import repr as short
from typing import Any, TypeAlias, cast

from pyspark import RDD, SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment, SourceReader

Batch: TypeAlias = "RDD[Any] | Sequence[Any]"
"""An RDD, or records in memory."""


@dataclass(frozen=True, eq=False)
class QueueSource(Source):
    """Batches from a queue, in order, each item once.

    The constructor copies the queue and its items; later changes have no effect. After a restart
    only a *replayable* queue still has its items.

    Args:
        queue: RDDs, iterables of records, or None for "no RDD".
        one_at_a_time: read one item per batch; otherwise the first batch reads all items.
        default: RDD or iterable for batches after the last item; None is an empty RDD without
            partitions.
        replayable: items are lists of records, which are pickled with the graph.

    Raises:
        InvalidStreamError: *queue* is not iterable, an item or *default* is neither an RDD nor an
            iterable of records, or a *replayable* queue has an RDD.

    Semantics: Spark's QueueInputDStream, with the item types of pyspark.streaming.
    """

    queue: Iterable[RDD[Any] | Iterable[Any] | None]
    one_at_a_time: bool = True
    default: RDD[Any] | Iterable[Any] | None = None
    replayable: bool = False

    def __post_init__(self) -> None:
        items = [
            None if item is None else _in_memory(_require_batch(item, f"item {position} of queue"))
            for position, item in enumerate(_require_iterable(self.queue, "queue"))
        ]
        if self.replayable and any(isinstance(item, RDD) for item in items):
            raise InvalidStreamError(
                "a replayable queueStream takes lists of records, got an RDD; collect() it first"
            )
        object.__setattr__(self, "queue", items)
        if self.default is not None:
            records = _in_memory(_require_batch(self.default, "default"))
            object.__setattr__(self, "default", records)

    @property
    def name(self) -> str:
        return "queueStream"

    @property
    def restart_refusal(self) -> str | None:
        if self.replayable:
            return None
        return (
            "the items of a queue are lost with their driver; pass lists of records and "
            "replayable=True"
        )

    def end_after(self, batches: int) -> int:
        """Return the number of items that so many batches read, as in Spark one after another."""
        count = len(cast("list[Batch | None]", self.queue))
        return min(batches, count) if self.one_at_a_time or not batches else count

    def open(self, environment: SourceEnvironment) -> QueueReader:
        return QueueReader(self, environment)

    def __reduce__(self) -> Any:
        """Pickle without items that a restart could not use."""
        if self.replayable:
            return QueueSource, (self.queue, self.one_at_a_time, self.default, True)
        return QueueSource, ([], self.one_at_a_time)


class QueueReader(SourceReader):
    """Reads a queue; an offset counts its items."""

    def __init__(self, source: QueueSource, environment: SourceEnvironment) -> None:
        self._queue = cast("list[Batch | None]", source.queue)
        self._one_at_a_time = source.one_at_a_time
        self._default = cast("Batch | None", source.default)
        self._spark = environment.spark

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        first, count = int(start or 0), len(self._queue)
        end = min(first + 1, count) if self._one_at_a_time else count
        batches = self.batches(start, end)
        records = 0 if batches is None else count_records(batches)
        if end == first:
            default = "" if self._default is None else ": default"
            return PlannedInput(time_ms, start, start, {}, records, f"queue is empty{default}")
        what = f"item {first}" if end - first == 1 else f"items {first} to {end - 1}"
        description = f"queue {what}{': no RDD' if batches is None else ''}"
        return PlannedInput(time_ms, start, end, {}, records, description)

    def batches(self, start: Any, end: Any) -> tuple[Batch, ...] | None:
        """Return the items between two offsets, None for no RDD."""
        items = self._queue[int(start or 0) : int(end or 0)]
        if not items:
            return () if self._default is None else (self._default,)
        return join_neighbours([item for item in items if item is not None]) or None

    def read(self, planned: PlannedInput) -> RDD[Any] | None:
        batches = self.batches(planned.start, planned.end)
        return None if batches is None else united(self._spark, batches)


def united(
    spark: SparkContext, batches: Iterable[Batch], partitions: int | None = None
) -> RDD[Any]:
    """Return the records of all batches in order; *partitions* applies to records in memory."""
    rdds = [
        batch if isinstance(batch, RDD) else spark.parallelize(batch, partitions)
        for batch in batches
    ]
    if not rdds:
        return spark.emptyRDD()
    return rdds[0] if len(rdds) == 1 else spark.union(rdds)


def _require_iterable(value: object, name: str) -> Iterable[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        kind = type(value).__name__
        raise InvalidStreamError(
            f"{name} of queueStream must be an iterable, got {short(value)} ({kind})"
        )
    return value


def _require_batch(value: object, name: str) -> RDD[Any] | Iterable[Any]:
    """Reject what is not a batch; also strings, whose records would be characters."""
    if isinstance(value, RDD):
        return value
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        kind = type(value).__name__
        raise InvalidStreamError(
            f"{name} of queueStream must be an RDD or an iterable of records, got {short(value)} "
            f"({kind}); write [{short(value)}] for a batch of one record"
        )
    return value


def _in_memory(batch: RDD[Any] | Iterable[Any]) -> Batch:
    """Copy the records, so that a batch stays the same if the caller changes them."""
    return batch if isinstance(batch, RDD | range) else list(batch)


def join_neighbours(batches: Iterable[Batch]) -> tuple[Batch, ...]:
    """Concatenate adjacent lists: fewer partitions, the same order."""
    joined: list[Batch] = []
    for are_rdds, run in groupby(batches, lambda batch: isinstance(batch, RDD)):
        members = list(run)
        if are_rdds or len(members) == 1:
            joined.extend(members)
        else:
            joined.append(list(chain.from_iterable(cast("list[Sequence[Any]]", members))))
    return tuple(joined)


def count_records(batches: Iterable[Batch]) -> int | None:
    """Return the number of records, None if counting them would take a job."""
    count = 0
    for batch in batches:
        if isinstance(batch, RDD):
            return None
        count += len(batch)
    return count
