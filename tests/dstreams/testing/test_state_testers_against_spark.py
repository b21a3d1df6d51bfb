"""Random commands to one processor, in Spark's TwsTester and here: equal rows and states."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from pyspark.sql import Row

from dstreams.testing import TransformWithStateTester

tws_tester = pytest.importorskip(
    "pyspark.sql.streaming.tws_tester", reason="Spark has TwsTester from PySpark 4.2 on"
)

KEYS = ("a", "b", 7)


class Processor:
    """Does what records say; timers change the list, too."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._value = handle.getValueState("value", "n long")
        self._list = handle.getListState("list", "n long")
        self._map = handle.getMapState("map", "name string", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            match row.command:
                case "update":
                    self._value.update((row.n,))
                case "clear":
                    for state in (self._value, self._list, self._map):
                        state.clear()
                case "append":
                    self._list.appendList([(row.n,), (row.n + 1,)])
                case "put":
                    self._list.put([(row.n,)])
                case "entry":
                    self._map.updateValue((f"m{row.n % 5}",), (row.n,))
                case "remove":
                    self._map.removeKey((f"m{row.n % 5}",))
                case "timer":
                    self._handle.registerTimer(row.n + 1000)
                case "cancel":
                    for time_ms in list(self._handle.listTimers())[:1]:
                        self._handle.deleteTimer(time_ms)
            yield self._seen(key, row.command, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield self._seen(key, str(expiredTimerInfo.getExpiryTimeInMs()), timerValues)
        self._list.appendValue((expiredTimerInfo.getExpiryTimeInMs(),))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self._value.update((initialState.n,))

    def close(self) -> None: ...

    def _seen(self, key: Any, what: str, timers: Any) -> Row:
        entries = sorted((tuple(name), tuple(row)) for name, row in self._map.iterator())
        return Row(
            key=key[0],
            what=what,
            value=self._value.get(),
            rows=list(self._list.get()),
            entries=entries,
            timers=list(self._handle.listTimers()),
            now=timers.getCurrentProcessingTimeInMs(),
            watermark=timers.getCurrentWatermarkInMs(),
        )


COMMANDS = ("update", "clear", "append", "put", "entry", "remove", "timer", "cancel")


def states(tester: Any) -> list[Any]:
    return [
        (
            tester.peekValueState("value", key),
            tester.peekListState("list", key),
            {tuple(name): tuple(row) for name, row in tester.peekMapState("map", key).items()},
        )
        for key in KEYS
    ]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mode", ["ProcessingTime", "EventTime"])
def test_random_commands(mode: str, seed: int) -> None:
    """Rows come in the same order, and the states are equal after each call."""
    random, now_ms = Random(seed), 0
    times = {"eventTimeExtractor": lambda row: row.n} if mode == "EventTime" else {}
    initial = [("a", Row(n=-1))]
    spark = tws_tester.TwsTester(Processor(), initial, timeMode=mode, **times)
    own = TransformWithStateTester(Processor(), initial, timeMode=mode, **times)
    for _ in range(30):
        if random.random() < 0.3:
            now_ms += random.randrange(1, 900)
            name = "setProcessingTime" if mode == "ProcessingTime" else "setWatermark"
            expected, found = (getattr(each, name)(now_ms) for each in (spark, own))
            # Spark's tester goes key by key, a query by the times of the timers.
            assert sorted(found, key=repr) == sorted(expected, key=repr)
        else:
            key = random.choice(KEYS)
            rows = [
                Row(command=random.choice(COMMANDS), n=now_ms + random.randrange(-50, 100))
                for _ in range(random.randrange(1, 6))
            ]
            assert own.test(key, rows) == spark.test(key, rows)
        assert states(own) == states(spark)
