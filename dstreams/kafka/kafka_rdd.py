"""An RDD of ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark import SparkContext
from pyspark.rdd import PipelinedRDD

from dstreams.kafka.decoding import require_dead_letters
from dstreams.kafka.fetch import FetchConfig, FetchTask, Rejected
from dstreams.kafka.offsets import OffsetRange
from dstreams.spark.counting import RecordCount
from dstreams.spark.task_reports import TaskReports


class KafkaRDD(PipelinedRDD):  # type: ignore[misc]
    """The records of a batch, or of given ranges.

    Attributes:
        offsetRanges: list of :class:`OffsetRange`. A task reads
            ``offsetRanges[TaskContext.get().partitionId()]``; empty ranges at the end have no task.
        record_count: number of records, known once they were read.
        rejected: records that could not be decoded and were skipped, likewise.

    Semantics: org.apache.spark.streaming.kafka010.KafkaRDD and HasOffsetRanges.
    """

    def __init__(
        self,
        spark: SparkContext,
        ranges: Sequence[OffsetRange],
        fetch: FetchConfig,
        *,
        is_of_dead_letters: bool = False,
    ) -> None:
        tasks = max((number for number, one in enumerate(ranges, 1) if one.count()), default=0)
        counts: TaskReports[int] = TaskReports(spark)
        self.rejected: TaskReports[Rejected] = TaskReports(spark)
        report_rejected = None if is_of_dead_letters else self.rejected.task
        task = FetchTask(fetch, tuple(ranges[:tasks]), counts.task, report_rejected)
        numbers = spark.parallelize(range(tasks), tasks) if tasks else spark.emptyRDD()
        super().__init__(numbers, task)
        self.offsetRanges = list(ranges)
        self.record_count = RecordCount(self, counts)
        self._fetch = fetch

    def rejectedRecords(self) -> int:
        """Return the number of records read so far that were skipped as undecodable."""
        return sum(one.records for one in self.rejected.facts())

    def deadLetters(self) -> KafkaRDD:
        """Return the records of the same ranges that could not be decoded.

        Each is a :class:`~dstreams.kafka.DeadLetter`. This reads the ranges again.

        Raises:
            InvalidStreamError: such records fail the batch instead of being skipped.
        """
        require_dead_letters(self._fetch.make_records)
        return KafkaRDD(self.context, self.offsetRanges, self._fetch, is_of_dead_letters=True)


def split(ranges: Iterable[OffsetRange], least: int) -> tuple[OffsetRange, ...]:
    """Split ranges into about *least* pieces of about equal size.

    Semantics: org.apache.spark.sql.kafka010.KafkaOffsetRangeCalculator.
    """
    whole = tuple(ranges)
    full = [one for one in whole if one.count()]
    if not full or len(full) >= least:
        return whole
    total = sum(one.count() for one in full)
    small = {one for one in full if _parts(one, total, least) == 1}
    cut_total = total - sum(one.count() for one in small)
    cut_least = max(least - len(small), 1)
    pieces = [
        piece
        for one in full
        for piece in _cut(one, 1 if one in small else _parts(one, cut_total, cut_least))
    ]
    return (*pieces, *(one for one in whole if not one.count()))


def _parts(one: OffsetRange, total: int, least: int) -> int:
    """Return how many of *least* pieces of *total* offsets a range gets, rounded half up."""
    return max((2 * one.count() * least + total) // (2 * total), 1)


def _cut(one: OffsetRange, parts: int) -> Iterable[OffsetRange]:
    """Yield non-empty pieces of a range whose sizes differ by at most one."""
    begin = one.fromOffset
    for left in range(min(parts, one.count()), 0, -1):
        end = begin + (one.untilOffset - begin) // left
        yield OffsetRange(one.topic, one.partition, begin, end)
        begin = end
