"""One stateful processor in Spark and here: random commands, batch by batch equal rows."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import pytest
from py4j import java_gateway, protocol
from pyspark import SparkContext
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from dstreams.structured import StreamingDataset, StreamSession
from tests.dstreams.structured.runs import QueryRun

for package, name in {"pandas": "'pandas<3'", "google.protobuf": "protobuf"}.items():
    pytest.importorskip(package, reason=f"Spark's transformWithState needs it: pip install {name}")
if int(version("pandas").partition(".")[0]) >= 3:
    pytest.skip("PySpark warns of pandas 3: pip install 'pandas<3'", allow_module_level=True)

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FIELDS = "n long, t long, user string, command string, number long"
OUTPUT = "user string, text string"


class RandomCommands(StatefulProcessor):
    """Does what records say, and returns all that it can see afterwards."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._value = handle.getValueState("value", "number long")
        self._list = handle.getListState("list", "number long, text string")
        self._map = handle.getMapState("map", "key string", "number long")

    def handleInputRows(
        self, key: tuple[Any, ...], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.n):
            self._do(row.command, row.number)
            yield self._seen(key, f"{row.command} {timerValues.getCurrentWatermarkInMs()}")

    def handleExpiredTimer(
        self, key: tuple[Any, ...], timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        expiry_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield self._seen(key, f"timer {expiry_ms} {timerValues.getCurrentWatermarkInMs()}")
        self._list.appendValue((expiry_ms, None))

    def close(self) -> None:
        pass

    def _do(self, command: str, number: int) -> None:
        key = (str(number % 5),)
        if command == "update":
            self._value.update((number,))
        elif command == "append":
            self._list.appendValue((number, "one"))
        elif command == "extend":
            self._list.appendList([(number, "a"), (-number, None)])
        elif command == "put":
            self._list.put([(number, "put")])
        elif command == "set":
            self._map.updateValue(key, (number,))
        elif command == "unset":
            self._map.removeKey(key)
        elif command == "clear":
            (self._value, self._list, self._map)[number % 3].clear()
        elif command == "timer":
            self._handle.registerTimer(1000 * number)
        elif command == "untimer":
            for timer in sorted(self._handle.listTimers())[:1]:
                self._handle.deleteTimer(timer)

    def _seen(self, key: tuple[Any, ...], text: str) -> Row:
        value = tuple(self._value.get() or ()), self._value.exists()
        rows = list(map(tuple, self._list.get())), self._list.exists()
        entries = sorted((tuple(k), tuple(v)) for k, v in self._map.iterator())
        known = [(k, self._map.containsKey((k,)), self._map.getValue((k,))) for k in "01"]
        shown = [(k, found, None if row is None else tuple(row)) for k, found, row in known]
        timers = sorted(self._handle.listTimers())
        return Row(user=key[0], text=f"{text} {value} {rows} {entries} {shown} {timers}")


COMMANDS = ("update", "append", "extend", "put", "set", "unset", "clear", "timer", "untimer")


def batches_of(seed: int) -> list[list[dict[str, Any]]]:
    """Return batches whose event times go on; numbers of timers are seconds around them."""
    random = Random(seed)
    found, n = [], 0
    for second in range(10, 80, 10):
        batch = []
        for _ in range(8):
            n += 1
            command = random.choice(COMMANDS)
            number = second + random.randint(-5, 25) if command == "timer" else random.randint(0, 9)
            time = second + random.randint(-15, 4)
            user = random.choice("abc")
            record = {"n": n, "t": time, "user": user, "command": command, "number": number}
            batch.append(record)
        found.append(batch)
    return found


@pytest.fixture
def spark(sc: SparkContext) -> Iterator[SparkSession]:
    """Spark's own engine with RocksDB, and two partitions of state."""
    found = SparkSession(sc).newSession()
    for name, value in {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": ROCKS,
    }.items():
        found.conf.set(name, value)
    yield found
    for query in found.streams.active:
        query.stop()
    vars(java_gateway)["get_return_value"] = protocol.get_return_value


def by_spark(spark: SparkSession, directory: Path, batches: list[Any]) -> list[Counter[Any]]:
    """Return the rows of each batch, with those of the batch without data after it."""
    incoming, staging = directory / "in", directory / "staging"
    incoming.mkdir(parents=True)
    staging.mkdir()
    rows = spark.readStream.schema(FIELDS).json(str(incoming))
    marked = rows.withColumn("time", f.timestamp_seconds("t")).withWatermark("time", "5 seconds")
    query = (
        marked.groupBy("user")
        .transformWithState(RandomCommands(), OUTPUT, "append", "eventTime")
        .writeStream.format("memory")
        .queryName(directory.name)
        .outputMode("append")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    found: list[Counter[Any]] = []
    before: Counter[Any] = Counter()
    for number, batch in enumerate(batches):
        written = staging / f"{number}.json"
        written.write_text("\n".join(map(json.dumps, batch)), encoding="utf-8")
        shutil.move(written, incoming / written.name)
        query.processAllAvailable()
        table = Counter(map(tuple, spark.table(str(query.name)).collect()))
        found.append(table - before)
        before = table
    query.stop()
    return found


def second_ms(record: dict[str, Any]) -> int:
    return int(record["t"]) * 1000


def transformed(records: StreamingDataset) -> StreamingDataset:
    marked = records.withWatermark(second_ms, "5 seconds").groupByKey("user")
    return marked.transformWithState(RandomCommands(), OUTPUT, "append", "eventTime")


@pytest.mark.deep
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_commands(
    spark: SparkSession, session: StreamSession, tmp_path: Path, seed: int
) -> None:
    """Values, lists, maps, timers, late rows: the same rows in each batch, with restarts here."""
    batches = batches_of(seed)
    theirs = by_spark(spark, tmp_path / f"spark_{seed}", batches)
    run = QueryRun(session, transformed, "append", tmp_path / "ours")
    for number, batch in enumerate(batches):
        if number % 3 == 2:
            run.restart()
        assert Counter(map(tuple, run.add(*batch))) == theirs[number], f"batch {number}"
