"""Records that the program itself adds: for tests and notebooks."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.errors import InvalidStreamError, RestartError
from dstreams.sources.queue import count_records, join_neighbours, united
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment, SourceReader


class MemoryStream(Source):
    """Records added by hand; each addition is one offset.

    It holds what was added, and each query reads it for itself: one that is restarted in the same
    process finds what the one before had read. Another process finds nothing of it.

    Args:
        name: for ``explain`` and progress.
        partitions: of each addition's RDD; None for one for each core, as far as there are records.
        fields: names of the fields of a record, None where only the records know.
    """

    def __init__(
        self,
        name: str = "memory",
        partitions: int | None = None,
        fields: tuple[str, ...] | None = None,
    ) -> None:
        if partitions is not None and (not isinstance(partitions, int) or partitions < 1):
            raise InvalidStreamError(
                f"partitions of a memory stream must be 1 or more, got {partitions!r}"
            )
        self._name = name
        self._partitions = partitions
        self._fields = fields
        self._lock = threading.Lock()
        self._additions: list[list[Any] | RDD[Any]] = []

    @property
    def name(self) -> str:
        return f"{self._name}[memory]" if self._name != "memory" else "memory"

    @property
    def fields(self) -> tuple[str, ...] | None:
        return self._fields

    def add_data(self, records: Iterable[Any] | RDD[Any]) -> int:
        """Add records, and return the offset after them.

        Args:
            records: any records, or an RDD of such, or a DataFrame, of which each row is one.
        """
        if hasattr(records, "rdd"):
            records = records.rdd
        addition = records if isinstance(records, RDD) else list(records)
        with self._lock:
            self._additions.append(addition)
            return len(self._additions)

    @property
    def count(self) -> int:
        """How many additions there have been."""
        with self._lock:
            return len(self._additions)

    def between(self, first: int, last: int) -> list[list[Any] | RDD[Any]]:
        """Return the additions after *first*, up to *last*.

        Raises:
            RestartError: there are fewer.
        """
        with self._lock:
            if last > len(self._additions):
                raise RestartError(
                    f"{self.name} has {len(self._additions)} additions, but a batch of the "
                    f"checkpoint reads up to {last}; a memory stream can be read again in the "
                    "process that filled it only"
                )
            return self._additions[first:last]

    def open(self, environment: SourceEnvironment) -> MemoryReader:
        newest = environment.newest
        self.between(0, 0 if newest is None else int(newest.end or 0))  # must be there
        return MemoryReader(self, environment.spark, self._partitions)


class MemoryReader(SourceReader):
    """One query's reading of a memory stream."""

    def __init__(self, source: MemoryStream, spark: SparkContext, partitions: int | None) -> None:
        self._source = source
        self._spark = spark
        self._partitions = partitions
        self._pinned: int | None = None

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        self._pinned = self._source.count

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        count = self._source.count if self._pinned is None else self._pinned
        end = max(count, int(start or 0)) or None
        records = count_records(self._source.between(int(start or 0), int(end or 0)))
        return PlannedInput(time_ms, start, end, {}, records, f"additions up to {end or 0}")

    def read(self, planned: PlannedInput) -> RDD[Any]:
        additions = self._source.between(int(planned.start or 0), int(planned.end or 0))
        return united(self._spark, join_neighbours(additions), self._partitions)
