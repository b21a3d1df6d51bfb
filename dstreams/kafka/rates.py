"""How many records a batch reads of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dstreams.common.configuration import whole_number
from dstreams.kafka.offsets import Offsets, TopicPartition

_LIMIT = whole_number(0)


class PerPartitionConfig:
    """Limits that differ between partitions: subclass it, and give it to ``createDirectStream``.

    It is asked in every batch, on the driver, and is part of the checkpoint as functions are.

    Semantics: org.apache.spark.streaming.kafka010.PerPartitionConfig.
    """

    def maxRatePerPartition(self, topicPartition: TopicPartition) -> int:
        """Return how many records a second batches read of a partition at most, 0 for no limit."""
        raise NotImplementedError

    def minRatePerPartition(self, topicPartition: TopicPartition) -> int:
        """Return how many records of a partition a batch may read whatever the limits say."""
        return 1


@dataclass(frozen=True)
class OfAllPartitions(PerPartitionConfig):
    """The same limits for each partition, as settings give them.

    Args:
        max_rate: ``spark.streaming.kafka.maxRatePerPartition``, None for no limit.
        min_rate: ``spark.streaming.kafka.minRatePerPartition``.
    """

    max_rate: int | None
    min_rate: int

    def maxRatePerPartition(self, topicPartition: TopicPartition) -> int:
        return self.max_rate or 0

    def minRatePerPartition(self, topicPartition: TopicPartition) -> int:
        return self.min_rate


@dataclass(frozen=True)
class PartitionRates:
    """Limits of one input.

    Args:
        batch_ms: batch duration in milliseconds.
        config: limits of each partition.

    Semantics: org.apache.spark.streaming.kafka010.DirectKafkaInputDStream, maxMessagesPerPartition
    and clamp.
    """

    batch_ms: int
    config: PerPartitionConfig

    def until(self, start: Offsets, latest: Offsets, rate: int | None) -> dict[TopicPartition, int]:
        """Return up to where the next batch reads each partition.

        Args:
            start: after what batches before have read.
            latest: where the partitions end now.
            rate: records a second of the whole input, which the partitions share by their lags, as
                backpressure has found it; None for no such limit.
        """
        limits = self._limits(start, latest, rate)
        if not sum(limits.values()):
            return dict(latest)
        seconds = self.batch_ms / 1000
        return {
            one: min(start[one] + max(int(seconds * limits[one]), self._least(one)), end)
            for one, end in latest.items()
        }

    def _limits(
        self, start: Offsets, latest: Offsets, rate: int | None
    ) -> Mapping[TopicPartition, float]:
        """Return the records a second of each partition, all 0 for no limit."""
        limits = {one: float(self._most(one)) for one in latest}
        if not rate:
            return limits
        lags = {one: max(end - start[one], 0) for one, end in latest.items()}
        total = sum(lags.values())
        if not total:
            return dict.fromkeys(latest, 0.0)
        shares = {one: lag / total * rate for one, lag in lags.items()}
        return {one: min(share, limits[one] or share) for one, share in shares.items()}

    def _most(self, one: TopicPartition) -> int:
        return _checked(self.config, "maxRatePerPartition", one)

    def _least(self, one: TopicPartition) -> int:
        return _checked(self.config, "minRatePerPartition", one)


def _checked(config: PerPartitionConfig, limit: str, one: TopicPartition) -> int:
    """Ask for a limit of a partition."""
    value: Any = getattr(config, limit)(one)
    _LIMIT.require(value, f"{type(config).__name__}.{limit} of {one}")
    return int(value)
