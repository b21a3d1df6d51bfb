"""Lines of text files, or objects of JSON files, that appear in a directory: each file once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from checkpoint import INPUT_END, INPUT_FILES, without_secrets
from dstreams.errors import SourceError
from dstreams.sources.file_formats import TEXT_LINES, FileFormat
from dstreams.sources.file_listing import FileStamp, stamps_in
from dstreams.sources.file_reader import FileReader
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment
from dstreams.structured.sources.committed_files import LineFormat, VisibleFiles
from dstreams.structured.sources.json_lines import BadLines, JsonLines


@dataclass(frozen=True)
class FileStreamSource(Source):
    """Files of a directory, hidden ones excepted, in the order of their modification times.

    A file belongs to one batch for ever: the checkpoint keeps which. A file must be whole when it
    appears, so move it there. What is written to a file later is not read. Where a file sink
    writes, only files that it committed are read, in the order of its batches.

    Text is UTF-8; bytes that are none come as U+FFFD, as with Spark.

    Semantics: the sources ``text`` and ``json`` of Spark; a line that is no JSON fails the batch,
    as records have no schema that could have a column for it (mode PERMISSIVE).

    Args:
        directory: path, URL, or pattern of Hadoop's for several.
        format: ``text`` for a ``str`` for each line, ``json`` for a ``dict`` for each line.
        max_files: files that a batch reads at most, None for no limit.
        names: pattern of the names of files, such as ``*.json``, None for all.
        bad_lines: what becomes of a line that is no JSON.
    """

    directory: str
    format: LineFormat
    max_files: int | None = None
    names: str | None = None
    bad_lines: BadLines = "FAILFAST"

    @property
    def name(self) -> str:
        return f"FileStreamSource[{without_secrets(self.directory)}]"

    @property
    def fields(self) -> tuple[str, ...] | None:
        return ("value",) if self.format == "text" else None

    def open(self, environment: SourceEnvironment) -> QueryFilesReader:
        return QueryFilesReader(self, environment)


class QueryFilesReader(FileReader):
    """Plans the files that no batch has, as many as it may."""

    def __init__(self, source: FileStreamSource, environment: SourceEnvironment) -> None:
        super().__init__(source.name, format_of(source.format, source.bad_lines), environment)
        self._source = source
        self._past = environment.past
        self._visible = VisibleFiles(source.directory, environment.spark)
        self._seen: dict[str, tuple[FileStamp, int]] = {}  # with the offset of the batch
        self._pinned: list[FileStamp] | None = None
        self._is_in_one_batch = False

    def start(self) -> None:
        """Find out what earlier runs read, and what is wrong with the directory.

        Raises:
            SourceError: there is no such directory, or it cannot be listed.
            RestartError: what earlier runs read is lost.
        """
        past = self._past()
        self._take(stamps_in(past.facts or {}), 0)
        for facts in past.batches.values():
            self._take(stamps_in(facts), int(facts[INPUT_END] or 0))
        self._new_files()

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        again = self._not_begun(start, time_ms)
        if again is not None:
            return again
        new = self._new_files() if self._pinned is None else self._pinned
        new = [stamp for stamp in new if stamp.path not in self._seen]
        files = new if self._is_in_one_batch else new[: self._source.max_files]
        planned = self._planned(time_ms, start, files, waiting=len(new) - len(files))
        self._take(files, int(planned.end or 0))
        return planned

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        self._pinned, self._is_in_one_batch = self._new_files(), in_one_batch

    def snapshot_size(self) -> int:
        return len(self._seen)

    def snapshot(self, end: Any) -> Mapping[str, Any]:
        seen = tuple(self._seen.values())  # a copy: another thread may plan a batch meanwhile
        return {INPUT_FILES: [stamp for stamp, number in seen if number <= int(end or 0)]}

    def _take(self, files: Iterable[FileStamp], number: int) -> None:
        self._seen.update({stamp.path: (stamp, number) for stamp in files})

    def _new_files(self) -> list[FileStamp]:
        files = self._visible.files()
        if files is None:
            raise SourceError(
                f"directory {self._source.directory!r} of a file source does not exist; make it "
                "before the query starts"
            )
        return [stamp for stamp in files if stamp.path not in self._seen and self._is_wanted(stamp)]

    def _is_wanted(self, stamp: FileStamp) -> bool:
        names = self._source.names
        return names is None or fnmatchcase(stamp.path.rpartition("/")[2], names)

    def _listed(self) -> Collection[str]:
        return {stamp.path for stamp in self._visible.files() or ()}


def format_of(format: LineFormat, bad_lines: BadLines = "FAILFAST") -> FileFormat:
    """Return what is read of each file.

    Args:
        format: ``text`` or ``json``.
        bad_lines: what becomes of a line of a JSON file that is no JSON.
    """
    return TEXT_LINES if format == "text" else JsonLines(bad_lines)
