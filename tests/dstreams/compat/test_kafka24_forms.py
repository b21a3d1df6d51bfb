"""Which form of a call is meant: that of Scala, or that of Spark 2.4's Python."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from dstreams.compat.kafka24 import WrongTypeError
from dstreams.compat.kafka_utils import accepts_spark24_signature
from dstreams.errors import InvalidStreamError
from dstreams.kafka import KafkaUtils, LocationStrategies


def of_2_4(ssc: Any, topics: Any, kafkaParams: Any, fromOffsets: Any = None) -> Any:
    return "2.4", topics, kafkaParams, fromOffsets


@accepts_spark24_signature(of_2_4, (float,))
def either(ssc: Any, location: Any, strategy: Any = None, *, uid: str = "") -> Any:
    return "Scala", location, strategy, uid


@pytest.mark.parametrize(
    ("arguments", "named", "found"),
    [
        (([1], {}), {}, ("2.4", [1], {}, None)),
        (([1], {}, {}), {}, ("2.4", [1], {}, {})),
        (([1],), {"kafkaParams": {}}, ("2.4", [1], {}, None)),
        ((), {"topics": 1, "kafkaParams": 2, "fromOffsets": 3}, ("2.4", 1, 2, 3)),
        ((1.0, 2), {}, ("Scala", 1.0, 2, "")),
        ((1, 2.0), {}, ("Scala", 1, 2.0, "")),
        ((1,), {"strategy": 2}, ("Scala", 1, 2, "")),
        ((1, 2), {"uid": "u"}, ("Scala", 1, 2, "u")),
    ],
)
def test_forms(arguments: tuple[Any, ...], named: dict[str, Any], found: Any) -> None:
    """By the kinds and names of arguments, in any order of naming them."""
    assert either(None, *arguments, **named) == found


def test_the_signature_is_that_of_scala() -> None:
    """Help shows one form, and the class refers to the other."""
    assert list(inspect.signature(either).parameters) == ["ssc", "location", "strategy", "uid"]
    parameters = inspect.signature(KafkaUtils.createRDD).parameters
    assert list(parameters)[:4] == ["sc", "kafkaParams", "offsetRanges", "locationStrategy"]


def test_errors_are_those_of_the_form() -> None:
    """A text as topics has the error of 2.4."""
    none: Any = None
    call: Any = KafkaUtils.createDirectStream
    with pytest.raises(WrongTypeError, match="should be a StreamingContext"):
        call(none, "clicks", {"metadata.broker.list": "localhost:9092"})
    with pytest.raises(InvalidStreamError, match="takes one of ConsumerStrategies"):
        call(none, LocationStrategies.PreferConsistent, ["clicks"])
