"""Server-sent events: what has changed, made once for all pages that are open.

The first event has everything. Those after it have the same, but of the batches only those that
have ended since the event before; a page that comes back says which event it had last, and gets
those since then.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from uuid import uuid4  # noqa: TID251 - tells the events of this process from those of another

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
    """A page that is open.

    Args:
        transport: what is written for it.
        last_event: id of the last event that it has, empty for none.
    """

    def __init__(self, transport: asyncio.WriteTransport, last_event: str) -> None:
        self.transport = transport
        self.last_event = last_event
        self.behind_since: float | None = None

    def is_too_slow(self, now_s: float) -> bool:
        """Say whether what was written before has been waiting for too long, or is too much."""
        waiting_bytes = self.transport.get_write_buffer_size()
        if not waiting_bytes:
            self.behind_since = None
            return False
        if self.behind_since is None:
            self.behind_since = now_s
        return waiting_bytes > _MOST_WAITING_BYTES or now_s - self.behind_since > _MOST_BEHIND_S


class EventStream:
    """The pages that are open, and which batches they know. It belongs to the server's loop.

    Args:
        make: makes the document.
        now_s: seconds of a clock that is never set back.
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
        """Whether anybody looks."""
        return bool(self._pages)

    def add(self, page: Page) -> None:
        """Write the next events for a page."""
        page.transport.write(b"retry: 2000\n\n")
        self._pages.append(page)

    def remove(self, page: Page) -> None:
        """Write nothing more for a page; harmless for one that is not known."""
        if page in self._pages:
            self._pages.remove(page)

    def publish(self, statuses: Collection[StreamStatus]) -> None:
        """Write an event for each page."""
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
        """Write a comment for each page, so that nobody takes its connection for dead."""
        self._drop_slow_pages()
        for page in self._pages:
            page.transport.write(b": nothing new\n\n")

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
