"""The methods of a StreamingContext that create input streams from files."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dstreams.api.dstream import DStream
from dstreams.clock import Clock
from dstreams.durations import require_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.settings import UNLIMITED_MS
from dstreams.sources.file_formats import FixedRecords, FormatName, ReadFiles, file_format
from dstreams.sources.file_stream import FileSource
from dstreams.sources.source import Source


class FileInputMethods:
    """Files that appear in a directory, each in one batch; see :class:`FileSource` for which.

    Semantics: Spark's FileInputDStream, and pyspark.streaming.StreamingContext (4.3).
    """

    _clock: Clock

    def _input(self, source: Source, operation: str, uid: str | None = None) -> DStream[Any]:
        raise NotImplementedError

    def textFileStream(self, directory: str, *, uid: str | None = None) -> DStream[str]:
        """Create a stream of the lines of UTF-8 text files that appear in *directory*.

        Files must be moved there, complete, from elsewhere on the file system. Names that begin
        with ``.`` or ``_``, or end in ``._COPYING_`` or ``.tmp``, are left out.

        Args:
            directory: path, URL, or pattern of Hadoop's for several directories.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.
        """
        source = FileSource(directory, "textFileStream", new_since_ms=self._clock.now_ms())
        return self._input(source, "textFileStream", uid)

    def binaryRecordsStream(
        self, directory: str, recordLength: int, *, uid: str | None = None
    ) -> DStream[bytes]:
        """Create a stream of the records of binary files that appear in *directory*.

        A file whose size is no multiple of *recordLength* fails the batch that would have read it,
        and is left out; the next batch reads the other files.

        Args:
            directory: as in :meth:`textFileStream`.
            recordLength: bytes of each record.
            uid: likewise.

        Raises:
            InvalidStreamError: *recordLength* is no whole number of at least 1.
        """
        name = "binaryRecordsStream"
        now_ms = self._clock.now_ms()
        source = FileSource(directory, name, FixedRecords(recordLength), new_since_ms=now_ms)
        return self._input(source, name, uid)

    def fileStream(
        self,
        directory: str,
        filter: Callable[[str], bool] | None = None,
        newFilesOnly: bool = True,
        *,
        read: FormatName | ReadFiles = "textFile",
        maxFilesPerBatch: int | None = None,
        maxFileAge: float | None = None,
        uid: str | None = None,
    ) -> DStream[Any]:
        """Create a stream of what is in the files that appear in *directory*.

        >>> import math, pathlib
        >>> csv = ssc.fileStream(directory, lambda path: path.endswith(".csv"), maxFileAge=math.inf)
        >>> csv.foreachRDD(lambda rdd: print(rdd.collect()))
        >>> pathlib.Path(directory).mkdir()
        >>> for name in "a.csv", "b.txt", ".c.csv":
        ...     _ = pathlib.Path(directory, name).write_text(f"a line of {name}")
        >>> sum(ssc.step()[0].records.values())
        ['a line of a.csv']
        1

        Args:
            directory: as in :meth:`textFileStream`.
            filter: ``f(path) -> bool``, called on the driver once for each file whose name is not
                left out anyway. None: all of them.
            newFilesOnly: leave out files that were there when the stream was defined.
            read: ``textFile`` for lines, ``wholeTextFiles`` or ``binaryFiles`` for pairs (path,
                content), or ``f(spark, paths) -> RDD``, called on the driver for each batch that
                has files, with their paths as they are: patterns and commas are not escaped.
            maxFilesPerBatch: files in a batch at most; the oldest first, the others in later
                batches. None: ``spark.dstreams.fileStream.maxFilesPerBatch``, without it no limit.
            maxFileAge: seconds that a file's modification time may lie back when it appears,
                ``math.inf`` for no limit. None: ``spark.dstreams.fileStream.maxFileAge``; without
                that the remember window, as in Spark, where a file moved in with an old time is not
                new.
            uid: as in :meth:`textFileStream`.

        Raises:
            InvalidStreamError: a function does not take these arguments, *read* is unknown, or a
                limit is not positive.

        State: the driver remembers the files that are in the directory.
        Semantics: org.apache.spark.streaming.StreamingContext.fileStream (4.3), with *read* in the
            place of a Hadoop InputFormat.
        """
        source = FileSource(
            directory,
            "fileStream",
            file_format(read, "fileStream"),
            filter,
            self._clock.now_ms() if newFilesOnly else None,
            _require_count(maxFilesPerBatch),
            _require_age_ms(maxFileAge),
        )
        return self._input(source, "fileStream", uid)


def _require_count(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise InvalidStreamError(
        f"maxFilesPerBatch must be a whole number of files, at least 1, or None, got {value!r}"
    )


def _require_age_ms(seconds: object) -> int | None:
    if seconds is None:
        return None
    if seconds == math.inf:
        return UNLIMITED_MS
    return require_duration_ms(seconds, "maxFileAge")
