"""Delivers events to listeners of streams and queries, in order and on one thread.

A batch never waits for a listener: when the queue is full the newest event is dropped and counted,
as in Spark. A listener whose callback raised gets further events.
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
"""By type of event: the name of the callback, and the function that makes its argument."""


@dataclass(frozen=True)
class BusStatistics:
    """Numbers of events dropped because the queue was full, and of callbacks that raised."""

    dropped: int
    failures: int


class ListenerBus:
    """Calls each listener with the events posted since it was added.

    The bus has a thread while it has events. One lock guards all fields; it is not held while a
    listener is called, so callbacks may add and remove listeners.
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
        """Call *listener* with every event from now on; adding it twice has no effect.

        Raises:
            InvalidStreamError: *listener* is a class, or has none of the callbacks.
        """
        self._require_listener(listener)
        with self._changed:
            self._listeners = (*_without(self._listeners, listener), listener)

    def remove(self, listener: object) -> None:
        """Stop calling *listener*, also with queued events; does nothing if it was never added.

        Does not wait for a running callback.
        """
        with self._changed:
            self._listeners = _without(self._listeners, listener)
            self._failed = _without(self._failed, listener)

    def post(self, event: object) -> None:
        """Queue *event* for the current listeners, without blocking."""
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
            "listeners are too slow: dropping events while %d are queued; "
            "make the callbacks faster",
            self._max_queued,
        )

    def call_now(self, event: object) -> None:
        """Call listeners with *event* on the calling thread, ahead of queued events."""
        for listener in self._listeners:
            self._call(listener, event)

    def drain(self, timeout_s: float) -> bool:
        """Wait at most *timeout_s* for all events to be delivered; return whether they are.

        Returns False immediately on the bus's own thread, which would wait for itself.
        """
        if self.is_own_thread():
            return False
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Refuse further events, wait at most *timeout_s* for queued ones, and drop the rest."""
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
        is_own_thread = self.is_own_thread()
        is_drained = self.drain(timeout_s)
        with self._changed:
            left = len(self._queue)
            self._dropped += left
            self._queue.clear()
            self._listeners = ()
            self._thread = None  # a callback that hangs is abandoned
            self._changed.notify_all()
        if was_closed or is_own_thread:
            return
        if not is_drained:
            logger.warning(
                "abandoned a listener that did not return within %g s of the stop, and dropped %d "
                "events",
                timeout_s,
                left,
            )
        if self._dropped or self._failures:
            logger.warning(
                "listeners: %d events were dropped and %d callbacks raised",
                self._dropped,
                self._failures,
            )

    def is_own_thread(self) -> bool:
        """Return whether the caller is a callback."""
        return threading.current_thread() is self._thread

    def statistics(self) -> BusStatistics:
        """Return the numbers of dropped events and raised errors so far."""
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
        except BaseException as error:  # SystemExit must not end the bus or the stream
            with self._changed:
                self._failures += 1
                if _is_among(self._failed, listener):
                    return
                self._failed += (listener,)
            logger.error(
                "listener %s raised on %s; it gets further events, and its further errors are only "
                "counted",
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
    """Call the method of *listener* for *event*, if it has one."""
    name, argument_of = callbacks[type(event)]
    callback = getattr(listener, name, None)
    if callback is not None:
        callback(argument_of(event))


def load_listener(name: str) -> Any:
    """Return the listener named ``module.name``, or the result of calling that.

    Raises:
        InvalidStreamError: it cannot be imported or created.
    """
    module_name, _, attribute = name.rpartition(".")
    try:
        made = getattr(importlib.import_module(module_name), attribute)
        return made() if callable(made) else made
    except Exception as error:
        raise InvalidStreamError(
            f"spark.dstreams.extraListeners: cannot create the listener {name!r}: {error!r}; give "
            "module.name of a class that the driver can import and call without arguments"
        ) from error


def _without(listeners: tuple[Any, ...], listener: object) -> tuple[Any, ...]:
    return tuple(each for each in listeners if each is not listener)


def _is_among(listeners: tuple[Any, ...], listener: object) -> bool:
    return any(each is listener for each in listeners)


def _name_of(listener: object) -> str:
    kind = type(listener)
    return f"{kind.__module__}.{kind.__qualname__}"
