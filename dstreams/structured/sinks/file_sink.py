"""Each batch as files of a directory, exactly once."""

from __future__ import annotations

import json
from typing import Any

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from checkpoint import without_secrets
from dstreams.errors import StreamLifecycleError
from dstreams.sinks.committed_directory import Lines, WritePart
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sinks.promise import DeliveryGuarantee
from dstreams.state.group_state import OutputMode
from dstreams.structured.sinks.sink import Sink
from dstreams.structured.sources.committed_files import CommittedFiles, LineFormat

_SUFFIX = {"text": "txt", "json": "json"}


class FileSink(Sink):
    """Writes rows as lines: ``text`` for ``str`` of each row, ``json`` for JSON of each row."""

    modes = (OutputMode.Append,)
    is_for_trials = False
    promise = DeliveryGuarantee("exactly once", "for who reads the directory by its records")

    def __init__(self, directory: str, format: LineFormat) -> None:
        self._directory = directory
        self._format: LineFormat = format
        self._committed: CommittedFiles | None = None

    @property
    def name(self) -> str:
        return f"FileSink[{without_secrets(self._directory)}]"

    def begin(self, query_id: str) -> None:
        """Open the directory.

        Raises:
            StorageRefusedError: it cannot hold files.
            RestartError: another query writes there.
        """
        self._committed = CommittedFiles(self._directory, query_id)

    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Write a batch and return how many rows it has, None if it was written before.

        Raises:
            OutputConflictError: the directory has it from another history of the checkpoint.
            StreamLifecycleError: :meth:`begin` was not called.
        """
        committed = self._committed
        if committed is None:
            raise StreamLifecycleError(f"{self.name} takes a batch after begin; call that first")
        if committed.has(batch):
            return None
        task = WritePart(
            committed.directory.files,
            f"part-{batch.batch_id:010d}-",
            Lines(_json_line if self._format == "json" else _text_line),
            f".{_SUFFIX[self._format]}",
            writes_empty=False,
        )
        written: list[tuple[str, int]] = PipelinedRDD(rows, task).collect()
        committed.add(batch, [name for name, _ in written])
        return sum(count for _, count in written)


def _text_line(row: Any) -> bytes:
    return str(row).encode()


def _json_line(row: Any) -> bytes:
    return json.dumps(_plain(row), default=str).encode()


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
