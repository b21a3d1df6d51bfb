"""Keys with a time in front: apart, back again, and in the order of their times."""

from __future__ import annotations

from enum import Enum
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from checkpoint.state_store import EMPTY, StateStore, StoreId
from dstreams.structured.operators.window_keys import (
    join_time,
    passed_by,
    split_time,
    take_passed,
    time_of,
)
from tests.support.memory_backend import MemoryBackend

TIMES = st.integers(-(2**60), 2**60) | st.integers(-20, 20)
KEYS = st.text() | st.integers() | st.none() | st.tuples(st.text(), st.integers())


@given(TIMES, KEYS)
def test_there_and_back(time_ms: int, key: Any) -> None:
    """Time and key come back as they were."""
    joined = join_time(time_ms, key)
    assert split_time(joined) == (time_ms, key)
    assert time_of(joined) == time_ms
    assert time_of(time_ms) == time_ms


def test_equal_keys_are_one() -> None:
    """An enum of texts is the text that it equals."""

    class Color(str, Enum):
        RED = "red"

    assert join_time(5, Color.RED) == join_time(5, "red")
    assert split_time(join_time(5, Color.RED)) == (5, "red")


@given(st.lists(st.tuples(TIMES, KEYS)), TIMES)
def test_passed_by_a_watermark(pairs: list[tuple[int, Any]], watermark_ms: int) -> None:
    """Exactly the keys with a time at or before it, by a comparison and in a store."""
    is_passed = passed_by(watermark_ms)
    expected = {join_time(*pair) for pair in pairs if pair[0] <= watermark_ms}
    assert {join_time(*pair) for pair in pairs if is_passed(join_time(*pair))} == expected
    with StateStore(MemoryBackend()).writer(StoreId("s", "o", "default", 0, 1), EMPTY) as store:
        for pair in pairs:
            store.put(join_time(*pair), pair[0])
        taken = take_passed(store, watermark_ms)
        found = [pair for part in taken for pair in zip(*part, strict=True)]
    assert len(found) == len(expected)
    assert {key for key, _ in found} == expected
    assert all(time_of(key) == time_ms for key, time_ms in found)


def test_passed_times() -> None:
    """A time that is a key of its own is passed likewise."""
    with StateStore(MemoryBackend()).writer(StoreId("s", "o", "default", 0, 1), EMPTY) as store:
        for time_ms in (-5, 0, 3, 4, 2**62):
            store.put(time_ms, True)
        assert [key for keys, _ in take_passed(store, 3) for key in keys] == [-5, 0, 3]
    assert [passed_by(3)(time_ms) for time_ms in (3, 4)] == [True, False]
