"""The batches of a run: the newest ones within a bound of memory, and totals over all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dstreams.common.redaction import masked
from dstreams.monitoring.events import BatchInfo, InputInfo

MOST_FACTS = 250_000
"""Bound on the offsets, lags, ranges and hundreds of characters that all batches have together.

A batch of a topic of 1,000 partitions has 5,000 facts in half a megabyte, so that about 25 MB are
kept of each stream at most. With 50 partitions a thousand batches keep all of theirs.
"""

_ENDED_SHARE = 20
_CHARACTERS = 100
_MOST_TEXT = 500

BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of a histogram, in seconds; one more bucket has no bound."""

_REJECTED = "rejected"
_REMOVED, _LATE, _COMMIT = "numRemovedStateRows", "numRowsDroppedByWatermark", "commitTimeMs"
_N = TypeVar("_N", int, float)


class RecentBatches:
    """The newest batches. Once memory runs short, older ones lose their offsets and long texts."""

    def __init__(self, retained: int) -> None:
        self._batches: deque[BatchInfo] = deque()
        self._retained = retained
        self._facts: deque[int] = deque()
        """Facts of each of the newest batches; the batches before them are truncated."""
        self._sum = 0
        self._most = MOST_FACTS

    def append(self, batch: BatchInfo) -> None:
        """Add the newest batch, with secrets in its errors masked."""
        batch = _with_failures(batch, masked)
        self._batches.append(batch)
        facts = _facts_of(batch)
        self._facts.append(facts)
        self._sum += facts
        self._fit()
        if len(self._batches) > self._retained:
            self._batches.popleft()
            if len(self._facts) > len(self._batches):
                self._sum -= self._facts.popleft()

    def ended(self) -> None:
        """Use less memory from now on: the stream has ended, and many ended ones are kept."""
        self._most = MOST_FACTS // _ENDED_SHARE
        self._fit()

    def _fit(self) -> None:
        while self._sum > self._most and len(self._facts) > 1:
            at = len(self._batches) - len(self._facts)
            self._batches[at] = _truncated(self._batches[at])
            self._sum -= self._facts.popleft()

    def newest(self) -> BatchInfo | None:
        """Return the newest batch; None before the first."""
        return self._batches[-1] if self._batches else None

    def all(self) -> tuple[BatchInfo, ...]:
        """Return all batches, newest last."""
        return tuple(self._batches)


def _facts_of(batch: BatchInfo) -> int:
    failures = (batch.failure or "", *(output.failure or "" for output in batch.outputs))
    texts = (*failures, *(given.description for given in batch.inputs))
    return sum(map(_offsets_of, batch.inputs)) + sum(map(len, texts)) // _CHARACTERS


def _offsets_of(given: InputInfo) -> int:
    """Return roughly how many values of partitions an input has."""
    offsets = () if given.offsets is None else given.offsets[:3]
    return sum(map(_parts, (*offsets, *given.metadata.values())))


def _parts(value: Any) -> int:
    if isinstance(value, Mapping) and isinstance(next(iter(value.values()), None), Mapping):
        return sum(map(_parts, value.values()))  # by topic, by partition
    return len(value) if _has_parts(value) else 0


def _has_parts(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes))


def _truncated(batch: BatchInfo) -> BatchInfo:
    return _with_failures(
        replace(batch, inputs=tuple(map(_input_truncated, batch.inputs))), _shortened
    )


def _input_truncated(given: InputInfo) -> InputInfo:
    text = _shortened(given.description)
    if not _offsets_of(given):
        return replace(given, description=text)
    counts = {name: each for name, each in given.metadata.items() if not _has_parts(each)}
    return replace(given, description=text, metadata=counts, offsets=None)


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _with_failures(batch: BatchInfo, change: Callable[[str], str]) -> BatchInfo:
    if batch.failure is None and all(output.failure is None for output in batch.outputs):
        return batch

    def changed(failure: str | None) -> str | None:
        return None if failure is None else change(failure)

    outputs = (replace(output, failure=changed(output.failure)) for output in batch.outputs)
    return replace(batch, failure=changed(batch.failure), outputs=tuple(outputs))


@dataclass(frozen=True)
class Histogram:
    """A histogram of durations: counts per bucket of :data:`BUCKETS_S`, and their sum."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    sum_s: float = 0.0

    def with_time(self, seconds: float) -> Histogram:
        """Return the histogram with one more duration; buckets include their upper bound."""
        at = bisect_left(BUCKETS_S, seconds)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Histogram(counts, self.sum_s + seconds)


@dataclass(frozen=True)
class Totals:
    """Counts over all batches of a run; they only grow.

    Args:
        batches: batches that ended, by outcome.
        records: counted records, by name of the source.
        rejected: records skipped because they could not be decoded, by name of the source.
        output_failures: failures of each output, by its name.
        processing: processing times.
        scheduling_delay: times spent waiting for earlier batches.
        keys_removed: states that timed out or were removed, by uid of the operator.
        late_records: records dropped behind the watermark, by uid.
        state_commit_s: seconds spent making state durable, summed over partitions, by uid.
    """

    batches: Mapping[str, int] = field(default_factory=dict)
    records: Mapping[str, int] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    output_failures: Mapping[str, int] = field(default_factory=dict)
    processing: Histogram = Histogram()
    scheduling_delay: Histogram = Histogram()
    keys_removed: Mapping[str, int] = field(default_factory=dict)
    late_records: Mapping[str, int] = field(default_factory=dict)
    state_commit_s: Mapping[str, float] = field(default_factory=dict)

    def with_batch(self, batch: BatchInfo) -> Totals:
        """Return the totals with one more batch."""
        commit_s = {uid: ms / 1000 for uid, ms in _of_states(batch, _COMMIT).items()}
        failed = {info.name: 1 for info in batch.outputs if info.failure is not None}
        return Totals(
            _sum(self.batches, {batch.outcome: 1}),
            _sum(self.records, _of_inputs(batch, lambda given: given.records or 0)),
            _sum(self.rejected, _of_inputs(batch, lambda given: given.metadata.get(_REJECTED, 0))),
            _sum(self.output_failures, failed),
            self.processing.with_time(batch.processing_delay_ms / 1000),
            self.scheduling_delay.with_time(batch.scheduling_delay_ms / 1000),
            _sum(self.keys_removed, _of_states(batch, _REMOVED)),
            _sum(self.late_records, _of_states(batch, _LATE)),
            _sum(self.state_commit_s, commit_s),
        )


def _of_inputs(batch: BatchInfo, count: Callable[[InputInfo], int]) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for given in batch.inputs:
        counts[given.name] += count(given)
    return counts


def _of_states(batch: BatchInfo, metric: str) -> Mapping[str, int]:
    return {state.uid: state.metrics.get(metric, 0) for state in batch.states}


def _sum(before: Mapping[str, _N], more: Mapping[str, _N]) -> Mapping[str, _N]:
    return {**before, **{name: before.get(name, 0) + count for name, count in more.items()}}
