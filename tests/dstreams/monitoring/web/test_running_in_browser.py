"""The page in a real Chromium, over streams and queries that really run."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import BatchFailedError, Settings, StreamingContext
from dstreams.monitoring.web.page import page as process_page
from dstreams.structured import StreamSession
from tests.support.browser import Tab, running_browser, sync_api
from tests.support.ports import free_port
from tests.support.programs import running
from tests.support.waiting import wait_for

expect = sync_api.expect


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as there:
        yield there


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    opened = Tab(browser)
    yield opened
    opened.close()
    process_page.close()


def count(ones: list[int], before: int | None) -> int:
    return sum(ones) + (before or 0)


def newest_batch(page: Any) -> Any:
    """The number of the newest batch, at the top of the page."""
    return page.locator(".figures .figure").first


@pytest.mark.deep
def test_a_stream_that_runs(sc: SparkContext, tmp_path: Path, tab: Tab) -> None:
    """It is followed for twenty batches, a key of it is looked up, and its failure is shown."""
    ssc = StreamingContext(sc, 1, settings=Settings(ui_enabled=True, ui_port=0))
    ssc.checkpoint(str(tmp_path))
    pairs = ssc.queueStream([[("a", 1), ("b", 1)]] * 30, uid="pairs", replayable=True)
    counts = pairs.updateStateByKey(count, uid="counts")
    counts.checkpoint(2)

    def look(rdd: Any) -> None:
        if rdd.count() and dict(rdd.collect())["a"] > 20:
            raise ValueError("more than twenty")

    counts.foreachRDD(look)
    ssc.step()
    page = tab.open(f"{ssc.uiWebUrl}/#/{ssc.status().run_id}")
    expect(newest_batch(page)).to_have_text("0")
    for number in range(1, 20):
        ssc.step()
        expect(newest_batch(page)).to_have_text(str(number))
    expect(page.locator(".graph svg g")).to_have_count(3)
    expect(page.locator(".graph svg .size")).to_contain_text("2 keys")
    expect(page.locator(".restart")).to_contain_text("A restart now would")
    field = page.get_by_label("State of one key")
    field.fill("a")
    field.press("Enter")
    expect(page.locator(".answer pre")).to_have_text("20")
    page.get_by_role("button", name="Show the largest keys").click()
    largest = page.get_by_role("table", name="The keys with the largest states").locator("tbody tr")
    expect(largest).to_have_count(2)
    with pytest.raises(BatchFailedError):
        ssc.step()
    problem = page.locator(".problem").first
    expect(problem).to_contain_text("more than twenty")
    problem.get_by_role("link", name="Show batch 20").click()
    outputs = page.get_by_role("table", name="Output operations of the batch").locator("tbody tr")
    expect(outputs).to_contain_text("Failed")
    expect(outputs).to_contain_text("test_running_in_browser.py")
    ssc.stop(stopSparkContext=False)
    page.get_by_role("link", name="All of").click()
    expect(page.locator(".badge")).to_have_text(re.compile("Failed|Stopped"))
    assert tab.complaints == []


@pytest.mark.deep
def test_a_query_that_runs(sc: SparkContext, tmp_path: Path, tab: Tab) -> None:
    """The page follows its batches."""
    conf = {"spark.dstreams.ui.enabled": "true", "spark.dstreams.ui.port": "0"}
    session = StreamSession(sc, conf)
    words = session.memoryStream("words")
    counted = words.toDS().groupByKey(lambda word: word).count()
    writer = counted.writeStream.format("memory").queryName("counted").outputMode("complete")
    query = writer.start()
    try:
        page = tab.open(f"{session.uiWebUrl}/#/{query.runId}")
        for number in range(3):
            words.addData("a", "b", "a")
            query.processAllAvailable()
            expect(newest_batch(page)).to_have_text(str(number))
        expect(page.get_by_role("heading", level=1)).to_have_text("counted")
        rows = page.locator("figure.chart").filter(has=page.get_by_text("Total state rows"))
        expect(rows).to_contain_text("The same in all 3 batches.")
        expect(page.locator(".state h3")).to_have_count(1)
    finally:
        query.stop()
    expect(page.locator(".badge")).to_have_text("Stopped")
    assert tab.complaints == []


def number(page: Any) -> int:
    """The number of the newest batch, -1 for none yet."""
    text = newest_batch(page).text_content()
    return int(text) if text.isdecimal() else -1


@pytest.mark.deep
@pytest.mark.spark
def test_a_driver_that_is_started_again(tmp_path: Path, tab: Tab) -> None:
    """An open page says that the driver is gone, and continues with the next one."""
    port = free_port()
    arguments = (
        "-m",
        "tests.dstreams.monitoring.web.shown_program",
        str(tmp_path / "counts"),
        str(port),
    )

    def is_there() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    with running(*arguments) as program:
        wait_for(is_there)
        page = tab.open(f"http://127.0.0.1:{port}/")
        wait_for(lambda: number(page) >= 2)
        page.get_by_role("link", name="shown").click()
        before = page.url
        program.end(signal.SIGTERM)
        expect(page.locator("#connection")).to_contain_text("The driver does not answer")
        expect(page.locator(".badge")).to_have_text("Unknown")
        last = number(page)
    with running(*arguments):
        expect(page.locator("#connection")).to_have_text("Connected to the driver", timeout=180_000)
        wait_for(lambda: number(page) > last)
        assert page.url != before
        expect(page.locator("#part-checkpoint + .card")).to_contain_text("Epoch2")
    assert [one for one in tab.complaints if "net::ERR_" not in one] == []
