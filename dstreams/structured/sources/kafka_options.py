"""Options of the source ``kafka``, with the checks of Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dstreams.common.settings import (
    COUNT,
    FLAG,
    TEXT,
    Kind,
    choice,
    duration,
    read_options,
    similar,
)
from dstreams.common.settings import whole_number as at_least
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.kafka.offsets import Offsets, TopicPartition, offsets_of_json
from dstreams.kafka.parameters import BROKERS, COMMIT, GROUP, RESET, KafkaParameters
from dstreams.kafka.topics import EARLIEST, LATEST, Topics, TopicSelection, TopicState

_PREFIX = "kafka."
_TRIGGER_DELAY_MS = 15 * 60_000
_GROUP_PREFIX = "spark-kafka-source"


def _json_of(check: Callable[[Any], bool], rule: str) -> Kind:
    """Return the kind of a mapping, given as JSON or as a dict, or of a word."""

    def parse(text: str) -> Any:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else text.strip().lower()

    return Kind(rule, check, parse)


def _is_by_partition(least: int) -> Callable[[Any], bool]:
    """Return a check for ``{"topic": {"0": number}}``."""

    def check(value: Any) -> bool:
        return isinstance(value, Mapping) and all(
            isinstance(topic, str)
            and isinstance(of_topic, Mapping)
            and all(
                str(partition).isdigit() and at_least(least).allows(offset)
                for partition, offset in of_topic.items()
            )
            for topic, of_topic in value.items()
        )

    return check


def _is_assignment(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(topic, str)
        and isinstance(numbers, (list, tuple))
        and all(map(at_least(0).allows, numbers))
        for topic, numbers in value.items()
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
    RESET: "use startingOffsets=earliest or latest; partitions that are added later are read from "
    "their beginning, so that no records are lost",
    "key.deserializer": "keys are bytes; decode them by map(f)",
    "value.deserializer": "values are bytes; decode them by map(f)",
    "key.serializer": "this is a source",
    "value.serializer": "this is a source",
    COMMIT: "the offsets of a query are in its checkpoint, not committed to a group",
    "interceptor.classes": "transform the rows by map(f)",
}
"""Settings of consumers that a query rejects, as Spark does."""


DataLoss = Callable[[str], None]
"""Reports records that were deleted: raises or returns."""


@dataclass(frozen=True)
class Bound:
    """The offsets of an option, in one of four forms: one or several offsets or times.

    *everywhere* is :data:`EARLIEST` or :data:`LATEST`. Partitions without a record at a time or
    later are used at their end if *falls_back*; otherwise this is an error.
    """

    option: str
    everywhere: int | None = None
    offsets: Offsets | None = None
    time_ms: int | None = None
    times_ms: Mapping[TopicPartition, int] | None = None
    falls_back: bool = False

    def resolve(
        self, topics: Topics, state: TopicState, lost: DataLoss
    ) -> dict[TopicPartition, int]:
        """Return the offset of each partition, or raise SourceError if some do not exist."""
        if self.everywhere == LATEST:
            return dict(state.ends)
        if self.everywhere is not None:
            return topics.offsets(dict.fromkeys(state.ends, self.everywhere))
        if self.offsets is not None:
            self._require_all(self.offsets, state)
            return self._within(topics, state, lost)
        if self.times_ms is not None:
            self._require_all(self.times_ms, state)
            return self._at(self.times_ms, topics, state)
        return self._at(dict.fromkeys(state.ends, self.time_ms or 0), topics, state)

    def _within(
        self, topics: Topics, state: TopicState, lost: DataLoss
    ) -> dict[TopicPartition, int]:
        """Return the given offsets, or the earliest one if they are out of range."""
        given = self.offsets or {}
        earliest = topics.offsets(dict.fromkeys(given, EARLIEST))
        found = {}
        for one, offset in given.items():
            if offset in (EARLIEST, LATEST):
                found[one] = earliest[one] if offset == EARLIEST else state.ends[one]
            elif earliest[one] <= offset <= state.ends[one]:
                found[one] = offset
            else:
                lost(
                    f"{one} has offsets {earliest[one]} to {state.ends[one]}, and {self.option} "
                    f"says {offset}"
                )
                found[one] = earliest[one]
        return found

    def _at(
        self, times_ms: Mapping[TopicPartition, int], topics: Topics, state: TopicState
    ) -> dict[TopicPartition, int]:
        found = topics.offsets(times_ms)
        none = [one for one, offset in found.items() if offset < 0]
        if none and not self.falls_back:
            raise SourceError(
                f"{self.option} of source kafka: {none[0]} has no record of the time "
                f"{times_ms[none[0]]} ms or later; give an earlier one, or "
                "startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
        return {**found, **{one: state.ends[one] for one in none}}

    def _require_all(self, given: Mapping[TopicPartition, int], state: TopicState) -> None:
        if given.keys() != state.ends.keys():
            raise SourceError(
                f"{self.option} of source kafka has {_names(given)}, and the topics have "
                f"{_names(state.ends)}; name each partition; -1 is its end and -2 its "
                "beginning"
            )


def _names(partitions: Mapping[TopicPartition, int]) -> str:
    return ", ".join(str(one) for one in sorted(partitions)) or "no partitions"


@dataclass(frozen=True)
class KafkaOptions:
    """The checked options of a source ``kafka``; None means that an option is not set.

    A batch has at most *most* offsets, and waits up to *delay_ms* for *least* new ones.
    """

    parameters: KafkaParameters
    selection: TopicSelection
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
        """Check the options of a stream, or of a batch read."""
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
                f"{most}; lower the minimum or raise the maximum"
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
        near = [name for name in clients if similar(name, [BROKERS])]
        got = f"; got {_PREFIX + near[0]!r}" if near else ""
        raise InvalidStreamError(
            f"{what} needs option 'kafka.bootstrap.servers', such as 'localhost:9092'{got}"
        )
    return KafkaParameters.of({GROUP: prefix, **clients}, what)


def _selection(options: Mapping[str, Any], what: str) -> TopicSelection:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(names) != 1:
        raise InvalidStreamError(
            f"{what} needs one of the options subscribe, subscribePattern and assign, got "
            f"{' and '.join(names) if names else 'none of them'}"
        )
    (name,) = names
    value = options[name]
    if name == "subscribe":
        topics = tuple(sorted({topic.strip() for topic in value.split(",") if topic.strip()}))
        if not topics:
            raise InvalidStreamError(
                f"subscribe of {what} is {value!r}; use names of topics separated by commas"
            )
        return TopicSelection(topics)
    if name == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise InvalidStreamError(
                f"subscribePattern of {what} is {value!r}; use a regular expression ({error})"
            ) from None
        return TopicSelection(pattern=value)
    assigned = {TopicPartition(topic, one) for topic, numbers in value.items() for one in numbers}
    if not assigned:
        raise InvalidStreamError(f"assign of {what} is {value!r}; name the partitions to read")
    return TopicSelection(assigned=tuple(sorted(assigned)))


def _bound(options: Mapping[str, Any], side: str, default: str) -> Bound:
    """Return where reading starts or ends, by Spark's order of the options."""
    falls_back = side == "ending" or options.get(f"{side}OffsetsByTimestampStrategy") == "latest"
    if f"{side}Timestamp" in options:
        name = f"{side}Timestamp"
        return Bound(name, time_ms=options[name], falls_back=falls_back)
    if f"{side}OffsetsByTimestamp" in options:
        name = f"{side}OffsetsByTimestamp"
        return Bound(name, times_ms=offsets_of_json(options[name]), falls_back=falls_back)
    name = f"{side}Offsets"
    value = options.get(name, default)
    if isinstance(value, str):
        return Bound(name, everywhere=EARLIEST if value == "earliest" else LATEST)
    return Bound(name, offsets=offsets_of_json(value))


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
            f"source kafka has no option {wrong[0]!r} in a stream, which does not end; use read "
            "for a part of a topic"
        )
    if wrong:
        raise InvalidStreamError(
            f"source kafka has no option {wrong[0]!r} in read, which has no triggers; use "
            "endingOffsets"
        )
    if "maxTriggerDelay" in options and "minOffsetsPerTrigger" not in options:
        raise InvalidStreamError(
            "maxTriggerDelay of source kafka limits the wait for minOffsetsPerTrigger, which is "
            "not given; set both"
        )
