"""A directory of a batch in a store without rename: it counts when ``_SUCCESS`` is there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from checkpoint import AlreadyExistsError, CheckpointError, Files, new_attempt, open_output
from dstreams.rdd.worker import settle_worker
from dstreams.sinks.manifest import SUCCESS, Manifest, Series
from dstreams.sinks.output_batch import OutputBatch

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16

# Looked through once in each process, not in each batch: for batches that were left out.
_compared: set[tuple[str, str, range]] = set()


class ObjectDirectory:
    """The directory that one batch is written to, at a URL of fsspec's.

    Each task writes a file under a name of its own attempt; ``_SUCCESS``, which is created only if
    it is absent, names those that count. So an attempt that was given up leaves a file that no
    manifest names, and a batch without a manifest is not there. A complete output is never
    replaced or deleted.

    Args:
        url: ``protocol://...`` of a store that can create a file only if it is absent.
        open_at: opens the files at a URL.
    """

    def __init__(self, url: str, open_at: Callable[[str], Files] = open_output) -> None:
        self._url = url
        self._open_at = open_at
        self._files = open_at(url)

    def write(self, batch: OutputBatch, rdd: RDD[Any]) -> bool:
        """Write a batch, and return False if it was there already.

        Raises:
            OutputConflictError: there is the output of a batch that is not this one, or batches
                are there that the stream has left out.
            FileExistsError: there is a ``_SUCCESS`` that another program wrote.
            CheckpointError: the store refused.
        """
        self._compare(batch)
        if self._is_there(batch):
            return False
        task = _WriteText(self._files)
        names = tuple(sorted(rdd.mapPartitionsWithIndex(task).collect()))
        manifest = Manifest.of(batch, names)
        try:
            self._files.create(SUCCESS, [manifest.to_text().encode()])
        except AlreadyExistsError:
            # Of a driver that was quicker: what it has published stays.
            self._delete(names)
            if self._is_there(batch):
                return False
            raise
        return True

    def _is_there(self, batch: OutputBatch) -> bool:
        if not self._files.exists(SUCCESS):
            return False
        found = _manifest(self._files, SUCCESS)
        if found is None:
            raise FileExistsError(
                f"saveAsTextFiles cannot write {self._files.url}: there is a {SUCCESS} of another "
                f"program; remove {self._files.url}, move it away, or write to another prefix"
            )
        found.require_of(batch, self._files.url)
        return True

    def _compare(self, batch: OutputBatch) -> None:
        """Refuse to go on where batches are there that the stream has left out."""
        parent, _, name = self._url.rstrip("/").rpartition("/")
        series = Series(name, batch.time_ms)
        place = (parent, series.pattern, batch.left_out)
        if not batch.left_out or place in _compared:
            return
        files = self._open_at(parent)
        suffix = f"/{SUCCESS}"
        found = [file.removesuffix(suffix) for file in files.list("") if file.endswith(suffix)]
        series.require_left_out(
            batch, found, parent, lambda name: _manifest(files, f"{name}{suffix}")
        )
        _compared.add(place)

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._files.delete(name)
            except CheckpointError as error:
                logger.warning("%s, which does not count, is left: %s", name, error)


def _manifest(files: Files, name: str) -> Manifest | None:
    return Manifest.of_text(files.read(name).decode("utf-8", "replace"))


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
