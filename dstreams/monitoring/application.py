"""The streams and queries of this process, running or ended not long ago."""

from __future__ import annotations

import threading
from collections import deque

from dstreams.monitoring.monitor import Monitor
from dstreams.monitoring.status import StreamStatus

_ENDED = 20


class Application:
    """The monitors of a process, for who shows all of them.

    Those that run are all known; of those that have ended the newest :data:`_ENDED`.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._active: list[Monitor] = []
        self._ended: deque[Monitor] = deque(maxlen=_ENDED)
        self._changes = 0

    def begun(self, monitor: Monitor) -> None:
        """Know a stream or query that runs."""
        with self._condition:
            self._active.append(monitor)
        self.changed()

    def ended(self, monitor: Monitor) -> None:
        """Know that one has ended; harmless for one that is not known."""
        with self._condition:
            if monitor in self._active:
                self._active.remove(monitor)
                self._ended.append(monitor)
        self.changed()

    def changed(self) -> None:
        """Wake who waits for a change."""
        with self._condition:
            self._changes += 1
            self._condition.notify_all()

    def wait_for_change(self, seen: int, timeout_s: float) -> int:
        """Wait until there were more changes than *seen*, and return how many there were."""
        with self._condition:
            self._condition.wait_for(lambda: self._changes > seen, timeout_s)
            return self._changes

    def monitors(self) -> tuple[Monitor, ...]:
        """Return those that run, in the order of their start, then those that have ended."""
        with self._condition:
            return (*self._active, *reversed(self._ended))

    def statuses(self) -> tuple[StreamStatus, ...]:
        """Return how each of :meth:`monitors` does."""
        return tuple(monitor.status() for monitor in self.monitors())


_application = Application()


def application() -> Application:
    """Return that of this process."""
    return _application
