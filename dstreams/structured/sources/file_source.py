"""Lines of text files, or objects of JSON files, that appear in a directory: each file once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext

from checkpoint import INPUT_END, INPUT_FILES, files_in
from dstreams.errors import SourceError
from dstreams.rdd.failures import summarize
from dstreams.rdd.jvm import passing_over_missing_files
from dstreams.sources.file_listing import spark_path
from dstreams.sources.file_stream import missing_files_remedy, some_names, vanished_file
from dstreams.structured.committed_files import FileFormat, VisibleFiles
from dstreams.structured.sources.json_lines import BadLines, parsed
from dstreams.structured.sources.micro_batch_reader import ReaderEnvironment

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileStreamSource:
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
    format: FileFormat
    max_files: int | None = None
    names: str | None = None
    bad_lines: BadLines = "FAILFAST"

    @property
    def name(self) -> str:
        return f"FileStreamSource[{self.directory}]"

    @property
    def fields(self) -> tuple[str, ...] | None:
        return ("value",) if self.format == "text" else None

    def open(self, environment: ReaderEnvironment) -> FileReader:
        return FileReader(self, environment)


class FileReader:
    """Deals files out to offsets, which count the batches that had files."""

    def __init__(self, source: FileStreamSource, environment: ReaderEnvironment) -> None:
        self._source = source
        self._environment = environment
        self._visible = VisibleFiles(source.directory, environment.spark)
        self._dealt: dict[int, list[str]] = {}  # what batches may still ask for
        self._count = 0
        self._seen: dict[str, int] = {}  # the offset that stands for each file
        self._pinned: list[str] | None = None
        self._is_in_one_batch = False
        self._read: list[str] = []  # by the newest batch
        self._load()
        self._new_files()  # says now what is wrong with the directory

    def latest(self, start: Any, now_ms: int) -> Any:
        done = int(start or 0)
        if self._count > done and not self._is_in_one_batch:  # dealt out, never read by a batch
            return done + 1
        new = self._new_files() if self._pinned is None else self._pinned
        new = [path for path in new if path not in self._seen]
        if new:
            self._deal(new if self._is_in_one_batch else new[: self._source.max_files])
        return self._count or start

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        self._pinned, self._is_in_one_batch = self._new_files(), in_one_batch

    def facts(self, start: Any, end: Any) -> Mapping[str, Any]:
        paths = self._between(start, end)
        return {INPUT_FILES: paths} if paths else {}

    def snapshot_size(self) -> int:
        return len(self._seen)

    def snapshot(self, end: Any) -> Mapping[str, Any]:
        seen = tuple(self._seen.items())  # a copy: another thread may deal files out meanwhile
        return {INPUT_FILES: [path for path, dealt in seen if dealt <= int(end or 0)]}

    def rdd(self, start: Any, end: Any) -> RDD[Any]:
        source, paths = self._source, self._between(start, end)
        spark, is_ignoring = (
            self._environment.spark,
            self._environment.settings.ignore_missing_files,
        )
        if is_ignoring and paths:
            paths = self._still_there(paths)
        try:
            with passing_over_missing_files(spark, is_wanted=is_ignoring):
                records = records_of(paths, source.format, spark, source.bad_lines)
                partitions = records.getNumPartitions()  # looks at each file
        except (Py4JJavaError, OSError) as error:
            remedy = "" if is_ignoring else f"; {missing_files_remedy()}"
            raise SourceError(
                f"{source.name}: files of the batch cannot be opened: {summarize(error)}{remedy}"
            ) from error
        if partitions == 0 and is_ignoring and len(self._still_there(paths)) < len(paths):
            # Spark then has passed over all of them, the ones that are there too.
            raise SourceError(
                f"{source.name}: files of the batch vanished while they were opened; start the "
                "query again, which looks again which are there"
            )
        self._read = paths
        return records

    def explain(self, failure: str) -> str | None:
        """Say of a file of the batch that a job could not find it, and what to do."""
        path = vanished_file(failure, self._read)
        return None if path is None else f"{path} is input of the batch; {missing_files_remedy()}"

    def _still_there(self, paths: list[str]) -> list[str]:
        missing = self._missing(paths)
        if missing:
            logger.warning(
                "%s: skipped %d files of a batch that are not there any more: %s",
                self._source.name,
                len(missing),
                some_names(missing),
            )
        return [path for path in paths if path not in missing]

    def tell_vanished(self) -> None:
        """Log which files vanished while the batch ran; only where a setting lets them."""
        if not self._environment.settings.ignore_missing_files:
            return
        try:
            vanished = self._missing(self._read)
        except SourceError:
            return  # the next trigger meets that
        if vanished:
            logger.warning(
                "%s: %d files of a batch vanished while it ran, and were skipped where they had "
                "not been read: %s",
                self._source.name,
                len(vanished),
                some_names(vanished),
            )

    def _missing(self, paths: list[str]) -> list[str]:
        visible = set(self._visible.paths() or ()) if paths else set()
        return [path for path in paths if path not in visible]

    def rows(self, start: Any, end: Any) -> int | None:
        return 0 if not self._between(start, end) else None

    def commit(self, end: Any) -> None:
        for number in [number for number in self._dealt if number <= int(end or 0)]:
            del self._dealt[number]

    def stop(self) -> None:
        pass

    def _new_files(self) -> list[str]:
        paths = self._visible.paths()
        if paths is None:
            raise SourceError(
                f"directory {self._source.directory!r} of a file source does not exist; make it "
                "before the query starts"
            )
        return [path for path in paths if path not in self._seen and self._is_wanted(path)]

    def _is_wanted(self, path: str) -> bool:
        names = self._source.names
        return names is None or fnmatchcase(path.rpartition("/")[2], names)

    def _deal(self, paths: list[str]) -> None:
        number = self._count + 1
        self._count, self._dealt[number] = number, paths
        self._seen.update(dict.fromkeys(paths, number))

    def _load(self) -> None:
        past = self._environment.past()
        self._seen.update(dict.fromkeys(files_in(past.facts), 0))
        for facts in past.batches.values():
            paths = files_in(facts)
            if paths:
                number = int(facts[INPUT_END])
                self._dealt[number] = paths
                self._seen.update(dict.fromkeys(paths, number))
        self._count = int(self._environment.newest or 0)

    def _between(self, start: Any, end: Any) -> list[str]:
        first, last = int(start or 0) + 1, int(end or 0)
        return [path for number in range(first, last + 1) for path in self._dealt.get(number, ())]


def records_of(
    paths: list[str], format: FileFormat, spark: SparkContext, bad_lines: BadLines = "FAILFAST"
) -> RDD[Any]:
    """Return the records of files.

    Args:
        paths: of the files.
        format: ``text`` or ``json``.
        spark: makes the RDD.
        bad_lines: what becomes of a line of a JSON file that is no JSON.
    """
    if not paths:
        return spark.emptyRDD()
    lines = spark.textFile(",".join(map(spark_path, paths)))
    return lines if format == "text" else parsed(lines, bad_lines)
