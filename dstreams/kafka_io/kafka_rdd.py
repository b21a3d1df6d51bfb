"""KafkaRDD: the records of ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark import SparkContext
from pyspark.rdd import PipelinedRDD

from dstreams.kafka_io.fetch import FetchTask, MakeRecords
from dstreams.kafka_io.messages import dead_letters_of
from dstreams.kafka_io.offsets import OffsetRange
from dstreams.rdd.counting import RecordCount
from dstreams.rdd.task_reports import TaskReports


class KafkaRDD(PipelinedRDD):  # type: ignore[misc]
    """The records of a batch, or of ranges that a program gives.

    Attributes:
        offsetRanges: what it reads, a list of :class:`OffsetRange`. Those with records come first,
            and the partitions of the RDD are theirs, in this order: the range of a task is
            ``offsetRanges[TaskContext.get().partitionId()]``.
        record_count: how many records were read, known once they were.

    Semantics: org.apache.spark.streaming.kafka010.KafkaRDD and HasOffsetRanges.
    """

    def __init__(
        self,
        spark: SparkContext,
        ranges: Sequence[OffsetRange],
        config: Mapping[str, Any],
        make_records: MakeRecords,
        wait_s: float,
        *,
        passes_over_lost: bool = False,
    ) -> None:
        read = tuple(one for one in ranges if one.count())
        reports: TaskReports[int] = TaskReports(spark)
        rejected: TaskReports[int] = TaskReports(spark)
        task = FetchTask(
            config, read, make_records, reports.task, rejected.task, wait_s, passes_over_lost
        )
        numbers = spark.parallelize(range(len(read)), len(read)) if read else spark.emptyRDD()
        super().__init__(numbers, task)
        self.offsetRanges = list(ranges)
        self.record_count = RecordCount(self, reports)
        self._make_records = make_records
        self._rejected = rejected
        self._likewise = partial(
            KafkaRDD, spark, ranges, config, wait_s=wait_s, passes_over_lost=passes_over_lost
        )

    def rejectedRecords(self) -> int:
        """Return how many records could not be decoded and were left out, as far as it was read."""
        return sum(self._rejected.facts())

    def deadLetters(self) -> KafkaRDD:
        """Return the records that cannot be decoded, each as a :class:`DeadLetter`.

        They are found by reading the ranges again.

        Raises:
            InvalidStreamError: such records are not left out, but fail the batch.
        """
        return self._likewise(make_records=dead_letters_of(self._make_records))


def split(ranges: Iterable[OffsetRange], least: int) -> tuple[OffsetRange, ...]:
    """Cut ranges into pieces so that there are about *least*, each of about as many offsets.

    Semantics: org.apache.spark.sql.kafka010.KafkaOffsetRangeCalculator.
    """
    whole = tuple(ranges)
    total = sum(one.count() for one in whole)
    if not total or sum(one.count() > 0 for one in whole) >= least:
        return whole
    pieces: list[OffsetRange] = []
    for one in whole:
        parts = max(1, round(one.count() / total * least)) if one.count() else 1
        begin = one.fromOffset
        for part in range(parts):
            end = one.fromOffset + one.count() * (part + 1) // parts
            if end > begin or not one.count():
                pieces.append(OffsetRange(one.topic, one.partition, begin, end))
            begin = end
    return tuple(sorted(pieces, key=lambda piece: piece.count() == 0))
