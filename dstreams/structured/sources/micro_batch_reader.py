"""What a source of a query is: a value in the plan, and the reader that a query opens from it.

An offset is a JSON value that says how far a source has been read; None is its beginning. What lies
between two offsets may be known to nobody else, such as which files they stand for: that the reader
says by ``facts``. The calls
of a reader come in this order, all on the thread of the query:

1. ``latest(start, now_ms)``: how far the next batch may read, which is as far as the source has
   come, or less where there is a limit; *start* where there is nothing new. After ``pin`` it never
   goes beyond what there was at that moment, and with *in_one_batch* it goes there at once.
2. ``facts(start, end)``, as JSON: they are written to the batch log with the offset, and a restart
   gives them back;
3. ``rdd(start, end)``: the records after *start*, up to *end*; the same for the same two, also in
   another process.
4. ``commit(end)``: no batch will read up to there again.
5. ``stop()``, once, whatever came before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pyspark import RDD, SparkContext

from checkpoint import InputPast
from dstreams.clock import Clock
from dstreams.settings import Settings


@dataclass(frozen=True)
class ReaderEnvironment:
    """What a reader may use.

    Args:
        spark: makes the RDDs.
        clock: the driver's clock.
        settings: of sockets.
        newest: the newest offset that a batch before this run names, None for none.
        facts: what the reader of then said of it.
        past: gives what the batches before this run have read; raises a CheckpointError where that
            is lost.
    """

    spark: SparkContext
    clock: Clock
    settings: Settings
    newest: Any = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    past: Callable[[], InputPast] = InputPast


class MicroBatchReader(Protocol):
    """A source at work; see the order of calls in the module."""

    def latest(self, start: Any, now_ms: int) -> Any: ...

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None: ...

    def facts(self, start: Any, end: Any) -> Mapping[str, Any]: ...

    def rdd(self, start: Any, end: Any) -> RDD[Any]: ...

    def rows(self, start: Any, end: Any) -> int | None:
        """Return how many records that is, None where counting would cost a job."""
        ...

    def commit(self, end: Any) -> None: ...

    def stop(self) -> None: ...


@runtime_checkable
class ReaderOfFiles(Protocol):
    """A reader that passes over files that have vanished, where a setting says so."""

    def tell_vanished(self) -> None:
        """Say, once a batch has run, which of its files have vanished meanwhile."""
        ...


def tell_vanished(readers: Iterable[object]) -> None:
    """Say, once a batch has run, which files of its sources have vanished meanwhile."""
    for reader in readers:
        if isinstance(reader, ReaderOfFiles):
            reader.tell_vanished()


class StreamSource(Protocol):
    """Where the records of a query come from: parameters only, no connection."""

    @property
    def name(self) -> str:
        """Format and place, for ``explain`` and progress."""
        ...

    @property
    def fields(self) -> tuple[str, ...] | None:
        """Names of the fields of a record, None where only the records know."""
        ...

    def open(self, environment: ReaderEnvironment) -> MicroBatchReader: ...
