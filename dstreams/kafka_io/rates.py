"""How many records a batch reads of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dstreams.kafka_io.offsets import Offsets, TopicPartition


@dataclass(frozen=True)
class PartitionRates:
    """Limits of one input.

    Args:
        batch_ms: batch duration in milliseconds.
        max_per_second: records a second of each partition at most, 0 for no limit
            (``spark.streaming.kafka.maxRatePerPartition``).
        min_per_batch: records of each partition that a batch may have in any case
            (``spark.streaming.kafka.minRatePerPartition``).

    Semantics: org.apache.spark.streaming.kafka010.DirectKafkaInputDStream, maxMessagesPerPartition
    and clamp.
    """

    batch_ms: int
    max_per_second: int = 0
    min_per_batch: int = 1

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
            partition: min(
                start[partition] + max(int(seconds * limits[partition]), self.min_per_batch), end
            )
            for partition, end in latest.items()
        }

    def _limits(
        self, start: Offsets, latest: Offsets, rate: int | None
    ) -> Mapping[TopicPartition, float]:
        """Return the records a second of each partition."""
        if not rate:
            return dict.fromkeys(latest, float(self.max_per_second))
        lags = {partition: max(end - start[partition], 0) for partition, end in latest.items()}
        total = sum(lags.values())
        if not total:
            return dict.fromkeys(latest, 0.0)
        shares = {partition: lag / total * rate for partition, lag in lags.items()}
        if not self.max_per_second:
            return shares
        return {partition: min(share, self.max_per_second) for partition, share in shares.items()}
