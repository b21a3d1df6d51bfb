"""Which batch an output is called for, and the rule by which an output has each batch once.

What is written names the *beginning* of its batch: the random id in the begin record, which a batch
keeps when a crash has cut it off and it runs again, whoever has taken the checkpoint over. What is
found is believed if it names that beginning. Else it is an error: nothing is replaced, and nothing
is left out. Numbers, times and epochs cannot tell that, because an older copy of a checkpoint that
is put back goes on with the same ones, and other input.

============================================ =================== =========================
what happened                                what is found       what the batch does
============================================ =================== =========================
it runs for the first time                   nothing             is written
a crash cut it off before, or after          nothing, or itself  is written, or believed
a newer driver took over, both write it      itself              is believed
an output of it failed, and it runs again    itself, or a part   is believed, or completed
``rewind``: later batches run again, the same itself, or nothing  is believed, or written
a copy goes on while it was running          itself              is believed
an older copy was put back, or two run       another history     error, the stream stops
... and the batches between were left out    another history     error, the stream stops
``restore`` adds an input that has records   its old self        error, the stream stops
another stream writes to the same name       another stream      error, the stream stops
============================================ =================== =========================

The last batch of an ``export``, or of a copied directory, may have been running: both go on with it
as one beginning, and the same input. Without a checkpoint directory there are no begin records, and
the beginning is empty: such a stream never runs a batch twice, and each run has an id of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from dstreams.errors import OutputConflictError
from dstreams.sinks.promise import DeliveryGuarantee


@dataclass(frozen=True)
class OutputBatch:
    """A batch of one stream, the same in every run of it, also after a restart.

    Args:
        stream_id: identity of the stream over all its restarts; a stream that begins anew has
            another one.
        batch_id: 0, 1, 2, ...
        time_ms: batch time in milliseconds since the epoch.
        batch_token: random id of the begin record, which distinguishes the batch from one with the
            same number in a copy of the checkpoint; empty without a checkpoint directory.
        left_out: numbers of the batches that this stream has left out when it went on last. What
            an output has of them is of another history.
        newest: number of the newest batch that was begun; what an output has of later ones is of
            another history. None where that is not known.
        gap: numbers of the batches that were left out right before this one; empty for most.
    """

    stream_id: str
    batch_id: int
    time_ms: int
    batch_token: str = ""
    left_out: range = range(0)
    newest: int | None = None
    gap: range = range(0)

    def is_foreign(self, batch_id: int) -> bool:
        """Whether what an output has of a batch can only be of another history.

        This one has left the batch out, or not begun it.
        """
        if batch_id in self.left_out or batch_id in self.gap:
            return True
        return self.newest is not None and batch_id > self.newest

    def require_own(self, place: str, batch_id: int, beginning: str, remedy: str) -> None:
        """Return if what an output has is this batch, so that it is not to be written again.

        Args:
            place: the output, for the message.
            batch_id: number of the batch that is found there.
            beginning: its beginning.
            remedy: how to remove that batch and all after it, as an order.

        Raises:
            OutputConflictError: it is of another history of the checkpoint.
        """
        if (batch_id, beginning) == (self.batch_id, self.batch_token):
            return
        found, own = beginning or "unknown", self.batch_token or "unknown"
        raise OutputConflictError(
            f"{place} has batch {batch_id} of {self.stream_id}, beginning {found}; this is batch "
            f"{self.batch_id}, beginning {own}. So another history of the checkpoint has written "
            "there: an older copy of it was put back, or a copy runs as well, or an input was "
            "added while this batch was to run again. Records would be lost or doubled, so nothing "
            "is written. Go on with the checkpoint that wrote it (after an added input: with the "
            f"code of before, until that has stopped); or {remedy}, and start again: then this "
            "batch runs again"
        )


_TOLD = DeliveryGuarantee(
    "at least once",
    "a batch that a crash cut off is written again; the sink is told its beginning, and has it "
    "exactly once where it keeps that beside the rows, in one transaction",
)


class BatchSink(ABC):
    """An output that knows its batches, to be handed to ``foreachRDD``.

    For outputs that write a batch once by themselves, as ``TransactionalSink`` does: keep
    ``stream_id``, ``batch_id`` and ``beginning`` of the batch beside its rows, in one transaction;
    where the batch is there already call :meth:`OutputBatch.require_own`, and leave it out.

    Attributes:
        identity: what tells apart the batches of this output from those of others of the stream,
            for people to read; two with one identity are refused. None: nothing needs to.
        promise: what ``explain`` says of it; a sink that has each batch once says so by a
            :class:`dstreams.sinks.DeliveryGuarantee` of its own.
    """

    identity: str | None = None
    promise: DeliveryGuarantee = _TOLD

    @abstractmethod
    def write_batch(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        """Write one batch, on the driver; a batch that is there already is not written again."""
