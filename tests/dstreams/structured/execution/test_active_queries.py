"""One query on a checkpoint in a process, whichever session or thread it is started from."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from checkpoint.cli.main import SUCCEEDED, main
from dstreams.errors import RestartError, StreamLifecycleError
from dstreams.structured import StreamingDataset, StreamSession
from dstreams.structured.api import manager
from dstreams.structured.execution.active_queries import claim_checkpoint
from dstreams.structured.execution.query_checkpoint import QueryCheckpoint
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.runs import QueryRun


def counts(words: StreamingDataset) -> StreamingDataset:
    return words.groupByKey(lambda word: word).count()


def test_places(tmp_path: Path) -> None:
    """A directory is one place, however it is written; a place that was given up is free."""
    (tmp_path / "link").symlink_to(tmp_path / "real")
    first = claim_checkpoint(str(tmp_path / "real"), "query first")
    for same in (f"{tmp_path}/real/", f"file://{tmp_path}/real", f"{tmp_path}/x/../link"):
        with pytest.raises(StreamLifecycleError, match=f"query first runs on {same} already"):
            claim_checkpoint(same, "query second")
    others = [
        claim_checkpoint(place, "other") for place in (str(tmp_path), None, None, "s3://a/real")
    ]
    with pytest.raises(StreamLifecycleError, match="other runs on s3://a/real/ already"):
        claim_checkpoint("s3://a/real/", "query second")
    first.claim_id("id")
    with pytest.raises(
        StreamLifecycleError, match=f"on {tmp_path}/real already, of which {tmp_path}"
    ):
        others[0].claim_id("id")
    first.release()
    first.release()
    others[0].claim_id("id")
    others.append(claim_checkpoint(str(tmp_path / "real"), "query second"))
    for other in others:
        other.release()


def test_two_sessions(make_session: MakeSession, tmp_path: Path) -> None:
    """The second session is refused, and the query of the first one goes on; then it is free."""
    run = QueryRun(make_session(), counts, "update", tmp_path)
    assert run.add("a") == [("a", 1)]
    with pytest.raises(StreamLifecycleError, match=f"query run runs on {tmp_path} already; stop"):
        QueryRun(make_session(), counts, "update", tmp_path)
    assert run.add("a") == [("a", 2)]
    run.query.stop()
    with pytest.raises(RestartError, match="has 0 additions"):  # of its own memory stream
        QueryRun(make_session(), counts, "update", tmp_path)
    run.restart()
    assert run.add("a") == [("a", 3)]


def test_two_threads(
    make_session: MakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two starts at one moment one is refused, by name as by place, and harms nothing."""
    opens, goes_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> QueryCheckpoint:
        opens.set()
        assert goes_on.wait(60)
        return QueryCheckpoint(*arguments)

    monkeypatch.setattr(manager, "QueryCheckpoint", slow)
    session: StreamSession = make_session()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(QueryRun, session, counts, "update", tmp_path)
        try:
            assert opens.wait(60)
            with pytest.raises(StreamLifecycleError, match="a query named 'run' runs already"):
                QueryRun(session, counts, "update", tmp_path / "elsewhere")
            with pytest.raises(StreamLifecycleError, match=f"runs on {tmp_path} already"):
                QueryRun(make_session(), counts, "update", tmp_path)
        finally:
            goes_on.set()
        run = starting.result(60)
    assert run.add("a") == [("a", 1)]
    assert run.restart().isActive
    assert run.add("a") == [("a", 2)]


def test_a_start_that_fails_leaves_the_place_free(
    make_session: MakeSession, tmp_path: Path
) -> None:
    """Who corrects what was wrong can start at once, in the same process."""
    session = make_session()
    unset: Any = session.memoryStream().toDS().writeStream.format("text").queryName("run")
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="file"):
        unset.start(str(tmp_path / "file"), checkpointLocation=str(tmp_path / "checkpoint"))
    run = QueryRun(session, counts, "update", tmp_path / "checkpoint")
    assert run.add("a") == [("a", 1)]


def test_a_copy_beside_its_original(make_session: MakeSession, tmp_path: Path) -> None:
    """In one process a copy of a checkpoint is refused while the original runs."""
    run = QueryRun(make_session(), counts, "update", tmp_path / "original")
    assert run.add("a") == [("a", 1)]
    assert main(["export", str(tmp_path / "original"), str(tmp_path / "file")]) == SUCCEEDED
    copy = tmp_path / "copy"
    assert main(["import", str(tmp_path / "file"), str(copy), "--here"]) == SUCCEEDED
    message = f"query run runs on {tmp_path}/original already, of which {copy} is a copy"
    with pytest.raises(StreamLifecycleError, match=message):
        QueryRun(make_session(), counts, "update", copy)
