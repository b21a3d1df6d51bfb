"""Functions that conformance programs name: all picklable, all deterministic.

Functions of RDDs are those of ``transform`` and its kin: their names end in ``_rdd`` or ``_rdds``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from operator import itemgetter
from typing import Any

from pyspark import RDD, StorageLevel

MEMORY_AND_DISK = StorageLevel.MEMORY_AND_DISK

# Elements ------------------------------------------------------------------------------------


def identity(x: Any) -> Any:
    return x


def text(x: Any) -> str:
    return str(x)


def double(x: int) -> int:
    return 2 * x


def is_even(x: int) -> bool:
    return x % 2 == 0


def up_to(x: int) -> range:
    """As many elements as the number says, at most four."""
    return range(min(max(x, 0), 4))


def nothing(x: Any) -> None:
    return None


def stopping_at_3(x: int) -> int:
    """A slip: the error of ``next`` is also what tells the end of an iterator."""
    return next(iter([x] if x != 3 else []))


def refusing_3(x: int) -> list[int]:
    if x == 3:
        raise ValueError("no 3, please")
    return [x]


def by_remainder(x: int) -> tuple[int, int]:
    return x % 3, x


def by_name(x: int) -> tuple[str, int]:
    return "abc"[x % 3], x


def with_one(x: Any) -> tuple[Any, int]:
    return x, 1


def with_none(x: Any) -> tuple[Any, None]:
    return x, None


def none_of_two(x: int) -> int | None:
    return x if x != 2 else None


def swapped(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return pair[1], pair[0]


def second(pair: tuple[Any, Any]) -> Any:
    return pair[1]


def in_order(items: Iterable[Any]) -> list[Any]:
    return sorted(items, key=repr)


def add(x: Any, y: Any) -> Any:
    return x + y


def subtract(x: Any, y: Any) -> Any:
    return x - y


def larger(x: int, y: int) -> int:
    return max(x, y)


def first_of_two(x: Any, y: Any) -> Any:
    return x


def last_of_two(x: Any, y: Any) -> Any:
    return y


# Partitions ----------------------------------------------------------------------------------


def sum_of(items: Iterable[int]) -> list[int]:
    return [sum(items)]


def backwards(items: Iterable[Any]) -> Iterator[Any]:
    return reversed(list(items))


def doubled_lazily(items: Iterable[int]) -> Iterator[int]:
    for item in items:
        yield 2 * item


def numbered(index: int, items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    return ((index, item) for item in items)


def sum_with_index(index: int, items: Iterable[int]) -> list[int]:
    return [index, sum(items)]


# Values --------------------------------------------------------------------------------------


def one(value: Any) -> int:
    return 1


def plus_ten(value: int) -> int:
    return value + 10


def twice(value: Any) -> list[Any]:
    return [value, value]


def sizes(value: Iterable[Any]) -> int:
    return sum(1 for _ in value)


def total(value: Any) -> int:
    """Add up the numbers in nested lists, tuples and groups; None counts as 100."""
    if value is None:
        return 100
    return value if isinstance(value, int) else sum(map(total, value))


def both_in_order(groups: tuple[Iterable[Any], Iterable[Any]]) -> tuple[list[Any], list[Any]]:
    return in_order(groups[0]), in_order(groups[1])


def total_difference(groups: Any) -> int:
    """Tells the sides of a join or cogroup apart."""
    return total(groups[0]) - 3 * total(groups[1])


def pair_of(value: int) -> tuple[int, int]:
    return value, 1


def into_pair(pair: tuple[int, int], value: int) -> tuple[int, int]:
    return pair[0] + value, pair[1] + 1


def add_pairs(pair: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return pair[0] + other[0], pair[1] + other[1]


def not_zero(pair: tuple[Any, int]) -> bool:
    return pair[1] != 0


def above_one(pair: tuple[Any, int]) -> bool:
    return pair[1] > 1


def remainder_of_key(key: int) -> int:
    return key % 5


# States --------------------------------------------------------------------------------------


def running_sum(values: list[int], state: int | None) -> int:
    """Add up; a state may be 0, which is a state. No values change nothing."""
    return sum(values) + (0 if state is None else state)


def bounded_list(values: list[int], state: list[int] | None) -> list[int] | None:
    """Collect in order, change the state in place, and drop the key when there are too many."""
    collected = [] if state is None else state
    collected.extend(values)
    collected.sort()
    return None if len(collected) > 6 else collected


def idle_batches(values: list[int], state: tuple[int, int] | None) -> tuple[int, int] | None:
    """Count values and batches without, drop the key when a third such batch comes."""
    count, idle = (0, 0) if state is None else state
    if values:
        return count + len(values), 0
    return None if idle == 2 else (count, idle + 1)


def last_text(values: list[int], state: str | None) -> str | None:
    """Keep a text, which may be empty, and drop the key for a 9."""
    if 9 in values:
        return None
    return "x" * (max(values) % 3) if values else state


def refusing_state_4(values: list[int], state: int | None) -> int:
    if running_sum(values, state) == 4:
        raise ValueError("no state of 4, please")
    return running_sum(values, state)


# RDDs ----------------------------------------------------------------------------------------


def doubled_rdd(rdd: RDD[int]) -> RDD[int]:
    return rdd.map(double)


def timed_rdd(time: datetime, rdd: RDD[Any]) -> RDD[Any]:
    """Give every element the second of its batch."""
    second_of_batch = round(time.timestamp())
    return rdd.map(lambda x: (second_of_batch, x))


def distinct_rdd(rdd: RDD[Any]) -> RDD[Any]:
    return rdd.distinct(2)


def joined_rdds(a: RDD[Any], b: RDD[Any]) -> RDD[Any]:
    return a.join(b, 2)


def united_rdds(a: RDD[Any], b: RDD[Any]) -> RDD[Any]:
    return a.union(b)


def timed_union_rdds(time: datetime, a: RDD[Any], b: RDD[Any]) -> RDD[Any]:
    return timed_rdd(time, a.union(b))


def all_rdds(rdds: list[RDD[Any]]) -> RDD[Any]:
    """Unite any number of RDDs, of whatever serializers, the last first."""
    united = rdds[-1]
    for rdd in reversed(rdds[:-1]):
        united = united.union(rdd)
    return united


def sizes_rdds(rdds: list[RDD[Any]]) -> RDD[Any]:
    """One element for each RDD: how many elements it has."""
    counts = [rdd.count() for rdd in rdds]
    return rdds[0].context.parallelize(counts, 1)


def without_rdd(*batches: int) -> Callable[[datetime, RDD[Any]], RDD[Any] | None]:
    """Return a function that has no RDD in the batches of these numbers, the first being 1."""

    def gate(time: datetime, rdd: RDD[Any]) -> RDD[Any] | None:
        return None if round(time.timestamp()) in batches else rdd

    return gate


def refusing_rdd(batch: int) -> Callable[[datetime, RDD[Any]], RDD[Any]]:
    """Return a function that fails in the batch of this number, the first being 1."""

    def refuse(time: datetime, rdd: RDD[Any]) -> RDD[Any]:
        if round(time.timestamp()) == batch:
            raise ValueError("no such batch, please")
        return rdd

    return refuse


def without_rdds(*batches: int) -> Callable[[datetime, RDD[Any], RDD[Any]], RDD[Any] | None]:
    """The same for two RDDs, which are united in the other batches."""

    def gate(time: datetime, a: RDD[Any], b: RDD[Any]) -> RDD[Any] | None:
        return None if round(time.timestamp()) in batches else a.union(b)

    return gate


# Callables that are no plain functions -------------------------------------------------------


class AsObject:
    """Doubles an RDD, as a callable object."""

    def __call__(self, rdd: RDD[int]) -> RDD[int]:
        return rdd.map(double)

    def method(self, rdd: RDD[int]) -> RDD[int]:
        return rdd.map(double)


doubling_object = AsObject()
doubling_method = AsObject().method
builtin_first = itemgetter(0)
