"""Each batch as a directory of files, complete or not there."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark import RDD

from checkpoint import open_output
from dstreams.errors import InvalidStreamError
from dstreams.sinks.committed_directory import Encode, WritePart
from dstreams.sinks.hadoop_directory import HadoopDirectory, is_local, is_of_hadoop
from dstreams.sinks.object_directory import ObjectDirectory
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sinks.promise import DeliveryGuarantee

logger = logging.getLogger(__name__)

_WHOLE_DIRECTORIES = DeliveryGuarantee(
    "exactly once",
    "the directory of a batch is there whole or not at all; where an older copy of the "
    "checkpoint is put back, what is there of later batches stops the stream",
)


@dataclass(frozen=True)
class TextFilesWriter:
    """Writes ``str`` of each record as a line, with one Spark job a batch.

    A batch that is there is not written again: a run after a crash changes nothing that a reader
    has seen. What another stream wrote, or another history of the checkpoint, is an error, by the
    rule of :mod:`dstreams.sinks.output_batch`. The prefix is on a file system of Hadoop's, or on
    one of fsspec's that can create a file only if it is absent.
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
        """Name the directory of a batch, as ``pyspark.streaming`` does."""
        ending = f".{self.suffix}" if self.suffix else ""
        return f"{self.prefix}-{time_ms}{ending}"

    def __call__(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        """Write one batch.

        Raises:
            OutputConflictError: the target is the output of a batch that is not this one.
            FileExistsError: the target is there and no complete output of a batch.
            OSError: the file system would not rename.
        """
        url = self.directory(batch.time_ms)
        if not self._write(url, batch, rdd):
            logger.info("batch %d is there already: %s", batch.batch_id, url)

    def _write(self, url: str, batch: OutputBatch, rdd: RDD[Any]) -> bool:
        if is_of_hadoop(rdd.context, url):
            return HadoopDirectory(rdd.context, url).write(batch, rdd)
        return ObjectDirectory(url).write(batch, rdd)


@dataclass(frozen=True)
class EncodedFilesWriter(TextFilesWriter):
    """Writes a file for each partition, of the bytes that a function makes of its records.

    Names and promise are those of lines. Workers write, so the prefix is in a directory that all of
    them share, or on a file system of fsspec's.

    Attributes:
        encode: makes the bytes.
        ending: of the names of the files.
    """

    encode: Encode | None = None
    ending: str = ""

    def _write(self, url: str, batch: OutputBatch, rdd: RDD[Any]) -> bool:
        if is_local(rdd.context, url):
            return HadoopDirectory(rdd.context, url, self.operation).write(batch, rdd, self._save)
        return ObjectDirectory(url, open_output, self.encode, self.ending).write(batch, rdd)

    def _save(self, rdd: RDD[Any], directory: str) -> int:
        """Write the files, and leave none of an attempt that lost."""
        files = open_output(directory)
        assert self.encode is not None
        task = WritePart(files, "part-", self.encode, self.ending, writes_empty=False)
        written = {name for name, _ in rdd.mapPartitionsWithIndex(task).collect()}
        root = files.url.removeprefix("file://")
        for name in set(os.listdir(root)) - written:
            os.unlink(os.path.join(root, name))
        return len(written)
