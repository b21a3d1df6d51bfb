"""Options of the source kafka: accepted and refused as in Spark."""

from __future__ import annotations

from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.kafka.offsets import TopicPartition
from dstreams.kafka.topics import EARLIEST, LATEST, TopicSelection
from dstreams.structured.sources.kafka_options import Bound, KafkaOptions

BROKERS = {"kafka.bootstrap.servers": "localhost:9092"}
TOPIC = {**BROKERS, "subscribe": "t"}


def test_defaults() -> None:
    """A query begins at the end, and fails where data was lost; read has all that there is."""
    options = KafkaOptions.of(TOPIC, is_stream=True)
    assert options.selection == TopicSelection(("t",))
    assert options.starting == Bound("startingOffsets", everywhere=LATEST)
    assert (options.most, options.least, options.delay_ms) == (None, None, 15 * 60_000)
    assert (options.fails_on_data_loss, options.has_headers) == (True, False)
    assert options.least_partitions is None
    assert options.parameters.group == "spark-kafka-source"
    read = KafkaOptions.of(TOPIC, is_stream=False)
    assert read.starting == Bound("startingOffsets", everywhere=EARLIEST)
    assert read.ending == Bound("endingOffsets", everywhere=LATEST, falls_back=False)


def test_texts_and_values() -> None:
    """Options are texts, as of Spark, or values of Python; the case of names does not matter."""
    texts = {
        "SUBSCRIBE": " a, b ,a",
        "startingoffsets": '{"a": {"0": 23, "1": -1}, "b": {"0": -2}}',
        "maxOffsetsPerTrigger": "100",
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "2m",
        "minPartitions": "8",
        "failOnDataLoss": "FALSE",
        "includeHeaders": "true",
        "KAFKA.Bootstrap.Servers": "localhost:9092",
        "kafkaConsumer.pollTimeoutMs": "5000",
    }
    values: dict[str, Any] = {
        "subscribe": "a,b",
        "startingOffsets": {"a": {0: 23, 1: -1}, "b": {0: -2}},
        "maxOffsetsPerTrigger": 100,
        "minOffsetsPerTrigger": 10,
        "maxTriggerDelay": 120_000,
        "minPartitions": 8,
        "failOnDataLoss": False,
        "includeHeaders": True,
        **BROKERS,
        "kafkaConsumer.pollTimeoutMs": 5000,
    }
    options = KafkaOptions.of(texts, is_stream=True)
    assert options == KafkaOptions.of(values, is_stream=True)
    assert options.starting.offsets == {
        TopicPartition("a", 0): 23,
        TopicPartition("a", 1): LATEST,
        TopicPartition("b", 0): EARLIEST,
    }
    assert (options.most, options.least, options.delay_ms) == (100, 10, 120_000)
    assert (options.wait_ms, options.least_partitions) == (5000, 8)


@pytest.mark.parametrize(
    ("given", "selection"),
    [
        ({"subscribePattern": "t.*"}, TopicSelection(pattern="t.*")),
        (
            {"assign": '{"b": [0], "a": [1, 0]}'},
            TopicSelection(
                assigned=(
                    TopicPartition("a", 0),
                    TopicPartition("a", 1),
                    TopicPartition("b", 0),
                )
            ),
        ),
    ],
)
def test_which_partitions(given: dict[str, Any], selection: TopicSelection) -> None:
    """Topics as a list, as a pattern, or as partitions."""
    assert KafkaOptions.of({**BROKERS, **given}, is_stream=True).selection == selection


def test_which_beginning_counts() -> None:
    """One time for all comes before times by partition, and these before offsets, as in Spark."""
    ways: dict[str, Any] = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"t": {"0": 7}}',
        "startingTimestamp": "9",
    }
    given = {**TOPIC}
    found = []
    for name, value in ways.items():
        given[name] = value
        found.append(KafkaOptions.of(given, is_stream=True).starting)
    assert found == [
        Bound("startingOffsets", everywhere=EARLIEST),
        Bound("startingOffsetsByTimestamp", times_ms={TopicPartition("t", 0): 7}),
        Bound("startingTimestamp", time_ms=9),
    ]


def test_the_group() -> None:
    """kafka.group.id comes before groupIdPrefix; consumers of tasks have it as it is."""
    prefixed = KafkaOptions.of({**TOPIC, "groupIdPrefix": "shop"}, is_stream=True)
    assert prefixed.parameters.group == "shop"
    named = {**TOPIC, "groupIdPrefix": "shop", "kafka.group.id": "readers"}
    assert KafkaOptions.of(named, is_stream=True).parameters.group == "readers"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"subscribe": "t"},
            "source kafka needs option 'kafka.bootstrap.servers', such as 'localhost:9092'",
        ),
        (
            {"subscribe": "t", "kafka.bootstrap.server": "h:9"},
            "source kafka needs option 'kafka.bootstrap.servers', such as 'localhost:9092'; got "
            "'kafka.bootstrap.server'",
        ),
        (
            BROKERS,
            "source kafka needs one of the options subscribe, subscribePattern and assign, got "
            "none of them",
        ),
        (
            {**TOPIC, "assign": '{"t": [0]}'},
            "source kafka needs one of the options subscribe, subscribePattern and assign, got "
            "subscribe and assign",
        ),
        ({**BROKERS, "subscribe": " , "}, "subscribe of source kafka is ' , '; use names of top"),
        ({**BROKERS, "subscribePattern": "("}, "subscribePattern of source kafka is '('; use a r"),
        (
            {**BROKERS, "assign": '{"t": 0}'},
            "assign of source kafka is '{\"t\": 0}'; use JSON such",
        ),
        ({**BROKERS, "assign": '{"t": [-1]}'}, "assign of source kafka is '{\"t\": [-1]}'; use JS"),
        ({**BROKERS, "assign": "{}"}, "assign of source kafka is {}; name the partitions to read"),
        (
            {**TOPIC, "startingOffsets": "smallest"},
            "startingOffsets of source kafka is 'smallest'; use earliest, latest, or JSON such as "
            '{"topic": {"0": 23, "1": -1}}: -2 earliest, -1 latest',
        ),
        ({**TOPIC, "startingOffsets": '{"t": {"0": -3}}'}, "startingOffsets of source kafka is"),
        ({**TOPIC, "startingOffsets": '{"t": {"zero": 3}}'}, "startingOffsets of source kafka is"),
        ({**TOPIC, "startingOffsets": '{"t": '}, "startingOffsets of source kafka is '{\"t\": '"),
        ({**TOPIC, "startingTimestamp": -1}, "startingTimestamp of source kafka is -1; use a whol"),
        (
            {**TOPIC, "startingOffsetsByTimestampStrategy": "earliest"},
            "startingOffsetsByTimestampStrategy of source kafka is 'earliest'; use one of error, "
            "latest",
        ),
        ({**TOPIC, "maxOffsetsPerTrigger": 0}, "maxOffsetsPerTrigger of source kafka is 0; use a"),
        (
            {**TOPIC, "minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 5},
            "minOffsetsPerTrigger of source kafka is 9, more than maxOffsetsPerTrigger of 5; "
            "lower the minimum or raise the maximum",
        ),
        (
            {**TOPIC, "maxTriggerDelay": "1m"},
            "maxTriggerDelay of source kafka limits the wait for minOffsetsPerTrigger, which is "
            "not given; set both",
        ),
        (
            {**TOPIC, "endingOffsets": "latest"},
            "source kafka has no option 'endingOffsets' in a stream, which does not end; use read "
            "for a part of a topic",
        ),
        (
            {**TOPIC, "startingOffset": "latest"},
            "source kafka has no option 'startingOffset'; did you mean startingOffsets? there are ",
        ),
        (
            {**TOPIC, "kafka.auto.offset.reset": "earliest"},
            "source kafka has no option 'kafka.auto.offset.reset': use startingOffsets=earliest "
            "or latest; partitions that are added later are read from their beginning, so that no "
            "records are lost",
        ),
        (
            {**TOPIC, "kafka.enable.auto.commit": "true"},
            "source kafka has no option 'kafka.enable.auto.commit': the offsets of a query are in "
            "its checkpoint, not committed to a group",
        ),
        (
            {**TOPIC, "kafka.value.deserializer": "x"},
            "source kafka has no option 'kafka.value.deserializer': values are bytes; decode them "
            "by map(f)",
        ),
        ({**TOPIC, "kafka.interceptor.classes": "x"}, "source kafka has no option 'kafka.interc"),
        (
            {**TOPIC, "kafka.ssl.truststore.location": "x"},
            "source kafka: ssl.truststore.location is for the clients of Java; ",
        ),
    ],
)
def test_what_a_stream_refuses(given: dict[str, Any], reason: str) -> None:
    """The message names the option, and what to give instead."""
    with pytest.raises(InvalidStreamError) as error:
        KafkaOptions.of(given, is_stream=True)
    assert str(error.value).startswith(reason)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"startingOffsets": "latest"},
            "startingOffsets of source kafka cannot be latest (-1) here: nothing would be read; "
            "use earliest (-2), or offsets",
        ),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "startingOffsets of source kafka cannot be lat"),
        ({"endingOffsets": "earliest"}, "endingOffsets of source kafka cannot be earliest (-2) he"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "endingOffsets of source kafka cannot be earlies"),
        (
            {"maxOffsetsPerTrigger": 5},
            "source kafka has no option 'maxOffsetsPerTrigger' in read, which has no triggers; use "
            "endingOffsets",
        ),
    ],
)
def test_what_read_refuses(given: dict[str, Any], reason: str) -> None:
    """Options without effect, or that read nothing, are refused."""
    with pytest.raises(InvalidStreamError) as error:
        KafkaOptions.of({**TOPIC, **given}, is_stream=False)
    assert str(error.value).startswith(reason)


def test_secrets_are_not_printed() -> None:
    """Secrets among kafka.* are not part of any text about the source."""
    given = {**TOPIC, "kafka.sasl.username": "ann", "kafka.sasl.password": "sesame"}
    assert "sesame" not in repr(KafkaOptions.of(given, is_stream=True))
