"""KafkaRDD: the records of ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark import SparkContext
from pyspark.rdd import PipelinedRDD

from dstreams.kafka_io.fetch import FetchTask, Reading, Rejected
from dstreams.kafka_io.messages import require_dead_letters
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
        rejected: which of them could not be decoded and were left out, likewise.

    Semantics: org.apache.spark.streaming.kafka010.KafkaRDD and HasOffsetRanges.
    """

    def __init__(
        self,
        spark: SparkContext,
        ranges: Sequence[OffsetRange],
        reading: Reading,
        *,
        is_of_dead_letters: bool = False,
    ) -> None:
        read = tuple(one for one in ranges if one.count())
        counts: TaskReports[int] = TaskReports(spark)
        self.rejected: TaskReports[Rejected] = TaskReports(spark)
        report_rejected = None if is_of_dead_letters else self.rejected.task
        task = FetchTask(reading, read, counts.task, report_rejected)
        numbers = spark.parallelize(range(len(read)), len(read)) if read else spark.emptyRDD()
        super().__init__(numbers, task)
        self.offsetRanges = list(ranges)
        self.record_count = RecordCount(self, counts)
        self._reading = reading

    def rejectedRecords(self) -> int:
        """Return how many records could not be decoded and were left out, as far as it was read."""
        return sum(one.records for one in self.rejected.facts())

    def deadLetters(self) -> KafkaRDD:
        """Return the records of the same ranges that could not be decoded.

        Each is a :class:`~dstreams.kafka.DeadLetter`. The ranges are read once more for it.

        Raises:
            InvalidStreamError: such records are not left out, but fail the batch.
        """
        require_dead_letters(self._reading.make_records)
        return KafkaRDD(self.context, self.offsetRanges, self._reading, is_of_dead_letters=True)


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
