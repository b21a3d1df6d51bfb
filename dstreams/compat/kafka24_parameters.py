"""Parameters of Kafka 0.8, as programs of Spark 2.4 give them, for consumers of today."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dstreams.errors import InvalidStreamError
from dstreams.kafka.parameters import BROKERS, COMMIT, GROUP, KafkaParameters

logger = logging.getLogger(__name__)

_BROKERS_OF_0_8 = "metadata.broker.list"
_COMMIT_OF_0_8 = "auto.commit.enable"

_OF_ZOOKEEPER = "zookeeper."
_WITHOUT_EFFECT = frozenset(
    [
        "auto.commit.interval.ms",
        "consumer.id",
        "consumer.timeout.ms",
        "dual.commit.enabled",
        "exclude.internal.topics",
        "num.consumer.fetchers",
        "offsets.channel.backoff.ms",
        "offsets.channel.socket.timeout.ms",
        "offsets.commit.max.retries",
        "offsets.storage",
        "queued.max.message.chunks",
        "rebalance.backoff.ms",
        "rebalance.max.retries",
        "refresh.leader.backoff.ms",
    ]
)
"""What belonged to ZooKeeper, to the threads of a consumer of 0.8, or to its commits."""


def of_direct_stream(given: Mapping[str, Any], where: str) -> KafkaParameters:
    """Return the parameters of what reads by offsets of its own: the group has no say in it.

    Raises:
        InvalidStreamError: the brokers are missing, or a parameter cannot be.
    """
    translated = _translated(given, where)
    if not _has_brokers(translated):
        raise InvalidStreamError(
            f"{where}: Must specify metadata.broker.list or bootstrap.servers, for example "
            "'localhost:9092'"
        )
    left = {key: value for key, value in translated.items() if key not in (GROUP, COMMIT)}
    return KafkaParameters.of(left, where)


def of_group(
    given: Mapping[str, Any], where: str, zookeepers: object, group: str, brokers: str | None = None
) -> KafkaParameters:
    """Return the parameters of what begins where a group stands, and commits to it.

    Args:
        given: what the program gives.
        where: the operation, for messages.
        zookeepers: what the program says of ZooKeeper.
        group: name of the group.
        brokers: where they are, unless the program says it; None for unknown.

    Raises:
        InvalidStreamError: the brokers are missing, or a parameter cannot be.
    """
    translated = _translated(given, where)
    if not _has_brokers(translated):
        if brokers is None:
            raise InvalidStreamError(
                f"{where}: zkQuorum={zookeepers!r} is where ZooKeeper is, which Kafka has no more; "
                "say where the brokers are, by kafkaParams={'metadata.broker.list': "
                "'localhost:9092'}, or by --conf spark.dstreams.kafka.bootstrapServers="
                "localhost:9092 for a program that is to stay as it is"
            )
        translated[BROKERS] = brokers
    logger.warning(
        "%s: zkQuorum=%r has no effect: the group %r has its offsets at the brokers",
        where,
        zookeepers,
        group,
    )
    return KafkaParameters.of({COMMIT: "true", **translated, GROUP: group}, where)


def _has_brokers(parameters: Mapping[str, Any]) -> bool:
    return bool(parameters.get(_BROKERS_OF_0_8) or parameters.get(BROKERS))


def _translated(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Give parameters the names of today, and leave out those that say nothing any more."""
    dropped = [
        key
        for key in given
        if isinstance(key, str) and (key.startswith(_OF_ZOOKEEPER) or key in _WITHOUT_EFFECT)
    ]
    if dropped:
        logger.warning("%s: %s have no effect with Kafka of today", where, ", ".join(dropped))
    names = {_COMMIT_OF_0_8: COMMIT}
    found = {names.get(key, key): value for key, value in given.items() if key not in dropped}
    if BROKERS in found:
        found.pop(_BROKERS_OF_0_8, None)
    reset = found.get("auto.offset.reset")
    if isinstance(reset, str):
        found["auto.offset.reset"] = reset.lower()
    return found
