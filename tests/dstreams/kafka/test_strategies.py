"""Consumer strategies of the Scala API."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.kafka import (
    ConsumerStrategies,
    ConsumerStrategy,
    LocationStrategies,
    TopicPartition,
)

BROKERS = {"bootstrap.servers": "localhost:9092", "sasl.password": "s3cret"}
Subscribe = ConsumerStrategies.Subscribe
Pattern = ConsumerStrategies.SubscribePattern
Assign = ConsumerStrategies.Assign


def test_topics() -> None:
    """Each once, in order; one name may stand alone."""
    assert Subscribe(["b", "a", "b"], BROKERS).selection.topics == ("a", "b")
    assert Subscribe("clicks", BROKERS).selection.topics == ("clicks",)
    assert Subscribe(["a"], BROKERS, {TopicPartition("a", 1): 5}).offsets == {("a", 1): 5}


def test_a_pattern() -> None:
    """Of whole names, as text or compiled."""
    for pattern in ("click.*", re.compile("click.*")):
        selection = Pattern(pattern, BROKERS).selection
        assert selection.names(["clicks", "unclick", "click"]) == ("click", "clicks")
        assert str(selection) == "topics like click.*"


def test_partitions() -> None:
    """Partitions are pairs or TopicPartition; each topic is requested once."""
    selection = Assign([("b", 1), TopicPartition("a", 0), ("b", 0)], BROKERS).selection
    assert selection.assigned == (("a", 0), ("b", 0), ("b", 1))
    assert selection.names(()) == ("a", "b")
    assert str(selection) == "a-0, b-0, b-1"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Subscribe([], BROKERS), r"Subscribe takes the names of topics, got \(\)"),
        (lambda: Subscribe([""], BROKERS), "Subscribe takes the names of topics"),
        (lambda: Subscribe([3], BROKERS), "Subscribe takes the names of topics"),  # type: ignore[list-item]
        (lambda: Pattern("a(", BROKERS), r"SubscribePattern takes a regular expression, got 'a\("),
        (lambda: Pattern(None, BROKERS), "SubscribePattern takes a regular expression, got None"),  # type: ignore[arg-type]
        (lambda: Assign([], BROKERS), "Assign takes the partitions to read, got none"),
        (lambda: Assign(["a"], BROKERS), "Assign takes TopicPartition.* got 'a'"),  # type: ignore[list-item]
        (lambda: Assign([("a", -1)], BROKERS), "Assign takes TopicPartition"),
        (lambda: Assign([("a", True)], BROKERS), "Assign takes TopicPartition"),
        (lambda: Subscribe(["a"], BROKERS, {("a", 0): -1}), r"the offset of \('a', 0\) is -1; use"),  # type: ignore[dict-item]
        (lambda: Subscribe(["a"], BROKERS, {("a", 0): "1"}), "is '1'; use a whole number"),  # type: ignore[dict-item]
        (lambda: Subscribe(["a"], BROKERS, {"a": 1}), "offsets takes TopicPartition"),  # type: ignore[dict-item]
    ],
)
def test_what_cannot_be(make: Callable[[], Any], message: str) -> None:
    """Bad input is refused where it is given, with what was given."""
    with pytest.raises(InvalidStreamError, match=message):
        make()


def test_no_secret_is_shown() -> None:
    """Neither in the repr of a strategy nor in that of its location."""
    strategy: ConsumerStrategy = Subscribe(["a"], BROKERS)
    assert repr(strategy) == "ConsumerStrategy(a)"
    fixed = LocationStrategies.PreferFixed({TopicPartition("a", 0): "host"})
    assert fixed.name == "PreferFixed(1 partitions)"
