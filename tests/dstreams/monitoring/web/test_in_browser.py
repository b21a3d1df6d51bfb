"""The page in a real Chromium, with streams and queries fed by the test, without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import pytest

from dstreams.monitoring.registry import StreamRegistry
from dstreams.monitoring.status import GraphNode
from dstreams.monitoring.web.server import Address, PageServer
from tests.support.browser import Tab, running_browser, sync_api
from tests.support.pages import serving
from tests.support.ports import free_port
from tests.support.shown_streams import Shown, ShownStream

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script>"
TURNED = "\u202etxt.exe\u202c"
ERROR = """ValueError: no such currency: 'XXX'
  in foreachRDD, function write at shop.py:48
    rate = rates[order.currency]
"""

expect = sync_api.expect
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as running:
        yield running


@pytest.fixture
def registry() -> StreamRegistry:
    return StreamRegistry()


@pytest.fixture
def server(registry: StreamRegistry) -> Iterator[PageServer]:
    with serving(registry) as running:
        yield running


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """A tab without errors in its console at the end."""
    opened = Tab(browser)
    yield opened
    opened.close()
    assert opened.complaints == []


def figure(page: Any, term: str) -> Any:
    """The number below a term at the top of the page."""
    row = page.locator(".figures > div").filter(has=page.get_by_text(term, exact=True))
    return row.locator(".figure")


@pytest.mark.deep
def test_a_stream_fills_the_page(registry: StreamRegistry, server: PageServer, tab: Tab) -> None:
    """Header, timelines, sources, batches, graph, state and checkpoint have its numbers."""
    stream = ShownStream(registry)
    stream.run(40)
    stream.begin()
    page = tab.open(server.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    expect(page.locator(".badge")).to_have_text("Stable")
    expect(page.locator(".headline")).to_contain_text("Running batches of 1 second for")
    expect(page.locator(".headline")).to_contain_text("40 completed batches")
    expect(page.locator(".headline")).to_contain_text("36,780 records")
    expect(figure(page, "State")).to_have_text("1,000")
    for title in ("Input rate", "Scheduling delay", "Processing time", "Total delay"):
        chart = page.locator("figure.chart").filter(has=page.get_by_text(title, exact=True))
        chart.scroll_into_view_if_needed()
        expect(chart.locator(".numbers")).to_contain_text(re.compile("median|The same in all"))
        expect(chart.locator("canvas")).to_be_visible()
    expect(page.get_by_text("100 % of the batches are within the interval of 1 s.")).to_have_count(
        2
    )
    active = page.get_by_role("table", name="Active batches")
    expect(active.get_by_role("link")).to_have_text("40")
    source = page.locator("article.source")
    expect(source).to_contain_text("80 records behind in 1 partition")
    expect(source).to_contain_text("5,000 records/s")
    expect(page.locator(".graph svg g")).to_have_count(5)
    expect(page.locator(".graph svg .size")).to_have_text("1,000 keys, 50 kB")
    expect(page.locator(".graph svg")).to_contain_text("totals · shop.py:36")
    expect(page.locator(".state .numbers").first).to_have_text(
        "250 keys per partition on average; most in partition 1: 700 keys, 2.8 times the average."
    )
    expect(page.locator(".skew").first).to_contain_text("0: 100 keys · 1: 700 keys · 2: 100 keys")
    expect(page.locator(".restart")).to_have_text(
        "A restart now would recompute the state of batches 36 to 39 and rerun batch 40."
    )
    expect(page.locator("#part-checkpoint + .card")).to_contain_text(
        "process 4121 on host worker-7"
    )


@pytest.mark.deep
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (-500, "cleared in about 3m 1s: reading 909 records/s, 410 arrive"),
        (500, "not shrinking: reading 909 records/s, 1,410 arrive"),
    ],
)
def test_estimated_end_of_the_backlog(
    registry: StreamRegistry, server: PageServer, tab: Tab, change: int, words: str
) -> None:
    """It follows from the lag, and from the records read and arrived in the newest batches."""
    stream = ShownStream(registry)
    stream.lag_of = lambda number: 100_000 + change * number
    stream.run(20)
    source = tab.open(server.url).locator("article.source")
    expect(source.locator("div").filter(has_text="Backlog").locator("dd")).to_have_text(words)


@pytest.mark.deep
def test_of_many_waiting_batches_the_next_ones_are_shown(
    registry: StreamRegistry, server: PageServer, tab: Tab
) -> None:
    """A stream that is far behind does not push the rest of the page out of sight."""
    stream = ShownStream(registry)
    stream.run()
    stream.begin(waiting=300)
    page = tab.open(server.url)
    rows = page.get_by_role("table", name="Active batches").get_by_role("link")
    expect(rows).to_have_text([str(batch_id) for batch_id in range(11, 0, -1)])
    expect(page.get_by_text("290 more are waiting, up to the batch of")).to_be_visible()


@pytest.mark.deep
def test_a_query_fills_the_page(registry: StreamRegistry, server: PageServer, tab: Tab) -> None:
    """With the charts and rows that only queries have."""
    ShownStream(registry, Shown("counts", "query")).run(30)
    page = tab.open(server.url)
    expect(page.locator(".badge")).to_have_text("Keeps up")
    for title in (
        "Input rate",
        "Process rate",
        "Input rows",
        "Batch duration",
        "Operation duration",
        "Watermark gap",
        "Total state rows",
        "Updated state rows",
        "Removed state rows",
        "State memory",
        "Rows dropped by watermark",
    ):
        chart = page.locator("figure.chart").filter(has=page.get_by_text(title, exact=True))
        expect(chart.locator(".average")).to_contain_text("average")
    legend = page.locator(".chart .legend:visible li")
    expect(legend).to_have_text(
        ["latestOffset 8 ms", "walCommit 12 ms", "addBatch 150 ms", "commitOffsets 14 ms"]
    )
    late = page.get_by_role("table", name="Lateness by operator").locator("tbody tr")
    expect(late).to_contain_text("12 s")
    expect(late.locator("td").nth(2)).to_have_text("30")


@pytest.mark.deep
def test_it_follows_twenty_batches(registry: StreamRegistry, server: PageServer, tab: Tab) -> None:
    """Each becomes the newest batch; displayed older batches do not move."""
    stream = ShownStream(registry)
    stream.run(30)
    page = tab.open(server.url)
    completed = page.get_by_role("table", name="Completed batches")
    newest = completed.get_by_role("link").first
    for number in range(30, 50):
        stream.run()
        expect(newest).to_have_text(str(number))
        expect(figure(page, "Newest batch")).to_have_text(str(number))
    expect(completed.locator("tbody tr")).to_have_count(20)
    expect(page.locator(".headline")).to_contain_text("50 completed batches")
    page.get_by_role("button", name="Older").click()
    expect(newest).to_have_text("29")
    stream.run(3)
    expect(figure(page, "Newest batch")).to_have_text("52")
    expect(newest).to_have_text("29")
    page.get_by_role("button", name="Newer").click()
    page.get_by_role("button", name="Newer").click()
    expect(newest).to_have_text("52")


def test_a_paused_page_stands_still(registry: StreamRegistry, server: PageServer, tab: Tab) -> None:
    """After the pause it shows the newest batches."""
    stream = ShownStream(registry)
    stream.run(5)
    page = tab.open(server.url)
    pause = page.get_by_role("button", name="Pause")
    expect(figure(page, "Newest batch")).to_have_text("4")
    pause.press("Enter")
    expect(page.locator("#connection")).to_contain_text("Paused")
    stream.run(5)
    with page.expect_response("**/status.json*"):
        page.get_by_label("Show the").select_option("1000")  # fetched during the pause
    expect(figure(page, "Newest batch")).to_have_text("4")
    pause.press("Enter")
    expect(figure(page, "Newest batch")).to_have_text("9")
    expect(page.locator("#connection")).to_have_text("Connected to the driver")


@pytest.mark.deep
def test_a_failure_is_shown_first(registry: StreamRegistry, server: PageServer, tab: Tab) -> None:
    """With the line of the program, and links to the batch, its outputs and their jobs."""
    stream = ShownStream(registry)
    stream.run(10)
    stream.run(failure=ERROR)
    page = tab.open(server.url)
    problem = page.locator(".problem")
    expect(problem.get_by_role("heading")).to_contain_text("The newest batch failed: batch 10")
    expect(problem).to_contain_text("in foreachRDD, function write at shop.py:48")
    expect(page.locator(".badge")).to_have_text("Failing")
    expect(page).to_have_title(re.compile("^Failed: "))
    problem.get_by_role("link", name="Show batch 10").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Batch 10")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    outputs = page.get_by_role("table", name="Output operations of the batch").locator("tbody tr")
    expect(outputs).to_have_count(2)
    expect(outputs.first).to_contain_text("Failed")
    expect(outputs.first).to_contain_text("rate = rates[order.currency]")
    expect(outputs.last).to_contain_text("Succeeded")
    job = outputs.first.get_by_role("link", name="Job 7 on Spark's page")
    expect(job).to_have_attribute("href", "http://localhost:4040/jobs/job/?id=7")
    offsets = page.get_by_role("table", name="Offsets by partition").locator("tbody td")
    expect(offsets).to_have_text(["0", "9,000", "9,910", "910", "50"])
    page.get_by_role("link", name="Previous batch").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Batch 9")
    page.get_by_role("link", name="All of orders").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    stream.run()
    stream.receiver_failed("connection refused")
    expect(problem.get_by_role("heading")).to_have_text([
        re.compile("^1 batch of the newest 12 failed, the last one was batch 10"),
        re.compile("^Receiver clicks stopped at "),
    ])  # fmt: skip
    stream.failed("StreamError: the disk is full")
    stream.ended()
    expect(problem.get_by_role("heading").first).to_have_text("The stream failed")
    expect(page.locator(".badge")).to_have_text("Failed")


def test_an_unstable_stream(registry: StreamRegistry, server: PageServer, tab: Tab) -> None:
    """The verdict is in words, not only in colour."""
    stream = ShownStream(registry)
    stream.run(3)
    page = tab.open(server.url)
    expect(page.locator(".badge")).to_have_text("Stable")
    took = stream.recent()[-1].started_ms
    stream.run(20, started_ms=took, completed_ms=took + 1500)
    expect(page.locator(".badge")).to_have_text("Unstable")
    expect(page.locator(".verdict")).to_contain_text(
        "batches take 1.5 s on average, longer than the interval of 1 second"
    )


@pytest.mark.deep
def test_a_key_is_looked_up(registry: StreamRegistry, server: PageServer, tab: Tab) -> None:
    """Its state as of the last commit is shown, or that there is none."""
    stream = ShownStream(registry, Shown(values={"customer-1": 41, ("a", 1): {"n": IMAGE}}))
    stream.run(2)
    page = tab.open(server.url)
    field, answer = page.get_by_label("State of one key"), page.locator(".answer").first
    field.fill("customer-1")
    field.press("Enter")
    expect(answer).to_contain_text("State of customer-1 (partition 3, after the batch of")
    expect(answer.locator("pre")).to_have_text("41")
    expect(answer).to_be_focused()
    field.fill("nobody")
    page.get_by_role("button", name="Look up", exact=True).click()
    expect(answer).to_contain_text("No state for nobody")
    field.fill("refused")
    field.press("Enter")
    expect(answer).to_contain_text("operator 'totals' has no state yet; wait for a batch")
    tab.complaints.remove(
        "error: Failed to load resource: the server responded with a status of 400 (Bad Request)"
    )
    page.get_by_role("button", name="Show the largest keys").click()
    largest = page.get_by_role("table", name="The keys with the largest states").locator("tbody tr")
    expect(largest).to_have_count(2)
    largest.last.get_by_role("button").click()
    expect(answer.locator("pre")).to_have_text("{'n': '<img src=x onerror=alert(1)>'}")


@pytest.mark.deep
def test_it_survives_a_restart_of_the_driver(browser: Any, registry: StreamRegistry) -> None:
    """It says that the driver is gone, reconnects, and shows the new run."""
    tab = Tab(browser)
    before = ShownStream(registry)
    before.run(5)
    port = free_port()
    with serving(registry, Address(port=port)) as server:
        page = tab.open(f"{server.url}/#/orders-run-1")
        expect(page.locator("#connection")).to_have_text("Connected to the driver")
    expect(page.locator("#connection")).to_contain_text("The driver does not answer, since")
    expect(figure(page, "Newest batch")).to_have_text("4")
    again = StreamRegistry()
    after = ShownStream(again, run=2)
    after.next_id = 5
    after.run(2)
    with serving(again, Address(port=port)):
        expect(page.locator("#connection")).to_have_text("Connected to the driver")
        expect(figure(page, "Newest batch")).to_have_text("6")
        expect(page.locator(".headline")).to_contain_text("2 completed batches")
        expect(page).to_have_url(re.compile("#/orders-run-2$"))
        after.run()
        expect(figure(page, "Newest batch")).to_have_text("7")
    tab.close()
    assert {one for one in tab.complaints if "net::ERR_" not in one} == set()


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["stream", "query"])
def test_untrusted_names_are_harmless(
    registry: StreamRegistry, server: PageServer, tab: Tab, kind: Any
) -> None:
    """Markup is text, characters that reverse text are escaped, and long names are cut."""
    name = f"{IMAGE}{SCRIPT}{TURNED}"
    graph = (
        GraphNode(0, "input", f"{IMAGE} at {SCRIPT}", name),
        GraphNode(1, "state", SCRIPT * 50, "totals", (0,), IMAGE),
    )
    shown = Shown(name, kind, graph, values={IMAGE: SCRIPT, "x" * 50_000: TURNED})
    stream = ShownStream(registry, shown)
    stream.run(5)
    stream.run(failure=f"{IMAGE}\n" * 9)
    stream.receiver_failed(SCRIPT)
    stream.failed(SCRIPT)
    page = tab.open(server.url)
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text(f"{IMAGE}{SCRIPT}\\u202etxt.exe\\u202c")
    page.get_by_text("The same as a table").click()
    page.get_by_label("State of one key").fill(IMAGE)
    page.get_by_label("State of one key").press("Enter")
    expect(page.locator(".answer pre").first).to_have_text(repr(SCRIPT))
    page.get_by_role("button", name="Show the largest keys").click()
    keys = page.get_by_role("table", name="The keys with the largest states").locator("tbody th")
    expect(keys.first).to_have_text(repr(IMAGE))
    expect(keys.last).to_contain_text("xxx…")
    harmless(page)
    page.get_by_role("link", name="Show batch 5").first.click()
    expect(heading).to_have_text("Batch 5")
    expect(page.locator(".problem")).to_contain_text(IMAGE)
    harmless(page)
    page.goto(f"{server.url}/#/{IMAGE}/batch/1")
    expect(page.get_by_role("heading", level=1)).to_have_text("Streams and queries")
    harmless(page)


def harmless(page: Any) -> None:
    assert page.locator("img, script:not([src]), iframe, object, [onerror]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.deep
def test_several_streams_are_found_by_keyboard(
    registry: StreamRegistry, server: PageServer, tab: Tab
) -> None:
    """Nothing needs a mouse."""
    ShownStream(registry).run(5)
    ShownStream(registry, Shown("counts", "query")).run(5)
    page = tab.open(server.url)
    table = page.get_by_role("table", name="Streams and queries of this driver")
    expect(table.locator("tbody tr")).to_have_count(2)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(table.get_by_role("link", name="orders")).to_be_focused()
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("counts")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    here = page.get_by_role("navigation", name="Streams and queries").locator("[aria-current]")
    expect(here).to_have_text("countsKeeps up")
    page.go_back()
    expect(table).to_be_visible()


# Accessibility ----------------------------------------------------------------------------------

CONTRAST = """() => {
  const luminance = ([red, green, blue]) => [red, green, blue]
    .map((one) => one / 255)
    .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const parsed = (colour) => (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const behind = (node) => {
    for (let at = node; at !== null; at = at.parentElement) {
      const colour = parsed(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
      if (at.namespaceURI.endsWith("svg") && at.localName === "g") {
        const { fill, fillOpacity: part } = getComputedStyle(at.querySelector("rect"));
        const under = behind(at.closest("svg").parentElement);
        return parsed(fill).slice(0, 3).map((one, of) => one * part + under[of] * (1 - part));
      }
    }
    return [255, 255, 255];
  };
  const found = new Map();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text !== null; text = texts.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !node.checkVisibility() || node.localName === "title") continue;
    const isDrawn = node.namespaceURI.endsWith("svg");
    const colour = parsed(getComputedStyle(node)[isDrawn ? "fill" : "color"]);
    const [low, high] = [luminance(colour), luminance(behind(node))].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.set(`${text.data.trim().slice(0, 40)} ${colour}`, ratio);
  }
  return [...found];
}"""

ANATOMY = """async () => {
  const drawn = () => new Promise((done) => requestAnimationFrame(done));
  for (const _ of [1, 2]) await drawn();
  const names = [];
  const all = (query) => [...document.querySelectorAll(query)];
  const labelled = (node) => node.labels?.length || node.getAttribute("aria-label");
  for (const node of all("input, select, textarea")) if (!labelled(node)) names.push("label");
  for (const node of all("button, a[href], summary")) {
    if (!(node.textContent.trim() || node.getAttribute("aria-label"))) names.push("name");
  }
  for (const node of all("table")) {
    if (!node.caption?.textContent.trim()) names.push("caption");
    if (node.querySelector("th:not([scope])")) names.push("scope");
    if (node.querySelector("tbody tr > :first-child:not(th):not(.empty)")) names.push("row head");
  }
  const ids = all("[id]").map((node) => node.id);
  if (new Set(ids).size !== ids.length) names.push("ids");
  for (const name of ["aria-labelledby", "aria-describedby", "for"]) {
    for (const node of all(`[${name}]`)) {
      if (!document.getElementById(node.getAttribute(name))) names.push(name);
    }
  }
  const levels = all("h1, h2, h3, h4").filter((node) => node.checkVisibility())
    .map((node) => Number(node.localName[1]));
  if (levels.filter((level) => level === 1).length !== 1) names.push("one h1");
  levels.forEach((level, at) => { if (at && level > levels[at - 1] + 1) names.push("levels"); });
  for (const query of ["header", "nav", "main", "footer"]) {
    if (!all(query).length) names.push(query);
  }
  for (const node of all("canvas")) if (!node.closest("[aria-hidden]")) names.push("canvas");
  if (all("[aria-live], [role=status], [role=alert]").length !== 1) names.push("live");
  for (const node of all(".scroll")) {
    if (node.scrollWidth > node.clientWidth && node.tabIndex !== 0) names.push("scroll");
  }
  if (all("[tabindex]").some((node) => node.tabIndex > 0)) names.push("tabindex");
  for (const node of all("button, select, .runs a")) {
    if (node.checkVisibility() && node.getBoundingClientRect().height < 24) names.push("small");
  }
  return names;
}"""


@pytest.mark.deep
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440, 2560])
def test_accessibility(
    browser: Any, registry: StreamRegistry, server: PageServer, scheme: str, width: int
) -> None:
    """Contrast, names, captions, headings and landmarks; nothing is wider than the window."""
    stream = ShownStream(registry)
    stream.run(30)
    stream.run(failure=ERROR)
    stream.receiver_failed("connection refused")
    ShownStream(registry, Shown("counts", "query")).run(5)
    tab = Tab(
        browser,
        color_scheme=scheme,
        viewport={"width": width, "height": 900},
        reduced_motion="reduce",
    )
    views = {
        "": "Streams and queries",
        "orders-run-1": "orders",
        "counts-run-1": "counts",
        "orders-run-1/batch/30": "Batch 30",
        "application": "Application",
    }
    for place, title in views.items():
        page = tab.open(f"{server.url}/#/{place}")
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        for folded in page.locator("summary:visible").all():
            folded.click()
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(ANATOMY) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    tab.close()
    assert tab.complaints == []


def test_no_file_runs_text() -> None:
    """No markup of data and no scripts in markup; the policy of the server forbids both."""
    for file in files("dstreams.monitoring.web").joinpath("static").iterdir():
        if file.name.endswith((".js", ".html")) and not file.name.startswith("uplot"):
            text = file.read_text(encoding="utf-8")
            refused = (
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\bstyle=|\bon\w+="
            )
            assert re.findall(refused, text) == [], file.name
