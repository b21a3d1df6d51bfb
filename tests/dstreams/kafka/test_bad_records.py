"""Records that cannot be decoded fail the batch, or are skipped and become dead letters."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.errors import BatchFailedError, InvalidStreamError
from dstreams.kafka import (
    ConsumerStrategies,
    DeadLetter,
    JsonDecoder,
    KafkaDStream,
    KafkaUtils,
    LocationStrategies,
    OffsetRange,
)
from dstreams.testing import BatchDriver
from tests.support.kafka_cluster import KafkaCluster, Sent

JSON = JsonDecoder(dict[str, int])


def stream_of(
    driver: BatchDriver, kafka: KafkaCluster, topic: str, **more: Any
) -> KafkaDStream[Any]:
    parameters = {
        "bootstrap.servers": kafka.bootstrap,
        "auto.offset.reset": "earliest",
        "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "value.deserializer": JSON,
    }
    strategy = ConsumerStrategies.Subscribe([topic], parameters)
    return KafkaUtils.createDirectStream(
        driver.context, LocationStrategies.PreferConsistent, strategy, **more
    )


def test_records_that_are_left_out(sc: SparkContext, kafka: KafkaCluster) -> None:
    """The batch has the others and counts the skipped records, which are dead letters."""
    topic = kafka.create_topic(2)
    good, bad = Sent('{"n": 1}', "a", 0), Sent("{", "b", 0, (("from", b"test"),), 1_700_000_000_000)
    kafka.produce(topic, [good, bad, Sent('{"n": 2}', b"\xff", 1), Sent(None, "c", 1)])
    with BatchDriver(sc) as driver:
        records = stream_of(driver, kafka, topic, badRecords="DROPMALFORMED")
        values = driver.output(records.map(lambda record: (record.key, record.value)))
        letters = driver.output(records.deadLetters())
        (info,) = driver.run(1)
        assert sorted(values[0] or []) == [("a", {"n": 1}), ("c", None)]
        assert sorted(letters[0] or [], key=lambda letter: letter.partition) == [
            DeadLetter(
                topic, 0, 1, 1_700_000_000_000, 0, (("from", b"test"),), b"b", b"{", "value",
                "DecodeError: Input data was truncated",
            ),
            (letters[0] or [])[1],
        ]  # fmt: skip
        assert (letters[0] or [])[1].part == "key"
        (read,) = info.inputs
        assert read.metadata["rejected"] == 2
        assert read.description.endswith("; 2 could not be decoded and were skipped")
        assert read.records == 4
        kafka.produce(topic, [good])
        (info,) = driver.run(1)
        assert letters[1] == []
        assert "rejected" not in info.inputs[0].metadata


def test_a_record_that_fails_the_batch(sc: SparkContext, kafka: KafkaCluster) -> None:
    """The error has its topic, partition and offset."""
    topic = kafka.create_topic()
    kafka.produce(topic, [Sent('{"n": 1}'), Sent('{"n": "one"}')])
    with BatchDriver(sc) as driver:
        driver.output(stream_of(driver, kafka, topic))
        with pytest.raises(BatchFailedError) as error:
            driver.run(1)
    said = str(error.value.__cause__)
    assert f"DecodeError: topic {topic!r}, partition 0, offset 1: JsonDecoder(dict[str, int])" in (
        said.replace("dstreams.errors.", "")
    )
    assert "Expected `int`, got `str`" in said


def test_dead_letters_of_ranges(sc: SparkContext, kafka: KafkaCluster) -> None:
    """An RDD of ranges has them as well."""
    topic = kafka.create_topic()
    kafka.produce(topic, ["1", "x", "3"])
    rdd = KafkaUtils.createRDD(
        sc,
        {"bootstrap.servers": kafka.bootstrap, "value.deserializer": int},
        [OffsetRange(topic, 0, 0, 3)],
        LocationStrategies.PreferConsistent,
        badRecords="DROPMALFORMED",
    )
    assert [record.value for record in rdd.collect()] == [1, 3]
    assert rdd.rejectedRecords() == 1
    assert [letter.value for letter in rdd.deadLetters().collect()] == [b"x"]


def test_there_are_none_where_a_bad_record_fails_the_batch(sc: SparkContext) -> None:
    """Asking for them is refused, with what to do; so is a rule that there is not."""
    nowhere = KafkaCluster("localhost:1")
    with BatchDriver(sc) as driver:
        with pytest.raises(InvalidStreamError, match="read the topic with badRecords='DROPMALFOR"):
            stream_of(driver, nowhere, "t").deadLetters()
        with pytest.raises(InvalidStreamError) as error:
            stream_of(driver, nowhere, "t", badRecords="PERMISSIVE")
    assert str(error.value) == (
        "badRecords of createDirectStream is 'PERMISSIVE'; use one of FAILFAST, DROPMALFORMED"
    )
