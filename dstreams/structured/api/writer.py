"""DataStreamWriter: where the rows of a query go, and when."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dstreams.common.callables import require_arity
from dstreams.common.configuration import FLAG, PATH, TEXT, read_options, whole_number
from dstreams.errors import InvalidStreamError
from dstreams.state.group_state import OutputMode
from dstreams.state.state_classes import AllowedClasses, classes_of_program
from dstreams.structured.api.api_hints import OF_WRITERS, Instead
from dstreams.structured.api.manager import StreamingQueryManager
from dstreams.structured.api.query import StreamingQuery
from dstreams.structured.api.triggers import Trigger, make_trigger
from dstreams.structured.conf import CHECKPOINT_LOCATION, QueryConf
from dstreams.structured.execution.micro_batch import QueryDefinition
from dstreams.structured.plan.logical import LogicalPlan
from dstreams.structured.sinks.console_sink import ConsoleSink
from dstreams.structured.sinks.file_sink import FileSink
from dstreams.structured.sinks.function_sinks import (
    ForeachBatchSink,
    ForeachSink,
    NoopSink,
    require_row_writer,
)
from dstreams.structured.sinks.kafka_topic_sink import KafkaTopicSink
from dstreams.structured.sinks.memory_sink import MemorySink
from dstreams.structured.sinks.sink import Sink

_FORMATS = ("console", "memory", "text", "json", "kafka", "noop")
_SINK_OPTIONS = {
    "checkpointLocation": PATH,
    "path": PATH,
    "numRows": whole_number(0),
    "truncate": FLAG,
}
_KAFKA_OPTIONS = {"topic": TEXT, "exactlyOnce": FLAG, "commitTopic": TEXT}
_KAFKA_PREFIX = "kafka."


@dataclass(frozen=True)
class WriterEnvironment:
    """What a writer needs of its session; *conf* and *allowed* are called when a query starts."""

    manager: StreamingQueryManager
    conf: Callable[[], QueryConf]
    tables: dict[str, MemorySink]
    allowed: Callable[[], AllowedClasses] = AllowedClasses


@dataclass(frozen=True, repr=False)
class DataStreamWriter(Instead):
    """Says where rows go; each method returns a writer that knows more.

    ============ =================== ===================================== ==================
    sink         output modes        after a batch that runs again         options
    ============ =================== ===================================== ==================
    console      all                 is printed again                      numRows, truncate
    memory       all                 is there once                         queryName
    text, json   append              is there once                         path
    kafka        all                 is there once                         topic, kafka.*
    noop         all                 nothing is anywhere
    foreach      all                 comes again, with the same epoch id
    foreachBatch all                 comes again, with the same batch id
    ============ =================== ===================================== ==================

    Options are found whatever the case of their letters; one that there is not is refused, not
    ignored. The option checkpointLocation is for all of them; files and Kafka need it.

    Rows for ``kafka`` are dicts, named tuples or Rows with the field value, and key, topic, headers
    and partition where they are needed, or pairs ``(key, value)``; keys and values are bytes, or
    str, which is written as UTF-8. ``kafka.bootstrap.servers`` and others of ``kafka.*`` are
    parameters of its producers; ``topic`` is for all rows. Each batch is there once for who reads
    with ``isolation.level=read_committed``, by a topic of commits (``commitTopic``) that is made
    where it is missing; with ``exactlyOnce=false`` a batch that runs again is written again, which
    is quicker.

    Semantics: pyspark.sql.streaming.DataStreamWriter.

    Args:
        plan: the query.
        environment: of the session.
        settings: what was said so far.
    """

    plan: LogicalPlan
    environment: WriterEnvironment
    settings: WriterSettings

    _instead = OF_WRITERS

    def format(self, source: str) -> DataStreamWriter:
        """Write to ``console``, ``memory``, ``text`` or ``json`` files, ``kafka``, or ``noop``.

        Raises:
            InvalidStreamError: there is no such sink.
        """
        if source not in _FORMATS:
            raise InvalidStreamError(
                f"there is no sink {source!r}; use one of {', '.join(_FORMATS)}, or foreach or "
                "foreachBatch"
            )
        return self._with(format=source, sink=None)

    def outputMode(self, outputMode: str | OutputMode) -> DataStreamWriter:
        """Write rows that are new (``append``), that changed (``update``), or all (``complete``).

        Raises:
            InvalidStreamError: there is no such mode.
        """
        return self._with(mode=output_mode(outputMode))

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> DataStreamWriter:
        """Look for data on a clock, or process what there is at the start.

        Args:
            processingTime: interval, such as ``"5 seconds"``.
            once: True for all of it in one batch.
            continuous: not supported.
            availableNow: True for all of it in as many batches as the sources ask for.
            realTime: not supported.

        Raises:
            InvalidStreamError: not exactly one is given, or the interval is none.
        """
        trigger = make_trigger(processingTime, once, availableNow, continuous, realTime)
        return self._with(trigger=trigger)

    def queryName(self, queryName: str) -> DataStreamWriter:
        """Give the query a name, which no other one that runs may have.

        Raises:
            InvalidStreamError: it is no text, or empty.
        """
        if not isinstance(queryName, str) or not queryName.strip():
            raise InvalidStreamError(
                f"queryName must be a text that is not empty, got {queryName!r}"
            )
        return self._with(name=queryName)

    def option(self, key: str, value: Any) -> DataStreamWriter:
        """Set one option: ``checkpointLocation``, ``path``, ``numRows``, ``truncate``, of Kafka.

        Raises:
            InvalidStreamError: there is no such option, or its value is wrong.
        """
        if isinstance(key, str) and key.lower().startswith(_KAFKA_PREFIX):
            option = {key.lower(): value}
        else:
            option = read_options({key: value}, {**_SINK_OPTIONS, **_KAFKA_OPTIONS}, "a sink")
        return self._with(options={**self.settings.options, **option})

    def options(self, **options: Any) -> DataStreamWriter:
        """Set several options; see :meth:`option`."""
        writer = self
        for key, value in options.items():
            writer = writer.option(key, value)
        return writer

    def foreach(self, f: Any) -> DataStreamWriter:
        """Give each row to a function, or to a writer with ``process``, where the row is.

        Raises:
            InvalidStreamError: it is neither, or cannot be sent to workers.
        """
        require_row_writer(f)
        return self._with(sink=ForeachSink(f), format=None)

    def foreachBatch(
        self, func: Callable[[Any, int], None], schema: Any = None, *, asDataFrame: bool = False
    ) -> DataStreamWriter:
        """Give each batch to a function on the driver.

        Args:
            func: ``f(rows, batch id)``. A batch that was not finished comes again, with the same
                rows under the same id.
            schema: the rows come as a DataFrame of this schema; None for an RDD.
            asDataFrame: they come as a DataFrame whose schema Spark finds out; one of no rows has
                no columns.

        Raises:
            InvalidStreamError: it is no such function.
        """
        require_arity(func, (2,), "foreachBatch", "f(rows, batch id)")
        is_frame = asDataFrame or schema is not None
        return self._with(sink=ForeachBatchSink(func, schema, is_frame), format=None)

    def start(
        self,
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,
        outputMode: str | OutputMode | None = None,
        partitionBy: None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Start the query.

        Args:
            path: directory of a file sink.
            format: as :meth:`format`.
            outputMode: as :meth:`outputMode`.
            partitionBy: None; ``foreachBatch`` can lay files out.
            queryName: as :meth:`queryName`.
            options: as :meth:`option`.

        Raises:
            UnsupportedOperationError: it cannot be run as a stream.
            InvalidStreamError: something is missing, or does not fit the sink.
            RestartError: it cannot go on from its checkpoint.
        """
        if partitionBy is not None:
            raise InvalidStreamError(
                f"start takes no partitionBy, got {partitionBy!r}; use foreachBatch to lay files "
                "out"
            )
        writer = self.options(**options)
        if format is not None:
            writer = writer.format(format)
        if outputMode is not None:
            writer = writer.outputMode(outputMode)
        if queryName is not None:
            writer = writer.queryName(queryName)
        if path is not None:
            writer = writer.option("path", path)
        return writer._started()

    def _started(self) -> StreamingQuery:
        settings, conf = self.settings, self.environment.conf()
        sink = settings.make_sink(self.environment.tables)
        if settings.mode not in sink.modes:
            raise InvalidStreamError(
                f"{sink.name} cannot take output mode {settings.mode.value}; it takes "
                f"{', '.join(mode.value for mode in sink.modes)}"
            )
        location = settings.options.get("checkpointLocation")
        if location is None and conf.checkpoint_location and settings.name:
            location = f"{conf.checkpoint_location}/{settings.name}"
        if location is None and not sink.is_for_trials:
            raise InvalidStreamError(
                f"{sink.name} needs a checkpoint; give option('checkpointLocation', directory), or "
                f"set {CHECKPOINT_LOCATION} and a queryName"
            )
        classes = classes_of_program(self.plan, allowed=self.environment.allowed(), depth=2)
        definition = QueryDefinition(self.plan, settings.mode, sink, settings.name, conf, classes)
        query = self.environment.manager.start(definition, settings.trigger, location)
        if isinstance(sink, MemorySink) and settings.name is not None:
            self.environment.tables[settings.name] = sink
        return query

    def _with(self, **changes: Any) -> DataStreamWriter:
        return replace(self, settings=replace(self.settings, **changes))


@dataclass(frozen=True)
class WriterSettings:
    """What was said of a query's output: a sink, or the name of its format, and the rest."""

    format: str | None = None
    sink: Sink | None = None
    mode: OutputMode = OutputMode.Append
    trigger: Trigger = field(default_factory=Trigger)
    name: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def make_sink(self, tables: Mapping[str, MemorySink]) -> Sink:
        """Return the sink; *tables* are those of the session."""
        if self.sink is not None:
            return self.sink
        if self.format is None:
            raise InvalidStreamError(
                f"a query needs a sink; call format with one of {', '.join(_FORMATS)}, or foreach "
                "or foreachBatch"
            )
        if self.format == "kafka":
            return KafkaTopicSink(self.options)
        for key in self.options:
            if key in _KAFKA_OPTIONS or key.startswith(_KAFKA_PREFIX):
                raise InvalidStreamError(
                    f"the sink {self.format} has no option {key!r}, which is one of the sink kafka"
                )
        if self.format == "console":
            return ConsoleSink(self.options.get("numRows", 20), self.options.get("truncate", True))
        if self.format == "noop":
            return NoopSink()
        if self.format == "memory":
            if self.name is None:
                raise InvalidStreamError("the memory sink needs queryName, which names its table")
            return MemorySink(self.name, tables.get(self.name))
        path = self.options.get("path")
        if path is None:
            raise InvalidStreamError(f"the sink {self.format} needs a directory; give start(path)")
        return FileSink(path, "json" if self.format == "json" else "text")


def output_mode(mode: object) -> OutputMode:
    """Return the output mode of that name.

    Raises:
        InvalidStreamError: there is none.
    """
    if isinstance(mode, OutputMode):
        return mode
    for known in OutputMode:
        if isinstance(mode, str) and mode.lower() == known.value:
            return known
    raise InvalidStreamError(
        f"there is no output mode {mode!r}; use one of "
        f"{', '.join(known.value for known in OutputMode)}"
    )
