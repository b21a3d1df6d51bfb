"""Where a query begins to read topics, and how much a batch of it reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dstreams.errors import SourceError
from dstreams.kafka.offsets import Offsets, TopicPartition
from dstreams.kafka.topics import EARLIEST, LATEST, Seen, Topics

DataLoss = Callable[[str], None]
"""Told of records that are not there any more: raises, or goes on."""


@dataclass(frozen=True)
class Bound:
    """Offsets as options say them: by one of four ways.

    Args:
        option: its name, for messages.
        everywhere: :data:`EARLIEST` or :data:`LATEST` for all partitions.
        offsets: of each partition, these two among them.
        time_ms: the first record of this time or later, in all partitions.
        times_ms: the same, of each partition.
        falls_back: whether a partition without a record of that time is taken at its end, not an
            error.
    """

    option: str
    everywhere: int | None = None
    offsets: Offsets | None = None
    time_ms: int | None = None
    times_ms: Mapping[TopicPartition, int] | None = None
    falls_back: bool = False

    def resolve(self, topics: Topics, seen: Seen, lost: DataLoss) -> dict[TopicPartition, int]:
        """Return the offset of each partition that there is.

        Raises:
            SourceError: the option does not fit what the brokers have.
        """
        if self.everywhere == LATEST:
            return dict(seen.ends)
        if self.everywhere is not None:
            return topics.offsets(dict.fromkeys(seen.ends, self.everywhere))
        if self.offsets is not None:
            self._require_all(self.offsets, seen)
            return self._within(topics, seen, lost)
        if self.times_ms is not None:
            self._require_all(self.times_ms, seen)
            return self._at(self.times_ms, topics, seen)
        return self._at(dict.fromkeys(seen.ends, self.time_ms or 0), topics, seen)

    def _within(self, topics: Topics, seen: Seen, lost: DataLoss) -> dict[TopicPartition, int]:
        """Return the offsets that are given, those outside of their partitions moved into them."""
        given = self.offsets or {}
        earliest = topics.offsets(dict.fromkeys(given, EARLIEST))
        found = {}
        for one, offset in given.items():
            if offset in (EARLIEST, LATEST):
                found[one] = earliest[one] if offset == EARLIEST else seen.ends[one]
            elif earliest[one] <= offset <= seen.ends[one]:
                found[one] = offset
            else:
                lost(
                    f"{one} has offsets {earliest[one]} to {seen.ends[one]}, and {self.option} "
                    f"says {offset}"
                )
                found[one] = earliest[one]
        return found

    def _at(
        self, times_ms: Mapping[TopicPartition, int], topics: Topics, seen: Seen
    ) -> dict[TopicPartition, int]:
        found = topics.offsets(times_ms)
        none = [one for one, offset in found.items() if offset < 0]
        if none and not self.falls_back:
            raise SourceError(
                f"{self.option} of source kafka: {none[0]} has no record of the time "
                f"{times_ms[none[0]]} ms or later; give an earlier one, or "
                "startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
        return {**found, **{one: seen.ends[one] for one in none}}

    def _require_all(self, given: Mapping[TopicPartition, int], seen: Seen) -> None:
        if given.keys() != seen.ends.keys():
            raise SourceError(
                f"{self.option} of source kafka has {_names(given)}, and the topics have "
                f"{_names(seen.ends)}; name each partition, with -1 for its end and -2 for its "
                "beginning where that will do"
            )


def _names(partitions: Mapping[TopicPartition, int]) -> str:
    return ", ".join(str(one) for one in sorted(partitions)) or "no partitions"


def shared(most: int, start: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
    """Return up to where a batch reads that has about *most* offsets.

    They are shared by how much each partition has; one that has little gets at least one.

    Semantics: KafkaMicroBatchStream.rateLimit (Spark 4.3).
    """
    sizes = {one: end - start[one] for one, end in ends.items() if end > start[one]}
    total = sum(sizes.values())
    until = dict(ends)
    for one, size in sizes.items():
        share = most * size / total
        whole = math.ceil(share) if share < 1 else math.floor(share)
        until[one] = min(ends[one], start[one] + whole)
    return until


class TriggerLimits:
    """How much batches read: no less than waits for them to be worth it, no more than they may.

    A first batch does not wait, and none waits longer than *delay_ms* after the one before.

    Semantics: KafkaMicroBatchStream.latestOffset and delayBatch (Spark 4.3).
    """

    def __init__(self, least: int | None, most: int | None, delay_ms: int) -> None:
        self._least, self._most, self._delay_ms = least, most, delay_ms
        self._last_ms: int | None = None

    def until(self, start: Offsets, ends: Offsets, time_ms: int) -> dict[TopicPartition, int]:
        """Return up to where a batch reads that is planned now; *start* while it waits."""
        if self._waits(start, ends, time_ms):
            return dict(start)
        return self.at_most(start, ends)

    def at_most(self, start: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """Return up to where a batch reads that waits for nothing."""
        return dict(ends) if self._most is None else shared(self._most, start, ends)

    def _waits(self, start: Offsets, ends: Offsets, time_ms: int) -> bool:
        if self._least is None:
            return False
        is_due = self._last_ms is None or time_ms - self._last_ms >= self._delay_ms
        if not is_due and sum(end - start[one] for one, end in ends.items()) < self._least:
            return True
        self._last_ms = time_ms
        return False
