"""Each batch as files of a directory, exactly once.

Tasks write files under names of their own; then one record says which of them are the batch:
:mod:`dstreams.structured.committed_files`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from checkpoint import Files, new_attempt
from dstreams.errors import StreamLifecycleError
from dstreams.rdd.worker import settle_worker
from dstreams.sinks.output_batch import OutputBatch
from dstreams.state.group_state import OutputMode
from dstreams.structured.committed_files import CommittedFiles, FileFormat
from dstreams.structured.sinks.base import BatchOf

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
        self._committed: CommittedFiles | None = None

    @property
    def name(self) -> str:
        return f"FileSink[{self._directory}]"

    def begin(self, query_id: str, batch_of: BatchOf | None = None) -> None:
        """Open the directory.

        Raises:
            StorageRefusedError: it cannot hold files.
            RestartError: another query writes there.
        """
        self._committed = CommittedFiles(self._directory, query_id)
        self._batch_of = batch_of or (lambda number: OutputBatch(query_id, number, 0))

    def add_batch(self, batch_id: int, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Write a batch and return how many rows it has, None if it was written before.

        Raises:
            OutputConflictError: the directory has it from another history of the checkpoint.
            StreamLifecycleError: :meth:`begin` was not called.
        """
        committed = self._committed
        if committed is None:
            raise StreamLifecycleError(f"{self.name} takes a batch after begin; call that first")
        batch = self._batch_of(batch_id)
        if committed.has(batch):
            return None
        task = _WriteTask(committed.files, batch_id, self._format)
        written: list[tuple[str, int]] = PipelinedRDD(rows, task).collect()
        count = sum(count for _, count in written)
        committed.add(batch, [name for name, _ in written], count)
        return count

    def close(self) -> None:
        """Nothing is open."""


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
