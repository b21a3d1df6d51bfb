"""The statuses of streams and queries as JSON.

Fields have the names of :class:`dstreams.monitoring.status.StreamStatus` and its parts. Batches
also have ``scheduling_delay_ms``, ``processing_delay_ms`` and ``total_delay_ms``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from reprlib import Repr
from typing import Any

import msgspec

from dstreams.monitoring.events import BatchInfo, InputInfo, PendingBatch
from dstreams.monitoring.status import RunningBatch, StreamStatus

USUAL_BATCHES, MOST_BATCHES = 200, 1000
"""The default and the largest number of batches of a stream in a document."""

MOST_TEXT = 2000
_MOST_COUNTS = 1000
_WITH_OFFSETS = 10  # of possibly a thousand waiting batches
_DELAYS = ("scheduling_delay_ms", "processing_delay_ms", "total_delay_ms")
_METADATA = ("lag", "rejected")

Document = Mapping[str, Any]


@dataclass(frozen=True)
class ApplicationFacts:
    """The facts about this process.

    Args:
        name: name of the Spark application.
        id: its id.
        spark_ui: address of Spark's own page; None if it is off.
        version: version of dstreams.
        pyspark: version of PySpark.
        started_ms: when the SparkContext was created.
        settings: settings of Spark and dstreams, with secrets masked.
    """

    name: str
    id: str
    spark_ui: str | None
    version: str
    pyspark: str
    started_ms: int
    settings: Mapping[str, str] = field(default_factory=dict)


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
