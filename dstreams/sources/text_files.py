"""New text files of a directory, as lines."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark import RDD

from dstreams.errors import InvalidStreamError
from dstreams.sources.file_listing import local_path, open_listing, spark_path
from dstreams.sources.file_selection import FileSelection
from dstreams.sources.source import PlannedInput, SourceEnvironment

logger = logging.getLogger(__name__)

_NAMES_IN_MESSAGE = 10


@dataclass(frozen=True)
class TextFileSource:
    """Lines of the files that appear in *directory*, each file in one batch.

    A file counts when its modification time lies in the remember window that ends with the batch
    time (``spark.streaming.fileStream.minRememberDuration``, rounded up to whole batches), and is
    later than *new_since_ms*. So write a file elsewhere on the same file system and move it in at
    once: a file that is still being written is read as far as it is. Left out are directories
    inside, names that begin with ``.`` as in Spark, and also names that begin with ``_`` or end in
    ``._COPYING_``. Files left out for their age are named in the log, once.

    Args:
        directory: path, URL, or pattern of Hadoop's (``*``, ``?``, ``[a-c]``, ``{a,b}``, and ``\\``
            before a character that is meant). It may appear after the start.
        new_since_ms: files modified up to this time are not new; None: the time of ``open``. Spark
            takes the time at which the stream was defined.

    Raises:
        InvalidStreamError: *directory* is no text, or a URL that can be no directory.

    Semantics: Spark's FileInputDStream, new files only. Unlike there a failed listing fails the
    batch, loudly; its files are taken by a later batch within the window.
    """

    directory: str
    new_since_ms: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str) or not self.directory.strip():
            raise InvalidStreamError(
                f"directory of textFileStream must be a path or URL, got {self.directory!r} "
                f"({type(self.directory).__name__})"
            )
        local_path(self.directory)

    @property
    def name(self) -> str:
        return f"textFileStream({self.directory})"

    def open(self, environment: SourceEnvironment) -> TextFileReader:
        return TextFileReader(self, environment)


class TextFileReader:
    """Lists at each plan; the plan holds the paths, and Spark reads them when the batch runs."""

    def __init__(self, source: TextFileSource, environment: SourceEnvironment) -> None:
        self._name = source.name
        self._spark = environment.spark
        self._listing = open_listing(source.directory, environment.spark)
        batch_ms = environment.batch_ms
        remember_batches = -(-environment.settings.file_remember_ms // batch_ms)
        since_ms = source.new_since_ms
        self._selection = FileSelection(
            new_since_ms=environment.clock.now_ms() if since_ms is None else since_ms,
            remember_ms=remember_batches * batch_ms,
        )
        self._is_missing = False

    def start(self) -> None:
        """Refuse what can never be listed; a directory that is not there yet is a warning.

        Raises:
            SourceError: the place is no directory, or cannot be listed.
        """
        self._list()

    def plan(self, batch_time_ms: int) -> PlannedInput:
        """Choose the files of a batch.

        Raises:
            SourceError: the directory cannot be listed now; nothing was chosen.
        """
        taken, ignored = self._selection.select(self._list(), batch_time_ms)
        if ignored:
            logger.warning("%s: ignored %s", self._name, _describe_ignored(ignored))
        return PlannedInput(batch_time_ms, taken, None if taken else 0, _describe(taken))

    def rdd(self, planned: PlannedInput) -> RDD[str]:
        if not planned.content:
            return self._spark.emptyRDD()
        return self._spark.textFile(",".join(spark_path(path) for path in planned.content))

    def release(self, batch_time_ms: int) -> None:
        """Nothing: files stay, and what was taken is forgotten by age."""

    def stop_receiving(self) -> None:
        """Nothing: files wait where they are."""

    def has_pending(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open between two batches."""

    def _list(self) -> Mapping[str, int]:
        listed = self._listing.modified_ms()
        was_missing, self._is_missing = self._is_missing, listed is None
        if self._is_missing and not was_missing:
            logger.warning("%s: no such directory; batches stay empty until it appears", self._name)
        return listed or {}


def _describe(paths: tuple[str, ...]) -> str:
    if not paths:
        return "no new files"
    return f"new files: {_some([path.rpartition('/')[2] for path in paths])}"


def _describe_ignored(reasons: Mapping[str, str]) -> str:
    named = [f"{path} ({reason})" for path, reason in reasons.items()]
    return f"{len(named)} files: {_some(named)}"


def _some(names: list[str]) -> str:
    more = len(names) - _NAMES_IN_MESSAGE
    shown = ", ".join(names[:_NAMES_IN_MESSAGE])
    return f"{shown} and {more} more" if more > 0 else shown
