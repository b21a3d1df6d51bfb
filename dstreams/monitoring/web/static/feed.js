// What is known of the driver: one connection, and the newest document with its batches.

const RETRY_MS = 2000;
const REFUSED = {
  401: "The driver asks for its token: open the address that it printed at the start",
  403: "The driver refuses: open the address that it printed at the start",
  503: "The driver has as many pages open as it allows: close another one",
};

/** The names of these batches: a batch that failed may run again with the same number. */
export const batchKey = (batch) => `${batch.batch_id}:${batch.completed_ms}`;

/**
 * Follows the driver, and comes back to it by itself.
 *
 * `changed()` is called after every change of what is here:
 *   document   the newest one, null before the first; its streams have all their retained batches
 *   connection "connecting", "open" or "gone"
 *   problem    why it is gone, in words
 *   goneMs     since when, by the clock of this computer
 *   aheadMs    how far the clock of the driver is ahead of that
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

  /** The driver's clock. */
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

  /** Ask for more batches than a page has from the start. */
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

  // A browser comes back after a lost connection, and gives up after an answer that is none.
  async #lost(source) {
    this.#are("gone", this.problem);
    if (source.readyState !== EventSource.CLOSED || source !== this.#source) return;
    this.#source = null;
    setTimeout(() => this.connect(), RETRY_MS);
    try {
      const answer = await fetch("status.json", { method: "HEAD" });
      if (this.connection === "gone") this.#are("gone", REFUSED[answer.status] ?? "");
    } catch {
      // nobody is there: said already
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

/** Return the batches known and new, each once; as many as the driver keeps. */
function merged(known, added, { settings }) {
  if (added.length === 0) return known; // the same list: nobody has to draw it again
  const most = Number(settings?.["spark.streaming.ui.retainedBatches"]) || 1000;
  const news = new Set(added.map(batchKey));
  const overlap = known.slice(-added.length).some((batch) => news.has(batchKey(batch)));
  const kept = overlap ? known.filter((batch) => !news.has(batchKey(batch))) : known;
  return [...kept, ...added].slice(-most);
}
