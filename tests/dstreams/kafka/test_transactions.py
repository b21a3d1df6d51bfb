"""Batches in topics of a real broker: each record once after crashes and repeated tasks."""

from __future__ import annotations

import json
import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import InvalidStreamError, OutputConflictError, StreamError
from dstreams.kafka import KafkaSink
from dstreams.kafka import transactions as sink_module
from dstreams.kafka.output_commits import DEFAULT_TOPIC, OutputCommits
from dstreams.kafka.parameters import ProducerParameters
from dstreams.kafka.producers import KeptProducer, ProducerRecord
from dstreams.kafka.transactions import KafkaOutput, WrittenBatch, _TransactionTask
from dstreams.sinks import OutputBatch
from dstreams.testing import BatchDriver
from tests.support.jobs import count_jobs
from tests.support.kafka_cluster import KafkaCluster, KafkaException, Sent

STREAM = f"stream-{uuid.uuid4().hex[:8]}"


def batch_of(number: int, beginning: str = "", stream: str = STREAM, **more: Any) -> OutputBatch:
    return OutputBatch(stream, number, 1000 * (number + 1), beginning or f"{number:x}", **more)


def output(kafka: KafkaCluster, name: str, **more: Any) -> KafkaOutput:
    """An output of a new process: it knows nothing yet."""
    given = {"bootstrap.servers": kafka.bootstrap, "delivery.timeout.ms": 30_000, **more}
    return KafkaOutput(ProducerParameters.of(given, f"the sink {name}"), name)


def records(topic: str, *values: str) -> list[ProducerRecord]:
    return [ProducerRecord(topic, None, value, value) for value in values]


def numbers(topic: str, count: int) -> list[ProducerRecord]:
    return records(topic, *map(str, range(count)))


def found(kafka: KafkaCluster, topic: str) -> list[str]:
    """The values of a topic, as a reader of committed records sees them."""
    return sorted(value.decode() for value in kafka.values(topic) if value is not None)


# A stream ------------------------------------------------------------------------------------


@pytest.mark.deep
def test_each_batch_of_a_stream_is_written(sc: SparkContext, kafka: KafkaCluster) -> None:
    """Pairs by default; a batch without an RDD, and one without records, write nothing."""
    topic = kafka.create_topic(3)
    with BatchDriver(sc) as driver:
        stream = driver.input([[("a", "1"), ("b", b"2"), (None, "3")], None, [], [("a", None)]])
        stream.saveToKafka(topic, {"bootstrap.servers": kafka.bootstrap})
        driver.run(4)
    there = [(record.key, record.value) for record in kafka.read(topic)]
    assert Counter(there) == Counter([(None, b"3"), (b"a", b"1"), (b"a", None), (b"b", b"2")])


@pytest.mark.deep
def test_keys_are_where_the_producers_of_java_put_them(
    sc: SparkContext, kafka: KafkaCluster
) -> None:
    """By murmur2, as Kafka's own tests of its partitioner have it."""
    topic = kafka.create_topic(1000)
    keys = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    output(kafka, "java").write(batch_of(0), sc.parallelize(records(topic, *keys), 1))
    places = {record.key.decode(): record.partition for record in kafka.read(topic) if record.key}
    assert places == {key: (hashed & 0x7FFFFFFF) % 1000 for key, hashed in keys.items()}


def topic_of(record: dict[str, Any]) -> str:
    return str(record["topic"])


def headers_of(record: dict[str, Any]) -> list[tuple[str, Any]]:
    return [("kind", record["kind"]), ("none", None)]


@pytest.mark.deep
def test_what_a_record_is_made_of(sc: SparkContext, kafka: KafkaCluster) -> None:
    """Topic, key, value, headers and partition by functions."""
    one, other = kafka.create_topic(4), kafka.create_topic(4)
    sink = KafkaSink(
        topic_of,
        {"bootstrap.servers": kafka.bootstrap},
        key=lambda record: record["kind"],
        value=json.dumps,
        headers=headers_of,
        partition=lambda record: record.get("partition"),
        name="all-parts",
    )
    rows = [{"topic": one, "kind": "a", "partition": 2}, {"topic": other, "kind": "b"}]
    sink.write_batch(batch_of(0), sc.parallelize(rows, 2))
    (here,), (there,) = kafka.read(one), kafka.read(other)
    assert here.partition == 2
    assert here.headers == (("kind", b"a"), ("none", None))
    assert (here.key, json.loads(here.value or b"")) == (b"a", rows[0])
    assert (there.key, json.loads(there.value or b"")) == (b"b", rows[1])


def test_a_batch_that_is_there_runs_no_job(sc: SparkContext, kafka: KafkaCluster) -> None:
    """It was written before the driver died; a partition without records needs no transaction."""
    topic = kafka.create_topic(2)
    rdd = sc.parallelize(numbers(topic, 5), 2)
    assert output(kafka, "there").write(batch_of(0), rdd) == WrittenBatch(5, 2, 0)
    again = output(kafka, "there")
    assert count_jobs(sc, lambda: again.write(batch_of(0), rdd)) == 0
    assert again.write(batch_of(1), sc.parallelize(numbers(topic, 0), 2)) == WrittenBatch(0, 0, 0)
    assert again.write(batch_of(2), sc.emptyRDD()) == WrittenBatch(0, 0, 0)
    assert found(kafka, topic) == sorted(map(str, range(5)))


@pytest.mark.deep
def test_one_batch_after_the_other(sc: SparkContext, kafka: KafkaCluster) -> None:
    """Any worker may write a partition: kept producers are reused or replaced."""
    topic = kafka.create_topic(2)
    one = output(kafka, "many")
    for number in range(8):
        written = one.write(batch_of(number), sc.parallelize(numbers(topic, 30), 3))
        assert written == WrittenBatch(30, 3, 0)
    assert found(kafka, topic) == sorted(8 * [str(number) for number in range(30)])


@pytest.mark.deep
def test_a_batch_that_is_larger_than_the_queue_of_a_producer(
    sc: SparkContext, kafka: KafkaCluster
) -> None:
    """A task waits for the brokers where it is quicker than they are."""
    topic = kafka.create_topic(2)
    one = output(kafka, "large", **{"queue.buffering.max.messages": 1000})
    rdd = sc.parallelize(range(2), 2).flatMap(lambda part: numbers(topic, 20_000))
    assert one.write(batch_of(0), rdd) == WrittenBatch(40_000, 2, 0)
    assert len(kafka.read(topic)) == 40_000


@pytest.mark.deep
def test_at_least_once(sc: SparkContext, kafka: KafkaCluster) -> None:
    """A batch that runs again is written again, without transactions, and without a commit."""
    topic = kafka.create_topic(2)
    given = {"bootstrap.servers": kafka.bootstrap}
    sink = KafkaSink(topic, given, value=str, exactlyOnce=False, commitTopic="is-not-made")
    for _ in range(2):
        sink.write_batch(batch_of(0), sc.parallelize(range(5), 3))
    assert found(kafka, topic) == sorted(2 * list("01234"))
    assert len(kafka.read(topic, "read_uncommitted")) == 10
    assert "is-not-made" not in kafka.admin.list_topics(timeout=300).topics


# A crash on the way --------------------------------------------------------------------------


def fail_in_the_second(split: int, rows: Iterable[Any]) -> Iterator[Any]:
    for number, row in enumerate(rows):
        if split == 1 and number == 2:
            raise ValueError("not this one")
        yield row


@pytest.mark.deep
def test_partitions_that_are_there_are_not_written_again(
    sc: SparkContext, kafka: KafkaCluster
) -> None:
    """Of a batch that was cut off the others come later, by this process or by another one."""
    topic = kafka.create_topic(2)
    rdd = sc.parallelize(numbers(topic, 12), 3)
    for again in (False, True):
        batch = batch_of(int(again))
        one = output(kafka, "cut off")
        with pytest.raises(Exception, match="not this one"):
            one.write(batch, rdd.mapPartitionsWithIndex(fail_in_the_second))
        rest = (one if again else output(kafka, "cut off")).write(batch, rdd)
        assert (rest.partitions + rest.found, rest.records) == (3, 4 * rest.partitions)
    assert found(kafka, topic) == sorted(2 * [str(number) for number in range(12)])


@pytest.mark.deep
def test_another_number_of_partitions(sc: SparkContext, kafka: KafkaCluster) -> None:
    """A partly written batch must run with the same partitions; the next one may differ."""
    topic = kafka.create_topic(2)
    rdd = sc.parallelize(numbers(topic, 12), 3)
    with pytest.raises(Exception, match="not this one"):
        output(kafka, "parts").write(batch_of(0), rdd.mapPartitionsWithIndex(fail_in_the_second))
    message = r"batch 0 of the sink 'parts' was written in part with 3 partitions, .* and now h"
    with pytest.raises(StreamError, match=message):
        output(kafka, "parts").write(batch_of(0), rdd.coalesce(2))
    one = output(kafka, "parts")
    one.write(batch_of(0), rdd)
    for number, parts in ((1, 1), (2, 5), (3, 2)):
        one.write(batch_of(number), sc.parallelize(numbers(topic, 10), parts))
    assert len(found(kafka, topic)) == 12 + 30


def begun(
    kafka: KafkaCluster, commits: OutputCommits, batch: OutputBatch, part: int, of: int, topic: str
) -> Any:
    """A writer that has sent all of its transaction, and not committed it."""
    producer = kafka.producer(transactional_id=commits.transactional_id(part))
    producer.init_transactions(300)
    producer.begin_transaction()
    producer.produce(topic, value=f"of {part}")
    key, value = commits.record(batch, part, of)
    producer.produce(commits.topic, key=key, value=value, partition=commits.partition)
    producer.flush(300)
    return producer


@pytest.mark.deep
def test_a_transaction_that_hides_what_was_committed(sc: SparkContext, kafka: KafkaCluster) -> None:
    """A task was killed right before its commit: what others committed after it counts.

    The partitions before it in the batch cannot wait for it to be repeated: they go after it.
    """
    topic = kafka.create_topic(1)
    name = "hidden"
    commits = OutputCommits(DEFAULT_TOPIC, name, STREAM)
    batch, rdd = batch_of(0), sc.parallelize(numbers(topic, 12), 3)
    parts = {part: begun(kafka, commits, batch, part, 3, topic) for part in (2, 0)}
    parts[0].commit_transaction(300)
    assert output(kafka, name).write(batch, rdd) == WrittenBatch(8, 2, 1)
    assert found(kafka, topic) == sorted(["of 0", *map(str, range(4, 12))])
    with pytest.raises(KafkaException, match="fenced"):
        parts[2].commit_transaction(300)


# Other writers -------------------------------------------------------------------------------


def task(
    kafka: KafkaCluster, name: str, batch: OutputBatch, parts: int = 1, hidden_s: float = 1.0
) -> _TransactionTask:
    """The task of a driver that does not know the commits."""
    one = output(kafka, name)
    parameters = one._parameters
    sink_module.require_topic(parameters, DEFAULT_TOPIC)
    return _TransactionTask(
        parameters, parameters.for_transactions(), parameters.for_commits(),
        OutputCommits(DEFAULT_TOPIC, name, batch.stream_id), batch, parts, {}, {}, None, hidden_s,
    )  # fmt: skip


def then(rows: list[Any], call: Callable[[], Any]) -> Iterator[Any]:
    """Rows, between which something happens."""
    yield rows[0]
    call()
    yield from rows[1:]


def test_two_attempts_of_one_task_at_once(kafka: KafkaCluster) -> None:
    """The later one takes over and writes; the earlier one fails, and finds it when it repeats."""
    topic = kafka.create_topic(1)
    rows = numbers(topic, 5)
    attempt = task(kafka, "twins", batch_of(0))

    def twin() -> None:
        (report,) = attempt(0, rows)
        assert (report.records, report.found) == (5, False)

    message = r"the sink twins: another writer has taken over the transactional id 'dstreams-stream"
    with pytest.raises(StreamError, match=message):
        attempt(0, then(rows, twin))
    (report,) = attempt(0, rows)
    assert (report.records, report.found) == (0, True)
    assert found(kafka, topic) == list("01234")


@pytest.mark.deep
def test_a_driver_that_wakes_up_after_the_next_one_has_written(
    sc: SparkContext, kafka: KafkaCluster
) -> None:
    """Its open transaction is aborted; a late task finds the committed batch."""
    topic = kafka.create_topic(2)
    older, newer = output(kafka, "woken"), output(kafka, "woken")
    rdd = sc.parallelize(numbers(topic, 4), 2)
    older.write(batch_of(0), rdd)
    assert older._cache is not None
    stale = older._cache.task(batch_of(1), 2, 1.0)
    asleep = replace(stale, owners={})  # on other workers, which have no producers of it

    def next_driver() -> None:
        assert newer.write(batch_of(1), rdd) == WrittenBatch(4, 2, 0)

    rows = numbers(topic, 4)[:2]
    with pytest.raises(StreamError, match="a newer driver, or another attempt of this task"):
        asleep(0, then(rows, next_driver))
    assert older.write(batch_of(1), rdd).records == 0
    assert newer.write(batch_of(2), rdd) == WrittenBatch(4, 2, 0)
    assert found(kafka, topic) == sorted(3 * list("0123"))


class Attempt:
    """The part of a task's context that identifies its attempt."""

    def __init__(self, attempt: int, number: int = 0) -> None:
        self.attempt, self.number = attempt, number

    def get(self) -> Attempt:
        return self

    def taskAttemptId(self) -> int:
        return self.attempt

    def attemptNumber(self) -> int:
        return self.number


def test_a_producer_that_was_kept_and_is_fenced(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Continuing needs no further request; a repeated task corrects the driver."""
    topic = kafka.create_topic(1)
    begun: list[str] = []
    take_over = KeptProducer.take_over

    def counted(producer: KeptProducer) -> None:
        begun.append("again")
        take_over(producer)

    monkeypatch.setattr(KeptProducer, "take_over", counted)
    monkeypatch.setattr(sink_module, "TaskContext", Attempt(1))
    first = task(kafka, "kept", batch_of(0))
    (report,) = first(0, numbers(topic, 2))
    next_one = replace(first, batch=batch_of(1), owners={0: report.owner}, last={0: report.last})
    monkeypatch.setattr(sink_module, "TaskContext", Attempt(2))
    (report,) = next_one(0, numbers(topic, 3))
    assert (report.records, len(begun)) == (3, 1)
    another = kafka.producer(transactional_id=first.commits.transactional_id(0))
    another.init_transactions(300)
    mistaken = replace(first, batch=batch_of(2), owners={0: 2}, last={0: report.last})
    monkeypatch.setattr(sink_module, "TaskContext", Attempt(3))
    with pytest.raises(StreamError, match="has taken over the transactional id"):
        mistaken(0, numbers(topic, 4))
    monkeypatch.setattr(sink_module, "TaskContext", Attempt(4, number=1))
    (report,) = mistaken(0, numbers(topic, 4))
    assert (report.records, len(begun)) == (4, 2)
    assert len(found(kafka, topic)) == 2 + 3 + 4


# Another history -----------------------------------------------------------------------------


@pytest.mark.deep
def test_an_older_copy_that_is_put_back(sc: SparkContext, kafka: KafkaCluster) -> None:
    """Its numbers have other batches: nothing is written or skipped."""
    topic = kafka.create_topic(2)
    rdd = sc.parallelize(numbers(topic, 4), 2)
    for number in range(4):
        output(kafka, "copy").write(batch_of(number), rdd)
    for batch, message in (
        (batch_of(3, "f00"), "has batch 3 of stream-.* with token 3; this is batch 3 with token f"),
        (batch_of(2, "f00", newest=2), "has batch 3 of stream-.*this is batch 2 with token f00"),
        (batch_of(9, left_out=range(2, 9)), "has batch 3 of stream-.*; this is batch 9"),
    ):
        for _ in range(2):
            with pytest.raises(OutputConflictError, match=message) as refused:
                output(kafka, "copy").write(batch, rdd)
        assert "create its topics again, and give the sink another name" in str(refused.value)
    assert len(found(kafka, topic)) == 16


@pytest.mark.deep
def test_a_stream_that_was_rewound(sc: SparkContext, kafka: KafkaCluster) -> None:
    """Later batches run again as they were begun, and are there."""
    topic = kafka.create_topic(2)
    rdd = sc.parallelize(numbers(topic, 4), 2)
    for number in range(4):
        output(kafka, "rewound").write(batch_of(number), rdd)
    one = output(kafka, "rewound")
    for number in (1, 2, 3):
        assert one.write(batch_of(number, newest=3), rdd) == WrittenBatch(0, 0, 2)
    assert one.write(batch_of(4, newest=4), rdd) == WrittenBatch(4, 2, 0)


@pytest.mark.deep
def test_sinks_and_streams_have_commits_of_their_own(sc: SparkContext, kafka: KafkaCluster) -> None:
    """Two sinks of one stream, and a new stream, write a batch of the same number."""
    topic = kafka.create_topic(1)
    rdd = sc.parallelize(numbers(topic, 1), 1)
    for name, stream in (("a", STREAM), ("b", STREAM), ("a", f"{STREAM}-2")):
        for _ in range(2):
            output(kafka, name).write(batch_of(0, stream=stream), rdd)
    assert found(kafka, topic) == ["0", "0", "0"]


def test_two_sinks_of_one_name_are_refused(sc: SparkContext) -> None:
    """Each would take the batches of the other for its own."""
    with BatchDriver(sc) as driver:
        stream = driver.input([[("a", "1")]])
        stream.saveToKafka("letters", {"bootstrap.servers": "one:9092"})
        with pytest.raises(
            InvalidStreamError, match=r"of the name 'letters', and so has .*saveToKa"
        ):
            stream.saveToKafka("letters", {"bootstrap.servers": "one:9092"})
        stream.saveToKafka("letters", {"bootstrap.servers": "one:9092"}, name="again")


# What goes wrong -----------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("TOPIC", None, "a", 5), "the value of a record for .* is of type int; give bytes, str"),
        (("TOPIC", None, 1.5, "a"), "the key of a record for .* is of type float; give bytes, str"),
        (("", None, "a", "a"), "the topic of a record is ''; give the name of a topic"),
        (("TOPIC", "1", "a", "a"), "the partition of a record for .* is '1'; give an int"),
        (("TOPIC", None, "a", "a", [("b", 1)]), r"headers are pairs .* here \[\('b', 1\)\]"),
        (("TOPIC", None, "a", 2_000_000 * b"a"), "a record of 2000001 bytes for TOPIC was not .*"
         r"MSG_SIZE_TOO_LARGE\); raise max.request.size of the parameters and max.message.bytes"),
        (("no-such-topic", None, "a", "a"), "a record of 2 bytes for no-such-topic was not deliv.*"
         r"create the topic with that partition"),
        (("TOPIC", 7, "a", "a"), r"a record of 2 bytes for TOPIC-7 was not delivered: .*create"),
        (("a topic", None, "a", "a"), "a record of 2 bytes for a topic was not delivered"),
    ],
)  # fmt: skip
def test_records_that_cannot_be_written(
    kafka: KafkaCluster, once: bool, row: tuple[Any, ...], message: str
) -> None:
    """The error names the record's topic, partition, size, and what to do; nothing of it counts."""
    topic = kafka.create_topic(1)
    bad = ProducerRecord(*(topic if part == "TOPIC" else part for part in row))
    waits = {"topic.metadata.propagation.max.ms": 500}
    one = output(kafka, f"bad-{uuid.uuid4().hex[:6]}", **waits)
    sends: Callable[..., Any]
    if once:
        whole = task(kafka, one._name, batch_of(0))
        sends = partial(replace(whole, config={**whole.config, **waits}), 0)
    else:
        sends = sink_module._SendTask(one._parameters.for_producers(), one._where, 30)
    with pytest.raises(StreamError, match=message.replace("TOPIC", topic)):
        list(sends([*numbers(topic, 3), bad]))
    if once:
        assert found(kafka, topic) == []
        list(sends(numbers(topic, 3)))
        assert found(kafka, topic) == ["0", "1", "2"]


def test_a_record_that_the_topic_refuses(kafka: KafkaCluster) -> None:
    """The producer takes it, and the broker does not: likewise."""
    topic = kafka.create_topic(1, max_message_bytes="1000")
    whole = task(kafka, "refused", batch_of(0))
    message = rf"a record of 5001 bytes for {topic}-0 was not delivered: .*MSG_SIZE_TOO_LARGE"
    with pytest.raises(StreamError, match=message):
        whole(0, [*numbers(topic, 3), ProducerRecord(topic, None, "a", 5000 * "a")])
    assert found(kafka, topic) == []


@pytest.mark.deep
@pytest.mark.parametrize("once", [True, False])
def test_brokers_that_are_not_there(sc: SparkContext, once: bool) -> None:
    """The error says which, and comes when the time for them is up."""
    given = {"bootstrap.servers": "127.0.0.1:1", "delivery.timeout.ms": 1500}
    sink = KafkaSink("letters", given, exactlyOnce=once)
    with pytest.raises(Exception, match=r"no broker of 127.0.0.1:1 has .* within 1.5 s"):
        sink.write_batch(batch_of(0), sc.parallelize([("a", "b")], 1))


@pytest.mark.deep
def test_settings_that_brokers_or_clients_refuse(sc: SparkContext, kafka: KafkaCluster) -> None:
    """A transaction that may take longer than brokers allow, and a parameter that there is not."""
    topic = kafka.create_topic(1)
    rdd = sc.parallelize(numbers(topic, 1), 1)
    long = output(kafka, "long", **{"transaction.timeout.ms": 10**8})
    with pytest.raises(Exception, match=r"lower transaction.timeout.ms to the transaction.max"):
        long.write(batch_of(0), rdd)
    with pytest.raises(InvalidStreamError, match=r"Kafka has no setting 'lingering"):
        output(kafka, "long", lingering="5").write(batch_of(0), rdd)


@pytest.mark.deep
def test_a_topic_of_commits_that_would_lose_them(sc: SparkContext, kafka: KafkaCluster) -> None:
    """It is refused before anything is written; so is one that holds something else."""
    few, kept = kafka.create_topic(1, cleanup_policy="compact"), kafka.create_topic(16)
    strange = kafka.create_topic(16, cleanup_policy="compact")
    topic = kafka.create_topic(1)
    rdd = sc.parallelize(numbers(topic, 1), 1)
    for commits, message in (
        (few, "has 1 partitions and cleanup.policy=compact; it needs 16 partitions or more"),
        (kept, "has 16 partitions and cleanup.policy=delete; .* or give another commitTopic"),
    ):
        one = output(kafka, "commits")
        one._commit_topic = commits
        with pytest.raises(StreamError, match=message):
            one.write(batch_of(0), rdd)
    commits = OutputCommits(strange, "commits", STREAM)
    kafka.produce(strange, [Sent("hello", "key")], commits.partition)
    one = output(kafka, "commits")
    one._commit_topic = strange
    with pytest.raises(
        StreamError, match="has a record at offset 0 that is not the commit of a batch"
    ):
        one.write(batch_of(0), rdd)
    assert found(kafka, topic) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topic": "a topic"}, "topic of KafkaSink is 'a topic'; use 1 to 200 of"),
        ({"topic": lambda: "a"}, r"topic of KafkaSink calls f\(record\) -> name"),
        ({"key": lambda: "a"}, r"key of KafkaSink\(letters\) calls f\(record\) -> key"),
        ({"value": "utf8"}, r"value of KafkaSink\(letters\) needs a function"),
        ({"name": "two words"}, "name of KafkaSink is 'two words'"),
        ({"commitTopic": ""}, "commitTopic of KafkaSink is ''"),
        ({"exactlyOnce": "yes"}, r"exactlyOnce of KafkaSink\(letters\) is 'yes'; give True or F"),
        ({"kafkaParams": {}}, r"KafkaSink\(letters\) needs bootstrap.servers"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    """They are refused where the sink is made."""
    given: dict[str, Any] = {"topic": "letters", "kafkaParams": {"bootstrap.servers": "one:9092"}}
    with pytest.raises(InvalidStreamError, match=message):
        KafkaSink(**{**given, **arguments})


def test_records_that_are_no_pairs(sc: SparkContext, kafka: KafkaCluster) -> None:
    """Without functions of the key and value, the error asks for them."""
    sink = KafkaSink(kafka.create_topic(1), {"bootstrap.servers": kafka.bootstrap})
    rdd: RDD[Any] = sc.parallelize(["a"], 1)
    with pytest.raises(Exception, match=r"must be pairs \(key, value\), got str; give value="):
        sink.write_batch(batch_of(0), rdd)


def test_a_sink_is_kept_in_a_checkpoint_without_what_it_has_learnt(kafka: KafkaCluster) -> None:
    """Nor are there secrets in it."""
    given = {"bootstrap.servers": kafka.bootstrap, "sasl.password": "hunter2"}
    sink = KafkaSink("letters", given, value=str)
    pickled = pickle.dumps(sink)
    assert b"hunter2" not in pickled
    assert pickle.loads(pickled)._output._cache is None
