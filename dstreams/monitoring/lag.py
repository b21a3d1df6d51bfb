"""How far a stream or query is behind its sources now: up to their newest known ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dstreams.monitoring.events import BatchInfo, InputInfo, PendingBatch

LAG = "lag"
_OFFSETS = "offsets"


@dataclass(frozen=True)
class SourceLag:
    """The offsets of a source that no committed batch has read.

    Args:
        stream_id: number of the input.
        name: of the source.
        partitions: how many offsets of each partition, also of those without any.
        in_batches: how many of all are in batches that are planned and have not ended.
    """

    stream_id: int
    name: str
    partitions: Mapping[Any, int]
    in_batches: int


def lags_of(recent: Sequence[BatchInfo], pending: Sequence[PendingBatch]) -> Iterator[SourceLag]:
    """Yield the lag of each source that knows it, by the newest batch that was planned with it.

    Args:
        recent: batches that ended, the newest last.
        pending: planned batches that have not ended, the newest last.
    """
    for place in reversed(range(len(pending))):
        known = _with_lag(pending[place])
        if known:
            yield from (_behind(given, pending[: place + 1]) for given in known)
            return
    known = next(filter(None, map(_with_lag, reversed(recent))), [])
    yield from (_behind(given, ()) for given in known)


def _with_lag(batch: BatchInfo | PendingBatch) -> list[InputInfo]:
    return [given for given in batch.inputs if LAG in given.metadata]


def _behind(newest: InputInfo, pending: Iterable[PendingBatch]) -> SourceLag:
    """Return what the newest batch leaves, and what it and those before it are still to read."""
    partitions = dict(newest.metadata[LAG])
    in_batches = 0
    for batch in pending:
        for given in batch.inputs:
            if given.stream_id == newest.stream_id:
                for one in given.metadata.get(_OFFSETS, ()):
                    place, planned = one.topicPartition(), one.count()
                    partitions[place] = partitions.get(place, 0) + planned
                    in_batches += planned
    return SourceLag(newest.stream_id, newest.name, partitions, in_batches)
