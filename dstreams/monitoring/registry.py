"""The registry of the streams and queries of this process, and of the dashboards that show them."""

from __future__ import annotations

import threading
from collections import deque
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from dstreams.monitoring.monitor import Monitor
from dstreams.monitoring.status import StreamStatus

if TYPE_CHECKING:
    from pyspark import SparkContext

    from dstreams.common.settings import Settings

_ENDED = 20
_WEB_PAGE = "dstreams.monitoring.web.page"  # subscribes when imported


class Dashboard(Protocol):
    """A live view of the registry."""

    @property
    def url(self) -> str | None:
        """Its address without secrets; None while it is not served."""
        ...

    def show(self, spark: SparkContext, settings: Settings) -> None:
        """Start it if *settings* enable it; does nothing if it runs, and never raises."""
        ...


class StreamRegistry:
    """The monitors of all active streams and queries, and of the last :data:`_ENDED` ended ones.

    Attributes:
        shows_restarts: whether restarts draw a progress bar on the terminal.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._active: list[Monitor] = []
        self._ended: deque[Monitor] = deque(maxlen=_ENDED)
        self._changes = 0
        self._dashboard: Dashboard | None = None
        self.shows_restarts = False

    def add(self, monitor: Monitor) -> None:
        """Add a stream or query that starts."""
        with self._condition:
            self._active.append(monitor)
        self.changed()

    def ended(self, monitor: Monitor) -> None:
        """Move a monitor to the ended ones; does nothing if it is unknown."""
        with self._condition:
            if monitor in self._active:
                self._active.remove(monitor)
                self._ended.append(monitor)
        self.changed()

    def changed(self) -> None:
        """Wake the threads that wait for a change."""
        with self._condition:
            self._changes += 1
            self._condition.notify_all()

    def wait_for_change(self, seen: int, timeout_s: float) -> int:
        """Wait until there were more changes than *seen*, and return their number."""
        with self._condition:
            self._condition.wait_for(lambda: self._changes > seen, timeout_s)
            return self._changes

    def monitors(self) -> tuple[Monitor, ...]:
        """Return the active monitors in order of their start, then the ended ones, newest first."""
        with self._condition:
            return (*self._active, *reversed(self._ended))

    def find(self, run_id: str) -> Monitor | None:
        """Return the monitor of a run; None if it is unknown."""
        return next((each for each in self.monitors() if each.run_id == run_id), None)

    def statuses(self) -> tuple[StreamStatus, ...]:
        """Return the status of each of :meth:`monitors`."""
        return tuple(monitor.status() for monitor in self.monitors())

    def subscribe(self, dashboard: Dashboard) -> None:
        """Register the dashboard that :meth:`show_dashboard` starts."""
        self._dashboard = dashboard

    def show_dashboard(self, spark: SparkContext, settings: Settings) -> None:
        """Start the dashboard if *settings* enable it; the web page loads at the first call."""
        if settings.ui_enabled:
            import_module(_WEB_PAGE)
        if self._dashboard is not None:
            self._dashboard.show(spark, settings)

    @property
    def dashboard_url(self) -> str | None:
        """Address of the dashboard without a token; None if it is not served."""
        return None if self._dashboard is None else self._dashboard.url


_registry = StreamRegistry()


def registry() -> StreamRegistry:
    """Return the registry of this process."""
    return _registry
