"""Copies of records for several buffers: a function that works in place changes its own."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

from dstreams.spark.blocks import is_immutable
from dstreams.spark.failures import failed


def may_change_records(function: object) -> bool:
    """Whether an aggregate function may change a record, or take it for its buffer.

    A user's may, unless its attribute *changesRecords* is false.
    """
    return bool(getattr(function, "changesRecords", True))


def copies(record: Any) -> Callable[[], Any]:
    """Return the function that returns a new copy of a record, as it is now, at each call."""
    if is_immutable(record):
        return lambda: record
    try:
        raw = pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
    except Exception:  # of a class that is not found by its name, for example
        kept = deepcopy(record)
        return lambda: deepcopy(kept)
    return partial(pickle.loads, raw)


def private_records(pairs: Iterable[tuple[Any, Any]], where: str) -> Iterator[tuple[Any, Any]]:
    """Iterate over pairs of key and record, where no two share one; equal ones come together."""
    last: Any = None
    copy: Callable[[], Any] | None = None
    for key, record in pairs:
        if copy is None or record is not last:
            try:
                last, copy = record, copies(record)
            except Exception as error:
                raise failed(where, record, error, "record") from error
        yield key, copy()
