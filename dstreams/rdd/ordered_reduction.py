"""Values reduced by key, the results in the order in which their keys came, also when they spill.

The order in which values are merged must not depend on how much memory a worker has left: the sum
of floats does. So values are merged one after the other while there is memory, and then grouped
(:mod:`dstreams.rdd.ordered_groups`) and merged in the same order at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dstreams.rdd.ordered_groups import GroupsInOrder
from dstreams.rdd.spill_buffer import MemoryLimit

Merge = Callable[[Any, Any], Any]
Explain = Callable[[Any, Exception], Exception]


def reduce_in_order(
    pairs: Iterable[tuple[Any, Any]],
    merge: Merge,
    memory_mb: float,
    explain: Explain | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Return (key, its values merged one after the other), in the order of keys.

    *merge* may change its first argument; *explain* makes the error to raise of (key, error of
    merge).
    """
    limit = MemoryLimit(memory_mb)
    rest = iter(pairs)
    total: dict[Any, Any] = {}
    for count, (key, value) in enumerate(rest, 1):
        if key in total:
            try:
                total[key] = merge(total[key], value)
            except Exception as error:
                if explain is None:
                    raise
                raise explain(key, error) from error
        else:
            total[key] = value
        if limit.is_reached(count):
            groups = GroupsInOrder(memory_mb)
            groups.add((each, total.pop(each)) for each in list(total))
            groups.add(rest)
            return _merged(groups, merge, explain)
    return iter(total.items())


def _merged(
    groups: GroupsInOrder, merge: Merge, explain: Explain | None
) -> Iterator[tuple[Any, Any]]:
    for key, values in groups.items():
        merged = values[0]
        try:
            for value in values[1:]:
                merged = merge(merged, value)
        except Exception as error:
            if explain is None:
                raise
            raise explain(key, error) from error
        yield key, merged
