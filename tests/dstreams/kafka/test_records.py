"""Records of the client's messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dstreams.kafka.decoding import AsRecords
from dstreams.kafka.offsets import OffsetRange
from dstreams.kafka.records import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP, ConsumerRecord

RANGE = OffsetRange("t", 2, 0, 10)


@dataclass
class Message:
    """What the client gives, as far as records need it."""

    said: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return lambda: self.said[name]


def message(
    offset: int,
    key: bytes | None = None,
    value: bytes | None = None,
    timestamp: tuple[int, int] = (1, 1000),
    headers: Any = None,
) -> Message:
    fields = {"offset": offset, "key": key, "value": value}
    return Message({**fields, "timestamp": timestamp, "headers": headers})


def test_each_field() -> None:
    """Keys, values, headers and times are there as they were sent, nulls too."""
    records = AsRecords()(
        RANGE,
        [
            message(4, b"k", b"v", headers=[("a", b"1"), ("a", None)]),
            message(5, timestamp=(2, 2000)),
            message(9, b"", b"", timestamp=(0, -1), headers=[]),
        ],
    )
    assert list(records.records) == [
        ConsumerRecord("t", 2, 4, 1000, CREATE_TIME, (("a", b"1"), ("a", None)), b"k", b"v"),
        ConsumerRecord("t", 2, 5, 2000, LOG_APPEND_TIME, (), None, None),
        ConsumerRecord("t", 2, 9, -1, NO_TIMESTAMP, (), b"", b""),
    ]
    assert all(isinstance(record, ConsumerRecord) for record in records.records)
    assert not records.rejected
