"""A program of each kind over the same numbers; each of its functions passes a gate.

Batch 1, 2, ... has the next ``RECORDS`` numbers, from 0 on. The key of a number is its remainder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import RDD

from dstreams import DStream, GroupState, State, StateSpec, StreamingContext
from dstreams.arrow import GroupedValues
from dstreams.kafka import ConsumerStrategies, KafkaUtils, LocationStrategies
from dstreams.structured import StreamSession
from dstreams.structured.api.query import StreamingQuery
from tests.support.gates import pass_gate

RECORDS, KEYS = 60, 7

Numbers = DStream[int]
Rows = DStream[list[int]]
Total = tuple[int, int]
"""The number of records, and the sum of their numbers."""


def numbers_of(batch: int) -> range:
    return range((batch - 1) * RECORDS, batch * RECORDS)


def key_of(number: int) -> int:
    return number % KEYS


def keyed(phase: str, number: Any) -> tuple[int, int]:
    pass_gate(phase)
    return key_of(int(number)), int(number)


def shown(phase: str, row: Any) -> list[int]:
    pass_gate(phase)
    return list(row)


def plus(numbers: Iterable[int], total: Total | None) -> Total:
    count, amount = total or (0, 0)
    new = list(numbers)
    return count + len(new), amount + sum(new)


# The main job: updateStateByKey.


def update(new: Sequence[int], total: Total | None) -> Total:
    pass_gate("main.state")
    return plus(new, total)


def flat(item: tuple[int, Total]) -> tuple[int, ...]:
    return item[0], *item[1]


def main_job(numbers: Numbers) -> Rows:
    """All keys in every batch: key, count, sum."""
    totals = numbers.map(partial(keyed, "main.map")).updateStateByKey(update, uid="main")
    return totals.map(flat).map(partial(shown, "main.output"))


# Stored state: mapWithState and flatMapGroupsWithState.


def count_record(
    phase: str, key: int, number: int | None, state: State[Total]
) -> tuple[int | None, ...]:
    pass_gate(phase)
    state.update(plus([number or 0], state.getOption))
    return number, key, *state.get


def stored(numbers: Numbers) -> Rows:
    """A row for each record: number, key, count, sum."""
    function = partial(count_record, "stored.state")
    pairs = numbers.map(partial(keyed, "stored.map"))
    rows = pairs.mapWithState(StateSpec.function(function), uid="stored")
    return rows.map(partial(shown, "stored.output"))


def count_group(
    phase: str, key: int, numbers: Iterator[int], state: GroupState[tuple[int, int, int]]
) -> Iterator[tuple[int, int, int, int]]:
    pass_gate(phase)
    calls, *total = state.getOption or (0, 0, 0)
    counted = (calls + 1, *plus(numbers, (total[0], total[1])))
    state.update(counted)
    yield key, *counted


def groups(numbers: Numbers) -> Rows:
    """A row for each key of the batch: key, calls, count, sum."""
    pairs = numbers.map(partial(keyed, "groups.map"))
    rows = pairs.flatMapGroupsWithState(partial(count_group, "groups.state"), uid="groups")
    return rows.map(partial(shown, "groups.output"))


# Blocks.


def with_key(block: pa.RecordBatch) -> pa.RecordBatch:
    pass_gate("blocks.map")
    numbers = block.column("number")
    keys = pa.array([key_of(number) for number in numbers.to_pylist()], pa.int64())
    return pa.record_batch({"key": keys, "number": numbers})


def update_blocks(
    keys: pa.RecordBatch, values: GroupedValues, state: pa.RecordBatch
) -> pa.RecordBatch:
    pass_gate("blocks.state")
    new = {"count": values.count(), "total": values.sum("number")}
    return pa.record_batch(
        {
            name: pc.add(pc.fill_null(state.column(name), 0), pc.fill_null(added, 0))
            for name, added in new.items()
        }
    )


def blocks(numbers: Numbers) -> Rows:
    """The rows of the main job, from a state in blocks."""
    records = numbers.map(lambda number: (number,)).toBlocks({"number": int})
    totals = records.mapBlocks(with_key, {"key": int, "number": int}).updateStateByKey(
        update_blocks, key="key", state={"count": int, "total": int}, uid="blocks"
    )
    return totals.toRows().map(partial(shown, "blocks.output"))


STREAMS: dict[str, Callable[[Numbers], Rows]] = {
    "main": main_job,
    "stored": stored,
    "groups": groups,
    "blocks": blocks,
}


# Kafka: from a topic to a topic, exactly once.


def value_of(record: Any) -> int:
    return int(record.value)


def line(row: Any) -> str:
    return json.dumps(shown("kafka.output", row))


def from_topic_to_topic(ssc: StreamingContext, brokers: str, source: str, target: str) -> None:
    """Write the rows of ``stored`` to a topic."""
    parameters = {"bootstrap.servers": brokers}
    records = KafkaUtils.createDirectStream(
        ssc,
        LocationStrategies.PreferConsistent,
        ConsumerStrategies.Subscribe([source], {**parameters, "auto.offset.reset": "earliest"}),
    )
    pairs = records.map(value_of).map(partial(keyed, "kafka.map"))
    function = StateSpec.function(partial(count_record, "kafka.state"))
    pairs.mapWithState(function, uid="kafka").saveToKafka(target, parameters, value=line)


# A structured query, whose batches are files.


def query(
    session: StreamSession, directory: Path, checkpoint: str, keep: Callable[[str, int, RDD], None]
) -> StreamingQuery:
    """The rows of ``groups``: key, calls, count, sum."""
    lines = session.readStream.text(directory, maxFilesPerTrigger=1)
    totals = lines.groupByKey(lambda text: keyed("query.map", text)[0]).flatMapGroupsWithState(
        lambda key, texts, state: count_group("query.state", key, map(int, texts), state),
        "update",
        name="query",
    )
    rows = totals.map(partial(shown, "query.output"))
    writer = rows.writeStream.outputMode("update").foreachBatch(
        lambda rdd, number: keep("query", number + 1, rdd)
    )
    return writer.option("checkpointLocation", checkpoint).start()
