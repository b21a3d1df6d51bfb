"""The first records of each batch, printed."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, TextIO

from pyspark import RDD

from dstreams.configuration import COUNT
from dstreams.sinks.output_batch import OutputBatch

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

    num: int = 10
    out: TextIO | None = None

    def __post_init__(self) -> None:
        COUNT.require(self.num, "num of pprint")

    def __call__(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        records = rdd.context.runJob(rdd, partial(_first, self.num + 1))
        # The local time without a zone, as pyspark.streaming hands it to output operations.
        time = datetime.fromtimestamp(batch.time_ms / 1000)  # noqa: DTZ006
        lines = [_LINE, f"Time: {time}", _LINE, *map(str, records[: self.num])]
        if len(records) > self.num:
            lines.append("...")
        out = sys.stdout if self.out is None else self.out
        out.write("\n".join(lines) + "\n\n")
        out.flush()


def _first(count: int, records: Iterable[Any]) -> list[Any]:
    """Return the first records of a partition, and read the others too."""
    remaining = iter(records)
    first = list(islice(remaining, count))
    deque(remaining, maxlen=0)
    return first
