"""Which files of a directory count: a file sink says so, batch by batch, and readers follow it.

A file that no record names was left by an attempt that lost, or by a driver that died, or is being
written right now.

::

    <directory>/_committed/query            who writes here, since its first start
    <directory>/_committed/0000000003       what the batch 3 has written
    <directory>/part-0000000003-00001-<attempt>.txt
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from pyspark import SparkContext

from checkpoint import AlreadyExistsError, Files, FileStamp, open_existing, open_output, unsigned
from dstreams.errors import RestartError
from dstreams.sources.file_listing import open_listing

FileFormat = Literal["text", "json"]
"""What a line of a file is: a text, or a value as JSON."""

COMMITTED = "_committed"
_QUERY = f"{COMMITTED}/query"


@dataclass(frozen=True)
class CommittedBatch:
    """What a batch has written.

    Args:
        queryId: of the query that wrote it.
        batchId: number of the batch.
        files: names of its files, in the order of the partitions.
        rows: how many rows they have.
    """

    queryId: str
    batchId: int
    files: list[str]
    rows: int

    @classmethod
    def read(cls, content: bytes) -> CommittedBatch:
        """Read a record."""
        return cls(**json.loads(content))


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

    def has(self, batch_id: int) -> bool:
        """Say whether a batch is written.

        Raises:
            RestartError: another query wrote it.
        """
        name = _name_of(batch_id)
        if not self.files.exists(name):
            return False
        self._require_own(name)
        return True

    def add(self, batch_id: int, names: list[str], rows: int) -> None:
        """Say which files are a batch, unless that was said before."""
        batch = CommittedBatch(self._query_id, batch_id, names, rows)
        self._create(_name_of(batch_id), asdict(batch))

    def _create(self, name: str, record: dict[str, object]) -> None:
        try:
            self.files.create(name, [json.dumps(record).encode()])
        except AlreadyExistsError:
            self._require_own(name)

    def _require_own(self, name: str) -> None:
        writer = json.loads(self.files.read(name))["queryId"]
        if writer != self._query_id:
            raise RestartError(
                f"{self._directory} is written by query {writer}, not by {self._query_id}; write "
                "to another directory, or restart with the checkpoint of that query"
            )


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
        self._batches: dict[str, CommittedBatch] = {}

    def paths(self) -> list[str] | None:
        """List the files, in the order of their batches or times; None without the directory."""
        committed = self._committed()  # before the files, which are there before their record
        found = self._listing.files()
        if found is None:
            return None
        if committed is None:
            return [stamp.path for stamp in sorted(found.values(), key=_age) if _is_visible(stamp)]
        by_name = {_last_part(path): path for path in found}
        return [by_name[name] for name in committed if name in by_name]

    def _committed(self) -> list[str] | None:
        """Return the names of files that count, None where no sink says that."""
        records = None if self._records is None else self._records.files()
        if self._records is None or not records:
            return None
        for path in records:
            if path not in self._batches and _last_part(path).isdecimal():
                self._batches[path] = CommittedBatch.read(self._records.read(path))
        return [name for path in sorted(records) for name in self._files_of(path)]

    def _files_of(self, path: str) -> list[str]:
        return self._batches[path].files if path in self._batches else []


def committed_files(directory: str) -> dict[int, list[str]]:
    """Return the names of the files of a file sink that count, by the number of their batch.

    Args:
        directory: path or URL.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    return {batch.batchId: batch.files for batch in _batches(unsigned(open_existing(directory)))}


def committed_lines(directory: str) -> dict[int, list[str]]:
    """Return what a file sink has written, line by line, by the number of the batch.

    Args:
        directory: path or URL.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    files = unsigned(open_existing(directory))
    return {
        batch.batchId: [line for name in batch.files for line in _lines(files.read(name))]
        for batch in _batches(files)
    }


def _batches(files: Files) -> Iterator[CommittedBatch]:
    names = (name for name in files.list(f"{COMMITTED}/") if _last_part(name).isdecimal())
    return (CommittedBatch.read(files.read(name)) for name in names)


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
