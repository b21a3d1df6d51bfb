"""What ``dstreams kafka`` does: offsets of a checkpoint beside those of the brokers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from checkpoint import CheckpointError, Files, open_existing, read_plan, stream_ids, stream_url
from dstreams.errors import InvalidStreamError, StreamError
from dstreams.kafka.checkpoint_offsets import PartitionLag, ask_brokers, inputs_read, lags_of
from dstreams.kafka.config_files import client_settings
from dstreams.kafka.parameters import KafkaParameters

_COLUMNS = ("topic", "partition", "committed", "begun", "first", "end", "lag")


@dataclass(frozen=True)
class OffsetsQuestion:
    """What is asked for.

    Args:
        url: of a checkpoint, or of one stream in it.
        stream: id of the stream, None for the newest one.
        brokers: host and port of one or more, None for those of *config*, or none.
        config: a file of settings of Kafka's clients.
        as_json: whether programs are to read the answer.
    """

    url: str
    stream: str | None = None
    brokers: str | None = None
    config: Path | None = None
    as_json: bool = False


def show_offsets(question: OffsetsQuestion, out: TextIO) -> bool:
    """Show the offsets of a checkpoint; True when every partition can go on as it is.

    Raises:
        InvalidStreamError: what is asked about is not there, or a setting cannot be.
        StreamError: the checkpoint cannot be read.
        SourceError: the brokers do not answer, or refuse to.
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
            "that does, or --stream for another one of its streams"
        )
    names = {one.topic for read in inputs for one in read.begun.offsets}
    brokers = None if parameters is None else ask_brokers(parameters, names)
    found = {read.uid: list(lags_of(read, brokers)) for read in inputs}
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
        yield "  lag in sum: unknown" if total is None else f"  lag in sum: {total:,}"


def _cells(lag: PartitionLag) -> tuple[object, ...]:
    return (lag.topic, lag.partition, lag.committed, lag.begun, lag.first, lag.end, lag.lag)


def _shown(cell: object) -> str:
    return "-" if cell is None else str(cell)


def _sum(lags: Iterable[PartitionLag]) -> int | None:
    """Return the lag of partitions in sum, None where it is known of none."""
    known = [lag.lag for lag in lags if lag.lag is not None]
    return sum(known) if known else None


def _printable(line: str) -> str:
    """Return a line in which nothing can change what the terminal shows of others."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
