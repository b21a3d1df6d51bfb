"""The sink that writes each batch as files of a directory, exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from checkpoint import without_secrets
from dstreams.errors import StreamLifecycleError
from dstreams.sinks.committed_directory import WritePart
from dstreams.sinks.output_batch import DeliveryGuarantee, OutputBatch
from dstreams.state.group_state import OutputMode
from dstreams.structured.sinks.row_files import SUFFIXES, encoder_of
from dstreams.structured.sinks.sink import Sink
from dstreams.structured.sources.committed_files import CommittedFiles


class FileSink(Sink):
    """Writes rows as files of ``text`` (``str`` of each row), ``json``, ``csv`` or ``parquet``.

    Raises:
        InvalidStreamError: an option is missing or invalid.
    """

    modes = (OutputMode.Append,)
    is_for_trials = False
    promise = DeliveryGuarantee("exactly once", "for readers that follow the directory's manifests")

    def __init__(
        self, directory: str, format: str, options: Mapping[str, Any] | None = None
    ) -> None:
        self._directory = directory
        self._encode = encoder_of(format, options or {})
        self._suffix = SUFFIXES[format]
        self._committed: CommittedFiles | None = None

    @property
    def name(self) -> str:
        return f"FileSink[{without_secrets(self._directory)}]"

    def begin(self, query_id: str) -> None:
        """Open the directory, or raise RestartError if another query writes there."""
        self._committed = CommittedFiles(self._directory, query_id)

    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Write a batch and return its number of rows, None if it was already written."""
        committed = self._committed
        if committed is None:
            raise StreamLifecycleError(f"{self.name} is not open; call begin before add_batch")
        if committed.has(batch):
            return None
        task = WritePart(
            committed.directory.files,
            f"part-{batch.batch_id:010d}-",
            self._encode,
            self._suffix,
            writes_empty=False,
        )
        written: list[tuple[str, int]] = PipelinedRDD(rows, task).collect()
        committed.add(batch, [name for name, _ in written])
        return sum(count for _, count in written)
