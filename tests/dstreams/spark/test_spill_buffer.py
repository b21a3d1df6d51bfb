"""Rows that wait keep their order, and little memory."""

from __future__ import annotations

import tracemalloc
from itertools import chain, repeat
from typing import Any

import pytest
from pyspark.shuffle import Aggregator

from dstreams.spark.spill_buffer import Merger, SpillBuffer

IN_MEMORY, SPILLED = 1 << 62, 0.001


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 20_000])
@pytest.mark.parametrize("memory_mb", [IN_MEMORY, SPILLED])
def test_rows_come_in_the_order_they_were_added(memory_mb: float, count: int) -> None:
    """Whether they are in memory or on the disk, and whatever they are."""
    rows: list[Any] = [(number, (None, {"n": number}), [number]) for number in range(count)]
    held = SpillBuffer(memory_mb)
    for row in rows:
        held.add(row)
    assert held.are_in_memory is (memory_mb == IN_MEMORY or count < 1000)
    assert list(held.rows()) == rows


def test_rows_on_the_disk_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held in memory is bounded, however many and large they are."""
    monkeypatch.setattr("dstreams.spark.spill_buffer._BUFFER_BYTES", 1 << 20)
    held = SpillBuffer(SPILLED)
    tracemalloc.start()
    try:
        for number in range(12_000):
            held.add((number, number.to_bytes(4, "big") * 1000))
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for number, row in enumerate(held.rows()):
            assert row == (number, number.to_bytes(4, "big") * 1000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 8 << 20  # of 48 MB
    assert peak_bytes < 16 << 20


@pytest.mark.parametrize("keys", [0, 1, 999, 1000])
@pytest.mark.parametrize("grown_mb", [0, 15, 16])
def test_few_keys_of_little_memory_are_not_spilled(
    monkeypatch: pytest.MonkeyPatch, keys: int, grown_mb: int
) -> None:
    """A worker that a program filled has nothing to gain by it; the values are the same."""
    used = chain([4096], repeat(4096 + grown_mb))
    monkeypatch.setattr("pyspark.shuffle.get_used_memory", lambda: next(used))
    merger = Merger(Aggregator(int, max, max), 512)
    merger.mergeValues((key, key) for key in range(keys))
    assert bool(merger.spills) is (keys >= 1000 or grown_mb >= 16)
    assert dict(merger.items()) == {key: key for key in range(keys)}
