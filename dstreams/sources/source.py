"""What a source is: a value in the graph, and the reader that is opened from it when streams start.

The calls come in this order, all but ``start``'s own threads from the driver's scheduler:

1. ``source.open(environment)`` once, when the context starts: a reader that does nothing yet. If
   it has ``update_rate`` (:class:`RateLimited`), that may be called now, and after any batch.
2. ``reader.start()``: begins to receive; refuses here what can never work.
3. For each batch: ``reader.plan(batch_time_ms)`` decides what the batch reads, before anything
   runs, and ``reader.rdd(planned)`` turns that decision into an RDD. Times only grow from plan to
   plan; making the RDD of one plan twice gives the same records.
4. ``reader.release(batch_time_ms)``: batches up to and with this time are not read again by this
   run. A :class:`DurableReader` is also told ``retire(batch_time_ms)``, now and then: no later run
   reads them again either, because what was made of them is durable, and the records of what they
   have read are deleted, so that a rewind cannot go there.
   A :class:`ReplayableReader` says of each plan, for the log of batches, what makes it again: after
   a restart ``reader.replay(batch_time_ms, recorded)`` takes the place of ``plan``. One that can do
   so only with certain settings says by ``forgets`` that it cannot.
5. ``reader.stop_receiving()``, then batches as long as ``reader.has_pending()``, then
   ``reader.close()``. Both may come twice, and ``close`` may come at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pyspark import RDD, SparkContext

from checkpoint import Files, RecordId
from dstreams.clock import Clock
from dstreams.errors import SourceError
from dstreams.events import Tell, tell_nobody
from dstreams.settings import Settings

logger = logging.getLogger(__name__)


def _nothing(uid: str) -> Mapping[RecordId, object]:
    """Return what there is of an input before the first run."""
    return {}


@dataclass(frozen=True)
class SourceEnvironment:
    """What a reader may use of the running context.

    Args:
        spark: context that makes the RDDs.
        clock: the driver's clock.
        settings: settings of the streaming context.
        batch_ms: batch duration in milliseconds.
        report_error: tells the context of a failure that no batch will meet; it surfaces in
            ``awaitTermination``.
        zero_ms: zero time of the stream: the first batch is one batch duration later.
        tell: tells listeners what becomes of a receiver.
        run_id: name of this run of the stream.
        open_files: opens the files of this run, None without a checkpoint directory.
        uid: name of the input stream in those files.
        planned_upto_ms: time of the last batch that an earlier run planned, None when there is no
            earlier run or nobody knows: a batch up to then is planned again, not anew.
        epoch: number of this driver among those that ran the stream.
        newest_records: the newest records in the logs of inputs that an earlier run began a batch
            with, by the directory of the log.
        begun: gives what the begin records of an earlier run say of an input, by its uid.
    """

    spark: SparkContext
    clock: Clock
    settings: Settings
    batch_ms: int
    report_error: Callable[[Exception], None]
    zero_ms: int = 0
    tell: Tell = tell_nobody
    run_id: str = "run"
    open_files: Callable[[], Files] | None = None
    uid: str = "input"
    planned_upto_ms: int | None = None
    epoch: int = 1
    newest_records: Mapping[str, RecordId] = field(default_factory=dict)
    begun: Callable[[str], Mapping[RecordId, object]] = _nothing


@dataclass(frozen=True)
class PlannedInput:
    """What one batch reads from one source.

    Args:
        batch_time_ms: the batch.
        content: what the reader needs to make the RDD; None means that there is no RDD at all.
        records: how many records that is, None where counting would cost a job.
        description: the same for people, one line.
    """

    batch_time_ms: int
    content: Any
    records: int | None
    description: str


class SourceReader(Protocol):
    """A source at work; see the order of calls in the module."""

    def start(self) -> None: ...

    def plan(self, batch_time_ms: int) -> PlannedInput: ...

    def rdd(self, planned: PlannedInput) -> RDD[Any] | None: ...

    def release(self, batch_time_ms: int) -> None: ...

    def stop_receiving(self) -> None: ...

    def has_pending(self) -> bool: ...

    def close(self) -> None: ...


@runtime_checkable
class RateLimited(Protocol):
    """A reader that can hold records back, or leave them with who sends them."""

    def update_rate(self, records_per_second: int) -> None:
        """Give batches that are planned from now on at most this many records a second.

        Called before ``start`` when there is a limit from the beginning, then between batches, on
        any thread; the rate is at least 1 and never above ``spark.streaming.receiver.maxRate``.
        """
        ...


@runtime_checkable
class ReceivingReader(Protocol):
    """A reader whose records wait in the driver until a batch has them."""

    def waiting_records(self) -> int | None:
        """How many were received and are in no batch; None where nobody knows how many."""
        ...


@runtime_checkable
class DurableReader(Protocol):
    """A reader that keeps, in the files of its run, what its batches read."""

    def retire(self, batch_time_ms: int) -> None: ...


@runtime_checkable
class LoggedReader(Protocol):
    """A reader whose batches follow from one log, record by record."""

    @property
    def newest_records(self) -> Mapping[str, RecordId]:
        """The newest record, by the directory of the log.

        The begin record of each batch names it, and a restart gives it back as
        :attr:`SourceEnvironment.newest_records`.
        """
        ...


@runtime_checkable
class ReplayableReader(Protocol):
    """A reader that can give a batch of an earlier run again, exactly."""

    def recorded(self, planned: PlannedInput) -> Mapping[str, object]:
        """What the log of batches keeps of a plan: JSON."""
        ...

    def replay(self, batch_time_ms: int, recorded: Mapping[str, object]) -> PlannedInput:
        """Plan a batch again as :meth:`recorded` said.

        Raises:
            SourceError: what the batch has read is not there any more.
        """
        ...


@runtime_checkable
class Explaining(Protocol):
    """A reader whose input may vanish before it has been read."""

    def explain(self, failure: str) -> str | None:
        """Say what to do where a job has failed because an input file is not there."""
        ...


@runtime_checkable
class ReaderOfFiles(Explaining, Protocol):
    """A reader that passes over files that have vanished, where a setting says so."""

    def noticed(self, planned: PlannedInput) -> str:
        """Say, once its batch has run, what of a plan was skipped; empty for nothing."""
        ...


def explanation(error: BaseException, readers: Iterable[object]) -> str | None:
    """Say what to do about an error of a batch; None where no input has to do with it.

    A reader that cannot be asked is logged and passed over: its trouble does not hide the error.

    Args:
        error: of the batch. That of a source says so itself.
        readers: of the inputs.
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


class Source(Protocol):
    """Where an input stream's records come from: parameters only, no connection.

    A source that cannot go on after a restart has ``restart_refusal``, which says why
    (:func:`restart_refusal`).
    """

    @property
    def name(self) -> str:
        """Operation and place, for example ``socketTextStream(localhost:9999)``."""
        ...

    def open(self, environment: SourceEnvironment) -> SourceReader: ...


def restart_refusal(source: Source) -> str | None:
    """Say why a source cannot go on after a restart, None when it can."""
    refusal: str | None = getattr(source, "restart_refusal", None)
    return refusal


def is_lost_with_driver(source: Source, reader: SourceReader) -> bool:
    """Whether what batches have read is gone with this driver, though the stream can go on."""
    if restart_refusal(source) is not None:
        return False
    forgets: bool = getattr(reader, "forgets", not isinstance(reader, ReplayableReader))
    return forgets


def close_all(readers: Iterable[SourceReader]) -> None:
    """Close all; one that fails must keep neither the others nor the context open."""
    for reader in readers:
        try:
            reader.close()
        except Exception:
            logger.warning("a source could not be closed", exc_info=True)
