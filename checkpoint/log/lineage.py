"""Lineage: which epochs of a stream follow from each other, and so which of their records count.

A driver that has claimed an epoch writes a *takeover record*: it names the epoch before, and the
newest committed batch of that one. From then on nothing that an older driver adds can count,
wherever between its last look for a newer claim and its write that driver was stopped::

    epoch 1                  1000  2000  3000  4000*      * after the takeover of epoch 2: void
    epoch 2, takes over 3000                   4000  5000
    epoch 3, takes over 5000                               6000
    what counts              1000  2000  3000  4000  5000  6000

An epoch whose driver died before its takeover is in no lineage. A rewind is a takeover that names
an earlier batch: what comes after that batch is void from then on, but still there. In a directory
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
    WriterLease,
    claimed_epochs,
    epoch_file,
    epochs_with,
)
from checkpoint.log.record_files import RecordId, create_once, read_record, record_frames
from checkpoint.storage.files import Files, location
from checkpoint.storage.framing import FileKind
from checkpoint.storage.json_records import JsonRecord

_READ_AGAIN = 5


class Takeover(JsonRecord, frozen=True):
    """What an epoch builds on.

    Args:
        stream_id: id of the stream.
        epoch: the epoch.
        parent: the epoch before it; None for the first one of a stream.
        upto_ms: time of the newest committed batch of that lineage that still counts; None when
            no batch does.
        begins: batches after that one which were begun, in that lineage, and have to run again.
        reason: why the epoch began: ``"start"``, ``"rewind"``, ``"import"``.
        token: that of the claim of the epoch; set by :func:`write_takeover`.
        parent_token: that of the parent; read by :func:`write_takeover` where it is empty.
    """

    stream_id: str
    epoch: int
    parent: int | None
    upto_ms: int | None
    begins: tuple[RecordId, ...] = ()
    reason: str = "start"
    token: str = ""
    parent_token: str = ""

    def __post_init__(self) -> None:
        if self.parent is None and (self.upto_ms is not None or self.begins):
            raise ValueError(f"the first epoch of a stream builds on nothing, got {self}")
        if self.parent is not None and not 0 <= self.parent < self.epoch:
            raise ValueError(f"epoch {self.epoch} must build on an older one, got {self.parent}")


@dataclass(frozen=True)
class Lineage:
    """The takeovers from the newest epoch back to the oldest that is still known.

    Args:
        takeovers: newest first; each is the parent of the one before it. Empty when there is none.
        is_claimed: whether there is any claim; without one everything counts.
    """

    takeovers: tuple[Takeover, ...]
    is_claimed: bool = True

    @property
    def head(self) -> int:
        """The newest epoch that has a takeover; 0 when there is none."""
        return self.takeovers[0].epoch if self.takeovers else 0

    @property
    def epochs(self) -> frozenset[int]:
        """The epochs of this lineage."""
        return frozenset(takeover.epoch for takeover in self.takeovers)

    def commits(self, ids: Iterable[RecordId]) -> list[RecordId]:
        """Return those of the commit records *ids* that count, oldest first, one a batch."""
        if not self.is_claimed:
            return sorted({record_id.time_ms: record_id for record_id in sorted(ids)}.values())
        by_epoch: dict[int, list[RecordId]] = {}
        for record_id in ids:
            by_epoch.setdefault(record_id.epoch, []).append(record_id)
        counted: list[RecordId] = []
        for epoch, after_ms, upto_ms in self._spans():
            counted += (
                record_id
                for record_id in by_epoch.get(epoch, ())
                if after_ms < record_id.time_ms
                and (upto_ms is None or record_id.time_ms <= upto_ms)
            )
        return sorted(counted)

    def begins(self, ids: Iterable[RecordId]) -> dict[int, RecordId]:
        """Return the begin record of each batch, by its time, oldest first.

        Of a batch that was committed it is the record that the commit followed from; of one that
        was not, the record that the newest epoch wrote, or took over.
        """
        there = set(ids)
        if not self.is_claimed:
            return {record_id.time_ms: record_id for record_id in sorted(there)}
        found: dict[int, RecordId] = {}
        for takeover, (epoch, after_ms, upto_ms) in zip(self.takeovers, self._spans(), strict=True):
            own = [record_id for record_id in there if record_id.epoch == epoch]
            # What the epoch has begun anew stands before what it took over.
            for begun in (*sorted(own), *takeover.begins):
                if begun in there and _is_inside(begun.time_ms, after_ms, upto_ms):
                    found.setdefault(begun.time_ms, begun)
        return dict(sorted(found.items()))

    def snapshots(self, ids: Iterable[RecordId]) -> list[RecordId]:
        """Return those of *ids* that count, the newest first: records that stand for all before.

        They may be written before the first batch of their epoch.
        """
        if not self.is_claimed:
            return sorted(ids, key=lambda graph: (graph.epoch, graph.time_ms), reverse=True)
        counted: list[RecordId] = []
        spans = {epoch: upto_ms for epoch, _, upto_ms in self._spans(for_snapshots=True)}
        for record_id in ids:
            upto_ms = spans.get(record_id.epoch, -1)
            if upto_ms is None or record_id.time_ms <= upto_ms:
                counted.append(record_id)
        return sorted(counted, key=lambda graph: (graph.epoch, graph.time_ms), reverse=True)

    def _spans(self, for_snapshots: bool = False) -> list[tuple[int, int, int | None]]:
        """Return (epoch, after, up to) for each takeover: between which times its records count.

        A snapshot is written before the first batch of its epoch: where no batch was committed, it
        counts nevertheless.
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
    """Read which epochs of a stream follow from each other.

    Raises CorruptCheckpointError or StorageRefusedError.
    """
    for _ in range(_READ_AGAIN):
        # A newer driver may be deleting epochs of which nothing is left.
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
    """Read the lineage that ends with the epoch *head*, of the takeovers that are *there*."""
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
    """Raise CorruptCheckpointError if a file of an epoch was written under another claim.

    So it was in a copy of the stream that went on by itself.
    """
    if token and takeover.token and token != takeover.token:
        raise _of_a_copy(files, name)


def _of_a_copy(files: Files, name: str) -> CorruptCheckpointError:
    found = "is of another copy of this stream, which went on by itself"
    return CorruptCheckpointError(
        location(files, name), found, "one of this copy", RESTORE, Damage.ANOTHER_COPY
    )


def read_takeover(files: Files, epoch: int) -> Takeover:
    """Read what an epoch builds on.

    Raises FileNotFoundError or CorruptCheckpointError.
    """
    name, what = epoch_file(epoch, TAKEOVER), "the takeover of an epoch"
    takeover = read_record(files, name, FileKind.TAKEOVER, {"epoch": epoch}, Takeover, what)
    if takeover.epoch != epoch:
        found = f"is the takeover of epoch {takeover.epoch}"
        raise CorruptCheckpointError(
            location(files, name), found, f"of epoch {epoch}", RESTORE, Damage.MISPLACED
        )
    return takeover


def write_takeover(lease: WriterLease, takeover: Takeover) -> None:
    """Write down what an epoch builds on; from now on what older epochs add is void.

    Raises ConcurrentWriterError or CheckpointError.
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

    what = f"the takeover of epoch {takeover.epoch} may be there or not"
    create_once(lease.files, epoch_file(takeover.epoch, TAKEOVER), frames, taken, what)
    lease.check()
