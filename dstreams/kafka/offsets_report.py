"""The command ``dstreams kafka``: offsets of a checkpoint compared with those of the brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from checkpoint import (
    INPUT_END,
    CheckpointError,
    Files,
    RecoveryPlan,
    open_existing,
    read_plan,
    stream_ids,
    stream_url,
)
from dstreams.common.clock import SystemClock
from dstreams.errors import InvalidStreamError, StreamError
from dstreams.kafka.offsets import Position, TopicPartition
from dstreams.kafka.parameters import KafkaParameters, client_settings
from dstreams.kafka.topics import EARLIEST, Topics, TopicSelection

_COLUMNS = ("topic", "partition", "committed", "begun", "first", "end", "lag")


@dataclass(frozen=True)
class ReadInput:
    """The position of an input in a checkpoint: of committed and of begun batches."""

    uid: str
    committed: Position
    begun: Position


@dataclass(frozen=True)
class BrokerOffsets:
    """The topic ids, first offsets and end offsets that brokers have."""

    ids: Mapping[str, str]
    first: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class PartitionLag:
    """The offsets of a partition in a checkpoint and at the brokers.

    Args:
        topic: its topic.
        partition: its number.
        committed: end of committed batches; None if they have not read it.
        begun: end of begun batches; None if they have not read it.
        first: the brokers' first offset; None if unknown.
        end: the brokers' end offset; None if unknown.
        lag: number of offsets after the committed one; None if unknown.
        problem: the reason why the input cannot resume here, or None.
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
    """Yield the Kafka inputs of a checkpoint."""
    begun: dict[str, Position] = {}
    committed: dict[str, Position] = {}
    for time_ms, record in sorted(plan.begins.items()):
        for uid, entry in record.inputs.items():
            end = entry.get(INPUT_END) if isinstance(entry, Mapping) else None
            if not Position.is_json(end):
                continue
            begun[uid] = Position.of_json(end)
            if plan.last_ms is not None and time_ms <= plan.last_ms:
                committed[uid] = begun[uid]
    for uid, position in sorted(begun.items()):
        yield ReadInput(uid, committed.get(uid, Position({}, {})), position)


def ask_brokers(parameters: KafkaParameters, names: set[str]) -> BrokerOffsets:
    """Return what brokers have of topics; unknown topics are omitted.

    Raises:
        SourceError: the brokers refuse or do not answer.
    """
    selection = TopicSelection(pattern="|".join(map(re.escape, sorted(names))))
    topics = Topics(parameters, selection, SystemClock(), parameters.where)
    try:
        state = topics.state()
        first = topics.offsets(dict.fromkeys(state.ends, EARLIEST))
    finally:
        topics.close()
    return BrokerOffsets(state.ids, first, state.ends)


def partition_lags(read: ReadInput, brokers: BrokerOffsets | None) -> Iterator[PartitionLag]:
    """Yield the partitions of an input; without *brokers*, only their side of the checkpoint."""
    known = read.begun.offsets
    names = {one.topic for one in known}
    found = () if brokers is None else (one for one in brokers.end if one.topic in names)
    for one in sorted({*known, *found}):
        committed, begun = read.committed.offsets.get(one), known.get(one)
        if brokers is None:
            yield PartitionLag(one.topic, one.partition, committed, begun)
            continue
        first, end = brokers.first.get(one), brokers.end.get(one)
        problem = _problem(one, read.begun, committed, brokers)
        lag = None
        if problem is None and end is not None:
            # Partitions that the newest batch did not know are read from their first record.
            start = committed if committed is not None else first if begun is None else None
            lag = None if start is None else max(0, end - start)
        yield PartitionLag(one.topic, one.partition, committed, begun, first, end, lag, problem)


def _problem(
    one: TopicPartition, begun: Position, committed: int | None, brokers: BrokerOffsets
) -> str | None:
    end, first = brokers.end.get(one), brokers.first.get(one, 0)
    if begun.is_of_old_topic(one.topic, brokers.ids):
        known_id, found_id = begun.topic_ids[one.topic], brokers.ids[one.topic]
        return f"the topic was deleted and created again: its id was {known_id} and is {found_id}"
    if end is None:
        has_topic = any(other.topic == one.topic for other in brokers.end)
        return "the partition does not exist" if has_topic else "the topic does not exist"
    if committed is not None and committed > end:
        return f"it ends {committed - end} offsets before the committed one"
    if committed is not None and committed < first:
        return f"{first - committed} offsets expired before they were read"
    return None


@dataclass(frozen=True)
class OffsetsQuestion:
    """The arguments of ``dstreams kafka``.

    Args:
        url: of a checkpoint, or of one stream in it.
        stream: id of the stream, None for the newest one.
        brokers: host and port of one or more; None for those of *config*, if any.
        config: a file of settings of Kafka's clients.
        as_json: whether to write JSON.
    """

    url: str
    stream: str | None = None
    brokers: str | None = None
    config: Path | None = None
    as_json: bool = False


def show_offsets(question: OffsetsQuestion, out: TextIO) -> bool:
    """Print the offsets of a checkpoint; return whether every partition can resume.

    Raises:
        InvalidStreamError: an argument or setting is invalid.
        StreamError: the checkpoint cannot be read.
        SourceError: the brokers refuse or do not answer.
        EnvironmentNotReadyError: the client of Kafka is not installed.
    """
    parameters = _parameters(question)
    try:
        files = _stream(question)
        plan = read_plan(files)
    except CheckpointError as error:
        raise StreamError(str(error)) from error
    inputs = list(inputs_read(plan))
    if not inputs:
        raise InvalidStreamError(
            f"{files.url} has no batch that reads Kafka; give the checkpoint of a stream or query "
            "that does, or --stream for another of its streams"
        )
    names = {one.topic for read in inputs for one in read.begun.offsets}
    brokers = None if parameters is None else ask_brokers(parameters, names)
    found = {read.uid: list(partition_lags(read, brokers)) for read in inputs}
    if question.as_json:
        answer = {
            "url": files.url,
            "stream": plan.stream_id,
            "last_batch_ms": plan.last_ms,
            "inputs": [
                {"uid": uid, "lag": _sum(lags), "partitions": [asdict(lag) for lag in lags]}
                for uid, lags in found.items()
            ],
        }
        out.write(json.dumps(answer, indent=2) + "\n")
    else:
        out.writelines(f"{_printable(line)}\n" for line in _lines(plan.stream_id, found))
    return not any(lag.problem for lags in found.values() for lag in lags)


def _parameters(question: OffsetsQuestion) -> KafkaParameters | None:
    if question.config is None and question.brokers is None:
        return None
    given = client_settings(question.brokers, question.config)
    return KafkaParameters.of(given, "the brokers to ask")


def _stream(question: OffsetsQuestion) -> Files:
    try:
        files = open_existing(question.url)
    except (FileNotFoundError, ValueError) as error:
        raise InvalidStreamError(f"{error}; give the location of a checkpoint") from None
    if question.stream is None and {"epochs", "batches"} & set(files.directories()):
        return files
    known = stream_ids(files)
    if not known:
        raise InvalidStreamError(f"{question.url} holds no stream; is it a checkpoint?")
    if question.stream is not None and question.stream not in known:
        raise InvalidStreamError(
            f"{question.url} has no stream {question.stream!r}; it has {', '.join(known)}"
        )
    return open_existing(stream_url(question.url, question.stream or known[0]))


def _lines(stream_id: str | None, found: Mapping[str, list[PartitionLag]]) -> Iterator[str]:
    yield f"stream {stream_id}"
    for uid, lags in found.items():
        yield f"input {uid}"
        rows = [_COLUMNS, *(tuple(map(_shown, _cells(lag))) for lag in lags)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row, lag in zip(rows, (None, *lags), strict=True):
            cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            line = "  ".join([row[0].ljust(widths[0]), *cells])
            problem = None if lag is None else lag.problem
            yield f"  {line}" if problem is None else f"  {line}  ! {problem}"
        total = _sum(lags)
        yield "  total lag: unknown" if total is None else f"  total lag: {total:,}"


def _cells(lag: PartitionLag) -> tuple[object, ...]:
    return (lag.topic, lag.partition, lag.committed, lag.begun, lag.first, lag.end, lag.lag)


def _shown(cell: object) -> str:
    return "-" if cell is None else str(cell)


def _sum(lags: Iterable[PartitionLag]) -> int | None:
    """Return the total lag, None if that of no partition is known."""
    known = [lag.lag for lag in lags if lag.lag is not None]
    return sum(known) if known else None


def _printable(line: str) -> str:
    """Escape control characters, which could change other output of the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
