"""Listeners of queries: what they are told, and the thread that tells them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from dstreams.errors import InvalidStreamError
from dstreams.structured.progress import StreamingQueryProgress

logger = logging.getLogger(__name__)

_MOST_EVENTS = 10_000


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


Event = QueryStartedEvent | QueryProgressEvent | QueryIdleEvent | QueryTerminatedEvent

_CALLBACKS = {
    QueryStartedEvent: "onQueryStarted",
    QueryProgressEvent: "onQueryProgress",
    QueryIdleEvent: "onQueryIdle",
    QueryTerminatedEvent: "onQueryTerminated",
}


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


class ListenerBus:
    """Tells listeners what happens, in order, on one thread; a query never waits for them.

    The thread lives as long as there is something to tell: an idle session has none.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._listeners: tuple[Any, ...] = ()
        self._queue: deque[tuple[Event, tuple[Any, ...]]] = deque()
        self._thread: threading.Thread | None = None

    def add(self, listener: object) -> None:
        """Tell *listener* of every event from now on.

        Raises:
            InvalidStreamError: it has none of the callbacks, or is a class.
        """
        names = _CALLBACKS.values()
        if isinstance(listener, type) or not any(hasattr(listener, name) for name in names):
            raise InvalidStreamError(
                f"a query listener has one of {', '.join(names)}, got {listener!r}; pass an object "
                "of a class derived from StreamingQueryListener"
            )
        with self._changed:
            self._listeners = (
                *(each for each in self._listeners if each is not listener),
                listener,
            )

    def remove(self, listener: object) -> None:
        """Tell *listener* nothing more."""
        with self._changed:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

    def listeners(self) -> tuple[Any, ...]:
        """Return who is told."""
        with self._changed:
            return self._listeners

    def tell_now(self, event: Event) -> None:
        """Tell of an event on the thread of the caller."""
        for listener in self.listeners():
            _call(listener, event)

    def post(self, event: Event) -> None:
        """Queue an event; returns at once. Too many of them are dropped, the oldest first."""
        with self._changed:
            if not self._listeners:
                return
            if len(self._queue) >= _MOST_EVENTS:
                logger.warning("listeners of queries are too slow; an event is dropped")
                self._queue.popleft()
            self._queue.append((event, self._listeners))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="dstreams-query-listeners", daemon=True
                )
                self._thread.start()

    def wait_until_told(self, seconds: float) -> bool:
        """Wait until all that was posted has been told; False when that takes longer.

        A listener that calls this would wait for itself: it is told False at once.
        """
        with self._changed:
            if self._thread is threading.current_thread():
                return False
            return self._changed.wait_for(lambda: self._thread is None, timeout=seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._thread = None
                    self._changed.notify_all()
                    return
                event, listeners = self._queue.popleft()
            for listener in listeners:
                _call(listener, event)


def _call(listener: object, event: Event) -> None:
    callback = getattr(listener, _CALLBACKS[type(event)], None)
    if callback is None:
        return
    try:
        callback(event)
    except (Exception, SystemExit):  # which would end the thread, and nobody be told any more
        logger.warning("a query listener failed in %s", _CALLBACKS[type(event)], exc_info=True)
