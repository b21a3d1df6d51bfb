"""How far the batches of a checkpoint have read topics, beside what the brokers have of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from checkpoint import INPUT_END, RecoveryPlan
from dstreams.common.clock import SystemClock
from dstreams.kafka.offsets import Position, TopicPartition
from dstreams.kafka.parameters import KafkaParameters
from dstreams.kafka.topics import EARLIEST, Selection, Topics


@dataclass(frozen=True)
class ReadInput:
    """How far one input of a checkpoint has read.

    Args:
        uid: its uid.
        committed: up to where the committed batches have read.
        begun: up to where batches read that are begun: no less.
    """

    uid: str
    committed: Position
    begun: Position


@dataclass(frozen=True)
class BrokerOffsets:
    """What brokers have of some topics.

    Args:
        ids: of the topics, by name.
        first: the first offset that each partition has.
        end: the offset after its last record.
    """

    ids: Mapping[str, str]
    first: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class PartitionLag:
    """One partition, as a checkpoint and the brokers know it.

    Args:
        topic: its topic.
        partition: its number.
        committed: up to where committed batches have read it; None for not at all.
        begun: up to where batches read that are begun; None for not at all.
        first: the first offset that the brokers have; None where nobody has asked, or it is gone.
        end: the offset after its last record; likewise.
        lag: how many offsets no committed batch has read; None where that cannot be said.
        problem: why the input cannot go on here as it is, None for no reason.
    """

    topic: str
    partition: int
    committed: int | None
    begun: int | None
    first: int | None = None
    end: int | None = None
    lag: int | None = None
    problem: str | None = None


def inputs_read(plan: RecoveryPlan) -> Iterator[ReadInput]:
    """Yield the inputs of Kafka that a checkpoint knows."""
    begun: dict[str, Position] = {}
    committed: dict[str, Position] = {}
    for time_ms, record in sorted(plan.begins.items()):
        for uid, said in record.inputs.items():
            end = said.get(INPUT_END) if isinstance(said, Mapping) else None
            if not Position.is_json(end):
                continue
            begun[uid] = Position.of_json(end)
            if plan.last_ms is not None and time_ms <= plan.last_ms:
                committed[uid] = begun[uid]
    for uid, position in sorted(begun.items()):
        yield ReadInput(uid, committed.get(uid, Position({}, {})), position)


def ask_brokers(parameters: KafkaParameters, names: set[str]) -> BrokerOffsets:
    """Ask brokers what they have of topics; those that they do not have are left out.

    Raises:
        SourceError: no broker answers within half a minute, or they refuse to say.
    """
    selection = Selection(pattern="|".join(map(re.escape, sorted(names))))
    topics = Topics(parameters, selection, SystemClock(), parameters.where, lambda *_: None)
    try:
        seen = topics.look()
        first = topics.offsets(dict.fromkeys(seen.ends, EARLIEST))
    finally:
        topics.close()
    return BrokerOffsets(seen.ids, first, seen.ends)


def lags_of(read: ReadInput, brokers: BrokerOffsets | None) -> Iterator[PartitionLag]:
    """Yield the partitions of an input, without the brokers' side where they are None."""
    known = read.begun.offsets
    names = {one.topic for one in known}
    there = () if brokers is None else (one for one in brokers.end if one.topic in names)
    for one in sorted({*known, *there}):
        committed, begun = read.committed.offsets.get(one), known.get(one)
        if brokers is None:
            yield PartitionLag(one.topic, one.partition, committed, begun)
            continue
        first, end = brokers.first.get(one), brokers.end.get(one)
        problem = _problem(one, read.begun, committed, brokers)
        lag = None
        if problem is None and end is not None:
            # What was not known when the newest batch was begun is read from its first record.
            start = committed if committed is not None else first if begun is None else None
            lag = None if start is None else max(0, end - start)
        yield PartitionLag(one.topic, one.partition, committed, begun, first, end, lag, problem)


def _problem(
    one: TopicPartition, begun: Position, committed: int | None, brokers: BrokerOffsets
) -> str | None:
    known_id, found_id = begun.topic_ids.get(one.topic), brokers.ids.get(one.topic)
    end, first = brokers.end.get(one), brokers.first.get(one, 0)
    if known_id is not None and found_id is not None and known_id != found_id:
        return f"the topic was deleted and made again: its id was {known_id} and is {found_id}"
    if end is None:
        is_there = any(other.topic == one.topic for other in brokers.end)
        return "there is no such partition" if is_there else "there is no such topic"
    if committed is not None and committed > end:
        return f"it ends {committed - end} offsets before the committed one"
    if committed is not None and committed < first:
        return f"{first - committed} offsets have expired before they were read"
    return None
