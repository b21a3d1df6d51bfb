"""Each batch as a directory of text files, complete or not there."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD

from dstreams.errors import InvalidStreamError
from dstreams.sinks.output_batch import OutputBatch


@dataclass(frozen=True)
class TextFilesWriter:
    """Writes ``str`` of each record as a line, with one Spark job a batch.

    The job writes to a hidden directory beside the target, which is then renamed: readers see the
    whole batch or nothing (on file systems whose rename is atomic: object stores copy). A batch
    that runs again replaces the directory it had completed.

    Args:
        prefix: path or URL up to the dash, on any file system of Hadoop's.
        suffix: what follows the time after a dot; None or "": nothing.

    Raises:
        InvalidStreamError: *prefix* or *suffix* is no text.
    """

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
            FileExistsError: the target is there and no complete output of Spark's.
            OSError: the file system would not rename.
        """
        spark = rdd.context
        jvm: Any = spark._jvm
        path = jvm.org.apache.hadoop.fs.Path
        target = path(self.directory(batch.time_ms))
        files = target.getFileSystem(spark._jsc.hadoopConfiguration())
        target = files.makeQualified(target)
        if files.exists(target) and not files.exists(path(target, "_SUCCESS")):
            raise FileExistsError(
                f"saveAsTextFiles cannot write {target.toString()}: it exists and has no _SUCCESS, "
                "so it is not the complete output of a batch; move it away"
            )
        hidden = path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}")
        try:
            rdd.saveAsTextFile(hidden.toString())
            files.delete(target, True)
            if not files.rename(hidden, target):
                raise OSError(
                    f"saveAsTextFiles cannot rename {hidden.toString()} to {target.toString()}"
                )
        except BaseException:
            with suppress(Py4JError):
                files.delete(hidden, True)
            raise


def _not_text(name: str, value: object) -> str:
    return f"{name} of saveAsTextFiles must be a str, got {value!r} ({type(value).__name__})"
