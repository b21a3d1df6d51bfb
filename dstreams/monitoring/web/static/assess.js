// Assesses a stream or query by its batches, in words.

import { brief, count, counted, decimal, duration, interval, rate, time, wholeSeconds } from "./format.js";

const NEWEST = 20; // batches that the assessment is based on
const PATIENCE = 3; // intervals without a batch before a warning

/** Records that a batch read from all inputs; an uncounted input adds none. */
export const recordsOf = (batch) =>
  batch.inputs.reduce((sum, input) => sum + (input.records ?? 0), 0);

const perSecond = (records, ms) => (ms > 0 ? (records * 1000) / ms : null);

/** Records per second that arrived since the previous batch; null for the first. */
export const inputRate = (batch) => perSecond(recordsOf(batch), batch.since_ms);

/** Records per second that the batch processed. */
export const processRate = (batch) => perSecond(recordsOf(batch), batchMs(batch));

/** Duration of a batch, including planning if known. */
export const batchMs = (batch) => batch.durations_ms.triggerExecution ?? batch.processing_delay_ms;

/** Sum of a metric over the stateful operators of a batch; null if none has it. */
export function stateMetric(batch, name) {
  let sum = null;
  for (const { metrics } of batch.states) if (name in metrics) sum = (sum ?? 0) + metrics[name];
  return sum;
}

/** Distance of the watermark of a batch from its batch time; null without a watermark. */
export function watermarkGap(batch) {
  const marks = batch.states.map((state) => state.watermark_ms).filter((mark) => mark !== null);
  const mark = batch.watermark_ms ?? (marks.length ? Math.min(...marks) : null);
  return mark ? batch.batch_time_ms - mark : null; // 0: no event time yet
}

/** Offsets left in an input after a batch; null if the source does not report them. */
export function lagOf(input) {
  const lag = input.metadata.lag;
  return lag ? Object.values(lag).reduce((sum, left) => sum + left, 0) : null;
}

/** Estimated end of the backlog of an input, in words; null if each batch reads all of it. */
export function backlogWords(batches, streamId, lag) {
  const ran = batches.slice(-NEWEST).map((batch) => ({ batch,
    given: batch.inputs.find((input) => input.stream_id === streamId) }))
    .filter(({ given }) => (given?.records ?? null) !== null && lagOf(given) !== null);
  const [first, last] = [ran[0], ran.at(-1)];
  if (!lag || ran.length < 3 || lag.records <= last.given.records) return null;
  const read = ran.slice(1).reduce((sum, { given }) => sum + given.records, 0);
  const come = read + lagOf(last.given) - lagOf(first.given);
  const reads = perSecond(read, last.batch.completed_ms - first.batch.completed_ms);
  const arrives = perSecond(come, last.batch.batch_time_ms - first.batch.batch_time_ms);
  if (reads === null || arrives === null) return null;
  const rates = `reading ${decimal(reads)} records/s, ${decimal(arrives)} arrive`;
  const gain = reads - arrives;
  return gain <= 0.01 * reads ? `not shrinking: ${rates}`
    : `cleared in about ${brief(wholeSeconds((lag.records / gain) * 1000))}: ${rates}`;
}

/** Whether an input read as much as its rate limit allows, and has more. */
export const isHeldBack = (batch, input, limit, lag) => limit !== undefined && lag !== null
  && lag.records > 0 && batch?.since_ms > 0
  && (perSecond(input.records ?? 0, batch.since_ms) ?? 0) >= 0.95 * limit;

const PHASES = ["latestOffset", "queryPlanning", "getBatch", "walCommit", "state", "addBatch",
  "snapshots", "commitOffsets"];

/** The phases of some batches, in the order of a batch. */
export function phaseNames(durations) {
  const names = new Set(durations.flatMap((each) => Object.keys(each)));
  names.delete("triggerExecution"); // the total
  return [...PHASES.filter((name) => names.has(name)),
    ...[...names].filter((name) => !PHASES.includes(name)).sort()];
}

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** "Running batches of 1 second for 3 minutes since 14:03:05 (182 completed batches, ...)" */
export function headline(status, nowMs) {
  if (status.started_ms === null) return "Defined, and not started yet";
  const { batch_ms: batchEvery, started_ms: startedMs, ended_ms: endedMs } = status;
  if (status.phase === "initialized") return `Starting since ${time(wholeSeconds(startedMs), nowMs)}`;
  const what = batchEvery === null
    ? "batches as data arrives" : `batches of ${interval(batchEvery)}`;
  const lasted = duration(wholeSeconds((endedMs ?? nowMs) - startedMs));
  const completed = Object.values(status.totals.batches).reduce((sum, each) => sum + each, 0);
  const records = Object.values(status.totals.records).reduce((sum, each) => sum + each, 0);
  const done = `(${counted(completed, "completed batch", "completed batches")}, `
    + `${counted(records, "record")})`;
  const since = `${endedMs === null ? "since" : "from"} ${time(wholeSeconds(startedMs), nowMs)}`;
  const span = `for ${lasted} ${since}`;
  return endedMs === null
    ? `Running ${what} ${span} ${done}`
    : `Ran ${what} ${span} to ${time(wholeSeconds(endedMs), nowMs)} ${done}`;
}

/** The health of a stream or query: `tone` is good, warn, bad or quiet, with `word` and `words`. */
export function verdict(status, nowMs) {
  if (status.phase === "failed") return say("bad", "Failed", "it has ended with an error");
  if (status.phase === "stopped") return say("quiet", "Stopped", "it has ended");
  if (status.phase === "initialized") {
    return say("quiet", "Starting", status.message || "no batch runs yet");
  }
  const ran = status.recent.slice(-NEWEST).filter((batch) => batch.outcome !== "cancelled");
  const silence = unheard(status, ran, nowMs);
  if (silence !== null) return silence;
  if (ran.length === 0) return say("quiet", "No batch yet", status.message || "none has ended");
  const failed = ran.filter((batch) => batch.outcome === "failed").length;
  if (ran.at(-1).outcome === "failed") {
    return say("bad", "Failing", failed === 1 ? "the newest batch failed"
      : `${count(failed)} of the newest ${count(ran.length)} batches failed`);
  }
  return status.kind === "query" ? queryPace(status, ran) : streamPace(status, ran);
}

const say = (tone, word, words) => ({ tone, word, words });

/** The verdict while the driver does not answer. */
export const unknown = (sinceMs) =>
  say("quiet", "Unknown", `the driver does not answer; status as of ${time(wholeSeconds(sinceMs))}`);

/** The verdict on a batch that runs too long or is overdue; null otherwise. */
function unheard(status, ran, nowMs) {
  const usual = Math.max(status.batch_ms ?? 0, ran.length ? mean(ran.map(batchMs)) : 0, 1000);
  const { running } = status;
  if (running !== null) {
    const lasts = nowMs - (running.batch.started_ms ?? nowMs);
    if (lasts <= PATIENCE * usual || lasts < 10_000) return null;
    return say("warn", "Slow", `batch ${running.batch.batch_id} has been running for `
      + `${duration(lasts)}`);
  }
  const last = status.recent.at(-1)?.completed_ms ?? status.started_ms;
  if (status.batch_ms === null || nowMs - last <= PATIENCE * usual + 2000) return null;
  return say("warn", "Silent", `no batch has run for ${duration(nowMs - last)}`);
}

function streamPace(status, ran) {
  const every = status.batch_ms;
  const takes = mean(ran.map((batch) => batch.processing_delay_ms));
  const waits = ran.at(-1).scheduling_delay_ms;
  const took = `batches take ${duration(takes)} on average`;
  if (every === null) return say("good", "Running", took);
  if (takes > every) {
    return say("bad", "Unstable", `${took}, longer than the interval of ${interval(every)}: `
      + "they queue up");
  }
  if (waits > every) {
    return say("warn", "Catching up", `${took} of an interval of ${interval(every)}, and the `
      + `newest waited ${duration(waits)} for earlier ones`);
  }
  return say("good", "Stable", `${took} of an interval of ${interval(every)}`);
}

function queryPace(status, ran) {
  const known = ran.filter((batch) => batch.since_ms && recordsOf(batch) > 0);
  if (known.length === 0) return say("quiet", "Idle", "no new data");
  const records = known.reduce((sum, batch) => sum + recordsOf(batch), 0);
  const arrives = perSecond(records, known.reduce((sum, batch) => sum + batch.since_ms, 0));
  const does = perSecond(records, known.reduce((sum, batch) => sum + batchMs(batch), 0)) ?? arrives;
  const rates = `${decimal(arrives)} records/s arrive, and it can process ${rate(does)}`;
  const isBehind = arrives > does * 1.05; // equal up to rounding if batches run back to back
  return isBehind ? say("warn", "Falls behind", rates) : say("good", "Keeps up", rates);
}

const summaries = new WeakMap(); // by list of batches, which each batch replaces

/** Failures of some batches, computed once per list. */
function troubles(recent) {
  if (!summaries.has(recent)) {
    let rejected = 0;
    for (const batch of recent) {
      for (const input of batch.inputs) rejected += input.metadata.rejected ?? 0;
    }
    summaries.set(recent, {
      rejected,
      failed: recent.filter((batch) => batch.outcome === "failed"),
      last: recent.findLast((batch) => ["succeeded", "failed"].includes(batch.outcome)),
    });
  }
  return summaries.get(recent);
}

/** Problems, worst first: `tone`, `title`, `text` (may be long), `batch`. */
export function problems(status, nowMs) {
  const found = [];
  const { failed, last, rejected } = troubles(status.recent);
  const newest = failed.at(-1);
  const isLast = newest !== undefined && last === newest;
  if (status.phase === "failed") { // otherwise its batches show it
    const what = status.kind === "query" ? "The query" : "The stream";
    found.push({ tone: "bad", title: `${what} failed`, text: status.failure ?? "",
      batch: isLast ? newest : null });
  } else if (isLast) {
    found.push({ tone: "bad", batch: newest, text: newest.failure ?? "",
      title: `The newest batch failed: batch ${newest.batch_id} of `
        + `${time(newest.batch_time_ms, nowMs)}` });
  }
  if (status.phase === "stopped" && status.failure !== null && newest === undefined) {
    found.push({ tone: "warn", title: "An error was reported while it ran", text: status.failure,
      batch: null });
  }
  if (newest !== undefined && !isLast) {
    found.push({ tone: "warn", batch: newest, text: newest.failure ?? "",
      title: `${counted(failed.length, "batch", "batches")} of the newest `
        + `${count(status.recent.length)} failed, the last one was batch ${newest.batch_id} of `
        + time(newest.batch_time_ms, nowMs) });
  }
  for (const receiver of status.receivers) {
    if (receiver.last_error_ms === null || (receiver.active && isOld(receiver, nowMs))) continue;
    found.push({ tone: receiver.active ? "warn" : "bad", batch: null,
      title: `Receiver ${receiver.name} ${receiver.active ? "reported an error" : "stopped"} at `
        + time(receiver.last_error_ms, nowMs),
      text: receiver.last_error_message });
  }
  if (rejected > 0) {
    found.push({ tone: "warn", batch: null, text: "",
      title: `${counted(rejected, "record")} of the newest ${count(status.recent.length)} batches `
        + "could not be decoded, or their function failed; they were skipped" });
  }
  return found;
}

const isOld = (receiver, nowMs) => nowMs - receiver.last_error_ms > 600_000;

/** The restart sentence of a checkpoint. */
export function restartSentence(checkpoint) {
  const { recomputed, rerun } = checkpoint;
  const range = ([first, last]) => (first === last ? `batch ${count(first)}`
    : `batches ${count(first)} to ${count(last)}`);
  const parts = [];
  if (recomputed) parts.push(`recompute the state of ${range(recomputed)}`);
  if (rerun.length) parts.push(`rerun ${range([rerun[0], rerun.at(-1)])}`);
  return parts.length === 0
    ? "A restart now would continue with the next batch and repeat nothing."
    : `A restart now would ${parts.join(" and ")}.`;
}
