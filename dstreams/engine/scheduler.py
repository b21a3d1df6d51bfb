"""The two threads of a running stream: one plans batches when they are due, one runs them.

The input of a batch is fixed at its batch time, also while an earlier batch is running. Batches run
strictly one after another. A late driver skips no batch.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from statistics import median_low
from uuid import uuid4  # noqa: TID251

from pyspark import InheritableThread, SparkContext  # noqa: TID251

from dstreams.common.clock import Clock
from dstreams.common.durations import ahead_of_clock_ms, batch_datetime, batch_name
from dstreams.common.settings import Settings
from dstreams.engine.batch import Batch, BatchResult
from dstreams.engine.engine import Engine
from dstreams.errors import BatchFailedError, DurabilityError
from dstreams.monitoring.events import BatchInfo
from dstreams.spark import jvm
from dstreams.spark.failures import with_code
from dstreams.spark.job_labels import labelled_jobs
from dstreams.spark.job_watch import JobWatch, watched

logger = logging.getLogger(__name__)

_GRACE_S = 2.0
_CANCEL_S = 10.0
_SAVE_S = 10.0
_POLL_S = 0.2
_SIGNAL_S = 1.0
_RECENT = 10
_MISSED_BATCHES = "spark.dstreams.recovery.catchUp"


class BatchTimer:
    """Determines when the next batch is due by a clock that may be set back.

    A batch time is also an identity: of the batch, its state and its output. So batch times only
    grow. A batch is due at its time, but never more than a batch duration from now. If the clock
    was set back, or batches ran early, as in steps or at a graceful stop, batch times stay ahead of
    the clock until it has caught up::

        clock         58   59   60 | 1    2    3          (set back by a minute at 60)
        batch time    58   59   60   61   62   63
    """

    def __init__(self, batch_ms: int) -> None:
        self._batch_ms = batch_ms
        self._ahead_ms = 0

    def due_ms(self, time_ms: int, now_ms: int) -> int:
        """Return the time of the clock at which the batch at *time_ms* is due."""
        ahead_ms = ahead_of_clock_ms(time_ms, now_ms, self._batch_ms)
        if ahead_ms > self._ahead_ms:
            logger.warning(
                "the clock shows %s, and the next batch is that at %d ms (%s): the clock was set "
                "back, or batches ran early. Batches continue, one every %d ms, with batch times "
                "that are %g s ahead of the clock until it has caught up",
                batch_datetime(now_ms),
                time_ms,
                batch_datetime(time_ms),
                self._batch_ms,
                ahead_ms / 1000,
            )
        elif self._ahead_ms and not ahead_ms:
            logger.info("the clock has caught up with the batch at %d ms", time_ms)
        self._ahead_ms = ahead_ms
        return time_ms - ahead_ms


class Scheduler:
    """Runs an engine in real time. After the start, only the scheduler's threads use the engine.

    *report* receives each error and whether it is fatal, *failed* is called after it if the
    scheduler itself failed, and *finished* after the last batch, on the thread that ran it.

    Attributes:
        is_graceful: True after the request for a graceful stop.
        why_abandoned: why batches were abandoned or the running one was cancelled; empty if none.
    """

    def __init__(
        self,
        engine: Engine,
        spark: SparkContext,
        clock: Clock,
        settings: Settings,
        watch: JobWatch,
        *,
        report: Callable[[BaseException, bool], None],
        failed: Callable[[], None],
        finished: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._spark = spark
        self._clock = clock
        self._settings = settings
        self._watch = watch
        self._report = report
        self._failed = failed
        self._finished = finished
        self._timer = BatchTimer(engine.plan.batch_ms)
        self._job_group = f"dstreams-{uuid4()}"
        self._queue: queue.Queue[Batch | None] = queue.Queue(settings.max_queued_batches)
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._cancelling = threading.Lock()
        self._postponing = threading.Event()
        self.is_graceful = False
        self.why_abandoned = ""
        self._unfinished: dict[int, Batch] = {}
        self._running_ms: int | None = None
        self._recent_ms: deque[int] = deque(maxlen=_RECENT)
        self._cancelled = threading.Event()
        self._broken = threading.Event()
        self._saving = threading.Event()
        self._ended = threading.Event()
        self._generator = InheritableThread(
            target=self._generate, name="dstreams-generator", daemon=True
        )
        self._runner = InheritableThread(target=self._run, name="dstreams-batches", daemon=True)

    def start(self) -> None:
        """Start; jobs inherit the local properties of the calling thread."""
        self._engine.garbage_collector.use_thread()
        self._runner.start()
        self._generator.start()

    def is_own_thread(self) -> bool:
        """Return whether the calling thread belongs to the scheduler."""
        return threading.current_thread() in (self._runner, self._generator)

    @property
    def unfinished(self) -> tuple[Batch, ...]:
        """The batches that were planned and have not finished."""
        return tuple(self._unfinished.values())

    def request_stop(self, *, abandon: bool, why: str = "an immediate stop was requested") -> None:
        """Plan no more batches; with *abandon*, do not start the waiting ones either.

        Otherwise everything that was received is processed, if necessary in one last batch. Batches
        that were missed while no driver ran, and later ones, are left to the next start if no
        record is lost. The first *why* is the reason in messages.
        """
        if abandon:
            self.why_abandoned = self.why_abandoned or why
            self._abandoned.set()
        elif not self._stopping.is_set() and self._can_postpone():
            self.why_abandoned = "missed batches are left to the next start"
            self._postponing.set()
            logger.warning(
                "the streams stop after the running batch; %s (%s=merge makes one batch of them)",
                self.why_abandoned,
                _MISSED_BATCHES,
            )
        else:
            if not (self.is_graceful or self._abandoned.is_set() or self._postponing.is_set()):
                self._warn_of_wait()
            self.is_graceful = not self._postponing.is_set()
        self._stopping.set()

    def _can_postpone(self) -> bool:
        """Return whether missed batches wait that the next start can run without loss."""
        if not self._engine.has_graph or not self._is_catching_up():
            return False
        return not self._engine.unfinished_work(self._waiting(), resumable=True).lost

    def _waiting(self) -> list[Batch]:
        return [one for one in self.unfinished if one.time_ms != self._running_ms]

    def _is_catching_up(self) -> bool:
        planner = self._engine.planner
        next_ms = min([one.time_ms for one in self._waiting()], default=planner.next_time_ms)
        return next_ms <= planner.missed_until_ms

    def _warn_of_wait(self) -> None:
        waiting = len(self._unfinished)
        if waiting <= 1:
            return
        estimate = ""
        if self._recent_ms:
            each_ms = median_low(self._recent_ms)  # the first batch of a process is slow
            estimate = f", about {_rounded(waiting * each_ms)} at {_rounded(each_ms)} each"
        hint = (
            "a second signal stops them at once"
            if self._settings.stop_gracefully_on_shutdown
            else "stop(stopGraceFully=False) stops them at once"
        )
        if self._is_catching_up():
            hint += f", {_MISSED_BATCHES}=merge makes one batch of those that were missed"
        logger.warning(
            "the streams stop after the %d batches that are due%s; %s, and "
            "spark.dstreams.stop.batchTimeout limits the time",
            waiting,
            estimate,
            hint,
        )

    def join(self, timeout_s: float) -> None:
        """Wait for the last batch; cancel its jobs after *timeout_s*, two seconds if abandoned."""
        if not self._wait_for_end(timeout_s) and not self._saving.is_set():
            self.request_stop(abandon=True, why=f"it timed out after {timeout_s:g} s")
            self._cancelled.set()
            self._cancel(self._saving)
        if self._saving.is_set() and not self._ended.wait(_SAVE_S):
            self._cancel()
        if self._ended.is_set():
            self._runner.join(_CANCEL_S)

    def _wait_for_end(self, timeout_s: float) -> bool:
        """Wait until nothing runs any more; return False on timeout."""
        left_s = timeout_s
        while left_s > 0 and not self._abandoned.is_set():
            if self._ended.wait(min(left_s, _POLL_S)):
                return True
            left_s -= _POLL_S
        return self._ended.wait(_GRACE_S if self._abandoned.is_set() else 0)

    def _cancel(self, done: threading.Event | None = None) -> None:
        """Cancel jobs repeatedly until the last batch has ended, or *done* is set."""
        try:
            for _ in range(round(_CANCEL_S / _POLL_S)):
                # Repeatedly, because an output may start another job.
                if self._has_jobs():
                    with self._cancelling:
                        if done is None or not done.is_set():
                            self._spark.cancelJobGroup(self._job_group)
                if done is not None and done.is_set():
                    break
                if self._ended.wait(_POLL_S):
                    break
        except Exception:
            logger.warning("failed to cancel the running batch; Spark may have ended")
            self._ended.wait(_CANCEL_S)

    def _has_jobs(self) -> bool:
        """Return whether one of our jobs runs; Spark warns if there is nothing to cancel."""
        tracker = self._spark.statusTracker()
        active = set(tracker.getActiveJobsIds())
        return bool(active) and not active.isdisjoint(tracker.getJobIdsForGroup(self._job_group))

    def _generate(self) -> None:
        try:
            while self._wait_for_next():
                self._submit(self._engine.planner.plan_batch())
            if not self._ends_early():
                self._submit_rest()
        except BaseException as error:
            self._fail(error)
        finally:
            self._submit(None)

    def _wait_for_next(self) -> bool:
        """Wait until the next batch is due; return False if the streams are stopping."""
        while True:
            due_ms = self._timer.due_ms(self._engine.planner.next_time_ms, self._clock.now_ms())
            if not self._clock.wait_until(due_ms, self._stopping):
                return False
            if self._clock.now_ms() >= due_ms:  # else the clock was set back
                return True

    def _submit_rest(self) -> None:
        """Plan a last batch of everything received, or several if the rate is limited."""
        for reader in self._engine.readers.values():
            reader.stop_receiving()
        while any(reader.has_pending() for reader in self._engine.readers.values()):
            batch = self._engine.planner.plan_batch()
            self._submit(batch)
            if batch.failure is not None or self._abandoned.is_set():
                break

    def _submit(self, batch: Batch | None) -> None:
        if batch is not None:
            self._unfinished[batch.time_ms] = batch
        while True:
            try:
                self._queue.put(batch, timeout=_POLL_S)
                return
            except queue.Full:
                if self._ends_early():
                    return

    def _ends_early(self) -> bool:
        return self._abandoned.is_set() or self._postponing.is_set()

    def _run(self) -> None:
        try:
            self._spark.setJobGroup(self._job_group, "dstreams", interruptOnCancel=True)
            with self._watch.watching():
                # Around all batches, so that no batch has to restore anything.
                with jvm.rewriting_outputs(self._spark), labelled_jobs(self._spark):
                    self._run_batches()
                if not self._broken.is_set():
                    with self._cancelling:  # cancellation of the last batch must not hit this
                        self._saving.set()
                    with watched("the checkpoint at the end"):
                        self._engine.checkpoint_at_end(is_abandoned=self._abandoned.is_set())
        except BaseException as error:
            self._fail(error)
        finally:
            self._stopping.set()
            if self._generator.is_alive():  # the batch that it is planning is unfinished, too
                self._generator.join(_GRACE_S)
            self._ended.set()
            self._finished()

    def _run_batches(self) -> None:
        while not self._ends_early() and (batch := self._next()) is not None:
            self._running_ms = batch.time_ms
            result = self._engine.runner.run(batch, self._cancelled.is_set)
            self._recent_ms.append(result.info.processing_delay_ms)
            if self._judge(result):
                del self._unfinished[batch.time_ms]
            self._running_ms = None

    def _next(self) -> Batch | None:
        while not self._ends_early():
            try:
                return self._queue.get(timeout=_POLL_S)
            except queue.Empty:
                continue
        return None

    def _judge(self, result: BatchResult) -> bool:
        """Report a failure, stop the stream if necessary; return whether the batch has finished."""
        info, error = result.info, result.error
        logger.info(
            "batch at %d ms %s: waited %d ms, ran %d ms",
            info.batch_time_ms,
            info.outcome,
            info.scheduling_delay_ms,
            info.processing_delay_ms,
        )
        was_cancelled = self._cancelled.is_set() and not isinstance(error, DurabilityError)
        if error is None or (was_cancelled and not result.failed_outputs):
            return info.outcome != "cancelled" and error is None
        if result.spark_ended:
            self._end_without_spark(info, error)
            return self._engine.checkpoint is None
        logger.error("%s", "\n".join(filter(None, (with_code(error), result.failed_outputs))))
        self._report(error, result.ends_stream)
        if isinstance(error, DurabilityError):
            self._broken.set()
        if result.ends_stream:
            self.request_stop(abandon=True, why="a batch failed")
        return not result.ends_stream or self._engine.checkpoint is None

    def _end_without_spark(self, info: BatchInfo, error: BatchFailedError) -> None:
        # A signal to the whole process group reaches the JVM too, and maybe us a moment later.
        if self._stopping.wait(_SIGNAL_S):
            logger.warning(
                "Spark ended before %s did; it was not committed (%s)",
                batch_name(info.batch_time_ms, info.batch_id),
                error,
            )
            self._broken.set()
            self.request_stop(abandon=True, why="Spark ended before its last batch")
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        logger.critical("the scheduler failed, the stream stops: %s", error, exc_info=error)
        self._report(error, True)
        self._broken.set()
        self.request_stop(abandon=True, why="the scheduler failed")
        self._failed()


def _rounded(ms: float) -> str:
    """Return a duration for messages, such as "24 min" or "1.5 s"."""
    minutes = round(ms / 60_000)
    return f"{minutes} min" if minutes >= 3 else f"{round(ms / 1000, 1):g} s"
