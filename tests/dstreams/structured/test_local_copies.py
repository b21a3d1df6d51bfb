"""Copies of the state of a query on the hosts: how long they stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstreams.structured import StreamSession
from tests.dstreams.structured.runs import QueryRun


@pytest.mark.parametrize("is_lasting", [False, True])
def test_after_the_end(session: StreamSession, tmp_path: Path, is_lasting: bool) -> None:
    """A query without a checkpoint leaves nothing; another one leaves what its next run needs."""
    checkpoint = tmp_path / "checkpoint" if is_lasting else None
    run = QueryRun(session, lambda words: words.dropDuplicates(), "append", checkpoint)
    assert run.add("a", "b", "a") == ["a", "b"]
    assert run.add("a", "c") == ["c"]
    local = tmp_path / "local"
    assert [path.name for path in local.iterdir()] == [run.query.id]
    run.query.stop()
    assert [path.name for path in local.iterdir()] == ([run.query.id] if is_lasting else [])
