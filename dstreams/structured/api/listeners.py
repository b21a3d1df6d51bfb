"""Listeners of queries, and what they are told."""

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
        name: what the user calls it, or None.
        timestamp: when, as text.
        jobTags: none; those of Spark Connect.
    """

    id: str
    runId: str
    name: str | None
    timestamp: str
    jobTags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class QueryProgressEvent:
    """A trigger was made, and ran a batch.

    Args:
        progress: of the trigger.
    """

    progress: StreamingQueryProgress


@dataclass(frozen=True)
class QueryIdleEvent:
    """A query looked for data, and has found none for a while.

    Args:
        id: identity of the query.
        runId: identity of the run.
        timestamp: when, as text.
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
        exception: what it failed with, None if it did not.
        errorClassOnException: name of the class of that, None if it did not.
    """

    id: str
    runId: str
    exception: str | None
    errorClassOnException: str | None = None


class StreamingQueryListener:
    """What to override; each callback gets one event.

    Semantics: pyspark.sql.streaming.StreamingQueryListener.
    """

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A query was started; called before its first batch, on the thread that starts it."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch ran."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """There was nothing to do for a while."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query has ended."""


def _itself(event: Any) -> Any:
    return event


CALLBACKS: Callbacks = {
    QueryStartedEvent: ("onQueryStarted", _itself),
    QueryProgressEvent: ("onQueryProgress", _itself),
    QueryIdleEvent: ("onQueryIdle", _itself),
    QueryTerminatedEvent: ("onQueryTerminated", _itself),
}
"""By type of event: the method of a listener for it, which gets the event."""
