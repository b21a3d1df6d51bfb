"""Rows of queries become records by the names of their fields, as in Spark."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from pyspark.sql import Row

from dstreams.common.durations import batch_datetime
from dstreams.errors import InvalidStreamError
from dstreams.kafka.decoding import KafkaRow, KafkaRowWithHeaders
from dstreams.kafka.kafka_sink import RowsToRecords
from dstreams.kafka.producers import ProducerRecord

NOW = batch_datetime(0)


class Pair(NamedTuple):
    """A row with two names, neither of which is key."""

    value: str
    topic: str


@pytest.mark.parametrize(
    ("row", "record"),
    [
        ({"value": b"v"}, ("t", None, None, b"v", None)),
        ({"value": None, "key": "k", "more": 1}, ("t", None, "k", None, None)),
        (Pair("v", "other"), ("t", None, None, "v", None)),
        (Row(key="k", value="v", partition=2), ("t", 2, "k", "v", None)),
        (KafkaRow(b"k", b"v", "from", 3, 7, NOW, 0), ("t", 3, b"k", b"v", None)),
        (
            KafkaRowWithHeaders(b"k", b"v", "from", 3, 7, NOW, 0, (("h", b"1"),)),
            ("t", 3, b"k", b"v", [("h", b"1")]),
        ),
        (("k", "v"), ("t", None, "k", "v", None)),
        ("v", ("t", None, None, "v", None)),
        (b"v", ("t", None, None, b"v", None)),
    ],
)
def test_rows(row: Any, record: tuple[Any, ...]) -> None:
    """Fields that Kafka has are taken, others passed over; the option is for all rows."""
    (made,) = RowsToRecords("t", "sink")([row])
    assert made == ProducerRecord(*record)


def test_topics_of_rows() -> None:
    """Without the option each row goes to the topic that it names."""
    (made,) = RowsToRecords(None, "sink")([Pair("v", "other")])
    assert made.topic == "other"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"key": "k"}, "sink: a row has no field value, but the fields key; map(f) rows to dicts"),
        (7, "sink: a row has no field value, but int; map(f) rows"),
        (("a", "b", "c"), "sink: a row has no field value, but tuple; map(f) rows"),
        (
            {"value": "v"},
            "sink: a row has the topic None; set its field topic to the name of a topic, or give "
            "the option topic for all rows",
        ),
    ],
)
def test_rows_that_are_refused(row: Any, reason: str) -> None:
    """The message says what a row has, and what it needs."""
    with pytest.raises(InvalidStreamError) as error:
        list(RowsToRecords(None, "sink")([row]))
    assert str(error.value).startswith(reason)
