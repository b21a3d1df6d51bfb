"""A driver that is killed with SIGKILL at named steps, again and again, against an oracle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.recovery.application import OUTPUTS
from tests.recovery.lives import entries, expected, last_id, live

pytestmark = pytest.mark.spark

USUAL = (
    "begin.done",
    "state.done",
    "out.start",
    "out.done",
    "commit.start",
    "commit.done",
    "clean.done",
    "rec.replay",
)
OTHERS = (
    "plan.start",
    "begin.start",
    "job.submit",
    "state.start",
    "clean.start",
    "rec.fence",
    "rec.load",
)


@pytest.mark.deep
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(USUAL, id="eight"),
        pytest.param((*OTHERS, *USUAL) * 2, id="thirty", marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_is_killed_at_each_step(tmp_path: Path, steps: tuple[str, ...]) -> None:
    """Each output sees each batch, with the same records as if nothing had happened.

    Outputs of a batch that was committed never run again; one that was not runs at most once more
    for each kill.
    """
    live(tmp_path, 2)
    done = last_id(tmp_path)
    assert done == 1
    kills: Counter[int] = Counter()
    for step in steps:
        before = entries(tmp_path)
        # A restart does a batch that nothing is wrong with before the one that it is killed in.
        at = step if step.startswith("rec.") else f"{step}@{done + 2}"
        live(tmp_path, 9, kill_at=at)
        written = entries(tmp_path)[len(before) :]
        assert all(entry.batch_id > done for entry in written), step
        kills[done + (1 if step.startswith("rec.") else 2)] += 1
        done = last_id(tmp_path)
    live(tmp_path, 2)
    seen = Counter((entry.output, entry.batch_id) for entry in entries(tmp_path))
    last = last_id(tmp_path)
    assert seen.keys() == {(output, batch_id) for output in OUTPUTS for batch_id in range(last + 1)}
    for (_, batch_id), times in seen.items():
        assert times <= 1 + kills[batch_id]
    for entry in entries(tmp_path):
        assert entry.rows == expected(entry.output, entry.batch_id), entry
