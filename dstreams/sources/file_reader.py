"""Reading the files of batches: those that a plan names, whatever has become of them meanwhile."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import RDD

from checkpoint import INPUT_FILES
from dstreams.common.settings import IGNORE_MISSING_FILES
from dstreams.errors import MissingInputError, SourceError
from dstreams.sources.file_formats import FileFormat, TextLines, line_ranges
from dstreams.sources.file_listing import FileStamp, stamps_in
from dstreams.sources.source import InputDescription, PlannedInput, SourceEnvironment, SourceReader
from dstreams.spark.failures import summarize
from dstreams.spark.jvm import compressed_endings, lines_later, passing_over_missing_files
from dstreams.spark.line_ranges import LineRanges

logger = logging.getLogger(__name__)

_NAMES_IN_MESSAGE = 10
_NOT_FOUND = FileNotFoundError.__name__
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(//[^/]*)?")


class FileReader(SourceReader):
    """Reads the files that plans name; which ones a batch has, subclasses say.

    An offset counts the batches that had files, and the facts of a plan name its files.

    Args:
        name: of the source.
        format: what is read of each file.
        environment: where it runs.
    """

    input_can_vanish = True

    def __init__(self, name: str, format: FileFormat, environment: SourceEnvironment) -> None:
        self._name = name
        self._format = format
        self._spark = environment.spark
        self._is_ignoring = environment.settings.ignore_missing_files
        self._read: dict[int, tuple[int, tuple[FileStamp, ...]]] = {}  # times and files, by offset
        self._skipped: dict[int, tuple[FileStamp, ...]] = {}
        self._are_read_by_workers = False
        self._last: PlannedInput | None = None

    def _listed(self) -> Collection[str]:
        """Return the paths of the files that are there now."""
        raise NotImplementedError

    def _planned(
        self,
        time_ms: int,
        start: Any,
        files: Sequence[FileStamp],
        more: Mapping[str, Any] | None = None,
        waiting: int = 0,
    ) -> PlannedInput:
        """Return the plan of a batch with these files.

        Args:
            time_ms: time of the batch.
            start: offset after which it reads.
            files: its files.
            more: what else the begin record has to say of them.
            waiting: files that later batches have.
        """
        wait = f"; {waiting} more wait" if waiting else ""
        if not files:
            return PlannedInput(time_ms, start, start, description=f"no new files{wait}")
        facts = {INPUT_FILES: tuple(files), **(more or {})}
        description = f"new files: {described(files)}{wait}"
        records, end = self._format.count(files), int(start or 0) + 1
        self._last = PlannedInput(time_ms, start, end, facts, records, description)
        return self._last

    def _not_begun(self, start: Any, time_ms: int) -> PlannedInput | None:
        """Return the last plan with files again where no batch was begun with it."""
        is_begun = self._last is None or self._last.start != start
        return None if is_begun or self._last is None else replace(self._last, time_ms=time_ms)

    def read(self, planned: PlannedInput) -> RDD[Any]:
        """Return the records of the files of a plan.

        Raises:
            MissingInputError: a file cannot be opened, because it was deleted for example.
        """
        files = self._there(planned)
        if not files:
            return self._spark.emptyRDD()
        passes_over = self._is_ignoring and self._format.has_partitions_of_files
        has_lines = isinstance(self._format, TextLines)
        rdd = (self._lines if has_lines else self._made)(planned, files, passes_over)
        self._read[planned.end] = planned.time_ms, files
        return rdd

    def _made(
        self, planned: PlannedInput, files: Sequence[FileStamp], passes_over: bool
    ) -> RDD[Any]:
        of_batch = f"{self._name}: files of the batch at {planned.time_ms} ms"
        try:
            with passing_over_missing_files(self._spark, is_wanted=passes_over):
                rdd = self._format.rdd(self._spark, files)
                partitions = rdd.getNumPartitions()  # looks at each file
        except (Py4JJavaError, OSError) as error:
            remedy = "" if self._is_ignoring else f"; {_remedy()}"
            raise MissingInputError(
                f"{of_batch} cannot be opened: {summarize(error)}; it has {described(files)}"
                f"{remedy}"
            ) from error
        if partitions == 0 and passes_over and any(file.size_bytes for file in files):
            # Spark then has passed over all of them, the ones that are there too.
            raise MissingInputError(
                f"{of_batch} vanished while they were opened; it has {described(files)}, and "
                "which are there is looked at again when it is read again"
            )
        return rdd

    def _lines(
        self, planned: PlannedInput, files: Sequence[FileStamp], passes_over: bool
    ) -> RDD[str]:
        """Return lines that say where they are in the files, for workers that read them there.

        Where somebody has asked for that before, the JVM makes no RDD before it is needed.
        """

        def where() -> LineRanges | None:
            compressed = self._compressed_endings
            if compressed is None:
                return None
            return line_ranges(files, compressed, self._spark.defaultParallelism, passes_over)

        def asked() -> LineRanges | None:
            self._are_read_by_workers = True
            return ranges or where()

        make = partial(self._made, planned, files, passes_over)
        ranges = where() if self._are_read_by_workers else None
        lines: Any = make() if ranges is None else lines_later(self._spark, make)
        lines.line_ranges = asked
        return lines  # type: ignore[no-any-return]

    @cached_property
    def _compressed_endings(self) -> tuple[str, ...] | None:
        return compressed_endings(self._spark)

    def after_batch_info(self, planned: PlannedInput) -> InputDescription:
        """Say which files of a batch were skipped, or vanished while it ran; so does the log.

        Only where a setting lets files vanish; else the batch has failed.
        """
        if not self._is_ignoring or planned.start == planned.end:
            return InputDescription()
        try:
            vanished = self._missing(self._read.get(planned.end, (0, ()))[1])
        except SourceError:
            vanished = ()  # the next batch meets that
        skipped = self._skipped.pop(planned.end, ())
        noticed = ""
        if vanished:
            logger.warning(
                "%s: %d files of the batch at %d ms vanished while it ran, and were skipped where "
                "they had not been read: %s",
                self._name,
                len(vanished),
                planned.time_ms,
                described(vanished),
            )
            noticed = f"; {len(vanished)} vanished while the batch ran: {described(vanished)}"
        if skipped:
            noticed += f"; skipped {len(skipped)} that are missing: {described(skipped)}"
        return InputDescription(noticed)

    def error_hint(self, failure: str) -> str | None:
        """Say of which batch a file is that a job could not find, and what to do."""
        for time_ms, files in self._read.values():
            path = vanished_file(failure, [file.path for file in files])
            if path is not None:
                return f"{path} is input of the batch at {time_ms} ms; {_remedy()}"
        return None

    def _there(self, planned: PlannedInput) -> tuple[FileStamp, ...]:
        """The files of a plan; where a setting lets files vanish, those that are there."""
        files = stamps_in(planned.facts)
        missing = self._missing(files) if self._is_ignoring else ()
        if missing:
            self._skipped[planned.end] = missing
            logger.warning(
                "%s: skipped %d files of the batch at %d ms that are not there any more: %s",
                self._name,
                len(missing),
                planned.time_ms,
                described(missing),
            )
        return tuple(file for file in files if file not in missing)

    def _missing(self, files: Sequence[FileStamp]) -> tuple[FileStamp, ...]:
        listed = self._listed() if files else ()
        return tuple(file for file in files if file.path not in listed)

    def release(self, end: Any) -> None:
        """Forget which files batches have read; they stay where they are."""
        # A copy: another thread may read for a batch meanwhile.
        for number in tuple(self._read):
            if number <= int(end or 0):
                del self._read[number]


def vanished_file(failure: str, paths: Iterable[str]) -> str | None:
    """Return which of some files it is that a job could not find, None where it is none of them.

    Args:
        failure: what the error of the job says.
        paths: of the files.
    """
    if not any(error in failure for error in ("java.io.FileNotFoundException", _NOT_FOUND)):
        return None
    for path in paths:
        name = re.escape(_SCHEME.sub("", path))  # not all file systems name more of it
        if re.search(rf"{name}(?=[\s,;:)]|$)", failure):
            return path
    return None


def described(files: Sequence[FileStamp]) -> str:
    """Name the first few of many files, without their directories."""
    return some_names([file.path.rpartition("/")[2] for file in files])


def some_names(names: Sequence[str]) -> str:
    """Name the first few of many."""
    more = len(names) - _NAMES_IN_MESSAGE
    shown = ", ".join(names[:_NAMES_IN_MESSAGE])
    return f"{shown} and {more} more" if more > 0 else shown


def _remedy() -> str:
    return f"put it back, or go on without its records with {IGNORE_MISSING_FILES}=true"
