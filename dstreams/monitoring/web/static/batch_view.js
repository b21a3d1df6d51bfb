// The view of one batch.

import { bar } from "./charts.js";
import { batchKey } from "./feed.js";
import { el, setText, show } from "./dom.js";
import {
  bytes, count, counted, duration, fullTime, linkable, percent, plain, shortened, time,
} from "./format.js";
import { phaseNames, recordsOf } from "./assess.js";
import { Facts, Table } from "./table.js";

const OUTCOMES = {
  succeeded: "Succeeded", failed: "Failed", empty: "Nothing to do", cancelled: "Cancelled by a stop",
  waiting: "Waiting", running: "Running",
};
const TONES = { succeeded: "good", failed: "bad", cancelled: "warn" };
const OUTPUT_TONES = { Succeeded: "good", Failed: "bad" };
const ERROR_LINES = 4;
const IS_BYTES = /bytes|memory/i;
const IS_TIME = /Ms$/;

/** The outcome of a batch, in words. */
export const outcomeWord = (outcome) => OUTCOMES[outcome] ?? outcome;

/** The tone of an outcome. */
export const outcomeTone = (outcome) => TONES[outcome] ?? "quiet";

/** The address of the view of a batch. */
export const batchLink = (runId, batch) =>
  `#/${encodeURIComponent(runId)}/batch/${batch.batch_id}`;

/** A metric with the unit that its name implies. */
function metricWords(name, value) {
  if (IS_BYTES.test(name)) return bytes(value);
  return IS_TIME.test(name) ? duration(value) : count(value);
}

/** The first lines of an error, and all of it on demand. */
export function errorBlock(text) {
  const lines = text.trimEnd().split("\n");
  const begin = el("p", { class: "begin", dir: "auto",
    text: shortened(lines.slice(0, ERROR_LINES).join("\n"), 1000) });
  if (lines.length <= ERROR_LINES) return el("div", { class: "error" }, begin);
  return el("div", { class: "error" }, begin, el("details", {},
    el("summary", { text: `All ${count(lines.length)} lines of the error` }),
    el("pre", { tabindex: "0", dir: "auto", text: shortened(text, 20_000) })));
}

/** The newest run of a batch, which may be waiting or running. */
function findBatch(status, batchId) {
  const ran = status.recent.findLast((batch) => batch.batch_id === batchId);
  if (status.running?.batch.batch_id === batchId) {
    return { ...pending(status.running.batch), outcome: "running" };
  }
  const waiting = status.waiting.find((batch) => batch.batch_id === batchId);
  if (waiting !== undefined) return { ...pending(waiting), outcome: "waiting" };
  return ran ?? null;
}

const pending = (batch) => ({
  ...batch, failure: null, states: [], durations_ms: {}, completed_ms: null, event_times: null,
  watermark_ms: null, scheduling_delay_ms: null, processing_delay_ms: null, total_delay_ms: null,
});

export class BatchView {
  #shown = "";

  constructor() {
    this.back = el("a");
    this.title = el("h1", { tabindex: "-1" });
    this.previous = el("a", { text: "Previous batch" });
    this.next = el("a", { text: "Next batch" });
    this.content = el("div", { class: "sections" });
    this.node = el("div", {}, el("nav", { class: "crumbs", "aria-label": "Batches" },
      this.back, this.previous, this.next), this.title, this.content);
  }

  update(status, batchId, sparkUi, nowMs) {
    setText(this.back, `All of ${shortened(status.name, 60)}`);
    this.back.href = `#/${encodeURIComponent(status.run_id)}`;
    setText(this.title, `Batch ${count(batchId)}`);
    const has = (id) => findBatch(status, id) !== null;
    for (const [link, id] of [[this.previous, batchId - 1], [this.next, batchId + 1]]) {
      link.href = batchLink(status.run_id, { batch_id: id });
      show(link, has(id));
    }
    const batch = findBatch(status, batchId);
    const shown = batch === null ? `none of ${status.run_id}`
      : `${status.run_id} ${batchKey(batch)} ${batch.outcome} ${batch.started_ms} ${sparkUi}`;
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.content.replaceChildren(...(batch === null
      ? [el("p", { class: "notice", text: `Batch ${count(batchId)} of ${shortened(status.name, 60)} is not available: the driver `
        + `keeps the newest ${count(status.recent.length)} batches of this run.` })]
      : sections(batch, sparkUi, nowMs)));
  }
}

function sections(batch, sparkUi, nowMs) {
  const facts = new Facts();
  const span = (ms) => (ms === null ? null : duration(ms));
  facts.update([
    ["Outcome", outcomeWord(batch.outcome), outcomeTone(batch.outcome)],
    ["Batch time", fullTime(batch.batch_time_ms)],
    ["Records", count(recordsOf(batch))],
    ["Submitted", time(batch.submitted_ms, nowMs)],
    ["Started", batch.started_ms === null ? null : time(batch.started_ms, nowMs)],
    ["Ended", batch.completed_ms === null ? null : time(batch.completed_ms, nowMs)],
    ["Scheduling delay", span(batch.scheduling_delay_ms)],
    ["Processing time", span(batch.processing_delay_ms)],
    ["Total delay", span(batch.total_delay_ms)],
    ["Watermark", batch.watermark_ms ? fullTime(batch.watermark_ms) : null],
    ["Event times", batch.event_times === null ? null
      : `${fullTime(batch.event_times.min_ms)} to ${fullTime(batch.event_times.max_ms)}, `
        + `on average ${fullTime(Math.round(batch.event_times.avg_ms))}`],
  ]);
  return [
    batch.failure === null ? null
      : section("What failed", el("div", { class: "problem bad" }, errorBlock(batch.failure))),
    el("div", { class: "card" }, facts.node),
    section("Inputs", inputs(batch.inputs)),
    section("Outputs", outputs(batch, sparkUi)),
    phases(batch.durations_ms),
    batch.states.length === 0 ? null
      : section("Stateful operators", ...batch.states.map(operator)),
  ].filter((one) => one !== null);
}

const section = (title, ...children) =>
  el("section", { class: "section" }, el("h2", { text: title }), ...children);

function inputs(given) {
  if (given.length === 0) return el("p", { class: "empty", text: "None." });
  return el("div", { class: "cards" }, ...given.map((input) => {
    const { lag, rejected, ...more } = input.metadata;
    const partitions = kafkaPartitions(input.offsets);
    const facts = new Facts();
    facts.update([
      ["Records", input.records === null ? "not counted" : count(input.records)],
      ["Could not be decoded", rejected ? counted(rejected, "record") : null, "warn"],
      ...Object.entries(more)
        .map(([name, value]) => [shortened(name), shortened(plain(value), 2000)]),
      ...(partitions === null ? offsetFacts(input.offsets) : []),
    ]);
    return el("article", { class: "card" },
      el("h3", {}, el("bdi", { class: "name", text: shortened(input.name) })),
      input.description === "" || partitions !== null ? null
        : el("p", { class: "description", dir: "auto", text: shortened(input.description, 5000) }),
      facts.node, partitions === null ? null : kafkaTable(partitions, lag ?? {}));
  }));
}

function offsetFacts(offsets) {
  if (!offsets) return [];
  const { start, end, latest, metrics } = offsets;
  return [["From offset", start], ["To offset", end], ["Newest offset", latest],
    ...Object.entries(metrics ?? {})]
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => [name, shortened(plain(value), 2000)]);
}

/** Whether an offset has the form of Kafka: `{topic: {partition: offset}}`. */
const isOfKafka = (offset) => isObject(offset) && Object.values(offset).every((topic) =>
  isObject(topic) && Object.values(topic).every((one) => Number.isInteger(one)));
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** The range of each Kafka partition that a batch reads; null for other sources. */
function kafkaPartitions(offsets) {
  const [start, end] = [offsets?.start, offsets?.end].map((one) => one?.offsets ?? one);
  if (!isOfKafka(end) || Object.keys(end).length === 0) return null;
  const before = isOfKafka(start) ? start : {};
  return Object.entries(end).flatMap(([topic, partitions]) =>
    Object.entries(partitions).map(([partition, until]) =>
      ({ topic, partition: Number(partition), from: before[topic]?.[partition], until })));
}

function kafkaTable(rows, lag) {
  const table = new Table("Offsets by partition", [
    { head: "Topic", text: (row) => shortened(row.topic), isName: true },
    { head: "Partition", text: (row) => count(row.partition), isNumber: true },
    { head: "From", text: (row) => count(row.from), isNumber: true },
    { head: "To", text: (row) => count(row.until), isNumber: true },
    { head: "Offsets", text: (row) => count(row.until - row.from), isNumber: true },
    { head: "Left (lag)", isNumber: true,
      text: (row) => count(lag[`${row.topic}-${row.partition}`]) },
  ], (row) => `${row.topic}-${row.partition}`);
  table.update(rows);
  return table.node;
}

function outputs(batch, sparkUi) {
  const spark = linkable(sparkUi);
  const table = new Table("Output operations of the batch", [
    { head: "Output", text: (output) => count(output.output_id), isNumber: true },
    { head: "Operation", text: (output) => shortened(output.name), isName: true },
    { head: "Duration", isNumber: true, text: ({ started_ms: from, completed_ms: to }) => (
      to === undefined ? "–" : duration(to - from)) },
    { head: "Rows", text: (output) => count(output.rows), isNumber: true },
    { head: "Status", text: outputWord, tone: (output) => OUTPUT_TONES[outputWord(output)] ?? "" },
    { head: "Spark jobs", node: (output) => jobs(output.job_ids ?? [], spark) },
    { head: "Error", node: (output) => (output.failure ? errorBlock(output.failure) : null) },
  ], (output) => output.output_id, "None ran.");
  table.update(batch.outputs);
  return table.node;
}

function outputWord(output) {
  if (output.completed_ms === undefined) return "Not completed";
  return output.failure === null ? "Succeeded" : "Failed";
}

function jobs(ids, spark) {
  if (ids.length === 0) return el("span", { text: "–" });
  const links = ids.map((id) => (spark === null ? el("span", { text: String(id) })
    : el("a", { text: String(id), rel: "noopener noreferrer", target: "_blank",
      "aria-label": `Job ${id} on Spark's page`,
      href: `${spark.replace(/\/$/, "")}/jobs/job/?id=${encodeURIComponent(id)}` })));
  return el("span", { class: "jobs" }, ...links);
}

function phases(durations) {
  const rows = phaseNames([durations]).map((name) => [name, durations[name]]);
  if (rows.length === 0) return null;
  const total = durations.triggerExecution ?? rows.reduce((sum, [, ms]) => sum + ms, 0);
  const table = new Table(`Phases of the batch, ${duration(total)} in total`, [
    { head: "Phase", text: ([name]) => name },
    { head: "Duration", text: ([, ms]) => duration(ms), isNumber: true },
    { head: "Share", text: ([, ms]) => percent(total ? ms / total : 0), isNumber: true },
    { head: "", node: ([, ms], old) => old ?? bar(total ? ms / total : 0) },
  ], ([name]) => name);
  table.update(rows);
  return section("Phases", table.node);
}

function operator(state) {
  const facts = new Facts();
  facts.update([
    ["Partitions", count(state.partitions)],
    ["Watermark of the next batch", state.watermark_ms ? fullTime(state.watermark_ms) : null],
    ...Object.entries(state.metrics).map(([name, value]) => [name, metricWords(name, value)]),
  ]);
  return el("article", { class: "card" },
    el("h3", {}, el("bdi", { class: "name", text: shortened(state.uid) })),
    el("p", { class: "muted" }, el("bdi", { class: "name", text: shortened(state.name) })),
    facts.node);
}
