// The connection to the driver, and the newest document with its batches.

const RETRY_MS = 2000;
const REFUSED = {
  401: "The driver requires a token: open the address that it printed at the start",
  403: "The driver refused: open the address that it printed at the start",
  503: "Too many pages of this driver are open: close another one",
};

/** The identity of a run of a batch: a failed batch may run again under the same number. */
export const batchKey = (batch) => `${batch.batch_id}:${batch.completed_ms}`;

/**
 * Follows the driver, and reconnects.
 *
 * `changed()` is called after every change of these fields:
 *   document   the newest, null before the first; its streams have all retained batches
 *   connection "connecting", "open" or "gone"
 *   problem    why the connection is gone, in words
 *   goneMs     since when, by the clock of this computer
 *   aheadMs    difference of the driver's clock from this one
 */
export class Feed {
  document = null;
  connection = "connecting";
  problem = "";
  goneMs = null;
  aheadMs = 0;
  #changed;
  #source = null;

  constructor(changed) {
    this.#changed = changed;
  }

  /** The time by the driver's clock. */
  nowMs() {
    return Date.now() + this.aheadMs;
  }

  connect() {
    const source = new EventSource("events");
    this.#source = source;
    source.addEventListener("status", (event) => {
      performance.mark("update");
      this.#take(JSON.parse(event.data));
      this.#are("open");
    });
    source.addEventListener("error", () => this.#lost(source));
  }

  /** Fetch more batches than the first document has. */
  async fetchMore(batches) {
    const answer = await fetch(`status.json?batches=${batches}`).catch(() => null);
    if (answer?.ok !== true || this.document === null) return;
    const more = await answer.json();
    const known = new Map(more.streams.map((stream) => [stream.run_id, stream.recent]));
    for (const stream of this.document.streams) {
      stream.recent = merged(known.get(stream.run_id) ?? [], stream.recent, this.document);
    }
    this.#changed();
  }

  #are(connection, problem = "") {
    if (connection === "open") this.goneMs = null;
    else this.goneMs ??= Date.now();
    this.connection = connection;
    this.problem = problem;
    this.#changed();
  }

  // Browsers reconnect after a lost connection, but not after an error status.
  async #lost(source) {
    this.#are("gone", this.problem);
    if (source.readyState !== EventSource.CLOSED || source !== this.#source) return;
    this.#source = null;
    setTimeout(() => this.connect(), RETRY_MS);
    try {
      const answer = await fetch("status.json", { method: "HEAD" });
      if (this.connection === "gone") this.#are("gone", REFUSED[answer.status] ?? "");
    } catch {
      // unreachable, which the page already says
    }
  }

  #take(next) {
    this.aheadMs = (next.application.now_ms ?? Date.now()) - Date.now();
    if (next.is_delta && this.document !== null) {
      const known = new Map(this.document.streams.map((stream) => [stream.run_id, stream]));
      for (const stream of next.streams) {
        stream.recent = merged(known.get(stream.run_id)?.recent ?? [], stream.recent, next);
      }
    }
    this.document = next;
  }
}

/** Return known and new batches without duplicates, at most as many as the driver keeps. */
function merged(known, added, { settings }) {
  if (added.length === 0) return known; // the same list, so that it is not drawn again
  const most = Number(settings?.["spark.streaming.ui.retainedBatches"]) || 1000;
  const news = new Set(added.map(batchKey));
  const overlap = known.slice(-added.length).some((batch) => news.has(batchKey(batch)));
  const kept = overlap ? known.filter((batch) => !news.has(batchKey(batch))) : known;
  return [...kept, ...added].slice(-most);
}
