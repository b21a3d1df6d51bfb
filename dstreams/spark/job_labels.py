"""What Spark's own page says of the jobs of a batch, and which jobs those were.

A thread that runs batches does so in :func:`labelled_jobs`. There the batch is named once, and
:func:`label_jobs` says what of it the next jobs do: that is their description, which jobs of a
user's function inherit, and which it changes by ``setJobDescription``. A label is one or two calls
of the JVM.
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
"""Local properties by the names that Spark gives them; listeners of Spark's look them up."""

_MOST_JOBS = 100
_threads: set[object] = set()

# A stopped context has no JVM to call (AttributeError), a dead one does not answer. What runs jobs
# there fails by itself, and says so better than a label could.
_GONE = (Py4JError, OSError, AttributeError)

Template = Callable[[str], str]
"""What of a batch is done -> the description of its jobs."""


class JobLabels:
    """The labels of the jobs that one thread runs."""

    def __init__(self, spark: SparkContext) -> None:
        self._spark = spark
        self._template: Template | None = None
        self._known: dict[str, str | None] = {}
        self._before: dict[str, str | None] = {}

    def begin(self, template: Template, **properties: str) -> None:
        """Let labels be made by *template*, for a batch; properties are set at once."""
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
    """Let jobs that this thread runs in the block be labelled; what they had before is put back.

    In a block inside of a block there is nothing to put back. Where the program has unpinned the
    threads of Python from those of the JVM, labels would be of any thread, and there are none.
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
    """Say what the jobs of a block are for, which are of no batch; then what was said before."""
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
    """Let jobs that this thread runs in the block have a tag, by which they can be cancelled."""
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
    """Cancel the jobs with a tag that run."""
    if spark.statusTracker().getActiveJobsIds():  # else Spark warns that there are none
        spark.cancelJobsWithTag(tag)


def begin_stream_batch(time_ms: int, batch_ms: int) -> None:
    """Label jobs with a batch of a stream from here on, as Spark's streaming does."""
    labels = _current.get()
    if labels is not None:
        with suppress(*_GONE, ValueError, OverflowError):  # the last two of a time that is no date
            moment = batch_datetime(time_ms)  # local, as Spark shows it
            time = moment.isoformat(timespec="seconds" if batch_ms >= 1000 else "milliseconds")[11:]
            labels.begin(_of_stream(time), **{BATCH_TIME: str(time_ms)})


def _of_stream(time: str) -> Template:
    """Return the template of the descriptions of a batch at a *time* of the day."""

    def of(what: str) -> str:
        part, _, operation = what.partition(": ")
        return f"Streaming job from [{part}, batch time {time}] {escape(operation)}".rstrip()

    return of


def begin_query_batch(name: str | None, query_id: str, run_id: str, batch_id: int) -> None:
    """Label jobs with a batch of a query from here on, as Structured Streaming does."""
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
    """Call *observer* with what this thread does in the block, each time that changes."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def doing(what: str) -> None:
    """Tell the observer of this thread what it does from now on; no job is labelled."""
    observer = _observer.get()
    if observer is not None:
        observer(what)


def label_jobs(what: str, output_id: int | None = None) -> None:
    """Say what the next jobs of this thread do; nothing where it runs no batch."""
    doing(what)
    labels = _current.get()
    if labels is not None:
        with suppress(*_GONE):
            labels.put(what, output_id)


def next_job_id(spark: SparkContext) -> int | None:
    """Return the id that Spark's next job gets, None where that cannot be known."""
    with suppress(*_GONE):
        return jvm.next_job_id(spark)
    return None


def jobs_since(spark: SparkContext, first: int | None) -> tuple[int, ...]:
    """Return the ids of the jobs from *first* on that this thread has begun, at most a hundred.

    Jobs that other threads of the program began meanwhile are taken for its own, unless more
    streams or queries run: then those of this thread's job group count.
    """
    after = None if first is None else next_job_id(spark)
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
