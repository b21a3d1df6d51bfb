"""What a source is, of streams and of queries: a value in the graph or plan, and the reader of it.

An offset is a JSON value that says how far a source has been read: a number of lines or files, or a
mapping with the offset of each partition of a topic. None is the beginning. The calls of a reader
come in this order, all but those of its own threads from the driver:

1. ``source.open(environment)`` once: a reader that does nothing yet. If it has ``update_rate``
   (:class:`RateLimited`), that may be called now, and after any batch.
2. ``reader.start()``: takes up what earlier runs have read, as far as it has to know that, and
   begins to receive; refuses here what can never work.
3. For each batch: ``reader.plan(start, time_ms)`` decides, before anything of the batch runs, how
   far it reads; then the begin record of the batch says so (:meth:`PlannedInput.to_record`). What
   was planned and not begun is still to be read: the next plan has the same start.
   ``reader.read(planned)`` turns the decision into an RDD, of the same records each time. After a
   restart it is asked for what an earlier run has planned, which the begin record gives back.
4. ``reader.commit(end)``: the batches up to there count. ``reader.release(end)``: no batch of this
   run uses an RDD of what is before. A :class:`SnapshotReader` is asked for a ``snapshot(end)`` now
   and then, and told ``retire(end)`` when that is durable: no later run reads up to there again.
5. ``reader.stop_receiving()``, then batches as long as ``reader.has_pending()``, then
   ``reader.close()``. Both may come twice, and ``close`` may come at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from pyspark import RDD, SparkContext

from checkpoint import INPUT_END, INPUT_START, Files, InputPast
from dstreams.common.clock import Clock
from dstreams.common.settings import Settings
from dstreams.errors import SourceError
from dstreams.monitoring.events import InputInfo, Notify, OffsetProgress, ignore_event

logger = logging.getLogger(__name__)

_RECORDS, _DESCRIPTION = "records", "description"


@dataclass(frozen=True)
class PlannedInput:
    """What one batch reads of one source: the records after *start*, up to *end*.

    Args:
        time_ms: time of the batch.
        start: offset after which it reads.
        end: offset up to which it reads; *start* where there is nothing new.
        facts: what only the source knows of the records between, as JSON, such as their files.
        records: how many records that is, None where counting would cost a job.
        description: the same for people, one line.
    """

    time_ms: int
    start: Any
    end: Any
    facts: Mapping[str, Any] = field(default_factory=dict)
    records: int | None = 0
    description: str = ""

    def to_record(self) -> dict[str, Any]:
        """Return what the begin record of the batch says of the input."""
        said = dict(self.facts)
        if self.start != self.end:
            said[INPUT_START] = self.start
        said[INPUT_END] = self.end
        if self.records is not None:
            said[_RECORDS] = self.records
        if self.description:
            said[_DESCRIPTION] = self.description
        return said

    @classmethod
    def of_record(cls, time_ms: int, said: Mapping[str, Any]) -> PlannedInput:
        """Read what :meth:`to_record` returned.

        Raises:
            KeyError: it is something else.
        """
        facts = dict(said)
        end = facts.pop(INPUT_END)
        start = facts.pop(INPUT_START, end)
        records, description = facts.pop(_RECORDS, None), facts.pop(_DESCRIPTION, "")
        return cls(time_ms, start, end, facts, records, description)


@dataclass(frozen=True)
class InputDescription:
    """What listeners are told of the input of a batch.

    Args:
        text: for people.
        metadata: for programs, by name: ``offsets``, ``lag``.
    """

    text: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


def with_noticed(given: InputInfo, noticed: InputDescription) -> InputInfo:
    """Return what is told of an input, with what is known of it once the batch has run."""
    return replace(
        given,
        description=f"{given.description}{noticed.text}",
        metadata={**given.metadata, **noticed.metadata},
    )


@dataclass(frozen=True)
class SourceEnvironment:
    """What a reader may use of the stream or query that it belongs to.

    Args:
        spark: context that makes the RDDs.
        clock: the driver's clock.
        settings: settings of the streaming context, or of the session.
        begin_ms: when the input begins: a batch of a later time is the first that may have it.
        report_error: told of a failure that no batch will meet; it ends a query, and surfaces in
            ``awaitTermination`` of a stream.
        batch_ms: batch duration in milliseconds; 0 in queries, which have none.
        tell: tells listeners what becomes of a receiver.
        run_id: name of this run of the stream.
        open_files: opens the files of this run, None without a checkpoint directory.
        uid: name of the input in those files.
        epoch: number of this driver among those that ran the stream.
        newest: what earlier runs planned last of this input, None for nothing.
        past: gives what earlier runs have read of it; raises a CheckpointError where that is lost.
    """

    spark: SparkContext
    clock: Clock
    settings: Settings
    begin_ms: int
    report_error: Callable[[Exception], None]
    batch_ms: int = 0
    tell: Notify = ignore_event
    run_id: str = "run"
    open_files: Callable[[], Files] | None = None
    uid: str = "input"
    epoch: int = 1
    newest: PlannedInput | None = None
    past: Callable[[], InputPast] = InputPast


class SourceReader:
    """A source at work; see the order of calls in the module.

    A source that holds nothing has ``plan`` and ``read`` alone: the other methods do nothing here.

    Attributes:
        limited_as_receiver: as in :class:`RateLimited`, where it can be limited at all.
    """

    limited_as_receiver: ClassVar[bool] = True

    @property
    def forgets(self) -> str | None:
        """Why records are gone with the driver that had them, though the stream can go on."""
        return None

    def start(self) -> None:
        """Take up what earlier runs have read, and begin to receive."""

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        """Decide what a batch reads after *start*: all there is, or less where a limit holds."""
        raise NotImplementedError

    def read(self, planned: PlannedInput) -> RDD[Any] | None:
        """Return the records of a plan, None for no RDD at all.

        Raises:
            SourceError: what the batch has read is not there any more.
        """
        raise NotImplementedError

    def describe(self, planned: PlannedInput) -> InputDescription:
        """Return what listeners are told of a plan."""
        return InputDescription(planned.description)

    def told(self, planned: PlannedInput) -> OffsetProgress:
        """Return what is told of the offsets of a plan, where those on disk say more or less."""
        return OffsetProgress(planned.start, planned.end, planned.end, {})

    def noticed(self, planned: PlannedInput) -> InputDescription:
        """Return what is told besides, once the batch has run: records that were left out."""
        return InputDescription()

    def commit(self, end: Any) -> None:
        """Take note that batches up to *end* count: who has sent these records may forget them."""

    def release(self, end: Any) -> None:
        """Forget what was read up to *end*: no batch of this run uses it any more."""

    def stop_receiving(self) -> None:
        """Receive nothing more; what was received can be read."""

    def has_pending(self) -> bool:
        """Whether something was received that no batch has."""
        return False

    def close(self) -> None:
        """Let go of everything."""


class Source(Protocol):
    """Where the records of an input come from: parameters only, no connection.

    A source that cannot go on after a restart has ``restart_refusal``, which says why
    (:func:`restart_refusal`).
    """

    @property
    def name(self) -> str:
        """Operation or format, and place, for example ``socketTextStream(localhost:9999)``."""
        ...

    def open(self, environment: SourceEnvironment) -> SourceReader: ...


@runtime_checkable
class RateLimited(Protocol):
    """A reader that can hold records back, or leave them with who sends them."""

    @property
    def limited_as_receiver(self) -> bool:
        """Whether ``spark.streaming.receiver.maxRate`` limits it."""
        ...

    def update_rate(self, records_per_second: int) -> None:
        """Give batches that are planned from now on at most this many records a second.

        Called before ``start`` when there is a limit from the beginning, then between batches, on
        any thread; the rate is at least 1, and never above ``spark.streaming.receiver.maxRate``
        where that limits the reader.
        """
        ...


@runtime_checkable
class Pinning(Protocol):
    """A reader that can end at what there is now: those of queries."""

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        """Plan nothing that comes after this moment; all up to it in one batch, if asked to."""
        ...


@runtime_checkable
class ReceivingReader(Protocol):
    """A reader whose records wait in the driver until a batch has them."""

    def waiting_records(self) -> int | None:
        """How many were received and are in no batch; None where nobody knows how many."""
        ...


@runtime_checkable
class SnapshotReader(Protocol):
    """A reader that has to know what all batches before have read, also those of earlier runs."""

    def snapshot_size(self) -> int | None:
        """About how many things a snapshot would name; None where nothing has to be known."""
        ...

    def snapshot(self, end: Any) -> Mapping[str, Any]:
        """What batches have read up to an offset, as JSON.

        It stands for what their begin records say; a restart gives it back as the facts of
        :class:`checkpoint.InputPast`.
        """
        ...

    def retire(self, end: Any) -> None:
        """Give up what only batches up to *end* have read; a snapshot of it is durable."""
        ...


@runtime_checkable
class Explaining(Protocol):
    """A reader whose input may vanish before it has been read."""

    def explain(self, failure: str) -> str | None:
        """Say what to do where a job has failed because an input file is not there."""
        ...


def restart_refusal(source: Source) -> str | None:
    """Say why a source cannot go on after a restart, None when it can."""
    refusal: str | None = getattr(source, "restart_refusal", None)
    return refusal


def loss_with_driver(source: Source, reader: SourceReader) -> str | None:
    """Say why what batches have read is gone with this driver, though the stream can go on."""
    return None if restart_refusal(source) is not None else reader.forgets


def close_all(readers: Iterable[SourceReader]) -> None:
    """Close all; one that fails must keep neither the others nor what runs them open."""
    for reader in readers:
        try:
            reader.close()
        except Exception:
            logger.warning("a source could not be closed", exc_info=True)


def remedy_of(error: BaseException, readers: Iterable[object]) -> str | None:
    """Return what to do about an error of a batch; None where no input has to do with it.

    A reader that cannot be asked is logged and passed over: its trouble does not hide the error.
    """
    if isinstance(error, SourceError):
        return None
    for reader in readers:
        if isinstance(reader, Explaining):
            try:
                remedy = reader.explain(str(error))
            except Exception:
                logger.warning("%s could not be asked about an error", reader, exc_info=True)
                continue
            if remedy is not None:
                return remedy
    return None
