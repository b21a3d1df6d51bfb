// The view of one stream or query, in sections.

import {
  backlogWords, batchMs, headline, inputRate, isHeldBack, lagOf, mean, phaseNames, problems, processRate, recordsOf,
  restartSentence, stateMetric, watermarkGap,
} from "./assess.js";
import { batchLink, errorBlock, outcomeTone, outcomeWord } from "./batch_view.js";
import { Timeline, bar } from "./charts.js";
import { Keyed, el, setAttribute, setChildren, setText, show } from "./dom.js";
import { batchKey } from "./feed.js";
import {
  brief, bytes, count, counted, decimal, duration, fullTime, interval, plain, rate, short, shortened, time,
} from "./format.js";
import { Graph } from "./graph.js";
import { StateView } from "./state.js";
import { Facts, Figures, FoldedTable, Table } from "./table.js";

const ROWS = 20;
const WAITING_ROWS = 10; // a stream that is behind can have hundreds
const RANGES = [60, 200, 500, 1000];
const EVEN = Array.from({ length: 50 }, (_, power) => 2 ** power);
const ROUND_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000,
  60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 10_800_000, 43_200_000, 86_400_000,
  864_000_000, 8_640_000_000];
const perSecond = { words: decimal, unit: " records/s", axis: short };
const rows = { words: decimal, unit: " rows", axis: short };
const span = { words: duration, axis: brief, steps: ROUND_MS };

/** The phases of these batches, for a chart. */
const phasesOf = (batches) => phaseNames(batches.slice(-50).map((batch) => batch.durations_ms))
  .map((name) => ({ name, value: (batch) => batch.durations_ms[name] ?? 0 }));

const EVERY = { line: (status) => status.batch_ms, lineWords: "interval" };
const STREAM_CHARTS = [
  { title: "Input rate", value: inputRate, ...perSecond },
  { title: "Scheduling delay", value: (batch) => batch.scheduling_delay_ms, ...span },
  { title: "Processing time", value: (batch) => batch.processing_delay_ms, ...span, ...EVERY },
  { title: "Total delay", value: (batch) => batch.total_delay_ms, ...span, ...EVERY },
];
const QUERY_CHARTS = [
  { title: "Input rate", value: inputRate, ...perSecond },
  { title: "Process rate", value: processRate, ...perSecond },
  { title: "Input rows", value: recordsOf, ...rows },
  { title: "Batch duration", value: batchMs, ...span, ...EVERY },
];
const metric = (name) => (batch) => stateMetric(batch, name);
const STATE_CHARTS = [
  { title: "Watermark gap", value: watermarkGap, ...span },
  { title: "Total state rows", value: metric("numTotalStateRows"), ...rows },
  { title: "Updated state rows", value: metric("numUpdatedStateRows"), ...rows },
  { title: "Removed state rows", value: metric("numRemovedStateRows"), ...rows, isRare: true },
  { title: "State memory", value: metric("stateMemory"), words: bytes, steps: EVEN },
  { title: "Rows dropped by watermark", value: metric("numRowsDroppedByWatermark"), ...rows,
    isRare: true },
];
const OPERATIONS = { title: "Operation duration", stack: phasesOf, ...span };

export class StreamView {
  #range = RANGES[1];
  #window = { of: null, range: 0, batches: [] };
  #problems = "";
  #sections = new Map();
  #receiverRows;

  constructor(status, { openBatch, nowMs, more }) {
    this.more = more;
    this.runId = status.run_id;
    this.nowMs = nowMs;
    this.title = el("h1", { tabindex: "-1" });
    this.badge = el("span", { class: "badge" });
    this.verdictText = el("span");
    this.headline = el("p", { class: "headline" });
    this.problems = el("div", { class: "problems" });
    this.figures = new Figures();
    this.jumps = el("nav", { class: "jumps", "aria-label": "Parts of this page" });
    const charts = status.kind === "query" ? QUERY_CHARTS : STREAM_CHARTS;
    this.charts = [...charts, OPERATIONS].map((spec) => new Timeline(spec, openBatch));
    this.stateCharts = STATE_CHARTS.map((spec) => ({ spec, chart: new Timeline(spec, openBatch) }));
    this.sources = new Keyed();
    this.openBatch = openBatch;
    this.node = el("div", {},
      el("div", { class: "headrow" }, this.title,
        el("p", { class: "verdict" }, this.badge, this.verdictText)),
      this.headline, this.problems, this.figures.node, this.jumps,
      this.#section("timelines", "Timelines", this.#ranges(),
        el("div", { class: "charts" }, ...this.charts.map((one) => one.node),
          ...this.stateCharts.map(({ chart }) => chart.node))),
      this.#section("sources", "Sources", this.sourceList = el("div", { class: "cards" })),
      this.#section("batches", "Batches", ...this.#batches()),
      this.#section("graph", "Graph", (this.graph = new Graph()).node),
      this.#section("state", "State", this.stateList = el("div", { class: "states" })),
      this.#section("checkpoint", "Checkpoint", ...this.#checkpoint()),
      this.#section("watermarks", "Watermarks and lateness", ...this.#watermarks()),
      this.#section("receivers", "Receivers", ...this.#receivers()),
      this.#section("limits", "Rate limits", ...this.#limits()),
      this.#section("identity", "Identity", el("div", { class: "card" },
        (this.identity = new Facts()).node)));
    this.states = new Keyed();
    for (const [name, { title }] of this.#sections) {
      this.jumps.append(el("a", {
        href: `#/${encodeURIComponent(this.runId)}/section/${name}`, text: title,
      }));
    }
  }

  update(status, nowMs, judge) {
    this.status = status;
    this.judge = judge;
    this.#head(status, nowMs);
    const batches = this.#shownBatches(status);
    for (const chart of this.charts) chart.update(status, batches);
    for (const { spec, chart } of this.stateCharts) {
      const has = batches.some((batch) => (spec.isRare && status.kind === "stream"
        ? spec.value(batch) > 0 : spec.value(batch) !== null));
      show(chart.node, has);
      if (has) chart.update(status, batches);
    }
    this.#showSources(status, batches);
    this.#showBatches(status, nowMs);
    this.#toggle("graph", status.graph.length > 0);
    this.graph.update(status);
    this.#toggle("state", status.states.length > 0);
    const views = this.states.of(status.states, (state) => state.uid,
      (state) => new StateView(state, this.nowMs));
    views.forEach((view, at) => view.update(status.states[at], status, nowMs));
    setChildren(this.stateList, views.map((view) => view.node));
    this.#showCheckpoint(status, nowMs);
    this.#showWatermarks(status);
    this.#toggle("receivers", status.receivers.length > 0);
    this.receivers.update(status.receivers);
    const limits = Object.entries(status.rate_limits);
    this.#toggle("limits", limits.length > 0);
    this.limits.update(limits);
    this.identity.update([
      ["Kind", status.kind === "query" ? "query" : "stream"],
      ["Id", status.id || "none before the start"],
      ["Run id", status.run_id],
      ["Started", fullTime(status.started_ms)],
      ["Ended", status.ended_ms === null ? null : fullTime(status.ended_ms)],
    ]);
  }

  redraw() {
    for (const chart of this.#allCharts()) chart.redraw();
  }

  /** Scroll to a section, and focus its heading. */
  jump(name) {
    const found = this.#sections.get(name);
    if (found === undefined) return;
    found.heading.scrollIntoView({ block: "start" });
    found.heading.focus({ preventScroll: true });
  }

  #allCharts() {
    const ofSources = [...this.sourceList.children].flatMap((node) => node.charts ?? []);
    return [...this.charts, ...this.stateCharts.map(({ chart }) => chart), ...ofSources];
  }

  #section(name, title, ...children) {
    const id = `part-${name}`;
    const heading = el("h2", { id, tabindex: "-1", text: title });
    const node = el("section", { class: "section", "aria-labelledby": id }, heading, ...children);
    this.#sections.set(name, { title, heading, node });
    return node;
  }

  #toggle(name, isShown) {
    const at = [...this.#sections.keys()].indexOf(name);
    show(this.#sections.get(name).node, isShown);
    show(this.jumps.children[at], isShown);
  }

  // The head ------------------------------------------------------------------------------------

  #head(status, nowMs) {
    setText(this.title, shortened(status.name || status.run_id, 120));
    const pace = this.judge(status, nowMs);
    this.badge.className = `badge ${pace.tone}`;
    setText(this.badge, pace.word);
    setText(this.verdictText, pace.words);
    setText(this.headline, headline(status, nowMs));
    this.#showProblems(problems(status, nowMs));
    const newest = status.recent.at(-1);
    const ran = status.recent.slice(-20);
    const { checkpoint } = status;
    const keys = status.states.reduce((sum, state) => sum + state.keys, 0);
    const arriving = ran.map(inputRate).filter((one) => one !== null);
    const isWaiting = status.waiting.length > 1;
    const committed = checkpoint?.committed_at_ms ?? null;
    this.figures.update([
      ["Newest batch", newest === undefined ? "–" : count(newest.batch_id),
        newest === undefined ? "none yet" : outcomeWord(newest.outcome).toLowerCase(),
        newest?.outcome === "failed" ? "bad" : ""],
      ["Input rate", arriving.length ? decimal(mean(arriving)) : "–", "records/s"],
      ["Processing time", ran.length ? brief(mean(ran.map(batchMs))) : "–",
        `average of ${count(ran.length)}`],
      ["Total delay", newest === undefined ? "–" : brief(newest.total_delay_ms), "newest batch"],
      ["Waiting", count(status.waiting.length), status.waiting.length === 1 ? "batch" : "batches",
        isWaiting ? "warn" : ""],
      ["State", status.states.length ? count(keys) : null, keys === 1 ? "key" : "keys"],
      ["Newest commit", committed === null ? "–" : age(committed, nowMs),
        checkpoint === null ? "no checkpoint" : committed === null ? "none yet"
          : `batch ${count(checkpoint.committed_batch_id)}`],
    ]);
  }

  #showProblems(found) {
    const text = JSON.stringify(found.map(({ title, text: long }) => [title, long]));
    if (text === this.#problems) return;
    this.#problems = text;
    this.problems.replaceChildren(...found.map((one) =>
      el("section", { class: `problem ${one.tone}` },
        el("h2", {}, el("bdi", { text: shortened(one.title, 300) })),
        one.text === "" ? null : errorBlock(one.text),
        one.batch ? el("p", {}, el("a", {
          href: batchLink(this.runId, one.batch), text: `Show batch ${one.batch.batch_id}`,
        })) : null)));
  }

  // Timelines and sources -----------------------------------------------------------------------

  #ranges() {
    const select = el("select", { id: "range" }, ...RANGES.map((range) => el("option", {
      value: String(range), text: `newest ${count(range)} batches`, selected: range === this.#range,
    })));
    select.addEventListener("change", () => {
      this.#range = Number(select.value);
      if (this.#range > this.status.recent.length) this.more(this.#range);
      this.update(this.status, this.nowMs(), this.judge);
    });
    return el("p", { class: "tools" }, el("label", { for: "range", text: "Show the " }), select);
  }

  #shownBatches(status) {
    const before = this.#window;
    if (before.of !== status.recent || before.range !== this.#range) {
      const ran = status.recent.filter((batch) => batch.outcome !== "cancelled");
      this.#window = { of: status.recent, range: this.#range, batches: ran.slice(-this.#range) };
    }
    return this.#window.batches;
  }

  #showSources(status, batches) {
    const inputs = new Map();
    for (const batch of [...status.recent.slice(-1), ...status.waiting, status.running?.batch]) {
      for (const input of batch?.inputs ?? []) inputs.set(input.stream_id, input);
    }
    const given = [...inputs.values()];
    this.#toggle("sources", given.length > 0);
    const views = this.sources.of(given, (input) => input.stream_id,
      (input) => new SourceView(input, this.openBatch));
    views.forEach((view, at) => view.update(given[at], status, batches));
    setChildren(this.sourceList, views.map((view) => view.node));
  }

  // Batches -------------------------------------------------------------------------------------

  #batches() {
    const link = (batch) => batchLink(this.runId, batch);
    const delay = (field) => (batch) => (batch[field] === null ? "–" : duration(batch[field]));
    const common = [
      { head: "Batch", text: (batch) => count(batch.batch_id), href: link, isNumber: true },
      { head: "Batch time", isNumber: true,
        text: (batch) => time(batch.batch_time_ms, this.nowMs()) },
      { head: "Records", isNumber: true, text: (batch) => (
        batch.inputs.some((input) => input.records !== null) ? count(recordsOf(batch)) : "–") },
    ];
    this.active = new Table("Active batches", [...common,
      { head: "Waiting", isNumber: true, text: (batch) =>
        duration((batch.started_ms ?? this.nowMs()) - batch.submitted_ms) },
      { head: "Running", isNumber: true, text: (batch) =>
        (batch.started_ms === null ? "–" : duration(this.nowMs() - batch.started_ms)) },
      { head: "Activity", isName: true, text: (batch) => batch.now },
    ], (batch) => batch.batch_id, "None.");
    this.completed = new Table("Completed batches", [...common,
      { head: "Scheduling delay", text: delay("scheduling_delay_ms"), isNumber: true },
      { head: "Processing time", text: delay("processing_delay_ms"), isNumber: true },
      { head: "", node: (batch, old) => this.#share(batch, old) },
      { head: "Total delay", text: delay("total_delay_ms"), isNumber: true },
      { head: "Outputs: succeeded/total", isNumber: true, text: (batch) => {
        const good = batch.outputs.filter((output) => output.failure === null).length;
        return `${good}/${batch.outputs.length}`;
      } },
      { head: "Outcome", text: (batch) => outcomeWord(batch.outcome),
        tone: (batch) => outcomeTone(batch.outcome) },
    ], batchKey, "None yet.");
    const turn = (text, step) =>
      el("button", { type: "button", text, on: { click: () => this.#page(step) } });
    this.older = turn("Older", ROWS);
    this.newer = turn("Newer", -ROWS);
    this.paging = el("span");
    this.from = 0; // number of batches newer than those shown
    this.anchor = null; // the first batch shown, unless that is the newest
    this.laterBatches = el("p", { hidden: true });
    return [this.active.node, this.laterBatches, this.completed.node,
      el("p", { class: "tools" }, this.newer, this.older, this.paging)];
  }

  #share(batch, old) {
    const every = this.status.batch_ms ?? this.#longest;
    const part = every ? batch.processing_delay_ms / every : 0;
    const node = old ?? bar(0);
    node.firstChild.className = `fill ${part > 1 ? "bad" : ""}`;
    node.firstChild.style.width = `${Math.min(1, part) * 100}%`;
    return node;
  }

  #longest = 0;

  #page(step) {
    const most = Math.max(0, this.status.recent.length - 1);
    this.from = Math.max(0, Math.min(most, this.from + step));
    const first = this.status.recent.at(-1 - this.from);
    this.anchor = this.from === 0 || first === undefined ? null : batchKey(first);
    this.#showBatches(this.status, this.nowMs());
  }

  #showBatches(status) {
    const { recent, running } = status;
    const next = status.waiting.slice(0, WAITING_ROWS);
    const active = next.map((batch) => ({ ...batch, now: "waiting" })).reverse();
    if (running !== null) {
      const { batch, output } = running;
      active.push({ ...batch, now: output === null ? "running" : `running ${shortened(output.name)}` });
    }
    this.active.update(active);
    const later = status.waiting.length - next.length;
    show(this.laterBatches, later > 0);
    setText(this.laterBatches, later === 0 ? ""
      : `${count(later)} more ${later === 1 ? "is" : "are"} waiting, `
        + `up to the batch of ${time(status.waiting.at(-1).batch_time_ms, this.nowMs())}.`);
    if (this.anchor !== null) { // new batches do not move the rows
      const at = recent.findLastIndex((batch) => batchKey(batch) === this.anchor);
      this.from = at < 0 ? 0 : recent.length - 1 - at;
      if (at < 0) this.anchor = null;
    }
    const end = recent.length - this.from;
    const shown = recent.slice(Math.max(0, end - ROWS), end).reverse();
    this.#longest = Math.max(0, ...shown.map((batch) => batch.processing_delay_ms));
    this.completed.update(shown);
    setText(this.paging, recent.length === 0 ? "" : `${count(this.from + 1)} to `
      + `${count(this.from + shown.length)} of the newest ${count(recent.length)}`);
    setAttribute(this.newer, "aria-disabled", this.from === 0 ? "true" : null);
    setAttribute(this.older, "aria-disabled", end <= ROWS ? "true" : null);
  }

  // Checkpoint, watermarks, receivers, limits ---------------------------------------------------

  #checkpoint() {
    this.restart = el("p", { class: "restart" });
    this.checkpointFacts = new Facts();
    return [el("div", { class: "card" }, this.restart, this.checkpointFacts.node)];
  }

  #showCheckpoint({ checkpoint }, nowMs) {
    setText(this.restart, checkpoint === null
      ? "There is no checkpoint directory: everything is lost when the driver ends."
      : restartSentence(checkpoint));
    this.checkpointFacts.update(checkpoint === null ? [] : [
      ["Newest commit", checkpoint.committed_batch_id === null ? "none yet"
        : `batch ${count(checkpoint.committed_batch_id)}, ${age(checkpoint.committed_at_ms, nowMs)}`],
      ["State durable", checkpoint.durable_state_ms === null ? "not yet"
        : `up to the batch of ${time(checkpoint.durable_state_ms, nowMs)}, `
          + age(checkpoint.durable_state_ms, nowMs)],
      ["Newest files", bytes(checkpoint.snapshot_bytes)],
      ["Holder", checkpoint.holder],
      ["Epoch", count(checkpoint.epoch)],
      ["Directory", shortened(checkpoint.url, 1000)],
    ]);
  }

  #watermarks() {
    this.lateness = new Table("Lateness by operator", [
      { head: "Operator", text: (row) => shortened(row.uid), isName: true },
      { head: "Watermark", text: (row) => (row.mark ? fullTime(row.mark) : "–"), isNumber: true },
      { head: "Behind the batch time", isNumber: true,
        text: (row) => (row.mark ? duration(row.batchTime - row.mark) : "–") },
      { head: "Late records dropped", text: (row) => count(row.late), isNumber: true },
      { head: "Keys timed out or removed", text: (row) => count(row.removed), isNumber: true },
    ], (row) => row.uid);
    this.eventTimes = new Facts();
    return [el("div", {}, this.eventTimes.node), this.lateness.node];
  }

  #showWatermarks(status) {
    const newest = status.recent.at(-1);
    const { late_records: late, keys_removed: removed } = status.totals;
    const found = (newest?.states ?? []).map((state) => ({
      uid: state.uid, mark: state.watermark_ms ?? newest.watermark_ms,
      batchTime: newest.batch_time_ms,
      late: late[state.uid] ?? 0, removed: removed[state.uid] ?? 0,
    }));
    const marked = status.recent.findLast((batch) => batch.watermark_ms);
    const timed = status.recent.findLast((batch) => batch.event_times !== null);
    const isAny = marked !== undefined || timed !== undefined
      || found.some((row) => row.mark || row.late || row.removed);
    this.#toggle("watermarks", isAny);
    this.lateness.update(found);
    this.eventTimes.update([
      ["Watermark", marked === undefined ? null : `${fullTime(marked.watermark_ms)}, `
        + `${duration(marked.batch_time_ms - marked.watermark_ms)} behind the batch time`],
      ["Newest event time", timed === undefined ? null : fullTime(timed.event_times.max_ms)],
      ["Oldest event time of that batch",
        timed === undefined ? null : fullTime(timed.event_times.min_ms)],
    ]);
  }

  #receivers() {
    this.receivers = new Table("Receivers", [
      { head: "Receiver", text: (one) => shortened(one.name), isName: true },
      { head: "Status", text: (one) => (one.active ? "active" : "stopped"),
        tone: (one) => (one.active ? "good" : "bad") },
      { head: "Runs on",
        text: (one) => [one.executor_id, one.location].filter(Boolean).join(", ") },
      { head: "Last error at", isNumber: true, text: ({ last_error_ms: at }) => (
        at === null ? "never" : time(at, this.nowMs())) },
      { head: "Last error", node: (one, old) => receiverError(one, old) },
    ], (one) => one.stream_id);
    return [this.receivers.node];
  }

  #limits() {
    this.limits = new Table("Rate limits of inputs", [
      { head: "Input", text: ([name]) => shortened(name), isName: true },
      { head: "Limit", text: ([, most]) => rate(most), isNumber: true },
    ], ([name]) => name);
    return [this.limits.node];
  }
}

function receiverError(receiver, old) {
  if (!receiver.last_error_message && !receiver.last_error) return null;
  const whole = [receiver.last_error_message, receiver.last_error].filter(Boolean).join("\n");
  if (old !== null && old.whole === whole) return old;
  const node = errorBlock(whole);
  node.whole = whole;
  return node;
}

/** "12 s ago" */
function age(ms, nowMs) {
  const seconds = Math.floor((nowMs - ms) / 1000);
  return seconds < 1 ? "just now" : `${brief(seconds * 1000)} ago`;
}

/** Whether an offset is one number or word, not a list of partitions. */
const isShort = (offset) => ["number", "string"].includes(typeof offset)
  && String(offset).length <= 60;

/** The rate and lag of one source. */
class SourceView {
  constructor(input, openBatch) {
    const mine = (batch) => batch.inputs.find((each) => each.stream_id === input.stream_id);
    const value = (batch) => {
      const records = mine(batch)?.records ?? null;
      return records === null || !batch.since_ms ? null : (records * 1000) / batch.since_ms;
    };
    this.rate = new Timeline({ title: "Rate", value, ...perSecond }, openBatch);
    const left = (batch) => {
      const given = mine(batch);
      return given === undefined ? null : lagOf(given);
    };
    this.lag = new Timeline(
      { title: "Left after each batch", value: left, words: decimal, unit: " left", axis: short }, openBatch);
    this.left = left;
    this.title = el("h3");
    this.name = el("bdi", { class: "name" });
    this.title.append(this.name);
    this.facts = new Facts();
    this.lags = new FoldedTable("Lag of each partition", new Table("Lag by partition", [
      { head: "Partition", text: ([place]) => shortened(place), isName: true },
      { head: "Behind", text: ([, behind]) => count(behind), isNumber: true },
    ], ([place]) => place));
    this.node = el("article", { class: "card source" }, this.title, this.facts.node,
      el("div", { class: "charts" }, this.rate.node, this.lag.node), this.lags.node);
    this.node.charts = [this.rate, this.lag];
  }

  update(input, status, batches) {
    setText(this.name, shortened(input.name));
    const lag = status.lags.find((each) => each.stream_id === input.stream_id) ?? null;
    const limit = status.rate_limits[input.name];
    const total = status.totals.records[input.name];
    const newest = status.recent.findLast((batch) =>
      batch.inputs.some((each) => each.stream_id === input.stream_id));
    const read = newest?.inputs.find((each) => each.stream_id === input.stream_id) ?? input;
    const isHeld = isHeldBack(newest, read, limit, lag);
    this.facts.update([
      ["Records of this run", total === undefined ? "–" : count(total)],
      ["Newest batch", input.records === null ? "not counted" : counted(input.records, "record")],
      ["Lag", lag === null ? null : `${counted(lag.records, "record")} behind in ${
        counted(Object.keys(lag.partitions).length, "partition")}${
        lag.in_batches ? `, ${count(lag.in_batches)} of them in waiting or running batches` : ""}`],
      ["Backlog", backlogWords(status.recent, input.stream_id, lag)],
      ["Up to offset", isShort(input.offsets?.end) ? plain(input.offsets.end) : null],
      ["Limit", limit === undefined ? null : rate(limit) + (isHeld
        ? ": held back by the rate limit" : ""), isHeld ? "warn" : ""],
    ]);
    this.rate.update(status, batches);
    const hasLag = batches.some((batch) => this.left(batch) !== null);
    show(this.lag.node, hasLag);
    if (hasLag) this.lag.update(status, batches);
    show(this.lags.node, lag !== null);
    if (lag !== null) {
      this.lags.update(Object.entries(lag.partitions)
        .sort(([, one], [, other]) => other - one).slice(0, 500));
    }
  }
}
