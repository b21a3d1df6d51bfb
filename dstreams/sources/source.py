"""The contract between sources and the engine: a :class:`Source` opens a :class:`SourceReader`.

An offset is a JSON value, such as a number of lines or an offset for each partition of a topic;
None is the beginning. The driver calls a reader in this order:

1. ``source.open(environment)``, then ``update_rate`` if an initial rate is set, then ``start()``.
2. For each batch ``plan(start, time_ms)``, whose result is written to the batch's begin record
   before ``read(planned)``. A plan that was not begun is planned again with the same start. After a
   restart, ``read`` gets plans of the earlier run, as read from their begin records.
3. ``commit(end)`` once batches up to *end* are committed; ``release(end)`` once no batch of this
   run uses their RDDs; ``retire(end)`` once a ``snapshot(end)`` is durable.
4. ``stop_receiving()``, then batches while ``has_pending()``, then ``close()``. The first and the
   last may be called twice, and ``close`` at any time.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from pyspark import RDD, SparkContext

from checkpoint import INPUT_END, INPUT_START, Files, InputPast
from dstreams.common.clock import Clock
from dstreams.common.settings import Settings
from dstreams.errors import SourceError
from dstreams.monitoring.events import EventHandler, InputInfo, OffsetProgress, ignore_event

logger = logging.getLogger(__name__)

_RECORDS, _DESCRIPTION = "records", "description"


@dataclass(frozen=True)
class PlannedInput:
    """The input of one batch from one source: the records after *start*, up to *end*.

    Args:
        time_ms: batch time.
        start: offset after which the batch reads.
        end: offset up to which it reads; equals *start* if there is nothing new.
        facts: details that only the source understands, as JSON, such as file names.
        records: number of records; None if counting would take a job.
        description: one line for people.
    """

    time_ms: int
    start: Any
    end: Any
    facts: Mapping[str, Any] = field(default_factory=dict)
    records: int | None = 0
    description: str = ""

    def to_record(self) -> dict[str, Any]:
        """Return the entry of this input in the batch's begin record."""
        data = dict(self.facts)
        if self.start != self.end:
            data[INPUT_START] = self.start
        data[INPUT_END] = self.end
        if self.records is not None:
            data[_RECORDS] = self.records
        if self.description:
            data[_DESCRIPTION] = self.description
        return data

    @classmethod
    def from_record(cls, time_ms: int, data: Mapping[str, Any]) -> PlannedInput:
        """Reverse :meth:`to_record`.

        Raises:
            KeyError: the entry has no end offset.
        """
        facts = dict(data)
        end = facts.pop(INPUT_END)
        start = facts.pop(INPUT_START, end)
        records, description = facts.pop(_RECORDS, None), facts.pop(_DESCRIPTION, "")
        return cls(time_ms, start, end, facts, records, description)


@dataclass(frozen=True)
class InputDescription:
    """A description of the input of a batch for listeners.

    Args:
        text: for people.
        metadata: for programs, such as ``offsets`` and ``lag``.
        progress: offsets to report; None for those of the plan.
    """

    text: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    progress: OffsetProgress | None = None


@dataclass(frozen=True)
class SourceStorage:
    """Storage for files of a source, such as a write-ahead log.

    Args:
        files: the files of the stream.
        stream_id: identity of the stream.
        uid: name of the input within the stream.
        epoch: number of this driver among those that have run the stream.
    """

    files: Files
    stream_id: str
    uid: str
    epoch: int


@dataclass(frozen=True)
class SourceEnvironment:
    """The stream or query that a reader belongs to, as far as the reader may use it.

    Args:
        spark: makes the RDDs.
        clock: the driver's clock.
        settings: settings of the streaming context or session.
        begin_ms: start time of the input: only batches after it can have records.
        report_error: reports a failure that no batch will raise.
        batch_ms: batch duration in milliseconds; 0 in queries.
        on_event: receives the events of receivers.
        storage: None in queries and in streams without a checkpoint directory.
        newest: the newest plan of earlier runs, or None.
        past: returns what earlier runs have read; raises a CheckpointError if that is lost.
    """

    spark: SparkContext
    clock: Clock
    settings: Settings
    begin_ms: int
    report_error: Callable[[Exception], None]
    batch_ms: int = 0
    on_event: EventHandler = ignore_event
    storage: SourceStorage | None = None
    newest: PlannedInput | None = None
    past: Callable[[], InputPast] = InputPast


class SourceReader:
    """The base class of readers; ``plan`` and ``read`` are abstract.

    Attributes:
        rate_limit: ``none`` if the reader ignores :meth:`update_rate`; ``receiver`` if backpressure
            and ``spark.streaming.receiver.maxRate`` limit it; ``backpressure`` without the latter.
        input_can_vanish: whether input may be deleted before a batch that needs it has run again.
    """

    rate_limit: ClassVar[Literal["none", "backpressure", "receiver"]] = "none"
    input_can_vanish: ClassVar[bool] = False

    @property
    def not_replayable_reason(self) -> str | None:
        """The reason why records are lost with their driver; None if they are not.

        The stream can resume in either case.
        """
        return None

    def start(self) -> None:
        """Restore what earlier runs have read, and start to receive; reject what can never work."""

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        """Plan a batch after *start*, up to the latest offset or the rate limit."""
        raise NotImplementedError

    def read(self, planned: PlannedInput) -> RDD[Any] | None:
        """Return the records of a plan, the same each time; None for no RDD.

        Raises:
            SourceError: the records are not available any more.
        """
        raise NotImplementedError

    def require_records(self, plans: Sequence[PlannedInput]) -> None:
        """Check that all records of *plans*, of an earlier run, can still be read.

        Raises:
            SourceError: some are not available any more.
        """
        for planned in plans:
            self.read(planned)

    def describe(self, planned: PlannedInput) -> InputDescription:
        """Describe a planned batch."""
        return InputDescription(planned.description)

    def after_batch_info(self, planned: PlannedInput) -> InputDescription:
        """Return what is known only after the batch, such as skipped records."""
        return InputDescription()

    def commit(self, end: Any) -> None:
        """Acknowledge records up to *end*, which are committed."""

    def update_rate(self, records_per_second: int) -> None:
        """Limit the batches planned from now on; called on any thread with a rate of 1 or more."""

    def release(self, end: Any) -> None:
        """Free what is kept for batches up to *end*: this run does not use their RDDs any more."""

    def snapshot_size(self) -> int | None:
        """Return the approximate number of entries of a snapshot; None if none is needed."""
        return None

    def snapshot(self, end: Any) -> Mapping[str, Any]:
        """Return what batches up to *end* have read, as JSON.

        It replaces their begin records; a restart gets it as the facts of an ``InputPast``.
        """
        raise NotImplementedError

    def retire(self, end: Any) -> None:
        """Delete what only batches up to *end* need: a snapshot of them is durable."""

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        """Plan only what is available now, in one batch if requested; for queries that end."""

    def error_hint(self, failure: str) -> str | None:
        """Return a remedy if a job failed because input is missing, else None."""
        return None

    def stop_receiving(self) -> None:
        """Stop receiving; batches may still read what was received."""

    def waiting_records(self) -> int | None:
        """Return the number of received records that are in no batch; None if unknown."""
        return 0

    def has_pending(self) -> bool:
        """Return whether records wait for a batch."""
        return bool(self.waiting_records())

    def close(self) -> None:
        """Release all resources."""


class Source(ABC):
    """A definition of an input: parameters only, without connections."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Operation or format, and location, such as ``socketTextStream(localhost:9999)``."""

    @abstractmethod
    def open(self, environment: SourceEnvironment) -> SourceReader:
        """Return a reader that does nothing yet."""

    @property
    def fields(self) -> tuple[str, ...] | None:
        """Field names of the records, None if only the records know them."""
        return None

    @property
    def restart_refusal(self) -> str | None:
        """The reason why the source cannot resume after a restart, None if it can."""
        return None

    @property
    def place(self) -> str | None:
        """The location whose names are recorded as read, such as a directory."""
        return None


def loss_with_driver(source: Source, reader: SourceReader) -> str | None:
    """Return why records are lost with this driver although the stream can resume, else None."""
    return None if source.restart_refusal is not None else reader.not_replayable_reason


def input_info(number: int, name: str, reader: SourceReader, planned: PlannedInput) -> InputInfo:
    """Return the information about a planned input for listeners."""
    described = reader.describe(planned)
    progress = described.progress or OffsetProgress(planned.start, planned.end, planned.end, {})
    text, metadata = described.text, described.metadata
    return InputInfo(number, name, planned.records, text, metadata, progress)


def merge_info(info: InputInfo, added: InputDescription) -> InputInfo:
    """Add to the information about an input what is known once its batch has run."""
    metadata = {**info.metadata, **added.metadata}
    return replace(info, description=f"{info.description}{added.text}", metadata=metadata)


def close_all(readers: Iterable[SourceReader]) -> None:
    """Close all readers, also if some of them fail."""
    for reader in readers:
        try:
            reader.close()
        except Exception:
            logger.warning("failed to close a source", exc_info=True)


def remedy_of(error: BaseException, readers: Iterable[SourceReader]) -> str | None:
    """Return the hint of the first reader that has one for the error of a batch, else None."""
    if isinstance(error, SourceError):
        return None
    for reader in readers:
        try:
            remedy = reader.error_hint(str(error))
        except Exception:  # must not hide the error of the batch
            logger.warning("failed to ask %s about an error", reader, exc_info=True)
            continue
        if remedy is not None:
            return remedy
    return None
