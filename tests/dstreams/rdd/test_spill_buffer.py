"""Rows that wait keep their order, and little memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from dstreams.rdd.spill_buffer import SpillBuffer

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
    monkeypatch.setattr("dstreams.rdd.spill_buffer._BUFFER_BYTES", 1 << 20)
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
