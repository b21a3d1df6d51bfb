"""Lineage: the takeovers that lead to the newest epoch, and the records that therefore count.

A driver that has claimed an epoch writes a *takeover record*, which names the epoch before and its
newest committed batch. From then on, anything that an older driver adds is void, wherever that
driver stopped between its last check for a newer claim and its write::

    epoch 1                  1000  2000  3000  4000*      * after the takeover of epoch 2: void
    epoch 2, takes over 3000                   4000  5000
    epoch 3, takes over 5000                               6000
    records that count       1000  2000  3000  4000  5000  6000

An epoch whose driver died before its takeover is in no lineage. A rewind is a takeover that names
an earlier batch: later batches are void from then on, but their files remain. In a directory
without claims, as tests and tools write it, every record counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from checkpoint.errors import RESTORE, ConcurrentWriterError, CorruptCheckpointError, Damage
from checkpoint.log.fencing import (
    EPOCH_PREFIX,
    TAKEOVER,
    Takeover,
    WriterLease,
    claimed_epochs,
    epoch_file,
    epochs_with,
    read_takeover,
)
from checkpoint.log.record_files import RecordId, create_once, record_frames
from checkpoint.storage.files import Files, location
from checkpoint.storage.framing import FileKind

_READ_AGAIN = 5


@dataclass(frozen=True)
class Lineage:
    """The takeovers, newest first; each is the parent of the one before it.

    Without any claim (*is_claimed*) every record counts.
    """

    takeovers: tuple[Takeover, ...]
    is_claimed: bool = True

    @property
    def head(self) -> int:
        """The newest epoch with a takeover, or 0."""
        return self.takeovers[0].epoch if self.takeovers else 0

    @property
    def epochs(self) -> frozenset[int]:
        """The epochs of this lineage."""
        return frozenset(takeover.epoch for takeover in self.takeovers)

    def commits(self, ids: Iterable[RecordId]) -> list[RecordId]:
        """Return the commit records that count, oldest first, one per batch."""
        if not self.is_claimed:
            return sorted({record_id.time_ms: record_id for record_id in sorted(ids)}.values())
        spans = {epoch: (after_ms, upto_ms) for epoch, after_ms, upto_ms in self._spans()}
        return sorted(
            one for one in ids if one.epoch in spans and _is_inside(one.time_ms, *spans[one.epoch])
        )

    def begins(self, ids: Iterable[RecordId]) -> dict[int, RecordId]:
        """Return the begin record of each batch, by its time, oldest first.

        For a committed batch it is the record that the commit followed; for any other, the record
        that the newest epoch wrote or took over.
        """
        there = set(ids)
        if not self.is_claimed:
            return {record_id.time_ms: record_id for record_id in sorted(there)}
        found: dict[int, RecordId] = {}
        for takeover, (epoch, after_ms, upto_ms) in zip(self.takeovers, self._spans(), strict=True):
            own = [record_id for record_id in there if record_id.epoch == epoch]
            # A batch that the epoch began itself comes before one that it took over.
            for begun in (*sorted(own), *takeover.begins):
                if begun in there and _is_inside(begun.time_ms, after_ms, upto_ms):
                    found.setdefault(begun.time_ms, begun)
        return dict(sorted(found.items()))

    def snapshots(self, ids: Iterable[RecordId]) -> list[RecordId]:
        """Return the snapshots of the graph or the inputs that count, the newest first."""
        if self.is_claimed:
            spans = {epoch: upto_ms for epoch, _, upto_ms in self._spans(for_snapshots=True)}
            ids = [
                one
                for one in ids
                if one.epoch in spans and _is_inside(one.time_ms, -1, spans[one.epoch])
            ]
        return sorted(ids, key=lambda one: (one.epoch, one.time_ms), reverse=True)

    def _spans(self, for_snapshots: bool = False) -> list[tuple[int, int, int | None]]:
        """Return (epoch, after, up to) for each takeover: the times between which records count.

        A snapshot is written before the first batch of its epoch, so it counts even if no batch was
        committed.
        """
        spans: list[tuple[int, int, int | None]] = []
        limit: int | None = None
        for takeover in self.takeovers:
            after_ms = -1 if takeover.upto_ms is None else takeover.upto_ms
            spans.append((takeover.epoch, after_ms, limit))
            if takeover.upto_ms is None:
                limit = limit if for_snapshots else -1
            else:
                limit = takeover.upto_ms if limit is None else min(limit, takeover.upto_ms)
        return spans


def _is_inside(time_ms: int, after_ms: int, upto_ms: int | None) -> bool:
    return after_ms < time_ms and (upto_ms is None or time_ms <= upto_ms)


def read_lineage(files: Files, known: Lineage | None = None) -> Lineage:
    """Read the lineage of a stream. Raises CorruptCheckpointError or StorageRefusedError."""
    for _ in range(_READ_AGAIN):
        # A newer driver may be deleting old epochs.
        with suppress(FileNotFoundError):
            names = files.list(EPOCH_PREFIX)
            there = epochs_with(names, TAKEOVER)
            if not there:
                return Lineage((), bool(names))
            return lineage_from(files, max(there), there, known)
    file = location(files, EPOCH_PREFIX.rstrip("/"))
    raise CorruptCheckpointError(
        file, "has takeovers that cannot be read", "takeovers", RESTORE, Damage.BUSY
    )


def lineage_from(
    files: Files, head: int, there: Iterable[int], known: Lineage | None = None
) -> Lineage:
    """Read the lineage that ends with the epoch *head*; *there* are the epochs with a takeover."""
    takeovers: list[Takeover] = []
    read = {} if known is None else {takeover.epoch: takeover for takeover in known.takeovers}
    left, epoch = set(there), head
    while epoch in left:
        takeover = read.get(epoch) or read_takeover(files, epoch)
        if takeovers and takeover.token != takeovers[-1].parent_token:
            raise _of_a_copy(files, epoch_file(epoch, TAKEOVER))
        takeovers.append(takeover)
        parent = takeover.parent
        if parent is None:
            break
        epoch = parent
    return Lineage(tuple(takeovers))


def require_written_under(takeover: Takeover, token: str, files: Files, name: str) -> None:
    """Raise CorruptCheckpointError if a file of an epoch was written under another claim."""
    if token and takeover.token and token != takeover.token:
        raise _of_a_copy(files, name)


def _of_a_copy(files: Files, name: str) -> CorruptCheckpointError:
    found = "is of another copy of this stream, which ran on separately"
    return CorruptCheckpointError(
        location(files, name), found, "one of this copy", RESTORE, Damage.ANOTHER_COPY
    )


def write_takeover(lease: WriterLease, takeover: Takeover) -> None:
    """Write the takeover of an epoch; from now on, anything that older epochs add is void.

    The caller checks the lease after that. Raises ConcurrentWriterError or CheckpointError.
    """
    parent_token = takeover.parent_token
    if takeover.parent is not None and not parent_token:
        with suppress(FileNotFoundError):
            parent_token = read_takeover(lease.files, takeover.parent).token
    takeover = replace(takeover, token=lease.claim.token, parent_token=parent_token)
    header = {"stream_id": takeover.stream_id, "epoch": takeover.epoch}
    frames = record_frames(FileKind.TAKEOVER, header, takeover)

    def taken() -> Exception:
        newest = max(claimed_epochs(lease.files), default=0)
        return ConcurrentWriterError(
            f"epoch {takeover.epoch} of {lease.files.url} has another takeover already; only one "
            "driver may run on a checkpoint, stop this one",
            takeover.epoch,
            newest,
        )

    what = f"the takeover of epoch {takeover.epoch} may or may not exist"
    create_once(lease.files, epoch_file(takeover.epoch, TAKEOVER), frames, taken, what)
