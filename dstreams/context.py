"""StreamingContext: where a streaming program begins and ends."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal, TypeVar, overload
from uuid import uuid4  # noqa: TID251

from pyspark import RDD, SparkContext, StorageLevel

from checkpoint import open_files, without_secrets
from dstreams.common.callables import call_site, describe, require_arity
from dstreams.common.clock import Clock, SystemClock
from dstreams.common.durations import batch_datetime, require_duration_ms
from dstreams.common.redaction import mask_by
from dstreams.common.settings import UNLIMITED_MS, Settings
from dstreams.dstream.block_dstream import BlockDStream, blocks_of
from dstreams.dstream.dstream import DStream
from dstreams.engine.engine import Engine
from dstreams.engine.inspection import explanation, graph_nodes, node_numbers, state_access
from dstreams.engine.lifecycle import StreamingContextState, StreamRunner
from dstreams.engine.recovery.compatibility import RestoreReport
from dstreams.engine.recovery.recover import RecoveredStream, recover, spark_for, spark_of_setup
from dstreams.engine.startup import EngineConfig, check_graph, warn_of_refusals
from dstreams.errors import (
    InvalidStreamError,
    RestartError,
    StreamLifecycleError,
)
from dstreams.graph.node import InputDStream, Node
from dstreams.graph.plan import Plan, StreamGraph
from dstreams.graph.transformed import TransformedDStream, TransformFunc
from dstreams.listener import CALLBACKS, StreamingListener
from dstreams.monitoring.application import application
from dstreams.monitoring.events import BatchInfo, BatchInfos, Event
from dstreams.monitoring.listener_bus import ListenerBus, load_listener
from dstreams.monitoring.monitor import Monitor, Opened
from dstreams.monitoring.pictures.statuses import status_html, stream_html
from dstreams.monitoring.pictures.tables import duration
from dstreams.monitoring.progress import RecentProgress, StreamingProgress, stream_progress
from dstreams.monitoring.status import StreamStatus
from dstreams.monitoring.web.page import page
from dstreams.sources.file_formats import FixedRecords, FormatName, ReadFiles, file_format
from dstreams.sources.file_stream import FileSource
from dstreams.sources.queue import QueueSource
from dstreams.sources.rate import RateSource
from dstreams.sources.receiver import Receiver
from dstreams.sources.receiver_source import ReceiverSource
from dstreams.sources.socket import SocketTextSource
from dstreams.sources.socket_receiver import SocketReceiver
from dstreams.sources.source import Source
from dstreams.spark.context import require_running, require_spark, warn_if_untuned
from dstreams.spark.jvm import set_checkpoint_directory
from dstreams.spark.worker_python import use_driver_python
from dstreams.state.state_classes import AllowedClasses, Upgrade, classes_of_program

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamingContext"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Self = TypeVar("Self", bound="StreamingContext")


class StreamingContext:
    """Defines streams on a SparkContext, and runs them batch by batch::

        ssc = StreamingContext(sc, 1)
        ssc.checkpoint("checkpoints")
        words = ssc.socketTextStream("localhost", 9999).flatMap(str.split)
        counts = words.map(lambda w: (w, 1)).updateStateByKey(lambda vs, s: sum(vs) + (s or 0))
        counts.pprint()
        ssc.start()
        ssc.awaitTermination()

    Args:
        sparkContext: the context that runs the jobs; :func:`dstreams.tuned_context` makes a fast
            one.
        batchDuration: seconds from one batch to the next, also fractions.
        clock: the driver's clock; a :class:`dstreams.testing.ManualClock` drives the stream by
            hand. None: the machine's clock.
        settings: settings to use instead of those that the SparkConf says.

    Raises:
        InvalidStreamError: *sparkContext* is none, or *batchDuration* is no positive duration.
        EnvironmentNotReadyError: Spark is too old, or *sparkContext* has been stopped.

    Semantics: pyspark.streaming.StreamingContext (4.3).
    """

    _dstreams_driver_only: ClassVar[bool] = True

    def __init__(
        self,
        sparkContext: SparkContext,
        batchDuration: float | None = None,
        *,
        clock: Clock | None = None,
        settings: Settings | None = None,
    ) -> None:
        require_spark()
        if not isinstance(sparkContext, SparkContext):
            raise InvalidStreamError(
                f"sparkContext must be a SparkContext, got {type(sparkContext).__name__}"
            )
        require_running(sparkContext)
        if batchDuration is None:
            raise InvalidStreamError(
                "batchDuration is missing; give the seconds from one batch to the next"
            )
        self._sc = sparkContext
        self._graph = StreamGraph(require_duration_ms(batchDuration, "batchDuration"))
        self._clock: Clock = SystemClock() if clock is None else clock
        self._given_settings = settings
        conf = dict(sparkContext.getConf().getAll())
        mask_by(conf)
        self._settings = settings or Settings.from_conf(conf)
        self._checkpoint_directory: str | None = None
        self._recovered_stream: RecoveredStream | None = None
        self._allowed_classes = AllowedClasses()
        self._bus = ListenerBus(StreamingListener, CALLBACKS, self._settings.max_queued_events)
        for name in self._settings.extra_listeners:
            self._bus.add(load_listener(name))
        self._monitor = Monitor(
            "stream",
            sparkContext.appName or "",
            self._graph.batch_ms,
            self._clock,
            self._settings.retained_batches,
            application().changed,
        )
        self._life = StreamRunner(
            self, self._check_graph, self._sc, self._settings, self._bus, self._monitor
        )
        warn_if_untuned(sparkContext)
        use_driver_python(sparkContext)
        if self._settings.checkpoint_directory is not None:
            self.checkpoint(self._settings.checkpoint_directory)

    def __repr__(self) -> str:
        name, state = type(self).__name__, self._life.state.value
        inputs, outputs = len(self._graph.inputs), len(self._graph.outputs)
        return (
            f"<{name} {state}, a batch each {duration(self._graph.batch_ms)}, inputs: {inputs}, "
            f"outputs: {outputs}>"
        )

    def _repr_html_(self) -> str:
        is_live = self._life.state is StreamingContextState.ACTIVE
        page_url = page.url if is_live else None
        return status_html(self._shown(), self._problem(), page=page_url)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a StreamingContext was captured by a function that runs on the workers; use it only "
            "to define the streams, and pass plain values to functions"
        )

    @classmethod
    def getOrCreate(
        cls: type[Self],
        checkpointPath: str,
        setupFunc: Callable[[], Self],
        *,
        createOnError: bool = False,
    ) -> Self:
        """Return the context that an earlier run left in *checkpointPath*, else a new one.

        The streams of the earlier run are made again as they were, with their functions;
        *setupFunc* is not called, and new code has no effect (:meth:`restore` is for that).
        Started, they go on where that run ended: no output of a batch that it committed runs again,
        batches that it had begun run again with the same input, and then those whose time has
        passed. Without an active SparkContext one is made as that of the earlier run was, with the
        master and the addresses of this process.

        Args:
            checkpointPath: path or URL of the checkpoint directory.
            setupFunc: ``f() -> StreamingContext``, defines the streams and does not start them.
                Called when nothing was left there; the context gets the directory.
            createOnError: begin anew, with a warning, where what was left cannot be taken up.

        Raises:
            InvalidStreamError: the directory cannot be used, or what *setupFunc* returned is no
                StreamingContext.
            RestartError: what the earlier run left cannot be taken up: it is damaged, others could
                have written it, an input cannot be read again, or its code is not there.
        """
        require_arity(setupFunc, (0,), "getOrCreate", "f() -> StreamingContext")
        try:
            found = recover(checkpointPath)
            if found is not None:
                return cls._recovered(checkpointPath, found)
        except RestartError as error:
            if not createOnError:
                raise
            logger.warning("beginning anew; what is there stays as it is: %s", error)
        return _with_directory(_set_up(setupFunc), checkpointPath)

    @overload
    @classmethod
    def restore(
        cls: type[Self],
        checkpointPath: str,
        setupFunc: Callable[[], Self],
        *,
        dryRun: Literal[False] = False,
        allowRemoved: Iterable[str] = (),
    ) -> Self: ...

    @overload
    @classmethod
    def restore(
        cls: type[Self],
        checkpointPath: str,
        setupFunc: Callable[[], Self],
        *,
        dryRun: Literal[True],
        allowRemoved: Iterable[str] = (),
    ) -> RestoreReport: ...

    @classmethod
    def restore(
        cls: type[Self],
        checkpointPath: str,
        setupFunc: Callable[[], Self],
        *,
        dryRun: bool = False,
        allowRemoved: Iterable[str] = (),
    ) -> Self | RestoreReport:
        """Return the context that *setupFunc* sets up, with the state that an earlier run left.

        For code that has changed: functions may be others, stateful operators and inputs may be
        added, and the number of partitions of a state may change. State and progress find their
        operators by uid: that given by ``uid=``, else one derived from the place among the
        operators of its kind. Where nothing was left, the streams begin anew.

        After a graceful stop the new code gets the state as the old code left it. After any other
        end the state stands on its newest copy (at every checkpoint interval; stored state has one
        of every batch): the batches since then are computed again, by the new functions, though
        their outputs ran with the old ones. To keep them apart, stop gracefully before an upgrade.
        What has changed otherwise, such as a parameter of an input, is in the log, as a warning.

        Args:
            checkpointPath: path or URL of the checkpoint directory.
            setupFunc: ``f() -> StreamingContext``, defines the streams and does not start them.
            dryRun: only return what would happen, and why it cannot. Nothing is left behind: what
                *setupFunc* has made is stopped again, but for a SparkContext that was there before.
            allowRemoved: uids of operators and inputs whose state or progress may be left behind.

        Returns:
            The context, to be started; with *dryRun* a report, which prints.

        Raises:
            InvalidStreamError: as in :meth:`getOrCreate`, or the streams cannot run.
            RestartError: what was left is damaged, or does not fit the streams; all that does not
                is named, nothing was touched, and a SparkContext that *setupFunc* made is stopped.
        """
        require_arity(setupFunc, (0,), "restore", "f() -> StreamingContext")
        found = recover(checkpointPath)
        with spark_of_setup(is_kept=not dryRun):
            ssc, report = _set_up(setupFunc), RestoreReport(None)
            if found is not None:
                report, found = found.compare(ssc._graph, ssc._sc, tuple(allowRemoved))
                if not dryRun:
                    _require_fit(report, found)
                    ssc._recovered_stream = found
            if dryRun:
                ssc._life.finish()
                return report
            return _with_directory(ssc, checkpointPath)

    @classmethod
    def getActive(cls: type[Self]) -> Self | None:
        """Return the context of this process that is started and not stopped, if there is one."""
        life = StreamRunner.active
        active: Self | None = None if life is None else life.context
        return active

    @classmethod
    def getActiveOrCreate(
        cls: type[Self], checkpointPath: str | None, setupFunc: Callable[[], Self]
    ) -> Self:
        """Return the active context if there is one, else that of :meth:`getOrCreate`.

        Args:
            checkpointPath: path or URL of the checkpoint directory. None: *setupFunc* is called in
                any case, and sets a directory where it needs one.
            setupFunc: ``f() -> StreamingContext``, defines the streams and does not start them.

        Raises:
            InvalidStreamError: as in :meth:`getOrCreate`.
            RestartError: as in :meth:`getOrCreate`.
        """
        require_arity(setupFunc, (0,), "getActiveOrCreate", "f() -> StreamingContext")
        active = cls.getActive()
        if active is not None:
            return active
        if checkpointPath is None:
            return _set_up(setupFunc)
        return cls.getOrCreate(checkpointPath, setupFunc)

    @property
    def sparkContext(self) -> SparkContext:
        """The SparkContext that runs the jobs."""
        return self._sc

    @property
    def _jssc(self) -> JavaCalls:
        return JavaCalls(self)

    def start(self) -> None:
        """Start the streams; returns at once.

        Raises:
            InvalidStreamError: there is no output, or a stream cannot run as it is defined. The
                context stays as it was: define what is missing, and start again.
            EnvironmentNotReadyError: the Python workers lack what dstreams needs.
            StreamLifecycleError: the context was stopped, or another one is active.
        """
        if self._life.start(self._clock) and self._checkpoint_directory is not None:
            warn_of_refusals(self._graph)

    def step(self, n: int = 1) -> BatchInfos:
        """Run the next *n* batches on the calling thread, without waiting for their times.

        For notebooks, tests and drills, on a context that was not started: the first step freezes
        the graph. Batch times are consecutive multiples of the batch duration. Listeners have been
        told of each batch before the next one runs, and before this returns.

        Args:
            n: how many batches.

        Returns:
            What is known of each batch, in order, as a list that shows itself as a table; a batch
            in which the context was stopped, by a listener or an output, is the last.

        Raises:
            BatchFailedError: a batch failed; its ``batch_infos`` tell of the batches of this call.
                With ``spark.dstreams.onFailure=continue`` the batch is committed, without the
                outputs that failed, and a further step runs the batch after it. With ``stop`` the
                batch ends there and is not committed, the context is stopped, and a restart from
                the checkpoint directory runs the batch again, whole.
            DurabilityError: state could not be made durable; the context is stopped.
            KeyboardInterrupt: Ctrl-C was pressed; the job was cancelled, the batch has the outcome
                ``cancelled`` and is not committed, and a further step runs the batch after it.
            InvalidStreamError: the first step found that there is no output, or that a stream
                cannot run as it is defined. Nothing has begun: the context is as it was before, so
                that more can be defined, and stepped again. An output whose function is refused
                stays; let what the function uses be something else, or define a new context.
            EnvironmentNotReadyError: as in :meth:`start`, with the same context afterwards.
            StreamLifecycleError: the context was started or stopped, another one is active, or
                another step is running.
            Exception: whatever keeps a source from being opened, or the checkpoint directory from
                being taken; the context is stopped.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidStreamError(f"n must be a positive number of batches, got {n!r}")
        return BatchInfos(self._life.step(n, self._clock))

    def awaitTermination(self, timeout: float | None = None) -> None:
        """Wait until the streams are stopped.

        Args:
            timeout: seconds to wait at most. None: no limit.

        Raises:
            BatchFailedError: a batch failed, now or before; with several, the first.
            IncompleteStopError: a graceful stop left out batches or received records.
        """
        self._life.wait(timeout)

    def awaitTerminationOrTimeout(self, timeout: float | None = None) -> bool:
        """Wait until the streams are stopped, and say whether they are.

        Args:
            timeout: seconds to wait at most. None: no limit.

        Raises:
            BatchFailedError: a batch failed, now or before; with several, the first.
            IncompleteStopError: a graceful stop left out batches or received records.
        """
        return self._life.wait(timeout)

    def stop(self, stopSparkContext: bool = True, stopGraceFully: bool = False) -> None:
        """Stop the streams.

        Args:
            stopSparkContext: stop the SparkContext too, also when the streams were stopped before.
            stopGraceFully: run what was received to its end first: the running batch, those that
                are planned, and what is in no batch yet. After
                ``spark.dstreams.stop.waitForBatches`` (an hour) the running batch is cancelled, and
                so it is two seconds after a stop at once that is asked for meanwhile. False: let
                the running batch finish within two seconds, else cancel it, and run no other.

        What is left out is named in the log, with its batches and the number of records of each
        input: what is lost, and what the next start from the checkpoint directory runs again.

        With a checkpoint directory a last copy of the state is written, within ten seconds: after a
        graceful stop, so that the next start has it at once, and after every stop where that could
        not read again what the state was made of, as with sockets.

        Called inside a batch, or by a listener, it returns at once, and the context stops after the
        running batch. Otherwise listeners have been told of all batches when it returns; a
        listener that takes more than five seconds for that is left behind, with a warning.

        A context that is stepped by hand runs no further batch in a stop.

        Raises:
            IncompleteStopError: a graceful stop left out batches or received records; the context,
                and the SparkContext where that was asked for, are stopped nevertheless. Where stop
                was called inside a batch, by a listener or by a signal,
                :meth:`awaitTermination` raises it.

        Semantics: pyspark.streaming.StreamingContext.stop (4.3), which waits for batches as long.
        """
        self._life.failure.seen()
        self._life.stop(stopSparkContext, stopGraceFully)

    def getState(self) -> StreamingContextState:
        """Return where the context is in its life."""
        if self._life.state is StreamingContextState.STOPPED:
            self._life.failure.seen()
        return self._life.state

    def status(self) -> StreamStatus:
        """Return how the streams do: batches, delays, state, checkpoint, as plain values.

        It costs no job and waits for no batch; it can be called from any thread, before the start
        and after the end. :class:`dstreams.monitoring.status.StreamStatus` says what is in it.
        """
        return self._monitor.status()

    def progress(self) -> StreamingProgress | None:
        """Return what the newest batch did, None before the first; as in :attr:`recentProgress`."""
        newest = self._monitor.newest()
        return None if newest is None else self._progress_of(newest)

    @property
    def recentProgress(self) -> RecentProgress[StreamingProgress]:
        """What the newest batches did, the newest last: dicts by the names of Spark's queries.

        As many batches are kept as ``spark.streaming.ui.retainedBatches`` says. Of topics with very
        many partitions the older ones have no offsets any more (None).

        Semantics: StreamingQuery.recentProgress (Spark 4.3), for batches of streams; failed and
        empty batches are among them.
        """
        return RecentProgress(map(self._progress_of, self._monitor.recent()))

    def _progress_of(self, batch: BatchInfo) -> StreamingProgress:
        return stream_progress(batch, self._monitor.id, self._monitor.run_id, self._monitor.name)

    def explain(self) -> None:
        """Print the graph, what of it is durable and when, and what each output promises.

        It runs nothing, and can be called at any time, also before everything is defined.

        >>> ssc.queueStream([[1, 2]], uid="numbers").map(abs).pprint()
        >>> ssc.explain()
        == Graph ==
        pprint at ... [uid pprint-0; at most once]
        +- map at ...
           +- queueStream at ... [uid numbers]
        <BLANKLINE>
        == Durable ==
        nothing: there is no checkpoint directory, a restart starts from scratch
        <BLANKLINE>
        == Outputs ==
        pprint-0, pprint at ...
          at most once: there is no checkpoint directory: no batch runs twice, and what the end of
          the driver cuts off is lost
        """
        plan, is_durable = self._plan()
        print(explanation(plan, is_durable, self._problem(), self._settings))  # noqa: T201

    @property
    def uiWebUrl(self) -> str | None:
        """Address of the live page of this process, without a token; None where there is none.

        The page is there from the start, or first step, of the first streams or query that have
        ``spark.dstreams.ui.enabled``, until the process ends. Semantics: SparkContext.uiWebUrl.
        """
        return page.url

    def remember(self, duration: float) -> None:
        """Keep the RDDs of output streams for at least *duration* seconds, for queries and slices.

        Raises:
            InvalidStreamError: *duration* is no positive duration.
            StreamLifecycleError: it was set before, or the context has started.
        """
        self._require_initialized("the remember duration cannot be set")
        if self._graph.remember_ms is not None:
            raise StreamLifecycleError(
                f"the remember duration is already set, as {self._graph.remember_ms} ms"
            )
        self._graph.remember_ms = require_duration_ms(duration, "duration")

    def checkpoint(self, directory: str) -> None:
        """Set the directory where state is made durable; needed by every stateful stream.

        Args:
            directory: path or URL that the driver and every executor reach, on a file system that
                can create a file only if it is absent.

        Raises:
            InvalidStreamError: *directory* is no path, or cannot be written to.
            StreamLifecycleError: the context has started.
        """
        self._require_initialized("the checkpoint directory cannot be set")
        if not isinstance(directory, str) or not directory:
            raise InvalidStreamError(f"directory must be a path or URL, got {directory!r}")
        try:
            files = open_files(directory)
            # A path without a scheme would be one of Hadoop's default file system, such as HDFS.
            is_local = files.url.startswith("file:")
            set_checkpoint_directory(self._sc, files.url if is_local else directory)
        except Exception as error:
            raise InvalidStreamError(
                f"the checkpoint directory {without_secrets(directory)!r} cannot be used: {error}"
            ) from error
        self._checkpoint_directory = directory

    def stateClasses(self, *classes: type, upgrade: Upgrade | None = None) -> None:
        """Name classes of data that stored state may hold, beside those that the program uses.

        Dataclasses, classes of attrs, named tuples and enums are stored by their fields, where a
        function of the stream, its module or what that imports names them. Others are named here.

        Args:
            classes: the classes.
            upgrade: ``f(name, fields) -> value``, called for a stored instance whose class is gone,
                or has lost or renamed a field: with module and name of the class, and its fields
                by their name, as they were stored. It returns what stands in its place. None: such
                an instance is refused.

        Raises:
            InvalidStreamError: one of them is no class of data.
            StreamLifecycleError: the context has started.
        """
        self._require_initialized("classes of state cannot be named")
        self._allowed_classes = self._allowed_classes.and_more(classes, upgrade)

    def socketTextStream(
        self,
        hostname: str,
        port: int,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
        *,
        uid: str | None = None,
    ) -> DStream[str]:
        """Create a stream of the lines of UTF-8 text that a TCP server sends.

        The driver connects, and connects again when the connection ends.

        Args:
            hostname: host to connect to.
            port: port to connect to.
            storageLevel: taken for compatibility; lines wait in the driver until they are in a
                batch.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Raises:
            InvalidStreamError: *hostname* or *port* cannot be an address.
        """
        return self._input(SocketTextSource(hostname, port), "socketTextStream", uid)

    def socketStream(
        self,
        hostname: str,
        port: int,
        converter: Callable[[BinaryIO], Iterable[T]],
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
        *,
        uid: str | None = None,
    ) -> DStream[T]:
        """Create a stream of the records that *converter* makes of what a TCP server sends.

        The driver connects, and connects again when the connection ends or *converter* fails.

        Args:
            hostname: host to connect to.
            port: port to connect to.
            converter: from a binary file, which ends with the connection, to an iterator of
                records; called for each connection, on a thread of the driver. How long a record
                may be, and what becomes of bytes that are no text, is up to it.
            storageLevel: taken for compatibility; records wait in the driver until they are in a
                batch.
            uid: as in :meth:`receiverStream`.

        Raises:
            InvalidStreamError: *hostname* or *port* cannot be an address, or *converter* is no
                function of a file.
        """
        try:
            SocketTextSource(hostname, port)
        except InvalidStreamError as error:
            message = str(error).replace("socketTextStream", "socketStream")
            raise InvalidStreamError(message) from None
        require_arity(converter, (1,), "socketStream", "converter(file) -> records")
        receiver = SocketReceiver(hostname, port, converter, storageLevel)
        name = f"socketStream({hostname}:{port})"
        return self._receive(receiver, name, "socketStream", uid)

    def textFileStream(self, directory: str, *, uid: str | None = None) -> DStream[str]:
        """Create a stream of the lines of UTF-8 text files that appear in *directory*.

        Files must be moved there, complete, from elsewhere on the file system. Names that begin
        with ``.`` or ``_``, or end in ``._COPYING_`` or ``.tmp``, are left out.

        Args:
            directory: path, URL, or pattern of Hadoop's for several directories.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.
        """
        source = FileSource(directory, "textFileStream", new_since_ms=self._clock.now_ms())
        return self._input(source, "textFileStream", uid)

    def binaryRecordsStream(
        self, directory: str, recordLength: int, *, uid: str | None = None
    ) -> DStream[bytes]:
        """Create a stream of the records of binary files that appear in *directory*.

        A file whose size is no multiple of *recordLength* fails the batch that would have read it,
        and is left out; the next batch reads the other files.

        Args:
            directory: as in :meth:`textFileStream`.
            recordLength: bytes of each record.
            uid: likewise.

        Raises:
            InvalidStreamError: *recordLength* is no whole number of at least 1.
        """
        name = "binaryRecordsStream"
        now_ms = self._clock.now_ms()
        source = FileSource(directory, name, FixedRecords(recordLength), new_since_ms=now_ms)
        return self._input(source, name, uid)

    def fileStream(
        self,
        directory: str,
        filter: Callable[[str], bool] | None = None,
        newFilesOnly: bool = True,
        *,
        read: FormatName | ReadFiles = "textFile",
        maxFilesPerBatch: int | None = None,
        maxFileAge: float | None = None,
        uid: str | None = None,
    ) -> DStream[Any]:
        """Create a stream of what is in the files that appear in *directory*.

        >>> import math, pathlib
        >>> csv = ssc.fileStream(directory, lambda path: path.endswith(".csv"), maxFileAge=math.inf)
        >>> csv.foreachRDD(lambda rdd: print(rdd.collect()))
        >>> pathlib.Path(directory).mkdir()
        >>> for name in "a.csv", "b.txt", ".c.csv":
        ...     _ = pathlib.Path(directory, name).write_text(f"a line of {name}")
        >>> sum(ssc.step()[0].records.values())
        ['a line of a.csv']
        1

        Args:
            directory: as in :meth:`textFileStream`.
            filter: ``f(path) -> bool``, called on the driver once for each file whose name is not
                left out anyway. None: all of them.
            newFilesOnly: leave out files that were there when the stream was defined.
            read: ``textFile`` for lines, ``wholeTextFiles`` or ``binaryFiles`` for pairs (path,
                content), or ``f(spark, paths) -> RDD``, called on the driver for each batch that
                has files, with their paths as they are: patterns and commas are not escaped.
            maxFilesPerBatch: files in a batch at most; the oldest first, the others in later
                batches. None: ``spark.dstreams.fileStream.maxFilesPerBatch``, without it no limit.
            maxFileAge: seconds that a file's modification time may lie back when it appears,
                ``math.inf`` for no limit. None: ``spark.dstreams.fileStream.maxFileAge``; without
                that the remember window, as in Spark, where a file moved in with an old time is not
                new.
            uid: as in :meth:`textFileStream`.

        Raises:
            InvalidStreamError: a function does not take these arguments, *read* is unknown, or a
                limit is not positive.

        State: the driver remembers the files that are in the directory.
        Semantics: org.apache.spark.streaming.StreamingContext.fileStream (4.3), with *read* in the
            place of a Hadoop InputFormat.
        """
        source = FileSource(
            directory,
            "fileStream",
            file_format(read, "fileStream"),
            filter,
            self._clock.now_ms() if newFilesOnly else None,
            _require_count(maxFilesPerBatch),
            _require_age_ms(maxFileAge),
        )
        return self._input(source, "fileStream", uid)

    def queueStream(
        self,
        rdds: Iterable[RDD[T] | Iterable[T] | None],
        oneAtATime: bool = True,
        default: RDD[T] | Iterable[T] | None = None,
        *,
        replayable: bool = False,
        uid: str | None = None,
    ) -> DStream[T]:
        """Create a stream from a queue of RDDs or lists, for tests and experiments.

        The queue and its items are copied here: what is done to them later is not seen.

        Args:
            rdds: RDDs, or collections of records; None stands for a batch without an RDD.
            oneAtATime: one item for each batch; False: all that are there.
            default: RDD or records for batches when the queue is empty. None: an empty RDD.
            replayable: keep the records in the checkpoint, so that a restart goes on with them.
                Otherwise a checkpoint of this stream cannot be taken up, as in Spark.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Raises:
            InvalidStreamError: an item is none of these; a *replayable* queue has an RDD.
        """
        source = QueueSource(rdds, oneAtATime, default, replayable)
        return self._input(source, "queueStream", uid)

    def rateStream(
        self,
        rowsPerSecond: int,
        rampUpTime: float = 0,
        numPartitions: int | None = None,
        *,
        uid: str | None = None,
    ) -> DStream[tuple[datetime, int]]:
        """Create a stream of numbered rows at a steady rate, for trials and measurements.

        Rows are ``(timestamp, value)``: values count from 0 at the start of the stream, timestamps
        are naive datetimes in the driver's time zone, spread evenly over the batch. A batch that is
        made again has the same rows. With ``spark.streaming.receiver.maxRate`` or backpressure, a
        batch leaves out its last rows when they are too many.

        Args:
            rowsPerSecond: rows a second, at least 1.
            rampUpTime: seconds in which the rate grows evenly from none to *rowsPerSecond*.
            numPartitions: partitions of each batch's RDD. None: one for small batches, up to
                ``defaultParallelism`` for large ones.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Raises:
            InvalidStreamError: a parameter is no such number.

        Semantics: the rate source of Structured Streaming; pyspark.streaming has none.
        """
        ramp_up_ms = require_duration_ms(rampUpTime, "rampUpTime") if rampUpTime != 0 else 0
        source = RateSource(rowsPerSecond, ramp_up_ms, numPartitions)
        return self._input(source, "rateStream", uid)

    def receiverStream(self, receiver: Receiver, *, uid: str | None = None) -> DStream[Any]:
        """Create a stream of the records that *receiver* stores.

        The receiver runs in the driver, its threads beside the batches; it takes no core of Spark.

        What it stores waits in blocks for a batch, at most
        ``spark.dstreams.receiver.maxBufferBytes``; then the receiver waits. With
        ``spark.streaming.receiver.writeAheadLog.enable`` and a checkpoint directory the blocks are
        written there first.

        Args:
            receiver: see :class:`dstreams.Receiver`; one for each stream.
            uid: name under which its progress is kept, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: one from its place.

        Raises:
            InvalidStreamError: *receiver* is no receiver, or is in another stream already. At
                start: with a checkpoint directory, it cannot be pickled.
        """
        if not isinstance(receiver, Receiver):
            raise InvalidStreamError(
                "receiverStream needs an instance of dstreams.Receiver, got "
                f"{type(receiver).__name__}"
            )
        for stream in self._graph.inputs:
            if isinstance(stream.source, ReceiverSource) and stream.source.receiver is receiver:
                raise InvalidStreamError(
                    f"this {type(receiver).__name__} is the receiver of {stream.operation} "
                    "already; create one for each stream"
                )
        name = f"receiverStream({type(receiver).__name__})"
        return self._receive(receiver, name, "receiverStream", uid)

    def transform(
        self,
        dstreams: Sequence[DStream[Any]],
        transformFunc: Callable[..., RDD[T] | None],
    ) -> DStream[T]:
        """Create a stream by a function of the RDDs of several streams.

        Args:
            dstreams: streams of one slide duration.
            transformFunc: ``f(list of RDDs) -> RDD``, called on the driver for each batch.

        Raises:
            InvalidStreamError: there is no stream, contexts or slides differ, or the function does
                not take one argument.
        """
        if not dstreams:
            raise InvalidStreamError("transform needs at least one DStream, got none")
        shape = "f(list of RDDs) -> RDD"
        require_arity(transformFunc, (1,), "transform", shape)
        operation = f"transform at {call_site()}"
        return self._combine(dstreams, lambda _, rdds: transformFunc(list(rdds)), operation)

    def union(self, *dstreams: DStream[T]) -> DStream[T]:
        """Unite streams of one element type and one slide duration.

        Raises:
            InvalidStreamError: there is none, or contexts or slides differ.
        """
        if not dstreams:
            raise InvalidStreamError("union needs at least one DStream, got none")
        if len(dstreams) == 1:
            return dstreams[0]
        operation = f"union at {call_site()}"
        return self._combine(dstreams, lambda _, rdds: self._sc.union(list(rdds)), operation)

    def addStreamingListener(self, streamingListener: object) -> None:
        """Tell *streamingListener* of everything that happens from now on.

        Args:
            streamingListener: a :class:`dstreams.StreamingListener`, or anything that has some of
                its methods.

        Raises:
            InvalidStreamError: it has none of them, or is a class.
        """
        self._bus.add(streamingListener)

    def removeStreamingListener(self, streamingListener: object) -> None:
        """Tell *streamingListener* nothing more; harmless when it was never added.

        Semantics: Spark's StreamingContext (4.3); pyspark.streaming has no such method.
        """
        self._bus.remove(streamingListener)

    def _require_initialized(self, what: str) -> None:
        self._life.require_initialized(what)

    @property
    def _engine(self) -> Engine | None:
        return self._life.engine

    def _combine(
        self, dstreams: Sequence[DStream[Any]], func: TransformFunc, operation: str
    ) -> DStream[Any]:
        self._require_initialized("transformations cannot be added")
        for stream in dstreams:
            if not isinstance(stream, DStream):
                raise InvalidStreamError(f"{operation} needs DStreams, got {type(stream).__name__}")
            if stream.context() is not self:
                raise InvalidStreamError(
                    f"{operation} needs streams of one StreamingContext, got streams of two"
                )
        nodes = tuple(stream._node for stream in dstreams)
        return DStream(TransformedDStream(nodes, func, operation), self)

    def _blocks_of(
        self,
        stream: DStream[Any],
        operation: str,
        make: Callable[[RDD[Any]], RDD[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> BlockDStream:
        return blocks_of(stream, operation, make, schema)

    def _input(self, source: Source, operation: str, uid: str | None = None) -> DStream[Any]:
        self._require_initialized("inputs cannot be added")
        node = InputDStream(
            len(self._graph.inputs), source, self._graph.batch_ms, f"{operation} at {call_site()}"
        )
        self._graph.inputs.append(node)
        return DStream(node, self)._named(uid)

    def _receive(
        self, receiver: Receiver, name: str, operation: str, uid: str | None
    ) -> DStream[Any]:
        stream_id = len(self._graph.inputs)
        stream = self._input(ReceiverSource(receiver, stream_id, name), operation, uid)
        receiver._stream_id = stream_id
        return stream

    def _remembered(self, node: Node, begin_ms: int, end_ms: int) -> list[RDD[Any]]:
        """The RDDs of *node* from the batch at *begin_ms* to the one at *end_ms*, both included."""
        if self._engine is None or node not in self._engine.plan.nodes:
            raise StreamLifecycleError(
                f"{node.operation} has not been initialized: slice() needs a context that runs "
                "and a stream that an output uses"
            )
        slide, zero = node.slide_ms, self._engine.plan.zero_ms
        begin, end = (time_ms - (time_ms - zero) % slide for time_ms in (begin_ms, end_ms))
        if (begin, end) != (begin_ms, end_ms):
            logger.warning(
                "slice of %s: times that are no batch times are floored, to %s and %s",
                node.operation,
                batch_datetime(begin),
                batch_datetime(end),
            )
        return self._engine.rdds.between(node, begin - slide, end)

    def _newest(self, node: Node) -> tuple[int, RDD[Any]] | None:
        """The newest RDD of *node* as of the last batch that ran, after its batch time."""
        engine = self._engine
        ran_ms = 0 if engine is None else engine.runner.ran_ms
        if engine is None or not ran_ms:
            has_ended = self._life.state is StreamingContextState.STOPPED
            why = "the context has stopped" if has_ended else "no batch has run yet"
            raise StreamLifecycleError(
                f"{node.operation} has no RDD to be looked at: {why}; "
                + ("create a new one" if has_ended else "run one with step(), or start()")
            )
        if node not in engine.plan.nodes:
            raise StreamLifecycleError(
                f"{node.operation} has no RDD to be looked at: no output uses it, so no batch "
                "makes one; end it with an output such as pprint() before the first batch"
            )
        return engine.rdds.newest(node, ran_ms)

    def _plan(self, *others: Node) -> tuple[Plan, bool]:
        """The plan that runs, else as far as it is defined; and whether it is durable.

        Streams that no output uses are in a plan that runs only where *others* has none of them.
        """
        engine = self._engine
        if engine is not None and all(node in engine.plan.nodes for node in others):
            return engine.plan, engine.checkpoint is not None
        draft = self._graph.draft(0, *others)
        if self._checkpoint_directory is not None or self._sc._jsc is None:
            return draft, self._checkpoint_directory is not None
        # Spark's own directory alone is for the state that needs one.
        has_state = bool(draft.checkpointed() or draft.in_state_store())
        return draft, has_state and self._sc.getCheckpointDir() is not None

    def _shown(self, *others: Node) -> StreamStatus:
        """How the streams do, with the graph also where they do not run."""
        plan, is_durable = self._plan(*others)
        return replace(self.status(), graph=graph_nodes(plan, is_durable=is_durable))

    def _picture(self, node: Node) -> str:
        """A picture of one stream: what it is made of, and its state where it has one."""
        plan, is_durable = self._plan(node)
        nodes = graph_nodes(plan, is_durable=is_durable)
        number = node_numbers(plan)[node]
        uid = nodes[number].uid
        state = next((state for state in self.status().states if state.uid == uid), None)
        return stream_html(nodes, number, state)

    def _problem(self) -> str | None:
        """Say why the streams cannot run as they are defined; None where nothing is known."""
        if self._life.state is not StreamingContextState.INITIALIZED:
            return None
        if self._sc._jsc is None:
            return "the SparkContext has been stopped"
        base = self._checkpoint_directory or self._sc.getCheckpointDir()
        try:
            self._graph.freeze(0, has_checkpoint_directory=base is not None)
        except InvalidStreamError as error:
            return str(error)
        return None

    @classmethod
    def _recovered(cls: type[Self], directory: str, found: RecoveredStream) -> Self:
        """Make the context of an earlier run again."""
        make: Callable[..., Self] = cls
        with spark_for(found.description) as spark:
            seconds = found.description["batch_ms"] / 1000
            ssc = make(spark, seconds, settings=found.payload.settings)
            ssc._graph = found.graph(spark, ssc)
            ssc._recovered_stream = found
            return _with_directory(ssc, directory)

    def _check_graph(self) -> Callable[[], Engine]:
        """Refuse streams that cannot run, and return what opens them; nothing is touched before."""
        config = EngineConfig(
            self._sc,
            self._clock,
            self._settings,
            self._checkpoint_directory,
            self._life.report,
            self._tell,
            self,
            self._given_settings,
            self._recovered_stream,
            classes_of_program(self._graph, allowed=self._allowed_classes, depth=2),
            self._monitor.restarts,
        )
        checked = check_graph(self._graph, config)

        def open_engine() -> Engine:
            run_id = str(uuid4())
            self._monitor.opening(checked.stream_id, run_id)
            application().begun(self._monitor)
            page.show(self._sc, self._settings)  # before a restart, which may take long
            engine = checked.open()
            self._recovered_stream = None  # with all that was read of it
            self._monitor.opened(_opened(engine, run_id))
            return engine

        return open_engine

    def _tell(self, event: Event) -> None:
        self._monitor.tell(event)
        self._bus.post(event)


class JavaCalls:
    """Stands where ``pyspark.streaming`` keeps the JavaStreamingContext, which is not public there.

    It has the calls that begin, end and watch a context, with the arguments and units of Java.
    Others fail with a word on where to look: streams are made in Python here, so there is no stream
    of the JVM to be had.

    Args:
        context: the context that calls are passed on to.

    Semantics: Spark's JavaStreamingContext (4.3), as Spark's own Python suites use it.
    """

    def __init__(self, context: StreamingContext) -> None:
        self._context = context

    def start(self) -> None:
        """Start the streams."""
        self._context.start()

    def stop(self, stopSparkContext: bool = True, stopGracefully: bool = False) -> None:
        """Stop the streams, and the SparkContext unless asked not to."""
        self._context.stop(stopSparkContext, stopGracefully)

    def close(self) -> None:
        """Stop the streams and the SparkContext."""
        self._context.stop()

    def awaitTermination(self) -> None:
        """Wait until the streams are stopped."""
        self._context.awaitTermination()

    def awaitTerminationOrTimeout(self, timeout: int) -> bool:
        """Wait at most *timeout* milliseconds, and say whether the streams are stopped."""
        return self._context.awaitTerminationOrTimeout(timeout / 1000)

    def getState(self) -> Any:
        """Return where the context is in its life."""
        return self._context.getState()

    def sparkContext(self) -> Any:
        """Return the JavaSparkContext."""
        return self._context.sparkContext._jsc

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"_jssc has no {name!r}: no streaming class of the JVM is used here; call what the "
            "StreamingContext itself has"
        )


def _opened(engine: Engine, run_id: str) -> Opened:
    nodes = graph_nodes(engine.plan, is_durable=engine.checkpoint is not None)
    snapshots = [engine.plan.nodes[node].uid for node in engine.plan.checkpointed()]
    return Opened(
        engine.stream_id,
        run_id,
        nodes,
        engine.checkpoint,
        snapshots,
        engine.rate_limits,
        state_access(engine),
        engine.rdds.states.local_directory if engine.plan.in_state_store() else None,
    )


def _require_fit(report: RestoreReport, found: RecoveredStream) -> None:
    """Refuse what a report refuses, and log the rest of it.

    Raises:
        RestartError: the earlier run does not fit.
    """
    if report.refusals:
        raise RestartError(
            f"{found.files.url} cannot be restored into these streams, and nothing was touched:"
            + "".join(f"\n- {refusal}" for refusal in report.refusals)
        )
    logger.info("%s", report)
    for note in report.notes:
        logger.warning("%s", note)


def _with_directory(ssc: Self, directory: str) -> Self:
    if ssc._checkpoint_directory != directory:
        ssc.checkpoint(directory)
    return ssc


def _set_up(setup: Callable[[], Self]) -> Self:
    ssc = setup()
    if not isinstance(ssc, StreamingContext):
        raise InvalidStreamError(
            "setupFunc must return the StreamingContext that it sets up, but "
            f"{describe(setup)} returned {type(ssc).__name__}; end it with: return ssc"
        )
    return ssc


def _require_count(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise InvalidStreamError(
        f"maxFilesPerBatch must be a whole number of files, at least 1, or None, got {value!r}"
    )


def _require_age_ms(seconds: object) -> int | None:
    if seconds is None:
        return None
    if seconds == math.inf:
        return UNLIMITED_MS
    return require_duration_ms(seconds, "maxFileAge")
