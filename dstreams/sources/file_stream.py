"""New files of a directory as a source: each file in one batch."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import RDD

from dstreams.callables import describe, require_arity
from dstreams.durations import ahead_of_clock_ms
from dstreams.errors import InvalidStreamError, MissingInputError, SourceError
from dstreams.rdd.failures import summarize
from dstreams.rdd.jvm import passing_over_missing_files
from dstreams.settings import IGNORE_MISSING_FILES, Settings
from dstreams.sources.file_formats import TEXT_LINES, FileFormat
from dstreams.sources.file_listing import FileStamp, has_wildcards, local_path, open_listing
from dstreams.sources.file_selection import (
    FileBase,
    FileBatch,
    FileHistory,
    FileRules,
    FileSelection,
    Listing,
    Selection,
)
from dstreams.sources.source import PlannedInput, SourceEnvironment

logger = logging.getLogger(__name__)

_NAMES_IN_MESSAGE = 10
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(//[^/]*)?")
_ALWAYS_MS = -(1 << 62)
"""Earlier than any modification time."""


@dataclass(frozen=True)
class FileSource:
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
        return f"{self.operation}({self.directory})"

    @property
    def place(self) -> str:
        """Where the files are: their paths say which ones were read."""
        path = local_path(self.directory) or self.directory
        is_plain = path.startswith("/") or ":" not in path.partition("/")[0]
        return os.path.abspath(path) if is_plain and not has_wildcards(path) else self.directory

    def open(self, environment: SourceEnvironment) -> FileReader:
        return FileReader(self, environment)

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
            max_files=settings.max_files_per_batch if max_files is None else max_files,
            accepts=self.accepts,
            refuses=self.format.refuses,
        )


class FileReader:
    """Lists at each plan; the plan holds the files, and Spark reads them when the batch runs.

    After an earlier run it goes on where that ended: a batch that was begun gets its files again,
    and no other batch gets any of them.
    """

    def __init__(self, source: FileSource, environment: SourceEnvironment) -> None:
        self._source = source
        self._environment = environment
        self._listing = open_listing(source.directory, environment.spark)
        self._rules = source.rules(environment.settings, environment.batch_ms)
        # Batches are planned on one thread and end on another.
        self._lock = threading.Lock()
        self._settled = {0: 0}  # by the times of batches with files
        self._begun_upto_ms = -1
        self._selection: FileSelection | None = None
        self._last_listing: Listing | None = None
        self._has_stopped = False
        self._has_new = False
        self._is_missing = False
        self._is_ignoring = environment.settings.ignore_missing_files
        self._read: dict[int, tuple[FileStamp, ...]] = {}
        self._skipped: dict[int, tuple[FileStamp, ...]] = {}

    def start(self) -> None:
        """Find out what earlier runs took; refuse what can never be listed.

        A directory that is not there yet is a warning.

        Raises:
            SourceError: the place is no directory, or cannot be listed.
            CheckpointError: what earlier runs took cannot be read.
        """
        with self._lock:
            listing = self._list() or {}
            past = self._environment.past(self._environment.uid)
            history, is_new = FileHistory.of(past), False
            if history is None:
                history, is_new = FileHistory(self._begin(listing), {}), True
            self._selection = FileSelection(history, self._rules, resumed=not is_new)
            self._settled = {history.base.upto_ms: history.base.settled_ms}
            for time_ms, batch in history.batches.items():
                self._settled[time_ms] = batch.settled_ms
            self._begun_upto_ms = past.begun_ms

    def plan(self, batch_time_ms: int) -> PlannedInput:
        """Choose the files of a batch.

        Raises:
            SourceError: the directory cannot be listed now, a file cannot be read, or the filter
                failed; nothing was chosen.
        """
        with self._lock:
            if batch_time_ms <= self._begun_upto_ms:  # it did without this input, and does again
                return self._planned(FileBatch(batch_time_ms, 0, ()), 0)
            self._decided.expect(batch_time_ms)
            listing = self._last_listing if self._has_stopped else self._list()
            if listing is None:
                return self._planned(FileBatch(batch_time_ms, 0, ()), 0)
            selection = self._decided.select(listing, batch_time_ms, self._ahead_ms(batch_time_ms))
            self._tell(selection)
            self._decided.take(selection)
            self._has_new = False
            if selection.batch.files and self._environment.open_files is not None:
                self._settled[batch_time_ms] = selection.batch.settled_ms
            return self._planned(selection.batch, len(selection.waiting))

    def recorded(self, planned: PlannedInput) -> Mapping[str, object]:
        """Which files."""
        batch: FileBatch = planned.content
        return batch.facts()

    def replay(self, batch_time_ms: int, recorded: Mapping[str, Any]) -> PlannedInput:
        """Take the same files again."""
        return self._planned(FileBatch.of(batch_time_ms, recorded), 0)

    def rdd(self, planned: PlannedInput) -> RDD[Any]:
        """Return the records of the files of a plan.

        Raises:
            MissingInputError: a file cannot be opened, because it was deleted for example.
        """
        spark, format = self._environment.spark, self._source.format
        files, wants_all = self._there(planned), not self._is_ignoring
        if not files:
            return spark.emptyRDD()
        passes_over = self._is_ignoring and format.has_partitions_of_files
        try:
            with passing_over_missing_files(spark, is_wanted=passes_over):
                rdd = format.rdd(spark, files)
                partitions = rdd.getNumPartitions()  # looks at each file
        except (Py4JJavaError, OSError) as error:
            remedy = f"; {missing_files_remedy()}" if wants_all else ""
            raise MissingInputError(
                f"{self._source.name}: files of the batch at {planned.batch_time_ms} ms cannot be "
                f"opened: {summarize(error)}; it has {_described(files)}{remedy}"
            ) from error
        if partitions == 0 and passes_over and any(file.size_bytes for file in files):
            # Spark then has passed over all of them, the ones that are there too.
            raise MissingInputError(
                f"{self._source.name}: files of the batch at {planned.batch_time_ms} ms vanished "
                f"while they were opened; it has {_described(files)}, and the next batch looks "
                "again which are there"
            )
        self._read[planned.batch_time_ms] = files
        return rdd

    def noticed(self, planned: PlannedInput) -> str:
        """Say which files of a batch were skipped, or vanished while it ran; so does the log.

        Only where a setting lets files vanish; else the batch has failed.
        """
        time_ms = planned.batch_time_ms
        if not self._is_ignoring or not planned.content.files:
            return ""
        try:
            vanished = self._missing(self._read.get(time_ms, ()))
        except SourceError:
            vanished = ()  # the next batch meets that
        skipped = self._skipped.pop(time_ms, ())
        noticed = ""
        if vanished:
            logger.warning(
                "%s: %d files of the batch at %d ms vanished while it ran, and were skipped where "
                "they had not been read: %s",
                self._source.name,
                len(vanished),
                time_ms,
                _described(vanished),
            )
            noticed = f"; {len(vanished)} vanished while the batch ran: {_described(vanished)}"
        if skipped:
            noticed += f"; skipped {len(skipped)} that are missing: {_described(skipped)}"
        return noticed

    def explain(self, failure: str) -> str | None:
        """Say of which batch a file is that a job could not find, and what to do."""
        for time_ms, files in self._read.items():
            path = vanished_file(failure, [file.path for file in files])
            if path is not None:
                return f"{path} is input of the batch at {time_ms} ms; {missing_files_remedy()}"
        return None

    def _there(self, planned: PlannedInput) -> tuple[FileStamp, ...]:
        """The files of a plan; where a setting lets files vanish, those that are there."""
        files: tuple[FileStamp, ...] = planned.content.files
        missing = self._missing(files) if self._is_ignoring else ()
        if missing:
            self._skipped[planned.batch_time_ms] = missing
            logger.warning(
                "%s: skipped %d files of the batch at %d ms that are not there any more: %s",
                self._source.name,
                len(missing),
                planned.batch_time_ms,
                _described(missing),
            )
        return tuple(file for file in files if file not in missing)

    def _missing(self, files: Sequence[FileStamp]) -> tuple[FileStamp, ...]:
        listing = self._listing.files() or {} if files else {}
        return tuple(file for file in files if file.path not in listing)

    def release(self, batch_time_ms: int) -> None:
        """Forget which files batches have read; they stay where they are."""
        for time_ms in [time_ms for time_ms in self._read if time_ms <= batch_time_ms]:
            del self._read[time_ms]

    def snapshot_size(self) -> int:
        """How many files are remembered."""
        with self._lock:
            return self._decided.taken_count

    def snapshot(self, upto_ms: int) -> Mapping[str, object]:
        """What batches up to a time took."""
        with self._lock:
            newest_ms = max(time_ms for time_ms in self._settled if time_ms <= upto_ms)
            return self._decided.base(upto_ms, self._settled[newest_ms]).facts()

    def retire(self, batch_time_ms: int) -> None:
        """Forget what is known of single batches up to this time: a snapshot stands for them."""
        with self._lock:
            known = sorted(time_ms for time_ms in self._settled if time_ms <= batch_time_ms)
            for time_ms in known[:-1]:
                del self._settled[time_ms]

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

    def close(self) -> None:
        """Nothing is open between two batches."""

    def _ahead_ms(self, batch_time_ms: int) -> int:
        """How far a batch is ahead of the clock, in whole batch durations."""
        return ahead_of_clock_ms(
            batch_time_ms, self._environment.clock.now_ms(), self._environment.batch_ms
        )

    @property
    def _decided(self) -> FileSelection:
        if self._selection is None:
            raise SourceError(f"{self._source.name} has not been started")
        return self._selection

    def _begin(self, listing: Listing) -> FileBase:
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
        # Where a start takes longer than a batch, the first batches are older than this moment, and
        # a restart counts no record that is newer than the last of them that was committed.
        upto_ms, now_ms = self._environment.zero_ms, self._environment.clock.now_ms()
        return FileBase(upto_ms, new_since_ms, now_ms, before)

    def _list(self) -> Listing | None:
        listing = self._listing.files()
        was_missing, self._is_missing = self._is_missing, listing is None
        if self._is_missing and not was_missing:
            name = self._source.name
            logger.warning("%s: no such directory; batches stay empty until it appears", name)
        return listing

    def _planned(self, batch: FileBatch, waiting: int) -> PlannedInput:
        files = batch.files
        records = self._source.format.count(files) if files else 0
        description = f"new files: {_described(files)}" if files else "no new files"
        wait = f"; {waiting} more wait" if waiting else ""
        return PlannedInput(batch.batch_time_ms, batch, records, f"{description}{wait}")

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


def vanished_file(failure: str, paths: Iterable[str]) -> str | None:
    """Return which of some files it is that a job could not find, None where it is none of them.

    Args:
        failure: what the error of the job says.
        paths: of the files.
    """
    if "java.io.FileNotFoundException" not in failure:
        return None
    for path in paths:
        name = re.escape(_SCHEME.sub("", path))  # not all file systems name more of it
        if re.search(rf"{name}(?=[\s,;:)]|$)", failure):
            return path
    return None


def missing_files_remedy() -> str:
    """Say what to do about an input file that is not there."""
    return f"put it back, or go on without its records with {IGNORE_MISSING_FILES}=true"


def _described(files: Sequence[FileStamp]) -> str:
    return some_names([file.path.rpartition("/")[2] for file in files])


def _reasons(reasons: Mapping[str, str]) -> str:
    named = [f"{path} ({reason})" for path, reason in reasons.items()]
    return f"{len(named)} files: {some_names(named)}"


def some_names(names: Sequence[str]) -> str:
    """Name the first few of many."""
    more = len(names) - _NAMES_IN_MESSAGE
    shown = ", ".join(names[:_NAMES_IN_MESSAGE])
    return f"{shown} and {more} more" if more > 0 else shown
