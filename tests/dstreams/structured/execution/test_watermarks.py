"""Watermarks: from the event times of batches to what operators are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import CommitLog, CommitRecord, open_files
from dstreams.structured.execution.query_records import QueryCommit, batch_end
from dstreams.structured.execution.watermarks import WatermarkRule, Watermarks

# A and B have delays of 10 and 5 s; what each saw in a batch, and the watermark after it (seconds).
UNION = (
    ({"A": 11}, 0),
    ({"B": 6}, 1),
    ({"B": 8}, 1),
    ({"A": 21}, 3),
    ({"B": 39}, 11),
    ({"A": 31}, 21),
    ({"A": 41}, 31),
    ({"A": 51}, 34),
    ({"A": 100, "B": 100}, 90),
    ({"A": 120, "B": 110}, 105),
    ({"A": 130, "B": 125}, 120),
    ({"A": 100, "B": 100}, 120),
    ({"A": 140, "B": 100}, 120),
    ({"A": 100, "B": 135}, 130),
    ({"A": 200, "B": 190}, 185),
)
RULE = WatermarkRule((10_000, 5000))


def after(watermarks: Watermarks, seen: dict[str, int], rule: WatermarkRule = RULE) -> Watermarks:
    latest = {"AB".index(name): seconds * 1000 for name, seconds in seen.items()}
    return watermarks.advance(rule, latest, 0)


def test_two_streams() -> None:
    """The smaller of two watermarks counts, and none goes back."""
    watermarks = Watermarks.start(2)
    for seen, expected in UNION:
        watermarks = after(watermarks, seen)
        assert watermarks.query_ms == expected * 1000, seen


def test_restart_forgets_nothing(tmp_path: Path) -> None:
    """The watermark of each operator survives a restart, where Spark forgets A's 190."""
    watermarks = Watermarks.start(2)
    for seen, _ in UNION:
        watermarks = after(watermarks, seen)
    log = CommitLog(open_files(tmp_path))
    log.commit(CommitRecord("query", 0, 0, 1, {}, {}, **batch_end(watermarks)))
    restored = QueryCommit(log.records()[0]).watermarks
    assert restored.fitted(2) == watermarks
    assert after(restored, {"B": 200}).query_ms == 190_000


def test_other_operators_after_a_restart() -> None:
    """If the number of operators has changed, only the query's own watermark is kept."""
    watermarks = after(Watermarks.start(2), {"A": 100, "B": 100})
    assert watermarks.fitted(3) == Watermarks(90_000, (0, 0, 0), (-1, -1, -1))


def test_policy_max() -> None:
    """With policy max the larger one counts."""
    rule = WatermarkRule((10_000, 15_000), "max")
    watermarks = after(Watermarks.start(2), {"A": 20, "B": 30}, rule)
    assert watermarks.query_ms == 15_000
    assert after(watermarks, {"A": 150}, rule).query_ms == 140_000


@pytest.mark.parametrize(("idle_ms", "expected_ms"), [(None, 0), (60_000, 90_000)])
def test_idle_stream(idle_ms: int | None, expected_ms: int) -> None:
    """A stream without records for longer than its limit holds the others back no more."""
    rule = WatermarkRule((10_000, 5000), idle_ms=(None, idle_ms))
    watermarks = Watermarks.start(2).advance(rule, {0: 50_000}, 0)
    assert watermarks.query_ms == 0
    assert watermarks.advance(rule, {0: 100_000}, 60_001).query_ms == expected_ms


def test_idle_stream_that_comes_back() -> None:
    """A stream that has records again counts again; the watermark does not go back for it."""
    rule = WatermarkRule((0, 0), idle_ms=(1000, 1000))
    watermarks = Watermarks.start(2).advance(rule, {0: 1000, 1: 1000}, 0)
    watermarks = watermarks.advance(rule, {0: 9000}, 2000)
    assert watermarks.query_ms == 9000
    watermarks = watermarks.advance(rule, {0: 20_000, 1: 2000}, 2500)
    assert watermarks.query_ms == 9000
    assert watermarks.advance(rule, {0: 30_000, 1: 15_000}, 2600).query_ms == 15_000
