"""Server-sent events with the status of everything, made once for all open pages.

The first event of a page has all recent batches, later ones only the batches that ended since the
previous event. A page that reconnects names its last event, and continues from there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from uuid import uuid4  # noqa: TID251 - distinguishes the events of processes

from dstreams.monitoring.status import StreamStatus
from dstreams.monitoring.web.documents import USUAL_BATCHES, Document, batches_that_ended, to_json

LEAST_INTERVAL_S = 0.25
HEARTBEAT_S = 15.0
_KNOWN_EVENTS = 240
_MOST_WAITING_BYTES = 8 << 20
_MOST_BEHIND_S = 10.0

MakeDocument = Callable[[Collection[StreamStatus], Callable[[StreamStatus], int]], Document]
_Position = Mapping[str, int]


class Page:
    """An open page: its connection, and the id of its last event, empty for none."""

    def __init__(self, transport: asyncio.WriteTransport, last_event: str) -> None:
        self.transport = transport
        self.last_event = last_event
        self.behind_since: float | None = None

    def is_too_slow(self, now_s: float) -> bool:
        """Return whether too much unsent data is waiting, or has waited for too long."""
        waiting_bytes = self.transport.get_write_buffer_size()
        if not waiting_bytes:
            self.behind_since = None
            return False
        if self.behind_since is None:
            self.behind_since = now_s
        return waiting_bytes > _MOST_WAITING_BYTES or now_s - self.behind_since > _MOST_BEHIND_S


class EventStream:
    """Writes events to all open pages; used on the server's event loop only.

    Args:
        make: makes the document.
        now_s: a monotonic clock, in seconds.
    """

    def __init__(self, make: MakeDocument, now_s: Callable[[], float]) -> None:
        self._make = make
        self._now_s = now_s
        self._pages: list[Page] = []
        self._run = uuid4().hex[:12]
        self._number = 0
        self._positions: OrderedDict[str, _Position] = OrderedDict()

    @property
    def has_pages(self) -> bool:
        """Whether any page is open."""
        return bool(self._pages)

    def add(self, page: Page) -> None:
        """Send the next events to a page."""
        page.transport.write(b"retry: 2000\n\n")
        self._pages.append(page)

    def remove(self, page: Page) -> None:
        """Stop sending to a page; does nothing if it is unknown."""
        if page in self._pages:
            self._pages.remove(page)

    def publish(self, statuses: Collection[StreamStatus]) -> None:
        """Send an event to each page."""
        self._number += 1
        event = f"{self._run}-{self._number}"
        position = {status.run_id: batches_that_ended(status) for status in statuses}
        made: dict[str, bytes] = {}
        self._drop_slow_pages()
        for page in self._pages:
            known = page.last_event if page.last_event in self._positions else ""
            if known not in made:
                made[known] = self._event(event, statuses, self._positions.get(known))
            page.transport.write(made[known])
            page.last_event = event
        self._positions[event] = position
        while len(self._positions) > _KNOWN_EVENTS:
            self._positions.popitem(last=False)

    def beat(self) -> None:
        """Send a comment to each page, so that proxies keep its connection."""
        self._drop_slow_pages()
        for page in self._pages:
            page.transport.write(b": no change\n\n")

    def _drop_slow_pages(self) -> None:
        now_s = self._now_s()
        for page in [page for page in self._pages if page.is_too_slow(now_s)]:
            self.remove(page)
            page.transport.abort()

    def _event(
        self, event: str, statuses: Collection[StreamStatus], known: _Position | None
    ) -> bytes:
        def batches(status: StreamStatus) -> int:
            before = 0 if known is None else known.get(status.run_id, 0)
            return min(batches_that_ended(status) - before, USUAL_BATCHES)

        document = {**self._make(statuses, batches), "is_delta": known is not None}
        return b"event: status\nid: %b\ndata: %b\n\n" % (event.encode(), to_json(document))
