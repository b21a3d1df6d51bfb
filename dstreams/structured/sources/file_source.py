"""The sources of files, which read each new file of a directory once."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from heapq import heappop, heappush
from typing import Any, Literal

from py4j.protocol import Py4JJavaError

from checkpoint import INPUT_END, INPUT_FILES, without_secrets
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.sources.file_formats import FileFormat, TextLines
from dstreams.sources.file_listing import (
    FileStamp,
    before_wildcards,
    has_wildcards,
    local_path,
    stamps_in,
)
from dstreams.sources.file_reader import FileReader
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment
from dstreams.spark.failures import summarize
from dstreams.structured.sources.committed_files import VisibleFiles
from dstreams.structured.sources.query_formats import ColumnFormat

CleanSource = Literal["off", "delete", "archive"]
"""Keep, delete or archive the files of a committed batch."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileStreamSource(Source):
    """Files of a directory, except hidden ones, in the order of their modification times.

    The checkpoint records the batch of each file. A file must be complete when it appears, so move
    it into the directory. Later appends are not read. From the directory of a file sink, only
    committed files are read, in the order of its batches.

    After the commit of a batch, its files are deleted or moved below *archive*, as *clean* says. A
    failure is logged, and a crash may leave files as they are; files that a restart needs are
    never cleaned.

    Files that are more than *max_age_ms* older than the newest one that was read are ignored, and
    forgotten. The first batch reads files of any age. If the latest files come first, with
    *max_files* in a batch, the age does not matter, as in Spark.

    Semantics: the sources ``text``, ``json``, ``csv`` and ``parquet`` of Spark, without mode
    PERMISSIVE. Invalid UTF-8 is read as U+FFFD.
    """

    directory: str
    format: FileFormat
    max_files: int | None = None
    names: str | None = None
    is_latest_first: bool = False
    max_age_ms: int | None = None
    clean: CleanSource = "off"
    archive: str | None = None
    is_recursive: bool = False

    def __post_init__(self) -> None:
        if self.clean != "archive":
            return
        if self.archive is None:
            raise InvalidStreamError(
                "cleanSource is 'archive', but there is no sourceArchiveDir; set it to a directory "
                "outside of the source"
            )
        base, archive = _absolute(self.directory), _absolute(self.archive)
        start = before_wildcards(base) if has_wildcards(base) else f"{base}/"
        if f"{archive}/".startswith(start):
            raise InvalidStreamError(
                f"sourceArchiveDir {self.archive!r} may be inside of the source "
                f"{self.directory!r}, which would read its files again; use a directory outside "
                "of it"
            )

    @property
    def name(self) -> str:
        return f"FileStreamSource[{without_secrets(self.directory)}]"

    @property
    def fields(self) -> tuple[str, ...] | None:
        if isinstance(self.format, ColumnFormat):
            return tuple(self.format.columns.schema.names)
        return ("value",) if isinstance(self.format, TextLines) else None

    def has_name_of(self, stamp: FileStamp) -> bool:
        """Return whether the name of a file matches the pattern of the source."""
        return self.names is None or fnmatchcase(stamp.path.rpartition("/")[2], self.names)

    def open(self, environment: SourceEnvironment) -> QueryFilesReader:
        return QueryFilesReader(self, environment)


class QueryFilesReader(FileReader):
    """Plans new files, up to the limit of a batch."""

    def __init__(self, source: FileStreamSource, environment: SourceEnvironment) -> None:
        super().__init__(source.name, source.format, environment)
        self._source = source
        self._past = environment.past
        self._visible = VisibleFiles(
            source.directory, environment.spark, is_recursive=source.is_recursive
        )
        ignores_age = source.is_latest_first and source.max_files is not None
        self._max_age_ms = None if ignores_age else source.max_age_ms
        self._by_age: list[tuple[int, str]] = []  # a heap of the seen files that may get too old
        self._seen: dict[str, tuple[FileStamp, int]] = {}  # with the offset of the batch
        self._oldest_ms = 0  # modification time of the oldest file to read
        self._pinned: list[FileStamp] | None = None
        self._is_in_one_batch = False

    def start(self) -> None:
        """Load the files that earlier runs read, and raise SourceError without the directory."""
        past = self._past()
        self._take(stamps_in(past.facts or {}), 0)
        for facts in past.batches.values():
            self._take(stamps_in(facts), int(facts[INPUT_END] or 0))
        self._forget_old()
        self._new_files()

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        again = self._not_begun(start, time_ms)
        if again is not None:
            return again
        new = self._new_files() if self._pinned is None else self._pinned
        new = list(filter(self._is_wanted, new))
        if self._source.is_latest_first:
            new.reverse()
        files = new if self._is_in_one_batch else new[: self._source.max_files]
        planned = self._planned(time_ms, start, files, waiting=len(new) - len(files))
        self._take(files, int(planned.end or 0))
        self._forget_old()
        return planned

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        self._pinned, self._is_in_one_batch = self._new_files(), in_one_batch

    def snapshot_size(self) -> int:
        return len(self._seen)

    def snapshot(self, end: Any) -> Mapping[str, Any]:
        seen = tuple(self._seen.values())  # a copy: another thread may plan a batch
        return {INPUT_FILES: [stamp for stamp, number in seen if number <= int(end or 0)]}

    def commit(self, end: Any) -> None:
        """Clean the files of committed batches, which no restart reads again."""
        if self._source.clean == "off":
            return
        for number, (_, files) in tuple(self._read.items()):
            if number <= int(end or 0):
                for stamp in files:
                    self._clean(stamp.path)

    def _clean(self, path: str) -> None:
        listing, archive = self._visible.listing, self._source.archive
        try:
            if self._source.clean == "delete" or archive is None:
                listing.delete(path)
            else:
                listing.move(path, archive)
        except (OSError, Py4JJavaError) as error:
            logger.warning(
                "%s: could not %s %s: %s",
                self._name,
                self._source.clean,
                path,
                summarize(error),
            )

    def _take(self, files: Iterable[FileStamp], number: int) -> None:
        for stamp in files:
            self._seen[stamp.path] = stamp, number
            if self._max_age_ms is not None:
                self._oldest_ms = max(self._oldest_ms, stamp.modified_ms - self._max_age_ms)
                heappush(self._by_age, (stamp.modified_ms, stamp.path))

    def _forget_old(self) -> None:
        """Forget the files that are too old to be read, so that they take no room."""
        while self._by_age and self._by_age[0][0] < self._oldest_ms:
            modified_ms, path = heappop(self._by_age)
            if path in self._seen and self._seen[path][0].modified_ms == modified_ms:
                del self._seen[path]

    def _new_files(self) -> list[FileStamp]:
        files = self._visible.files()
        if files is None:
            raise SourceError(
                f"directory {self._source.directory!r} of a file source does not exist; create it "
                "before the query starts"
            )
        if self._visible.are_of_sink and self._source.clean != "off":
            raise SourceError(
                f"directory {self._source.directory!r} has the output of a query, whose files "
                "cleanSource must not remove; set cleanSource to off"
            )
        return list(filter(self._is_wanted, files))

    def _is_wanted(self, stamp: FileStamp) -> bool:
        if stamp.path in self._seen or stamp.modified_ms < self._oldest_ms:
            return False
        return self._source.has_name_of(stamp)

    def _listed(self) -> Collection[str]:
        return {stamp.path for stamp in self._visible.files() or ()}


def _absolute(directory: str) -> str:
    """Return a path or URL that can be compared, without its scheme if it is local."""
    path = local_path(directory)
    if path is None and ":" in directory.partition("/")[0]:
        return directory.rstrip("/")
    return os.path.abspath(path or directory)
