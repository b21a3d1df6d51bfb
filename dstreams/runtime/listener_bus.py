"""The bus that carries events to listeners: one thread, one bounded queue, nothing lost in order.

A batch never waits for a listener. When listeners are too slow, events are dropped, counted, and
that is said in the log, once; a callback that raises is logged the first time.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from dstreams.errors import InvalidStreamError
from dstreams.events import Event
from dstreams.listener import CALLBACKS, call

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BusStatistics:
    """What did not reach its end.

    Args:
        dropped: events dropped because the queue was full.
        failures: calls that raised.
    """

    dropped: int
    failures: int


class ListenerBus:
    """Calls listeners with events in order, each listener with those posted since it was added.

    The thread starts with the first event that somebody listens to, and everything below belongs to
    one lock, which no listener is called under: callbacks may add and remove listeners.

    Args:
        max_queued: events that may wait.
    """

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued
        self._changed = threading.Condition()
        self._listeners: tuple[Any, ...] = ()
        self._queue: deque[tuple[Event, tuple[Any, ...]]] = deque()
        self._is_calling = False
        self._is_closed = False
        self._is_abandoned = False
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._failures = 0
        self._failed: tuple[Any, ...] = ()

    def add(self, listener: object) -> None:
        """Tell *listener* of every event from now on; one added twice is told once.

        Raises:
            InvalidStreamError: *listener* is a class, or has none of the callbacks.
        """
        _require_listener(listener)
        with self._changed:
            self._listeners = (*_without(self._listeners, listener), listener)

    def remove(self, listener: object) -> None:
        """Tell *listener* nothing more, not even what waits; one that was never added is ignored.

        A callback that runs at this moment is not waited for.
        """
        with self._changed:
            self._listeners = _without(self._listeners, listener)
            self._failed = _without(self._failed, listener)

    def post(self, event: Event) -> None:
        """Queue *event* for the listeners there are; returns at once."""
        with self._changed:
            if self._is_closed or not self._listeners:
                return
            if len(self._queue) >= self._max_queued:
                self._dropped += 1
                is_first = self._dropped == 1
            else:
                is_first = False
                self._queue.append((event, self._listeners))
                self._start()
                self._changed.notify_all()
        if is_first:
            logger.warning(
                "listeners are too slow: %d events wait, and further ones are dropped until there "
                "is room; make the callbacks faster, or raise spark.dstreams.maxQueuedEvents",
                self._max_queued,
            )

    def drain(self, timeout_s: float) -> bool:
        """Wait until listeners have been told of all that was posted.

        Args:
            timeout_s: seconds to wait at most.

        Returns:
            Whether they have; False at once on the bus's own thread, which would wait for itself.
        """
        if self.is_own_thread():
            return False
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_abandoned or not (self._queue or self._is_calling), timeout_s
            )

    def close(self, timeout_s: float) -> None:
        """Take no more events, wait for those that are queued, and end the thread.

        Args:
            timeout_s: seconds to wait at most; what waits after that is dropped.
        """
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
            self._changed.notify_all()
        is_drained = self.drain(timeout_s)
        with self._changed:
            left = len(self._queue)
            self._is_abandoned = True
            self._dropped += left
            self._queue.clear()
            self._listeners = ()
        if was_closed or self.is_own_thread():
            return
        if not is_drained:
            logger.warning(
                "a listener did not return within %g s of the stop; it is left to itself, and %d "
                "events are dropped",
                timeout_s,
                left,
            )
        statistics = self.statistics()
        if statistics.dropped or statistics.failures:
            logger.warning(
                "of the events for listeners %d were dropped, and %d calls raised",
                statistics.dropped,
                statistics.failures,
            )

    def is_own_thread(self) -> bool:
        """Whether the caller is a callback."""
        return threading.current_thread() is self._thread

    def statistics(self) -> BusStatistics:
        """What was dropped and what raised so far."""
        with self._changed:
            return BusStatistics(self._dropped, self._failures)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="dstreams-listeners", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_calling = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                if not self._queue:
                    return
                event, listeners = self._queue.popleft()
                self._is_calling = True
            for listener in listeners:
                self._call(listener, event)

    def _call(self, listener: Any, event: Event) -> None:
        with self._changed:
            if len(_without(self._listeners, listener)) == len(self._listeners):
                return  # removed since the event was posted
        try:
            call(listener, event)
        except BaseException as error:  # a listener that exits ends neither the bus nor the stream
            with self._changed:
                self._failures += 1
                is_first = len(_without(self._failed, listener)) == len(self._failed)
                if is_first:
                    self._failed += (listener,)
            if is_first:
                logger.error(
                    "the listener %s raised on %s; it goes on to be told, and further errors of it "
                    "are only counted",
                    _name_of(listener),
                    type(event).__name__,
                    exc_info=error,
                )


def load_listener(name: str) -> Any:
    """Make a listener from its name in the settings.

    Args:
        name: ``module.name`` of a class or function that makes a listener without arguments, or of
            a listener.

    Raises:
        InvalidStreamError: nothing of that name can be imported, or it is no listener.
    """
    module_name, _, attribute = name.rpartition(".")
    try:
        made = getattr(importlib.import_module(module_name), attribute)
        listener = made() if callable(made) else made
    except Exception as error:
        raise InvalidStreamError(
            f"the listener {name!r} of spark.dstreams.extraListeners cannot be made: {error!r}; "
            "write module.name of a class that the driver can import and that needs no arguments"
        ) from error
    _require_listener(listener)
    return listener


def _require_listener(listener: object) -> None:
    if isinstance(listener, type):
        raise InvalidStreamError(
            f"a listener must be an object, got the class {listener.__name__}; add "
            f"{listener.__name__}()"
        )
    if not any(callable(getattr(listener, name, None)) for name in CALLBACKS):
        raise InvalidStreamError(
            f"a listener must have a callback such as onBatchCompleted, got {_name_of(listener)}; "
            "derive it from dstreams.StreamingListener"
        )


def _without(listeners: tuple[Any, ...], listener: object) -> tuple[Any, ...]:
    return tuple(each for each in listeners if each is not listener)


def _name_of(listener: object) -> str:
    kind = type(listener)
    return f"{kind.__module__}.{kind.__qualname__}"
