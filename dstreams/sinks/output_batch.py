"""Batches as outputs see them, and the rule by which an output contains each batch once.

An output stores the token of each batch, a random id from its begin record. A batch keeps its token
when it runs again after a crash, also under another driver. An output that finds the same token has
the batch already. Any other token is an error: nothing is replaced or skipped. Numbers, times and
epochs would not do, because a restored older copy of a checkpoint uses them again for other input.

============================================= =================== ========================
event                                         found in the output consequence
============================================= =================== ========================
first run                                     nothing             written
crash before or after the output              nothing, or itself  written, or accepted
a newer driver took over, both write it       itself              accepted
an output failed, and the batch runs again    itself, or a part   accepted, or completed
``rewind``: later batches run again unchanged itself, or nothing  accepted, or written
a copy of the running checkpoint is resumed   itself              accepted
an older copy was restored, or two copies run another history     error, the stream stops
... and the batches between were skipped      another history     error, the stream stops
``restore`` adds an input that has records    its earlier run     error, the stream stops
another stream writes to the same name        another stream      error, the stream stops
============================================= =================== ========================

The last batch of an ``export``, or of a copied directory, may have been running: both run
it with the same token and input. Without a checkpoint directory, the token is empty: such a stream
never runs a batch twice, and each run has its own id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from pyspark import RDD

from dstreams.errors import OutputConflictError

Guarantee = Literal["exactly once", "at least once", "at most once"]


@dataclass(frozen=True)
class DeliveryGuarantee:
    """A guarantee that holds across failures, under a *condition*."""

    guarantee: Guarantee
    condition: str


AT_LEAST_ONCE = DeliveryGuarantee(
    "at least once", "a batch that a crash interrupted is written again, with the same records"
)

WITHOUT_CHECKPOINT = DeliveryGuarantee(
    "at most once",
    "without a checkpoint directory no batch runs twice, and a batch that is running when the "
    "driver ends is lost",
)


@dataclass(frozen=True)
class OutputBatch:
    """A batch of one stream, the same in every run of it, also after a restart.

    Args:
        stream_id: identity of the stream across restarts; a stream without the checkpoint of the
            earlier one has another id.
        batch_id: 0, 1, 2, ...
        time_ms: batch time in milliseconds since the epoch.
        batch_token: random id of the begin record, which distinguishes the batch from one with the
            same number in a copy of the checkpoint; empty without a checkpoint directory.
        left_out: numbers of the batches that this stream skipped when it last resumed. An output
            that has one of them belongs to another history of the checkpoint.
        newest: number of the newest begun batch. An output that has a later one belongs to another
            history. None if unknown.
        gap: numbers of the batches that were skipped right before this one; usually empty.
    """

    stream_id: str
    batch_id: int
    time_ms: int
    batch_token: str = ""
    left_out: range = range(0)
    newest: int | None = None
    gap: range = range(0)

    def is_foreign(self, batch_id: int) -> bool:
        """Return whether this history of the checkpoint skipped a batch, or has not begun it."""
        if batch_id in self.left_out or batch_id in self.gap:
            return True
        return self.newest is not None and batch_id > self.newest

    def require_own(self, place: str, batch_id: int, beginning: str, remedy: str) -> None:
        """Return if an output already has this batch, which is then not written again.

        Args:
            place: the output, for the message.
            batch_id: number of the batch found there.
            beginning: token of the batch found there.
            remedy: instruction to remove that batch and all later ones.

        Raises:
            OutputConflictError: the batch found there belongs to another history of the checkpoint.
        """
        if (batch_id, beginning) == (self.batch_id, self.batch_token):
            return
        found, own = beginning or "unknown", self.batch_token or "unknown"
        raise OutputConflictError(
            f"{place} has batch {batch_id} of {self.stream_id} with token {found}; this is batch "
            f"{self.batch_id} with token {own}. Another history of the checkpoint has written "
            "there: an older copy was restored, a copy runs at the same time, or an input was "
            "added while this batch had to run again. Nothing is written, because records would "
            "be lost or duplicated. Resume the checkpoint that wrote it (after an added input: "
            f"with the earlier code, until the stream has stopped); or {remedy}, and restart, "
            "which runs this batch again"
        )


_WITH_TOKEN = DeliveryGuarantee(
    "at least once",
    "a batch that a crash interrupted is written again; exactly once if the sink stores the batch "
    "token with the rows, in one transaction",
)


class BatchSink(ABC):
    """Base class of outputs that recognize their batches, for ``foreachRDD``.

    To write each batch exactly once, as ``TransactionalSink`` does, store ``stream_id``,
    ``batch_id`` and ``batch_token`` of the batch with its rows, in one transaction. If the batch is
    already stored, call :meth:`OutputBatch.require_own`, and skip it.

    Attributes:
        identity: distinguishes this output from others of the stream, as readable text. Two outputs
            with the same identity are refused. None if no distinction is needed.
        promise: the guarantee that ``explain`` prints; an exactly-once sink sets its own
            :class:`dstreams.sinks.DeliveryGuarantee`.
    """

    identity: str | None = None
    promise: DeliveryGuarantee = _WITH_TOKEN

    @abstractmethod
    def write_batch(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        """Write one batch, on the driver, unless it is already written."""
