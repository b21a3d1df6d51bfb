"""StreamingContext: where a streaming program begins and ends."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from pyspark import RDD, SparkContext

from checkpoint import open_files, without_secrets
from dstreams.api.dstream import DStream
from dstreams.api.inputs import InputMethods
from dstreams.api.java_calls import JavaCalls
from dstreams.api.life_cycle import LISTENERS_S, LifeCycleMethods, StreamingContextState
from dstreams.api.listeners import ListenerMethods, open_bus
from dstreams.api.map_with_state import MapWithStateDStream
from dstreams.api.restart import RestartMethods
from dstreams.api.stream import Stream
from dstreams.callables import call_site, require_arity
from dstreams.clock import Clock, SystemClock
from dstreams.durations import batch_datetime, require_duration_ms
from dstreams.errors import (
    DurabilityError,
    IncompleteStopError,
    InvalidStreamError,
    StreamLifecycleError,
)
from dstreams.events import BatchInfo, StreamingStarted
from dstreams.graph.node import Node
from dstreams.graph.plan import StreamGraph
from dstreams.graph.transformed import TransformedDStream
from dstreams.rdd.context import require_spark, warn_if_untuned
from dstreams.rdd.jvm import set_checkpoint_directory
from dstreams.rdd.worker_python import use_driver_python
from dstreams.runtime.engine import Engine
from dstreams.runtime.opening import Surroundings, open_engine, warn_of_refusals
from dstreams.runtime.resuming import EarlierRun
from dstreams.runtime.scheduler import Scheduler
from dstreams.runtime.signals import SignalStop
from dstreams.runtime.unseen_failure import UnseenFailure
from dstreams.settings import Settings
from dstreams.state_classes import AllowedClasses, Upgrade, classes_of_program

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StreamingContext(InputMethods, LifeCycleMethods, RestartMethods, ListenerMethods):
    """Defines streams on a SparkContext, and runs them batch by batch.

    >>> ssc = StreamingContext(sc, 1)
    >>> ssc.checkpoint("checkpoints")
    >>> words = ssc.socketTextStream("localhost", 9999).flatMap(str.split)
    >>> counts = words.map(lambda w: (w, 1)).updateStateByKey(lambda vs, s: sum(vs) + (s or 0))
    >>> counts.pprint()
    >>> ssc.start()
    >>> ssc.awaitTermination()

    Args:
        sparkContext: the context that runs the jobs; :func:`dstreams.tuned_context` makes a fast
            one.
        batchDuration: seconds from one batch to the next, also fractions.
        clock: the driver's clock; a :class:`dstreams.testing.ManualClock` drives the stream by
            hand. None: the machine's clock.
        settings: settings to use instead of those that the SparkConf says.

    Raises:
        InvalidStreamError: *sparkContext* is none, or *batchDuration* is no positive duration.
        EnvironmentNotReadyError: Spark is too old.

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
        if batchDuration is None:
            raise InvalidStreamError(
                "batchDuration is missing; give the seconds from one batch to the next"
            )
        self._sc = sparkContext
        self._graph = StreamGraph(require_duration_ms(batchDuration, "batchDuration"))
        self._clock: Clock = SystemClock() if clock is None else clock
        self._given_settings = settings
        self._settings = settings or Settings.from_conf(dict(sparkContext.getConf().getAll()))
        self._checkpoint_directory: str | None = None
        self._state = StreamingContextState.INITIALIZED
        self._started_at: str | None = None
        self._engine: Engine | None = None
        self._scheduler: Scheduler | None = None
        is_graceful = self._settings.stop_gracefully_on_shutdown
        hasten = self._stop_at_once_on_signal if is_graceful else None
        self._signals = SignalStop(self._stop_on_signal, hasten)
        self._failure = UnseenFailure()
        self._ended = threading.Condition()
        self._error: BaseException | None = None
        self._incomplete: IncompleteStopError | None = None
        self._was_awaited = False
        self._stop_spark = False
        self._stepping: threading.Thread | None = None  # noqa: TID251
        self._stop_after_step = False
        self._stop_gracefully = False
        self._earlier: EarlierRun | None = None
        self._allowed_classes = AllowedClasses()
        self._bus = open_bus(self._settings)
        warn_if_untuned(sparkContext)
        use_driver_python(sparkContext)
        if self._settings.checkpoint_directory is not None:
            self.checkpoint(self._settings.checkpoint_directory)

    # Definition ------------------------------------------------------------------------------

    @property
    def sparkContext(self) -> SparkContext:
        """The SparkContext that runs the jobs."""
        return self._sc

    @property
    def _jssc(self) -> JavaCalls:
        return JavaCalls(self)

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
            open_files(directory)
            set_checkpoint_directory(self._sc, directory)
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

    def union(self, *dstreams: DStream[T]) -> DStream[T]:
        """Unite streams of one element type and one slide duration.

        Raises:
            InvalidStreamError: there is none, or contexts or slides differ.
        """
        if not dstreams:
            raise InvalidStreamError("union needs at least one DStream, got none")
        if len(dstreams) == 1:
            return dstreams[0]
        return self._combine(dstreams, lambda _, rdds: self._sc.union(list(rdds)), "union")

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
        return self._combine(dstreams, lambda _, rdds: transformFunc(list(rdds)), "transform")

    # Life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the streams; returns at once.

        Raises:
            InvalidStreamError: there is no output, or a stream cannot run as it is defined. The
                context is stopped then.
            EnvironmentNotReadyError: the Python workers lack what dstreams needs.
            StreamLifecycleError: the context was stopped, or another one is active.
        """
        with LifeCycleMethods._active_lock:
            if self._state is StreamingContextState.ACTIVE:
                if self._scheduler is None:
                    raise StreamLifecycleError(
                        "a context that is stepped by hand cannot be started; step on, or stop it "
                        "and take up its checkpoint with another"
                    )
                logger.warning("StreamingContext has already been started")
                return
            engine = self._activate()
            self._scheduler = Scheduler(
                engine,
                self._sc,
                self._clock,
                self._settings,
                report=self._report,
                failed=self._failure.happened,
                finished=self._finish,
            )
            self._scheduler.start()
        if self._checkpoint_directory is not None:
            warn_of_refusals(self._graph)
        atexit.register(self._stop_at_exit)
        self._signals.install()

    def step(self, n: int = 1) -> list[BatchInfo]:
        """Run the next *n* batches on the calling thread, without waiting for their times.

        For notebooks, tests and drills, on a context that was not started: the first step freezes
        the graph. Batch times are consecutive multiples of the batch duration. Listeners have been
        told of each batch before the next one runs, and before this returns.

        Args:
            n: how many batches.

        Returns:
            What is known of each batch, in order; a batch in which the context was stopped, by a
            listener or an output, is the last.

        Raises:
            BatchFailedError: a batch failed; its ``batch_infos`` tell of the batches of this call.
                With ``spark.dstreams.onFailure=continue`` the batch is committed, without the
                outputs that failed, and a further step runs the batch after it. With ``stop`` the
                batch ends there and is not committed, the context is stopped, and a restart from
                the checkpoint directory runs the batch again, whole.
            DurabilityError: state could not be made durable; the context is stopped.
            InvalidStreamError: as in :meth:`start`.
            StreamLifecycleError: the context was started or stopped, another one is active, or
                another step is running.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidStreamError(f"n must be a positive number of batches, got {n!r}")
        self._begin_steps()
        try:
            return self._run_steps(n)
        finally:
            self._stepping = None

    # Below the surface -----------------------------------------------------------------------

    def _begin_steps(self) -> None:
        """Let this thread step, and no other one meanwhile; a stop is put off until it has."""
        with LifeCycleMethods._active_lock:
            if self._scheduler is not None:
                raise StreamLifecycleError(
                    "a context that was started cannot be stepped by hand; its batches run as time "
                    "passes, or give it a ManualClock"
                )
            if self._stepping is not None:
                raise StreamLifecycleError(
                    f"a step is running in thread {self._stepping.name}, and batches run one after "
                    "another; step again when it has returned"
                )
            if self._engine is None:
                self._activate()
            self._stepping = threading.current_thread()

    def _run_steps(self, n: int) -> list[BatchInfo]:
        infos: list[BatchInfo] = []
        for _ in range(n):
            engine = self._engine
            if engine is None:
                raise StreamLifecycleError("the StreamingContext was stopped while it was stepped")
            result = engine.run_batch(engine.plan_batch())
            self._bus.drain(LISTENERS_S)
            infos.append(result.info)
            if isinstance(result.error, DurabilityError):
                self._finish()
            elif self._stop_after_step or result.ends_stream:
                self._end_steps()
            if result.error is not None:
                result.error.batch_infos = tuple(infos)
                raise result.error
            if self._stop_after_step:
                break
        return infos

    def __reduce__(self) -> Any:
        raise TypeError(
            "a StreamingContext was captured by a function that runs on the workers; use it only "
            "to define the streams, and pass plain values to functions"
        )

    def _require_initialized(self, what: str) -> None:
        if self._state is not StreamingContextState.INITIALIZED:
            when = "started" if self._state is StreamingContextState.ACTIVE else "stopped"
            raise StreamLifecycleError(
                f"{what} after the StreamingContext has been {when}; define everything before "
                "start(), or create a new StreamingContext"
            )

    def _combine(
        self,
        dstreams: Sequence[Stream[Any]],
        func: Callable[[int, tuple[RDD[Any], ...]], RDD[Any] | None],
        name: str,
    ) -> DStream[Any]:
        self._require_initialized("transformations cannot be added")
        operation = f"{name} at {call_site()}"
        for stream in dstreams:
            if not isinstance(stream, DStream):
                raise InvalidStreamError(f"{operation} needs DStreams, got {type(stream).__name__}")
            if stream.context() is not self:
                raise InvalidStreamError(
                    f"{operation} needs streams of one StreamingContext, got streams of two"
                )
        nodes = tuple(stream._node for stream in dstreams)
        return self._stream_of(TransformedDStream(nodes, func, operation))

    def _stream_of(self, node: Node) -> DStream[Any]:
        return DStream(node, self)

    def _stored_stream_of(self, node: Node) -> MapWithStateDStream:
        self._require_initialized("transformations cannot be added")
        return MapWithStateDStream(node, self)

    def _activate(self) -> Engine:
        """Freeze the graph and open the sources; on failure the context is stopped."""
        if self._state is StreamingContextState.STOPPED:
            raise StreamLifecycleError(
                "the StreamingContext has already been stopped and cannot run again; create a "
                "new one"
            )
        with LifeCycleMethods._active_lock:
            active = LifeCycleMethods._active
            if active is not None:
                raise StreamLifecycleError(
                    "only one StreamingContext may be active in a process; the active one was "
                    f"started at {active._started_at}"
                )
            self._started_at = call_site()
            try:
                engine = open_engine(self._graph, self._surroundings())
            except BaseException:
                self._finish()
                raise
            LifeCycleMethods._active = self
            self._engine = engine
            self._earlier = None  # with all that was read of it
            self._state = StreamingContextState.ACTIVE
            self._bus.post(StreamingStarted(self._clock.now_ms()))
            return engine

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            self._sc,
            self._clock,
            self._settings,
            self._checkpoint_directory,
            self._report,
            self._bus.post,
            self,
            self._given_settings,
            self._earlier,
            classes_of_program(self._graph, allowed=self._allowed_classes, depth=2),
        )

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
        return self._engine.history.remembered(node, begin - slide, end)
