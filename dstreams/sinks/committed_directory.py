"""Batches in a directory, each once, by nothing but files that are created once and never changed.

Each task writes a file under a name of its own attempt. Then one manifest, created only if there is
none, names the files of the batch and its beginning, by which a later driver believes it or stops:
the rule of :mod:`dstreams.sinks.output_batch`. ::

    out-3000/part-00001-<attempt>                         a stream: a directory for each batch
    out-3000/_SUCCESS

    words/part-0000000003-00001-<attempt>.txt             a query: a directory for all batches
    words/_committed/0000000003

A file that no manifest names is of an attempt that lost, of a driver that died, or still being
written. Once its batch has a manifest it can never count, and is deleted. What a manifest names is
never replaced, moved or deleted.

On file systems of Hadoop's the JVM writes, and some of them cannot create a file only if it is
absent: there :mod:`dstreams.sinks.hadoop_directory` publishes a batch by renames, with the same
manifest and by the same rule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from checkpoint import AlreadyExistsError, CheckpointError, Files, new_attempt
from dstreams.sinks.manifest import Manifest
from dstreams.sinks.output_batch import OutputBatch
from dstreams.spark.worker_gc import settle_worker

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 256 << 10


class CommittedDirectory:
    """The manifests of a directory, and the files that they name.

    *remedy* says how to make room for a batch where another history of its checkpoint has written;
    None where the directory is that of one batch, and can be removed.
    """

    def __init__(self, files: Files, remedy: str | None = None) -> None:
        self.files = files
        self._remedy = remedy

    def find(self, name: str, batch: OutputBatch) -> Manifest | None:
        """Return the manifest of that name, None where the batch is not written.

        Raises:
            OutputConflictError: it is that of another batch.
            FileExistsError: it is a file of another program.
        """
        found = self._read(name)
        if found is not None:
            self.require_of(batch, found)
        return found

    def _read(self, name: str) -> Manifest | None:
        try:
            return Manifest.required(self.files.read(name), f"{self.files.url}/{name}")
        except FileNotFoundError:
            return None

    def require_of(self, batch: OutputBatch, found: Manifest) -> None:
        """Refuse what was found, unless it is this very batch: :meth:`Manifest.require_of`."""
        found.require_of(batch, self.files.url, self._remedy)

    def commit(self, name: str, batch: OutputBatch, manifest: Manifest) -> bool:
        """Create the manifest of a batch, and return False where another driver was quicker.

        Raises:
            OutputConflictError: that driver wrote another batch.
        """
        try:
            self.files.create(name, [manifest.to_text().encode()])
        except AlreadyExistsError:
            found = self._read(name)
            if found is None:
                raise
            self.delete(file for file in manifest.files if file not in found.files)
            self.require_of(batch, found)
            return found == manifest
        return True

    def delete_unnamed(self, manifest_of: Callable[[str], Manifest | None]) -> None:
        """Delete the files that can never count; never raises.

        ``manifest_of(name)`` is the manifest of the batch that a file was written for; None where
        there is none yet, or another program wrote the file.
        """
        try:
            for name in self.files.list("part-"):
                manifest = manifest_of(name)
                if manifest is not None and name not in manifest.files:
                    self.files.delete(name)
        except CheckpointError as error:
            logger.warning("%s: files of lost attempts are left: %s", self.files.url, error)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files that do not count; never raises."""
        for name in names:
            try:
                self.files.delete(name)
            except CheckpointError as error:
                logger.warning("%s, which is needed no more, is left: %s", name, error)


Encode = Callable[[Iterable[Any]], Iterator[tuple[bytes, int]]]
"""Makes the bytes of a file of the records of a partition, in chunks with the records of each."""


@dataclass(frozen=True)
class Lines:
    """Each record as a line."""

    line_of: Callable[[Any], bytes]

    def __call__(self, records: Iterable[Any]) -> Iterator[tuple[bytes, int]]:
        """Yield lines with their ends, many at once."""
        chunk, count = bytearray(), 0
        for line in map(self.line_of, records):
            chunk += line
            chunk += b"\n"
            count += 1
            if len(chunk) >= _CHUNK_BYTES:
                yield bytes(chunk), count
                chunk.clear()
                count = 0
        if chunk:
            yield bytes(chunk), count


@dataclass(frozen=True)
class WritePart:
    """Task: the records of a partition -> the name of the file that has them, and their number."""

    files: Files
    prefix: str
    encode: Encode
    suffix: str = ""
    writes_empty: bool = True

    def __call__(self, split: int, records: Iterable[Any]) -> Iterator[tuple[str, int]]:
        settle_worker()
        counts: list[int] = []
        chunks = self._chunks(records, counts)
        first = next(chunks, None)
        if first is not None or self.writes_empty:
            name = f"{self.prefix}{split:05d}-{new_attempt()}{self.suffix}"
            self.files.create(name, chain(() if first is None else (first,), chunks))
            yield name, sum(counts)

    def _chunks(self, records: Iterable[Any], counts: list[int]) -> Iterator[bytes]:
        for chunk, count in self.encode(records):
            counts.append(count)
            yield chunk
