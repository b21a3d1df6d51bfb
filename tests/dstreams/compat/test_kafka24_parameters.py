"""Parameters of Kafka 0.8 for consumers of today."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dstreams.compat.kafka24 import _of_direct_stream, _of_group
from dstreams.errors import InvalidStreamError

BROKERS = "one:9092,two:9092"


def direct(**given: Any) -> dict[str, Any]:
    """Return the parameters of a direct stream; ``_`` means ``.``."""
    parameters = {name.replace("_", "."): value for name, value in given.items()}
    return dict(_of_direct_stream(parameters, "here").given)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"metadata_broker_list": BROKERS}, {"bootstrap.servers": BROKERS}),
        ({"bootstrap_servers": BROKERS}, {"bootstrap.servers": BROKERS}),
        (
            {"metadata_broker_list": "old:9092", "bootstrap_servers": BROKERS},
            {"bootstrap.servers": BROKERS},
        ),
        (
            {"metadata_broker_list": BROKERS, "fetch_message_max_bytes": "2000"},
            {"bootstrap.servers": BROKERS, "max.partition.fetch.bytes": "2000"},
        ),
        (
            {"metadata_broker_list": BROKERS, "group_id": "group", "auto_commit_enable": "true"},
            {"bootstrap.servers": BROKERS},
        ),
        (
            {"metadata_broker_list": BROKERS, "socket_timeout_ms": "30000", "client_id": "me"},
            {"bootstrap.servers": BROKERS, "socket.timeout.ms": "30000", "client.id": "me"},
        ),
    ],
)
def test_names(given: dict[str, Any], found: dict[str, Any]) -> None:
    """Older names are translated; a direct stream has no group."""
    assert direct(**given) == found


@pytest.mark.parametrize(
    ("reset", "found"),
    [
        (None, "latest"),
        ("largest", "latest"),
        ("smallest", "earliest"),
        ("Smallest", "earliest"),
        ("earliest", "earliest"),
    ],
)
def test_where_it_begins(reset: str | None, found: str) -> None:
    """At the largest offset by default."""
    given = {"bootstrap.servers": BROKERS, "auto.offset.reset": reset}
    assert _of_direct_stream(given, "here").reset == found


def test_what_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    """Parameters for ZooKeeper and the consumer of 0.8 are dropped, and logged."""
    with caplog.at_level(logging.WARNING, "dstreams"):
        found = direct(
            metadata_broker_list=BROKERS,
            zookeeper_connect="zk:2181",
            zookeeper_session_timeout_ms="400",
            auto_commit_interval_ms="1000",
            rebalance_max_retries="4",
        )
    assert found == {"bootstrap.servers": BROKERS}
    (record,) = caplog.records
    assert record.message == (
        "here: ignoring zookeeper.connect, zookeeper.session.timeout.ms, auto.commit.interval.ms, "
        "rebalance.max.retries, which have no effect any more"
    )


def test_no_brokers() -> None:
    """The words are those of Spark."""
    with pytest.raises(
        InvalidStreamError, match=r"Must specify metadata\.broker\.list or bootstrap\.servers"
    ):
        direct(zookeeper_connect="zk:2181")


def test_a_group_without_brokers() -> None:
    """The error says where to name the brokers."""
    with pytest.raises(InvalidStreamError, match=r"zkQuorum='zk:2181' names ZooKeeper") as no:
        _of_group({}, "createStream", "zk:2181", "group")
    assert "kafkaParams={'metadata.broker.list': 'localhost:9092'}" in str(no.value)


def test_brokers_beside_the_program() -> None:
    """They are taken where a program names none; what it names itself wins."""
    given = {"metadata.broker.list": "of-the-program:9092"}
    assert _of_group({}, "here", "zk", "group", BROKERS).given["bootstrap.servers"] == BROKERS
    own = _of_group(given, "here", "zk", "group", BROKERS)
    assert own.given["bootstrap.servers"] == "of-the-program:9092"


@pytest.mark.parametrize(
    ("given", "commits"),
    [
        ({}, True),
        ({"auto.commit.enable": "false"}, False),
        ({"auto.commit.enable": "true"}, True),
        ({"enable.auto.commit": "false"}, False),
    ],
)
def test_commits_of_a_group(given: dict[str, str], commits: bool) -> None:
    """A group commits by default; its name is the parameter of the call."""
    parameters = _of_group(
        {"metadata.broker.list": BROKERS, "group.id": "another", **given}, "here", "zk", "group"
    )
    assert parameters.group == "group"
    assert parameters.commits_batches is commits
