// What the batches of a stream or query say about it, in words.

import { brief, count, counted, decimal, duration, interval, rate, time, wholeSeconds } from "./format.js";

const NEWEST = 20; // batches that say how it does now
const PATIENCE = 3; // intervals without a batch that nobody wonders about

/** Records that a batch read, of all its inputs; one that nobody counted gives none. */
export const recordsOf = (batch) =>
  batch.inputs.reduce((sum, input) => sum + (input.records ?? 0), 0);

const perSecond = (records, ms) => (ms > 0 ? (records * 1000) / ms : null);

/** Records a second that arrived between the batch before and this one; null for the first. */
export const inputRate = (batch) => perSecond(recordsOf(batch), batch.since_ms);

/** Records a second that the batch got through. */
export const processRate = (batch) => perSecond(recordsOf(batch), batchMs(batch));

/** How long a batch took, planning included where that is known. */
export const batchMs = (batch) => batch.durations_ms.triggerExecution ?? batch.processing_delay_ms;

/** A metric of all stateful operators of a batch together; null where none has it. */
export function stateMetric(batch, name) {
  let sum = null;
  for (const { metrics } of batch.states) if (name in metrics) sum = (sum ?? 0) + metrics[name];
  return sum;
}

/** How far the watermark of a batch is behind its batch time; null without a watermark. */
export function watermarkGap(batch) {
  const marks = batch.states.map((state) => state.watermark_ms).filter((mark) => mark !== null);
  const mark = batch.watermark_ms ?? (marks.length ? Math.min(...marks) : null);
  return mark ? batch.batch_time_ms - mark : null; // 0 stands for no event time seen yet
}

/** Offsets that were left after a batch, of all its inputs; null where no source says so. */
export function lagOf(input) {
  const lag = input.metadata.lag;
  return lag ? Object.values(lag).reduce((sum, left) => sum + left, 0) : null;
}

/** When the backlog of an input will be gone, in words; null where a batch reads all of it. */
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
  const rates = `${decimal(reads)} records/s are read, ${decimal(arrives)} arrive`;
  const gain = reads - arrives;
  return gain <= 0.01 * reads ? `does not shrink: ${rates}`
    : `gone in about ${brief(wholeSeconds((lag.records / gain) * 1000))}: ${rates}`;
}

/** Whether an input gave as much as its rate limit allows, and has more. */
export const isHeldBack = (batch, input, limit, lag) => limit !== undefined && lag !== null
  && lag.records > 0 && batch?.since_ms > 0
  && (perSecond(input.records ?? 0, batch.since_ms) ?? 0) >= 0.95 * limit;

const PHASES = ["latestOffset", "queryPlanning", "getBatch", "walCommit", "state", "addBatch",
  "snapshots", "commitOffsets"];

/** The phases of some batches, in the order in which a batch goes through them. */
export function phaseNames(durations) {
  const names = new Set(durations.flatMap((each) => Object.keys(each)));
  names.delete("triggerExecution"); // all of them together
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

/** How it does: `tone` is good, warn, bad or quiet; `word` and `words` say the same. */
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

/** What is said in place of a verdict while nobody knows. */
export const unknown = (sinceMs) =>
  say("quiet", "Not known", `the driver does not answer; this is how it was at ${time(wholeSeconds(sinceMs))}`);

/** Something that runs too long, or does not run at all; null for neither. */
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
      + `newest waited ${duration(waits)} for those before it`);
  }
  return say("good", "Stable", `${took} of an interval of ${interval(every)}`);
}

function queryPace(status, ran) {
  const known = ran.filter((batch) => batch.since_ms && recordsOf(batch) > 0);
  if (known.length === 0) return say("quiet", "Idle", "no new data");
  const records = known.reduce((sum, batch) => sum + recordsOf(batch), 0);
  const arrives = perSecond(records, known.reduce((sum, batch) => sum + batch.since_ms, 0));
  const does = perSecond(records, known.reduce((sum, batch) => sum + batchMs(batch), 0)) ?? arrives;
  const rates = `${decimal(arrives)} records/s arrive, and it could do ${rate(does)}`;
  const isBehind = arrives > does * 1.05; // back to back the two are the same but for rounding
  return isBehind ? say("warn", "Falls behind", rates) : say("good", "Keeps up", rates);
}

const summaries = new WeakMap(); // by the list of batches: it is another one after each batch

/** What of some batches is wrong, looked up once for each list of them. */
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

/** What is wrong with it, the worst first: `tone`, `title`, `text` (may be long), `batch`. */
export function problems(status, nowMs) {
  const found = [];
  const { failed, last, rejected } = troubles(status.recent);
  const newest = failed.at(-1);
  const isLast = newest !== undefined && last === newest;
  if (status.phase === "failed") { // else the batches say it
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
        + "could not be decoded and were left out" });
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
  if (recomputed) parts.push(`compute the state of ${range(recomputed)} again`);
  if (rerun.length) parts.push(`run ${range([rerun[0], rerun.at(-1)])} again`);
  return parts.length === 0
    ? "A restart now would go on with the next batch, and do nothing again."
    : `A restart now would ${parts.join(", and ")}.`;
}
