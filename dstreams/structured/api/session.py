"""StreamSession: the entry point of structured queries.

>>> from dstreams.structured import StreamSession, window
>>> session = StreamSession(spark)
>>> words = session.memoryStream()
>>> query = (
...     words.toDS()
...     .groupByKey(lambda word: word)
...     .count()
...     .writeStream.format("memory").queryName("counts").outputMode("complete").start()
... )
>>> words.addData("a", "b", "a")
1
>>> query.processAllAvailable()
>>> sorted(session.table("counts"))
[Row(key='a', count=2), Row(key='b', count=1)]
>>> session.stop()
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import RDD, SparkContext

from dstreams.common.clock import Clock, SystemClock
from dstreams.common.redaction import mask_by
from dstreams.common.settings import Settings
from dstreams.errors import InvalidStreamError
from dstreams.monitoring.registry import registry
from dstreams.spark.spark_context import require_running
from dstreams.spark.worker_python import use_driver_python
from dstreams.state.group_state import OutputMode
from dstreams.state.state_classes import AllowedClasses, Upgrade, classes_of_program
from dstreams.structured.api.dataset import StreamingDataset
from dstreams.structured.api.manager import StreamingQueryManager
from dstreams.structured.api.query import status_of
from dstreams.structured.api.reader import BatchReader, DataStreamReader
from dstreams.structured.api.writer import (
    DataStreamWriter,
    WriterEnvironment,
    WriterSettings,
    output_mode,
)
from dstreams.structured.conf import SHUFFLE_PARTITIONS, QueryConf
from dstreams.structured.execution.adoption import AdoptionReport, adopt_query
from dstreams.structured.execution.repartition import repartition_state
from dstreams.structured.execution.restart_checks import restart_problems
from dstreams.structured.execution.state_reader import QueryStateReader
from dstreams.structured.plan.logical import BatchRelation, LogicalPlan, StreamingRelation
from dstreams.structured.sinks.sink import Sink
from dstreams.structured.sinks.trial_sinks import MemorySink
from dstreams.structured.sources.memory_source import MemoryStream
from dstreams.structured.sources.static_rows import StaticRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")

_LISTENERS_S = 10.0


class StreamSession:
    """Creates and manages queries on one SparkContext.

    Settings have Spark's names. The default of ``spark.sql.shuffle.partitions``, the number of
    partitions of state, is the context's default parallelism instead of Spark's 200, because each
    partition costs a Python task in each batch.

    Args:
        sparkContext: a SparkContext, or a SparkSession.
        conf: settings that override those of the SparkConf.
        clock: the driver's clock; None for the system clock.

    Raises:
        InvalidStreamError: *sparkContext* is not a SparkContext or SparkSession, or is a session of
            Spark Connect.
        EnvironmentNotReadyError: the context was stopped, by the program or by Spark.
    """

    def __init__(
        self,
        sparkContext: SparkContext | Any,
        conf: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if type(sparkContext).__module__.startswith("pyspark.sql.connect."):
            raise InvalidStreamError(
                "StreamSession cannot use a session of Spark Connect, which has no SparkContext: "
                "the driver runs on the server; run this program as a driver, with spark-submit "
                "or SparkSession.builder.master(...)"
            )
        spark = getattr(sparkContext, "sparkContext", sparkContext)
        if not isinstance(spark, SparkContext):
            raise InvalidStreamError(
                f"StreamSession needs a SparkContext or a SparkSession, got {sparkContext!r}"
            )
        require_running(spark)
        given = {**dict(spark.getConf().getAll()), **dict(conf or {})}
        mask_by(given)
        partitions = {SHUFFLE_PARTITIONS: str(spark.defaultParallelism)}
        use_driver_python(spark)
        self._spark = spark
        self.conf = RuntimeConf({**partitions, **given})
        self._tables: dict[str, MemorySink] = {}
        self._allowed = AllowedClasses()
        settings = Settings.from_conf(given)
        self._clock = clock or SystemClock()
        self._manager = StreamingQueryManager(spark, self._clock, settings)

    @property
    def sparkContext(self) -> SparkContext:
        """The SparkContext of the session."""
        return self._spark

    @property
    def uiWebUrl(self) -> str | None:
        """URL of the web page of this process, without a token; None if it is not served.

        The page is served from the start of the first query or stream with
        ``spark.dstreams.ui.enabled`` until the process ends. Semantics: SparkContext.uiWebUrl.
        """
        return registry().dashboard_url

    @property
    def read(self) -> BatchReader:
        """The reader of current contents, such as the directory of a file sink."""
        return BatchReader(self._spark, self._dataset)

    def createDataset(
        self, data: Iterable[T] | RDD[T] | Callable[[], Any] | DataFrame
    ) -> StreamingDataset[Any]:
        """Return a batch dataset.

        Semantics: SparkSession.createDataset of Spark in Scala; a function as *data* is ours.

        Args:
            data: the records: a list, an RDD, the Rows of a DataFrame, or a function without
                arguments that returns one of these, which is called each time they are read.

        Raises:
            InvalidStreamError: *data* is something else.
        """
        return self._dataset(BatchRelation(StaticRows.of(data, "createDataset")))

    @property
    def readStream(self) -> DataStreamReader:
        """The reader that configures the source of a query."""
        return DataStreamReader(self._dataset)

    @property
    def streams(self) -> StreamingQueryManager:
        """The manager of this session's queries."""
        return self._manager

    def memoryStream(
        self, name: str = "memory", partitions: int | None = None
    ) -> MemoryStreamHandle:
        """Return a source to which the program adds records.

        Args:
            name: name in ``explain`` and progress.
            partitions: number of partitions of each addition; None for the number of cores.
        """
        return MemoryStreamHandle(self, MemoryStream(name, partitions))

    def table(self, name: str) -> list[Any]:
        """Return the rows of the running or ended query *name* with a memory sink.

        Raises:
            InvalidStreamError: no query with a memory sink has this name.
        """
        return self._table(name).rows()

    def tableBatches(self, name: str) -> dict[int, list[Any]]:
        """Return the rows of :meth:`table` by batch id. Raises as :meth:`table`."""
        return self._table(name).batches()

    def stateClasses(self, *classes: type, upgrade: Upgrade | None = None) -> None:
        """Register additional data classes that state may contain, for queries that start later.

        Dataclasses, attrs classes, named tuples and enums are stored by their fields. Classes that
        a function of a query, its module or its imports refer to are found without registration.

        Args:
            classes: the classes.
            upgrade: ``f(name, fields) -> value``, called for a stored instance whose class was
                removed, or has lost or renamed a field, with the module and name of the class, and
                a dict of the stored fields. It returns the replacement. None: such an instance is
                refused.

        Raises:
            InvalidStreamError: one of them is not a data class.
        """
        self._allowed = self._allowed.and_more(classes, upgrade)

    def sink(
        self, format: str, path: str | None = None, queryName: str | None = None, **options: Any
    ) -> Sink:
        """Return a sink for late records or records whose function failed.

        Pass it as ``lateOutput`` of ``withWatermark`` or as ``onError`` of ``map``, ``groupByKey``
        and other methods. It writes the :class:`~dstreams.RejectedRecord` rows of a batch before
        the batch is committed, with the guarantee that it has as the sink of a query. For
        ``kafka``, values are JSON.

        Args:
            format: as of :meth:`DataStreamWriter.format`.
            path: directory of files.
            queryName: name of the table of a memory sink.
            options: as of :meth:`DataStreamWriter.option`, except ``checkpointLocation``.

        Raises:
            InvalidStreamError: an argument is missing or invalid.
        """
        environment = self._dataset(LogicalPlan()).environment
        writer = DataStreamWriter(LogicalPlan(), environment, WriterSettings())
        writer = writer.format(format).options(**options)
        if path is not None:
            writer = writer.option("path", path)
        if queryName is not None:
            writer = writer.queryName(queryName)
        if "checkpointLocation" in writer.settings.options:
            raise InvalidStreamError(
                f"the sink {format} has no checkpoint of its own; give checkpointLocation to the "
                "query"
            )
        topic = writer.settings.options.get("topic")
        if format == "kafka" and topic is None:
            raise InvalidStreamError("a sink of rejected records in kafka needs the option topic")
        sink = writer.settings.make_sink(self._tables, f"query-{topic}")
        if isinstance(sink, MemorySink) and queryName is not None:
            self._tables[queryName] = sink
        return sink

    def readState(self, checkpointLocation: str) -> QueryStateReader:
        """Return a reader of the state of a running or stopped query.

        Stored instances of classes are restored as in a query that starts now.

        Raises:
            RestartError: the location has no checkpoint of a query.
        """
        classes = classes_of_program(self._allowed, allowed=self._allowed, depth=2)
        return QueryStateReader(self._spark, checkpointLocation, self.conf.frozen(), classes)

    def checkRestart(
        self, dataset: StreamingDataset[Any], outputMode: str | OutputMode, checkpointLocation: str
    ) -> list[str]:
        """Check whether a query can resume from a checkpoint, without starting it.

        Args:
            dataset: the query.
            outputMode: its output mode.
            checkpointLocation: path or URL.

        Returns:
            A message for each obstacle; empty if the query can resume.
        """
        conf, mode = self.conf.frozen(), output_mode(outputMode)
        classes = classes_of_program(dataset.plan, allowed=self._allowed, depth=2)
        return restart_problems(dataset.plan, mode, conf, checkpointLocation, classes)

    def repartitionState(self, checkpointLocation: str, numPartitions: int) -> None:
        """Move the state of a stopped query into another number of partitions.

        One job for each operator reads its state after the newest batch and writes it into new
        partitions. Together they are a batch without data. Earlier batches keep theirs: a rewind to
        before the move undoes it. Sources, sinks, watermarks and timers stay as they are. Does
        nothing if the state has this number of partitions. If it is interrupted, call it again.

        A query that still runs elsewhere on this checkpoint fails at its next batch.

        Args:
            checkpointLocation: path or URL.
            numPartitions: number of partitions from now on, instead of the
                ``spark.sql.shuffle.partitions`` of the first start; at least 1.

        Raises:
            InvalidStreamError: *numPartitions* is not a number of at least 1.
            RestartError: the location has no committed batch of a query, a batch has begun and is
                not committed, another call to other partitions was interrupted, or this program
                does not have the classes of stored instances.
            StreamLifecycleError: a query of this process runs on the checkpoint.
            Py4JJavaError: a task failed.

        Semantics: StreamingCheckpointManager.repartition (Spark 4.3).
        """
        if type(numPartitions) is not int or numPartitions < 1:
            raise InvalidStreamError(
                f"numPartitions of repartitionState must be at least 1, got {numPartitions!r}"
            )
        classes = classes_of_program(self._allowed, allowed=self._allowed, depth=2)
        conf = self.conf.frozen()
        repartition_state(
            self._spark, checkpointLocation, numPartitions, conf, self._clock, classes
        )

    def adopt(
        self,
        dataset: StreamingDataset[Any],
        outputMode: str | OutputMode,
        checkpointLocation: str,
        sparkCheckpoint: str,
        *,
        dryRun: bool = False,
    ) -> AdoptionReport:
        """Start the checkpoint of a query with the state and progress of a query of Spark.

        Stop the query of Spark first. It must have the same stateful operators and sources in the
        same order. Nothing is written to its checkpoint. A query that starts on
        *checkpointLocation* then continues after the newest complete batch of Spark: it has the
        same number and watermark, state, and offsets of files or of Kafka. A batch that Spark has
        begun and not completed runs again, with its original input.

        Taken are the states of aggregations by ``Count``, ``Sum``, ``Min``, ``Max``, ``Average``,
        ``Variance``, ``StdDev``, ``First`` and ``Last``, of ``dropDuplicates``,
        ``dropDuplicatesWithinWatermark``, and of ``applyInPandasWithState`` by
        :meth:`GroupedDataset.flatMapGroupsWithState`, whose states then are tuples. Spark 4 or
        newer reads them.

        Does nothing if *checkpointLocation* has a batch, so the call can stay in a program. If it
        is interrupted, call it again.

        Args:
            dataset: the query.
            outputMode: its output mode.
            checkpointLocation: path or URL of the new checkpoint.
            sparkCheckpoint: path or URL of the ``checkpointLocation`` in Spark.
            dryRun: only report what would be adopted, or why it cannot be; a job reads each state
                and counts its keys.

        Raises:
            RestartError: *sparkCheckpoint* is not a checkpoint of a query, is damaged, or does not
                fit the query; the message names all that cannot be taken.
            StreamLifecycleError: a query of this process runs on *checkpointLocation*.
            UnsupportedOperationError: the query cannot run as a stream.
        """
        classes = classes_of_program(dataset.plan, allowed=self._allowed, depth=2)
        return adopt_query(
            self._spark,
            checkpointLocation,
            sparkCheckpoint,
            dataset.plan,
            output_mode(outputMode),
            self.conf.frozen(),
            self._clock,
            classes,
            str(uuid.uuid4()),  # noqa: TID251
            is_dry_run=dryRun,
        )

    def stop(self) -> None:
        """Stop all queries; the SparkContext keeps running.

        Listeners have ten seconds to receive the last events.
        """
        self._manager.stop_all()
        self._manager.wait_until_told(_LISTENERS_S)

    def __repr__(self) -> str:
        return f"<StreamSession with {len(self._manager.active)} active queries>"

    def _repr_html_(self) -> str:
        from dstreams.monitoring.notebook import queries_html  # noqa: PLC0415 - only in notebooks

        return queries_html("StreamSession", [status_of(query) for query in self._manager.active])

    def _table(self, name: str) -> MemorySink:
        if name not in self._tables:
            raise InvalidStreamError(
                f"unknown table {name!r}; start a query with format('memory') and "
                f"queryName({name!r})"
            )
        return self._tables[name]

    def _dataset(self, plan: LogicalPlan) -> StreamingDataset[Any]:
        environment = WriterEnvironment(
            self._manager, self.conf.frozen, self._tables, lambda: self._allowed
        )
        return StreamingDataset(plan, environment)


class MemoryStreamHandle:
    """A source to which the program adds records."""

    def __init__(self, session: StreamSession, source: MemoryStream) -> None:
        self._session = session
        self._source = source

    def addData(self, *records: Any) -> int:
        """Add records, and return the offset after them."""
        return self._source.add_data(records)

    def addAll(self, records: Iterable[Any] | RDD[Any]) -> int:
        """Add the records of a list, an RDD or a DataFrame, and return the offset after them."""
        return self._source.add_data(records)

    def toDS(self) -> StreamingDataset[Any]:
        """Return the dataset of all records, also of those added later."""
        return self._session._dataset(StreamingRelation(self._source))


class RuntimeConf:
    """The settings of a session, which a query reads when it starts."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def set(self, key: str, value: Any) -> None:
        """Set a value; booleans are converted as in Spark.

        Raises:
            InvalidStreamError: the key begins with ``spark.dstreams.`` and is unknown, or it is
                read only when a session is created.
        """
        if key in Settings.defaults() and key not in QueryConf.defaults():
            raise InvalidStreamError(
                f"{key} is read when a session is created; pass it to StreamSession(sc, conf=...)"
            )
        Settings.refuse_unknown([key])
        self._values[key] = str(value).lower() if isinstance(value, bool) else str(value)

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return a value, or its default."""
        return self._values.get(key, QueryConf.defaults().get(key)) or default

    def unset(self, key: str) -> None:
        """Reset a value to its default."""
        self._values.pop(key, None)

    def frozen(self) -> QueryConf:
        """Return the current settings.

        Raises:
            InvalidStreamError: a setting is invalid, or has no effect.
        """
        return QueryConf.from_conf(self._values)
