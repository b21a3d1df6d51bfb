"""A queue as a source: order, copies, defaults, counts."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.sources.queue import QueueSource
from dstreams.sources.source import PlannedInput, SourceEnvironment
from tests.support.surroundings import Driven, Surroundings


def opened(source: QueueSource, environment: SourceEnvironment) -> Driven:
    return Driven(source.open(environment))


def plans(reader: Driven, count: int) -> list[PlannedInput]:
    return [reader.plan(time_ms) for time_ms in range(1000, 1000 * count + 1, 1000)]


def contents(reader: Driven, count: int) -> list[Any]:
    """The items of batches."""
    return [reader.batches(plan.start, plan.end) for plan in plans(reader, count)]


def test_one_at_a_time_takes_the_next_item_for_each_batch(surroundings: Surroundings) -> None:
    """Items come one a batch, in order, then nothing."""
    reader = opened(QueueSource([[1, 2], [3], []]), surroundings.environment())
    made = plans(reader, 4)
    assert [plan.records for plan in made] == [2, 1, 0, 0]
    found = [reader.batches(plan.start, plan.end) for plan in made]
    assert found == [([1, 2],), ([3],), ([],), ()]


def test_all_that_are_there_are_united_in_order(surroundings: Surroundings) -> None:
    """Without one_at_a_time a batch takes the whole queue, as one list."""
    reader = opened(QueueSource([[1, 2], range(3, 5), [5]], False), surroundings.environment())
    first, second = plans(reader, 2)
    assert (reader.batches(first.start, first.end), first.records) == (([1, 2, 3, 4, 5],), 5)
    assert first.description == "queue items 0 to 2"
    assert (reader.batches(second.start, second.end), second.description) == ((), "queue is empty")


def test_what_is_done_to_a_queue_later_is_not_seen(surroundings: Surroundings) -> None:
    """A list that is emptied, filled or used again, and an item that changes, are the caller's."""
    item = [1, 2]
    queue = [item, [3]]
    source = QueueSource(queue)
    item.append(9)
    queue.clear()
    queue.append([4])
    again = opened(QueueSource(queue), surroundings.environment())
    reader = opened(source, surroundings.environment())
    queue.append([5])
    assert contents(reader, 3) == [([1, 2],), ([3],), ()]
    assert contents(again, 2) == [([4],), ()]


@pytest.mark.parametrize("make", [tuple, deque, iter, lambda items: (item for item in items)])
def test_other_iterables_are_copied_once(surroundings: Surroundings, make: Any) -> None:
    """A deque, a tuple, an iterator and a generator give their items at construction."""
    source = QueueSource(make([[1], [2]]))
    for _ in range(2):
        reader = opened(source, surroundings.environment())
        assert contents(reader, 3) == [([1],), ([2],), ()]


def test_none_is_a_batch_without_an_rdd(surroundings: Surroundings) -> None:
    """None in the queue means no RDD, which is not an empty RDD."""
    reader = opened(QueueSource([None, []]), surroundings.environment())
    first, second = plans(reader, 2)
    assert reader.batches(first.start, first.end) is None
    assert reader.read(first) is None
    assert first.records == 0
    assert reader.batches(second.start, second.end) == ([],)


def test_none_among_batches_adds_nothing_to_their_union(surroundings: Surroundings) -> None:
    """A union ignores None, and is None without other items."""
    for queue, content in (([None, [1], None, [2]], ([1, 2],)), ([None, None], None)):
        reader = opened(QueueSource(queue, one_at_a_time=False), surroundings.environment())
        assert contents(reader, 1)[0] == content


def test_default_serves_every_batch_that_finds_nothing(surroundings: Surroundings) -> None:
    """The default comes again and again; a falsy default is one too."""
    reader = opened(QueueSource([[1]], default=(7, 8)), surroundings.environment())
    assert contents(reader, 3) == [([1],), ([7, 8],), ([7, 8],)]
    empty = opened(QueueSource([], default=[]), surroundings.environment())
    assert contents(empty, 1)[0] == ([],)


def test_generators_as_items_are_read_once_into_the_plan(surroundings: Surroundings) -> None:
    """An item that can be iterated only once still makes a repeatable plan."""
    reader = opened(QueueSource([iter("ab")]), surroundings.environment())
    planned = reader.plan(1000)
    assert (reader.batches(planned.start, planned.end), planned.records) == ((["a", "b"],), 2)


def test_nothing_is_pending_at_a_graceful_stop(surroundings: Surroundings) -> None:
    """Queue items were not received, so a graceful stop does not wait for them."""
    reader = opened(QueueSource([[1], [2]]), surroundings.environment())
    reader.stop_receiving()
    assert not reader.has_pending()


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        (None, "queue of queueStream must be an iterable, got None (NoneType)"),
        ("ab", "queue of queueStream must be an iterable, got 'ab' (str)"),
        ([[1], 2], "item 1 of queue of queueStream must be an RDD or an iterable of records, "),
        (["ab"], "got 'ab' (str); write ['ab'] for a batch of one record"),
    ],
)
def test_what_is_no_queue_of_batches_is_refused_at_construction(queue: Any, message: Any) -> None:
    """The message names the item, what it is, and what to write."""
    with pytest.raises(InvalidStreamError) as refused:
        QueueSource(queue)
    assert message in str(refused.value)


def test_a_default_that_is_no_batch_is_refused_at_construction() -> None:
    """The default has the same rule as the items."""
    not_a_batch: Any = 3
    with pytest.raises(InvalidStreamError, match="default of queueStream must be an RDD"):
        QueueSource([], default=not_a_batch)


def test_two_sources_over_equal_queues_are_two_sources() -> None:
    """Sources are compared by identity: each takes every item for itself."""
    assert QueueSource([[1]]) != QueueSource([[1]])
    assert len({QueueSource([]), QueueSource([])}) == 2


def test_lists_become_rdds_with_the_default_parallelism(
    surroundings: Surroundings, sc: SparkContext
) -> None:
    """Reading a plan again returns the same records."""
    reader = opened(QueueSource([[1, 2, 3, 4]]), surroundings.environment(sc))
    planned = reader.plan(1000)
    for _ in range(2):
        rdd = reader.read(planned)
        assert rdd is not None
        assert rdd.glom().collect() == [[1, 2], [3, 4]]


def test_rdds_keep_their_partitions_and_are_not_counted(
    surroundings: Surroundings, sc: SparkContext
) -> None:
    """An RDD goes through as it is, and counting it would cost a job."""
    rdd = sc.parallelize(range(3), 3)
    reader = opened(QueueSource([rdd]), surroundings.environment(sc))
    planned = reader.plan(1000)
    assert planned.records is None
    assert reader.read(planned) is rdd


def test_rdds_and_lists_unite_in_the_order_of_the_queue(
    surroundings: Surroundings, sc: SparkContext
) -> None:
    """Neighbouring lists share an RDD, and every record keeps its place."""
    queue: list[RDD[int] | list[int]] = [[1], [2], sc.parallelize([3, 4], 1), [5], [6]]
    reader = opened(QueueSource(queue, one_at_a_time=False), surroundings.environment(sc))
    planned = reader.plan(1000)
    rdd = reader.read(planned)
    assert rdd is not None
    assert rdd.collect() == [1, 2, 3, 4, 5, 6]
    assert rdd.getNumPartitions() == 5
    assert planned.records is None


def test_an_empty_queue_costs_no_task(surroundings: Surroundings, sc: SparkContext) -> None:
    """Nothing there and no default: an RDD without partitions."""
    reader = opened(QueueSource([]), surroundings.environment(sc))
    rdd = reader.read(reader.plan(1000))
    assert rdd is not None
    assert rdd.getNumPartitions() == 0
    assert rdd.collect() == []


def test_an_rdd_can_be_the_default(surroundings: Surroundings, sc: SparkContext) -> None:
    """A default RDD is used as it is."""
    default = sc.parallelize(["x"])
    reader = opened(QueueSource([], default=default), surroundings.environment(sc))
    assert [reader.records(time_ms) for time_ms in (1000, 2000)] == [["x"], ["x"]]
