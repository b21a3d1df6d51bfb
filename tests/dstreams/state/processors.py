"""Stateful processors for tests: every method of states and timers is called by a record.

Records are tuples ``(key, command, *arguments)``, or Rows with such a tuple in ``command``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.types import LongType, StringType, StructField, StructType

from dstreams.structured import StatefulProcessor, StatefulProcessorHandle, TimerValues

NUMBER = StructType([StructField("number", LongType())])
TEXT = StructType([StructField("text", StringType())])


class Commands(StatefulProcessor):
    """Does what records say to a value, a list and a map, and returns what it reads.

    Args:
        ttl_ms: of all three, None for no TTL.
        deletes: names of state variables to delete.
        without: names of state variables that it does not define.
    """

    def __init__(
        self, ttl_ms: int | None = None, deletes: Iterable[str] = (), without: Iterable[str] = ()
    ) -> None:
        self._ttl_ms, self._deletes, self._without = ttl_ms, tuple(deletes), tuple(without)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        for name in self._deletes:
            handle.deleteIfExists(name)
        self._states: dict[str, Any] = {}
        if "value" not in self._without:
            self._states["value"] = handle.getValueState("value", NUMBER, self._ttl_ms)
        if "list" not in self._without:
            self._states["list"] = handle.getListState("list", NUMBER, self._ttl_ms)
        if "map" not in self._without:
            self._states["map"] = handle.getMapState("map", TEXT, NUMBER, self._ttl_ms)

    def handleInputRows(
        self, key: tuple[Any, ...], rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[Any]:
        for record in rows:
            name, method, *arguments = record[1:]
            if name == "times":
                found: Any = (
                    timerValues.getCurrentProcessingTimeInMs(),
                    timerValues.getCurrentWatermarkInMs(),
                )
            else:
                owner = self._handle if name == "timers" else self._states[name]
                found = getattr(owner, method)(*arguments)
            if isinstance(found, Iterator):
                found = list(found)
            if found is not None or method in ("get", "getValue"):
                yield (*key, found)

    def handleExpiredTimer(
        self, key: tuple[Any, ...], timerValues: TimerValues, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        expiry_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield (*key, "timer", expiry_ms, list(self._handle.listTimers()))
        if expiry_ms % 10:  # again, ten milliseconds later
            self._handle.registerTimer(expiry_ms + 10)

    def handleInitialState(
        self, key: tuple[Any, ...], initialState: Any, timerValues: TimerValues
    ) -> None:
        self._states["list"].appendValue((initialState,))
