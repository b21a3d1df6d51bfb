"""The bus that carries events to listeners, of streams and of queries: in order, on one thread.

A batch never waits for a listener. When listeners are too slow the newest event is dropped, as
Spark does, and counted. The first dropped event and the first callback that raises are logged; a
listener whose callback raised gets further events.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dstreams.errors import InvalidStreamError

logger = logging.getLogger(__name__)

Callbacks = Mapping[type[Any], tuple[str, Callable[[Any], Any]]]
"""By type of event: the listener's method for it, and what makes the argument of the event."""


@dataclass(frozen=True)
class BusStatistics:
    """How many events were dropped because the queue was full, and how many calls raised."""

    dropped: int
    failures: int


class ListenerBus:
    """Calls listeners with events in order, each listener with those posted since it was added.

    The bus has a thread while it has events. All fields belong to one lock, which no listener is
    called under: callbacks may add and remove listeners.
    """

    def __init__(self, base: type[Any], callbacks: Callbacks, max_queued: int) -> None:
        self._base = base
        self._callbacks = callbacks
        self._max_queued = max_queued
        self._changed = threading.Condition()
        self._listeners: tuple[Any, ...] = ()
        self._queue: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self._is_closed = False
        self._thread: threading.Thread | None = None  # noqa: TID251
        self._dropped = 0
        self._failures = 0
        self._failed: tuple[Any, ...] = ()

    def add(self, listener: object) -> None:
        """Call *listener* with every event from now on; one added twice is called once.

        Raises:
            InvalidStreamError: *listener* is a class, or has none of the callbacks.
        """
        self._require_listener(listener)
        with self._changed:
            self._listeners = (*_without(self._listeners, listener), listener)

    def remove(self, listener: object) -> None:
        """Call *listener* no more, not even with events that wait; one that was never added is
        ignored.

        A callback that runs at this moment is not waited for.
        """
        with self._changed:
            self._listeners = _without(self._listeners, listener)
            self._failed = _without(self._failed, listener)

    def post(self, event: object) -> None:
        """Queue *event* for the listeners there are; returns at once."""
        with self._changed:
            if self._is_closed or not self._listeners:
                return
            if len(self._queue) < self._max_queued:
                self._queue.append((event, self._listeners))
                self._start()
                return
            self._dropped += 1
            if self._dropped > 1:
                return
        logger.warning(
            "listeners are too slow: %d events wait, and further ones are dropped until there is "
            "room; make the callbacks faster",
            self._max_queued,
        )

    def tell_now(self, event: object) -> None:
        """Tell of *event* on the thread of the caller, before anything that waits."""
        for listener in self._listeners:
            self._call(listener, event)

    def drain(self, timeout_s: float) -> bool:
        """Wait until listeners have had all events, at most *timeout_s*, and return whether they
        have.

        The bus's own thread, which would wait for itself, gets False at once.
        """
        if self.is_own_thread():
            return False
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Take no more events, and wait at most *timeout_s* for those that are queued; then drop
        them.
        """
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
        is_own_thread = self.is_own_thread()
        is_drained = self.drain(timeout_s)
        with self._changed:
            left = len(self._queue)
            self._dropped += left
            self._queue.clear()
            self._listeners = ()
            self._thread = None  # a callback that does not return is left to itself
            self._changed.notify_all()
        if was_closed or is_own_thread:
            return
        if not is_drained:
            logger.warning(
                "a listener did not return within %g s of the stop; it is left to itself, and %d "
                "events are dropped",
                timeout_s,
                left,
            )
        if self._dropped or self._failures:
            logger.warning(
                "of the events for listeners %d were dropped, and %d calls raised",
                self._dropped,
                self._failures,
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
            self._thread = threading.Thread(  # noqa: TID251
                target=self._run, name="dstreams-listeners", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._thread = None
                    self._changed.notify_all()
                    return
                event, listeners = self._queue.popleft()
            for listener in listeners:
                self._call(listener, event)

    def _call(self, listener: Any, event: Any) -> None:
        if not _is_among(self._listeners, listener):
            return  # removed since the event was posted
        try:
            call(self._callbacks, listener, event)
        except BaseException as error:  # a listener that exits ends neither the bus nor the stream
            with self._changed:
                self._failures += 1
                if _is_among(self._failed, listener):
                    return
                self._failed += (listener,)
            logger.error(
                "the listener %s raised on %s; it goes on to be told, and further errors of it "
                "are only counted",
                _name_of(listener),
                type(event).__name__,
                exc_info=error,
            )

    def _require_listener(self, listener: object) -> None:
        if isinstance(listener, type):
            raise InvalidStreamError(
                f"a listener must be an object, got the class {listener.__name__}; add "
                f"{listener.__name__}()"
            )
        names = [name for name, _ in self._callbacks.values()]
        if not any(callable(getattr(listener, name, None)) for name in names):
            raise InvalidStreamError(
                f"a listener must have one of the callbacks {', '.join(names)}, got "
                f"{_name_of(listener)}; derive it from {self._base.__name__}"
            )


def call(callbacks: Callbacks, listener: object, event: object) -> None:
    """Call the method of *listener* that is for *event*, if it has one."""
    name, argument_of = callbacks[type(event)]
    callback = getattr(listener, name, None)
    if callback is not None:
        callback(argument_of(event))


def load_listener(name: str) -> Any:
    """Return a listener by its name in the settings: ``module.name`` of one, or of what makes one.

    Raises:
        InvalidStreamError: nothing of that name can be imported or made.
    """
    module_name, _, attribute = name.rpartition(".")
    try:
        made = getattr(importlib.import_module(module_name), attribute)
        return made() if callable(made) else made
    except Exception as error:
        raise InvalidStreamError(
            f"the listener {name!r} of spark.dstreams.extraListeners cannot be made: {error!r}; "
            "write module.name of a class that the driver can import and that needs no arguments"
        ) from error


def _without(listeners: tuple[Any, ...], listener: object) -> tuple[Any, ...]:
    return tuple(each for each in listeners if each is not listener)


def _is_among(listeners: tuple[Any, ...], listener: object) -> bool:
    return any(each is listener for each in listeners)


def _name_of(listener: object) -> str:
    kind = type(listener)
    return f"{kind.__module__}.{kind.__qualname__}"
