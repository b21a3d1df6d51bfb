"""Listeners of queries, and their events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dstreams.monitoring.listener_bus import Callbacks
from dstreams.monitoring.progress import StreamingQueryProgress


@dataclass(frozen=True)
class QueryStartedEvent:
    """A query was started.

    Args:
        id: identity of the query.
        runId: identity of the run.
        name: the ``queryName``, or None.
        timestamp: time of the event, ISO 8601.
        jobTags: empty; only Spark Connect sets it.
    """

    id: str
    runId: str
    name: str | None
    timestamp: str
    jobTags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class QueryProgressEvent:
    """A trigger ran a batch.

    Args:
        progress: of the batch.
    """

    progress: StreamingQueryProgress


@dataclass(frozen=True)
class QueryIdleEvent:
    """A query has had no new data for a while.

    Args:
        id: identity of the query.
        runId: identity of the run.
        timestamp: time of the event, ISO 8601.
    """

    id: str
    runId: str
    timestamp: str


@dataclass(frozen=True)
class QueryTerminatedEvent:
    """A query has ended.

    Args:
        id: identity of the query.
        runId: identity of the run.
        exception: message of the error, None without an error.
        errorClassOnException: name of the class of the error, None without an error.
    """

    id: str
    runId: str
    exception: str | None
    errorClassOnException: str | None = None


class StreamingQueryListener:
    """Base class of listeners; override the callbacks that you need.

    Semantics: pyspark.sql.streaming.StreamingQueryListener.
    """

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Handle the start of a query, before its first batch, on the thread that starts it."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Handle the end of a batch."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Handle a while without new data."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Handle the end of a query."""


def _itself(event: Any) -> Any:
    return event


CALLBACKS: Callbacks = {
    QueryStartedEvent: ("onQueryStarted", _itself),
    QueryProgressEvent: ("onQueryProgress", _itself),
    QueryIdleEvent: ("onQueryIdle", _itself),
    QueryTerminatedEvent: ("onQueryTerminated", _itself),
}
"""The callback and its argument, by type of event."""
