"""StreamingContext, the entry point of a streaming program."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
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
from dstreams.common.settings import COUNT, UNLIMITED_MS, Settings
from dstreams.dstream.block_dstream import BlockDStream, derived_blocks
from dstreams.dstream.dstream import DStream
from dstreams.engine.engine import Engine
from dstreams.engine.inspection import explanation, graph_nodes, node_numbers, state_access
from dstreams.engine.lifecycle import StreamingContextState, StreamRunner
from dstreams.engine.recovery.adoption import adopt as take_over_spark
from dstreams.engine.recovery.compatibility import RestoreReport, require_fit
from dstreams.engine.recovery.recover import (
    Program,
    RecoveredStream,
    recover,
    spark_for,
    spark_of_setup,
)
from dstreams.engine.replay import Replay, open_replay, taken, taking
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
from dstreams.monitoring.display import format_duration
from dstreams.monitoring.events import BatchInfo, BatchInfos, Event
from dstreams.monitoring.listener_bus import ListenerBus, load_listener
from dstreams.monitoring.monitor import Monitor, RunInfo
from dstreams.monitoring.progress import RecentProgress, StreamingProgress, stream_progress
from dstreams.monitoring.registry import registry
from dstreams.monitoring.state_queries import LiveState
from dstreams.monitoring.status import StreamStatus
from dstreams.sources.file_formats import FixedRecords, FormatName, ReadFiles, file_format
from dstreams.sources.file_stream import FileSource
from dstreams.sources.queue import QueueSource
from dstreams.sources.rate import RateSource
from dstreams.sources.receiver import Receiver
from dstreams.sources.receiver_source import ReceiverSource
from dstreams.sources.socket import SocketReceiver, SocketTextSource
from dstreams.sources.source import Source
from dstreams.spark.jvm import set_checkpoint_directory
from dstreams.spark.spark_context import require_running, require_spark, warn_if_untuned
from dstreams.spark.worker_python import use_driver_python
from dstreams.state.state_classes import AllowedClasses, Upgrade, classes_of_program

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamingContext"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Self = TypeVar("Self", bound="StreamingContext")


class StreamingContext:
    """Entry point of a streaming program: defines streams and runs them in batches::

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
        batchDuration: interval between batches in seconds; may be fractional.
        clock: the driver's clock; use a :class:`dstreams.testing.ManualClock` to drive the
            stream by hand. None: the system clock.
        settings: settings that replace those of the SparkConf.

    Raises:
        InvalidStreamError: if *sparkContext* is not a SparkContext or *batchDuration* is not a
            positive duration.
        EnvironmentNotReadyError: if Spark is too old or *sparkContext* has been stopped.

    Semantics: pyspark.streaming.StreamingContext (4.3).
    """

    _dstreams_driver_only: ClassVar[bool] = True
    _adopts: ClassVar[str | None] = None
    """The checkpoint of Spark that contexts of this process take over; of ``dstreams run``."""
    _adopts_states: ClassVar[Mapping[str, str] | None] = None
    """The same for *states* of :meth:`restore`."""

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
            registry().changed,
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
            f"<{name} {state}, a batch every {format_duration(self._graph.batch_ms)}, "
            f"inputs: {inputs}, outputs: {outputs}>"
        )

    def _repr_html_(self) -> str:
        from dstreams.monitoring.notebook import status_html  # noqa: PLC0415 - only in notebooks

        is_live = self._life.state is StreamingContextState.ACTIVE
        page_url = registry().dashboard_url if is_live else None
        return status_html(self._shown(), self._problem(), page_url)

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
        """Recreate the context saved in *checkpointPath*, or create a new one.

        The streams of the earlier run are recreated with the functions they had; *setupFunc* is
        not called and new code has no effect (use :meth:`restore` for that). After ``start()`` they
        resume where that run ended: outputs of committed batches do not run again, unfinished
        batches run again with the same input, and then the batches that were missed. If there is
        no active SparkContext, one is created with the settings of the earlier run and the master
        and addresses of this process.

        Args:
            checkpointPath: path or URL of the checkpoint directory.
            setupFunc: ``f() -> StreamingContext``; defines the streams without starting them.
                Called only if the directory holds no checkpoint; the context then uses it.
            createOnError: start from scratch, with a warning, if the checkpoint cannot be used.

        Raises:
            InvalidStreamError: if the directory cannot be used, or *setupFunc* does not return a
                StreamingContext.
            RestartError: if the checkpoint cannot be resumed: it is damaged, writable by other
                users, an input cannot be read again, or the code it refers to is missing.
        """
        require_arity(setupFunc, (0,), "getOrCreate", "f() -> StreamingContext")
        if taken() is not None:
            return _set_up(setupFunc)
        try:
            found = recover(checkpointPath, adopts=cls._adopts is not None)
            if found is not None:
                return cls._recovered(checkpointPath, found)
        except RestartError as error:
            if not createOnError:
                raise
            logger.warning(
                "starting from scratch; the existing checkpoint is left in place: %s", error
            )
        if cls._adopts is not None:
            return cls.restore(checkpointPath, setupFunc)
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
        adopt: str | None = None,
        states: Mapping[str, str] | None = None,
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
        adopt: str | None = None,
        states: Mapping[str, str] | None = None,
    ) -> RestoreReport: ...

    @classmethod
    def restore(
        cls: type[Self],
        checkpointPath: str,
        setupFunc: Callable[[], Self],
        *,
        dryRun: bool = False,
        allowRemoved: Iterable[str] = (),
        adopt: str | None = None,
        states: Mapping[str, str] | None = None,
    ) -> Self | RestoreReport:
        """Create the context with *setupFunc* and give it the state of an earlier run.

        Use this after a code change: functions may differ, stateful operators and inputs may be
        added, and the number of partitions of a state may change. State and progress are matched
        to operators by uid: the one given by ``uid=``, or one derived from the operator's position
        among those of its kind. If the directory holds no checkpoint, the streams start from
        scratch.

        After a graceful stop the new code gets the state exactly as the old code left it. After any
        other end the state comes from its newest snapshot (one per checkpoint interval; stored
        state has one per batch), and the new functions recompute the batches since then, although
        the outputs of those batches ran with the old functions. To avoid the mix, stop gracefully
        before an upgrade. Other changes, such as a parameter of an input, are logged as warnings.

        Args:
            checkpointPath: path or URL of the checkpoint directory.
            setupFunc: ``f() -> StreamingContext``; defines the streams without starting them.
            dryRun: only report what would happen and what prevents it, and write nothing.
                Everything that *setupFunc* creates is stopped again; an existing SparkContext is
                left running.
            allowRemoved: uids of operators and inputs whose state or progress may be discarded.
            adopt: path or URL of a checkpoint of ``pyspark.streaming`` in another directory. If
                *checkpointPath* holds no checkpoint, one is written there with the state and the
                progress of Spark's, which stays as it is. Stop Spark first. The state is unpickled,
                which runs code: only this user may be able to write to the directory.
            states: for a checkpoint of Spark whose graph is lost: by uid of an
                ``updateStateByKey``, the directory ``UUID/rdd-NUMBER`` in *adopt* with its state,
                as ``dstreams adopt --list`` shows it. The graph is not read then, so inputs begin
                with what is new to them.

        Returns:
            The context, ready to start; with *dryRun*, a printable report.

        Raises:
            InvalidStreamError: as in :meth:`getOrCreate`, or if the streams cannot run.
            RestartError: if the checkpoint is damaged or does not match the streams. The error
                lists every mismatch; nothing was changed, and a SparkContext that *setupFunc*
                created is stopped.
            EnvironmentNotReadyError: if *adopt* needs a package that is not installed.
        """
        require_arity(setupFunc, (0,), "restore", "f() -> StreamingContext")
        if taken() is not None and not dryRun:
            return _set_up(setupFunc)
        adopt, states = adopt or cls._adopts, states or cls._adopts_states
        if states and adopt is None:
            raise InvalidStreamError("states of restore are in a checkpoint of Spark; give adopt")
        found = recover(checkpointPath, adopts=adopt is not None, creates=not dryRun)
        with spark_of_setup(is_kept=not dryRun):
            with taking(_not_in_setup) if dryRun else nullcontext():
                ssc = _set_up(setupFunc)
            report = RestoreReport(None)
            if found is None and adopt is not None:
                directory, now_ms = None if dryRun else checkpointPath, ssc._clock.now_ms()
                removed = tuple(allowRemoved)
                report = take_over_spark(adopt, directory, ssc._program, now_ms, removed, states)
                found = None if dryRun else recover(checkpointPath)
            if found is not None:
                classes = None  # a start checks them
                if dryRun:
                    classes = classes_of_program(ssc._graph, allowed=ssc._allowed_classes)
                report, found = found.compare(ssc._graph, ssc._sc, tuple(allowRemoved), classes)
                if not dryRun:
                    require_fit(report, found.files.url)
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
        """Return the active context, or the result of :meth:`getOrCreate`.

        Args:
            checkpointPath: path or URL of the checkpoint directory. None: always call
                *setupFunc*, which sets a directory if it needs one.
            setupFunc: ``f() -> StreamingContext``; defines the streams without starting them.

        Raises:
            The errors of :meth:`getOrCreate`.
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
        """Start the streams and return immediately.

        Raises:
            InvalidStreamError: if there is no output, or a stream cannot run as defined. The
                context is unchanged: define what is missing and start again.
            EnvironmentNotReadyError: if the Python workers lack something dstreams needs.
            StreamLifecycleError: if the context was stopped, or another one is active.
        """
        if (take := taken()) is not None:
            take(self)
        elif self._life.start(self._clock) and self._checkpoint_directory is not None:
            warn_of_refusals(self._graph)

    def step(self, n: int = 1) -> BatchInfos:
        """Run the next *n* batches on the calling thread without waiting for their batch times.

        For notebooks, tests and drills, on a context that was not started; the first step freezes
        the graph. Batch times are consecutive multiples of the batch duration. Listeners have
        received all events of a batch before the next one runs, and before this method returns.

        Args:
            n: number of batches.

        Returns:
            One :class:`dstreams.BatchInfo` per batch, in order; the list displays as a table. It
            ends early if a listener or an output stops the context.

        Raises:
            BatchFailedError: if a batch fails; ``batch_infos`` has the batches of this call. With
                ``spark.dstreams.onFailure=continue`` the batch is committed without the failed
                outputs, and another step runs the next batch. With ``stop`` the batch is not
                committed and the context is stopped; a restart from the checkpoint directory runs
                the whole batch again.
            DurabilityError: if state cannot be made durable; the context is stopped.
            KeyboardInterrupt: on Ctrl-C. The job is cancelled, the batch has the outcome
                ``cancelled`` and is not committed; another step runs the next batch.
            InvalidStreamError: if, on the first step, there is no output or a stream cannot run as
                defined. Nothing has started and the context is unchanged, so more can be defined.
                An output whose function is refused stays defined: change what the function uses,
                or create a new context.
            EnvironmentNotReadyError: as in :meth:`start`; the context is unchanged.
            StreamLifecycleError: if the context was started or stopped, another context is active,
                or another step is running.
            Exception: any error that prevents opening a source or taking over the checkpoint
                directory; the context is stopped.
        """
        COUNT.require(n, "n of step")
        if (take := taken()) is not None:
            take(self)
            return BatchInfos([])
        return BatchInfos(self._life.step(n, self._clock))

    def awaitTermination(self, timeout: float | None = None) -> None:
        """Wait until the streams are stopped.

        Args:
            timeout: maximum wait in seconds. None: no limit.

        Raises:
            BatchFailedError: if a batch failed, now or earlier; the first one if several did.
            IncompleteStopError: if a graceful stop skipped batches or received records.
        """
        self._life.wait(timeout)

    def awaitTerminationOrTimeout(self, timeout: float | None = None) -> bool:
        """Wait as in :meth:`awaitTermination`. Return whether the streams are stopped."""
        return self._life.wait(timeout)

    def stop(self, stopSparkContext: bool = True, stopGraceFully: bool = False) -> None:
        """Stop the streams.

        Args:
            stopSparkContext: also stop the SparkContext, even if the streams were already stopped.
            stopGraceFully: first process everything that was received: the running batch, planned
                batches, and records that are not in a batch yet. The running batch is cancelled
                after ``spark.dstreams.stop.batchTimeout`` (one hour), or two seconds after an
                immediate stop is requested in the meantime. False: give the running batch two
                seconds to finish, then cancel it; run no other.

        Unprocessed batches are logged with the number of records per input: how many are lost, and
        how many the next start from the checkpoint directory will process.

        With a checkpoint directory, a final snapshot of the state is written within ten seconds:
        after a graceful stop, so that the next start finds it ready, and after any stop if the
        inputs of the state cannot be read again, as with sockets.

        Called inside a batch or by a listener, this returns immediately and the context stops after
        the running batch. Otherwise listeners have received all events when it returns; a listener
        that needs more than five seconds is abandoned with a warning.

        Stopping a context that is stepped by hand runs no further batch.

        Raises:
            IncompleteStopError: if a graceful stop skipped batches or received records; the
                context, and the SparkContext if requested, are stopped anyway. If stop was called
                inside a batch, by a listener or by a signal, :meth:`awaitTermination` raises it.

        Semantics: pyspark.streaming.StreamingContext.stop (4.3), which waits as long.
        """
        self._life.failure.seen()
        self._life.stop(stopSparkContext, stopGraceFully)

    def getState(self) -> StreamingContextState:
        """Return the lifecycle state of the context."""
        if self._life.state is StreamingContextState.STOPPED:
            self._life.failure.seen()
        return self._life.state

    def status(self) -> StreamStatus:
        """Return the status of the streams: batches, delays, state, checkpoint, as plain values.

        Runs no job and waits for no batch. Can be called from any thread, also before the start
        and after the end. See :class:`dstreams.monitoring.status.StreamStatus` for the fields.
        """
        return self._monitor.status()

    def progress(self) -> StreamingProgress | None:
        """Return the progress of the newest batch (see :attr:`recentProgress`), or None."""
        newest = self._monitor.newest()
        return None if newest is None else self._progress_of(newest)

    @property
    def recentProgress(self) -> RecentProgress[StreamingProgress]:
        """Progress of recent batches, newest last, as dicts with the keys of Spark's queries.

        Keeps ``spark.streaming.ui.retainedBatches`` batches. For topics with very many partitions,
        older entries have no offsets (None).

        Semantics: StreamingQuery.recentProgress (Spark 4.3), for batches of streams, including
        failed and empty batches.
        """
        return RecentProgress(map(self._progress_of, self._monitor.recent()))

    def _progress_of(self, batch: BatchInfo) -> StreamingProgress:
        return stream_progress(batch, self._monitor.id, self._monitor.run_id, self._monitor.name)

    def state(self, uid: str | None = None) -> LiveState:
        """Return the state of an operator, for look-ups while the streams run.

        ::

            ssc.state("counts").get("alice")

        Args:
            uid: the operator, as in its ``uid=``; None if only one has state.

        Raises:
            InvalidStreamError: no operator has this uid; the error lists the uids.
            StreamLifecycleError: the streams do not run; :class:`dstreams.CheckpointState`
                reads the checkpoint.
        """
        states = self._monitor.states
        if states is None:
            raise StreamLifecycleError(
                "there is no state to look up: the streams do not run, or none of them has state; "
                "dstreams.CheckpointState(directory) reads the state of a checkpoint"
            )
        return states.state(uid)

    def at(self, batchTime: int, setupFunc: Callable[[], StreamingContext] | None = None) -> Replay:
        """Open the states after an earlier batch, and the batches since then, in a copy.

        ::

            with ssc.at(1_795_464_900_000) as then:
                then.state("counts").get("alice")
                then.step()                         # the next recorded batch, over the same input

        Only reads the checkpoint directory, whose streams may be running. Outputs are replaced by
        recorders. :func:`dstreams.testing.replay` runs a range of batches.

        Args:
            batchTime: time of a committed batch that the checkpoint keeps, in milliseconds.
            setupFunc: ``f() -> StreamingContext``; defines changed streams to step with. None: the
                streams that are recorded in the checkpoint.

        Raises:
            StreamLifecycleError: there is no checkpoint directory.
            InvalidStreamError: that batch is not kept; the error names the nearest ones.
            RestartError: the checkpoint is damaged, or does not match the streams.
            SourceError: input of the batches since then is not available any more.
        """
        if self._checkpoint_directory is None:
            raise StreamLifecycleError("at() needs the checkpoint directory; call ssc.checkpoint()")
        return self._replay(self._checkpoint_directory, setupFunc, after_ms=batchTime)

    def explain(self) -> None:
        """Print the graph, its durable parts, and the delivery guarantee of each output.

        Runs nothing and can be called at any time, even before everything is defined.

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
          at most once: without a checkpoint directory no batch runs twice, and a batch that is
          running when the driver ends is lost
        """
        plan, is_durable = self._plan()
        print(explanation(plan, is_durable, self._problem(), self._settings))  # noqa: T201

    @property
    def uiWebUrl(self) -> str | None:
        """Address of the live page of this process, without a token, or None.

        The page is served from the first start or step of a stream or query with
        ``spark.dstreams.ui.enabled`` until the process ends. Semantics: SparkContext.uiWebUrl.
        """
        return registry().dashboard_url

    def remember(self, duration: float) -> None:
        """Keep the RDDs of output streams for at least *duration* seconds, for queries and slices.

        Raises:
            InvalidStreamError: if *duration* is not a positive duration.
            StreamLifecycleError: if it was already set, or the context has started.
        """
        self._require_initialized("the remember duration cannot be set")
        if self._graph.remember_ms is not None:
            raise StreamLifecycleError(
                f"the remember duration is already set, as {self._graph.remember_ms} ms"
            )
        self._graph.remember_ms = require_duration_ms(duration, "duration")

    def checkpoint(self, directory: str) -> None:
        """Set the directory for durable state; every stateful stream needs one.

        Args:
            directory: path or URL that the driver and all executors can reach, on a file system
                that can create a file only if it is absent.

        Raises:
            InvalidStreamError: if *directory* is not a path or URL, or is not writable.
            StreamLifecycleError: if the context has started.
        """
        self._require_initialized("the checkpoint directory cannot be set")
        if not isinstance(directory, str) or not directory:
            raise InvalidStreamError(f"directory must be a path or URL, got {directory!r}")
        if taken() is not None:
            self._checkpoint_directory = directory
            return
        try:
            files = open_files(directory)
            # Spark would look for a path without a scheme on Hadoop's default file system.
            is_local = files.url.startswith("file:")
            set_checkpoint_directory(self._sc, files.url if is_local else directory)
        except Exception as error:
            raise InvalidStreamError(
                f"the checkpoint directory {without_secrets(directory)!r} cannot be used: {error}"
            ) from error
        self._checkpoint_directory = directory

    def stateClasses(self, *classes: type, upgrade: Upgrade | None = None) -> None:
        """Allow additional data classes in stored state.

        Dataclasses, attrs classes, named tuples and enums are stored field by field. They are
        allowed automatically if a function of the stream, its module, or a module that it imports
        refers to them. Register all others here.

        Args:
            classes: the classes.
            upgrade: ``f(name, fields) -> value``, called for a stored instance whose class no
                longer exists or has lost or renamed a field. *name* is the module and name of the
                class, *fields* its stored fields. Returns the replacement. A class method
                ``migrate(old)`` of the class comes first. None: refuse such an instance; if it is
                a whole state, at the start.

        Raises:
            InvalidStreamError: if one of them is not a data class.
            StreamLifecycleError: if the context has started.
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
        """Create a stream of UTF-8 text lines from a TCP server.

        The driver connects, and reconnects when the connection ends.

        Args:
            hostname: host to connect to.
            port: port to connect to.
            storageLevel: accepted for compatibility; lines wait in the driver until their batch.
            uid: name under which its progress is stored, so that a changed program finds it
                (:meth:`StreamingContext.restore`). None: derived from its position.

        Raises:
            InvalidStreamError: if *hostname* and *port* are not a valid address.
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
        """Create a stream of the records that *converter* decodes from a TCP server.

        The driver connects, and reconnects when the connection ends or *converter* fails.

        Args:
            hostname: host to connect to.
            port: port to connect to.
            converter: ``f(binary file) -> iterable of records``; the file ends with the
                connection. Called once per connection, on a thread of the driver. It decides the
                maximum length of a record and how to treat undecodable bytes.
            storageLevel: accepted for compatibility; records wait in the driver until their batch.
            uid: as in :meth:`socketTextStream`.

        Raises:
            InvalidStreamError: if *hostname* and *port* are not a valid address, or *converter* is
                not a function of one argument.
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

        Move complete files there from elsewhere on the same file system. Names that begin with
        ``.`` or ``_``, or end in ``._COPYING_`` or ``.tmp``, are ignored.

        Args:
            directory: path, URL, or Hadoop glob pattern for several directories.
            uid: as in :meth:`socketTextStream`.
        """
        source = FileSource(directory, "textFileStream", new_since_ms=self._clock.now_ms())
        return self._input(source, "textFileStream", uid)

    def binaryRecordsStream(
        self, directory: str, recordLength: int, *, uid: str | None = None
    ) -> DStream[bytes]:
        """Create a stream of the fixed-length records of binary files that appear in *directory*.

        A file whose size is not a multiple of *recordLength* fails its batch and is then skipped;
        the next batch reads the other files.

        Args:
            directory: as in :meth:`textFileStream`.
            recordLength: length of a record in bytes.
            uid: as in :meth:`socketTextStream`.

        Raises:
            InvalidStreamError: if *recordLength* is not a positive integer.
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
        """Create a stream of the contents of files that appear in *directory*.

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
            filter: ``f(path) -> bool``, called on the driver once per file that is not ignored
                anyway. None: accept all.
            newFilesOnly: skip files that existed when the stream was defined.
            read: ``textFile`` for lines, ``wholeTextFiles`` or ``binaryFiles`` for pairs (path,
                content), or ``f(spark, paths) -> RDD``, called on the driver for each batch that
                has files. Paths are passed as they are: glob characters and commas are not escaped.
            maxFilesPerBatch: maximum files per batch, oldest first; the rest follow in later
                batches. None: no limit.
            maxFileAge: maximum age in seconds of a file's modification time when the file appears;
                ``math.inf`` for no limit. None: ``spark.dstreams.fileStream.maxFileAge``, by
                default the remember window, as in Spark: a file moved in with an older modification
                time is not new.
            uid: as in :meth:`socketTextStream`.

        Raises:
            InvalidStreamError: if a function does not accept these arguments, *read* is unknown,
                or a limit is not positive.

        State: the driver remembers the files in the directory.
        Semantics: org.apache.spark.streaming.StreamingContext.fileStream (4.3), with *read*
            instead of a Hadoop InputFormat.
        """
        if maxFilesPerBatch is not None:
            COUNT.require(maxFilesPerBatch, "maxFilesPerBatch of fileStream")
        source = FileSource(
            directory,
            "fileStream",
            file_format(read, "fileStream"),
            filter,
            self._clock.now_ms() if newFilesOnly else None,
            maxFilesPerBatch,
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

        The queue and its items are copied; later changes to them have no effect.

        Args:
            rdds: RDDs or collections of records; None is a batch without an RDD.
            oneAtATime: consume one item per batch; False: all of them.
            default: RDD or records for batches after the queue is empty. None: an empty RDD.
            replayable: store the records in the checkpoint, so that a restart resumes with them.
                Otherwise a checkpoint of this stream cannot be resumed, as in Spark.
            uid: as in :meth:`socketTextStream`.

        Raises:
            InvalidStreamError: if an item is neither an RDD nor a collection, or a *replayable*
                queue contains an RDD.
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
        """Create a stream of numbered rows at a steady rate, for experiments and measurements.

        Rows are ``(timestamp, value)``: values count from 0 at the start of the stream; timestamps
        are naive datetimes in the driver's time zone, spread evenly over the batch. A replayed
        batch has the same rows. ``spark.streaming.receiver.maxRate`` and backpressure drop the last
        rows of a batch that exceeds the limit.

        Args:
            rowsPerSecond: rows per second, at least 1.
            rampUpTime: seconds over which the rate grows linearly from 0 to *rowsPerSecond*.
            numPartitions: partitions of each batch's RDD. None: one for small batches, up to
                ``defaultParallelism`` for large ones.
            uid: as in :meth:`socketTextStream`.

        Raises:
            InvalidStreamError: if a parameter is out of range.

        Semantics: the rate source of Structured Streaming; not part of pyspark.streaming.
        """
        ramp_up_ms = require_duration_ms(rampUpTime, "rampUpTime") if rampUpTime != 0 else 0
        source = RateSource(rowsPerSecond, ramp_up_ms, numPartitions)
        return self._input(source, "rateStream", uid)

    def receiverStream(self, receiver: Receiver, *, uid: str | None = None) -> DStream[Any]:
        """Create a stream of the records that *receiver* stores.

        The receiver runs in threads of the driver and occupies no core of Spark.

        Stored records wait in blocks for their batch. When the blocks reach
        ``spark.dstreams.receiver.maxBufferBytes``, the receiver is blocked. With
        ``spark.streaming.receiver.writeAheadLog.enable`` and a checkpoint directory, blocks are
        first written there.

        Args:
            receiver: a :class:`dstreams.Receiver`; each stream needs its own.
            uid: as in :meth:`socketTextStream`.

        Raises:
            InvalidStreamError: if *receiver* is not a Receiver, or already belongs to a stream. At
                start: if there is a checkpoint directory and it cannot be pickled.
        """
        if not isinstance(receiver, Receiver):
            raise InvalidStreamError(
                "receiverStream needs an instance of dstreams.Receiver, got "
                f"{type(receiver).__name__}"
            )
        for stream in self._graph.inputs:
            if isinstance(stream.source, ReceiverSource) and stream.source.receiver is receiver:
                raise InvalidStreamError(
                    f"this {type(receiver).__name__} already is the receiver of "
                    f"{stream.operation}; create one for each stream"
                )
        name = f"receiverStream({type(receiver).__name__})"
        return self._receive(receiver, name, "receiverStream", uid)

    def transform(
        self,
        dstreams: Sequence[DStream[Any]],
        transformFunc: Callable[..., RDD[T] | None],
    ) -> DStream[T]:
        """Create a stream from a function of the RDDs of several streams.

        Args:
            dstreams: streams of one slide duration.
            transformFunc: ``f(list of RDDs) -> RDD``, called on the driver for each batch.

        Raises:
            InvalidStreamError: if *dstreams* is empty, contexts or slides differ, or the function
                does not take one argument.
        """
        if not dstreams:
            raise InvalidStreamError("transform needs at least one DStream, got none")
        shape = "f(list of RDDs) -> RDD"
        require_arity(transformFunc, (1,), "transform", shape)
        operation = f"transform at {call_site()}"
        return self._combine(dstreams, lambda _, rdds: transformFunc(list(rdds)), operation)

    def union(self, *dstreams: DStream[T]) -> DStream[T]:
        """Create the union of streams with the same slide duration.

        Raises:
            InvalidStreamError: if no stream is given, or contexts or slides differ.
        """
        if not dstreams:
            raise InvalidStreamError("union needs at least one DStream, got none")
        if len(dstreams) == 1:
            return dstreams[0]
        operation = f"union at {call_site()}"
        return self._combine(dstreams, lambda _, rdds: self._sc.union(list(rdds)), operation)

    def addStreamingListener(self, streamingListener: object) -> None:
        """Send all future events to *streamingListener*.

        Args:
            streamingListener: a :class:`dstreams.StreamingListener`, or any object with some of its
                methods.

        Raises:
            InvalidStreamError: if it has none of these methods, or is a class.
        """
        self._bus.add(streamingListener)

    def removeStreamingListener(self, streamingListener: object) -> None:
        """Stop sending events to *streamingListener*; has no effect if it was not added.

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
        return derived_blocks(stream, operation, make, schema)

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
        """Return the RDDs of *node* from *begin_ms* to *end_ms*, both inclusive."""
        if self._engine is None or node not in self._engine.plan.nodes:
            raise StreamLifecycleError(
                f"{node.operation} has not been initialized: slice() needs a context that runs "
                "and a stream that an output uses"
            )
        slide, zero = node.slide_ms, self._engine.plan.zero_ms
        begin, end = (time_ms - (time_ms - zero) % slide for time_ms in (begin_ms, end_ms))
        if (begin, end) != (begin_ms, end_ms):
            logger.warning(
                "slice of %s: rounded down to the batch times %s and %s",
                node.operation,
                batch_datetime(begin),
                batch_datetime(end),
            )
        return self._engine.rdds.between(node, begin - slide, end)

    def _newest(self, node: Node) -> tuple[int, RDD[Any]] | None:
        """Return the batch time and RDD of the newest batch of *node*."""
        engine = self._engine
        ran_ms = 0 if engine is None else engine.runner.ran_ms
        if engine is None or not ran_ms:
            has_ended = self._life.state is StreamingContextState.STOPPED
            why = "the context has stopped" if has_ended else "no batch has run yet"
            raise StreamLifecycleError(
                f"{node.operation} has no RDD yet: {why}; "
                + ("create a new one" if has_ended else "run one with step(), or start()")
            )
        if node not in engine.plan.nodes:
            raise StreamLifecycleError(
                f"{node.operation} has no RDD: no output uses it, so no batch computes it; add an "
                "output such as pprint() before the first batch"
            )
        return engine.rdds.newest(node, ran_ms)

    def _plan(self, *others: Node) -> tuple[Plan, bool]:
        """Return the running plan, or a draft that includes *others*, and whether it is durable."""
        engine = self._engine
        if engine is not None and all(node in engine.plan.nodes for node in others):
            return engine.plan, engine.checkpoint is not None
        draft = self._graph.draft(0, *others)
        if self._checkpoint_directory is not None or self._sc._jsc is None:
            return draft, self._checkpoint_directory is not None
        # Spark's own directory is used only for state that needs one.
        has_state = bool(draft.checkpointed() or draft.in_state_store())
        return draft, has_state and self._sc.getCheckpointDir() is not None

    def _shown(self, *others: Node) -> StreamStatus:
        """Return the status with the graph, even if the streams are not running."""
        plan, is_durable = self._plan(*others)
        return replace(self.status(), graph=graph_nodes(plan, is_durable=is_durable))

    def _picture(self, node: Node) -> str:
        """Render one stream: its graph, and its state if it has one."""
        from dstreams.monitoring.notebook import stream_html  # noqa: PLC0415 - only in notebooks

        plan, is_durable = self._plan(node)
        nodes = graph_nodes(plan, is_durable=is_durable)
        number = node_numbers(plan)[node]
        uid = nodes[number].uid
        state = next((state for state in self.status().states if state.uid == uid), None)
        return stream_html(nodes, number, state)

    def _problem(self) -> str | None:
        """Return why the streams cannot run as defined, or None."""
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

    @property
    def _program(self) -> Program:
        classes = classes_of_program(self._graph, allowed=self._allowed_classes)
        return Program(self._graph, self._sc, self._settings, self, classes, self._given_settings)

    @classmethod
    def _replay(
        cls,
        checkpoint: str,
        setup: Callable[[], StreamingContext] | None = None,
        **options: Any,
    ) -> Replay:
        """Open a replay with the streams of *setup*, or with those of the checkpoint if None.

        *options* are those of :func:`dstreams.engine.replay.open_replay`.
        """
        if setup is not None:
            require_arity(setup, (0,), "replay", "f() -> StreamingContext")

        def recorded(found: RecoveredStream) -> Program:
            with taking(_not_in_setup):
                return cls._recorded(found)._program

        if setup is None:
            return open_replay(checkpoint, recorded, **options)
        other = setup

        def define(_: RecoveredStream) -> Program:
            with taking(_not_in_setup):
                return _set_up(other)._program

        return open_replay(checkpoint, define, recorded, **options)

    @classmethod
    def _recorded(cls: type[Self], found: RecoveredStream) -> Self:
        """Return a context with the recorded streams."""
        make: Callable[..., Self] = cls
        with spark_for(found.description) as spark:
            seconds = found.description["batch_ms"] / 1000
            ssc = make(spark, seconds, settings=found.payload.settings)
            ssc._graph = found.graph(spark, ssc)
            return ssc

    @classmethod
    def _recovered(cls: type[Self], directory: str, found: RecoveredStream) -> Self:
        """Recreate the context of an earlier run."""
        with spark_for(found.description):
            ssc = cls._recorded(found)
            ssc._recovered_stream = found
            return _with_directory(ssc, directory)

    def _check_graph(self) -> Callable[[], Engine]:
        """Check the graph and return a function that opens the engine."""
        if self._adopts is not None and self._recovered_stream is None:
            raise InvalidStreamError(
                f"--adopt {without_secrets(self._adopts)}: this program begins from scratch; "
                "create the context with StreamingContext.getOrCreate or restore, and a directory "
                "of its own"
            )
        config = EngineConfig(
            self._sc,
            self._clock,
            self._settings,
            self._checkpoint_directory,
            self._life.report,
            self._notify,
            self,
            self._given_settings,
            self._recovered_stream,
            classes_of_program(self._graph, allowed=self._allowed_classes, depth=2),
            self._monitor.set_restart_progress,
        )
        checked = check_graph(self._graph, config)

        def open_engine() -> Engine:
            run_id = str(uuid4())
            self._monitor.starting(checked.stream_id, run_id)
            registry().add(self._monitor)
            registry().show_dashboard(self._sc, self._settings)  # before a restart: it may be long
            engine = checked.open()
            self._recovered_stream = None  # frees what was read
            self._monitor.started(_opened(engine, run_id))
            return engine

        return open_engine

    def _notify(self, event: Event) -> None:
        self._monitor.record(event)
        self._bus.post(event)


class JavaCalls:
    """Substitute for the private JavaStreamingContext of ``pyspark.streaming``.

    Supports the calls that start, stop and observe a context, with Java's arguments and units. All
    other calls raise AttributeError, because no stream exists in the JVM.

    Args:
        context: the context that receives the calls.

    Semantics: Spark's JavaStreamingContext (4.3), as Spark's own Python suites use it.
    """

    def __init__(self, context: StreamingContext) -> None:
        self.start = context.start
        self.stop = context.stop  # Java passes its arguments by position
        self.close = context.stop
        self.awaitTermination = context.awaitTermination
        self.getState = context.getState
        self.sparkContext = lambda: context.sparkContext._jsc
        self.awaitTerminationOrTimeout = lambda timeout_ms: context.awaitTerminationOrTimeout(
            timeout_ms / 1000
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"_jssc has no {name!r}: dstreams uses no streaming class of the JVM; call a method of "
            "the StreamingContext instead"
        )


def _opened(engine: Engine, run_id: str) -> RunInfo:
    nodes = graph_nodes(engine.plan, is_durable=engine.checkpoint is not None)
    snapshots = [engine.plan.nodes[node].uid for node in engine.plan.checkpointed()]
    return RunInfo(
        engine.stream_id,
        run_id,
        nodes,
        engine.checkpoint,
        snapshots,
        engine.rate_limits,
        state_access(engine),
        engine.rdds.states.local_directory if engine.plan.in_state_store() else None,
    )


def _not_in_setup(_: StreamingContext) -> None:
    raise StreamLifecycleError(
        "the setup function of a replay or dry run starts its streams; let it define and return "
        "them only"
    )


def _with_directory(ssc: Self, directory: str) -> Self:
    if ssc._checkpoint_directory != directory:
        ssc.checkpoint(directory)
    return ssc


def _set_up(setup: Callable[[], Self]) -> Self:
    ssc = setup()
    if not isinstance(ssc, StreamingContext):
        raise InvalidStreamError(
            "setupFunc must return its StreamingContext, but "
            f"{describe(setup)} returned {type(ssc).__name__}; end it with: return ssc"
        )
    return ssc


def _require_age_ms(seconds: object) -> int | None:
    if seconds is None:
        return None
    if seconds == math.inf:
        return UNLIMITED_MS
    return require_duration_ms(seconds, "maxFileAge")
