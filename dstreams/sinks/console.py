"""The sink that prints the first records of each batch."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar, TextIO

from pyspark import RDD

from dstreams.common.durations import batch_datetime
from dstreams.common.settings import COUNT
from dstreams.sinks.output_batch import DeliveryGuarantee, OutputBatch

_LINE = "-" * 43


@dataclass(frozen=True)
class ConsolePrinter:
    """Prints up to *num* records of a batch under its time, as ``pyspark.streaming`` prints them.

    ::

        -------------------------------------------
        Time: 2024-01-01 00:00:01
        -------------------------------------------
        ('word', 2)
        ...

    The text is written at once, so batches and log lines do not mix. One Spark job runs over all
    partitions: ``take`` would run several, and end workers that had not read their input.
    """

    promise: ClassVar[DeliveryGuarantee] = DeliveryGuarantee(
        "at least once", "a batch that a crash interrupted is printed again"
    )

    num: int = 10
    out: TextIO | None = None

    def __post_init__(self) -> None:
        COUNT.require(self.num, "num of pprint")

    def __call__(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        self.print(batch.time_ms, rdd)

    def print(self, time_ms: int, rdd: RDD[Any]) -> None:
        """Print the RDD of a batch time, in one job."""
        records = rdd.context.runJob(rdd, partial(_first, self.num + 1))
        lines = [_LINE, f"Time: {batch_datetime(time_ms)}", _LINE, *map(str, records[: self.num])]
        if len(records) > self.num:
            lines.append("...")
        out = sys.stdout if self.out is None else self.out
        out.write("\n".join(lines) + "\n\n")
        out.flush()


def _first(count: int, records: Iterable[Any]) -> list[Any]:
    """Return the first records of a partition, and consume the others."""
    remaining = iter(records)
    first = list(islice(remaining, count))
    deque(remaining, maxlen=0)
    return first
