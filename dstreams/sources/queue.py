"""A queue of batches as a source: the input of tests, notebooks and demonstrations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from reprlib import repr as short
from typing import Any, TypeAlias, cast

from pyspark import RDD

from checkpoint import INPUT_END, INPUT_START
from dstreams.errors import InvalidStreamError
from dstreams.sources.source import PlannedInput, SourceEnvironment

_Batch: TypeAlias = "RDD[Any] | Sequence[Any]"


@dataclass(frozen=True, eq=False)
class QueueSource:
    """Batches taken from a queue, in order, each item once.

    The queue and its items are copied once, here: what the caller does to them later is not seen.
    After a restart the items are gone with the driver that had them; only a *replayable* queue has
    them again.

    Args:
        queue: RDDs, or iterables of records, or None for "no RDD".
        one_at_a_time: take the next item for each batch; otherwise all that are there, united.
        default: RDD or iterable for a batch that finds nothing. None: an empty RDD, without
            partitions, so that it costs nothing.
        replayable: the items are records, and are pickled with the graph.

    Raises:
        InvalidStreamError: *queue*, one of its items or *default* is no such thing; a *replayable*
            queue has an RDD.

    Semantics: Spark's QueueInputDStream, with the items that pyspark.streaming also takes.
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
        """Why it cannot go on after a restart."""
        if self.replayable:
            return None
        return (
            "the items of a queue are gone with the driver that had them; give lists of records "
            "and replayable=True"
        )

    def open(self, environment: SourceEnvironment) -> QueueReader:
        return QueueReader(self, environment)

    def __reduce__(self) -> Any:
        """Leave out what a restart could not use."""
        if self.replayable:
            return QueueSource, (self.queue, self.one_at_a_time, self.default, True)
        return QueueSource, ([], self.one_at_a_time)


class QueueReader:
    """Reads a queue by a cursor; what a batch took stays with its plan."""

    def __init__(self, source: QueueSource, environment: SourceEnvironment) -> None:
        self._queue = cast("list[_Batch | None]", source.queue)
        self._one_at_a_time = source.one_at_a_time
        self._default = cast("_Batch | None", source.default)
        self._spark = environment.spark
        self._position = 0
        self._taken: dict[int, tuple[int, int]] = {}

    def start(self) -> None:
        pass

    def plan(self, batch_time_ms: int) -> PlannedInput:
        first = self._position
        end = min(first + 1, len(self._queue)) if self._one_at_a_time else len(self._queue)
        return self._take(batch_time_ms, first, end)

    def _take(self, batch_time_ms: int, first: int, end: int) -> PlannedInput:
        items = self._queue[first:end]
        self._position = end
        self._taken[batch_time_ms] = first, end
        if not items:
            return self._plan_default(batch_time_ms)
        batches = [item for item in items if item is not None]
        description = _describe(first, len(items))
        if not batches:
            return PlannedInput(batch_time_ms, None, 0, f"{description}: no RDD")
        content = _join_neighbours(batches)
        return PlannedInput(batch_time_ms, content, _count(content), description)

    def recorded(self, planned: PlannedInput) -> Mapping[str, object]:
        """Which items."""
        first, end = self._taken[planned.batch_time_ms]
        return {INPUT_START: first, INPUT_END: end}

    def replay(self, batch_time_ms: int, recorded: Mapping[str, Any]) -> PlannedInput:
        """Take the same items again, and go on after them."""
        return self._take(batch_time_ms, recorded[INPUT_START], recorded[INPUT_END])

    def rdd(self, planned: PlannedInput) -> RDD[Any] | None:
        if planned.content is None:
            return None
        if not planned.content:
            return self._spark.emptyRDD()
        rdds = [
            batch if isinstance(batch, RDD) else self._spark.parallelize(batch)
            for batch in planned.content
        ]
        return rdds[0] if len(rdds) == 1 else self._spark.union(rdds)

    def release(self, batch_time_ms: int) -> None:
        # A copy: another thread may plan a batch meanwhile.
        for time_ms in tuple(self._taken):
            if time_ms <= batch_time_ms:
                del self._taken[time_ms]

    def stop_receiving(self) -> None:
        pass

    def has_pending(self) -> bool:
        """False: a graceful stop waits for what was received, and queue items are not."""
        return False

    def close(self) -> None:
        pass

    def _plan_default(self, batch_time_ms: int) -> PlannedInput:
        if self._default is None:
            return PlannedInput(batch_time_ms, (), 0, "queue is empty")
        content = (self._default,)
        return PlannedInput(batch_time_ms, content, _count(content), "queue is empty: default")


def _require_iterable(value: object, name: str) -> Iterable[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        kind = type(value).__name__
        raise InvalidStreamError(
            f"{name} of queueStream must be an iterable, got {short(value)} ({kind})"
        )
    return value


def _require_batch(value: object, name: str) -> RDD[Any] | Iterable[Any]:
    """Refuse what is no batch; a string too, because its records would be its letters."""
    if isinstance(value, RDD):
        return value
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        kind = type(value).__name__
        raise InvalidStreamError(
            f"{name} of queueStream must be an RDD or an iterable of records, got {short(value)} "
            f"({kind}); write [{short(value)}] for a batch of one record"
        )
    return value


def _in_memory(batch: RDD[Any] | Iterable[Any]) -> _Batch:
    """Copy the records: a batch that is made twice is the same, whatever the caller does then."""
    return batch if isinstance(batch, RDD | range) else list(batch)


def _join_neighbours(batches: Iterable[_Batch]) -> tuple[_Batch, ...]:
    """Make one list of lists that follow each other: fewer partitions, the same order."""
    joined: list[_Batch] = []
    for are_rdds, run in groupby(batches, lambda batch: isinstance(batch, RDD)):
        members = list(run)
        if are_rdds or len(members) == 1:
            joined.extend(members)
        else:
            joined.append(list(chain.from_iterable(cast("list[Sequence[Any]]", members))))
    return tuple(joined)


def _count(batches: Iterable[_Batch]) -> int | None:
    """Count the records, None as soon as that would take a job."""
    count = 0
    for batch in batches:
        if isinstance(batch, RDD):
            return None
        count += len(batch)
    return count


def _describe(first: int, count: int) -> str:
    return f"queue item {first}" if count == 1 else f"queue items {first} to {first + count - 1}"
