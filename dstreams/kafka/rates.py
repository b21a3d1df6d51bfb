"""Limits of the number of records that a batch reads of each partition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dstreams.common.configuration import whole_number
from dstreams.kafka.offsets import Offsets, TopicPartition

_LIMIT = whole_number(0)


class PerPartitionConfig:
    """Limits by partition: subclass it, and pass it to ``createDirectStream``.

    It is called in every batch on the driver, and is stored in the checkpoint like a function.

    Semantics: org.apache.spark.streaming.kafka010.PerPartitionConfig.
    """

    def maxRatePerPartition(self, topicPartition: TopicPartition) -> int:
        """Return the maximal number of records per second of a partition, 0 for no limit."""
        raise NotImplementedError

    def minRatePerPartition(self, topicPartition: TopicPartition) -> int:
        """Return the number of records of a partition that a batch may read despite any limit."""
        return 1


@dataclass(frozen=True)
class OfAllPartitions(PerPartitionConfig):
    """The same limits for each partition, from settings; None for no limit."""

    max_rate: int | None
    min_rate: int

    def maxRatePerPartition(self, topicPartition: TopicPartition) -> int:
        return self.max_rate or 0

    def minRatePerPartition(self, topicPartition: TopicPartition) -> int:
        return self.min_rate


@dataclass(frozen=True)
class PartitionRates:
    """The limits of a stream's input: records per second.

    Semantics: org.apache.spark.streaming.kafka010.DirectKafkaInputDStream, maxMessagesPerPartition
    and clamp.
    """

    batch_ms: int
    config: PerPartitionConfig

    def until(self, start: Offsets, latest: Offsets, rate: int | None) -> dict[TopicPartition, int]:
        """Return the offsets at which the next batch ends.

        Args:
            start: where the batch begins.
            latest: the current ends of the partitions.
            rate: backpressure's limit in records per second of the whole input, which is divided
                between the partitions by their lags; None for no limit.
        """
        limits = self._limits(start, latest, rate)
        if not sum(limits.values()):
            return dict(latest)
        seconds = self.batch_ms / 1000
        until = {}
        for one, end in latest.items():
            least = _checked(self.config, "minRatePerPartition", one)
            until[one] = min(start[one] + max(int(seconds * limits[one]), least), end)
        return until

    def _limits(
        self, start: Offsets, latest: Offsets, rate: int | None
    ) -> Mapping[TopicPartition, float]:
        """Return the records per second of each partition, all 0 for no limit."""
        limits = {one: float(_checked(self.config, "maxRatePerPartition", one)) for one in latest}
        if not rate:
            return limits
        lags = {one: max(end - start[one], 0) for one, end in latest.items()}
        total = sum(lags.values())
        if not total:
            return dict.fromkeys(latest, 0.0)
        shares = {one: lag / total * rate for one, lag in lags.items()}
        return {one: min(share, limits[one] or share) for one, share in shares.items()}


def _checked(config: PerPartitionConfig, limit: str, one: TopicPartition) -> int:
    value: Any = getattr(config, limit)(one)
    _LIMIT.require(value, f"{type(config).__name__}.{limit} of {one}")
    return int(value)


class TriggerLimits:
    """The limits of a query's input: minimal and maximal numbers of offsets per batch.

    The first batch does not wait for the minimum, and no batch waits longer than *delay_ms* after
    the one before.

    Semantics: KafkaMicroBatchStream.latestOffset, delayBatch and rateLimit (Spark 4.3).
    """

    def __init__(self, least: int | None, most: int | None, delay_ms: int) -> None:
        self._least, self._most, self._delay_ms = least, most, delay_ms
        self._last_ms: int | None = None

    def until(self, start: Offsets, ends: Offsets, time_ms: int) -> dict[TopicPartition, int]:
        """Return the offsets at which a batch of this time ends; *start* if it waits for more."""
        if self._waits(start, ends, time_ms):
            return dict(start)
        return self.at_most(start, ends)

    def at_most(self, start: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """Return the offsets at which a batch ends that does not wait.

        The maximum is divided by the lags of the partitions; each partition with records gets one.
        """
        if self._most is None:
            return dict(ends)
        lags = {one: end - start[one] for one, end in ends.items() if end > start[one]}
        total = sum(lags.values())
        until = dict(ends)
        for one, lag in lags.items():
            share = self._most * lag / total
            whole = math.ceil(share) if share < 1 else math.floor(share)
            until[one] = min(ends[one], start[one] + whole)
        return until

    def _waits(self, start: Offsets, ends: Offsets, time_ms: int) -> bool:
        if self._least is None:
            return False
        is_due = self._last_ms is None or time_ms - self._last_ms >= self._delay_ms
        if not is_due and sum(end - start[one] for one, end in ends.items()) < self._least:
            return True
        self._last_ms = time_ms
        return False
