"""Which files of a directory count: a file sink says so, batch by batch, and readers follow it.

A file that no record names was left by an attempt that lost, or by a driver that died, or is being
written right now. Where there is a record of its batch, no other attempt can count any more, and
its files are deleted: at the start of a run, and now and then.

::

    <directory>/_committed/query            who writes here, since its first start
    <directory>/_committed/0000000003       what the batch 3 has written
    <directory>/part-0000000003-00001-<attempt>.txt

A record names the beginning of its batch, by the rule of :mod:`dstreams.sinks.output_batch`: of a
checkpoint and its copies, of which each has other batches under the same numbers, the first to
write a batch goes on, and every other one stops there.

Now and then the record of a batch also says what all batches before it have written, so that few
records are to be read. Of a batch that several records tell of, the newest of them counts: a
record that a replaced run adds late, in place of one that was deleted, changes nothing. Deleted is
only what a record of that kind tells of, and not before there is a second one: who lists the
directory at that moment finds the first.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from pyspark import SparkContext

from checkpoint import (
    AlreadyExistsError,
    CheckpointError,
    Files,
    FileStamp,
    open_existing,
    open_output,
    unsigned,
)
from dstreams.errors import RestartError
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sources.file_listing import open_listing

FileFormat = Literal["text", "json"]
"""What a line of a file is: a text, or a value as JSON."""

COMMITTED = "_committed"
_QUERY = f"{COMMITTED}/query"
_PART = re.compile(r"part-(\d{10})-\d{5}-[0-9a-f]{16}\.(?:txt|json)")

_FEW, _MANY = 10, 100
_READ_AGAIN = 5
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CommittedBatch:
    """What a batch has written.

    Args:
        queryId: of the query that wrote it.
        batchId: number of the batch.
        files: names of its files, in the order of the partitions.
        rows: how many rows they have.
        before: what the batches before it have written, where this record says it.
        beginning: which beginning of the batch it is, as in :class:`OutputBatch`.
    """

    queryId: str
    batchId: int
    files: list[str]
    rows: int
    before: tuple[CommittedBatch, ...] = ()
    beginning: str = ""

    @classmethod
    def read(cls, content: bytes) -> CommittedBatch:
        """Read a record."""
        return cls._of(json.loads(content))

    def to_json(self) -> dict[str, object]:
        """Return these facts as a JSON object."""
        data: dict[str, object] = dict(vars(self))
        del data["before"]
        return {**data, "before": [one.to_json() for one in self.before]} if self.before else data

    @classmethod
    def _of(cls, data: dict[str, Any]) -> CommittedBatch:
        known = {name: data[name] for name in vars(cls)["__dataclass_fields__"] if name in data}
        return cls(**{**known, "before": tuple(map(cls._of, data.get("before", ())))})


class CommittedFiles:
    """The records of a directory, as the query that writes there keeps them.

    Args:
        directory: path or URL.
        query_id: of the query.

    Raises:
        StorageRefusedError: the directory cannot hold files.
        RestartError: another query writes there.
    """

    def __init__(self, directory: str, query_id: str) -> None:
        self.files = open_output(directory)
        self._directory = directory
        self._query_id = query_id
        self._create(_QUERY, {"queryId": query_id})
        self._known = batches = _batches(self.files)
        self._newest_whole = _newest_whole(batches)
        self._collect(batches)

    def has(self, batch: OutputBatch) -> bool:
        """Say whether a batch is written.

        Raises:
            OutputConflictError: it, or one that this checkpoint has not begun, is of another
                history of the checkpoint.
            RestartError: another query wrote it.
        """
        name = _name_of(batch.batch_id)
        if self.files.exists(name):
            record = self._require_own(name)
            self._require_beginning(batch, CommittedBatch.read(record))
            return True
        found = self._known.get(batch.batch_id) or self._later(batch).get(batch.batch_id)
        if found is not None:
            self._require_beginning(batch, found)
        return found is not None

    def add(self, own: OutputBatch, names: list[str], rows: int) -> None:
        """Say which files are a batch, unless that was said before.

        Raises:
            OutputConflictError: as in :meth:`has`, of one that was written meanwhile.
        """
        batch_id = own.batch_id
        batch = CommittedBatch(self._query_id, batch_id, names, rows, beginning=own.beginning)
        superfluous: list[str] = []
        if self._is_due(batch_id):
            try:
                batches = _batches(self.files)
                batch, superfluous = self._with_others(batch, batches)
                self._collect(batches)
            except (CheckpointError, FileNotFoundError) as error:
                _log.warning("%s: records stay as they are: %s", self._directory, error)
        if not self._create(_name_of(batch_id), batch.to_json()):
            self.has(own)
        elif batch.before:
            self._newest_whole = batch_id
        # Late, where newer records tell of the batch already: then it is they that count.
        self._require_beginning(own, self._later(own).get(batch_id, batch))
        for name in superfluous:
            try:
                self.files.delete(name)
            except CheckpointError as error:
                _log.warning("%s: a record is left for later: %s", self._directory, error)

    def _is_due(self, batch_id: int) -> bool:
        count = batch_id - self._newest_whole
        return count >= _FEW and (count >= _MANY or count * _FEW >= batch_id)

    def _collect(self, batches: Mapping[int, CommittedBatch]) -> None:
        """Delete files of attempts that lost: of batches that have a record, which names others."""
        try:
            for name in self.files.list("part-"):
                part = _PART.fullmatch(name)
                batch = None if part is None else batches.get(int(part[1]))
                if batch is not None and name not in batch.files:
                    self.files.delete(name)
        except CheckpointError as error:
            _log.warning("%s: files of lost attempts are left: %s", self._directory, error)

    def _with_others(
        self, batch: CommittedBatch, batches: dict[int, CommittedBatch]
    ) -> tuple[CommittedBatch, list[str]]:
        """Return what a record of all batches is, and the records that are needed no more then."""
        self._newest_whole = newest = _newest_whole(batches)
        if not self._is_due(batch.batchId):  # another run of the query has written such a record
            return batch, []
        others = (
            replace(one, before=()) for one in batches.values() if one.batchId < batch.batchId
        )
        told = {one.batchId for one in batches[newest].before} if newest >= 0 else set()
        superfluous = sorted(told.intersection(_numbers(self.files.list(f"{COMMITTED}/"))))
        return replace(batch, before=tuple(others)), list(map(_name_of, superfluous))

    def _create(self, name: str, record: dict[str, object]) -> bool:
        """Write a record unless it is there; return whether it was not."""
        try:
            self.files.create(name, [json.dumps(record).encode()])
        except AlreadyExistsError:
            self._require_own(name)
            return False
        return True

    def _require_own(self, name: str) -> bytes:
        record = self.files.read(name)
        writer = json.loads(record)["queryId"]
        if writer != self._query_id:
            raise RestartError(
                f"{self._directory} is written by query {writer}, not by {self._query_id}; write "
                "to another directory, or restart with the checkpoint of that query"
            )
        return record

    def _later(self, batch: OutputBatch) -> dict[int, CommittedBatch]:
        """Return what all batches have written, where there are records of later ones than this."""
        if max(_numbers(self.files.list(f"{COMMITTED}/")), default=-1) <= batch.batch_id:
            return {}
        batches = _batches(self.files)
        newest = max(batches)
        if batch.newest is not None and newest > batch.newest:
            self._require_beginning(batch, batches[newest])
        return batches

    def _require_beginning(self, batch: OutputBatch, found: CommittedBatch) -> None:
        remedy = "write to a new directory"
        batch.require_own(self._directory, found.batchId, found.beginning, remedy)


class VisibleFiles:
    """The files of a directory that a reader may see, while more of them appear.

    Those that a file sink committed, where one writes there; else all but hidden ones.

    Semantics: FileStreamSource with ``_spark_metadata`` (Spark 4.3).

    Args:
        directory: path, URL, or pattern of Hadoop's for several directories, whose files count as
            those of no sink.
        spark: finds the file system.
    """

    def __init__(self, directory: str, spark: SparkContext) -> None:
        self._listing = open_listing(directory, spark)
        self._records = self._listing.inside(COMMITTED)
        self._read: dict[str, CommittedBatch] = {}

    def paths(self) -> list[str] | None:
        """List the files, in the order of their batches or times; None without the directory."""
        committed = _settled(self._committed)  # before the files, which are there before a record
        found = self._listing.files()
        if found is None:
            return None
        if committed is None and _settled(self._committed) is not None:
            return self.paths()  # a sink has begun meanwhile, and its files are among those found
        if committed is None:
            return [stamp.path for stamp in sorted(found.values(), key=_age) if _is_visible(stamp)]
        by_name = {_last_part(path): path for path in found}
        return [by_name[name] for name in committed if name in by_name]

    def _committed(self) -> list[str] | None:
        """Return the names of files that count, None where no sink says that."""
        listing = self._records
        records = None if listing is None else listing.files()
        if listing is None or not records:
            return None
        paths = {int(_last_part(path)): path for path in records if _is_record(path)}
        read: dict[str, CommittedBatch] = {}

        def read_one(number: int) -> CommittedBatch:
            path = paths[number]
            read[path] = self._read.get(path) or CommittedBatch.read(listing.read(path))
            return read[path]

        batches = _newest_first(paths, read_one)
        self._read = read
        return [name for batch in batches.values() for name in batch.files]


def committed_files(directory: str) -> dict[int, list[str]]:
    """Return the names of the files of a file sink that count, by the number of their batch.

    Args:
        directory: path or URL.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    batches = _batches(unsigned(open_existing(directory)))
    return {number: batch.files for number, batch in batches.items()}


def committed_lines(directory: str) -> dict[int, list[str]]:
    """Return what a file sink has written, line by line, by the number of the batch.

    Args:
        directory: path or URL.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    files = unsigned(open_existing(directory))
    return {
        number: [line for name in batch.files for line in _lines(files.read(name))]
        for number, batch in _batches(files).items()
    }


def _batches(files: Files) -> dict[int, CommittedBatch]:
    """Return what each batch has written, in order."""

    def read_one(number: int) -> CommittedBatch:
        return CommittedBatch.read(files.read(_name_of(number)))

    return _settled(lambda: _newest_first(_numbers(files.list(f"{COMMITTED}/")), read_one))


def _newest_first(
    numbers: Iterable[int], read_one: Callable[[int], CommittedBatch]
) -> dict[int, CommittedBatch]:
    """Read records, as far as no newer one says what is in them."""
    found: dict[int, CommittedBatch] = {}
    for number in sorted(numbers, reverse=True):
        if number not in found:
            found[number] = batch = read_one(number)
            for earlier in batch.before:
                found.setdefault(earlier.batchId, earlier)
    return dict(sorted(found.items()))


def _newest_whole(batches: dict[int, CommittedBatch]) -> int:
    """Return the newest batch whose record tells of those before it; -1 where none does."""
    return max((number for number, batch in batches.items() if batch.before), default=-1)


def _settled(read: Callable[[], _T]) -> _T:
    """Read, and again where a record that was listed is gone: a newer one tells of it."""
    for _ in range(_READ_AGAIN - 1):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def _numbers(names: Iterable[str]) -> list[int]:
    return [int(_last_part(name)) for name in names if _is_record(name)]


def _is_record(path: str) -> bool:
    return _last_part(path).isdecimal()


def _lines(content: bytes) -> list[str]:
    return content.decode().removesuffix("\n").split("\n") if content else []


def _name_of(batch_id: int) -> str:
    return f"{COMMITTED}/{batch_id:010d}"


def _last_part(path: str) -> str:
    return path.rpartition("/")[2]


def _age(stamp: FileStamp) -> tuple[int, str]:
    return stamp.modified_ms, stamp.path


def _is_visible(stamp: FileStamp) -> bool:
    return not _last_part(stamp.path).startswith((".", "_"))
