"""New files of a directory as a source; each file is in exactly one batch."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from checkpoint import without_secrets
from dstreams.common.callables import describe, require_arity
from dstreams.common.durations import ahead_of_clock_ms
from dstreams.common.settings import Settings
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.sources.file_formats import TEXT_LINES, FileFormat
from dstreams.sources.file_listing import FileStamp, has_wildcards, local_path, open_listing
from dstreams.sources.file_reader import FileReader, some_names
from dstreams.sources.file_selection import (
    SETTLED,
    FileRules,
    FileSelection,
    Listing,
    Selection,
)
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment
from dstreams.spark.failures import summarize

logger = logging.getLogger(__name__)

_ALWAYS_MS = -(1 << 62)
"""Earlier than any modification time."""


@dataclass(frozen=True)
class FileSource(Source):
    """Records of the files that appear in *directory*, each file in one batch.

    Write a file elsewhere on the same file system, or under a skipped name, and move it in when it
    is complete: a file that is still being written is read up to its current end. Subdirectories
    are skipped, and names that begin with ``.`` or ``_`` or end in ``._COPYING_`` or ``.tmp``. A
    file is read once, even if it changes later; the change is logged.

    By default, as in Spark, the modification time decides whether a file is new. A file that is
    older than the remember window when it appears is ignored and logged. The window is
    ``spark.streaming.fileStream.minRememberDuration``, rounded up to whole batches. With
    *max_age_ms*, a file is new if it did not exist at the start and is not older than that.

    With a checkpoint directory, the begin record of a batch names its files.

    Args:
        directory: path, URL, or Hadoop pattern (``*``, ``?``, ``[a-c]``, ``{a,b}``, and ``\\`` to
            escape a character). It may appear after the start.
        operation: method that created the stream.
        format: format of the files.
        filter: ``f(path) -> bool`` that selects files; None for all.
        new_since_ms: files modified until this time are not new; None if all files are new. Spark
            uses the time at which the stream was defined.
        max_files: maximum number of files in a batch; None if unlimited.
        max_age_ms: maximum age of a file when it appears; None for the setting.

    Raises:
        InvalidStreamError: *directory* is not a string, or a URL that is not a directory; *filter*
            does not take one argument.

    Semantics: Spark's FileInputDStream, except that a failed listing fails the batch; a later batch
    reads its files.
    """

    directory: str
    operation: str = "fileStream"
    format: FileFormat = TEXT_LINES
    filter: Callable[[str], bool] | None = None
    new_since_ms: int | None = None
    max_files: int | None = None
    max_age_ms: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str) or not self.directory.strip():
            raise InvalidStreamError(
                f"directory of {self.operation} must be a path or URL, got {self.directory!r} "
                f"({type(self.directory).__name__})"
            )
        local_path(self.directory)
        if self.filter is not None:
            require_arity(self.filter, (1,), self.operation, "f(path) -> bool")

    @property
    def name(self) -> str:
        return f"{self.operation}({without_secrets(self.directory)})"

    @property
    def place(self) -> str:
        """The directory of the files, whose paths are recorded as read."""
        path = local_path(self.directory) or self.directory
        is_plain = path.startswith("/") or ":" not in path.partition("/")[0]
        return os.path.abspath(path) if is_plain and not has_wildcards(path) else self.directory

    def open(self, environment: SourceEnvironment) -> NewFilesReader:
        return NewFilesReader(self, environment)

    def accepts(self, path: str) -> bool:
        """Return whether the filter accepts a path.

        Raises:
            SourceError: the filter failed.
        """
        if self.filter is None:
            return True
        try:
            return bool(self.filter(path))
        except Exception as error:
            raise SourceError(
                f"{describe(self.filter)}, the filter of {self.name}, failed for {path}: "
                f"{summarize(error)}"
            ) from error

    def rules(self, settings: Settings, batch_ms: int) -> FileRules:
        """Return the rules for files."""
        max_age_ms, max_files = self.max_age_ms, self.max_files
        return FileRules(
            batch_ms=batch_ms,
            window_ms=-(-settings.file_remember_ms // batch_ms) * batch_ms,
            max_age_ms=settings.file_max_age_ms if max_age_ms is None else max_age_ms,
            max_files=max_files,
            accepts=self.accepts,
            refuses=self.format.refuses,
        )


class NewFilesReader(FileReader):
    """Lists the directory for each plan; Spark reads the files when the batch runs.

    After a restart, no batch reads a file that an earlier batch has read.
    """

    def __init__(self, source: FileSource, environment: SourceEnvironment) -> None:
        super().__init__(source.name, source.format, environment)
        self._source = source
        self._environment = environment
        self._listing = open_listing(source.directory, environment.spark)
        self._rules = source.rules(environment.settings, environment.batch_ms)
        # Batches are planned on one thread and end on another.
        self._lock = threading.Lock()
        self._selection: FileSelection | None = None
        self._last_listing: Listing | None = None
        self._has_stopped = False
        self._has_new = False
        self._is_missing = False

    def start(self) -> None:
        """Restore the files that earlier runs have read, and check the directory.

        A missing directory is only logged.

        Raises:
            SourceError: it is not a directory, or cannot be listed.
            CheckpointError: the files of earlier runs cannot be read.
        """
        with self._lock:
            listing = self._list() or {}
            past = self._environment.past()
            if past.facts is None:
                self._selection = self._new(listing)
            else:
                self._selection = FileSelection.resumed(self._rules, past)

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        """Choose the files of a batch.

        Raises:
            SourceError: the directory cannot be listed, a file cannot be read, or the filter
                failed; no file was chosen.
        """
        with self._lock:
            selection, again = self._started, self._not_begun(start, time_ms)
            selection.expect(time_ms)
            if again is not None:
                return again
            listing = self._last_listing if self._has_stopped else self._list()
            if listing is None:
                return self._planned(time_ms, start, ())
            now_ms, batch_ms = self._environment.clock.now_ms(), self._environment.batch_ms
            ahead_ms = ahead_of_clock_ms(time_ms, now_ms, batch_ms)
            selected = selection.select(listing, time_ms, ahead_ms)
            self._report(selected)
            more, waiting = {SETTLED: selected.settled_ms}, len(selected.waiting)
            planned = self._planned(time_ms, start, selected.files, more, waiting)
            selection.take(selected, time_ms, planned.end)
            if self._environment.storage is None:
                selection.retire(planned.end)  # no snapshot needs earlier batches
            self._has_new = False
            return planned

    def _listed(self) -> Collection[str]:
        return self._listing.files() or ()

    def snapshot_size(self) -> int:
        with self._lock:
            return self._started.taken_count

    def snapshot(self, end: Any) -> Mapping[str, object]:
        with self._lock:
            return self._started.snapshot(end)

    def retire(self, end: Any) -> None:
        """Forget single batches up to an offset, which are in a snapshot."""
        with self._lock:
            self._started.retire(end)

    def stop_receiving(self) -> None:
        """List the directory for the last time."""
        with self._lock:
            if self._has_stopped or self._selection is None:
                return
            self._has_stopped = True
            try:
                self._last_listing = self._list()
            except SourceError as error:
                logger.warning("%s", error)
            self._has_new = self._selection.has_new(self._last_listing or {})

    def has_pending(self) -> bool:
        """Return whether files of the last listing are in no batch."""
        with self._lock:
            if self._selection is None or self._last_listing is None:
                return False
            return self._has_new or self._selection.is_waiting

    @property
    def _started(self) -> FileSelection:
        if self._selection is None:
            raise SourceError(f"{self._source.name} has not been started")
        return self._selection

    def _new(self, listing: Listing) -> FileSelection:
        """Return the selection of a new stream."""
        since_ms = self._source.new_since_ms
        before: tuple[FileStamp, ...] = ()
        if since_ms is not None and self._rules.max_age_ms is not None:
            before = tuple(stamp for stamp in listing.values() if stamp.modified_ms <= since_ms)
        if before:
            names = some_names([stamp.path for stamp in before])
            logger.info(
                "%s: skipped %d files that existed at the start: %s",
                self._source.name,
                len(before),
                names,
            )
        new_since_ms = _ALWAYS_MS if since_ms is None else since_ms
        now_ms = self._environment.clock.now_ms()
        return FileSelection(self._rules, new_since_ms, now_ms, before)

    def _list(self) -> Listing | None:
        listing = self._listing.files()
        was_missing, self._is_missing = self._is_missing, listing is None
        if self._is_missing and not was_missing:
            name = self._source.name
            logger.warning("%s: no such directory; batches stay empty until it appears", name)
        return listing

    def _report(self, selection: Selection) -> None:
        """Log the files that are not read.

        Raises:
            SourceError: selected files cannot be read; later batches skip them.
        """
        name = self._source.name
        if selection.ignored:
            logger.warning("%s: ignored %s", name, _reasons(selection.ignored))
        if selection.unfinished:
            logger.info("%s: skipped %s", name, _reasons(selection.unfinished))
        if selection.changed:
            logger.warning(
                "%s: %d files changed after they were read, and are not read again: %s; write new "
                "data to a new file",
                name,
                len(selection.changed),
                some_names(selection.changed),
            )
        if selection.refused:
            raise SourceError(
                f"{name} cannot read {_reasons(selection.refused)}; they are skipped, and the next "
                "batch reads the others"
            )


def _reasons(reasons: Mapping[str, str]) -> str:
    named = [f"{path} ({reason})" for path, reason in reasons.items()]
    return f"{len(named)} files: {some_names(named)}"
