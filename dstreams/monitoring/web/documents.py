"""The JSON of the page: the statuses, also as server-sent events, and answers about the state.

Fields have the names of :class:`dstreams.monitoring.status.StreamStatus` and its parts. Batches
also have ``scheduling_delay_ms``, ``processing_delay_ms`` and ``total_delay_ms``.

Events are made once for all open pages. The first event of a page has all recent batches, later
ones only the batches that ended since the previous event. A page that reconnects names its last
event, and continues from there.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from reprlib import Repr
from typing import Any
from urllib.parse import unquote
from uuid import uuid4  # noqa: TID251 - distinguishes the events of processes

import msgspec

from dstreams.common.redaction import masked
from dstreams.errors import InvalidStreamError
from dstreams.monitoring.events import BatchInfo, InputInfo, PendingBatch
from dstreams.monitoring.registry import StreamRegistry
from dstreams.monitoring.state_queries import RANGE_LIMIT, StateQueries
from dstreams.monitoring.status import RunningBatch, StreamStatus
from dstreams.monitoring.web.requests import Answer

USUAL_BATCHES, MOST_BATCHES = 200, 1000
"""The default and the largest number of batches of a stream in a document."""

MOST_TEXT = 2000
_MOST_COUNTS = 1000
_WITH_OFFSETS = 10  # of possibly a thousand waiting batches
_DELAYS = ("scheduling_delay_ms", "processing_delay_ms", "total_delay_ms")
_METADATA = ("lag", "rejected")

JSON = "application/json"
LARGEST = 20
_MOST_ERROR = 500
_MOST_VALUE_BYTES = 1 << 20
_WAIT_S = 5.0  # for another query of state

Document = Mapping[str, Any]
LEAST_INTERVAL_S = 0.25
HEARTBEAT_S = 15.0
_KNOWN_EVENTS = 240
_MOST_WAITING_BYTES = 8 << 20
_MOST_BEHIND_S = 10.0

MakeDocument = Callable[[Collection[StreamStatus], Callable[[StreamStatus], int]], Document]
_Position = Mapping[str, int]


@dataclass(frozen=True)
class ApplicationFacts:
    """The facts about this process."""

    name: str  # name of the Spark application
    id: str  # its id
    spark_ui: str | None  # address of Spark's own page; None if it is off
    version: str  # version of dstreams
    pyspark: str  # version of PySpark
    started_ms: int  # when the SparkContext was created
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark and dstreams, with secrets masked."""


def status_document(
    facts: ApplicationFacts,
    statuses: Collection[StreamStatus],
    now_ms: int,
    batches: Callable[[StreamStatus], int],
) -> Document:
    """Return a document of all statuses with the given number of *batches* of each."""
    application = _fields(facts)
    settings = application.pop("settings")
    return {
        "application": {**application, "now_ms": now_ms},
        "settings": settings,
        "streams": [_stream(status, batches(status)) for status in statuses],
    }


def batches_that_ended(status: StreamStatus) -> int:
    """Return how many batches of a run have ended, including those not kept any more."""
    return sum(status.totals.batches.values())


def to_json(document: Any) -> bytes:
    """Return a document as one line of JSON; values without a JSON form become bounded text."""
    try:
        return msgspec.json.encode(document, enc_hook=text_of)
    except UnicodeEncodeError:  # lone surrogates, as in file names that are not UTF-8
        return msgspec.json.encode(_encodable(msgspec.to_builtins(document, enc_hook=text_of)))


def text_of(value: object) -> str:
    """Return the bounded ``repr`` of a value."""
    return _cut(_PRINTED.repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}..."


def _printed() -> Repr:
    printed = Repr()
    printed.maxlevel = 4
    printed.maxdict = printed.maxlist = printed.maxtuple = printed.maxset = 50
    printed.maxfrozenset = printed.maxdeque = printed.maxarray = 50
    printed.maxstring = printed.maxlong = printed.maxother = MOST_TEXT
    return printed


_PRINTED = _printed()


def _stream(status: StreamStatus, batches: int) -> Document:
    recent = status.recent[max(0, len(status.recent) - batches) :]
    return {
        **_fields(status),
        "waiting": [
            _pending(batch, has_offsets=place < _WITH_OFFSETS)
            for place, batch in enumerate(status.waiting)
        ],
        "running": _running(status.running),
        "recent": [_batch(batch) for batch in recent],
        "lags": [
            {
                "stream_id": lag.stream_id,
                "name": lag.name,
                "records": sum(lag.partitions.values()),
                "in_batches": lag.in_batches,
                "partitions": _counts(lag.partitions),
            }
            for lag in status.lags
        ],
    }


def _batch(batch: BatchInfo) -> Document:
    delays = {name: getattr(batch, name) for name in _DELAYS}
    return {**_fields(batch), **delays, "inputs": _inputs(batch.inputs)}


def _pending(batch: PendingBatch, *, has_offsets: bool = True) -> Document:
    inputs = _inputs(batch.inputs if has_offsets else map(_without_offsets, batch.inputs))
    return {**_fields(batch), "inputs": inputs}


def _without_offsets(given: InputInfo) -> InputInfo:
    return replace(given, description="", metadata={}, offsets=None)


def _running(running: RunningBatch | None) -> Document | None:
    return None if running is None else {**_fields(running), "batch": _pending(running.batch)}


def _inputs(inputs: Iterable[InputInfo]) -> list[Document]:
    return [
        {
            **_fields(given),
            "description": _cut(given.description),
            "offsets": None if given.offsets is None else given.offsets._asdict(),
            "metadata": {
                name: _counts(given.metadata[name]) for name in _METADATA if name in given.metadata
            },
        }
        for given in inputs
    ]


def _counts(value: Any) -> Any:
    """Return counts with keys as text, such as ``topic-0`` for a Kafka partition."""
    if isinstance(value, Mapping):
        return {str(key): count for key, count in islice(value.items(), _MOST_COUNTS)}
    return value


def _fields(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


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
        """True if any page is open."""
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


class StateQueryHandler:
    """Queries the states of active streams and queries."""

    def __init__(self, registry: StreamRegistry) -> None:
        self._registry = registry
        self._one_at_a_time = threading.Lock()

    def state(self, query: Mapping[str, str]) -> Answer:
        """Return the state of one key."""
        return self._ask(query, ("stream", "uid", "key"), _look_up)

    def largest(self, query: Mapping[str, str]) -> Answer:
        """Return the keys with the largest states."""
        return self._ask(query, ("stream", "uid"), _largest)

    def at_path(self, path: str, query: Mapping[str, str]) -> Answer:
        """Return the state of a key, ``UID/KEY``, or of a range of keys, ``UID``."""
        uid, *keys = (unquote(part) for part in path.split("/"))
        if len(keys) > 1:
            return _error(404, "a path is /state/UID/KEY; write %2F for / in a uid or a key")
        known = {
            monitor.run_id: monitor.states
            for monitor in self._registry.monitors()
            if monitor.states is not None and query.get("stream", monitor.run_id) == monitor.run_id
        }
        having = [run_id for run_id, states in known.items() if uid in states.states]
        if not having:
            uids = sorted({name for states in known.values() for name in states.states})
            return _error(
                404,
                f"no stateful operator has the uid {uid!r}; known uids: "
                + (", ".join(uids) or "none"),
            )
        if len(having) > 1:
            return _error(
                400,
                f"{len(having)} streams have an operator {uid!r}; add ?stream=RUN_ID, one of "
                f"{', '.join(having)}",
            )
        run_id, states = having[0], known[having[0]]

        def look() -> Answer:
            found = _state_at(states, uid, keys[0]) if keys else _range_at(states, uid, query)
            status = 200 if found.get("is_there", True) else 404
            return Answer(status, to_json({"stream": run_id, **found}), JSON)

        return self._one(look, _WAIT_S)

    def _ask(
        self,
        query: Mapping[str, str],
        names: tuple[str, ...],
        answer: Callable[[StateQueries, Mapping[str, str]], Any],
    ) -> Answer:
        missing = [name for name in names if name not in query]
        if missing:
            return _error(
                400, f"missing parameter {missing[0]}; the parameters are {', '.join(names)}"
            )
        monitor = self._registry.find(query["stream"])
        states = None if monitor is None else monitor.states
        if states is None:
            return _error(404, "no active stream with state has this run id")
        return self._one(lambda: Answer(200, to_json(answer(states, query)), JSON))

    def _one(self, answer: Callable[[], Answer], wait_s: float = 0) -> Answer:
        """Return an answer if no other query runs, or when it has ended within *wait_s*."""
        if not self._one_at_a_time.acquire(timeout=wait_s):
            busy = _error(429, "another state query is running; try again soon")
            return Answer(busy.status, busy.body, JSON, {"Retry-After": "1"})
        try:
            return answer()
        except InvalidStreamError as error:
            return _error(400, str(error))
        except Exception as error:
            lines = masked(str(error)).splitlines() or [""]
            return _error(500, f"{type(error).__name__}: {lines[0]}")
        finally:
            self._one_at_a_time.release()


def parse_key(text: str) -> Any:
    """Return the key for a text: JSON with lists as tuples, or the text itself.

    >>> parse_key('["a", 1]'), parse_key("5"), parse_key('"5"'), parse_key("Straße")
    (('a', 1), 5, '5', 'Straße')
    """
    try:
        return _tuples(json.loads(text))
    except (ValueError, RecursionError):
        return text


def text_of_key(key: Any) -> str | None:
    """Return the text for a key; None if a key has no text."""
    try:
        text = to_json(key).decode()
    except (TypeError, ValueError):
        return None
    return text if parse_key(text) == key else None


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(each) for each in value)
    return value


def _look_up(states: StateQueries, query: Mapping[str, str]) -> Any:
    key = parse_key(query["key"])
    found = states.look_up(query["uid"], key)
    return {
        "uid": found.uid,
        "key": text_of(key),
        "batch_time_ms": found.batch_time_ms,
        "partition": found.partition,
        "is_there": found.is_there,
        "value": text_of(found.value) if found.is_there else None,
        "timeout_ms": found.timeout_ms,
    }


def _state_at(states: StateQueries, uid: str, text: str) -> Document:
    key = parse_key(text)
    found = states.look_up(uid, key)
    return {
        "uid": uid,
        "key": _shown(key),
        "batch_time_ms": found.batch_time_ms,
        "is_there": found.is_there,
        "value": _shown(found.value),
        "timeout_ms": found.timeout_ms,
    }


def _range_at(states: StateQueries, uid: str, query: Mapping[str, str]) -> Document:
    start, stop = (parse_key(query[name]) if name in query else None for name in ("start", "stop"))
    limit = query.get("limit", "100")
    if not limit.isascii() or not limit.isdecimal() or not 0 < int(limit[:9]) <= RANGE_LIMIT:
        raise InvalidStreamError(f"limit must be an integer from 1 to {RANGE_LIMIT}, got {limit!r}")
    time_ms, pairs = states.range(uid, start, stop, int(limit))
    shown = [{"key": _shown(key), "value": _shown(value)} for key, value in pairs]
    return {"uid": uid, "batch_time_ms": time_ms, "pairs": shown}


def _shown(value: Any) -> Any:
    """Return a value for JSON; a large one, or one without a JSON form, as bounded text."""
    try:
        shown = _builtins(value)
        return shown if len(to_json(shown)) <= _MOST_VALUE_BYTES else text_of(value)
    except (RecursionError, TypeError, ValueError):
        return text_of(value)


def _builtins(value: Any) -> Any:
    """Return a value with dicts whose keys are no texts as lists of pairs, and named rows."""
    if hasattr(value, "__fields__"):  # a Row of Spark
        return dict(zip(value.__fields__, map(_builtins, value), strict=True))
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _builtins(part) for key, part in value.items()}
        return [[_builtins(key), _builtins(part)] for key, part in value.items()]
    return list(map(_builtins, value)) if isinstance(value, (list, tuple)) else value


def _largest(states: StateQueries, query: Mapping[str, str]) -> Any:
    found = states.largest(query["uid"], LARGEST)
    return {
        "uid": query["uid"],
        "keys": [
            {
                "key": text_of(each.key),
                "key_json": text_of_key(each.key),
                "partition": each.partition,
                "size_bytes": each.size_bytes,
            }
            for each in found
        ],
    }


def _error(status: int, text: str) -> Answer:
    return Answer(status, to_json({"error": text[:_MOST_ERROR]}), JSON)
