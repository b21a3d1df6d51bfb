"""Options of the source ``kafka``: those of Spark, checked, and refused for the same reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dstreams.common.configuration import COUNT, FLAG, TEXT, Kind, choice, duration, read_options
from dstreams.common.configuration import whole_number as at_least
from dstreams.errors import InvalidStreamError
from dstreams.kafka.offsets import TopicPartition, offsets_of_json
from dstreams.kafka.parameters import BROKERS, COMMIT, GROUP, RESET, KafkaParameters
from dstreams.kafka.topics import EARLIEST, LATEST, Selection
from dstreams.structured.sources.kafka_bounds import Bound

_PREFIX = "kafka."
_TRIGGER_DELAY_MS = 15 * 60_000
_GROUP_PREFIX = "spark-kafka-source"


def _json_of(check: Callable[[Any], bool], rule: str) -> Kind:
    """A mapping that a program gives as JSON or as a dict; texts may stand for themselves."""

    def parse(text: str) -> Any:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else text.strip().lower()

    return Kind(rule, check, parse)


def _is_by_partition(least: int) -> Callable[[Any], bool]:
    """Whether it is ``{"topic": {"0": number}}``."""

    def check(said: Any) -> bool:
        return isinstance(said, Mapping) and all(
            isinstance(topic, str)
            and isinstance(of_topic, Mapping)
            and all(
                str(partition).isdigit() and at_least(least).allows(offset)
                for partition, offset in of_topic.items()
            )
            for topic, of_topic in said.items()
        )

    return check


def _is_assignment(said: Any) -> bool:
    return isinstance(said, Mapping) and all(
        isinstance(topic, str)
        and isinstance(numbers, (list, tuple))
        and all(map(at_least(0).allows, numbers))
        for topic, numbers in said.items()
    )


_OFFSETS = 'earliest, latest, or JSON such as {"topic": {"0": 23, "1": -1}}: -2 earliest, -1 latest'
_BY_PARTITION = _is_by_partition(EARLIEST)
_OFFSETS_KIND = _json_of(lambda v: v in ("earliest", "latest") or _BY_PARTITION(v), _OFFSETS)
_TIMES_KIND = _json_of(
    _is_by_partition(0), 'JSON such as {"topic": {"0": 1700000000000}}, in milliseconds'
)
_TIME_KIND = at_least(0)

_COMMON: dict[str, Kind] = {
    "subscribe": TEXT,
    "subscribePattern": TEXT,
    "assign": _json_of(_is_assignment, 'JSON such as {"topic": [0, 1]}'),
    "startingOffsets": _OFFSETS_KIND,
    "startingTimestamp": _TIME_KIND,
    "startingOffsetsByTimestamp": _TIMES_KIND,
    "startingOffsetsByTimestampStrategy": choice("error", "latest"),
    "minPartitions": COUNT,
    "failOnDataLoss": FLAG,
    "includeHeaders": FLAG,
    "groupIdPrefix": TEXT,
    "kafkaConsumer.pollTimeoutMs": COUNT,
}
_OF_STREAMS: dict[str, Kind] = {
    "maxOffsetsPerTrigger": COUNT,
    "minOffsetsPerTrigger": COUNT,
    "maxTriggerDelay": duration(),
}
_OF_BATCHES: dict[str, Kind] = {
    "endingOffsets": _OFFSETS_KIND,
    "endingTimestamp": _TIME_KIND,
    "endingOffsetsByTimestamp": _TIMES_KIND,
}

_REFUSED = {
    RESET: "where to start is said by startingOffsets: earliest or latest; partitions that are "
    "added later are read from their beginning, so that no record of them is missed",
    "key.deserializer": "keys are bytes; decode them by map(f)",
    "value.deserializer": "values are bytes; decode them by map(f)",
    "key.serializer": "this is a source",
    "value.serializer": "this is a source",
    COMMIT: "how far a query has read is in its checkpoint, and committed to no group",
    "interceptor.classes": "records are read as they are; map(f) them",
}
"""Settings of consumers that a query decides by itself, as in Spark."""


@dataclass(frozen=True)
class KafkaOptions:
    """What a program has said of a source ``kafka``, checked.

    Args:
        parameters: of the clients.
        selection: which partitions.
        starting: where a query begins that has no checkpoint, or a batch read.
        ending: where a batch read ends.
        most: offsets that a batch has at most, None for no limit.
        least: new offsets that a batch waits for, None for none.
        delay_ms: how long it waits for them.
        least_partitions: of the RDD of a batch, None for as many as Kafka has.
        fails_on_data_loss: whether records that were deleted before they were read are an error.
        has_headers: whether rows have their headers.
        wait_ms: how long a task waits for a record, None for the setting.
    """

    parameters: KafkaParameters
    selection: Selection
    starting: Bound
    ending: Bound
    most: int | None
    least: int | None
    delay_ms: int
    least_partitions: int | None
    fails_on_data_loss: bool
    has_headers: bool
    wait_ms: int | None

    @classmethod
    def of(cls, given: Mapping[str, Any], *, is_stream: bool) -> KafkaOptions:
        """Read the options of a stream, or of a batch read.

        Raises:
            InvalidStreamError: one is unknown, missing or wrong.
        """
        what = "source kafka"
        clients, own = _split(given)
        options = read_options(own, {**_COMMON, **_OF_STREAMS, **_OF_BATCHES}, what)
        _require_fitting(options, is_stream=is_stream)
        starting = _bound(options, "starting", "latest" if is_stream else "earliest")
        ending = _bound(options, "ending", "latest")
        if not is_stream:
            _refuse(starting, LATEST, "startingOffsets", "latest (-1)", "earliest (-2)")
        _refuse(ending, EARLIEST, "endingOffsets", "earliest (-2)", "latest (-1)")
        most, least = options.get("maxOffsetsPerTrigger"), options.get("minOffsetsPerTrigger")
        if most is not None and least is not None and least > most:
            raise InvalidStreamError(
                f"minOffsetsPerTrigger of {what} is {least}, more than maxOffsetsPerTrigger of "
                f"{most}; a batch would always wait for more than it may have"
            )
        return cls(
            _parameters(clients, options.get("groupIdPrefix", _GROUP_PREFIX), what),
            _selection(options, what),
            starting,
            ending,
            most,
            least,
            options.get("maxTriggerDelay", _TRIGGER_DELAY_MS),
            options.get("minPartitions"),
            options.get("failOnDataLoss", True),
            options.get("includeHeaders", False),
            options.get("kafkaConsumer.pollTimeoutMs"),
        )


def _split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of clients, without their prefix, and the options."""
    clients: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for key, value in given.items():
        name = key.lower() if isinstance(key, str) else ""
        if name.startswith(_PREFIX):
            clients[name.removeprefix(_PREFIX)] = value
        else:
            own[key] = value
    return clients, own


def _parameters(clients: Mapping[str, Any], prefix: str, what: str) -> KafkaParameters:
    for name, reason in _REFUSED.items():
        if name in clients:
            raise InvalidStreamError(f"{what} has no option 'kafka.{name}': {reason}")
    if BROKERS not in clients:
        raise InvalidStreamError(
            f"{what} needs option 'kafka.bootstrap.servers', such as 'localhost:9092'"
        )
    return KafkaParameters.of({GROUP: prefix, **clients}, what)


def _selection(options: Mapping[str, Any], what: str) -> Selection:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(names) != 1:
        raise InvalidStreamError(
            f"{what} needs one of the options subscribe, subscribePattern and assign, got "
            f"{' and '.join(names) if names else 'none of them'}"
        )
    (name,) = names
    said = options[name]
    if name == "subscribe":
        topics = tuple(sorted({topic.strip() for topic in said.split(",") if topic.strip()}))
        if not topics:
            raise InvalidStreamError(
                f"subscribe of {what} is {said!r}; use names of topics separated by commas"
            )
        return Selection(topics)
    if name == "subscribePattern":
        try:
            re.compile(said)
        except re.error as error:
            raise InvalidStreamError(
                f"subscribePattern of {what} is {said!r}; use a regular expression ({error})"
            ) from None
        return Selection(pattern=said)
    assigned = {TopicPartition(topic, one) for topic, numbers in said.items() for one in numbers}
    if not assigned:
        raise InvalidStreamError(f"assign of {what} is {said!r}; name the partitions to read")
    return Selection(assigned=tuple(sorted(assigned)))


def _bound(options: Mapping[str, Any], side: str, default: str) -> Bound:
    """Return where reading starts or ends, by the option that comes first, as in Spark."""
    falls_back = side == "ending" or options.get(f"{side}OffsetsByTimestampStrategy") == "latest"
    if f"{side}Timestamp" in options:
        name = f"{side}Timestamp"
        return Bound(name, time_ms=options[name], falls_back=falls_back)
    if f"{side}OffsetsByTimestamp" in options:
        name = f"{side}OffsetsByTimestamp"
        return Bound(name, times_ms=offsets_of_json(options[name]), falls_back=falls_back)
    name = f"{side}Offsets"
    said = options.get(name, default)
    if isinstance(said, str):
        return Bound(name, everywhere=EARLIEST if said == "earliest" else LATEST)
    return Bound(name, offsets=offsets_of_json(said))


def _refuse(bound: Bound, spec: int, name: str, refused: str, instead: str) -> None:
    if bound.everywhere == spec or spec in (bound.offsets or {}).values():
        raise InvalidStreamError(
            f"{name} of source kafka cannot be {refused} here: nothing would be read; use "
            f"{instead}, or offsets"
        )


def _require_fitting(options: Mapping[str, Any], *, is_stream: bool) -> None:
    others = _OF_BATCHES if is_stream else _OF_STREAMS
    wrong = [name for name in others if name in options]
    if wrong and is_stream:
        raise InvalidStreamError(
            f"source kafka has no option {wrong[0]!r} in a stream, which has no end; use read "
            "for a part of a topic"
        )
    if wrong:
        raise InvalidStreamError(
            f"source kafka has no option {wrong[0]!r} in read, which has no triggers; use "
            "endingOffsets"
        )
    if "maxTriggerDelay" in options and "minOffsetsPerTrigger" not in options:
        raise InvalidStreamError(
            "maxTriggerDelay of source kafka says how long a batch waits for "
            "minOffsetsPerTrigger, which is not given"
        )
