"""Runs of a stream that end without a word, as if they had crashed, and what goes on from them.

What a run had not committed is not. The next one is made from the directory alone; functions are
found again by name, so that all runs write into one notebook.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import DStream, StreamingContext
from dstreams.common import faults
from dstreams.common.faults import Fault, FaultError
from dstreams.testing import ManualClock

Define = Callable[[DStream[Any]], None]

seen: list[tuple[str, int, list[Any]]] = []
"""(name, batch time in seconds, sorted records) of each output that ran, in all runs."""

failing: set[str] = set()
"""Outputs that fail."""


def note(name: str, time: Any, rdd: RDD[Any]) -> None:
    if name in failing:
        raise ValueError(f"{name} fails")
    seen.append((name, round(time.timestamp()), sorted(rdd.collect())))


def watch(stream: DStream[Any], name: str = "out") -> None:
    stream.foreachRDD(partial(note, name))


def total(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def count(key: str, value: int, state: Any) -> tuple[str, int]:
    state.update((state.getOption or 0) + value)
    return key, state.get


def with_one(word: str) -> tuple[str, int]:
    return word, 1


def to_a(number: int) -> tuple[str, int]:
    return "a", number


def value_of(row: tuple[Any, int]) -> int:
    return row[1]


def never() -> StreamingContext:
    raise AssertionError("the set-up function must not be called")


def begin(
    sc: SparkContext, directory: Path, batches: list[Any], define: Define
) -> StreamingContext:
    """Return a context, of batches of a second from zero on, that can be taken up again."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(directory))
    define(ssc.queueStream(batches, replayable=True))
    return ssc


def crash(ssc: StreamingContext) -> None:
    """End a context without a commit, a copy or a call of the user's functions."""
    ssc.stop(stopSparkContext=False)


def crash_in(
    ssc: StreamingContext, monkeypatch: pytest.MonkeyPatch, step: str, batch_id: int
) -> None:
    """Crash at a step of the next batch."""
    monkeypatch.setitem(faults._faults, step, Fault(batch_id, "raise"))
    with pytest.raises(FaultError):
        ssc.step()
    crash(ssc)


def recover(directory: Path) -> StreamingContext:
    return StreamingContext.getOrCreate(str(directory), never)


def values_of(name: str = "out") -> list[Any]:
    return [records for known, _, records in seen if known == name]


def times_of(name: str = "out") -> list[int]:
    return [time for known, time, _ in seen if known == name]


def in_two_lives(
    sc: SparkContext,
    directory: Path,
    batches: list[Any],
    define: Define,
    lives: tuple[int, ...],
) -> None:
    """Run batches in several lives; no output may run twice, and none be left out."""
    ssc = begin(sc, directory, batches, define)
    ssc.step(lives[0])
    crash(ssc)
    for life in lives[1:]:
        ssc = recover(directory)
        ssc.step(life)
        crash(ssc)
    for name in {known for known, _, _ in seen}:
        assert times_of(name) == list(range(1, sum(lives) + 1))


def write(directory: Path, name: str, seconds: float) -> None:
    """Put a file there whose only line is its name, modified at a time."""
    path = directory / f".{name}"
    path.write_text(name)
    os.utime(path, (seconds, seconds))
    path.rename(directory / name)


def over_files(sc: SparkContext, directory: Path) -> tuple[StreamingContext, Path, DStream[str]]:
    """Return a context whose checkpoint is in ``ck``, the directory it reads, and its lines."""
    inputs = directory / "in"
    inputs.mkdir()
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.checkpoint(str(directory / "ck"))
    return ssc, inputs, ssc.textFileStream(str(inputs))


def stream_of(directory: Path, zero_ms: str = "*") -> Path:
    """Return the directory of the one stream that began at a time."""
    (stream,) = (path for path in directory.glob(f"stream-{zero_ms}-*") if path.is_dir())
    return stream
