"""The Kinesis source on moto's server, which :mod:`tests.support.kinesis_server` completes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pickle import dumps
from typing import Any

import pytest
from pyspark import SparkContext, cloudpickle

from checkpoint.storage.json_records import encode
from dstreams.errors import RestartError, SourceError
from dstreams.kinesis.kinesis_client import LATEST, TRIM_HORIZON, KinesisConnection
from dstreams.kinesis.kinesis_source import KinesisReader, KinesisSource, ShardRange, read_again
from dstreams.sources.source import PlannedInput, SourceEnvironment
from dstreams.testing import ManualClock
from tests.dstreams.kinesis.test_kinesis_client import of_producer
from tests.support.kinesis_server import KEY, KEY_ID, REGION, KinesisServer, running_kinesis
from tests.support.surroundings import Surroundings
from tests.support.waiting import wait_for

ZERO_MS = 1_700_000_000_000
FIRST, SECOND, THIRD, FOURTH = (f"shardId-{number:012d}" for number in range(4))


@pytest.fixture(scope="module")
def kinesis() -> Iterator[KinesisServer]:
    with running_kinesis() as server:
        yield server


@pytest.fixture(autouse=True)
def _no_fault_is_left(kinesis: KinesisServer) -> Iterator[None]:
    yield
    assert kinesis.faults_left() == 0


def source_of(kinesis: KinesisServer, stream: str, initial: str = TRIM_HORIZON) -> KinesisSource:
    return KinesisSource(KinesisConnection(stream, kinesis.url, REGION, KEY_ID, KEY), initial)


@dataclass
class Life:
    """A run of a reader: its batches, as they are written down."""

    reader: KinesisReader
    clock: ManualClock
    errors: list[Exception]
    begun: list[PlannedInput] = field(default_factory=list)

    def wait(self, records: int) -> None:
        """Let time pass until so many records wait for a batch."""

        def have_come() -> bool:
            self.clock.advance(500)
            assert not self.errors, self.errors
            return self.reader.waiting_records() >= records

        wait_for(have_come)

    def plan(self, records: int = 0) -> PlannedInput:
        """Plan and begin a batch, when so many records wait."""
        self.wait(records)
        start = self.begun[-1].end if self.begun else None
        planned = self.reader.plan(start, self.clock.now_ms())
        said = json.loads(encode(planned.to_record()))
        self.begun.append(PlannedInput.from_record(planned.time_ms, said))
        return planned

    def numbers(self, planned: PlannedInput) -> list[int]:
        """The records of a batch, by the shards' order."""
        rdd = self.reader.read(planned)
        return [] if rdd is None else sorted(map(int, rdd.collect()))


@pytest.fixture
def lives() -> Iterator[Lives]:
    made = Lives()
    yield made
    for life in made.all:
        life.reader.close()


@dataclass
class Lives:
    """Begins runs, and knows what was written down before."""

    all: list[Life] = field(default_factory=list)

    def begin(
        self,
        source: KinesisSource,
        spark: SparkContext | None = None,
        after: list[PlannedInput] | None = None,
        **settings: Any,
    ) -> Life:
        clock = ManualClock(ZERO_MS if not after else after[-1].time_ms)
        around = Surroundings(clock)  # type: ignore[arg-type]
        environment: SourceEnvironment = around.environment(spark, **settings)
        if after:
            environment = replace(environment, newest=after[-1])
        life = Life(source.open(environment), clock, around.errors, list(after or ()))
        life.reader.start()
        self.all.append(life)
        return life


@pytest.mark.deep
def test_each_record_once(kinesis: KinesisServer, lives: Lives, sc: SparkContext) -> None:
    """From the oldest one on, batch by batch; an offset has the position in each shard."""
    stream = kinesis.create(shards=3)
    kinesis.put(stream, range(20))
    life = lives.begin(source_of(kinesis, stream), sc)
    first = life.plan(20)
    assert first.records == 20
    assert first.description == "20 records of 3 shards, 30 bytes"
    assert life.numbers(first) == list(range(20))
    assert set(first.end) == {FIRST, SECOND, THIRD}
    kinesis.put(stream, [20])
    second = life.plan(1)
    assert life.numbers(second) == [20]
    third = life.plan()
    assert (third.start, third.records, life.numbers(third)) == (third.end, 0, [])


def test_order_in_a_shard(kinesis: KinesisServer, lives: Lives, sc: SparkContext) -> None:
    """Records of a shard keep the order in which Kinesis has them, also over many tasks."""
    stream = kinesis.create()
    for number in range(40):
        kinesis.put_data(stream, b"%03d" % number + b"." * 2000)
    life = lives.begin(source_of(kinesis, stream), sc)
    rdd = life.reader.read(life.plan(40))
    assert rdd is not None
    assert rdd.getNumPartitions() == 2
    assert [int(data[:3]) for data in rdd.collect()] == list(range(40))


@pytest.mark.deep
def test_a_restart_reads_the_same_again(
    kinesis: KinesisServer, lives: Lives, sc: SparkContext
) -> None:
    """Begun batches keep their records; the next batch continues after them."""
    stream = kinesis.create(shards=2)
    kinesis.put(stream, range(10))
    source = source_of(kinesis, stream)
    life = lives.begin(source, sc)
    numbers = [life.numbers(life.plan(10))]
    kinesis.put(stream, range(10, 15))
    numbers.append(life.numbers(life.plan(5)))
    kinesis.put(stream, range(15, 18))
    life.wait(3)  # read ahead, and in no batch
    life.reader.close()

    kinesis.put(stream, range(18, 21))
    again = lives.begin(source, sc, after=life.begun)
    assert [again.numbers(planned) for planned in life.begun] == numbers
    assert again.numbers(again.plan(6)) == list(range(15, 21))


def test_latest(kinesis: KinesisServer, lives: Lives, sc: SparkContext) -> None:
    """At the tip of the stream: what was there before is not read, and nothing after it is lost.

    Not even where a driver is killed before it has read anything: the time of its start stands in
    the offset.
    """
    stream = kinesis.create()
    kinesis.put(stream, range(5))
    for record in kinesis.shards(stream)[0].records.values():
        record.created_at -= 60
    life = lives.begin(source_of(kinesis, stream, LATEST), sc)
    first = life.plan()
    assert first.records == 0
    (position,) = first.end.values()
    assert position.startswith("@")
    life.reader.close()
    kinesis.put(stream, [5, 6])
    again = lives.begin(source_of(kinesis, stream, LATEST), sc, after=life.begun)
    assert again.numbers(again.plan(2)) == [5, 6]


def test_split_and_merge(kinesis: KinesisServer, lives: Lives, sc: SparkContext) -> None:
    """Children are read once their parents are, from their beginning; a restart does the same."""
    stream = kinesis.create(shards=2)
    source = source_of(kinesis, stream)
    kinesis.put(stream, range(20))
    life = lives.begin(source, sc, receiver_max_rate=10)
    life.reader.update_rate(10)
    kinesis.split(stream, kinesis.shards(stream)[0])
    kinesis.put(stream, range(20, 40))
    kinesis.merge(stream, *kinesis.shards(stream)[2:4])
    kinesis.put(stream, range(40, 60))
    seen: list[int] = []
    for _ in range(3):
        seen += life.numbers(life.plan(10))
    life.reader.close()
    again = lives.begin(source, sc, after=life.begun)
    seen += again.numbers(again.plan(30))
    assert sorted(seen) == list(range(60))
    closed = {shard for shard, position in again.begun[-1].end.items() if position == "CLOSED"}
    assert closed == {FIRST, THIRD, FOURTH}


def test_order_of_a_key_over_a_split(
    kinesis: KinesisServer, lives: Lives, sc: SparkContext
) -> None:
    """Records before the split are read before records after it."""
    stream = kinesis.create()
    for number in range(10):
        kinesis.put_data(stream, b"%d" % number)
    kinesis.split(stream, kinesis.shards(stream)[0])
    for number in range(10, 20):
        kinesis.put_data(stream, b"%d" % number)
    life = lives.begin(source_of(kinesis, stream), sc)
    rdd = life.reader.read(life.plan(20))
    assert rdd is not None
    assert [int(data) for data in rdd.collect()] == list(range(20))


def test_a_tip_behind_a_split(kinesis: KinesisServer, lives: Lives, sc: SparkContext) -> None:
    """Records of closed shards are older and are not read, also after a restart."""
    stream = kinesis.create()
    kinesis.put(stream, range(5))
    kinesis.split(stream, kinesis.shards(stream)[0])
    source = source_of(kinesis, stream, LATEST)
    life = lives.begin(source, sc)
    assert life.plan().end[FIRST] == "CLOSED"
    life.reader.close()
    again = lives.begin(source, sc, after=life.begun)
    kinesis.put(stream, [5])
    assert again.numbers(again.plan(1)) == [5]


def test_a_shard_that_kinesis_forgets(
    kinesis: KinesisServer, lives: Lives, sc: SparkContext
) -> None:
    """A shard that was read to its end leaves the offset; any other is an error."""
    stream = kinesis.create()
    kinesis.put(stream, [0])
    source = source_of(kinesis, stream)
    life = lives.begin(source, sc)
    before_split = [life.plan(1)]
    kinesis.split(stream, kinesis.shards(stream)[0])
    kinesis.put(stream, [1])
    assert life.numbers(life.plan(1)) == [1]
    life.reader.close()
    del kinesis.stream(stream).shards[FIRST]
    again = lives.begin(source, sc, after=life.begun)
    kinesis.put(stream, [2])
    planned = again.plan(1)
    assert again.numbers(planned) == [2]
    assert FIRST not in planned.end
    with pytest.raises(SourceError, match=f"Kinesis has deleted {FIRST}, which was read up to 1"):
        lives.begin(source, sc, after=before_split)


@pytest.mark.deep
def test_records_that_kinesis_forgets(
    kinesis: KinesisServer, lives: Lives, sc: SparkContext
) -> None:
    """A batch that would have fewer records than it had fails, and names them."""
    stream = kinesis.create()
    kinesis.put(stream, range(5))
    source = source_of(kinesis, stream)
    life = lives.begin(source, sc)
    planned = life.plan(5)
    life.reader.close()
    again = lives.begin(source, sc, after=life.begun)
    kinesis.forget(stream, 2)
    with pytest.raises(Exception, match=f"the 5 records of a batch in {FIRST}, from 1") as caught:
        again.numbers(planned)
    assert "raise its retention period" in str(caught.value)


@pytest.mark.deep
@pytest.mark.parametrize("missing", [0, 2, 4])
def test_a_range_is_read_whole(kinesis: KinesisServer, missing: int) -> None:
    """Whichever record is missing, at the begin, in the middle or at the end."""
    stream = kinesis.create()
    kinesis.put(stream, range(5))
    records = kinesis.shards(stream)[0].records
    numbers = list(map(str, records))
    connection = source_of(kinesis, stream).connection
    whole = ShardRange(FIRST, numbers[0], numbers[-1], 5, None)
    assert list(read_again(connection, "name", [whole])) == [b"0", b"1", b"2", b"3", b"4"]
    part = ShardRange(FIRST, numbers[1], numbers[3], 3, None)
    assert list(read_again(connection, "name", [part])) == [b"1", b"2", b"3"]
    del records[int(numbers[missing])]
    with pytest.raises(SourceError, match="are no longer in the stream"):
        list(read_again(connection, "name", [whole]))


def test_a_stream_that_was_made_again(
    kinesis: KinesisServer, lives: Lives, sc: SparkContext
) -> None:
    """Positions in another stream of the same name say nothing: the restart is refused."""
    stream = kinesis.create()
    kinesis.put(stream, [0])
    source = source_of(kinesis, stream)
    life = lives.begin(source, sc)
    life.plan(1)
    life.reader.close()
    kinesis.client.delete_stream(StreamName=stream)
    kinesis.client.create_stream(StreamName=stream, ShardCount=1)
    with pytest.raises(RestartError, match="the stream was deleted and created again"):
        lives.begin(source, sc, after=life.begun)


def test_a_stream_that_is_deleted_while_it_is_read(kinesis: KinesisServer, lives: Lives) -> None:
    """The error has the name of the stream."""
    stream = kinesis.create()
    life = lives.begin(source_of(kinesis, stream))
    kinesis.client.delete_stream(StreamName=stream)

    def is_told() -> bool:
        life.clock.advance(1000)
        return bool(life.errors)

    wait_for(is_told)
    assert f"KinesisUtils.createStream({stream}) stopped reading" in str(life.errors[0])
    assert "ResourceNotFoundException" in str(life.errors[0])


@pytest.mark.deep
def test_throttling(
    kinesis: KinesisServer,
    lives: Lives,
    sc: SparkContext,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It waits, reads again, and says so, but not each of the eight times; nothing is lost."""
    stream = kinesis.create()
    kinesis.put(stream, range(3))
    with caplog.at_level(logging.WARNING, "dstreams"):
        kinesis.fail("get_records", "ProvisionedThroughputExceededException", times=6)
        kinesis.fail("get_shard_iterator", "ProvisionedThroughputExceededException", times=2)
        life = lives.begin(source_of(kinesis, stream), sc)
        assert life.numbers(life.plan(3)) == [0, 1, 2]
        life.reader.close()
    said = [record.message for record in caplog.records]
    warning = "Kinesis throttles this and other readers of the stream"
    assert 0 < sum(warning in line for line in said) < 8
    assert not any("available again" in line for line in said)


@pytest.mark.deep
def test_an_outage(
    kinesis: KinesisServer,
    lives: Lives,
    sc: SparkContext,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is said once that Kinesis does not answer, and once that it does; nothing is lost."""
    stream = kinesis.create()
    with caplog.at_level(logging.WARNING, "dstreams"):
        life = lives.begin(source_of(kinesis, stream), sc)
        kinesis.fail("get_records", "InternalFailure", times=8)
        kinesis.put(stream, [1])
        assert life.numbers(life.plan(1)) == [1]
        wait_for(lambda: "Kinesis is available again" in caplog.text)
    outage, end = (record.message for record in caplog.records)
    assert "cannot read its records of the Kinesis stream" in outage
    assert "InternalFailure" in outage
    assert "retrying at least every 30000 ms" in outage
    assert "Kinesis is available again" in end
    assert KEY not in outage
    assert KEY_ID not in outage


def test_an_iterator_that_has_expired(
    kinesis: KinesisServer, lives: Lives, sc: SparkContext
) -> None:
    """Another one from the same position takes its place: nothing is lost, nothing comes twice."""
    stream = kinesis.create()
    life = lives.begin(source_of(kinesis, stream, LATEST), sc)
    kinesis.fail("get_records", "ExpiredIteratorException")
    kinesis.put(stream, [0, 1])
    assert life.numbers(life.plan(2)) == [0, 1]
    kinesis.fail("get_records", "ExpiredIteratorException", times=2)
    kinesis.put(stream, [2, 3])
    assert life.numbers(life.plan(2)) == [2, 3]


@pytest.mark.deep
def test_throttling_of_a_task(kinesis: KinesisServer) -> None:
    """Tasks that read again leave the waiting to boto3."""
    stream = kinesis.create()
    kinesis.put(stream, range(2))
    first, last = map(str, kinesis.shards(stream)[0].records)
    kinesis.fail("get_records", "ProvisionedThroughputExceededException", times=2)
    connection = source_of(kinesis, stream).connection
    wanted = ShardRange(FIRST, first, last, 2, None)
    assert list(read_again(connection, "name", [wanted])) == [b"0", b"1"]


def test_aggregated_records(kinesis: KinesisServer, lives: Lives, sc: SparkContext) -> None:
    """Each record of the producer counts, and comes again after a restart; those of others not."""
    stream = kinesis.create(shards=2)
    middle = 2**127
    both = [("key", 1, b"1"), ("key", middle, b"2"), ("key", 3, b"3")]
    kinesis.put_data(stream, of_producer([*both]))
    kinesis.put_data(stream, b"4")
    source = source_of(kinesis, stream)
    life = lives.begin(source, sc)
    planned = life.plan(3)
    assert planned.records == 3
    assert life.numbers(planned) == [1, 3, 4]
    life.reader.close()
    again = lives.begin(source, sc, after=life.begun)
    assert again.numbers(life.begun[-1]) == [1, 3, 4]


def test_rate_limit(kinesis: KinesisServer, lives: Lives, sc: SparkContext) -> None:
    """A batch has no more than its share; what producers put together stays together."""
    stream = kinesis.create()
    kinesis.put(stream, range(7))
    large = [("key", None, b"%d" % number) for number in range(10, 15)]
    kinesis.put_data(stream, of_producer([*large]))
    kinesis.put(stream, [20])
    life = lives.begin(source_of(kinesis, stream), sc)
    life.wait(13)
    life.reader.update_rate(3)
    assert [life.plan().records for _ in range(6)] == [3, 3, 1, 5, 1, 0]


def test_a_plan_that_was_not_begun(kinesis: KinesisServer, lives: Lives, sc: SparkContext) -> None:
    """The next plan from the same start has its records, and what has come since."""
    stream = kinesis.create()
    kinesis.put(stream, range(3))
    life = lives.begin(source_of(kinesis, stream), sc)
    life.wait(3)
    life.reader.plan(None, ZERO_MS + 1)
    kinesis.put(stream, [3])
    life.wait(1)
    planned = life.reader.plan(None, ZERO_MS + 2)
    assert life.numbers(planned) == [0, 1, 2, 3]
    assert life.reader.plan(planned.end, ZERO_MS + 3).records == 0


def test_no_room(kinesis: KinesisServer, lives: Lives, sc: SparkContext) -> None:
    """A slow stream leaves records in Kinesis: what waits in the driver is bounded."""
    stream = kinesis.create()
    kinesis.put_data(stream, b"7" * 100)
    life = lives.begin(source_of(kinesis, stream), sc, receiver_max_buffer_bytes=50)
    planned = life.plan(1)
    kinesis.put(stream, [8])
    calls = len(kinesis.calls)
    for _ in range(5):
        life.clock.advance(1000)
    assert life.reader.waiting_records() == 0
    assert len(kinesis.calls) <= calls + 1  # one that was on its way
    assert life.numbers(planned) == [int("7" * 100)]
    assert life.numbers(life.plan(1)) == [8]


def test_what_waits_at_a_stop(kinesis: KinesisServer, lives: Lives, sc: SparkContext) -> None:
    """Batches can have what was read; after them nothing is pending."""
    stream = kinesis.create()
    kinesis.put(stream, range(3))
    life = lives.begin(source_of(kinesis, stream), sc)
    life.wait(3)
    life.reader.stop_receiving()
    assert life.reader.has_pending()
    planned = life.reader.plan(None, ZERO_MS + 1)
    assert not life.reader.has_pending()
    assert life.numbers(planned) == [0, 1, 2]
    life.reader.commit(planned.end)
    life.reader.close()
    life.reader.close()


def test_keys_are_in_no_checkpoint(kinesis: KinesisServer) -> None:
    """A source as it is written down, and as it is printed, has no key; tasks get it."""
    source = source_of(kinesis, "some-stream")
    for text in (cloudpickle.dumps(source), dumps(source), repr(source).encode()):
        assert KEY.encode() not in text
        assert KEY_ID.encode() not in text
    assert b"some-stream" in dumps(source)
    assert KEY.encode() in dumps(source.connection)


def test_a_long_absence(
    kinesis: KinesisServer, lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    """Kinesis does not say what it has dropped; that it may have is in the log."""
    stream = kinesis.create()
    source = source_of(kinesis, stream)
    life = lives.begin(source)
    life.plan()
    life.reader.close()
    old = [replace(life.begun[-1], time_ms=ZERO_MS - 30 * 3_600_000)]
    clock = ManualClock(ZERO_MS)
    environment = Surroundings(clock).environment()  # type: ignore[arg-type]
    reader = source.open(replace(environment, newest=old[-1]))
    with caplog.at_level(logging.WARNING, "dstreams"):
        reader.start()
    reader.close()
    assert "planned 30 hours ago, but the stream keeps records for 24 hours" in caplog.text
