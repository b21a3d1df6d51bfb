"""Each batch as a directory of text files, complete or not there."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark import RDD

from dstreams.errors import InvalidStreamError
from dstreams.sinks.hadoop_directory import HadoopDirectory, is_of_hadoop
from dstreams.sinks.object_directory import ObjectDirectory
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sinks.promise import OutputPromise

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextFilesWriter:
    """Writes ``str`` of each record as a line, with one Spark job a batch.

    A batch that is there is not written again: a run after a crash changes nothing that a reader
    has seen. What another stream wrote, or another history of the checkpoint, is an error, by the
    rule of :mod:`dstreams.sinks.output_batch`. The prefix is on a file system of Hadoop's, or on
    one of fsspec's that can create a file only if it is absent.
    """

    promise: ClassVar[OutputPromise] = OutputPromise(
        "exactly once",
        "the directory of a batch is there whole or not at all; where an older copy of the "
        "checkpoint is put back, what is there of later batches stops the stream",
    )

    prefix: str
    suffix: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str):
            raise InvalidStreamError(_not_text("prefix", self.prefix))
        if self.suffix is not None and not isinstance(self.suffix, str):
            raise InvalidStreamError(_not_text("suffix", self.suffix))

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
        if is_of_hadoop(rdd.context, url):
            is_new = HadoopDirectory(rdd.context, url).write(batch, rdd)
        else:
            is_new = ObjectDirectory(url).write(batch, rdd)
        if not is_new:
            logger.info("batch %d is there already: %s", batch.batch_id, url)


def _not_text(name: str, value: object) -> str:
    return f"{name} of saveAsTextFiles must be a str, got {value!r} ({type(value).__name__})"
