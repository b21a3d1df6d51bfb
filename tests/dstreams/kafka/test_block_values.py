"""Values of Kafka's records as blocks, with columns of the records."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.errors import BatchFailedError, InvalidStreamError
from dstreams.kafka import ConsumerStrategies, KafkaDStream, KafkaUtils, LocationStrategies
from dstreams.testing import BatchDriver
from tests.support.kafka_cluster import KafkaCluster, Sent

pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")

SALE = {"shop": str | None, "cents": int | None}
TIME_MS = 1_700_000_000_123


def stream_of(
    driver: BatchDriver, kafka: KafkaCluster, topic: str, **more: Any
) -> KafkaDStream[Any]:
    parameters = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest", **more}
    strategy = ConsumerStrategies.Subscribe([topic], parameters)
    return KafkaUtils.createDirectStream(
        driver.context, LocationStrategies.PreferConsistent, strategy
    )


def test_values_and_columns_of_records(sc: SparkContext, kafka: KafkaCluster) -> None:
    """Records with malformed values are skipped and counted in the input."""
    topic = kafka.create_topic()
    good = Sent('{"shop": "ü", "cents": 1}', "a", 0, (), TIME_MS)
    kafka.produce(topic, [good, Sent("{", "b", 0, (), TIME_MS), Sent(None, "c", 0, (), TIME_MS)])
    columns = ("key", "topic", "partition", "offset", "timestamp", "timestampType")
    with BatchDriver(sc) as driver:
        records = stream_of(driver, kafka, topic)
        blocks = records.toBlocks(SALE, format="json", mode="DROPMALFORMED", columns=columns)
        assert blocks.schema is not None
        assert blocks.schema.names == [*SALE, *columns]
        rows = driver.output(blocks.toRows())
        lengths = driver.output(records.map(lambda record: record.offset))
        (info,) = driver.run(1)
    at = datetime.fromtimestamp(TIME_MS / 1000, timezone.utc)
    assert rows[0] == [
        ("ü", 1, b"a", topic, 0, 0, at, 0),
        (None, None, b"c", topic, 0, 2, at, 0),
    ]
    assert lengths[0] == [0, 1, 2]
    assert info.inputs[0].metadata["rejected"] == 1
    assert info.inputs[0].records == 3


@pytest.mark.deep
def test_a_value_that_fails_the_batch(sc: SparkContext, kafka: KafkaCluster) -> None:
    """The error has its topic, partition and offset, and what to do."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["a,1", "", "b,1.5"])
    with BatchDriver(sc) as driver:
        driver.output(stream_of(driver, kafka, topic).toBlocks(SALE, format="csv"))
        with pytest.raises(BatchFailedError) as error:
            driver.run(1)
    said = str(error.value.__cause__)
    assert f"topic {topic!r}, partition 0, offset 1: toBlocks at test_block_values.py:" in said
    assert "or skip such records with mode='DROPMALFORMED'" in said


def test_what_cannot_be_defined(sc: SparkContext) -> None:
    """Columns that records do not have, twice, or without a format."""
    nowhere = KafkaCluster("localhost:1")
    with BatchDriver(sc) as driver:
        records = stream_of(driver, nowhere, "t", **{"key.deserializer": len})
        for says, options in {
            r"columns of toBlocks .* must be some of key, .* got \['value'\]": {
                "columns": ["value"]
            },
            "bytes or text, but .*len.* decodes keys": {"columns": ["key"]},
        }.items():
            with pytest.raises(InvalidStreamError, match=says):
                records.toBlocks(SALE, format="json", **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidStreamError, match="the column 'topic' more than once"):
            records.toBlocks({"topic": str}, format="json", columns=["topic"])
        with pytest.raises(InvalidStreamError, match="give a format as well"):
            records.toBlocks(SALE, columns=["topic"])
