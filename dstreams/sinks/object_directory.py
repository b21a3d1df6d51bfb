"""A directory of a batch in a store without rename: it counts when ``_SUCCESS`` is there."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from checkpoint import CheckpointError, Files, new_attempt, open_output
from dstreams.rdd.worker import settle_worker
from dstreams.sinks.manifest import SUCCESS, Manifest
from dstreams.sinks.output_batch import OutputBatch

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16


class ObjectDirectory:
    """The directory that one batch is written to, at a URL of fsspec's.

    Each task writes a file under a name of its own attempt; ``_SUCCESS``, which is created only if
    it is absent, names those that count. So an attempt that was given up leaves a file that no
    manifest names, and a batch without a manifest is not there.

    Args:
        url: ``protocol://...`` of a store that can create a file only if it is absent.
        files: the files there. None: those at *url*.
    """

    def __init__(self, url: str, files: Files | None = None) -> None:
        self._files = open_output(url) if files is None else files

    def write(self, batch: OutputBatch, rdd: RDD[Any]) -> bool:
        """Write a batch, and return False if it was there already.

        Raises:
            FileExistsError: there is a ``_SUCCESS`` that another program wrote.
            CheckpointError: the store refused.
        """
        replaced = self._found()
        if replaced is not None and replaced.is_of(batch):
            return False
        task = _WriteText(self._files)
        names = tuple(sorted(rdd.mapPartitionsWithIndex(task).collect()))
        if replaced is not None:
            self._files.delete(SUCCESS)
        manifest = Manifest.of(batch, names)
        self._files.create(SUCCESS, [manifest.to_text().encode()])
        self._delete(() if replaced is None else replaced.files)
        return True

    def _found(self) -> Manifest | None:
        if not self._files.exists(SUCCESS):
            return None
        found = Manifest.of_text(self._files.read(SUCCESS).decode("utf-8", "replace"))
        if found is None:
            raise FileExistsError(
                f"saveAsTextFiles cannot write {self._files.url}: there is a {SUCCESS} of another "
                "program; move it away"
            )
        return found

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._files.delete(name)
            except CheckpointError as error:
                logger.warning("%s, which was replaced, could not be deleted: %s", name, error)


@dataclass(frozen=True)
class _WriteText:
    files: Files

    def __call__(self, split: int, records: Iterable[Any]) -> Iterator[str]:
        settle_worker()
        name = f"part-{split:05}-{new_attempt()}"
        try:
            self.files.create(name, _chunks(records))
        except BaseException:
            with suppress(CheckpointError):
                self.files.delete(name)
            raise
        yield name


def _chunks(records: Iterable[Any]) -> Iterator[bytes]:
    """Yield lines as ``saveAsTextFile`` writes them, many at once."""
    chunk = bytearray()
    for record in records:
        line = record if isinstance(record, (str, bytes)) else str(record)
        chunk += line.encode() if isinstance(line, str) else line
        chunk += b"\n"
        if len(chunk) >= _CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)
