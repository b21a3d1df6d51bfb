"""StreamSession: where structured queries begin.

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
[('a', 2), ('b', 1)]
>>> session.stop()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.common.clock import Clock, SystemClock
from dstreams.common.redaction import mask_by
from dstreams.common.settings import Settings
from dstreams.errors import InvalidStreamError
from dstreams.monitoring.registry import registry
from dstreams.spark.context import require_running
from dstreams.spark.worker_python import use_driver_python
from dstreams.state.group_state import OutputMode
from dstreams.state.state_classes import AllowedClasses, Upgrade, classes_of_program
from dstreams.structured.api.dataset import StreamingDataset
from dstreams.structured.api.manager import StreamingQueryManager
from dstreams.structured.api.query import status_of
from dstreams.structured.api.reader import BatchReader, DataStreamReader
from dstreams.structured.api.writer import WriterEnvironment, output_mode
from dstreams.structured.conf import SHUFFLE_PARTITIONS, QueryConf
from dstreams.structured.execution.restart_checks import restart_problems
from dstreams.structured.execution.state_reader import QueryStateReader
from dstreams.structured.plan.logical import LogicalPlan, StreamingRelation
from dstreams.structured.sinks.memory_sink import MemorySink
from dstreams.structured.sources.memory_source import MemoryStream

_LISTENERS_S = 10.0


class StreamSession:
    """Makes queries over one SparkContext.

    Settings have Spark's names. ``spark.sql.shuffle.partitions``, the number of partitions of
    state, is here as many as the context's default parallelism, where Spark has 200: each partition
    costs a task of Python in each batch.

    Args:
        sparkContext: where tasks run; or a SparkSession, whose context that is.
        conf: settings, by name; those of the SparkConf count as well.
        clock: the driver's clock; None for that of the machine.

    Raises:
        InvalidStreamError: *sparkContext* is neither.
        EnvironmentNotReadyError: that context has been stopped, by the program or by Spark.
    """

    def __init__(
        self,
        sparkContext: SparkContext | Any,
        conf: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
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
        self._manager = StreamingQueryManager(spark, clock or SystemClock(), settings)

    @property
    def sparkContext(self) -> SparkContext:
        """Where tasks run."""
        return self._spark

    @property
    def uiWebUrl(self) -> str | None:
        """Address of the live page of this process, without a token; None where there is none.

        The page is there from the start of the first query or streams that have
        ``spark.dstreams.ui.enabled``, until the process ends. Semantics: SparkContext.uiWebUrl.
        """
        return registry().dashboard_url

    @property
    def read(self) -> BatchReader:
        """Reads what a directory holds now, such as one that a query writes to."""
        return BatchReader(self._spark)

    @property
    def readStream(self) -> DataStreamReader:
        """Says where records come from."""
        return DataStreamReader(self._dataset)

    @property
    def streams(self) -> StreamingQueryManager:
        """The queries of this session."""
        return self._manager

    def memoryStream(
        self, name: str = "memory", partitions: int | None = None
    ) -> MemoryStreamHandle:
        """Return a source that the program fills by hand.

        Args:
            name: for ``explain`` and progress.
            partitions: of each addition's RDD; None for as many as the context has cores.
        """
        return MemoryStreamHandle(self, MemoryStream(name, partitions))

    def table(self, name: str) -> list[Any]:
        """Return the rows of the query with a memory sink that has, or had, that name.

        Raises:
            InvalidStreamError: there was no such query.
        """
        return self._table(name).rows()

    def tableBatches(self, name: str) -> dict[int, list[Any]]:
        """Return the same rows by the number of their batch. Raises as :meth:`table`."""
        return self._table(name).batches()

    def stateClasses(self, *classes: type, upgrade: Upgrade | None = None) -> None:
        """Name classes of data that state may hold, beside those that a program uses.

        Dataclasses, classes of attrs, named tuples and enums are stored by their fields, where a
        function of a query, its module or what that imports names them. Others are named here; for
        queries that start after this.

        Args:
            classes: the classes.
            upgrade: ``f(name, fields) -> value``, called for a stored instance whose class is gone,
                or has lost or renamed a field: with module and name of the class, and its fields
                by their name, as they were stored. It returns what stands in its place. None: such
                an instance is refused.

        Raises:
            InvalidStreamError: one of them is no class of data.
        """
        self._allowed = self._allowed.and_more(classes, upgrade)

    def readState(self, checkpointLocation: str) -> QueryStateReader:
        """Look into the state of a query, running or not.

        Instances of classes are made as in a query that would start here.

        Raises:
            RestartError: there is no query's checkpoint.
        """
        classes = classes_of_program(self._allowed, allowed=self._allowed, depth=2)
        return QueryStateReader(self._spark, checkpointLocation, self.conf.frozen(), classes)

    def checkRestart(
        self, dataset: StreamingDataset[Any], outputMode: str | OutputMode, checkpointLocation: str
    ) -> list[str]:
        """Say whether a query can go on from a checkpoint, without starting it.

        Args:
            dataset: the query.
            outputMode: its output mode.
            checkpointLocation: path or URL.

        Returns:
            What keeps it from that, by operator; empty if nothing does.
        """
        conf, mode = self.conf.frozen(), output_mode(outputMode)
        return restart_problems(dataset.plan, mode, conf, checkpointLocation)

    def stop(self) -> None:
        """Stop all queries, and let listeners hear of it; the SparkContext goes on.

        Listeners have ten seconds for that.
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
                f"there is no table {name!r}; start a query with format('memory') and "
                f"queryName({name!r})"
            )
        return self._tables[name]

    def _dataset(self, plan: LogicalPlan) -> StreamingDataset[Any]:
        environment = WriterEnvironment(
            self._manager, self.conf.frozen, self._tables, lambda: self._allowed
        )
        return StreamingDataset(plan, environment)


class MemoryStreamHandle:
    """A source that the program fills by hand.

    Args:
        session: makes the dataset.
        source: what is filled.
    """

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
        """Return the records that were and will be added."""
        return self._session._dataset(StreamingRelation(self._source))


class RuntimeConf:
    """Settings of a session; a query has those that there are when it starts."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def set(self, key: str, value: Any) -> None:
        """Set a value; True and False are written as Spark does.

        Raises:
            InvalidStreamError: the key begins as ours do, and there is no such setting; or it is
                read when a session is made.
        """
        if key in Settings.defaults() and key not in QueryConf.defaults():
            raise InvalidStreamError(
                f"{key} is read when a session is made; give it there: StreamSession(sc, conf=...)"
            )
        Settings.refuse_unknown([key])
        self._values[key] = str(value).lower() if isinstance(value, bool) else str(value)

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return a value, or its default."""
        return self._values.get(key, QueryConf.defaults().get(key)) or default

    def unset(self, key: str) -> None:
        """Forget a value."""
        self._values.pop(key, None)

    def frozen(self) -> QueryConf:
        """Return the settings as they are now.

        Raises:
            InvalidStreamError: one cannot be read, or has no effect.
        """
        return QueryConf.from_conf(self._values)
