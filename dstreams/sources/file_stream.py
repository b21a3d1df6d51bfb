"""New files of a directory as a source: each file in one batch."""

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

    Write a file elsewhere on the same file system, or under a name that is left out, and move it in
    when it is complete: one that is still being written is read as far as it is. Left out are
    directories inside, and names that begin with ``.`` or ``_`` or end in ``._COPYING_`` or
    ``.tmp``. A file is taken once, even if it changes later; the log says so.

    By default the modification time decides whether a file is new, as in Spark, and one that is
    older than the remember window (``spark.streaming.fileStream.minRememberDuration``, rounded up
    to whole batches) when it appears is ignored; the log says so. With *max_age_ms* only files that
    were there when the stream started are not new, and a file may be as old as that.

    With a checkpoint directory the begin record of a batch names its files.

    Args:
        directory: path, URL, or pattern of Hadoop's (``*``, ``?``, ``[a-c]``, ``{a,b}``, and ``\\``
            before a character that is meant). It may appear after the start.
        operation: method that created the stream.
        format: what is read of each file.
        filter: says of the path of a file, as listed, whether it is wanted; None for all.
        new_since_ms: files modified up to this time are not new; None: all files are. Spark takes
            the time at which the stream was defined.
        max_files: files in a batch at most, None for what the settings say.
        max_age_ms: how old a file may be when it appears, None for what the settings say.

    Raises:
        InvalidStreamError: *directory* is no text, or a URL that can be no directory; *filter* does
            not take a path.

    Semantics: Spark's FileInputDStream. Unlike there a failed listing fails the batch, loudly; a
    later batch takes its files.
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
        """Where the files are: their paths say which ones were read."""
        path = local_path(self.directory) or self.directory
        is_plain = path.startswith("/") or ":" not in path.partition("/")[0]
        return os.path.abspath(path) if is_plain and not has_wildcards(path) else self.directory

    def open(self, environment: SourceEnvironment) -> NewFilesReader:
        return NewFilesReader(self, environment)

    def accepts(self, path: str) -> bool:
        """Ask the filter.

        Raises:
            SourceError: it failed.
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
        """What makes a file count."""
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
    """Lists at each plan; the plan names the files, and Spark reads them when the batch runs.

    After an earlier run it goes on where that ended: no batch gets a file that another one has.
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
        """Find out what earlier runs took; refuse what can never be listed.

        A directory that is not there yet is a warning.

        Raises:
            SourceError: the place is no directory, or cannot be listed.
            CheckpointError: what earlier runs took cannot be read.
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
            SourceError: the directory cannot be listed now, a file cannot be read, or the filter
                failed; nothing was chosen.
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
            self._tell(selected)
            more, waiting = {SETTLED: selected.settled_ms}, len(selected.waiting)
            planned = self._planned(time_ms, start, selected.files, more, waiting)
            selection.take(selected, time_ms, planned.end)
            if self._environment.storage is None:
                selection.retire(planned.end)  # no snapshot will ask for less
            self._has_new = False
            return planned

    def _listed(self) -> Collection[str]:
        return self._listing.files() or ()

    def snapshot_size(self) -> int:
        """How many files are remembered."""
        with self._lock:
            return self._started.taken_count

    def snapshot(self, end: Any) -> Mapping[str, object]:
        """What batches up to an offset took."""
        with self._lock:
            return self._started.snapshot(end)

    def retire(self, end: Any) -> None:
        """Forget what is known of single batches up to an offset: a snapshot stands for them."""
        with self._lock:
            self._started.retire(end)

    def stop_receiving(self) -> None:
        """Look once more: what is there now is what will be taken."""
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
        """Whether files are there that no batch has, after :meth:`stop_receiving`."""
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
        """Say since when files are new."""
        since_ms = self._source.new_since_ms
        before: tuple[FileStamp, ...] = ()
        if since_ms is not None and self._rules.max_age_ms is not None:
            before = tuple(stamp for stamp in listing.values() if stamp.modified_ms <= since_ms)
        if before:
            names = some_names([stamp.path for stamp in before])
            logger.info(
                "%s: left out %d files that were there before: %s",
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

    def _tell(self, selection: Selection) -> None:
        """Log what is left out, and fail for what should have been read.

        Raises:
            SourceError: files are not what they have to be; they will not be taken.
        """
        name = self._source.name
        if selection.ignored:
            logger.warning("%s: ignored %s", name, _reasons(selection.ignored))
        if selection.unfinished:
            logger.info("%s: left out %s", name, _reasons(selection.unfinished))
        if selection.changed:
            logger.warning(
                "%s: %d files have changed since they were taken, and are not read again: %s; give "
                "new data a new name",
                name,
                len(selection.changed),
                some_names(selection.changed),
            )
        if selection.refused:
            raise SourceError(
                f"{name} cannot read {_reasons(selection.refused)}; they are left out, and the "
                "next batch reads the others"
            )


def _reasons(reasons: Mapping[str, str]) -> str:
    named = [f"{path} ({reason})" for path, reason in reasons.items()]
    return f"{len(named)} files: {some_names(named)}"
