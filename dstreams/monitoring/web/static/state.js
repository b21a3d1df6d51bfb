// The state of one operator: its distribution over partitions, and queries of it.

import { bar } from "./charts.js";
import { el, setAttribute, setText, show, svg } from "./dom.js";
import { bytes, count, counted, decimal, duration, plain, shortened, time } from "./format.js";
import { mean } from "./assess.js";
import { Facts, FoldedTable, Table } from "./table.js";

const EVEN = 1.1; // largest partition of an even state, relative to the average
const STRIP = { width: 600, height: 54 };
const FEW = 8; // partitions that are listed instead of drawn

/** Bars of one number per partition, with their unevenness in words. */
class Strip {
  #bars = [];

  constructor(title, field, words) {
    this.field = field;
    this.words = words;
    this.text = el("p", { class: "numbers" });
    this.line = svg("line", { class: "mean", x1: 0, x2: STRIP.width });
    this.picture = svg("svg", {
      class: "strip", "aria-hidden": "true", viewBox: `0 0 ${STRIP.width} ${STRIP.height}`,
      preserveAspectRatio: "none",
    }, this.line);
    this.node = el("div", { class: "skew" }, el("h4", { text: title }), this.text,
      this.list = el("p"), this.picture);
  }

  update(partitions) {
    const values = partitions.map((one) => one[this.field]);
    const most = Math.max(0, ...values);
    const average = values.length ? mean(values) : 0;
    const fullest = partitions[values.indexOf(most)];
    setText(this.text, most === 0 ? "Nothing in any partition."
      : `${this.words(average)} per partition on average`
        + (most < EVEN * average ? ", evenly distributed."
        : `; most in partition ${fullest.partition}: ${this.words(most)}, `
          + `${decimal(most / average)} times the average.`));
    show(this.picture, values.length > FEW);
    show(this.list, values.length > 1 && values.length <= FEW);
    if (values.length <= FEW) {
      setText(this.list, partitions.map((one, at) =>
        `${one.partition}: ${this.words(values[at])}`).join(" · "));
      return;
    }
    while (this.#bars.length < values.length) {
      this.#bars.push(this.picture.insertBefore(svg("rect"), this.line));
    }
    while (this.#bars.length > values.length) this.#bars.pop().remove();
    const wide = STRIP.width / Math.max(1, values.length);
    const gap = Math.min(4, wide * 0.2);
    values.forEach((value, at) => {
      const height = most === 0 ? 0 : (value / most) * STRIP.height;
      const box = this.#bars[at];
      setAttribute(box, "x", (at * wide + gap / 2).toFixed(2));
      setAttribute(box, "width", (wide - gap).toFixed(2));
      setAttribute(box, "y", (STRIP.height - height).toFixed(1));
      setAttribute(box, "height", height.toFixed(1));
      setAttribute(box, "class", value > 2 * average && values.length > 1 ? "uneven" : "even");
    });
    const y = most === 0 ? STRIP.height : STRIP.height * (1 - average / most);
    setAttribute(this.line, "y1", y.toFixed(1));
    setAttribute(this.line, "y2", y.toFixed(1));
  }
}

export class StateView {
  #runId = "";
  #most = 0;

  constructor(state, nowMs) {
    this.uid = state.uid;
    this.nowMs = nowMs;
    this.title = el("h3", {}, el("bdi", { class: "name", text: shortened(state.uid) }));
    this.operation = el("bdi", { class: "name" });
    this.facts = new Facts();
    this.keys = new Strip("Keys by partition", "keys", (value) => `${decimal(value)} keys`);
    this.bytes = new Strip("Bytes written by partition", "written_bytes", bytes);
    const share = (field) => (part, old) => {
      const width = this.#most[field] ? part[field] / this.#most[field] : 0;
      if (old === null) return bar(width);
      old.firstChild.style.width = `${width * 100}%`;
      return old;
    };
    const table = new Table("Keys and bytes by partition", [
      { head: "Partition", text: (part) => count(part.partition), isNumber: true },
      { head: "Keys", text: (part) => count(part.keys), isNumber: true },
      { head: "", node: share("keys") },
      { head: "Bytes written", text: (part) => bytes(part.written_bytes), isNumber: true },
      { head: "", node: share("written_bytes") },
    ], (part) => part.partition);
    this.partitions = new FoldedTable("All partitions as a table", table);
    this.node = el("article", { class: "state card" }, this.title,
      el("p", { class: "muted" }, this.operation), this.facts.node,
      el("div", { class: "strips" }, this.keys.node, this.bytes.node),
      this.partitions.node,
      el("div", { class: "strips" }, this.#lookUp(), this.#largest()));
  }

  update(state, status, nowMs) {
    this.#runId = status.run_id;
    setText(this.operation, shortened(state.operation));
    const shown = state.partitions;
    this.facts.update([
      ["Keys", count(state.keys)],
      ["Written", bytes(state.written_bytes)],
      ["In memory", state.memory_bytes === null ? null : bytes(state.memory_bytes)],
      ["Partitions", count(shown.length)],
      ["As of", `batch of ${time(state.batch_time_ms, nowMs)}`],
    ]);
    this.keys.update(shown);
    this.bytes.update(shown);
    this.#most = {
      keys: Math.max(0, ...shown.map((part) => part.keys)),
      written_bytes: Math.max(0, ...shown.map((part) => part.written_bytes)),
    };
    this.partitions.update(shown);
    show(this.asking, status.phase === "active");
    show(this.sizes, status.phase === "active");
  }

  #lookUp() {
    const id = `key-${nextId()}`;
    const field = el("input", {
      id, name: "key", autocomplete: "off", spellcheck: "false", maxlength: 4096, required: true,
    });
    this.field = field;
    const button = el("button", { type: "submit", text: "Look up" });
    const answer = el("div", { class: "answer", tabindex: "-1" });
    const send = async (event) => {
      event.preventDefault();
      await busy(button, async () => {
        const found = await ask("state", { stream: this.#runId, uid: this.uid, key: field.value });
        answer.replaceChildren(...this.#found(field.value, found));
        answer.focus();
      });
    };
    this.asking = el("form", { class: "ask", on: { submit: send } },
      el("h4", {}, el("label", { for: id, text: "State of one key" })),
      el("p", { class: "hint", id: `${id}-hint`,
        text: "Text, or JSON such as 42 or [\"a\", 1]. As of the last commit." }),
      el("div", { class: "field" }, field, button), answer);
    setAttribute(field, "aria-describedby", `${id}-hint`);
    return this.asking;
  }

  #lookUpButton({ key, key_json: text }) {
    return el("button", { type: "button", text: "Look up",
      "aria-label": `Look up ${shortened(plain(key), 60)}`,
      on: { click: () => {
        this.field.value = text;
        this.asking.requestSubmit();
      } } });
  }

  #found(key, found) {
    if (found.error !== undefined) return [el("p", { class: "bad", text: found.error })];
    const asked = el("bdi", { class: "name", text: shortened(key) });
    const after = `partition ${found.partition}, after the batch of ${time(found.batch_time_ms)}`;
    if (!found.is_there) {
      return [el("p", {}, el("strong", { text: "No state" }), " for ", asked, ` (${after}).`)];
    }
    const timer = found.timeout_ms === null || found.timeout_ms === undefined ? null
      : `; its timer is due at ${time(found.timeout_ms)}`;
    return [
      el("p", {}, "State of ", asked, ` (${after}${timer ?? ""}):`),
      el("pre", { class: "value", dir: "auto", tabindex: "0", text: pretty(found.value) }),
    ];
  }

  #largest() {
    const table = new Table("The keys with the largest states", [
      { head: "Key", text: (one) => shortened(plain(one.key), 120), isName: true },
      { head: "Partition", text: (one) => count(one.partition), isNumber: true },
      { head: "Size", text: (one) => bytes(one.size_bytes), isNumber: true },
      { head: "State",
        node: (one) => (typeof one.key_json === "string" ? this.#lookUpButton(one) : null) },
    ], (one) => one.at, "No key has a state.");
    const said = el("p", { class: "hint" });
    const answer = el("div", { class: "answer", tabindex: "-1", hidden: true }, said, table.node);
    const button = el("button", { type: "button", text: "Show the largest keys" });
    button.addEventListener("click", () => busy(button, async () => {
      const started = performance.now();
      const found = await ask("largest", { stream: this.#runId, uid: this.uid });
      const isKnown = found.error === undefined;
      said.className = isKnown ? "hint" : "bad";
      setText(said, isKnown ? `${counted((found.keys ?? []).length, "key")}, read at `
        + `${time(this.nowMs())}, in ${duration(performance.now() - started)}` : found.error);
      show(table.node, isKnown);
      table.update((found.keys ?? []).map((one, at) => ({ ...one, at })));
      show(answer, true);
      answer.focus();
    }));
    this.sizes = el("div", { class: "ask" }, el("h4", { text: "Largest states" }),
      el("p", { class: "hint", text: "Reads the whole state in a job alongside the batches." }),
      button, answer);
    return this.sizes;
  }
}

let ids = 0;
const nextId = () => (ids += 1);

/** A value as indented JSON; a text as it is. */
function pretty(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return shortened(text ?? "null", 20_000);
}

async function busy(button, work) {
  if (button.getAttribute("aria-disabled") === "true") return;
  const text = button.textContent;
  button.setAttribute("aria-disabled", "true");
  button.textContent = "Reading …";
  try {
    await work();
  } finally {
    button.textContent = text;
    button.removeAttribute("aria-disabled");
  }
}

async function ask(what, fields) {
  try {
    const answer = await fetch(`${what}?${new URLSearchParams(fields)}`);
    const type = answer.headers.get("content-type") ?? "";
    if (type.includes("json")) return await answer.json();
    return { error: `the driver answered ${answer.status} ${answer.statusText}` };
  } catch (error) {
    return { error: `the driver does not answer (${error.message})` };
  }
}
