"""DataStreamWriter: the sink and the trigger of a query."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from checkpoint import without_secrets
from dstreams.arrow.file_bytes import ParquetFile
from dstreams.common.callables import require_arity
from dstreams.common.settings import (
    FLAG,
    PATH,
    SEPARATOR,
    TEXT,
    Kind,
    read_options,
    whole_number,
)
from dstreams.engine.replay import Replay, taken, taking
from dstreams.errors import InvalidStreamError, StreamLifecycleError
from dstreams.state.group_state import OutputMode
from dstreams.state.state_classes import AllowedClasses, classes_of_program
from dstreams.structured.api.api_hints import OF_WRITERS, Instead
from dstreams.structured.api.manager import StreamingQueryManager
from dstreams.structured.api.query import StreamingQuery, Trigger, make_trigger
from dstreams.structured.conf import CHECKPOINT_LOCATION, QueryConf
from dstreams.structured.execution.description import QueryDefinition
from dstreams.structured.plan.logical import LogicalPlan, side_outputs
from dstreams.structured.sinks.file_sink import FileSink
from dstreams.structured.sinks.function_sinks import (
    ForeachBatchSink,
    ForeachSink,
    require_row_writer,
)
from dstreams.structured.sinks.kafka_topic_sink import KafkaTopicSink
from dstreams.structured.sinks.sink import Sink
from dstreams.structured.sinks.trial_sinks import ConsoleSink, MemorySink, NoopSink

_FORMATS = ("console", "memory", "text", "json", "csv", "parquet", "kafka", "noop")
_SINK_OPTIONS = {
    "checkpointLocation": PATH,
    "path": PATH,
    "numRows": whole_number(0),
    "truncate": FLAG,
}
_SCHEMA = Kind("a schema of the rows", lambda schema: schema is not None)
_COLUMN_OPTIONS: dict[str, dict[str, Kind]] = {
    "csv": {"schema": _SCHEMA, "header": FLAG, "sep": SEPARATOR},
    "parquet": {"schema": _SCHEMA, "compression": ParquetFile.compressions},
}
_KAFKA_OPTIONS = {"topic": TEXT, "exactlyOnce": FLAG, "commitTopic": TEXT}
_KAFKA_PREFIX = "kafka."


@dataclass(frozen=True)
class WriterEnvironment:
    """Parts of a session; *conf* and *allowed* are called when a query starts."""

    manager: StreamingQueryManager
    conf: Callable[[], QueryConf]
    tables: dict[str, MemorySink]
    allowed: Callable[[], AllowedClasses] = AllowedClasses


@dataclass(frozen=True, repr=False)
class DataStreamWriter(Instead):
    """Configures a sink; each method returns a new writer.

    ============ =================== ===================================== ==================
    sink         output modes        a batch that runs again               options
    ============ =================== ===================================== ==================
    console      all                 is printed again                      numRows, truncate
    memory       all                 is stored once                        queryName
    text, json   append              is stored once                        path
    csv          append              is stored once                        path, schema, header,
                                                                           sep
    parquet      append              is stored once                        path, schema,
                                                                           compression
    kafka        all                 is stored once                        topic, kafka.*
    noop         all                 is discarded
    foreach      all                 is passed again, same epoch id
    foreachBatch all                 is passed again, same batch id
    ============ =================== ===================================== ==================

    Option names are case-insensitive; unknown options are refused, not ignored. All sinks have the
    option checkpointLocation; files and Kafka require it.

    ``schema`` of ``parquet``, which is required, and of ``csv`` has the columns, as
    :meth:`DataStreamReader.schema` takes them; rows are tuples in their order, dicts, or objects
    with fields of these names. Without it, CSV has the values of each row, and the names of the
    first row of each file as ``header``. A row that does not fit fails the batch.

    Rows for ``kafka`` are dicts, named tuples or Rows with the field value and optional fields key,
    topic, headers and partition, or pairs ``(key, value)``. Keys and values are bytes, or str
    encoded as UTF-8. ``topic`` applies to all rows; ``kafka.bootstrap.servers`` and other
    ``kafka.*`` are parameters of the producers. Readers with ``isolation.level=read_committed`` see
    each batch once, by a topic of commits (``commitTopic``), which is created if missing. With
    ``exactlyOnce=false`` a batch that runs again is written again, which is faster.

    Semantics: pyspark.sql.streaming.DataStreamWriter.
    """

    plan: LogicalPlan
    environment: WriterEnvironment
    settings: WriterSettings

    _instead = OF_WRITERS

    def format(self, source: str) -> DataStreamWriter:
        """Write to ``console``, ``memory``, ``kafka``, ``noop``, or to files.

        The formats of files are ``text``, ``json``, ``csv`` and ``parquet``.

        Raises:
            InvalidStreamError: the sink is unknown.
        """
        if source not in _FORMATS:
            raise InvalidStreamError(
                f"unknown sink {source!r}; use one of {', '.join(_FORMATS)}, or foreach or "
                "foreachBatch"
            )
        return self._with(format=source, sink=None)

    def outputMode(self, outputMode: str | OutputMode) -> DataStreamWriter:
        """Write new rows (``append``), changed rows (``update``), or all (``complete``).

        Raises:
            InvalidStreamError: the mode is unknown.
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
        """Run batches at intervals, or process the records available at the start and stop.

        Args:
            processingTime: interval, such as ``"5 seconds"``.
            once: True to process them in one batch.
            continuous: not supported.
            availableNow: True to process them in batches within the limits of the sources.
            realTime: not supported.

        Raises:
            InvalidStreamError: not exactly one is given, or the interval is invalid.
        """
        trigger = make_trigger(processingTime, once, availableNow, continuous, realTime)
        return self._with(trigger=trigger)

    def queryName(self, queryName: str) -> DataStreamWriter:
        """Set the name of the query, which must be unique among running queries.

        Raises:
            InvalidStreamError: *queryName* is not a str, or empty.
        """
        if not isinstance(queryName, str) or not queryName.strip():
            raise InvalidStreamError(f"queryName must be a non-empty str, got {queryName!r}")
        return self._with(name=queryName)

    def option(self, key: str, value: Any) -> DataStreamWriter:
        """Set one option: ``checkpointLocation``, ``path``, ``numRows``, ``truncate``, of Kafka.

        Raises:
            InvalidStreamError: the option is unknown, or its value is invalid.
        """
        if isinstance(key, str) and key.lower().startswith(_KAFKA_PREFIX):
            option = {key.lower(): value}
        else:
            known = {**_SINK_OPTIONS, **_KAFKA_OPTIONS}
            for of_format in _COLUMN_OPTIONS.values():
                known.update(of_format)
            option = read_options({key: value}, known, "a sink")
        return self._with(options={**self.settings.options, **option})

    def options(self, **options: Any) -> DataStreamWriter:
        """Set several options; see :meth:`option`."""
        writer = self
        for key, value in options.items():
            writer = writer.option(key, value)
        return writer

    def foreach(self, f: Any) -> DataStreamWriter:
        """Pass each row to a function, or to an object with ``process``, on the workers.

        Raises:
            InvalidStreamError: *f* is neither, or cannot be pickled.
        """
        require_row_writer(f)
        return self._with(sink=ForeachSink(f), format=None)

    def foreachBatch(
        self, func: Callable[[Any, int], None], schema: Any = None, *, asDataFrame: bool = False
    ) -> DataStreamWriter:
        """Pass each batch to a function on the driver.

        Args:
            func: ``f(rows, batch id)``. An unfinished batch is passed again, with the same rows and
                the same id.
            schema: pass the rows as a DataFrame with this schema; None for an RDD.
            asDataFrame: pass the rows as a DataFrame whose schema Spark infers; without rows it has
                no columns.

        Raises:
            InvalidStreamError: *func* is not a function of two arguments.
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
            partitionBy: must be None; use ``foreachBatch`` to choose the layout of files.
            queryName: as :meth:`queryName`.
            options: as :meth:`option`.

        Raises:
            UnsupportedOperationError: the query cannot run as a stream.
            InvalidStreamError: an argument is missing, or does not fit the sink.
            StreamLifecycleError: a query with this name runs in this session, or a query on this
                checkpoint, or on a copy of it, runs in this process.
            RestartError: the query cannot resume from its checkpoint.
            EnvironmentNotReadyError: the Python workers lack something that dstreams needs.
        """
        if partitionBy is not None:
            raise InvalidStreamError(
                f"start takes no partitionBy, got {partitionBy!r}; use foreachBatch to choose the "
                "layout of files"
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

    def at(self, batchTime: int) -> Replay:
        """Open the states after an earlier batch, and the batches since then, in a copy.

        ::

            with writer.at(1_795_464_900_000) as then:
                then.state().get("alice")
                then.step()                         # the next recorded batch, over the same input

        The query is this one, which may differ from the one that ran, as far as a restart permits.
        Only reads its checkpoint, whose query may be running. The sink is replaced by a recorder.
        :func:`dstreams.testing.replay` runs a range of batches. Semantics:
        :meth:`dstreams.StreamingContext.at`.

        Args:
            batchTime: time of a committed batch that the checkpoint keeps, in milliseconds, such as
                :attr:`~dstreams.testing.ReplayedBatch.batch_time_ms`.

        Raises:
            InvalidStreamError: there is no checkpoint, or that batch is not kept; the error names
                the nearest ones.
            RestartError: the checkpoint is damaged, or the query cannot resume from it.
            SourceError: input of the batches since then is not available any more.
            UnsupportedOperationError: the query cannot run as a stream.
        """
        definition, location = self._defined()
        if location is None:
            raise InvalidStreamError("at() needs option('checkpointLocation', directory)")
        return self.environment.manager.replay(location, definition, after_ms=batchTime)

    def _started(self) -> StreamingQuery:
        if (take := taken()) is not None:
            # It returns, with None, if it is another query that is replayed.
            return cast("StreamingQuery", take(self))
        definition, location = self._defined()
        query = self.environment.manager.start(definition, self.settings.trigger, location)
        if isinstance(definition.sink, MemorySink) and definition.name is not None:
            self.environment.tables[definition.name] = definition.sink
        return query

    @classmethod
    def _replay(
        cls,
        checkpoint: str,
        setup: Callable[[], DataStreamWriter] | None = None,
        *,
        allow_removed: Iterable[str] = (),
        write_states: bool = True,
        **options: Any,
    ) -> Replay:
        """Open a replay with the query of *setup*, as ``StreamingContext._replay`` does."""
        if setup is None:
            raise InvalidStreamError(
                f"{without_secrets(checkpoint)} is the checkpoint of a query, which does not have "
                "its code; give the program"
            )
        if tuple(allow_removed):
            raise InvalidStreamError(
                "the state of a query cannot be dropped: keep its operators; only streams have "
                "operators that may be removed"
            )
        with taking(_not_in_setup):
            writer = setup()
        if not isinstance(writer, DataStreamWriter):
            raise InvalidStreamError(
                f"{without_secrets(checkpoint)} is the checkpoint of a query, so the setup "
                "function must return a DataStreamWriter, not started, got "
                f"{type(writer).__name__}"
            )
        manager = writer.environment.manager
        return manager.replay(checkpoint, writer._defined()[0], **options)

    def _defined(self) -> tuple[QueryDefinition, str | None]:
        """Return the query and the location of its checkpoint, if any."""
        settings, conf = self.settings, self.environment.conf()
        sink = settings.make_sink(self.environment.tables)
        if settings.mode not in sink.modes:
            raise InvalidStreamError(
                f"{sink.name} does not support output mode {settings.mode.value}; use "
                f"{', '.join(mode.value for mode in sink.modes)}"
            )
        sinks = (sink, *side_outputs(self.plan))
        _require_own_places(sinks)
        location = settings.options.get("checkpointLocation")
        if location is None and conf.checkpoint_location and settings.name:
            location = f"{conf.checkpoint_location}/{settings.name}"
        lasting = [sink for sink in sinks if not sink.is_for_trials]
        if location is None and lasting:
            raise InvalidStreamError(
                f"{lasting[0].name} needs a checkpoint; set option('checkpointLocation', "
                f"directory), or {CHECKPOINT_LOCATION} and a queryName"
            )
        classes = classes_of_program(self.plan, allowed=self.environment.allowed(), depth=2)
        definition = QueryDefinition(self.plan, settings.mode, sink, settings.name, conf, classes)
        return definition, location

    def _with(self, **changes: Any) -> DataStreamWriter:
        return replace(self, settings=replace(self.settings, **changes))


@dataclass(frozen=True)
class WriterSettings:
    """The settings of a writer: a sink or its format, and the rest."""

    format: str | None = None
    sink: Sink | None = None
    mode: OutputMode = OutputMode.Append
    trigger: Trigger = field(default_factory=Trigger)
    name: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def make_sink(self, tables: Mapping[str, MemorySink], output: str = "query") -> Sink:
        """Return the sink; *tables* are the session's memory sinks.

        *output* distinguishes the outputs of a query in a topic of commits.
        """
        if self.sink is not None:
            return self.sink
        if self.format is None:
            raise InvalidStreamError(
                f"a query needs a sink; call format with one of {', '.join(_FORMATS)}, or foreach "
                "or foreachBatch"
            )
        if self.format == "kafka":
            return KafkaTopicSink(self.options, output)
        for key in self.options:
            if key in _KAFKA_OPTIONS or key.startswith(_KAFKA_PREFIX):
                raise InvalidStreamError(
                    f"the sink {self.format} has no option {key!r}; only the sink kafka has it"
                )
        of_others = {key for each in _COLUMN_OPTIONS.values() for key in each}
        for key in sorted(of_others.difference(_COLUMN_OPTIONS.get(self.format, ()))):
            if key in self.options:
                having = [name for name, known in _COLUMN_OPTIONS.items() if key in known]
                raise InvalidStreamError(
                    f"the sink {self.format} has no option {key!r}; only {' and '.join(having)} "
                    "have it"
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
            raise InvalidStreamError(f"the sink {self.format} needs a directory; use start(path)")
        return FileSink(path, self.format, self.options)


def _not_in_setup(_: object) -> None:
    raise StreamLifecycleError(
        "the setup function of a replay starts its query; let it return the writer only"
    )


def _require_own_places(sinks: tuple[Sink, ...]) -> None:
    """Refuse two sinks with one place, of which each would take the other's batch for its own."""
    names = [
        sink.name for sink in sinks if isinstance(sink, (FileSink, KafkaTopicSink, MemorySink))
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidStreamError(
            f"two outputs of the query write to {twice[0]}; give each its own place, or pass one "
            "sink to both lateOutput and onError"
        )


def output_mode(mode: object) -> OutputMode:
    """Return the output mode of that name, or raise InvalidStreamError."""
    if isinstance(mode, OutputMode):
        return mode
    for known in OutputMode:
        if isinstance(mode, str) and mode.lower() == known.value:
            return known
    raise InvalidStreamError(
        f"unknown output mode {mode!r}; use one of {', '.join(known.value for known in OutputMode)}"
    )
