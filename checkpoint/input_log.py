"""Input log: what an input keeps for itself, as numbered values, each written once.

An input that deals out what it finds writes down what each number stands for, before a begin record
names the number; what it has to know again, such as when it began, is a value as well::

    inputs/<input>/0000000000000025-e2.input      number 25, written in epoch 2
    inputs/<input>/0000000000000020-e2.pack       what epochs up to 2 have written, up to 20

Of a number that several epochs have written, that of the newest epoch counts which is in the
lineage (:mod:`checkpoint.lineage`): an epoch writes a number anew only where no batch that it took
over names it. So what a driver writes after it was replaced changes nothing.

A pack stands for the files that it was made of, and says nothing of its own: each value in it is
still that of its number and epoch, whether it counts or not. So an earlier batch, also one that is
void now, finds what it needs in any pack, and it does not matter who has made it. A driver packs
and deletes only what its own epoch and older ones have written, and deletes only what is in a pack
that is durable. A pack also says which epochs came before its own, which may be forgotten then.

Each value names the one before it, and the begin record of each batch the newest; so one that is
lost is missed, also where an older epoch had written its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from checkpoint.errors import (
    RESTORE,
    ConcurrentWriterError,
    CorruptCheckpointError,
    StorageUncertainError,
)
from checkpoint.fencing import require_newest
from checkpoint.files import Files, location
from checkpoint.framing import FileKind
from checkpoint.json_records import Count, JsonRecord
from checkpoint.lineage import Lineage, read_lineage
from checkpoint.names import uid_part
from checkpoint.record_files import (
    RecordId,
    create_once,
    read_record,
    record_frames,
    record_ids,
)

INPUT_FILES = "files"
"""Field of a value: paths of the files that its number stands for, for tools."""

INPUTS_PREFIX = "inputs/"
INPUT_SUFFIX = ".input"
PACK_SUFFIX = ".pack"

_WHAT = "a value of an input"
_PACK = "a pack of values of an input"
_FEW, _MANY = 10, 100
_OLD_EPOCHS = 10
_READ_AGAIN = 5


class _Value(JsonRecord, frozen=True):
    """A value, of which number and epoch it is, and the one that was the newest before it."""

    number: Count
    epoch: Count
    previous: RecordId | None
    value: Mapping[str, object]

    @property
    def record_id(self) -> RecordId:
        """Which value this is."""
        return RecordId(self.number, self.epoch)


class _PackRecord(JsonRecord, frozen=True):
    """A pack, as it is in its file."""

    number: Count
    epoch: Count
    epochs: tuple[tuple[Count, ...], ...]
    values: tuple[_Value, ...]


@dataclass(frozen=True)
class _Pack:
    """What a pack holds: values, whoever wrote them, and which epochs follow from each other."""

    values: Mapping[RecordId, _Value]
    chains: tuple[frozenset[int], ...]


@dataclass(frozen=True)
class _Found:
    """What there is of an input: names of single values, and packs, whole."""

    singles: tuple[RecordId, ...]
    packs: Mapping[RecordId, _Pack]
    read: dict[RecordId, _Value] = field(default_factory=dict)

    def epochs(self, lineage: Lineage) -> frozenset[int] | None:
        """Return the epochs that follow from each other; None where every one counts."""
        if not lineage.is_claimed:
            return None
        parents = {base.parent for base in lineage.bases if base.parent is not None}
        linked, found = lineage.epochs | parents, set(lineage.epochs)
        for chain in self.chains():
            newest = max(linked & chain, default=-1)
            found |= {epoch for epoch in chain if epoch <= newest}
        return frozenset(found)

    def chains(self) -> Iterator[frozenset[int]]:
        """Yield what packs say of epochs: each set is one epoch and all before it."""
        return (chain for pack in self.packs.values() for chain in pack.chains)

    def packed(self, lineage: Lineage) -> _Pack:
        """Return a pack in place of all that was read."""
        own = self.epochs(lineage) or frozenset()
        others = {chain for chain in self.chains() if not chain <= own}
        return _Pack(self.read, (own, *sorted(others, key=sorted)))


class InputLog:
    """The values of one input among *files*.

    Args:
        files: the directory of the stream.
        stream_id: id of the stream that the input belongs to, the same over all its restarts.
        input_uid: uid of the input.
        epoch: epoch of this driver.
        begun_with: the newest values that a batch names, by the directory of their log
            (:class:`checkpoint.batch_log.BeginRecord`).
    """

    def __init__(
        self,
        files: Files,
        stream_id: str,
        input_uid: str,
        epoch: int,
        begun_with: Mapping[str, RecordId] | None = None,
    ) -> None:
        if not stream_id or not input_uid or epoch < 0:
            raise ValueError(
                f"an input log needs the ids of stream and input and an epoch from 0 on, got "
                f"{stream_id!r}, {input_uid!r}, {epoch}"
            )
        self.files = files
        self.epoch = epoch
        self._ids = {"stream_id": stream_id, "input_uid": input_uid}
        self._directory = f"{INPUTS_PREFIX}{uid_part(input_uid)}/"
        self._newest = self._before = (begun_with or {}).get(self._directory.rstrip("/"))

    @property
    def newest_records(self) -> dict[str, RecordId]:
        """The newest value by the directory, for the begin record of a batch."""
        return {} if self._newest is None else {self._directory.rstrip("/"): self._newest}

    def write(self, number: int, value: Mapping[str, object]) -> None:
        """Write a value durably; writing the same again is fine.

        Raises:
            ConcurrentWriterError: this epoch has written another value.
            CheckpointError: as in :meth:`Files.create`.
        """
        record_id = RecordId(number, self.epoch)
        previous = self._before if record_id == self._newest else self._newest
        data = _Value(number, self.epoch, previous, value)
        name = self._name(record_id)

        def taken() -> Exception:
            return ConcurrentWriterError(
                f"{location(self.files, name)} is another value; only one driver may run on a "
                "checkpoint, stop this one",
                self.epoch,
                self.epoch,
            )

        frames = record_frames(FileKind.INPUT, self._ids, data)
        create_once(self.files, name, frames, taken, f"{name} may be written or not")
        self._newest, self._before = record_id, previous

    def read(self, upto: int, lineage: Lineage | None = None) -> dict[int, dict[str, object]]:
        """Return the values that count, by their numbers, in order.

        Args:
            upto: the last number that a batch names.
            lineage: which epochs follow from each other, if not the ones that do.

        Raises:
            CorruptCheckpointError: one of them is damaged or missing.
        """
        lineage = read_lineage(self.files) if lineage is None else lineage

        def counted(found: _Found) -> Iterable[RecordId]:
            known = found.epochs(lineage)
            packed = (record_id for pack in found.packs.values() for record_id in pack.values)
            newest = {
                record_id.time_ms: record_id
                for record_id in sorted((*packed, *found.singles))
                if record_id.time_ms <= upto and (known is None or record_id.epoch in known)
            }
            return newest.values()

        found = self._gather(counted)
        self._require_chain(found)
        ids = list(counted(found))
        self._newest = self._newest or max(ids, default=None)
        return {record_id.time_ms: dict(found.read[record_id].value) for record_id in ids}

    def _require_chain(self, found: _Found) -> None:
        """Raise if a value is missing that a batch was begun with."""
        record_id, wanted = (
            self._newest,
            "the newest value of a begun batch, or its pack",
        )
        while record_id is not None:
            value = found.read.get(record_id)
            if value is None and record_id in found.singles:
                value = self._read(record_id)
            if value is None:
                file = location(self.files, self._name(record_id))
                raise CorruptCheckpointError(file, "is missing", wanted, RESTORE)
            number = f"number {record_id.time_ms} of epoch {record_id.epoch}"
            wanted = f"the value before {number}, or a pack with it"
            record_id = value.previous

    def compact(self) -> None:
        """Put the values into a pack where they are in many files, then delete those files.

        So few files are read at a restart, however many values there are. Nothing that counts
        changes. Doing it again, or after a crash half way, is fine.

        Raises:
            ConcurrentWriterError: a newer driver has taken over; nothing is deleted.
            CheckpointError: something cannot be read, or the pack may be there or not; nothing is
                deleted.
        """
        names = self.files.list(self._directory)
        singles, packs = self._own(names, INPUT_SUFFIX), self._own(names, PACK_SUFFIX)
        if not self._is_due(singles, packs):
            return
        require_newest(self.files, self.epoch)
        newest = RecordId(max(one.time_ms for one in (*singles, *packs)), self.epoch)
        lineage = read_lineage(self.files)
        if newest in packs or (lineage.is_claimed and lineage.head != self.epoch):
            return
        found = self._gather(lambda found: self._only_own(found.singles))
        self._write_pack(newest, found.packed(lineage))
        require_newest(self.files, self.epoch)
        for pack in self._only_own(found.packs):
            if pack < newest:
                self.files.delete(self._name(pack, PACK_SUFFIX))
        for single in self._only_own(found.singles):
            self.files.delete(self._name(single))

    def _is_due(self, singles: list[RecordId], packs: list[RecordId]) -> bool:
        """Whether a pack would stand for enough, or would let old epochs be forgotten."""
        if any(name.epoch + _OLD_EPOCHS <= self.epoch for name in (*singles, *packs)):
            return True
        count, packed = len(singles), max((name.time_ms for name in packs), default=0)
        return count >= _FEW and (count >= _MANY or count * _FEW >= packed)

    def _write_pack(self, pack_id: RecordId, pack: _Pack) -> None:
        values = tuple(pack.values[one] for one in sorted(pack.values))
        chains = tuple(tuple(sorted(chain)) for chain in pack.chains)
        data = _PackRecord(pack_id.time_ms, pack_id.epoch, chains, values)
        name = self._name(pack_id, PACK_SUFFIX)

        def taken() -> Exception:
            where = location(self.files, name)
            return StorageUncertainError(f"{where} is a pack of other values, so nothing is packed")

        frames = record_frames(FileKind.INPUT, self._ids, data)
        create_once(self.files, name, frames, taken, f"{name} may be written or not")

    def _gather(self, wanted: Callable[[_Found], Iterable[RecordId]]) -> _Found:
        """Read all packs, and the single values that are *wanted*.

        A driver may be packing: what it deletes is read again in its pack. A listing may have
        missed both, so it counts only if there is no other pack after it.
        """
        for _ in range(_READ_AGAIN):
            names = self.files.list(self._directory)
            with suppress(FileNotFoundError):
                packs = {name: self._read_pack(name) for name in self._ids_of(names, PACK_SUFFIX)}
                found = _Found(tuple(self._ids_of(names, INPUT_SUFFIX)), packs)
                for pack in packs.values():
                    found.read.update(pack.values)
                for name in wanted(found):
                    if name not in found.read:
                        found.read[name] = self._read(name)
                again = self.files.list(self._directory)
                if self._ids_of(again, PACK_SUFFIX) == list(packs):
                    return found
        file = location(self.files, self._directory.rstrip("/"))
        raise CorruptCheckpointError(file, "has values that cannot be read", "values", RESTORE)

    def _read(self, record_id: RecordId) -> _Value:
        name = self._name(record_id)
        value = read_record(self.files, name, FileKind.INPUT, self._ids, _Value, _WHAT)
        if value.record_id != record_id:
            file, found = location(self.files, name), f"is {value.record_id}"
            raise CorruptCheckpointError(file, found, f"{record_id}", RESTORE)
        return value

    def _read_pack(self, name: RecordId) -> _Pack:
        file = self._name(name, PACK_SUFFIX)
        pack = read_record(self.files, file, FileKind.INPUT, self._ids, _PackRecord, _PACK)
        found = RecordId(pack.number, pack.epoch)
        if found != name:
            where = location(self.files, file)
            raise CorruptCheckpointError(where, f"is {found}", f"{name}", RESTORE)
        values = {value.record_id: value for value in pack.values}
        return _Pack(values, tuple(map(frozenset, pack.epochs)))

    def _ids_of(self, names: Iterable[str], suffix: str) -> list[RecordId]:
        return record_ids(names, self._directory, suffix)

    def _only_own(self, found: Iterable[RecordId]) -> list[RecordId]:
        """Return what this epoch and older ones have written."""
        return [name for name in found if name.epoch <= self.epoch]

    def _own(self, names: Iterable[str], suffix: str) -> list[RecordId]:
        return self._only_own(self._ids_of(names, suffix))

    def _name(self, record_id: RecordId, suffix: str = INPUT_SUFFIX) -> str:
        return f"{self._directory}{record_id.stem}{suffix}"
