"""DataStreamReader: where the records of a query come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

from pyspark import RDD, SparkContext

from dstreams.durations import parse_interval_ms
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.sources.rate import RateSource
from dstreams.sources.socket import SocketTextSource
from dstreams.structured.committed_files import FileFormat, VisibleFiles
from dstreams.structured.logical import LogicalPlan, StreamingRelation
from dstreams.structured.missing import OF_READERS, Instead
from dstreams.structured.options import as_path, known_options, whole_number
from dstreams.structured.sources.base import StreamSource
from dstreams.structured.sources.files import FileStreamSource, records_of
from dstreams.structured.sources.json_lines import BadLines
from dstreams.structured.sources.rate import RateStreamSource
from dstreams.structured.sources.socket import SocketStreamSource

if TYPE_CHECKING:
    from dstreams.structured.dataset import StreamingDataset

_FILE_OPTIONS = ("path", "maxFilesPerTrigger", "pathGlobFilter")
_OPTIONS = {
    "rate": ("rowsPerSecond", "rampUpTime", "numPartitions"),
    "socket": ("host", "port"),
    "text": _FILE_OPTIONS,
    "json": (*_FILE_OPTIONS, "mode"),
}
_MODES: tuple[BadLines, ...] = get_args(BadLines)


@dataclass(frozen=True, repr=False)
class DataStreamReader(Instead):
    """Says where records come from; each method returns a reader that knows more.

    ====== ====================================== ==============================================
    source records                                options
    ====== ====================================== ==============================================
    rate   ``RateRow(timestamp, value)``          rowsPerSecond, rampUpTime, numPartitions
    socket lines, as ``str``                      host, port
    text   lines, as ``str``                      path, maxFilesPerTrigger, pathGlobFilter
    json   what each line is                      the same, mode
    ====== ====================================== ==============================================

    Options are found whatever the case of their letters; one that a source does not have is
    refused, not ignored. A line that is no JSON fails the batch (mode ``FAILFAST``), or is left
    out (``DROPMALFORMED``).

    Semantics: pyspark.sql.streaming.DataStreamReader.

    Args:
        make: returns the dataset of a plan.
        source_format: ``rate``, ``socket``, ``text`` or ``json``.
        given: the options.
    """

    make: Callable[[LogicalPlan], StreamingDataset[Any]]
    source_format: str | None = None
    given: dict[str, Any] = field(default_factory=dict)

    _instead = OF_READERS

    def format(self, source: str) -> DataStreamReader:
        """Read from ``rate``, ``socket``, ``text`` or ``json``.

        Raises:
            InvalidStreamError: there is no such source.
        """
        if not isinstance(source, str) or source not in _OPTIONS:
            raise InvalidStreamError(
                f"there is no source {source!r}; use one of {', '.join(_OPTIONS)}, or memoryStream "
                "of the session"
            )
        return replace(self, source_format=source)

    def option(self, key: str, value: Any) -> DataStreamReader:
        """Set one option of the source; those that there are stand above."""
        return replace(self, given={**self.given, key: value})

    def options(self, **options: Any) -> DataStreamReader:
        """Set several options of the source."""
        return replace(self, given={**self.given, **options})

    def text(self, path: str | os.PathLike[str], **options: Any) -> StreamingDataset[str]:
        """Read lines of the text files that appear in a directory, each as ``str``."""
        return self.load(path, "text", **options)

    def json(self, path: str | os.PathLike[str], **options: Any) -> StreamingDataset[Any]:
        """Read the JSON files that appear in a directory, each line as one record."""
        return self.load(path, "json", **options)

    def load(
        self,
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,
        schema: None = None,
        **options: Any,
    ) -> StreamingDataset[Any]:
        """Return the records.

        Args:
            path: directory of a file source; a pattern of Hadoop's for several.
            format: as :meth:`format`.
            schema: None: records are what the lines say.
            options: as :meth:`option`.

        Raises:
            InvalidStreamError: no format was given, or an option is unknown, missing or wrong.
        """
        if schema is not None:
            raise InvalidStreamError(
                f"load takes no schema, got {schema!r}; records are Python objects: map(f) them"
            )
        reader = self if format is None else self.format(format)
        return reader.options(**options)._loaded(path)

    def _loaded(self, path: str | os.PathLike[str] | None) -> StreamingDataset[Any]:
        if self.source_format is None:
            raise InvalidStreamError(f"call format with one of {', '.join(_OPTIONS)} before load")
        given = self.given if path is None else {**self.given, "path": path}
        what = f"source {self.source_format}"
        options = known_options(given, _OPTIONS[self.source_format], what)
        return self.make(StreamingRelation(self._source(options)))

    def _source(self, options: dict[str, Any]) -> StreamSource:
        if self.source_format == "rate":
            ramp = options.get("rampUpTime", "0 seconds")
            ramp_ms = parse_interval_ms(ramp, "rampUpTime of source rate")
            partitions = options.get("numPartitions")
            count = None if partitions is None else whole_number(partitions, "numPartitions")
            rows = whole_number(options.get("rowsPerSecond", 1), "rowsPerSecond")
            return RateStreamSource(RateSource(rows, ramp_ms, count))
        if self.source_format == "socket":
            host, port = self._needed(options, "host"), self._needed(options, "port")
            source = SocketTextSource(str(host), whole_number(port, "port"))
            return SocketStreamSource(source.host, source.port)
        path = as_path(self._needed(options, "path"), f"path of source {self.source_format}")
        most = options.get("maxFilesPerTrigger")
        limit = None if most is None else whole_number(most, "maxFilesPerTrigger")
        names = options.get("pathGlobFilter")
        if names is not None and any(sign in str(names) for sign in ("{", "\\", "[^")):
            raise InvalidStreamError(
                f"pathGlobFilter takes *, ?, [abc] and [!abc], got {names!r}; keep other files "
                "in a directory of their own"
            )
        file_format: FileFormat = "json" if self.source_format == "json" else "text"
        pattern = None if names is None else str(names)
        return FileStreamSource(path, file_format, limit, pattern, _bad_lines(options.get("mode")))

    def _needed(self, options: dict[str, Any], key: str) -> Any:
        if key not in options:
            raise InvalidStreamError(f"source {self.source_format} needs option {key!r}")
        return options[key]


@dataclass(frozen=True)
class BatchReader:
    """Reads what a directory holds now, as an RDD.

    Where a file sink writes, that is what it has committed.

    Args:
        spark: where the RDD is.
    """

    spark: SparkContext

    def text(self, path: str | os.PathLike[str]) -> RDD[str]:
        """Return the lines of text files.

        Raises:
            SourceError: there is no such directory.
        """
        return self._records(path, "text")

    def json(self, path: str | os.PathLike[str], mode: str = "FAILFAST") -> RDD[Any]:
        """Return what the lines of JSON files are.

        Args:
            path: of the directory.
            mode: ``FAILFAST``: a line that is no JSON is an error; ``DROPMALFORMED``: it is left
                out.

        Raises:
            SourceError: there is no such directory.
            InvalidStreamError: there is no such mode.
        """
        return self._records(path, "json", _bad_lines(mode))

    def _records(
        self,
        path: str | os.PathLike[str],
        file_format: FileFormat,
        bad_lines: BadLines = "FAILFAST",
    ) -> RDD[Any]:
        directory = as_path(path, f"path of read.{file_format}")
        paths = VisibleFiles(directory, self.spark).paths()
        if paths is None:
            raise SourceError(f"directory {directory!r} does not exist")
        return records_of(paths, file_format, self.spark, bad_lines)


def _bad_lines(mode: object) -> BadLines:
    for known in _MODES:
        if mode is None or str(mode).upper() == known:
            return known
    raise InvalidStreamError(
        f"mode of JSON files is {mode!r}; use one of {', '.join(_MODES)}: records have no schema "
        "with a column for lines that are no JSON"
    )
