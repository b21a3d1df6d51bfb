"""Read the files that the plans of batches name."""

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
from dstreams.spark.lines import LineRanges

logger = logging.getLogger(__name__)

_NAMES_IN_MESSAGE = 10
_NOT_FOUND = FileNotFoundError.__name__
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(//[^/]*)?")


class FileReader(SourceReader):
    """The base of readers of files; subclasses choose the files of a batch.

    An offset counts the batches with files, and the facts of a plan name its files.
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
        """Return the plan of a batch with these files, *more* facts, and *waiting* for later."""
        wait = f"; {waiting} more wait" if waiting else ""
        if not files:
            return PlannedInput(time_ms, start, start, description=f"no new files{wait}")
        facts = {INPUT_FILES: tuple(files), **(more or {})}
        description = f"new files: {described(files)}{wait}"
        records, end = self._format.count(files), int(start or 0) + 1
        self._last = PlannedInput(time_ms, start, end, facts, records, description)
        return self._last

    def _not_begun(self, start: Any, time_ms: int) -> PlannedInput | None:
        """Return the last plan with files if its batch was not begun."""
        is_begun = self._last is None or self._last.start != start
        return None if is_begun or self._last is None else replace(self._last, time_ms=time_ms)

    def read(self, planned: PlannedInput) -> RDD[Any]:
        """Return the records of the files of a plan.

        Raises:
            MissingInputError: a file cannot be opened, for example because it was deleted.
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
                partitions = rdd.getNumPartitions()  # opens each file
        except (Py4JJavaError, OSError) as error:
            remedy = "" if self._is_ignoring else f"; {_remedy()}"
            raise MissingInputError(
                f"{of_batch} cannot be opened: {summarize(error)}; it has {described(files)}"
                f"{remedy}"
            ) from error
        if partitions == 0 and passes_over and any(file.size_bytes for file in files):
            # Spark has then skipped all files, including those that exist.
            raise MissingInputError(
                f"{of_batch} vanished while they were opened; it has {described(files)}; run the "
                "batch again to read those that exist"
            )
        return rdd

    def _lines(
        self, planned: PlannedInput, files: Sequence[FileStamp], passes_over: bool
    ) -> RDD[str]:
        """Return lines with their ranges in the files, so that workers can read them directly.

        Once ranges were requested, the JVM creates an RDD only if it is needed.
        """

        def find() -> LineRanges | None:
            compressed = self._compressed_endings
            if compressed is None:
                return None
            return line_ranges(files, compressed, self._spark.defaultParallelism, passes_over)

        def request() -> LineRanges | None:
            self._are_read_by_workers = True
            return ranges or find()

        make = partial(self._made, planned, files, passes_over)
        ranges = find() if self._are_read_by_workers else None
        lines: Any = make() if ranges is None else lines_later(self._spark, make)
        lines.line_ranges = request
        return lines  # type: ignore[no-any-return]

    @cached_property
    def _compressed_endings(self) -> tuple[str, ...] | None:
        return compressed_endings(self._spark)

    def after_batch_info(self, planned: PlannedInput) -> InputDescription:
        """Describe and log the files that were skipped or vanished while the batch ran.

        Only if missing files are ignored; otherwise the batch has failed.
        """
        if not self._is_ignoring or planned.start == planned.end:
            return InputDescription()
        try:
            vanished = self._missing(self._read.get(planned.end, (0, ()))[1])
        except SourceError:
            vanished = ()  # the next batch reports that
        skipped = self._skipped.pop(planned.end, ())
        noticed = ""
        if vanished:
            logger.warning(
                "%s: %d files of the batch at %d ms vanished while it ran; skipped those not read "
                "yet: %s",
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
        """Return the batch of a file that a job could not find, and the remedy."""
        for time_ms, files in self._read.values():
            path = vanished_file(failure, [file.path for file in files])
            if path is not None:
                return f"{path} is input of the batch at {time_ms} ms; {_remedy()}"
        return None

    def _there(self, planned: PlannedInput) -> tuple[FileStamp, ...]:
        """Return the files of a plan; only existing ones if missing files are ignored."""
        files = stamps_in(planned.facts)
        missing = self._missing(files) if self._is_ignoring else ()
        if missing:
            self._skipped[planned.end] = missing
            logger.warning(
                "%s: skipped %d missing files of the batch at %d ms: %s",
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
        """Forget the files that batches have read."""
        # Copied, because another thread may read for a batch.
        for number in tuple(self._read):
            if number <= int(end or 0):
                del self._read[number]


def vanished_file(failure: str, paths: Iterable[str]) -> str | None:
    """Return the path that a job could not find according to its error, None if it is another."""
    if not any(error in failure for error in ("java.io.FileNotFoundException", _NOT_FOUND)):
        return None
    for path in paths:
        name = re.escape(_SCHEME.sub("", path))  # not all file systems report the scheme
        if re.search(rf"{name}(?=[\s,;:)]|$)", failure):
            return path
    return None


def described(files: Sequence[FileStamp]) -> str:
    """Return the names of the first few files, without their directories."""
    return some_names([file.path.rpartition("/")[2] for file in files])


def some_names(names: Sequence[str]) -> str:
    """Return the first few of many names."""
    more = len(names) - _NAMES_IN_MESSAGE
    shown = ", ".join(names[:_NAMES_IN_MESSAGE])
    return f"{shown} and {more} more" if more > 0 else shown


def _remedy() -> str:
    return f"put it back, or continue without its records with {IGNORE_MISSING_FILES}=true"
