"""Each batch as files of a directory, exactly once.

Tasks write files under names of their own; then one record says which of them are the batch. What
no record names does not count: it was left by an attempt that lost, or by a driver that died.

::

    <directory>/part-0000000003-00001-<attempt>.txt
    <directory>/_committed/0000000003
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from checkpoint import AlreadyExistsError, Files, new_attempt, open_files
from dstreams.errors import RestartError
from dstreams.rdd.worker import settle_worker
from dstreams.state.group_state import OutputMode

FileFormat = Literal["text", "json"]

_COMMITTED = "_committed/"
_CHUNK_BYTES = 256 << 10
_SUFFIX = {"text": "txt", "json": "json"}
_NOTHING: Any = object()


class FileSink:
    """Writes rows as lines of text or of JSON.

    Args:
        directory: path or URL.
        format: ``text`` for ``str`` of each row, ``json`` for JSON of each row.
    """

    modes = (OutputMode.Append,)
    is_for_trials = False

    def __init__(self, directory: str, format: FileFormat) -> None:
        self._directory = directory
        self._format: FileFormat = format
        self._query_id = ""
        self._files: Files | None = None

    @property
    def _opened(self) -> Files:
        if self._files is None:
            self._files = open_files(self._directory)
        return self._files

    @property
    def name(self) -> str:
        return f"FileSink[{self._directory}]"

    def begin(self, query_id: str) -> None:
        """Open the directory.

        Raises:
            StorageRefusedError: it cannot hold files.
        """
        self._query_id = query_id
        self._files = open_files(self._directory)

    def add_batch(self, batch_id: int, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Write a batch, if it was not written before.

        Raises:
            RestartError: another query has written a batch of this number there.
        """
        files = self._opened
        record = f"{_COMMITTED}{batch_id:010d}"
        if self._is_written(record, batch_id):
            return None
        task = _WriteTask(files, batch_id, self._format)
        written: list[tuple[str, int]] = PipelinedRDD(rows, task).collect()
        named = {"files": [name for name, _ in written], "rows": sum(n for _, n in written)}
        text = json.dumps({"queryId": self._query_id, "batchId": batch_id, **named})
        try:
            files.create(record, [text.encode()])
        except AlreadyExistsError:
            self._is_written(record, batch_id)
        return sum(count for _, count in written)

    def close(self) -> None:
        """Nothing is open."""

    def _is_written(self, record: str, batch_id: int) -> bool:
        if not self._opened.exists(record):
            return False
        writer = json.loads(self._opened.read(record))["queryId"]
        if writer != self._query_id:
            raise RestartError(
                f"batch {batch_id} is in {self._directory} already, written by query {writer}, not "
                f"by {self._query_id}; write to another directory, or restart with the checkpoint "
                "of that query"
            )
        return True


def committed_files(directory: str) -> dict[int, list[str]]:
    """Return the names of the files of a file sink that count, by the number of their batch.

    Args:
        directory: path or URL.
    """
    files = open_files(directory)
    records = (json.loads(files.read(name)) for name in files.list(_COMMITTED))
    return {record["batchId"]: list(record["files"]) for record in records}


def committed_lines(directory: str) -> dict[int, list[str]]:
    """Return what a file sink has written, line by line, by the number of the batch.

    Args:
        directory: path or URL.
    """
    files = open_files(directory)
    return {
        batch_id: [line for name in names for line in files.read(name).decode().splitlines()]
        for batch_id, names in committed_files(directory).items()
    }


@dataclass(frozen=True)
class _WriteTask:
    """Task: rows -> (name of the file, how many rows), nothing without rows."""

    files: Files
    batch_id: int
    format: FileFormat

    def __call__(self, split: int, rows: Iterable[Any]) -> Iterator[tuple[str, int]]:
        settle_worker()
        remaining = iter(rows)
        first = next(remaining, _NOTHING)
        if first is _NOTHING:
            return
        name = f"part-{self.batch_id:010d}-{split:05d}-{new_attempt()}.{_SUFFIX[self.format]}"
        lines = _Lines(first, remaining, self.format)
        self.files.create(name, lines.chunks())
        yield name, lines.count


class _Lines:
    """Rows as chunks of encoded lines; counts them."""

    def __init__(self, first: Any, rest: Iterator[Any], file_format: FileFormat) -> None:
        self.count = 0
        self._first = first
        self._rest = rest
        self._as_line = _json_of if file_format == "json" else str

    def chunks(self) -> Iterator[bytes]:
        chunk = bytearray()
        row = self._first
        while row is not _NOTHING:
            chunk += self._as_line(row).encode() + b"\n"
            self.count += 1
            if len(chunk) >= _CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
            row = next(self._rest, _NOTHING)
        if chunk:
            yield bytes(chunk)


def _json_of(row: Any) -> str:
    return json.dumps(_plain(row), default=str)


def _plain(value: Any) -> Any:
    """Return named tuples and Rows as objects, so that fields keep their names."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if hasattr(value, "asDict"):
        return {name: _plain(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(part) for part in value]
    return value
