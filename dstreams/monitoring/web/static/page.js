// The page: one connection, one view at a time, drawn at most once per frame.

import { problems, unknown, verdict, inputRate, processRate, mean } from "./assess.js";
import { BatchView, batchLink } from "./batch_view.js";
import { onScheme } from "./charts.js";
import { el, setAttribute, setChildren, setText, show, Keyed } from "./dom.js";
import { Feed } from "./feed.js";
import { duration, fullTime, linkable, rate, shortened, time, wholeSeconds, zone } from "./format.js";
import { StreamView } from "./stream_view.js";
import { Facts, Table } from "./table.js";

const $ = (id) => document.getElementById(id);
const streamLink = (status) => `#/${encodeURIComponent(status.run_id)}`;
const TICK_MS = 1000; // ages grow even without events

const feed = new Feed(() => schedule());
const page = {
  isPaused: false,
  isScheduled: false,
  drawnMs: 0,
  judge: verdict,
  shown: null, // the displayed document; not the newest one while paused
  route: { kind: "", runId: "", name: "" },
  view: null,
  viewOf: "",
  restore: null, // a section or heading to focus once the view exists
};

// Routes ---------------------------------------------------------------------------

function readRoute() {
  const [runId = "", what = "", name = ""] = location.hash.replace(/^#\/?/, "").split("/")
    .map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  if (runId === "application") return { kind: "application", runId: "", name: "" };
  if (what === "batch" && /^\d+$/.test(name)) return { kind: "batch", runId, name: Number(name) };
  if (runId !== "") return { kind: "stream", runId, name: what === "section" ? name : "" };
  return { kind: "home", runId: "", name: "" };
}

/** The stream of a route; after a restart of the driver, its new run. */
function streamOf(route, streams) {
  const found = streams.find((status) => status.run_id === route.runId);
  if (found !== undefined || route.runId === "") return found ?? null;
  const before = page.ids.get(route.runId);
  const next = before && streams.find((status) =>
    status.kind === before.kind && (status.id === before.id || status.name === before.name));
  if (!next) return null;
  const rest = route.kind === "batch" ? `/batch/${route.name}` : "";
  history.replaceState(null, "", `${streamLink(next)}${rest}`);
  page.route = readRoute();
  return next;
}
page.ids = new Map(); // identities by run id, to find a stream after a restart

addEventListener("hashchange", () => {
  page.route = readRoute();
  page.restore = page.route;
  schedule();
});

// Drawing -------------------------------------------------------------------------------------

function schedule() {
  if (page.isScheduled) return;
  page.isScheduled = true;
  requestAnimationFrame(() => {
    page.isScheduled = false;
    draw();
  });
}

function draw() {
  page.drawnMs = performance.now();
  drawConnection();
  if (!page.isPaused || page.shown === null) page.shown = feed.document;
  const { shown } = page;
  if (shown === null) return;
  const nowMs = page.isPaused ? shown.application.now_ms : feed.nowMs();
  const streams = [...shown.streams];
  for (const status of streams) {
    page.ids.set(status.run_id, { id: status.id, name: status.name, kind: status.kind });
  }
  const isGone = feed.connection === "gone";
  page.judge = isGone ? () => unknown(shown.application.now_ms) : verdict;
  drawTop(shown, streams, nowMs);
  drawMain(shown, streams, nowMs);
  page.restore = null;
}

const connection = $("connection");

function drawConnection() {
  const isGone = feed.connection === "gone";
  connection.className = `connection ${page.isPaused ? "paused" : feed.connection}`;
  setText(connection, connectionWords(isGone));
}

// The text changes only with the state: a screen reader reads every change aloud.
function connectionWords(isGone) {
  if (isGone) {
    const since = feed.document === null ? "" : `, since ${time(wholeSeconds(feed.goneMs))}`;
    return `${feed.problem || "The driver does not answer"}${since}. Reconnecting.`;
  }
  if (feed.connection === "connecting") return "Connecting to the driver";
  return page.isPaused ? "Paused" : "Connected to the driver";
}

const runs = new Keyed();

function drawTop({ application }, streams, nowMs) {
  setText($("application"), shortened(application.name ?? "", 80));
  const worst = streams.some((status) =>
    problems(status, nowMs).some(({ tone }) => tone === "bad"));
  const title = `${worst ? "Failed: " : ""}${shortened(application.name ?? "", 60)} – dstreams`;
  if (document.title !== title) document.title = title;
  const places = ["", ...streams.map((status) => status.run_id), "application"];
  const links = runs.of(places, (key) => key, () => el("a", {},
    el("span", { class: "dot", "aria-hidden": "true" }), el("bdi"), el("span", { class: "word" })));
  links.forEach((link, at) => {
    const status = streams[at - 1];
    const [, name, word] = link.children;
    if (status === undefined) {
      link.href = at === 0 ? "#/" : "#/application";
      setText(name, at === 0 ? "All" : "Application");
      show(link.firstChild, false);
    } else {
      const { tone, word: said } = page.judge(status, nowMs);
      link.href = streamLink(status);
      setText(name, shortened(status.name || status.run_id, 40));
      setText(word, said);
      link.firstChild.className = `dot ${tone}`;
    }
    setAttribute(link, "aria-current", isHere(at, status, streams) ? "page" : null);
  });
  show(links[0], streams.length > 1);
  setChildren($("runs"), links);
}

function isHere(at, status, streams) {
  const { kind, runId } = page.route;
  if (status !== undefined) {
    return status.run_id === runId || (kind === "home" && streams.length === 1);
  }
  return at === 0 ? kind === "home" : kind === "application";
}

const main = $("main");

function drawMain(shown, streams, nowMs) {
  const { route } = page;
  const isOnly = route.kind === "home" && streams.length === 1;
  const status = isOnly ? streams[0] : streamOf(route, streams);
  if (route.kind === "application") {
    view("application", () => new ApplicationView()).update(shown);
  } else if (route.kind === "batch" && status !== null) {
    view(`batch ${status.run_id}`, () => new BatchView())
      .update(status, page.route.name, shown.application.spark_ui, nowMs);
  } else if (status !== null) {
    view(`stream ${status.run_id}`, () => new StreamView(status, {
      nowMs: () => (page.isPaused ? page.shown.application.now_ms : feed.nowMs()),
      more: (batches) => feed.fetchMore(batches),
      openBatch: (batch) => { location.hash = batchLink(status.run_id, batch); },
    })).update(status, nowMs, page.judge);
    if (page.restore?.kind === "stream") page.view.jump(page.restore.name);
  } else {
    view("home", () => new HomeView()).update(streams, nowMs, route.runId);
  }
}

/** Return the view of this name, created unless it is on the page. */
function view(name, make) {
  if (page.viewOf === name) {
    if (page.restore?.kind === "batch") page.view.title.focus(); // another batch in the same view
    return page.view;
  }
  const isFirst = page.view === null;
  page.viewOf = name;
  page.view = make();
  main.replaceChildren(page.view.node);
  if (!isFirst && page.restore !== null) { // a user navigated; a new run is shown without that
    scrollTo(0, 0);
    page.view.title.focus({ preventScroll: true });
  }
  return page.view;
}

/** All streams and queries, like the tab of Spark. */
class HomeView {
  constructor() {
    this.title = el("h1", { tabindex: "-1", text: "Streams and queries" });
    this.notice = el("p", { class: "notice" });
    const average = (value) => (status) => {
      const found = status.recent.slice(-20).map(value).filter((one) => one !== null);
      return found.length ? rate(mean(found)) : "–";
    };
    this.table = new Table("Streams and queries of this driver", [
      { head: "Name", text: (status) => shortened(status.name || status.run_id, 80), href: streamLink },
      { head: "Kind", text: (status) => status.kind },
      { head: "Status", text: (status) => page.judge(status, this.nowMs).word,
        tone: (status) => page.judge(status, this.nowMs).tone },
      { head: "Started", text: (status) => time(status.started_ms, this.nowMs), isNumber: true },
      { head: "Duration", isNumber: true, text: (status) => (status.started_ms === null ? "–"
        : duration((status.ended_ms ?? this.nowMs) - status.started_ms)) },
      { head: "Average input", text: average(inputRate), isNumber: true },
      { head: "Average process", text: average(processRate), isNumber: true },
      { head: "Newest batch", isNumber: true,
        text: (status) => String(status.recent.at(-1)?.batch_id ?? "–") },
      { head: "Error", isName: true, tone: () => "name clip",
        text: (status) => shortened(problems(status, this.nowMs)[0]?.title ?? "", 160) },
    ], (status) => status.run_id, "Nothing has been started yet.");
    this.node = el("div", { class: "sections" }, this.title, this.notice, this.table.node);
  }

  update(streams, nowMs, missing) {
    this.nowMs = nowMs;
    show(this.notice, missing !== "");
    setText(this.notice, missing === "" ? ""
      : "The driver no longer has this run. It has:");
    this.table.update(streams);
  }
}

/** The application and its settings. */
class ApplicationView {
  constructor() {
    this.title = el("h1", { tabindex: "-1", text: "Application" });
    this.facts = new Facts();
    this.spark = el("p", {}, el("a", {
      text: "Jobs and executors on Spark's page", rel: "noopener noreferrer",
    }));
    this.settings = new Table("Settings", [
      { head: "Name", text: ([name]) => shortened(name), isName: true },
      { head: "Value", text: ([, value]) => shortened(value, 500), isName: true },
    ], ([name]) => name, "None.");
    this.node = el("div", { class: "sections" }, this.title,
      el("div", { class: "card" }, this.facts.node, this.spark),
      el("section", { class: "section" }, el("h2", { text: "Settings" }), this.settings.node));
  }

  update({ application, settings }) {
    this.facts.update([
      ["Name", shortened(application.name ?? "")],
      ["Id", application.id ?? null],
      ["Started", application.started_ms ? fullTime(application.started_ms) : null],
      ["dstreams", application.version ?? null],
      ["PySpark", application.pyspark ?? null],
    ]);
    const spark = linkable(application.spark_ui);
    show(this.spark, spark !== null);
    if (spark !== null) this.spark.firstChild.href = spark;
    const shown = Object.entries(settings ?? {});
    this.settings.update(shown.map(([name, value]) => [name, String(value)]));
  }
}

// Controls ------------------------------------------------------------------------------

$("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the route
  main.focus();
});

$("pause").addEventListener("click", () => {
  page.isPaused = !page.isPaused;
  $("pause").setAttribute("aria-pressed", String(page.isPaused));
  schedule();
});

onScheme(() => page.view?.redraw?.());
setText($("foot"), `Times are in ${zone}, by the driver's clock.`);
setInterval(() => {
  if (performance.now() - page.drawnMs > TICK_MS * 0.9) schedule();
}, TICK_MS);
page.route = readRoute();
page.restore = page.route;
feed.connect();
