"""A queue as a source: order, copies, defaults, counts."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.sources.queue import QueueReader, QueueSource
from tests.support.surroundings import Surroundings


def plans(reader: QueueReader, count: int) -> list[Any]:
    return [reader.plan(time_ms) for time_ms in range(1000, 1000 * count + 1, 1000)]


def records(reader: QueueReader, count: int) -> list[list[Any] | None]:
    rdds = [reader.rdd(planned) for planned in plans(reader, count)]
    return [None if rdd is None else rdd.collect() for rdd in rdds]


def test_one_at_a_time_takes_the_next_item_for_each_batch(surroundings: Surroundings) -> None:
    """Items come one a batch, in order, then nothing."""
    reader = QueueSource([[1, 2], [3], []]).open(surroundings.environment())
    assert [(plan.content, plan.records) for plan in plans(reader, 4)] == [
        (([1, 2],), 2),
        (([3],), 1),
        (([],), 0),
        ((), 0),
    ]


def test_all_that_are_there_are_united_in_order(surroundings: Surroundings) -> None:
    """Without one_at_a_time a batch takes the whole queue, as one list."""
    reader = QueueSource([[1, 2], range(3, 5), [5]], False).open(surroundings.environment())
    first, second = plans(reader, 2)
    assert (first.content, first.records) == (([1, 2, 3, 4, 5],), 5)
    assert first.description == "queue items 0 to 2"
    assert (second.content, second.description) == ((), "queue is empty")


def test_what_is_done_to_a_queue_later_is_not_seen(surroundings: Surroundings) -> None:
    """A list that is emptied, filled or used again, and an item that changes, are the caller's."""
    item = [1, 2]
    queue = [item, [3]]
    source = QueueSource(queue)
    item.append(9)
    queue.clear()
    queue.append([4])
    again = QueueSource(queue).open(surroundings.environment())
    reader = source.open(surroundings.environment())
    queue.append([5])
    assert [plan.content for plan in plans(reader, 3)] == [([1, 2],), ([3],), ()]
    assert [plan.content for plan in plans(again, 2)] == [([4],), ()]


@pytest.mark.parametrize("make", [tuple, deque, iter, lambda items: (item for item in items)])
def test_other_iterables_are_copied_once(surroundings: Surroundings, make: Any) -> None:
    """A deque, a tuple, an iterator and a generator give their items at construction."""
    source = QueueSource(make([[1], [2]]))
    for _ in range(2):
        reader = source.open(surroundings.environment())
        assert [plan.content for plan in plans(reader, 3)] == [([1],), ([2],), ()]


def test_none_is_a_batch_without_an_rdd(surroundings: Surroundings) -> None:
    """None in the queue means no RDD, which is not an empty RDD."""
    reader = QueueSource([None, []]).open(surroundings.environment())
    first, second = plans(reader, 2)
    assert first.content is None
    assert reader.rdd(first) is None
    assert first.records == 0
    assert second.content == ([],)


def test_none_among_batches_adds_nothing_to_their_union(surroundings: Surroundings) -> None:
    """A union leaves None out, and is None when nothing else is there."""
    for queue, content in (([None, [1], None, [2]], ([1, 2],)), ([None, None], None)):
        reader = QueueSource(queue, one_at_a_time=False).open(surroundings.environment())
        assert reader.plan(1000).content == content


def test_default_serves_every_batch_that_finds_nothing(surroundings: Surroundings) -> None:
    """The default comes again and again; a falsy default is one too."""
    reader = QueueSource([[1]], default=(7, 8)).open(surroundings.environment())
    assert [plan.content for plan in plans(reader, 3)] == [([1],), ([7, 8],), ([7, 8],)]
    empty = QueueSource([], default=[]).open(surroundings.environment())
    assert empty.plan(1000).content == ([],)


def test_generators_as_items_are_read_once_into_the_plan(surroundings: Surroundings) -> None:
    """An item that can be iterated only once still makes a repeatable plan."""
    reader = QueueSource([iter("ab")]).open(surroundings.environment())
    planned = reader.plan(1000)
    assert (planned.content, planned.records) == ((["a", "b"],), 2)


def test_nothing_is_pending_at_a_graceful_stop(surroundings: Surroundings) -> None:
    """Queue items were not received, so a graceful stop does not wait for them."""
    reader = QueueSource([[1], [2]]).open(surroundings.environment())
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
    """One plan makes the same RDD as often as it is asked to."""
    reader = QueueSource([[1, 2, 3, 4]]).open(surroundings.environment(sc))
    planned = reader.plan(1000)
    for _ in range(2):
        rdd = reader.rdd(planned)
        assert rdd is not None
        assert rdd.glom().collect() == [[1, 2], [3, 4]]


def test_rdds_keep_their_partitions_and_are_not_counted(
    surroundings: Surroundings, sc: SparkContext
) -> None:
    """An RDD goes through as it is, and counting it would cost a job."""
    rdd = sc.parallelize(range(3), 3)
    reader = QueueSource([rdd]).open(surroundings.environment(sc))
    planned = reader.plan(1000)
    assert planned.records is None
    assert reader.rdd(planned) is rdd


def test_rdds_and_lists_unite_in_the_order_of_the_queue(
    surroundings: Surroundings, sc: SparkContext
) -> None:
    """Neighbouring lists share an RDD, and every record keeps its place."""
    queue: list[RDD[int] | list[int]] = [[1], [2], sc.parallelize([3, 4], 1), [5], [6]]
    reader = QueueSource(queue, one_at_a_time=False).open(surroundings.environment(sc))
    planned = reader.plan(1000)
    rdd = reader.rdd(planned)
    assert rdd is not None
    assert rdd.collect() == [1, 2, 3, 4, 5, 6]
    assert rdd.getNumPartitions() == 5
    assert planned.records is None


def test_an_empty_queue_costs_no_task(surroundings: Surroundings, sc: SparkContext) -> None:
    """Nothing there and no default: an RDD without partitions."""
    reader = QueueSource([]).open(surroundings.environment(sc))
    rdd = reader.rdd(reader.plan(1000))
    assert rdd is not None
    assert rdd.getNumPartitions() == 0
    assert rdd.collect() == []


def test_an_rdd_can_be_the_default(surroundings: Surroundings, sc: SparkContext) -> None:
    """A default RDD is used as it is."""
    default = sc.parallelize(["x"])
    reader = QueueSource([], default=default).open(surroundings.environment(sc))
    assert records(reader, 2) == [["x"], ["x"]]
