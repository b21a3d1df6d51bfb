"""Parameters of an output to Kafka, and the settings of its clients."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from dstreams import InvalidStreamError
from dstreams.kafka.parameters import ProducerParameters

BROKERS = {"bootstrap.servers": "one:9092"}


def parameters(**given: Any) -> ProducerParameters:
    """Take parameters with ``_`` for ``.``."""
    named = {name.replace("_", "."): value for name, value in given.items()}
    return ProducerParameters.of({**BROKERS, **named}, "the sink")


def test_what_producers_have_without_being_told() -> None:
    """Java's partitioner, acknowledgements of all replicas, two minutes, and a bounded queue."""
    config = parameters().for_producers()
    assert config["partitioner"] == "murmur2_random"
    assert (config["acks"], config["enable.idempotence"]) == ("all", True)
    assert config["message.timeout.ms"] == 120_000
    assert config["queue.buffering.max.kbytes"] == 65_536
    assert "transaction.timeout.ms" not in config
    assert parameters().for_transactions()["transaction.timeout.ms"] == 300_000


def test_what_producers_are_told() -> None:
    """Names of Java; parameters that a program has for its consumers as well are passed over."""
    given = parameters(
        compression_type="zstd",
        partitioner="random",
        linger_ms=50,
        delivery_timeout_ms="600000",
        group_id="readers",
        auto_offset_reset="earliest",
        key_serializer="org.apache.kafka.common.serialization.StringSerializer",
    )
    config = given.for_transactions()
    assert (config["compression.type"], config["linger.ms"]) == ("zstd", 50)
    assert config["partitioner"] == "random"
    assert (config["message.timeout.ms"], config["transaction.timeout.ms"]) == (600_000, 600_000)
    assert not {"group.id", "auto.offset.reset", "key.serializer"} & config.keys()
    reading = given.for_commits()
    assert not {"compression.type", "partitioner", "linger.ms", "message.timeout.ms"} & set(reading)
    assert reading["isolation.level"] == "read_committed"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transactional_id": "mine"}, r"transactional.id cannot be set: it identifies the stream"),
        (
            {"acks": 1},
            r"the sink: acks is 1, with which records would be lost with a broker; remove",
        ),
        ({"enable_idempotence": False}, r"enable.idempotence is False, with which a lost connect"),
        ({"delivery_timeout_ms": "soon"}, r"message.timeout.ms is 'soon'; give milliseconds, at l"),
        (
            {"transaction_timeout_ms": 1000, "delivery_timeout_ms": 2000},
            r"message.timeout.ms is 2000 ms and transaction.timeout.ms 1000 ms: records may not",
        ),
        ({"partitioner_class": "Mine"}, r"partitioner.class is for the clients of Java; give part"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], message: str) -> None:
    """It is refused where the sink is defined, with what to do."""
    with pytest.raises(InvalidStreamError, match=message):
        parameters(**given)


def test_callbacks_of_the_client() -> None:
    """They are the sink's."""
    with pytest.raises(InvalidStreamError, match="on_delivery cannot be set: a record that is not"):
        ProducerParameters.of({**BROKERS, "on_delivery": "f"}, "the sink")


def test_secrets_are_in_no_pickle() -> None:
    """Nor in a representation; a restart needs them again."""
    given = ProducerParameters.of({**BROKERS, "sasl.password": "hunter2"}, "the sink")
    assert b"hunter2" not in pickle.dumps(given)
    assert "hunter2" not in repr(given)
    assert given.for_producers()["sasl.password"] == "hunter2"
    with pytest.raises(Exception, match=r"sasl.password is secret, so the checkpoint do"):
        pickle.loads(pickle.dumps(given)).for_producers()
