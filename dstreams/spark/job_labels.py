"""Descriptions of the jobs of a batch in Spark's UI, and the ids of these jobs.

A thread runs batches inside :func:`labelled_jobs`. It names each batch once, and describes the next
jobs with :func:`label_jobs`. Jobs of a user's function inherit the description; the function can
change it by ``setJobDescription``. A label costs one or two calls to the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from html import escape
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkContext

from dstreams.common.durations import batch_datetime
from dstreams.spark import jvm

DESCRIPTION: Final = "spark.job.description"
GROUP: Final = "spark.jobGroup.id"
BATCH_TIME: Final = "spark.streaming.internal.batchTime"
OUTPUT_ID: Final = "spark.streaming.internal.outputOpId"
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties under Spark's names, which Spark's listeners read."""

_MOST_JOBS = 100
_threads: set[object] = set()

# A stopped context has no JVM to call (AttributeError), a dead one does not answer. The jobs
# themselves fail then, with a better message.
_GONE = (Py4JError, OSError, AttributeError)

Template = Callable[[str], str]
"""A step of a batch -> the description of its jobs."""


class JobLabels:
    """The labels of the jobs that one thread runs."""

    def __init__(self, spark: SparkContext) -> None:
        self._spark = spark
        self._template: Template | None = None
        self._known: dict[str, str | None] = {}
        self._before: dict[str, str | None] = {}

    def begin(self, template: Template, **properties: str) -> None:
        """Set the *template* and the properties of a batch."""
        self._template = template
        for key, value in properties.items():
            self._put(key, value)

    def put(self, what: str, output_id: int | None) -> None:
        if self._template is None:
            return
        self._known.pop(DESCRIPTION, None)  # a user's function may have set its own
        self._put(DESCRIPTION, self._template(what))
        self._put(OUTPUT_ID, None if output_id is None else str(output_id))

    def _put(self, key: str, value: str | None) -> None:
        if self._known.get(key) == value:
            return
        if key not in self._before:
            self._before[key] = self._spark.getLocalProperty(key)
        self._spark.setLocalProperty(key, value)  # type: ignore[arg-type]
        self._known[key] = value

    def put_back(self) -> None:
        for key, value in self._before.items():
            self._spark.setLocalProperty(key, value)  # type: ignore[arg-type]


_current: ContextVar[JobLabels | None] = ContextVar("job labels of this thread", default=None)
_observer: ContextVar[Callable[[str], None] | None] = ContextVar(
    "observer of this thread", default=None
)


@contextmanager
def labelled_jobs(spark: SparkContext) -> Iterator[None]:
    """Label the jobs that this thread runs in the block, and restore the labels afterwards.

    A nested block has no effect. If Python threads are not pinned to JVM threads, labels would
    apply to other threads, and are not set.
    """
    if _current.get() is not None or not jvm.has_own_properties(spark):
        yield
        return
    labels = JobLabels(spark)
    token = _current.set(labels)
    _threads.add(labels)
    try:
        yield
    finally:
        _threads.discard(labels)
        _current.reset(token)
        with suppress(*_GONE):
            labels.put_back()


@contextmanager
def described_jobs(spark: SparkContext, what: str) -> Iterator[None]:
    """Describe the jobs of a block that do not belong to a batch."""
    if not jvm.has_own_properties(spark):
        yield
        return
    before = spark.getLocalProperty(DESCRIPTION)
    spark.setLocalProperty(DESCRIPTION, escape(what))
    try:
        yield
    finally:
        with suppress(*_GONE):
            spark.setLocalProperty(DESCRIPTION, before)  # type: ignore[arg-type]


@contextmanager
def tagged_jobs(spark: SparkContext, tag: str) -> Iterator[None]:
    """Tag the jobs that this thread runs in the block, so that they can be cancelled."""
    if not jvm.has_own_properties(spark):
        yield
        return
    with suppress(*_GONE):
        spark.addJobTag(tag)
    try:
        yield
    finally:
        with suppress(*_GONE):
            spark.removeJobTag(tag)


def cancel_tagged(spark: SparkContext, tag: str) -> None:
    """Cancel the running jobs with a tag."""
    if spark.statusTracker().getActiveJobsIds():  # otherwise Spark logs a warning
        spark.cancelJobsWithTag(tag)


def begin_stream_batch(time_ms: int, batch_ms: int) -> None:
    """Label the next jobs with a batch of a stream, as Spark Streaming does."""
    labels = _current.get()
    if labels is not None:
        with suppress(*_GONE, ValueError, OverflowError):  # the last two if the time is not a date
            moment = batch_datetime(time_ms)  # local, as in Spark
            time = moment.isoformat(timespec="seconds" if batch_ms >= 1000 else "milliseconds")[11:]
            labels.begin(_of_stream(time), **{BATCH_TIME: str(time_ms)})


def _of_stream(time: str) -> Template:
    """Return the template of the descriptions of a batch at a *time* of day."""

    def of(what: str) -> str:
        part, _, operation = what.partition(": ")
        return f"Streaming job from [{part}, batch time {time}] {escape(operation)}".rstrip()

    return of


def begin_query_batch(name: str | None, query_id: str, run_id: str, batch_id: int) -> None:
    """Label the next jobs with a batch of a query, as Structured Streaming does."""
    labels = _current.get()
    if labels is not None:
        facts = ([] if name is None else [escape(name)]) + [
            f"id = {query_id}",
            f"runId = {run_id}",
            f"batch = {batch_id}",
        ]

        def of(what: str) -> str:
            return "<br/>".join([*facts, escape(what)] if what else facts)

        with suppress(*_GONE):
            labels.begin(of, **{QUERY_ID: query_id, BATCH_ID: str(batch_id)})


@contextmanager
def observed_by(observer: Callable[[str], None]) -> Iterator[None]:
    """Call *observer* with each new activity of this thread in the block."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def doing(what: str) -> None:
    """Pass an activity to the observer of this thread, without labelling jobs."""
    observer = _observer.get()
    if observer is not None:
        observer(what)


def label_jobs(what: str, output_id: int | None = None) -> None:
    """Describe the next jobs of this thread; no effect outside :func:`labelled_jobs`."""
    doing(what)
    labels = _current.get()
    if labels is not None:
        with suppress(*_GONE):
            labels.put(what, output_id)


def next_job_id_if_known(spark: SparkContext) -> int | None:
    """Return the id of Spark's next job, None if unknown."""
    with suppress(*_GONE):
        return jvm.next_job_id(spark)
    return None


def jobs_since(spark: SparkContext, first: int | None) -> tuple[int, ...]:
    """Return the ids of the jobs from *first* on that this thread has begun, at most a hundred.

    Jobs of other threads are included if only one stream or query runs. Otherwise, only those of
    this thread's job group are returned.
    """
    after = None if first is None else next_job_id_if_known(spark)
    if first is None or after is None or after <= first:
        return ()
    begun = range(first, min(after, first + _MOST_JOBS))
    if len(_threads) <= 1:
        return tuple(begun)
    with suppress(*_GONE):
        group = spark.getLocalProperty(GROUP)
        if group is not None:
            return tuple(sorted({*begun} & {*spark.statusTracker().getJobIdsForGroup(group)}))
    return ()
