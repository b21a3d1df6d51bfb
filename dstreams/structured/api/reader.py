"""DataStreamReader: where the records of a query come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

from pyspark import RDD, SparkContext

from dstreams.common.configuration import COUNT, PATH, TEXT, Kind, choice, duration, read_options
from dstreams.common.settings import Settings
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.sources.rate import RateSource
from dstreams.sources.socket import SocketTextSource
from dstreams.sources.source import Source
from dstreams.structured.api.api_hints import OF_READERS, Instead
from dstreams.structured.plan.logical import LogicalPlan, StreamingRelation
from dstreams.structured.sources.committed_files import LineFormat, VisibleFiles
from dstreams.structured.sources.file_source import FileStreamSource, format_of
from dstreams.structured.sources.json_lines import BadLines
from dstreams.structured.sources.kafka_options import KafkaOptions
from dstreams.structured.sources.kafka_row_source import KafkaRowSource, kafka_rows
from dstreams.structured.sources.rate_source import RateStreamSource
from dstreams.structured.sources.socket_source import SocketStreamSource

if TYPE_CHECKING:
    from dstreams.structured.api.dataset import StreamingDataset

_GLOB = Kind(
    "a pattern of *, ?, [abc] and [!abc]; keep other files in a directory of their own",
    lambda names: TEXT.allows(names) and not any(sign in names for sign in ("{", "\\", "[^")),
)
_BAD_LINES = replace(
    choice(*get_args(BadLines)),
    rule=f"one of {', '.join(get_args(BadLines))}: records have no schema with a column for lines "
    "that are no JSON",
)
_FILE_OPTIONS = {"path": PATH, "maxFilesPerTrigger": COUNT, "pathGlobFilter": _GLOB}
_OPTIONS = {
    "rate": {"rowsPerSecond": COUNT, "rampUpTime": duration(least_ms=0), "numPartitions": COUNT},
    "socket": {"host": TEXT, "port": COUNT},
    "text": _FILE_OPTIONS,
    "json": {**_FILE_OPTIONS, "mode": _BAD_LINES},
}
_FORMATS = (*_OPTIONS, "kafka")


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
    kafka  :class:`KafkaRow`, key and value bytes those of Spark, see :meth:`format`
    ====== ====================================== ==============================================

    Options are found whatever the case of their letters; one that a source does not have is
    refused, not ignored. A line that is no JSON fails the batch (mode ``FAILFAST``), or is left
    out (``DROPMALFORMED``).

    Semantics: pyspark.sql.streaming.DataStreamReader.

    Args:
        make: returns the dataset of a plan.
        source_format: ``rate``, ``socket``, ``text``, ``json`` or ``kafka``.
        given: the options.
    """

    make: Callable[[LogicalPlan], StreamingDataset[Any]]
    source_format: str | None = None
    given: dict[str, Any] = field(default_factory=dict)

    _instead = OF_READERS

    def format(self, source: str) -> DataStreamReader:
        """Read from ``rate``, ``socket``, ``text``, ``json`` or ``kafka``.

        Options of ``kafka`` are those of Spark: one of ``subscribe``, ``subscribePattern``,
        ``assign``; ``startingOffsets``, ``startingTimestamp``, ``startingOffsetsByTimestamp`` with
        ``startingOffsetsByTimestampStrategy``, for a query without a checkpoint; for a batch
        ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger`` with ``maxTriggerDelay``, and
        ``minPartitions``; ``failOnDataLoss``, ``includeHeaders``, ``groupIdPrefix``,
        ``kafkaConsumer.pollTimeoutMs``; and ``kafka.*`` for its clients, of which
        ``kafka.bootstrap.servers`` is needed.

        Raises:
            InvalidStreamError: there is no such source.
        """
        if not isinstance(source, str) or source not in _FORMATS:
            raise InvalidStreamError(
                f"there is no source {source!r}; use one of {', '.join(_FORMATS)}, or memoryStream "
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
            raise InvalidStreamError(f"call format with one of {', '.join(_FORMATS)} before load")
        given = self.given if path is None else {**self.given, "path": path}
        if self.source_format == "kafka":
            source = KafkaRowSource(KafkaOptions.of(given, is_stream=True))
            return self.make(StreamingRelation(source))
        what = f"source {self.source_format}"
        options = read_options(given, _OPTIONS[self.source_format], what)
        return self.make(StreamingRelation(self._source(options)))

    def _source(self, options: dict[str, Any]) -> Source:
        if self.source_format == "rate":
            rows, ramp_ms = options.get("rowsPerSecond", 1), options.get("rampUpTime", 0)
            return RateStreamSource(RateSource(rows, ramp_ms, options.get("numPartitions")))
        if self.source_format == "socket":
            host, port = self._needed(options, "host"), self._needed(options, "port")
            return SocketStreamSource(SocketTextSource(host, port))
        return FileStreamSource(
            self._needed(options, "path"),
            "json" if self.source_format == "json" else "text",
            options.get("maxFilesPerTrigger"),
            options.get("pathGlobFilter"),
            options.get("mode", "FAILFAST"),
        )

    def _needed(self, options: dict[str, Any], key: str) -> Any:
        if key not in options:
            raise InvalidStreamError(f"source {self.source_format} needs option {key!r}")
        return options[key]


@dataclass(frozen=True, repr=False)
class KafkaBatchReader:
    """Reads a part of topics of Kafka as an RDD; each method returns a reader that knows more.

    Options are those of the stream (:meth:`DataStreamReader.format`) without the ones for triggers,
    and ``endingOffsets``, ``endingTimestamp`` or ``endingOffsetsByTimestamp``. Without any, all is
    read that there is.

    Semantics: the source ``kafka`` of Spark 4.3 in ``spark.read``.

    Args:
        spark: where the RDD is.
        given: the options.
    """

    spark: SparkContext
    given: dict[str, Any] = field(default_factory=dict)

    def option(self, key: str, value: Any) -> KafkaBatchReader:
        """Set one option."""
        return replace(self, given={**self.given, key: value})

    def options(self, **options: Any) -> KafkaBatchReader:
        """Set several options."""
        return replace(self, given={**self.given, **options})

    def load(self, **options: Any) -> RDD[Any]:
        """Return the records, each as a ``KafkaRow``; where they end is decided now.

        Raises:
            InvalidStreamError: an option is unknown, missing or wrong.
            SourceError: the brokers do not answer, or have not what the options ask for.
        """
        settings = Settings.from_conf(dict(self.spark.getConf().getAll()))
        asked = KafkaOptions.of({**self.given, **options}, is_stream=False)
        return kafka_rows(self.spark, settings, asked)


@dataclass(frozen=True)
class BatchReader:
    """Reads what a directory or a topic holds now, as an RDD.

    Where a file sink writes, that is what it has committed.

    Args:
        spark: where the RDD is.
    """

    spark: SparkContext

    def format(self, source: str) -> KafkaBatchReader:
        """Read from ``kafka``; files are read by :meth:`text` and :meth:`json`.

        Raises:
            InvalidStreamError: it is another source.
        """
        if source != "kafka":
            raise InvalidStreamError(
                f"read has no source {source!r}; use kafka, or text(path) and json(path)"
            )
        return KafkaBatchReader(self.spark)

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
        return self._records(path, "json", _BAD_LINES.read(mode, "mode of read.json"))

    def _records(
        self,
        path: str | os.PathLike[str],
        file_format: LineFormat,
        bad_lines: BadLines = "FAILFAST",
    ) -> RDD[Any]:
        directory = PATH.of(os.fspath(path), f"path of read.{file_format}")
        files = VisibleFiles(directory, self.spark).files()
        if files is None:
            raise SourceError(f"directory {directory!r} does not exist")
        if not files:
            return self.spark.emptyRDD()
        return format_of(file_format, bad_lines).rdd(self.spark, files)
