"""The batches that ran not long ago: a bounded number of them, in a bounded piece of memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from dstreams.common.redaction import masked
from dstreams.monitoring.events import BatchInfo, InputInfo

MOST_FACTS = 250_000
"""How many offsets, lags and ranges of partitions all batches together have, and texts.

A hundred characters count as one. Of a topic of 1,000 partitions a batch has 5,000 facts in half a
megabyte, so about 25 MB are kept of each stream at most. Of 50 partitions a thousand batches have
all of theirs.
"""

_ENDED_SHARE = 20
_CHARACTERS = 100
_MOST_TEXT = 500
"""Characters of each text of a batch that is cut short."""


class RecentBatches:
    """The newest batches; those before what fits have no offsets, and long texts not whole.

    Args:
        retained: how many batches.
    """

    def __init__(self, retained: int) -> None:
        self._batches: deque[BatchInfo] = deque()
        self._retained = retained
        self._facts: deque[int] = deque()
        """How many facts each of the newest batches has; those before them are cut short."""
        self._sum = 0
        self._most = MOST_FACTS

    def append(self, batch: BatchInfo) -> None:
        """Keep a batch, the newest one, without the secrets in what it failed with."""
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
        """Take less memory: no batch comes any more, and many that have ended are remembered."""
        self._most = MOST_FACTS // _ENDED_SHARE
        self._fit()

    def _fit(self) -> None:
        while self._sum > self._most and len(self._facts) > 1:
            at = len(self._batches) - len(self._facts)
            self._batches[at] = _cut_short(self._batches[at])
            self._sum -= self._facts.popleft()

    def newest(self) -> BatchInfo | None:
        """Return the newest batch, None before the first."""
        return self._batches[-1] if self._batches else None

    def all(self) -> tuple[BatchInfo, ...]:
        """Return all of them, the newest last."""
        return tuple(self._batches)


def _facts_of(batch: BatchInfo) -> int:
    failures = (batch.failure or "", *(output.failure or "" for output in batch.outputs))
    texts = (*failures, *(given.description for given in batch.inputs))
    return sum(map(_offsets_of, batch.inputs)) + sum(map(len, texts)) // _CHARACTERS


def _offsets_of(given: InputInfo) -> int:
    """Return how many values of partitions are in what is told of an input, at least about."""
    told = () if given.offsets is None else given.offsets[:3]
    return sum(map(_parts, (*told, *given.metadata.values())))


def _parts(value: Any) -> int:
    if isinstance(value, Mapping) and isinstance(next(iter(value.values()), None), Mapping):
        return sum(map(_parts, value.values()))  # by topic, by partition
    return len(value) if _has_parts(value) else 0


def _has_parts(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes))


def _cut_short(batch: BatchInfo) -> BatchInfo:
    return _with_failures(
        replace(batch, inputs=tuple(map(_input_cut_short, batch.inputs))), _beginning_of
    )


def _input_cut_short(given: InputInfo) -> InputInfo:
    text = _beginning_of(given.description)
    if not _offsets_of(given):
        return replace(given, description=text)
    counts = {name: each for name, each in given.metadata.items() if not _has_parts(each)}
    return replace(given, description=text, metadata=counts, offsets=None)


def _beginning_of(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _with_failures(batch: BatchInfo, change: Callable[[str], str]) -> BatchInfo:
    if batch.failure is None and all(output.failure is None for output in batch.outputs):
        return batch

    def changed(failure: str | None) -> str | None:
        return None if failure is None else change(failure)

    outputs = (replace(output, failure=changed(output.failure)) for output in batch.outputs)
    return replace(batch, failure=changed(batch.failure), outputs=tuple(outputs))
