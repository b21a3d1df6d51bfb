"""StateSpec: each step adds one thing, and refuses what cannot be."""

from __future__ import annotations

import doctest
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.state import state_spec
from dstreams.state.state_spec import StateSpec


def simple(key: Any, value: Any, state: Any) -> Any:
    return key


def full(time: Any, key: Any, value: Any, state: Any) -> Any:
    return key


def place(key: Any) -> int:
    return 0


def test_examples() -> None:
    """The example of the class runs."""
    assert doctest.testmod(state_spec).failed == 0


@pytest.mark.parametrize(("func", "takes_time"), [(simple, False), (full, True)])
def test_forms(func: Callable[..., Any], takes_time: bool) -> None:
    """The number of arguments says which form it is; the place of the function is kept."""
    spec = StateSpec.function(func)
    assert spec.mapping.takes_time is takes_time
    assert func.__name__ in spec.mapping.where


def test_steps() -> None:
    """Each step leaves the specification before it as it was; the later partitioner wins."""
    first = StateSpec.function(simple)
    spec = first.initialState({"a": 1}.items()).numPartitions(3).timeout(1.5)
    assert (first.partitions, first.idle_ms, first.initial) == (None, None, None)
    assert (spec.partitions, spec.idle_ms) == (3, 1500)
    whole = StablePartitioner(5, place)
    assert (spec.partitioner(whole).partitions, spec.partitioner(whole).partition_func) == (
        5,
        whole,
    )
    assert spec.partitioner(whole).numPartitions(2).partition_func is None
    assert spec.partitioner(place).partitions == 3


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StateSpec.function(place), "StateSpec.function at .* calls f\\(key, value, state"),
        (lambda: StateSpec.function(7), "StateSpec.function at"),  # type: ignore[arg-type]
        (lambda: StateSpec.function(lambda k, v, s: LOCK.locked() or k), "LOCK|lock"),
        (lambda: StateSpec.function(simple).initialState("a"), "initialState must be an RDD"),
        (lambda: StateSpec.function(simple).initialState(7), "got int"),  # type: ignore[arg-type]
        (lambda: StateSpec.function(simple).numPartitions(0), "at least 1"),
        (lambda: StateSpec.function(simple).partitioner(full), "StateSpec.partitioner calls"),
        (lambda: StateSpec.function(simple).timeout(0), "idleDuration must be a positive number"),
    ],
)
def test_what_cannot_be(make: Callable[[], Any], message: str) -> None:
    """What is wrong is said where it is said, with the method that was called."""
    with pytest.raises(InvalidStreamError, match=message):
        make()
