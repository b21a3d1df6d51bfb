"""Version 1 of a program is killed, version 2 goes on with its state."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recovery.lives import entries, expected, last_id, live, plan_of, sums

pytestmark = pytest.mark.spark


@pytest.mark.deep
def test_new_code_goes_on_with_the_state_of_old_code(tmp_path: Path) -> None:
    """A changed function, an added operator, other partitions; the batch in flight included."""
    live(tmp_path, 9, kill_at="out.done@4")
    assert last_id(tmp_path) == 3
    assert [begun.batch_id for begun in plan_of(tmp_path).in_flight] == [4]
    written = len(entries(tmp_path))
    live(tmp_path, 3, version=2)
    after = {(entry.output, entry.batch_id): entry.rows for entry in entries(tmp_path)[written:]}
    assert sorted({batch_id for _, batch_id in after}) == [4, 5, 6]
    old = dict(sums(range(4)))
    for batch_id in (4, 5, 6):
        for output in ("window", "counts", "kept"):
            assert after[output, batch_id] == expected(output, batch_id)
        # Twice the values from batch 4 on, on top of what version 1 had.
        new = dict(sums(range(4, batch_id + 1)))
        assert after["sums", batch_id] == [[key, old[key] + 2 * new[key]] for key in sorted(new)]
        # It was not there before.
        assert after["added", batch_id] == [[key, 4 * (batch_id - 3)] for key in sorted(new)]
    live(tmp_path, 1, version=2)
    assert last_id(tmp_path) == 7
