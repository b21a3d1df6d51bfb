"""Plans of batches of topics, without brokers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as Place
from pyspark import SparkContext

from dstreams.errors import SourceError
from dstreams.kafka.decoding import AsRecords
from dstreams.kafka.kafka_source import KafkaReader, KafkaSource
from dstreams.kafka.offsets import OffsetRange, TopicPartition, offsets_of_json
from dstreams.kafka.parameters import KafkaParameters
from dstreams.kafka.topics import EARLIEST, LATEST, BrokersAwayError, TopicSelection, TopicState
from dstreams.sources.source import PlannedInput
from tests.support.surroundings import Driven, HandClock, Surroundings

A, B, C = (TopicPartition("t", number) for number in range(3))


@dataclass
class Brokers:
    """Brokers as the driver sees them: a log is where it begins and where it ends.

    Args:
        logs: of each partition.
        ids: of topics.
        groups: offsets that the group has committed.
    """

    logs: dict[TopicPartition, tuple[int, int]]
    ids: dict[str, str] = field(default_factory=lambda: {"t": "id-1"})
    groups: dict[TopicPartition, int] = field(default_factory=dict)
    are_away: bool = False
    group_failure: KafkaError | None = None
    commits: list[dict[TopicPartition, int]] = field(default_factory=list)
    questions: list[int] = field(default_factory=list)
    is_closed: bool = False

    def state(self, known: Collection[TopicPartition] = ()) -> TopicState:
        if self.are_away:
            raise BrokersAwayError("no broker of localhost:1 answers: refused")
        return TopicState(dict(self.ids), {one: end for one, (_, end) in self.logs.items()})

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.questions += wanted.values()
        place = {EARLIEST: 0, LATEST: 1}
        return {one: self.logs[one][place[spec]] for one, spec in wanted.items()}

    def consumer(self) -> Brokers:
        return self

    def committed(self, places: list[Place], timeout: float) -> list[Place]:
        found = []
        for place in places:
            key = TopicPartition(place.topic, place.partition)
            answer = Place(*key, self.groups.get(key, -1001))
            found.append(_Failed(answer, self.group_failure) if self.group_failure else answer)
        return found

    def commit(self, offsets: list[Place]) -> None:
        self.commits.append(
            {TopicPartition(one.topic, one.partition): one.offset for one in offsets}
        )

    def poll(self, timeout: float) -> None:
        """Nothing comes."""

    def close(self) -> None:
        self.is_closed = True


class _Failed:
    """A place for which brokers have an error."""

    def __init__(self, place: Place, error: KafkaError) -> None:
        self.topic, self.partition, self.offset = place.topic, place.partition, place.offset
        self.error = error


def reader_of(
    brokers: Brokers,
    begin: Mapping[TopicPartition, int] | None = None,
    newest: PlannedInput | None = None,
    clock: HandClock | None = None,
    parameters: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Driven:
    """A reader that has started; *newest* is what an earlier run has planned last."""
    given = {"bootstrap.servers": "localhost:1", "group.id": "g", **(parameters or {})}
    source = KafkaSource(
        KafkaParameters.of(given, "createDirectStream"),
        TopicSelection(("t",)),
        begin or {},
        AsRecords(),
    )
    environment = Surroundings(clock or HandClock()).environment(**settings)
    reader = KafkaReader(source, replace(environment, newest=newest))
    reader.topics = brokers  # type: ignore[assignment]
    reader._group._consumer = brokers.consumer
    reader.start()
    return Driven(reader, None if newest is None else newest.end)


EARLIEST_FIRST = {"auto.offset.reset": "earliest"}


def ranges(planned: PlannedInput) -> dict[TopicPartition, tuple[int, int]]:
    """From where to where each partition is read."""
    start = offsets_of_json(planned.start["offsets"])
    end = offsets_of_json(planned.end["offsets"])
    return {one: (start[one], end[one]) for one in end}


@pytest.mark.parametrize(
    ("rule", "parameters", "begin", "groups", "first"),
    [
        ("latest by default", {}, {}, {}, 9),
        ("earliest", EARLIEST_FIRST, {}, {}, 3),
        ("smallest, as it was called", {"auto.offset.reset": "smallest"}, {}, {}, 3),
        ("where the group is", EARLIEST_FIRST, {}, {A: 5}, 5),
        ("where the program says, not where the group is", {}, {A: 4}, {A: 5}, 4),
        ("of other partitions nothing is told", {}, {B: 4}, {B: 5}, 9),
        ("the group with none", {"auto.offset.reset": "none"}, {}, {A: 5}, 5),
    ],
)
def test_where_an_input_begins(
    rule: str,
    parameters: dict[str, str],
    begin: dict[TopicPartition, int],
    groups: dict[TopicPartition, int],
    first: int,
) -> None:
    """Given offsets, then those of the group, then auto.offset.reset; decided at the start."""
    brokers = Brokers({A: (3, 9)}, groups=groups)
    reader = reader_of(brokers, begin, parameters=parameters)
    brokers.logs[A] = (3, 12)
    planned = reader.plan(1000)
    assert ranges(planned) == {A: (first, 12)}, rule
    assert planned.records == 12 - first


def test_nothing_says_where_it_begins() -> None:
    """With auto.offset.reset=none an input without any offset does not start."""
    with pytest.raises(SourceError, match=r"no starting offset for t-0, t-1: the group 'g' has no"):
        reader_of(Brokers({A: (0, 1), B: (0, 1)}), parameters={"auto.offset.reset": "none"})


def test_a_group_that_cannot_be_read() -> None:
    """An input fails if the offsets of its group are unknown."""
    brokers = Brokers(
        {A: (0, 9)}, group_failure=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "denied")
    )
    with pytest.raises(
        SourceError, match="the offset of the group 'g' for t-0 cannot be read: den"
    ):
        reader_of(brokers)


def test_batches_follow_each_other() -> None:
    """Each begins where the one before ended; one without new records reads nothing."""
    brokers = Brokers({A: (0, 4), B: (0, 0)})
    reader = reader_of(brokers, parameters=EARLIEST_FIRST)
    assert ranges(reader.plan(1000)) == {A: (0, 4), B: (0, 0)}
    brokers.logs = {A: (0, 6), B: (0, 1)}
    assert ranges(reader.plan(2000)) == {A: (4, 6), B: (0, 1)}
    empty = reader.plan(3000)
    assert ranges(empty) == {A: (6, 6), B: (1, 1)}
    assert empty.records == 0


def test_a_batch_is_described() -> None:
    """Ranges in Spark's words for people, ranges and lags for programs."""
    reader = reader_of(Brokers({A: (0, 9), B: (0, 2)}), parameters=EARLIEST_FIRST, kafka_max_rate=4)
    said = reader.describe(reader.plan(1000))
    assert said.text == (
        "topic: t\tpartition: 0\toffsets: 0 to 4\tcount: 4\n"
        "topic: t\tpartition: 1\toffsets: 0 to 2\tcount: 2"
    )
    assert said.metadata == {
        "offsets": [OffsetRange("t", 0, 0, 4), OffsetRange("t", 1, 0, 2)],
        "lag": {A: 5, B: 0},
    }


def test_rates_limit_batches() -> None:
    """Partitions have limits by the settings, and share a rate by lag."""
    brokers = Brokers({A: (0, 900), B: (0, 100)})
    reader = reader_of(brokers, parameters=EARLIEST_FIRST, kafka_max_rate=50)
    assert ranges(reader.plan(1000)) == {A: (0, 50), B: (0, 50)}
    reader.update_rate(90)
    assert ranges(reader.plan(2000)) == {A: (50, 100), B: (50, 55)}  # 90 * 850 / 900 and 50 / 900
    assert reader.rate_limit == "backpressure"


@pytest.mark.parametrize("parameters", [{}, EARLIEST_FIRST, {"auto.offset.reset": "latest"}])
def test_an_added_partition(parameters: dict[str, str]) -> None:
    """It begins at its first record: all of it came after the input began."""
    brokers = Brokers({A: (0, 4)})
    reader = reader_of(brokers, parameters=parameters)
    reader.plan(1000)
    brokers.logs.update({B: (0, 3), C: (2, 2)})
    assert ranges(reader.plan(2000)) == {A: (4, 4), B: (0, 3), C: (2, 2)}


def test_an_added_topic() -> None:
    """As one that a pattern finds: its id is known from its first batch on."""
    brokers = Brokers({A: (0, 4)})
    reader = reader_of(brokers)
    reader.plan(1000)
    other = TopicPartition("u", 0)
    brokers.logs[other] = (0, 3)
    brokers.ids["u"] = "id-2"
    planned = reader.plan(2000)
    assert ranges(planned)[other] == (0, 3)
    assert planned.end["topicIds"] == {"t": "id-1", "u": "id-2"}


LOSSES = [
    ("expired", Brokers({A: (7, 9)}), "t-0 begins at 7 and was read up to 4"),
    ("cut off", Brokers({A: (0, 2)}), "t-0 ends at 2 and was read up to 4"),
    (
        "made again",
        Brokers({A: (0, 9)}, {"t": "id-2"}),
        "the topic of t-0 was deleted and made again, read up to 4",
    ),
    ("gone", Brokers({B: (0, 5)}), "t-0 was deleted, or is not selected any more, read up to 4"),
]


def _planned(brokers: Brokers) -> PlannedInput:
    """The records that a batch has read of a partition with offsets 0 to 4."""
    return reader_of(brokers, parameters=EARLIEST_FIRST).plan(1000)


@pytest.mark.parametrize(("case", "after", "told"), LOSSES, ids=[case for case, _, _ in LOSSES])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_loss_is_an_error(case: str, after: Brokers, told: str, restarts: bool) -> None:
    """Records that were deleted before they were read are named, also after a restart."""
    brokers = Brokers({A: (0, 4)})
    reader = reader_of(brokers, parameters=EARLIEST_FIRST)
    planned = reader.plan(1000)
    if restarts:
        reader = reader_of(brokers, newest=planned)
    brokers.logs, brokers.ids = dict(after.logs), dict(after.ids)
    with pytest.raises(SourceError) as raised:
        reader.plan(1000 + 60_000)
    assert told in str(raised.value)
    assert "spark.dstreams.kafka.failOnDataLoss=false" in str(raised.value)


@pytest.mark.parametrize(
    ("case", "after", "parameters", "read"),
    [
        ("expired", LOSSES[0][1], {}, {A: (7, 9)}),
        ("expired, latest by default", LOSSES[0][1], {}, {A: (7, 9)}),
        ("expired, latest", LOSSES[0][1], {"auto.offset.reset": "latest"}, {A: (9, 9)}),
        ("cut off", LOSSES[1][1], {}, {A: (0, 2)}),
        ("made again", LOSSES[2][1], {}, {A: (0, 9)}),
        ("gone", LOSSES[3][1], {}, {B: (0, 5)}),
    ],
)
def test_a_loss_is_passed_over(
    case: str,
    after: Brokers,
    parameters: dict[str, str],
    read: dict[TopicPartition, tuple[int, int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With failOnDataLoss=false: what is there is read, and the log names what is lost."""
    brokers = Brokers({A: (0, 4)})
    reader = reader_of(brokers, {A: 0}, parameters=parameters, kafka_fail_on_data_loss=False)
    reader.plan(1000)
    brokers.logs, brokers.ids = dict(after.logs), dict(after.ids)
    with caplog.at_level(logging.WARNING):
        planned = reader.plan(1000 + 60_000)
    assert ranges(planned) == read, case
    assert "skipping records that were deleted before they were read: t-0" in caplog.text or (
        case == "made again" and "the topic of t-0 was deleted and made again" in caplog.text
    )
    assert ranges(reader.plan(1000 + 120_000)).keys() == read.keys()


def test_a_batch_in_flight_of_a_topic_that_was_made_again(
    sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that runs again reads no records of a new topic with the same name."""
    planned = _planned(Brokers({A: (0, 4)}))
    after = Brokers({A: (0, 9)}, {"t": "id-2"})
    reader = reader_of(after, newest=planned)
    told = "the topic of t-0 was deleted and made again, and the batch at 1000 ms reads 0 to 4"
    with pytest.raises(SourceError, match=told):
        reader.read(planned)
    reader = reader_of(after, newest=planned, kafka_fail_on_data_loss=False)
    reader.reader._spark = sc
    with caplog.at_level(logging.WARNING):
        assert reader.read(planned).getNumPartitions() == 0
    assert told in caplog.text


def test_expiry_is_looked_for_now_and_then() -> None:
    """The first offsets of partitions are requested in the first batch and once a minute."""
    brokers = Brokers({A: (0, 4)})
    reader = reader_of(brokers, parameters=EARLIEST_FIRST)
    brokers.questions.clear()
    for time_ms in range(1000, 100_000, 1000):
        reader.plan(time_ms)
    assert brokers.questions == [EARLIEST, EARLIEST]


def test_brokers_away(caplog: pytest.LogCaptureFixture) -> None:
    """Batches read nothing meanwhile, and say so once in a while; then all is read."""
    brokers = Brokers({A: (0, 4)})
    clock = HandClock(1000)
    reader = reader_of(brokers, parameters=EARLIEST_FIRST, clock=clock)
    reader.plan(1000)
    brokers.are_away = True
    with caplog.at_level(logging.WARNING):
        for time_ms in (2000, 3000, 4000):
            clock.time_ms = time_ms
            planned = reader.plan(time_ms)
            assert ranges(planned) == {A: (4, 4)}
            said = reader.describe(planned)
            assert said.text == "no broker of localhost:1 answers: refused"
            assert "lag" not in said.metadata  # nobody knows it
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "no broker of localhost:1 answers: refused; batches run without its records until a "
        "broker answers"
    )
    caplog.clear()
    brokers.are_away, brokers.logs[A] = False, (0, 9)
    assert ranges(reader.plan(5000)) == {A: (4, 9)}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("its brokers answer again, after 2 s and 3 batches without its records")


def test_brokers_away_before_the_first_batch() -> None:
    """The starting offsets are determined once, at the start."""
    brokers = Brokers({A: (0, 4)})
    reader = reader_of(brokers)
    brokers.are_away = True
    assert ranges(reader.plan(1000)) == {A: (4, 4)}
    brokers.are_away, brokers.logs[A] = False, (0, 7)
    assert ranges(reader.plan(2000)) == {A: (4, 7)}


def test_an_input_does_not_start_without_brokers() -> None:
    """It would not know where it begins: the start fails, with who did not answer."""
    brokers = Brokers({A: (0, 4)}, are_away=True)
    with pytest.raises(BrokersAwayError, match="no broker of localhost:1 answers"):
        reader_of(brokers)


def test_a_restart_goes_on_by_the_checkpoint() -> None:
    """Offsets of the group, the program and the broker are not read again."""
    brokers = Brokers({A: (0, 4)})
    planned = reader_of(brokers, parameters=EARLIEST_FIRST).plan(1000)
    brokers.groups, brokers.logs[A] = {A: 1}, (0, 6)
    again = reader_of(brokers, {A: 2}, planned)
    assert ranges(again.plan(2000)) == {A: (4, 6)}


def test_commits_of_programs_go_with_the_next_batch() -> None:
    """And with the end of the stream; those of ranges in pieces are of the last piece."""
    brokers = Brokers({A: (0, 4), B: (0, 4)})
    reader = reader_of(brokers)
    source: KafkaSource = reader._source
    source.commits.add([OffsetRange("t", 0, 2, 4), OffsetRange("t", 0, 0, 2)])
    assert brokers.commits == []
    reader.plan(1000)
    assert brokers.commits == [{A: 4}]
    source.commits.add([OffsetRange("t", 1, 0, 3)])
    reader.close()
    assert brokers.commits == [{A: 4}, {B: 3}]
    assert brokers.is_closed


@pytest.mark.parametrize(("said", "commits"), [("true", [{A: 4}]), (True, [{A: 4}]), ("false", [])])
def test_enable_auto_commit(said: Any, commits: list[dict[TopicPartition, int]]) -> None:
    """Committed batches are committed to the group if the parameters enable it."""
    brokers = Brokers({A: (0, 4)})
    parameters = {**EARLIEST_FIRST, "enable.auto.commit": said}
    reader = reader_of(brokers, parameters=parameters)
    reader.commit(reader.plan(1000).end)
    assert brokers.commits == commits


def test_a_commit_without_a_group(caplog: pytest.LogCaptureFixture) -> None:
    """The callback and the log have the error; the stream continues."""
    brokers = Brokers({A: (0, 4)})
    reader = reader_of(brokers, parameters={"group.id": None})
    told: list[Any] = []
    reader._source.commits.add([OffsetRange("t", 0, 0, 4)], lambda *said: told.append(said))
    with caplog.at_level(logging.WARNING):
        reader.plan(1000)
    [(offsets, error)] = told
    assert offsets == {A: 4}
    assert "offsets are committed to a group; give group.id" in str(error)
    assert "offsets were not committed" in caplog.text


def test_records_of_an_earlier_run_are_there() -> None:
    """A replay asks once for all batches, before any of them runs; the error names what is gone."""
    brokers = Brokers({A: (3, 9), B: (0, 4)})
    reader = reader_of(brokers, parameters=EARLIEST_FIRST)
    first = reader.plan(1000)
    brokers.logs = {A: (3, 12), B: (0, 8)}
    plans = [first, reader.plan(2000)]
    brokers.questions.clear()
    reader.reader.require_records(plans)
    assert brokers.questions == [EARLIEST, EARLIEST]
    brokers.logs = {A: (4, 12), B: (0, 8)}
    with pytest.raises(SourceError, match="records were deleted: t-0 begins at 4, and offset 3"):
        reader.reader.require_records(plans)
