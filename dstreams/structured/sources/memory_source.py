"""The source of records that the program adds, for tests and notebooks."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.errors import InvalidStreamError, RestartError
from dstreams.sources.queue import count_records, join_neighbours, united
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment, SourceReader


class MemoryStream(Source):
    """Records that a program adds; each addition is one offset.

    Each query reads all additions. A query that is restarted in the same process can read them
    again, another process cannot.
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
        """Add records, an RDD or the rows of a DataFrame, and return the offset after them."""
        if hasattr(records, "rdd"):
            records = records.rdd
        addition = records if isinstance(records, RDD) else list(records)
        with self._lock:
            self._additions.append(addition)
            return len(self._additions)

    @property
    def count(self) -> int:
        """The number of additions."""
        with self._lock:
            return len(self._additions)

    def between(self, first: int, last: int) -> list[list[Any] | RDD[Any]]:
        """Return the additions after *first*, up to *last*; raise RestartError if missing."""
        with self._lock:
            if last > len(self._additions):
                raise RestartError(
                    f"{self.name} has {len(self._additions)} additions, but a batch of the "
                    f"checkpoint reads up to {last}; restart only in the process that added them"
                )
            return self._additions[first:last]

    def open(self, environment: SourceEnvironment) -> MemoryReader:
        newest = environment.newest
        self.between(0, 0 if newest is None else int(newest.end or 0))  # raises if missing
        return MemoryReader(self, environment.spark, self._partitions)


class MemoryReader(SourceReader):
    """Reads a memory stream for one query."""

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
