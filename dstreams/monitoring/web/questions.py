"""Questions about the state of one key, or the largest ones: each is a job, so one at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dstreams.common.redaction import masked
from dstreams.errors import InvalidStreamError
from dstreams.monitoring.application import Application
from dstreams.monitoring.state_access import StateAccess
from dstreams.monitoring.web.documents import text_of, to_json
from dstreams.monitoring.web.requests import Answer

JSON = "application/json"
LARGEST = 20
_MOST_ERROR = 500


class Questions:
    """Looks into the states of what runs."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._one_at_a_time = threading.Lock()

    def state(self, query: Mapping[str, str]) -> Answer:
        """Answer with what there is for one key."""
        return self._ask(query, ("stream", "uid", "key"), _look_up)

    def largest(self, query: Mapping[str, str]) -> Answer:
        """Answer with the keys whose states are the largest."""
        return self._ask(query, ("stream", "uid"), _largest)

    def _ask(
        self,
        query: Mapping[str, str],
        names: tuple[str, ...],
        answer: Callable[[StateAccess, Mapping[str, str]], Any],
    ) -> Answer:
        missing = [name for name in names if name not in query]
        if missing:
            return _error(400, f"parameter {missing[0]} is missing; there are {', '.join(names)}")
        states = self._states(query["stream"])
        if states is None:
            return _error(404, "no stream of that run id runs and has state that can be looked at")
        if not self._one_at_a_time.acquire(blocking=False):
            busy = _error(429, "another question runs, and each is a job; ask again soon")
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

    def _states(self, run_id: str) -> StateAccess | None:
        for monitor in self._application.monitors():
            if monitor.run_id == run_id:
                return monitor.states
        return None


def key_of(text: str) -> Any:
    """Return the key that a text stands for: JSON, in which lists are tuples, or the text itself.

    >>> key_of('["a", 1]'), key_of("5"), key_of('"5"'), key_of("Straße")
    (('a', 1), 5, '5', 'Straße')
    """
    try:
        return _tuples(json.loads(text))
    except (ValueError, RecursionError):
        return text


def text_of_key(key: Any) -> str | None:
    """Return the text that stands for a key, None where there is none."""
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
