"""A watchdog that reports hanging jobs of a stream or query, and restarts their workers.

Spark waits for a task as long as its worker process lives, and for executors forever; with the log
level of a tuned context it does not report either. The watchdog has its own thread, and watches the
jobs of the thread that runs the batches.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from uuid import uuid4  # noqa: TID251

from pyspark import SparkContext

from dstreams.common.clock import Clock
from dstreams.spark import jvm
from dstreams.spark.job_labels import observed_by, tagged_jobs

logger = logging.getLogger(__name__)

_LOOK_MS = 5_000
_LONG_MS = 40_000
_AGAIN_MS = 60_000


@dataclass
class _Activity:
    """The activity of the watched thread, with the times when the watchdog first saw it."""

    name: str
    phase: str = ""
    seen_phase: str = ""
    began_ms: int | None = None
    phase_ms: int = 0
    reported_ms: int | None = None


class JobWatch:
    """Reports hanging jobs, and restarts the Python worker of a task that exceeds *timeout_ms*.

    A task, a stage without an executor, or a function of the program on the driver is reported
    after 40 s without progress, and then every minute. Only the watchdog reads the driver's clock,
    every five seconds, so durations may be up to five seconds too short.
    """

    def __init__(self, spark: SparkContext, clock: Clock, timeout_ms: int | None = None) -> None:
        self._spark = spark
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._look_ms = _LOOK_MS if timeout_ms is None else min(_LOOK_MS, max(timeout_ms // 4, 100))
        self._tag = f"dstreams-watch-{uuid4()}"
        self._lock = threading.Lock()
        self._activity: _Activity | None = None
        self._seen_ms: dict[int, int] = {}
        self._killed_ms: dict[int, int] = {}
        self._still_ms: int | None = None
        self._timed_out: Counter[tuple[int, int]] = Counter()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what this thread does in the block."""
        ended = threading.Event()
        thread = threading.Thread(  # noqa: TID251
            target=self._run, args=(ended,), name="dstreams-watch", daemon=True
        )
        token = _watch.set(self)
        thread.start()
        try:
            with tagged_jobs(self._spark, self._tag), observed_by(self._enter):
                yield
        finally:
            ended.set()
            _watch.reset(token)

    def begin(self, name: str) -> None:
        with self._lock:
            self._activity = _Activity(name)
            self._still_ms = None
            self._seen_ms.clear()
            self._killed_ms.clear()
            self._timed_out.clear()

    def end(self) -> None:
        with self._lock:
            self._activity = None

    def _enter(self, phase: str) -> None:
        activity = self._activity
        if activity is not None:
            activity.phase = phase

    def _run(self, ended: threading.Event) -> None:
        try:
            while self._clock.wait_until(self._clock.now_ms() + self._look_ms, ended):
                self.look()
        except Exception:  # of a clock; other threads that wait for it report the error
            logger.debug("the watchdog stopped", exc_info=True)

    def look(self) -> None:
        """Check the jobs once; never raises."""
        try:
            with self._lock:
                activity = self._activity
                if activity is not None:
                    self._look(activity, self._clock.now_ms())
        except Exception:  # Spark stops; the thread that runs the jobs reports that
            logger.debug("could not check running tasks", exc_info=True)

    def _look(self, activity: _Activity, now_ms: int) -> None:
        if activity.began_ms is None:
            activity.began_ms = self._still_ms = now_ms
        if activity.began_ms == now_ms or activity.phase != activity.seen_phase:
            activity.seen_phase, activity.phase_ms = activity.phase, now_ms
        if activity.began_ms == now_ms:  # most batches end before the next check
            return
        stages = jvm.running_stages(self._spark, self._tag)
        running = {task.id for stage in stages for task in stage.running}
        self._seen_ms = {task: self._seen_ms.get(task, now_ms) for task in running}
        if self._timeout_ms is not None:
            self._restart_workers(stages, now_ms, self._timeout_ms)
        if running:
            oldest_ms, self._still_ms = min(self._seen_ms.values()), None
        else:
            self._still_ms = now_ms if self._still_ms is None else self._still_ms
            oldest_ms = max(self._still_ms, activity.phase_ms)
        last_ms = activity.reported_ms
        is_due = last_ms is None or now_ms - last_ms >= _AGAIN_MS
        if is_due and now_ms - oldest_ms >= _LONG_MS:
            activity.reported_ms = now_ms
            logger.warning(
                "%s has been running for %s%s; %s",
                activity.name,
                _seconds(now_ms - activity.began_ms),
                f", in phase: {activity.phase}, for {_seconds(now_ms - activity.phase_ms)}"
                if activity.phase
                else "",
                self._described(stages, now_ms),
            )

    def _described(self, stages: list[jvm.RunningStage], now_ms: int) -> str:
        """Return a description of what hangs."""
        if not stages:
            return "Spark is not running a job for it, so the driver itself is busy or waiting"
        stage = next((stage for stage in stages if stage.running), stages[0])
        ended = f"{stage.completed} of {stage.tasks} tasks have ended"
        if not stage.running:
            return f"stage {stage.id} waits for an executor, {ended}; {self._cores()}"
        task = min(stage.running, key=lambda task: self._seen_ms.get(task.id, now_ms))
        age_ms = now_ms - self._seen_ms.get(task.id, now_ms)
        remedy = (
            "" if self._timeout_ms else f"; {jvm.TASK_TIMEOUT} restarts the worker of such a task"
        )
        return (
            f"partition {task.partition} of stage {stage.id} has been running for "
            f"{_seconds(age_ms)} on host {task.host} (task {task.id}, attempt {task.attempt}), "
            f"{ended}{remedy}"
        )

    def _cores(self) -> str:
        """Return a description of the cores that the application wants and has."""
        conf = self._spark.getConf()
        executors, cores, busy = jvm.executors(self._spark)
        wanted = conf.get("spark.cores.max")
        instances = conf.get("spark.executor.instances")
        if wanted is not None:
            wants = f"{wanted} cores (spark.cores.max)"
        elif instances is not None:
            each = conf.get("spark.executor.cores", "1")
            wants = f"{instances} executors with {each} cores each (spark.executor.instances)"
        else:
            wants = f"{conf.get('spark.task.cpus', '1')} core or more"
        busy_cores = f", {busy} of them busy" if busy else ""
        return (
            f"master {self._spark.master}: wanted {wants}, has {cores} cores in {executors} "
            f"executors{busy_cores}; check that the cluster has free cores and memory"
        )

    def _restart_workers(
        self, stages: list[jvm.RunningStage], now_ms: int, timeout_ms: int
    ) -> None:
        most = jvm.most_task_failures(self._spark)
        for stage in stages:
            for task in stage.running:
                since_ms = self._killed_ms.get(task.id, self._seen_ms[task.id])
                if now_ms - since_ms < timeout_ms:
                    continue
                self._killed_ms[task.id] = now_ms  # killed again if it runs for another timeout
                self._timed_out[stage.id, task.partition] += 1
                attempts = self._timed_out[stage.id, task.partition]
                what = f"partition {task.partition} of stage {stage.id} on host {task.host}"
                limit = f"{jvm.TASK_TIMEOUT} of {_seconds(timeout_ms)}"
                ends = attempts >= most
                logger.warning(
                    "%s took longer than %s in attempt %d of %d; %s",
                    what,
                    limit,
                    attempts,
                    most,
                    "its job is cancelled" if ends else "its Python worker is restarted",
                )
                jvm.kill_task(self._spark, task.id, f"it took longer than {limit}")
                if ends:
                    reason = f"because {what} took longer than {limit} in all {most} attempts"
                    jvm.cancel_job(self._spark, stage.job_id, reason)


_watch: ContextVar[JobWatch | None] = ContextVar("watches the jobs of this thread", default=None)


@contextmanager
def watched(name: str) -> Iterator[None]:
    """Let the watchdog of this thread report the block under *name*."""
    watch = _watch.get()
    if watch is None:
        yield
        return
    watch.begin(name)
    try:
        yield
    finally:
        watch.end()


def _seconds(ms: int) -> str:
    return f"{round(ms / 1000, 1):g} s"
