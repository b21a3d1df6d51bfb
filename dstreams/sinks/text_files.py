"""The sinks that write each batch as a directory of files, complete or absent."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark import RDD

from checkpoint import Files, open_output
from dstreams.errors import InvalidStreamError
from dstreams.sinks.committed_directory import (
    SUCCESS,
    CommittedDirectory,
    Encode,
    Lines,
    Manifest,
    Series,
    WritePart,
)
from dstreams.sinks.hadoop_directory import HadoopDirectory, is_local, is_of_hadoop
from dstreams.sinks.output_batch import DeliveryGuarantee, OutputBatch

logger = logging.getLogger(__name__)

_WHOLE_DIRECTORIES = DeliveryGuarantee(
    "exactly once",
    "the directory of a batch is complete or absent; if an older copy of the checkpoint is "
    "restored, existing directories of later batches stop the stream",
)


class ObjectDirectory:
    """The directory of one batch in an object store.

    Without *encode* the files contain lines; their names end with *ending*.
    """

    def __init__(
        self,
        url: str,
        open_at: Callable[[str], Files] = open_output,
        encode: Encode | None = None,
        ending: str = "",
    ) -> None:
        self._url = url
        self._encode = encode
        self._ending = ending
        self._open_at = open_at
        self._directory = CommittedDirectory(open_at(url))

    def write(self, batch: OutputBatch, rdd: RDD[Any]) -> bool:
        """Write a batch, and return False if it was already written."""
        self._compare(batch)
        directory = self._directory
        found = directory.find(SUCCESS, batch)
        if found is not None:
            directory.delete_unnamed(lambda name: found)
            return False
        encode, is_of_lines = self._encode or Lines(_line_of), self._encode is None
        task = WritePart(directory.files, "part-", encode, self._ending, is_of_lines)
        written = rdd.mapPartitionsWithIndex(task).collect()
        manifest = Manifest.of(batch, sorted(name for name, _ in written))
        is_new = directory.commit(SUCCESS, batch, manifest)
        if is_new:
            directory.delete_unnamed(lambda name: manifest)
        return is_new

    def _compare(self, batch: OutputBatch) -> None:
        """Raise OutputConflictError if the store has batches that the stream skipped."""
        parent, _, name = self._url.rstrip("/").rpartition("/")
        suffix = f"/{SUCCESS}"

        def list_names() -> list[str]:
            names = self._open_at(parent).list("")
            return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]

        def read(name: str) -> Manifest | None:
            return Manifest.of_text(self._open_at(parent).read(f"{name}{suffix}"))

        Series(parent, name, batch.time_ms).require_left_out(batch, list_names, read)


def _line_of(record: Any) -> bytes:
    """Return the line of a record, as ``saveAsTextFile`` writes it."""
    line = record if isinstance(record, (str, bytes)) else str(record)
    return line.encode() if isinstance(line, str) else line


@dataclass(frozen=True)
class TextFilesWriter:
    """Writes ``str`` of each record as a line, with one Spark job a batch.

    A batch that exists is not written again: a run after a crash changes nothing that a reader
    has seen. Output of another stream, or of another history of the checkpoint, is an error, by the
    rule of :mod:`dstreams.sinks.output_batch`. The prefix is on a Hadoop file system, or in an
    object store.
    """

    promise: ClassVar[DeliveryGuarantee] = _WHOLE_DIRECTORIES

    prefix: str
    suffix: str | None = None
    operation: str = "saveAsTextFiles"

    def __post_init__(self) -> None:
        for name, value in (
            ("prefix", self.prefix),
            ("suffix", "" if self.suffix is None else self.suffix),
        ):
            if not isinstance(value, str):
                raise InvalidStreamError(
                    f"{name} of {self.operation} must be a str, got {value!r} "
                    f"({type(value).__name__})"
                )

    def directory(self, time_ms: int) -> str:
        """Return the directory of a batch, named as in ``pyspark.streaming``."""
        ending = f".{self.suffix}" if self.suffix else ""
        return f"{self.prefix}-{time_ms}{ending}"

    def __call__(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        """Write one batch.

        Raises:
            OutputConflictError: the target is the output of another batch.
            FileExistsError: the target exists and is not the complete output of a batch.
            OSError: the file system refused to rename.
        """
        url = self.directory(batch.time_ms)
        if not self._write(url, batch, rdd):
            logger.info("skipped batch %d, which is already written: %s", batch.batch_id, url)

    def _write(self, url: str, batch: OutputBatch, rdd: RDD[Any]) -> bool:
        if is_of_hadoop(rdd.context, url):
            return HadoopDirectory(rdd.context, url).write(batch, rdd)
        return ObjectDirectory(url).write(batch, rdd)


@dataclass(frozen=True)
class EncodedFilesWriter(TextFilesWriter):
    """Writes a file for each partition, encoded by a function of its records.

    Workers write, so the prefix is in a directory that all of them share, or in an object store.
    File names end with *ending*.
    """

    encode: Encode | None = None
    ending: str = ""

    def _write(self, url: str, batch: OutputBatch, rdd: RDD[Any]) -> bool:
        if is_local(rdd.context, url):
            return HadoopDirectory(rdd.context, url, self.operation).write(batch, rdd, self._save)
        return ObjectDirectory(url, open_output, self.encode, self.ending).write(batch, rdd)

    def _save(self, rdd: RDD[Any], directory: str) -> int:
        """Write the files, and delete those of superseded task attempts."""
        files = open_output(directory)
        assert self.encode is not None
        task = WritePart(files, "part-", self.encode, self.ending, writes_empty=False)
        written = {name for name, _ in rdd.mapPartitionsWithIndex(task).collect()}
        root = files.url.removeprefix("file://")
        for name in set(os.listdir(root)) - written:
            os.unlink(os.path.join(root, name))
        return len(written)
