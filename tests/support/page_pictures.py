"""Takes the pictures of the page for the documentation, of a shop whose orders and payments stream.

    python -m tests.support.page_pictures docs/pages/images

Each program runs for three minutes first, so that its timelines have something to show. Pillow,
where it is installed, makes the files smaller.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from dstreams import State, StateSpec, StreamingContext, tuned_context
from dstreams.structured import StreamSession, window
from tests.support.browser import Tab, running_browser
from tests.support.waiting import wait_for

COUNTRIES = ("AT", "BR", "DE", "FR", "IN", "JP", "NO", "US")
BATCHES = 75
_LIMIT_S = 600


def order(row: tuple[datetime, int]) -> tuple[str, int]:
    """Return who ordered, and for how many cents."""
    number = row[1]
    return f"customer-{number * 7919 % 5000}", number * 31 % 10_000


def visit(customer: str, cents: int | None, spent: State[int]) -> tuple[str, int]:
    """Return what a customer has spent so far."""
    total = (spent.getOption or 0) + (cents or 0)
    if not spent.isTimingOut:
        spent.update(total)
    return customer, total


def country(row: Any) -> str:
    """Return where a payment came from."""
    return COUNTRIES[row.value * row.value % 13 % len(COUNTRIES)]


def shop(sc: SparkContext, checkpoint: str) -> StreamingContext:
    """Return the stream of orders."""
    ssc = StreamingContext(sc, 2)
    ssc.checkpoint(checkpoint)
    orders = ssc.rateStream(600, uid="orders").map(order)
    spent = orders.mapWithState(StateSpec.function(visit).timeout(120), uid="spent")
    best = spent.filter(lambda pair: pair[1] > 90_000)
    best.foreachRDD(lambda rdd: rdd.count())
    return ssc


def failing_shop(sc: SparkContext, checkpoint: str) -> StreamingContext:
    """Return a stream whose price list lacks what somebody orders when the pictures are taken."""
    prices = {number: number * 31 % 10_000 for number in range(400) if number != 399}
    ssc = StreamingContext(sc, 2)
    ssc.checkpoint(checkpoint)

    def priced(row: tuple[datetime, int]) -> tuple[str, int]:
        return f"customer-{row[1] % 50}", prices[row[1] // 225 % 400]

    orders = ssc.rateStream(600, uid="orders").map(priced)
    totals = orders.updateStateByKey(lambda new, old: sum(new) + (old or 0), uid="totals")
    totals.foreachRDD(lambda rdd: rdd.count())
    return ssc


def payments(sc: SparkContext, checkpoint: str) -> Any:
    """Start the query of payments."""
    session = StreamSession(sc)
    rows = session.readStream.format("rate").option("rowsPerSecond", 400).load()
    counts = (
        rows.withWatermark(lambda row: row.timestamp, "10 seconds")
        .groupByKey(window(lambda row: row.timestamp, "30 seconds"), country)
        .count()
    )
    writer = counts.writeStream.outputMode("update").format("noop")
    writer = writer.queryName("payments by country").option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime="2 seconds").start()


def run(failing: bool, directory: str) -> None:
    """Run a shop until standard input ends; print where its page is."""
    conf = {"spark.dstreams.ui.enabled": "true", "spark.dstreams.ui.port": "0"}
    if failing:
        conf["spark.dstreams.onFailure"] = "continue"
    sc = tuned_context("Orders of the shop", "local[2]", conf)
    ssc = (failing_shop if failing else shop)(sc, f"{directory}/orders")
    ssc.start()
    if not failing:
        payments(sc, f"{directory}/payments")
    print(ssc.uiWebUrl, flush=True)
    sys.stdin.read()


def shows(page: Any, number: int) -> bool:
    """Say whether a page is as far as some batch."""
    newest = page.locator(".figures .figure").first.text_content()
    return newest.isdecimal() and int(newest) >= number


def take(browser: Any, failing: bool, directory: Path) -> None:
    """Take the pictures of one program."""
    command = [sys.executable, "-m", __spec__.name, "failing" if failing else "healthy"]
    with (
        tempfile.TemporaryDirectory() as checkpoint,
        subprocess.Popen(
            [*command, checkpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        looks: dict[str, dict[str, Any]] = {
            "page-light": {"viewport": {"width": 1440, "height": 942}, "color_scheme": "light"},
            "page-dark": {"viewport": {"width": 1440, "height": 942}, "color_scheme": "dark"},
        }
        if failing:
            looks = {"page-narrow": {"viewport": {"width": 360, "height": 800}}}
        name = "Orders of the shop" if failing else "payments by country"
        for picture, options in looks.items():
            tab = Tab(browser, **options)
            tab.open(url)
            tab.page.get_by_role("link", name=name).first.click()
            wait_for(partial(shows, tab.page, BATCHES), _LIMIT_S)
            if failing:
                tab.page.wait_for_selector(".problem")
            path = directory / f"{picture}.png"
            tab.page.screenshot(path=path)
            tab.close()
            make_small(path)
        program.stdin.close()
        program.terminate()


def make_small(path: Path) -> None:
    """Let a picture have 256 colours."""
    try:
        from PIL import Image  # noqa: PLC0415 - it may be missing
    except ImportError:
        return
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    if sys.argv[1] in ("failing", "healthy"):
        run(sys.argv[1] == "failing", sys.argv[2])
    else:
        with running_browser() as chromium:
            take(chromium, False, Path(sys.argv[1]))
            take(chromium, True, Path(sys.argv[1]))
