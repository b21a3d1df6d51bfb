"""File log: which files each batch of an input stream reads, written before it reads them.

Two kinds of record, both created once and never changed:

======== =====================================================================================
base     one at the start of a stream, and later ones that stand for all batches up to a time:
         from when on files are new, which were there before, which have been taken
batch    the files of one batch; a batch without files has none
======== =====================================================================================

Whoever opens the log takes the newest base and the batches after it, and knows every file that must
not be taken again; a batch that was recorded can be given its files again. Where the record of a
batch could not be created for certain, a later batch takes its files: the newest record that names
a file counts. Of what older drivers have recorded that counts which the newer one took over
(:mod:`checkpoint.lineage`).

A batch without files has no record, so each record names the one before it, and the begin record of
each batch the newest: a record that is lost is missed, and its files are not taken for new ones.

>>> log = FileLog(open_files("memory://files"), "stream-1", "lines")
>>> log.compact(FileBase(upto_ms=0, new_since_ms=0, settled_ms=0))
>>> log.record(FileBatch(1000, 1000, (FileStamp("file:/in/a.txt", 900, 12),)))
>>> log.load().batches[1000].files[0].path
'file:/in/a.txt'
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from checkpoint.errors import RESTORE, ConcurrentWriterError, CorruptCheckpointError
from checkpoint.fencing import require_newest
from checkpoint.files import READ_CHUNK_BYTES, Files, location
from checkpoint.framing import FileKind, read_frames, write_frames
from checkpoint.json_records import Count, JsonRecord, Text, convert, decode, encode
from checkpoint.lineage import Lineage, read_lineage
from checkpoint.names import uid_part
from checkpoint.record_files import (
    RecordId,
    create_once,
    record_ids,
    require_header,
)

FILES_PREFIX = "files/"

_FILES_IN_BLOCK = 1000
_WHAT = "a file log"


class FileStamp(NamedTuple):
    """A file as a listing shows it.

    Args:
        path: path or URL.
        modified_ms: modification time.
        size_bytes: size.
    """

    path: str
    modified_ms: int
    size_bytes: int


@dataclass(frozen=True)
class FileBatch:
    """What one batch reads.

    Args:
        batch_time_ms: time of the batch.
        settled_ms: what has appeared up to then was taken, now or before; older than the batch
            where files have to wait.
        files: the files, in the order in which they are read.
    """

    batch_time_ms: int
    settled_ms: int
    files: tuple[FileStamp, ...]


@dataclass(frozen=True)
class FileBase:
    """What all batches up to a time come to.

    Args:
        upto_ms: time of the last batch that this stands for; the start, in the first one.
        new_since_ms: files modified up to then are not new.
        settled_ms: as in :class:`FileBatch`.
        there_before: files that were there at the start and do not count.
        taken: files that were taken, as far as they are still there.
    """

    upto_ms: int
    new_since_ms: int
    settled_ms: int
    there_before: tuple[FileStamp, ...] = ()
    taken: tuple[FileStamp, ...] = ()


@dataclass(frozen=True)
class FileHistory:
    """Everything that a log says.

    Args:
        base: the newest base.
        batches: every batch that has a record, by its time, oldest first; each file in the newest
            that names it.
    """

    base: FileBase
    batches: Mapping[int, FileBatch]

    @property
    def settled_ms(self) -> int:
        """What has appeared up to then was taken."""
        newest = max(self.batches, default=self.base.upto_ms)
        is_newer = newest > self.base.upto_ms
        return self.batches[newest].settled_ms if is_newer else self.base.settled_ms


class _LogHeader(JsonRecord, frozen=True):
    """What every file of a log says of itself."""

    stream_id: Text
    input_uid: Text
    epoch: Count
    settled_ms: int


class _BatchHeader(_LogHeader, frozen=True):
    """What the file of a batch says of itself."""

    batch_time_ms: Count
    previous: RecordId | None


class _BaseHeader(_LogHeader, frozen=True):
    """What the file of a base says of itself."""

    upto_ms: int
    new_since_ms: int


_Header = TypeVar("_Header", bound=_LogHeader)


class _Linked(NamedTuple):
    """A batch, and the record before its own."""

    batch: FileBatch
    previous: RecordId | None


class FileLog:
    """The records of one input stream among *files*.

    Args:
        files: where they are.
        stream_id: id of the stream that the input belongs to, the same over all its restarts.
        input_uid: uid of the input stream.
        epoch: epoch of this driver.
        begun_with: the newest records that a batch names, by the directory of their log
            (:class:`checkpoint.batch_log.BeginRecord`).
    """

    def __init__(
        self,
        files: Files,
        stream_id: str,
        input_uid: str,
        epoch: int = 1,
        begun_with: Mapping[str, RecordId] | None = None,
    ) -> None:
        if not stream_id or not input_uid or epoch < 0:
            raise ValueError(
                f"a file log needs the ids of stream and input and an epoch from 0 on, got "
                f"{stream_id!r}, {input_uid!r}, {epoch}"
            )
        self.files = files
        self.epoch = epoch
        self._ids = {"stream_id": stream_id, "input_uid": input_uid}
        self._directory = f"{FILES_PREFIX}{uid_part(input_uid)}"
        self._newest = self._before = (begun_with or {}).get(self._directory)

    @property
    def newest_records(self) -> dict[str, RecordId]:
        """The newest record by the directory, for the begin record of a batch."""
        return {} if self._newest is None else {self._directory: self._newest}

    def record(self, batch: FileBatch) -> None:
        """Record durably what a batch reads, if there is no record of that batch.

        Recording the same again is fine. After an error the batch must not read them.

        Raises:
            ConcurrentWriterError: the batch was recorded with other files.
            StorageRefusedError: the record was not created.
            StorageUncertainError: the record cannot be read back, and may still appear.
            NotDurableError: the record can be seen, and may not survive a power loss.
        """
        record_id = RecordId(batch.batch_time_ms, self.epoch)
        previous = self._before if record_id == self._newest else self._newest
        header = {
            **self._ids,
            "epoch": self.epoch,
            "batch_time_ms": batch.batch_time_ms,
            "settled_ms": batch.settled_ms,
            "previous": previous,
        }
        frames = write_frames(FileKind.FILES, header, _blocks("files", batch.files))
        what = f"the files of the batch at {batch.batch_time_ms} ms"
        self._create(self._batch_name(record_id), frames, what)
        self._newest, self._before = record_id, previous

    def compact(self, base: FileBase) -> None:
        """Create a base durably, then delete the older ones and the batches that it stands for.

        The first one begins the log. Doing it again, or after a crash half way, is fine.

        Raises:
            ValueError: the base that counts is of a later time, so this one would not count, and
                what it stands for would be lost.
            CheckpointError: as in :meth:`record`; without a new base nothing is deleted, nor where
                a newer driver has taken over.
        """
        require_newest(self.files, self.epoch)
        counting = self._newest_base(read_lineage(self.files))
        if counting is not None and counting.time_ms > base.upto_ms:
            raise ValueError(
                f"a base up to {base.upto_ms} ms of {location(self.files, self._directory)} cannot "
                f"follow the one up to {counting.time_ms} ms"
            )
        header = {
            **self._ids,
            "epoch": self.epoch,
            "upto_ms": base.upto_ms,
            "new_since_ms": base.new_since_ms,
            "settled_ms": base.settled_ms,
        }
        blocks = itertools.chain(
            _blocks("there_before", base.there_before), _blocks("taken", base.taken)
        )
        frames = write_frames(FileKind.FILES, header, blocks)
        what = f"the base up to {base.upto_ms} ms"
        self._create(self._base_name(RecordId(base.upto_ms, self.epoch)), frames, what)
        self._newest = self._newest or RecordId(base.upto_ms, self.epoch)
        require_newest(self.files, self.epoch)
        for record_id in self._ids_of("batches", ".batch"):
            if record_id.time_ms <= base.upto_ms:
                self.files.delete(self._batch_name(record_id))
        for record_id in self._ids_of("bases", ".base"):
            if record_id.time_ms < base.upto_ms:
                self.files.delete(self._base_name(record_id))

    def load(self, lineage: Lineage | None = None) -> FileHistory | None:
        """Read everything that counts, None when the log was never begun.

        Args:
            lineage: which epochs follow from each other, if not the ones that do.

        Raises:
            CorruptCheckpointError: a record is damaged or missing, or there is no base.
        """
        lineage = read_lineage(self.files) if lineage is None else lineage
        there = self._ids_of("batches", ".batch")
        batch_ids = lineage.logged(there)
        newest = self._newest_base(lineage)
        if newest is None:
            if self._newest is None and not batch_ids and not self._ids_of("bases", ".base"):
                return None
            file = location(self.files, f"{self._directory}/bases")
            raise CorruptCheckpointError(file, "is missing", "the base of a file log", RESTORE)
        base = self._read_base(newest)
        records = {record_id: self._read_batch(record_id) for record_id in batch_ids.values()}
        self._require_chain(base, records, there)
        self._newest = self._newest or max((newest, *records))
        batches: dict[int, FileBatch] = {}
        later: set[str] = set()
        for record_id in reversed(batch_ids.values()):
            batch, _ = records[record_id]
            files = tuple(stamp for stamp in batch.files if stamp.path not in later)
            batches[record_id.time_ms] = replace(batch, files=files)
            later.update(stamp.path for stamp in files)
        return FileHistory(base, dict(sorted(batches.items())))

    def _require_chain(
        self, base: FileBase, records: Mapping[RecordId, _Linked], there: Collection[RecordId]
    ) -> None:
        """Raise if a record after *base* is missing that a batch was begun with."""
        record_id, wanted = self._newest, "the newest record that a batch was begun with"
        while record_id is not None and record_id.time_ms > base.upto_ms:
            if record_id not in there:
                file = location(self.files, self._batch_name(record_id))
                raise CorruptCheckpointError(file, "is missing", wanted, RESTORE)
            wanted = f"the record before that of {record_id}"
            # One that does not count is of a batch that was not begun for certain.
            is_known = record_id in records
            record_id = (records[record_id] if is_known else self._read_batch(record_id)).previous

    def _newest_base(self, lineage: Lineage) -> RecordId | None:
        return max(lineage.snapshots(self._ids_of("bases", ".base")), default=None)

    def _read_batch(self, record_id: RecordId) -> _Linked:
        name = self._batch_name(record_id)
        wanted = {"batch_time_ms": record_id.time_ms, "epoch": record_id.epoch}
        header, files = self._read(name, wanted, _BatchHeader)
        taken = tuple(files.get("files", ()))
        return _Linked(FileBatch(record_id.time_ms, header.settled_ms, taken), header.previous)

    def _read_base(self, record_id: RecordId) -> FileBase:
        name = self._base_name(record_id)
        wanted = {"upto_ms": record_id.time_ms, "epoch": record_id.epoch}
        header, files = self._read(name, wanted, _BaseHeader)
        return FileBase(
            upto_ms=record_id.time_ms,
            new_since_ms=header.new_since_ms,
            settled_ms=header.settled_ms,
            there_before=tuple(files.get("there_before", ())),
            taken=tuple(files.get("taken", ())),
        )

    def _create(self, name: str, frames: Iterable[bytes | memoryview], what: str) -> None:
        def taken() -> Exception:
            return ConcurrentWriterError(
                f"{location(self.files, name)}: {what} is recorded already, as another; only "
                "one driver may run on a checkpoint, stop this one",
                self.epoch,
                self.epoch,
            )

        create_once(self.files, name, frames, taken, f"{what} may be recorded or not")

    def _read(
        self, name: str, wanted: Mapping[str, object], form: type[_Header]
    ) -> tuple[_Header, dict[str, list[FileStamp]]]:
        """Read a record: its header, and its files by the name of their list."""
        file = location(self.files, name)
        frames = read_frames(self.files.read_chunks(name, READ_CHUNK_BYTES), FileKind.FILES, file)
        require_header(frames.header, {**self._ids, **wanted}, file)
        lists: dict[str, list[FileStamp]] = {}
        for payload, _ in frames.blocks:
            part = decode(payload, dict[str, list[FileStamp]], file, _WHAT)
            for key, stamps in part.items():
                lists.setdefault(key, []).extend(stamps)
        return convert(frames.header, form, file, _WHAT), lists

    def _ids_of(self, kind: str, suffix: str) -> list[RecordId]:
        prefix = f"{self._directory}/{kind}/"
        return record_ids(self.files.list(prefix), prefix, suffix)

    def _batch_name(self, record_id: RecordId) -> str:
        return f"{self._directory}/batches/{record_id.stem}.batch"

    def _base_name(self, record_id: RecordId) -> str:
        return f"{self._directory}/bases/{record_id.stem}.base"


def compaction_due(base_files: int, batches: int, batch_files: int) -> bool:
    """Whether the records of batches that are not read again are worth a new base.

    Each base names every file that is still there, so it has to stand for many records, or for as
    many files as a good part of those: a directory that only grows is not written down each time.

    Args:
        base_files: files that the base would name.
        batches: records that it would stand for.
        batch_files: files in them.
    """
    return batches >= _FEW_BATCHES and (batches >= _MANY_BATCHES or 4 * batch_files >= base_files)


_FEW_BATCHES, _MANY_BATCHES = 20, 1000


def _blocks(key: str, stamps: tuple[FileStamp, ...]) -> Iterator[tuple[bytes, int]]:
    for first in range(0, len(stamps), _FILES_IN_BLOCK):
        part = stamps[first : first + _FILES_IN_BLOCK]
        yield encode({key: part}), len(part)
