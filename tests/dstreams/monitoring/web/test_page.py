"""The page of a process, with real streams and queries."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from shutil import copytree
from typing import Any
from urllib.request import Request, urlopen

import pytest
from pyspark import RDD, SparkContext

from checkpoint import CheckpointError
from dstreams import Settings, StreamingContext
from dstreams.monitoring.web.page import page
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock
from tests.support.waiting import wait_for

TOKEN = "0123456789-abcdef"  # noqa: S105


@pytest.fixture(autouse=True)
def _page_closed(active_stopped: None) -> Iterator[None]:
    yield
    page.close()


def status(url: str | None, **headers: str) -> Any:
    assert url is not None
    with urlopen(Request(f"{url}/status.json", headers=headers), timeout=300) as answer:  # noqa: S310
        return json.load(answer)


def phases(url: str | None) -> dict[str, str]:
    return {each["run_id"]: each["phase"] for each in status(url)["streams"]}


def step(sc: SparkContext, settings: Settings) -> StreamingContext:
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=settings)
    ssc.queueStream([[1, 2], [3]]).foreachRDD(lambda rdd: rdd.count())
    ssc.step(2)
    return ssc


def test_a_context_shows_nothing_unless_asked_to(sc: SparkContext) -> None:
    """A library opens no port of its own accord."""
    ssc = step(sc, Settings())
    assert ssc.uiWebUrl is None
    assert "href" not in ssc._repr_html_()
    ssc.stop(stopSparkContext=False)


def test_a_page_shows_streams_and_queries(sc: SparkContext) -> None:
    """The first step starts it; streams that have ended and queries that begin are there, too."""
    ssc = step(sc, Settings(ui_enabled=True, ui_port=0))
    assert f'<a href="{ssc.uiWebUrl}"' in ssc._repr_html_()
    document = status(ssc.uiWebUrl)
    assert document["application"]["id"] == sc.applicationId
    [stream] = [each for each in document["streams"] if each["phase"] == "active"]
    assert [batch["records"] for batch in stream["recent"]] == [
        {"queueStream": 2},
        {"queueStream": 1},
    ]
    ssc.stop(stopSparkContext=False)
    session = StreamSession(sc, {"spark.dstreams.ui.enabled": "true"})
    words = session.memoryStream("words")
    query = words.toDS().writeStream.format("memory").queryName("shown").start()
    try:
        words.addData("a")
        query.processAllAvailable()
        assert session.uiWebUrl == ssc.uiWebUrl
        shown = {stream["run_id"]: "stopped", query.runId: "active"}
        # An answer may be a quarter of a second old: that of before the query, say.
        wait_for(lambda: shown.items() <= phases(session.uiWebUrl).items())
    finally:
        session.stop()


@pytest.mark.deep
def test_a_restart_is_shown_while_it_goes_on(sc: SparkContext, tmp_path: Path) -> None:
    """The page is served before the state is restored, and shows the progress."""
    directory, copy, seen = tmp_path / "checkpoint", tmp_path / "copy", []

    def look(rdd: RDD[Any]) -> RDD[Any]:
        url = import_module(
            "dstreams.monitoring.web.page"
        ).page.url  # which is no part of the graph
        seen.append(status(url)["streams"] if url else [])
        return rdd

    def setup() -> StreamingContext:
        ssc = StreamingContext(
            sc, 1, clock=ManualClock(), settings=Settings(ui_enabled=True, ui_port=0)
        )
        pairs = ssc.queueStream([[("a", 1)]] * 5, replayable=True).transform(look)
        counts = pairs.updateStateByKey(lambda values, state: sum(values) + (state or 0))
        counts.checkpoint(10)
        counts.foreachRDD(lambda rdd: rdd.count())
        ssc.checkpoint(str(directory))
        return ssc

    first = setup()
    first.step(4)
    copytree(directory, copy)  # a stop would copy the state
    first.stop(stopSparkContext=False)
    page.close()
    seen.clear()
    again = StreamingContext.restore(str(copy), setup)
    again.step()
    [restarting] = [each for each in seen[0] if each["phase"] == "initialized"]
    assert restarting["message"].startswith("making up for batches")
    assert restarting["run_id"] == again.status().run_id
    assert restarting["id"] == first.status().id
    assert (again.status().phase, again.status().message) == ("active", "")
    again.stop(stopSparkContext=False)


def test_a_start_that_fails_is_shown(sc: SparkContext, tmp_path: Path) -> None:
    """With its reason, and as one that has ended."""
    ssc = StreamingContext(
        sc, 1, clock=ManualClock(), settings=Settings(ui_enabled=True, ui_port=0)
    )
    ssc.checkpoint(str(tmp_path / "checkpoint"))
    ssc.queueStream([[1]]).pprint()
    (tmp_path / "checkpoint").rmdir()
    (tmp_path / "checkpoint").write_text("no directory")
    with pytest.raises(CheckpointError):
        ssc.step()
    streams = status(ssc.uiWebUrl)["streams"]
    [stream] = [each for each in streams if each["run_id"] == ssc.status().run_id]
    assert stream["phase"] == "failed"
    assert stream["failure"]


def test_a_token_that_is_made_is_told_once_and_kept_nowhere(
    sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """A page for other hosts requires a token; the log names a file that only the user can read."""
    ssc = step(sc, Settings(ui_enabled=True, ui_port=0, ui_host="0.0.0.0"))  # noqa: S104
    ssc.stop(stopSparkContext=False)
    [told] = [record for record in caplog.records if "live page: http" in record.message]
    path = Path(told.message.partition("; its token is in ")[2])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = path.read_text().strip()
    assert token not in caplog.text
    assert told.levelno == logging.WARNING
    assert ssc.uiWebUrl is not None
    assert token not in ssc.uiWebUrl
    local = f"http://127.0.0.1:{ssc.uiWebUrl.rpartition(':')[2]}"
    document = status(local, Authorization=f"Bearer {token}")
    assert token not in json.dumps(document)
    with pytest.raises(OSError, match="401"):
        status(local)


def test_a_token_of_the_user_is_masked_and_in_no_checkpoint(
    sc: SparkContext, tmp_path: Path
) -> None:
    """The settings that a context was given are kept with its graph, but for secrets."""
    settings = Settings(ui_enabled=True, ui_port=0, ui_token=TOKEN)
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=settings)
    ssc.checkpoint(str(tmp_path))
    ssc.queueStream([[1]]).foreachRDD(lambda rdd: rdd.count())
    ssc.step()
    document = status(ssc.uiWebUrl, Authorization=f"Bearer {TOKEN}")
    assert document["settings"]["spark.dstreams.ui.token"] == "*********(redacted)"
    assert TOKEN not in json.dumps(document)
    ssc.stop(stopSparkContext=False)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_a_page_that_cannot_be_started_harms_no_stream(
    sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the reason, and the setting to change."""
    ssc = step(sc, Settings(ui_enabled=True, ui_host="host.invalid"))
    assert ssc.uiWebUrl is None
    assert ssc.progress() is not None
    ssc.stop(stopSparkContext=False)
    assert "live page: cannot start: " in caplog.text
