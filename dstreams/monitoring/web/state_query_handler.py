"""Answers queries of state over HTTP; each runs a Spark job, so one at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dstreams.common.redaction import masked
from dstreams.errors import InvalidStreamError
from dstreams.monitoring.registry import StreamRegistry
from dstreams.monitoring.state_jobs import StateAccess
from dstreams.monitoring.web.documents import text_of, to_json
from dstreams.monitoring.web.requests import Answer

JSON = "application/json"
LARGEST = 20
_MOST_ERROR = 500


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

    def _ask(
        self,
        query: Mapping[str, str],
        names: tuple[str, ...],
        answer: Callable[[StateAccess, Mapping[str, str]], Any],
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
        if not self._one_at_a_time.acquire(blocking=False):
            busy = _error(429, "another state query is running; try again soon")
            return Answer(busy.status, busy.body, JSON, {"Retry-After": "1"})
        try:
            return Answer(200, to_json(answer(states, query)), JSON)
        except InvalidStreamError as error:
            return _error(400, str(error))
        except Exception as error:
            lines = masked(str(error)).splitlines() or [""]
            return _error(500, f"{type(error).__name__}: {lines[0]}")
        finally:
            self._one_at_a_time.release()


def key_of(text: str) -> Any:
    """Return the key for a text: JSON with lists as tuples, or the text itself.

    >>> key_of('["a", 1]'), key_of("5"), key_of('"5"'), key_of("Straße")
    (('a', 1), 5, '5', 'Straße')
    """
    try:
        return _tuples(json.loads(text))
    except (ValueError, RecursionError):
        return text


def text_of_key(key: Any) -> str | None:
    """Return the text for a key; None if there is none."""
    try:
        text = to_json(key).decode()
    except (TypeError, ValueError):
        return None
    return text if key_of(text) == key else None


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(each) for each in value)
    return value


def _look_up(states: StateAccess, query: Mapping[str, str]) -> Any:
    key = key_of(query["key"])
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


def _largest(states: StateAccess, query: Mapping[str, str]) -> Any:
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
